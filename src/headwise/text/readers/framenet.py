"""Read FrameNet exemplars from JSON lines, or from FrameNet's XML folder (also as nltk has it)."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from headwise.core.checks import one_of
from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import Example, FrameLink
from headwise.text.readers.files import Files, on_disk
from headwise.text.readers.limits import BlankRowError, Walk, reading, shown, whole_number
from headwise.text.readers.rows import json_rows

SPACE = "{http://framenet.icsi.berkeley.edu}"
CORE = ("Core", "Core-Unexpressed")
CORE_TYPE_FILES = ("frames.json.gz", "frames.json.xz", "frames.json")
UNKNOWN_CORE = "frame elements of unknown core type, taken as core"

CharSpan = tuple[int, int]


CoreTypes = Mapping[str, Mapping[str, str]]  # by frame and element


def core_types_beside(path: Path, walk: Walk) -> CoreTypes:
    """Read `frames.json` (or `.gz`, `.xz`) in the folder of the exemplars; empty without one."""
    folder = path if path.is_dir() else path.parent
    for name in CORE_TYPE_FILES:
        if (folder / name).is_file():
            return _core_types_in(folder / name, walk)
    return {}


def _core_types_in(path: Path, walk: Walk) -> CoreTypes:
    """Read `{frame: {"fe": {element: core type}}}`."""
    if not path.is_file():
        raise InputError(f"There is no file '{path}' with the frames' core types; check `frames`.")
    with reading(str(path), "not a table of frames with their elements' core types"):
        frames = json.loads(on_disk(path, walk).read())
        return {frame: dict(entry["fe"]) for frame, entry in frames.items()}


def _core_types_of_xml(folder: Path, walk: Walk) -> CoreTypes:
    """Read FrameNet's `frame/*.xml`."""
    core_types: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.xml")):
        root = _parse(path, walk)
        elements = {}
        for element in root.iter(f"{SPACE}FE"):
            elements[element.get("name", "")] = element.get("coreType", "")
        core_types[root.get("name", path.stem)] = elements
    return core_types


def _is_core(core: CoreTypes, frame: str, element: str, notes: Notes) -> bool:
    """Return whether an element of a frame is core; an unknown one counts as core, with a note."""
    core_type = core.get(frame, {}).get(element)
    if core_type is None:
        notes[UNKNOWN_CORE] += 1
        return True
    return core_type in CORE


def read_framenet(
    files: Files, notes: Notes, *, frames: str | Path | None = None, bad_spans: str = "error"
) -> Iterator[Example]:
    """Read exemplar sentences as whitespace words, with a link from each target to each of its
    overt elements (Kovaleva et al. 2019, §4.2).

    All links are read; the analysis selects among them (short sentences, core elements, distance).
    A target ("ring a bell") or an element in several parts gives a link per part.

    Parameters
    ----------
    files : Files
        JSON lines, or FrameNet's XML folder.
    notes : Notes
        Counts what was left out.
    frames : str or Path, optional
        A JSON file with the core type of each frame's elements; default: `frames.json` beside the
        exemplars. The XML folder has its own.
    bad_spans : {"error", "skip"}, default "error"
        What happens to a row with an element or a whole target outside its text; `skip` counts
        them. (FrameNet has a few targets of several parts with one part outside the text; that part
        is left out and counted.)
    """
    one_of("bad_spans", bad_spans, ("error", "skip"))
    folder = _xml_folder(files.path)
    if folder is not None:
        rows = _xml_rows(folder, files.walk)
    else:
        rows = chain.from_iterable(json_rows(file) for file in files)
    if frames is not None:
        core = _core_types_in(Path(frames), files.walk)
    elif folder is not None:
        core = _core_types_of_xml(folder / "frame", files.walk)
    else:
        core = core_types_beside(files.path, files.walk)
    for where, row in rows:
        read_row = partial(_exemplar_or_none, row, where, core, files.walk, bad_spans)
        example = files.walk.attempt(read_row)
        if example is not None:
            yield example


def _exemplar_or_none(
    row: Mapping[str, Any], where: str, core: CoreTypes, walk: Walk, bad_spans: str
) -> Example | None:
    """Return one exemplar; None for one that `bad_spans` leaves out."""
    try:
        return exemplar(row, where, core, walk)
    except BlankRowError:
        raise
    except InputError:
        if bad_spans == "error":
            raise
        walk.notes["exemplars left out: a span lies outside the text"] += 1
        return None


