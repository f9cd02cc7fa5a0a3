"""FrameNet exemplars: from JSON lines, or from the XML folder FrameNet itself (and nltk's download)
has."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from headwise.core.checks import one_of
from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import Example, FrameLink
from headwise.text.readers.files import Files, on_disk
from headwise.text.readers.limits import Walk, reading, shown, whole_number
from headwise.text.readers.rows import json_rows

SPACE = "{http://framenet.icsi.berkeley.edu}"
CORE = ("Core", "Core-Unexpressed")
BESIDE = ("frames.json.gz", "frames.json.xz", "frames.json")
UNKNOWN_CORE = "frame elements of unknown core type, taken as core"

CharSpan = tuple[int, int]


CoreTypes = Mapping[str, Mapping[str, str]]  # by frame and element


def core_types_beside(path: Path, walk: Walk) -> CoreTypes:
    """From `frames.json` (or `.gz`, `.xz`) in the folder of the exemplars; empty where there is
    none."""
    folder = path if path.is_dir() else path.parent
    found = next((folder / name for name in BESIDE if (folder / name).is_file()), None)
    return {} if found is None else _core_types_in(found, walk)


def _core_types_in(path: Path, walk: Walk) -> CoreTypes:
    """From `{frame: {"fe": {element: core type}}}`."""
    if not path.is_file():
        raise InputError(f"There is no file '{path}' with the frames' core types; check `frames`.")
    with reading(str(path), "not a table of frames with their elements' core types"):
        frames = json.loads(on_disk(path, walk).read())
        return {frame: dict(entry["fe"]) for frame, entry in frames.items()}


def _core_types_of_xml(folder: Path, walk: Walk) -> CoreTypes:
    """From FrameNet's `frame/*.xml`."""
    roots = ((path, _parse(path, walk)) for path in sorted(folder.glob("*.xml")))
    return {
        root.get("name", path.stem): {
            fe.get("name", ""): fe.get("coreType", "") for fe in root.iter(f"{SPACE}FE")
        }
        for path, root in roots
    }


def _is_core(core: CoreTypes, frame: str, element: str, notes: Notes) -> bool:
    """Whether an element of a frame is core; one that no table knows is taken as core and
    counted."""
    kind = core.get(frame, {}).get(element)
    if kind is None:
        notes[UNKNOWN_CORE] += 1
    return kind is None or kind in CORE


def read_framenet(
    files: Files, notes: Notes, *, frames: str | Path | None = None, bad_spans: str = "error"
) -> Iterator[Example]:
    """Exemplar sentences as whitespace words, with a link from each target to each of its overt
    elements (Kovaleva et al. 2019, §4.2).

    All links are read: which of them count (short sentences, core elements, distance) is the
    analysis's choice. A target in several parts ("ring a bell") and an element in several parts
    give a link per part.

    Parameters
    ----------
    frames : str or Path, optional
        A JSON file with the core type of each frame's elements; by default `frames.json` beside the
        exemplars. The XML folder has its own.
    bad_spans : {"error", "skip"}, default "error"
        What happens to a row with an element or a whole target outside its text; `skip` counts
        them. (FrameNet itself has a few targets of several parts with one part outside; that part
        is left out and counted.)
    """
    one_of("bad_spans", bad_spans, ("error", "skip"))
    folder = _xml_folder(files.path)
    rows = (
        _xml_rows(folder, files.walk)
        if folder is not None
        else (row for file in files for row in json_rows(file))
    )
    if frames is not None:
        core = _core_types_in(Path(frames), files.walk)
    elif folder is not None:
        core = _core_types_of_xml(folder / "frame", files.walk)
    else:
        core = core_types_beside(files.path, files.walk)
    for where, row in rows:
        try:
            yield exemplar(row, where, core, files.walk)
        except InputError:
            if bad_spans == "error":
                raise
            notes["exemplars left out: a span lies outside the text"] += 1


def exemplar(row: Mapping[str, Any], where: str, core: CoreTypes, walk: Walk) -> Example:
    """One exemplar `{frame, text, target: [[start, end]], fe: [[element, start, end], [element,
    null, null, kind]]}`, in characters, end exclusive."""
    with reading(
        where, "not a FrameNet exemplar", advice="; it needs `frame`, `text`, `target` and `fe`"
    ):
        frame, text = str(row["frame"]), row["text"]
        targets = [(_whole(start), _whole(end)) for start, end in row["target"]]
        elements = [
            (str(fe[0]), (_whole(fe[1]), _whole(fe[2]))) for fe in row["fe"] if fe[1] is not None
        ]
        places = [match.span() for match in re.finditer(r"\S+", text)]
    notes = walk.notes
    if not places:
        raise InputError(f"{where}: the sentence is empty.")
    outside = f"lies outside the text of {len(text)} characters"
    inside = [
        words
        for words in (_words_at(span, places, len(text)) for span in targets)
        if words is not None
    ]
    if not inside:
        raise InputError(
            f"{where}: the target of {shown(frame)} at characters {shown(targets)} {outside}."
        )
    if len(inside) < len(targets):
        notes["parts of targets left out: outside the text"] += len(targets) - len(inside)
    walk.limits.hold("max_marks", len(inside) * len(elements), where)
    links = []
    for element, span in elements:
        words = _words_at(span, places, len(text))
        if words is None:
            at = shown(f"{span[0]}..{span[1]}")
            raise InputError(
                f"{where}: the element {shown(element)} of {shown(frame)} at characters {at} {outside}."
            )
        is_core = _is_core(core, frame, element, notes)
        links += [FrameLink(frame, element, target, words, is_core) for target in inside]
    return Example(words=tuple(text[a:b] for a, b in places), frames=tuple(links), origin=where)


