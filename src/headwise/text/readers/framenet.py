"""FrameNet exemplars: from JSON lines, or from the XML folder FrameNet itself (and nltk's download) has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from headwise.core.checks import one_of
from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import Example, FrameLink
from headwise.text.readers.files import Files, on_disk, reading
from headwise.text.readers.rows import json_rows

SPACE = "{http://framenet.icsi.berkeley.edu}"
CORE = ("Core", "Core-Unexpressed")
BESIDE = ("frames.json.gz", "frames.json.xz", "frames.json")
UNKNOWN_CORE = "frame elements of unknown core type, taken as core"

CharSpan = tuple[int, int]
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)  # what unpacking rows of another shape raises


class CoreTypes:
    """Which elements of which frame are core."""

    def __init__(self, by_frame: Mapping[str, Mapping[str, str]]) -> None:
        self.by_frame = by_frame

    @classmethod
    def beside(cls, path: Path) -> CoreTypes:
        """From `frames.json` (or `.gz`, `.xz`) in the folder of the exemplars; empty where there is none."""
        folder = path if path.is_dir() else path.parent
        found = next((folder / name for name in BESIDE if (folder / name).is_file()), None)
        return cls({}) if found is None else cls.from_json(found)

    @classmethod
    def from_json(cls, path: Path) -> CoreTypes:
        """From `{frame: {"fe": {element: core type}}}`."""
        if not path.is_file():
            raise InputError(f"There is no file '{path}' with the frames' core types; check `frames`.")
        with reading(str(path), "not a table of frames with their elements' core types", MALFORMED):
            frames = json.loads(on_disk(path).read())
            return cls({frame: dict(entry["fe"]) for frame, entry in frames.items()})

    @classmethod
    def from_xml(cls, folder: Path) -> CoreTypes:
        """From FrameNet's `frame/*.xml`."""
        by_frame = {}
        for path in sorted(folder.glob("*.xml")):
            root = _parse(path)
            by_frame[root.get("name", path.stem)] = {
                fe.get("name", ""): fe.get("coreType", "") for fe in root.iter(f"{SPACE}FE")
            }
        return cls(by_frame)

    def is_core(self, frame: str, element: str, notes: Notes) -> bool:
        """Whether an element of a frame is core; one that no table knows is taken as core and counted."""
        kind = self.by_frame.get(frame, {}).get(element)
        if kind is None:
            notes[UNKNOWN_CORE] += 1
            return True
        return kind in CORE


def read_framenet(
    files: Files, notes: Notes, *, frames: str | Path | None = None, bad_spans: str = "error"
) -> Iterator[Example]:
    """Exemplar sentences as whitespace words, with a link from each target to each of its overt elements (Kovaleva et
    al. 2019, §4.2).

    All links are read: which of them count (short sentences, core elements, distance) is the analysis's choice. A
    target in several parts ("ring a bell") and an element in several parts give a link per part.

    Parameters
    ----------
    frames : str or Path, optional
        A JSON file with the core type of each frame's elements; by default `frames.json` beside the exemplars. The XML
        folder has its own.
    bad_spans : {"error", "skip"}, default "error"
        What happens to a row with an element or a whole target outside its text; `skip` counts them. (FrameNet itself
        has a few targets of several parts with one part outside; that part is left out and counted.)
    """
    one_of("bad_spans", bad_spans, ("error", "skip"))
    folder = _xml_folder(files.path)
    rows = _xml_rows(folder) if folder is not None else (row for file in files for row in json_rows(file))
    if frames is not None:
        core = CoreTypes.from_json(Path(frames))
    elif folder is not None:
        core = CoreTypes.from_xml(folder / "frame")
    else:
        core = CoreTypes.beside(files.path)
    for where, row in rows:
        try:
            yield exemplar(row, where, core, notes)
        except InputError:
            if bad_spans == "error":
                raise
            notes["exemplars left out: a span lies outside the text"] += 1


