"""Rows of JSON lines, and how a row (of JSON, of a hub dataset) becomes an example."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import ROOT, UNFIT, Example, FrameLink, Mention
from headwise.text.readers.files import TextFile
from headwise.text.readers.limits import reading, shown

HALVES = "texts with half a surrogate pair or NUL in an escape, read as U+FFFD"
ROLE_NAMES = {"developer": "system", "function": "tool", "ipython": "tool", "model": "assistant"}
FARTHEST = 1 << 31  # no index is larger, in either direction


def json_rows(file: TextFile) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON lines file, each with its place; blank lines are passed over."""
    for where, line in file.filled():
        with reading(
            where, "the line is not JSON that can be read"
        ):  # ill-formed, too deep, too long a number
            row = json.loads(line)
        if "\\u" in line:
            row = _without_halves(row, file.walk.notes)
        if not isinstance(row, dict):
            raise InputError(f"{where}: the line must be a JSON object, not {_kind(row)}.")
        yield where, row


def _without_halves(value: Any, notes: Notes) -> Any:
    """The same with U+FFFD for halves of UTF-16 pairs and for NUL, which no tokenizer, page or file
    takes; JSON can write both, as escapes."""
    if isinstance(value, str):
        mended, count = UNFIT.subn("\ufffd", value)
        if count:
            notes[HALVES] += 1
        return mended
    if isinstance(value, list):
        return [_without_halves(item, notes) for item in value]
    if isinstance(value, dict):
        return {
            _without_halves(key, notes): _without_halves(item, notes) for key, item in value.items()
        }
    return value


def example_of_row(row: Mapping[str, Any], where: str) -> Example:
    """A row with `text`, `words` or `messages` and any annotations as an example.

    `heads` are 0-based with -1 for a root if any of them is -1; otherwise they are numbered as in
    CoNLL-U, 1-based with 0 for a root. Both run over the words of both segments. `mentions` are
    objects `{start, end, entity, head?}` or lists `[start, end, entity]`; `frames` are objects
    `{frame, element, target: [start, end], span: [start, end], core?}`; all of these are 0-based
    word indices, end exclusive. `messages` are objects `{role, content}`.

    Examples
    --------
    >>> example_of_row({"words": ["Dogs", "bark"], "heads": [2, 0]}, "row 1").heads
    (1, -1)
    """
    values: dict[str, Any] = {"origin": where}
    for name in ("text", "pair", "scheme", "document"):
        if row.get(name) is not None:
            values[name] = _typed(row[name], str, name, where, "a text")
    for name, read in _ITEMS.items():
        given = row.get(name)
        if given is not None:
            values[name] = tuple(
                read(item, name, where)
                for item in _typed(given, (list, tuple), name, where, "a list")
            )
    if row.get("label") is not None:
        values["label"] = _typed(
            row["label"], (str, int, float), "label", where, "a text or a number"
        )
        if isinstance(row["label"], int) and not abs(row["label"]) <= 1 << 63:
            raise InputError(
                f"{where}: `label` is a number of more than 18 digits; give it as a text."
            )
    if "messages" in values and "spans" not in values:
        values.pop("text", None)  # it is what the messages say
    if "text" not in values and "words" not in values and not values.get("messages"):
        has = shown(", ".join(f"`{name}`" for name in row), 200) or "nothing"
        raise InputError(f"{where}: the row needs `text`, `words` or `messages`; it has {has}.")
    if (
        not values.get("words", values.get("text", values.get("messages")))
        or not str(values.get("text", "x")).strip()
    ):
        raise InputError(f"{where}: the row's text is empty.")
    if "heads" in values:
        values["heads"] = _zero_based(values["heads"], where)
    _check_spans(values, where)
    return Example(**values)


def row_of_example(example: Example) -> dict[str, Any]:
    """An example as a row that `example_of_row` reads back to an equal one; `origin` is told anew
    by where it is read."""
    values = {
        entry.name: getattr(example, entry.name)
        for entry in fields(example)
        if entry.name != "origin"
    }
    for name in ("mentions", "frames"):
        values[name] = values[name] and [
            {f.name: getattr(item, f.name) for f in fields(item)} for item in values[name]
        ]
    values["features"] = example.features and [dict(item) for item in example.features]
    return {name: value for name, value in values.items() if value is not None}