def exemplar(row: Mapping[str, Any], where: str, core: CoreTypes, walk: Walk) -> Example:
    """Return one exemplar as an example.

    A row is `{frame, text, target: [[start, end]], fe: [[element, start, end], [element, null,
    null, type]]}`, in characters, end exclusive; elements without a start are not in the text.
    """
    with reading(
        where, "not a FrameNet exemplar", advice="; it needs `frame`, `text`, `target` and `fe`"
    ):
        frame = str(row["frame"])
        text = row["text"]
        targets = [(_whole(start), _whole(end)) for start, end in row["target"]]
        elements: list[tuple[str, CharSpan]] = []
        for entry in row["fe"]:
            if entry[1] is not None:
                elements.append((str(entry[0]), (_whole(entry[1]), _whole(entry[2]))))
        word_spans = [match.span() for match in re.finditer(r"\S+", text)]
    notes = walk.notes
    if not word_spans:
        raise BlankRowError(f"{where}: the sentence is empty.")
    outside = f"lies outside the text of {len(text)} characters"
    target_words = []
    for span in targets:
        words = _words_at(span, word_spans, len(text))
        if words is not None:
            target_words.append(words)
    if not target_words:
        raise InputError(
            f"{where}: the target of {shown(frame)} at characters {shown(targets)} {outside}."
        )
    n_outside = len(targets) - len(target_words)
    if n_outside:
        notes["parts of targets left out: outside the text"] += n_outside
    walk.limits.hold("max_marks", len(target_words) * len(elements), where)
    links = []
    for element, span in elements:
        words = _words_at(span, word_spans, len(text))
        if words is None:
            raise InputError(
                f"{where}: the element {shown(element)} of {shown(frame)} at characters "
                f"{shown(f'{span[0]}..{span[1]}')} {outside}."
            )
        is_core = _is_core(core, frame, element, notes)
        links += [FrameLink(frame, element, target, words, is_core) for target in target_words]
    words_of_text = tuple(text[start:end] for start, end in word_spans)
    return Example(words=words_of_text, frames=tuple(links), origin=where)


def _words_at(span: CharSpan, word_spans: list[CharSpan], length: int) -> tuple[int, int] | None:
    """Return the range of words that a character span touches; None where it touches none, or
    lies outside the text."""
    start, end = span
    if not 0 <= start < end <= length:
        return None
    # Word spans are sorted and do not overlap.
    first = bisect_right(word_spans, start, key=lambda word: word[1])
    last = bisect_left(word_spans, end, key=lambda word: word[0])
    if first < last:
        return first, last
    return None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{shown(repr(value))} is not a character position")
    return value


def _xml_folder(path: Path) -> Path | None:
    """Return FrameNet's data folder at a path or one level below it (nltk unpacks to
    `framenet_v17/`), if there is one."""
    if not path.is_dir():
        return None
    subfolders = sorted(child for child in path.iterdir() if child.is_dir())
    for folder in (path, *subfolders):
        if (folder / "lu").is_dir() and (folder / "frame").is_dir():
            return folder
    return None


def _xml_rows(folder: Path, walk: Walk) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the annotated sentences of `lu/*.xml`, each with where it is."""
    paths = sorted((folder / "lu").glob("*.xml"), key=_number_in_name)
    if not paths:
        raise InputError(
            f"The folder '{folder / 'lu'}' has no .xml files; use FrameNet's data folder with lu/ "
            "and frame/."
        )
    for path in paths:
        root = _parse(path, walk)
        for sentence in root.iter(f"{SPACE}sentence"):
            text = sentence.findtext(f"{SPACE}text") or ""
            where = f"{shown(path, 1000)}, sentence {shown(sentence.get('ID', '?'))}"
            # `findall`, not `iter`: annotation sets are direct children.
            for annotation in sentence.findall(f"{SPACE}annotationSet"):
                targets, elements = _layers(annotation, where)
                if not targets:
                    continue
                frame = root.get("frame", "")
                yield where, {"frame": frame, "text": text, "target": targets, "fe": elements}


def _layers(
    annotation: ElementTree.Element, where: str
) -> tuple[list[CharSpan], list[tuple[str, int, int]]]:
    """Return the spans of targets and elements, end exclusive (inclusive in the XML)."""
    targets: list[CharSpan] = []
    elements: list[tuple[str, int, int]] = []
    for layer in annotation.findall(f"{SPACE}layer"):
        name = layer.get("name")
        if name not in ("Target", "FE") or layer.get("rank", "1") != "1":
            continue
        for label in layer.findall(f"{SPACE}label"):
            if label.get("start") is None:  # a null instantiation
                continue
            start = whole_number(label.get("start", ""))
            end = whole_number(label.get("end", ""))
            if start is None or end is None:
                raise InputError(
                    f"{where}: a label of the layer {name} has no whole number as start or end."
                )
            if name == "Target":
                targets.append((start, end + 1))
            else:
                elements.append((label.get("name", ""), start, end + 1))
    return targets, elements


class _DepthLimitedBuilder(ElementTree.TreeBuilder):
    """Builds a tree and rejects one that is too deep."""

    def __init__(self, walk: Walk) -> None:
        super().__init__()
        self._walk = walk
        self._depth = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> ElementTree.Element:
        self._depth += 1
        self._walk.limits.hold("max_depth", self._depth, self._walk.where())
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> ElementTree.Element:
        self._depth -= 1
        return super().end(tag)


def _parse(path: Path, walk: Walk) -> ElementTree.Element:
    """Parse a file. The parser raises errors of several classes: for an unknown encoding a
    LookupError or ValueError."""
    content = on_disk(path, walk).read()
    problem = "the file is not well-formed XML"
    with reading(walk.where, problem):
        try:
            return ElementTree.fromstring(
                content, ElementTree.XMLParser(target=_DepthLimitedBuilder(walk))
            )
        except ElementTree.ParseError as error:
            raise InputError(f"{walk.where()}:{error.position[0]}: {problem} ({error}).") from error


def _number_in_name(path: Path) -> tuple[int, str]:
    """Return a sort key: the number in a file name, then the name."""
    digits = re.sub(r"\D", "", path.stem)
    number = int(digits) if digits else 0
    return number, path.name