def _words_at(span: CharSpan, places: list[CharSpan], length: int) -> tuple[int, int] | None:
    """The words a character span touches; None where it is not inside the text or touches none."""
    start, end = span
    if not 0 <= start < end <= length:
        return None
    first = bisect_right(places, start, key=lambda place: place[1])  # words come one after another
    last = bisect_left(places, end, key=lambda place: place[0])
    return (first, last) if first < last else None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{shown(repr(value))} is no character position")
    return value


def _xml_folder(path: Path) -> Path | None:
    """FrameNet's data folder at a path or one level below it (nltk unpacks to `framenet_v17/`), if
    there is one."""
    if not path.is_dir():
        return None
    for folder in (path, *sorted(p for p in path.iterdir() if p.is_dir())):
        if (folder / "lu").is_dir() and (folder / "frame").is_dir():
            return folder
    return None


def _xml_rows(folder: Path, walk: Walk) -> Iterator[tuple[str, dict[str, Any]]]:
    """The annotated sentences of `lu/*.xml`; FrameNet counts the end of a span inclusively."""
    found = False
    for path in sorted((folder / "lu").glob("*.xml"), key=_natural):
        root = _parse(path, walk)
        found = True
        for sentence in root.iter(f"{SPACE}sentence"):
            text = sentence.findtext(f"{SPACE}text") or ""
            where = f"{shown(path, 1000)}, sentence {shown(sentence.get('ID', '?'))}"
            for annotation in sentence.findall(
                f"{SPACE}annotationSet"
            ):  # not `iter`: they are not within each other
                targets, elements = _layers(annotation, where)
                if targets:
                    yield (
                        where,
                        {
                            "frame": root.get("frame", ""),
                            "text": text,
                            "target": targets,
                            "fe": elements,
                        },
                    )
    if not found:
        raise InputError(
            f"The folder '{folder / 'lu'}' holds no .xml files; give FrameNet's data folder with lu/ and frame/."
        )


def _layers(
    annotation: ElementTree.Element, where: str
) -> tuple[list[CharSpan], list[tuple[str, int, int]]]:
    targets: list[CharSpan] = []
    elements: list[tuple[str, int, int]] = []
    for layer in annotation.findall(f"{SPACE}layer"):
        name = layer.get("name")
        if name not in ("Target", "FE") or layer.get("rank", "1") != "1":
            continue
        for label in layer.findall(f"{SPACE}label"):
            if label.get("start") is None:  # a null instantiation
                continue
            start, end = whole_number(label.get("start", "")), whole_number(label.get("end", ""))
            if start is None or end is None:
                raise InputError(
                    f"{where}: a label of the layer {name} has no whole number as start or end."
                )
            if name == "Target":
                targets.append((start, end + 1))
            else:
                elements.append((label.get("name", ""), start, end + 1))
    return targets, elements


class _Builder(ElementTree.TreeBuilder):
    """Builds a tree that is not too deep."""

    def __init__(self, walk: Walk) -> None:
        super().__init__()
        self._walk, self._depth = walk, 0

    def start(self, tag: str, attrs: dict[str, str], /) -> ElementTree.Element:
        self._depth += 1
        self._walk.limits.hold("max_depth", self._depth, self._walk.where())
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> ElementTree.Element:
        self._depth -= 1
        return super().end(tag)


def _parse(path: Path, walk: Walk) -> ElementTree.Element:
    """The tree of a file. What the parser raises is of many kinds: for an encoding it does not know
    a LookupError or ValueError."""
    content = on_disk(path, walk).read()
    problem = "the file is not well-formed XML"
    with reading(walk.where, problem):
        try:
            return ElementTree.fromstring(content, ElementTree.XMLParser(target=_Builder(walk)))
        except ElementTree.ParseError as error:
            raise InputError(f"{walk.where()}:{error.position[0]}: {problem} ({error}).") from error


def _natural(path: Path) -> tuple[int, str]:
    digits = re.sub(r"\D", "", path.stem)
    return (int(digits) if digits else 0, path.name)