def exemplar(row: Mapping[str, Any], where: str, core: CoreTypes, notes: Notes) -> Example:
    """One exemplar `{frame, text, target: [[start, end]], fe: [[element, start, end], [element, null, null, kind]]}`,
    in characters, end exclusive."""
    with reading(where, "not a FrameNet exemplar", MALFORMED, "; it needs `frame`, `text`, `target` and `fe`"):
        frame, text = str(row["frame"]), row["text"]
        targets = [(_whole(start), _whole(end)) for start, end in row["target"]]
        elements = [(str(fe[0]), (_whole(fe[1]), _whole(fe[2]))) for fe in row["fe"] if fe[1] is not None]
        places = [match.span() for match in re.finditer(r"\S+", text)]
    if not places:
        raise InputError(f"{where}: the sentence is empty.")
    outside = f"lies outside the text of {len(text)} characters"
    inside = [words for words in (_words_at(span, places, len(text)) for span in targets) if words is not None]
    if not inside:
        raise InputError(f"{where}: the target of {frame} at characters {targets} {outside}.")
    if len(inside) < len(targets):
        notes["parts of targets left out: outside the text"] += len(targets) - len(inside)
    links = []
    for element, span in elements:
        words = _words_at(span, places, len(text))
        if words is None:
            raise InputError(f"{where}: the element {element} of {frame} at characters {span[0]}..{span[1]} {outside}.")
        is_core = core.is_core(frame, element, notes)
        links += [FrameLink(frame, element, target, words, is_core) for target in inside]
    return Example(words=tuple(text[a:b] for a, b in places), frames=tuple(links), origin=where)


def _words_at(span: CharSpan, places: list[CharSpan], length: int) -> tuple[int, int] | None:
    """The words a character span touches; None where it is not inside the text or touches none."""
    start, end = span
    if not 0 <= start < end <= length:
        return None
    touched = [index for index, (a, b) in enumerate(places) if a < end and b > start]
    return (touched[0], touched[-1] + 1) if touched else None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no character position")
    return value


def _xml_folder(path: Path) -> Path | None:
    """FrameNet's data folder at a path or one level below it (nltk unpacks to `framenet_v17/`), if there is one."""
    if not path.is_dir():
        return None
    for folder in (path, *sorted(p for p in path.iterdir() if p.is_dir())):
        if (folder / "lu").is_dir() and (folder / "frame").is_dir():
            return folder
    return None


def _xml_rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The annotated sentences of `lu/*.xml`; FrameNet counts the end of a span inclusively."""
    found = False
    for path in sorted((folder / "lu").glob("*.xml"), key=_natural):
        root = _parse(path)
        found = True
        for sentence in root.iter(f"{SPACE}sentence"):
            text = sentence.findtext(f"{SPACE}text") or ""
            where = f"{path}, sentence {sentence.get('ID', '?')}"
            for annotation in sentence.iter(f"{SPACE}annotationSet"):
                targets, elements = _layers(annotation, where)
                if targets:
                    yield where, {"frame": root.get("frame", ""), "text": text, "target": targets, "fe": elements}
    if not found:
        raise InputError(
            f"The folder '{folder / 'lu'}' holds no .xml files; give FrameNet's data folder with lu/ and frame/."
        )


def _layers(annotation: ElementTree.Element, where: str) -> tuple[list[CharSpan], list[tuple[str, int, int]]]:
    targets: list[CharSpan] = []
    elements: list[tuple[str, int, int]] = []
    for layer in annotation.iter(f"{SPACE}layer"):
        name = layer.get("name")
        if name not in ("Target", "FE") or layer.get("rank", "1") != "1":
            continue
        for label in layer.iter(f"{SPACE}label"):
            if label.get("start") is None:  # a null instantiation
                continue
            try:
                span = int(label.get("start", "")), int(label.get("end", "")) + 1
            except ValueError:
                raise InputError(f"{where}: a label of the layer {name} has no whole number as start or end.") from None
            if name == "Target":
                targets.append(span)
            else:
                elements.append((label.get("name", ""), *span))
    return targets, elements


def _parse(path: Path) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(on_disk(path).read())
    except ElementTree.ParseError as error:
        raise InputError(f"{path}:{error.position[0]}: the file is not well-formed XML ({error}).") from None


def _natural(path: Path) -> tuple[int, str]:
    digits = re.sub(r"\D", "", path.stem)
    return (int(digits) if digits else 0, path.name)
