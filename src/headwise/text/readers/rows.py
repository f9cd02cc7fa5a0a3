"""Rows of JSON lines, and how a row (of JSON, of a hub dataset) becomes an example."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from headwise.core.errors import InputError
from headwise.text.example import ROOT, Example, FrameLink, Mention
from headwise.text.readers.files import TextFile

WORD_LISTS = ("words", "words_pair", "relations", "upos", "lemmas")


def json_rows(file: TextFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON lines file with their line numbers; blank lines are passed over."""
    for number, line in file.lines():
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{file.where(number)}: the line is not JSON ({error}).") from None
        if not isinstance(row, dict):
            raise InputError(f"{file.where(number)}: the line must be a JSON object, not {_kind(row)}.")
        yield number, row


def example_of_row(row: Mapping[str, Any], where: str) -> Example:
    """A row with `text` or `words` and any annotations as an example.

    `heads` are 0-based with -1 for a root if any of them is -1; otherwise they are numbered as in CoNLL-U, 1-based with 0 for a root. Both run over the words
    of both segments. `mentions` are objects `{start, end, entity, head?}` or lists `[start, end, entity]`; `frames` are objects
    `{frame, element, target: [start, end], span: [start, end], core?}`; all of these are 0-based word indices, end exclusive.
    """
    values: dict[str, Any] = {"origin": where}
    for name in ("text", "pair", "scheme"):
        if row.get(name) is not None:
            values[name] = _typed(row[name], str, name, where)
    for name in WORD_LISTS:
        if row.get(name) is not None:
            values[name] = tuple(
                _typed(item, str, name, where, of="a list of texts") for item in _list(row[name], name, where)
            )
    if row.get("heads") is not None:
        values["heads"] = heads_of(_list(row["heads"], "heads", where), where)
    if row.get("sentences") is not None:
        values["sentences"] = tuple(
            _whole(item, "sentences", where) for item in _list(row["sentences"], "sentences", where)
        )
    if row.get("spans") is not None:
        values["spans"] = tuple(_span(item, "spans", where) for item in _list(row["spans"], "spans", where))
    if row.get("features") is not None:
        values["features"] = tuple(_features(item, where) for item in _list(row["features"], "features", where))
    if row.get("mentions") is not None:
        values["mentions"] = tuple(_mention(item, where) for item in _list(row["mentions"], "mentions", where))
    if row.get("frames") is not None:
        values["frames"] = tuple(_frame(item, where) for item in _list(row["frames"], "frames", where))
    label = row.get("label")
    if label is not None:
        if not isinstance(label, str | int | float):
            raise InputError(f"{where}: `label` must be a text or a number, not {_kind(label)}.")
        values["label"] = label
    if "text" not in values and "words" not in values:
        raise InputError(
            f"{where}: the row needs `text` or `words`; it has {', '.join(f'`{k}`' for k in row) or 'nothing'}."
        )
    if not values.get("words", values.get("text")) or not str(values.get("text", "x")).strip():
        raise InputError(f"{where}: the row's text is empty.")
    _check_spans(values, where)
    return Example(**values)


def row_of_example(example: Example) -> dict[str, Any]:
    """An example as a row that `example_of_row` reads back to an equal one, but for its `origin`, which is where it is read from."""
    values = {entry.name: getattr(example, entry.name) for entry in fields(example) if entry.name != "origin"}
    for name in ("mentions", "frames"):
        values[name] = values[name] and [{f.name: getattr(item, f.name) for f in fields(item)} for item in values[name]]
    values["features"] = example.features and [dict(item) for item in example.features]
    return {name: value for name, value in values.items() if value is not None}


def heads_of(given: list[Any], where: str) -> tuple[int, ...]:
    """Heads as 0-based indices with ROOT, from either numbering."""
    heads = tuple(_whole(item, "heads", where) for item in given)
    if ROOT in heads:
        low, high, shift, numbering = ROOT, len(heads) - 1, 0, "0-based heads with -1 for the root"
    else:
        low, high, shift, numbering = 0, len(heads), 1, "heads numbered as in CoNLL-U, 1-based with 0 for the root"
    for word, head in enumerate(heads):
        if not low <= head <= high:
            raise InputError(f"{where}: `heads` entry {word + 1} is {head}, outside {low}..{high} ({numbering}).")
    return tuple(head - shift for head in heads)


def _check_spans(values: Mapping[str, Any], where: str) -> None:
    """Spans must lie in their own segment's text."""
    if "spans" not in values or "text" not in values:
        return
    first = len(values.get("words", ()))
    for index, (start, end) in enumerate(values["spans"]):
        text = values["text"] if index < first else values.get("pair", "")
        if not 0 <= start < end <= len(text):
            raise InputError(
                f"{where}: `spans` entry {index + 1}, {start}..{end}, lies outside its text of {len(text)} characters."
            )


def _mention(item: Any, where: str) -> Mention:
    if isinstance(item, Mapping):
        try:
            start, end, entity = item["start"], item["end"], item["entity"]
        except KeyError as error:
            raise InputError(f"{where}: a mention lacks {error}; it needs `start`, `end` and `entity`.") from None
        head = item.get("head")
    elif isinstance(item, list) and len(item) == 3:
        (start, end, entity), head = item, None
    else:
        raise InputError(f"{where}: a mention must be {{start, end, entity, head?}} or [start, end, entity].")
    first, last = _whole(start, "mentions", where), _whole(end, "mentions", where)
    head = None if head is None else _whole(head, "mentions", where)
    if head is not None and not first <= head < last:
        raise InputError(f"{where}: the head {head} of mention {first}..{last} lies outside it.")
    return Mention(first, last, str(entity), head)


def _frame(item: Any, where: str) -> FrameLink:
    if not isinstance(item, Mapping):
        raise InputError(f"{where}: a frame link must be an object, not {_kind(item)}.")
    for name in ("frame", "element", "target", "span"):
        if name not in item:
            raise InputError(f"{where}: a frame link lacks `{name}`; it needs `frame`, `element`, `target` and `span`.")
    return FrameLink(
        str(item["frame"]),
        str(item["element"]),
        _span(item["target"], "frames", where),
        _span(item["span"], "frames", where),
        bool(item.get("core", True)),
    )


def _features(item: Any, where: str) -> dict[str, str]:
    if item is None or item == "_":
        return {}
    if isinstance(item, str):
        return features_of(item)
    if not isinstance(item, Mapping):
        raise InputError(
            f"{where}: `features` must hold objects or texts like 'Number=Sing|Person=3', not {_kind(item)}."
        )
    return {str(k): str(v) for k, v in item.items() if v is not None}


def features_of(column: str) -> dict[str, str]:
    """Features as CoNLL-U writes them: `Number=Sing|Person=3`, `_` for none."""
    if column in ("_", ""):
        return {}
    return {part.partition("=")[0]: part.partition("=")[2] for part in column.split("|")}


def _span(item: Any, name: str, where: str) -> tuple[int, int]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise InputError(f"{where}: `{name}` holds {item!r} where [start, end] is needed.")
    return _whole(item[0], name, where), _whole(item[1], name, where)


def _list(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{where}: `{name}` must be a list, not {_kind(value)}.")
    return list(value)


def _whole(value: Any, name: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: `{name}` holds {value!r} where a whole number is needed.")
    return value


def _typed(value: Any, kind: type, name: str, where: str, of: str = "a text") -> Any:
    if not isinstance(value, kind):
        raise InputError(f"{where}: `{name}` must be {of}, not {_kind(value)}.")
    return value


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        int: "a number",
        float: "a number",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)