def _zero_based(heads: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Heads as 0-based indices with ROOT, from either numbering."""
    if ROOT in heads:
        low, high, shift, numbering = ROOT, len(heads) - 1, 0, "0-based heads with -1 for the root"
    else:
        low, high, shift, numbering = (
            0,
            len(heads),
            1,
            "heads numbered as in CoNLL-U, 1-based with 0 for the root",
        )
    for word, head in enumerate(heads):
        if not low <= head <= high:
            raise InputError(
                f"{where}: `heads` entry {word + 1} is {head}, outside {low}..{high} ({numbering})."
            )
    return tuple(head - shift for head in heads)


def _check_spans(values: Mapping[str, Any], where: str) -> None:
    """Spans must lie in their own segment's text."""
    first = len(values.get("words", ()))
    for index, (start, end) in enumerate(values.get("spans", ()) if "text" in values else ()):
        length = len(values["text"] if index < first else values.get("pair", ""))
        if not 0 <= start < end <= length:
            place = f"`spans` entry {index + 1}, {start}..{end}"
            raise InputError(f"{where}: {place}, lies outside its text of {length} characters.")


def _mention(item: Any, name: str, where: str) -> Mention:
    if isinstance(item, list) and len(item) == 3:
        item = dict(zip(("start", "end", "entity"), item, strict=True))
    if not isinstance(item, Mapping):
        raise InputError(
            f"{where}: a mention must be {{start, end, entity, head?}} or [start, end, entity]."
        )
    for needed in ("start", "end", "entity"):
        if needed not in item:
            raise InputError(
                f"{where}: a mention lacks '{needed}'; it needs `start`, `end` and `entity`."
            )
    start, end = whole(item["start"], name, where), whole(item["end"], name, where)
    head = None if item.get("head") is None else whole(item["head"], name, where)
    if head is not None and not start <= head < end:
        raise InputError(f"{where}: the head {head} of mention {start}..{end} lies outside it.")
    return Mention(start, end, str(item["entity"]), head)


def _frame(item: Any, name: str, where: str) -> FrameLink:
    if not isinstance(item, Mapping):
        raise InputError(f"{where}: a frame link must be an object, not {_kind(item)}.")
    for needed in ("frame", "element", "target", "span"):
        if needed not in item:
            raise InputError(
                f"{where}: a frame link lacks `{needed}`; it needs `frame`, `element`, `target` and `span`."
            )
    target, span = _span(item["target"], name, where), _span(item["span"], name, where)
    return FrameLink(
        str(item["frame"]), str(item["element"]), target, span, bool(item.get("core", True))
    )


def _message(item: Any, name: str, where: str) -> tuple[str, str]:
    """A role and what is said, which may be a list of parts with `text`."""
    if isinstance(item, list | tuple) and len(item) == 2:
        item = dict(zip(("role", "content"), item, strict=True))
    role = item.get("role") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(role, str):
        raise InputError(f"{where}: a message must be {{role, content}}, not {_kind(item)}.")
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(
            str(part.get("text", "")) for part in content if isinstance(part, Mapping)
        )
    return ROLE_NAMES.get(role, role), str(_typed(content or "", str, "content", where, "a text"))


def _features(item: Any, name: str, where: str) -> dict[str, str]:
    if item is None:
        return {}
    if isinstance(item, str):
        return features_of(item)
    if not isinstance(item, Mapping):
        raise InputError(
            f"{where}: `{name}` must hold objects or texts like 'Number=Sing|Person=3', not {_kind(item)}."
        )
    return {str(k): str(v) for k, v in item.items() if v is not None}


def features_of(column: str) -> dict[str, str]:
    """Features as CoNLL-U writes them.

    >>> features_of("Number=Sing|Person=3"), features_of("_")
    ({'Number': 'Sing', 'Person': '3'}, {})
    """
    if column in ("_", ""):
        return {}
    return {name: value for name, _, value in (part.partition("=") for part in column.split("|"))}


def _span(item: Any, name: str, where: str) -> tuple[int, int]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise InputError(
            f"{where}: `{name}` holds {shown(repr(item))} where [start, end] is needed."
        )
    return whole(item[0], name, where), whole(item[1], name, where)


def _word(item: Any, name: str, where: str) -> str:
    return str(_typed(item, str, name, where, "a list of texts"))


def whole(value: Any, name: str, where: str) -> int:
    """A whole number, which true and false are not."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(
            f"{where}: `{name}` holds {shown(repr(value))} where a whole number is needed."
        )
    if not -FARTHEST <= value <= FARTHEST:
        raise InputError(
            f"{where}: `{name}` holds a number of {value.bit_length()} bits, which is no index."
        )
    return value


def _typed(value: Any, kind: type | tuple[type, ...], name: str, where: str, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise InputError(f"{where}: `{name}` must be {wanted}, not {_kind(value)}.")
    return value


_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    type(None): "null",
}


def _kind(value: Any) -> str:
    return _KINDS.get(
        type(value), "a number" if isinstance(value, int | float) else type(value).__name__
    )


# How one item of each list is read; `heads` are turned to 0-based ones afterwards.
_ITEMS: dict[str, Callable[[Any, str, str], Any]] = {
    **dict.fromkeys(("words", "words_pair", "relations", "upos", "lemmas"), _word),
    **dict.fromkeys(("heads", "sentences"), whole),
    "spans": _span,
    "features": _features,
    "mentions": _mention,
    "messages": _message,
    "frames": _frame,
}
