"""Read rows of JSON lines, and turn a row (of JSON, of a hub dataset) into an example."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import ROOT, UNFIT, Example, FrameLink, Mention
from headwise.text.readers.files import TextFile
from headwise.text.readers.limits import BlankRowError, reading, shown

REPLACED = "texts with an unpaired surrogate or NUL in an escape, read as U+FFFD"
ROLE_NAMES = {"developer": "system", "function": "tool", "ipython": "tool", "model": "assistant"}
LARGEST_INDEX = 1 << 31  # in either direction


def json_rows(file: TextFile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSON lines file, each with file and line; blank lines are skipped and
    counted."""
    for where, line in file.filled():
        row = file.walk.attempt(partial(_json_object, line, where, file.walk.notes))
        if row is not None:
            yield where, row


def _json_object(line: str, where: str, notes: Notes) -> dict[str, Any]:
    # Malformed JSON, too deep nesting, or a number with too many digits.
    with reading(where, "the line is not JSON that can be read"):
        row = json.loads(line)
    if "\\u" in line:
        row = _encodable(row, notes)
    if row is None:
        raise BlankRowError(f"{where}: the line is null.")
    if not isinstance(row, dict):
        raise InputError(f"{where}: the line must be a JSON object, not {_kind(row)}.")
    if not row:
        raise BlankRowError(f"{where}: the row is an empty object.")
    return row


def _encodable(value: Any, notes: Notes) -> Any:
    """Return a JSON value with U+FFFD for unpaired surrogates and NUL, which JSON can write as
    escapes but no tokenizer, page or file accepts."""
    if isinstance(value, str):
        replaced, count = UNFIT.subn("\ufffd", value)
        if count:
            notes[REPLACED] += 1
        return replaced
    if isinstance(value, list):
        return [_encodable(item, notes) for item in value]
    if isinstance(value, dict):
        return {_encodable(key, notes): _encodable(item, notes) for key, item in value.items()}
    return value


def example_of_row(row: Mapping[str, Any], where: str) -> Example:
    """Return a row with `text`, `words` or `messages` and any annotations as an example.

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
    for name, read_item in _ITEMS.items():
        if row.get(name) is None:
            continue
        items = _typed(row[name], (list, tuple), name, where, "a list")
        values[name] = tuple(read_item(item, name, where) for item in items)
    if row.get("label") is not None:
        values["label"] = _typed(
            row["label"], (str, int, float), "label", where, "a text or a number"
        )
        if isinstance(row["label"], int) and not abs(row["label"]) <= 1 << 63:
            raise InputError(
                f"{where}: `label` is a number of more than 18 digits; write it as text."
            )
    if "messages" in values and "spans" not in values:
        values.pop("text", None)  # the text of a conversation comes from its messages
    if "text" not in values and "words" not in values and "messages" not in values:
        for name in ("text", "words", "messages"):
            if name in row:
                raise BlankRowError(f"{where}: `{name}` is null.")
        has = shown(", ".join(f"`{name}`" for name in row), 200) or "nothing"
        raise InputError(f"{where}: the row needs `text`, `words` or `messages`; it has {has}.")
    for name in ("text", "words", "messages"):
        value = values.get(name)
        if value is not None and not (value.strip() if isinstance(value, str) else value):
            raise BlankRowError(f"{where}: `{name}` is empty.")
    if "heads" in values:
        values["heads"] = _zero_based(values["heads"], where)
    _check_spans(values, where)
    return Example(**values)


def row_of_example(example: Example) -> dict[str, Any]:
    """Return an example as a row that `example_of_row` reads back as an equal example.

    `origin` is left out: it says where a row was read.
    """
    row: dict[str, Any] = {}
    for entry in fields(example):
        value = getattr(example, entry.name)
        if entry.name == "origin" or value is None:
            continue
        if entry.name in ("mentions", "frames"):
            value = [_fields_of(item) for item in value]
        elif entry.name == "features":
            value = [dict(item) for item in value]
        row[entry.name] = value
    return row


def _fields_of(item: Mention | FrameLink) -> dict[str, Any]:
    return {entry.name: getattr(item, entry.name) for entry in fields(item)}


def _zero_based(heads: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Return heads as 0-based indices with ROOT, from either numbering."""
    if ROOT in heads:
        low = ROOT
        high = len(heads) - 1
        shift = 0
        numbering = "0-based heads with -1 for the root"
    else:
        low = 0
        high = len(heads)
        shift = 1
        numbering = "heads numbered as in CoNLL-U, 1-based with 0 for the root"
    for word, head in enumerate(heads):
        if not low <= head <= high:
            raise InputError(
                f"{where}: `heads` entry {word + 1} is {head}, outside {low}..{high} ({numbering})."
            )
    return tuple(head - shift for head in heads)


def _check_spans(values: Mapping[str, Any], where: str) -> None:
    """Reject spans that lie outside the text of their own segment."""
    if "text" not in values:
        return
    n_first_words = len(values.get("words", ()))
    for index, (start, end) in enumerate(values.get("spans", ())):
        in_first = index < n_first_words
        length = len(values["text"] if in_first else values.get("pair", ""))
        if not 0 <= start < end <= length:
            raise InputError(
                f"{where}: `spans` entry {index + 1}, {start}..{end}, lies outside its text of "
                f"{length} characters."
            )


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
    start = whole(item["start"], name, where)
    end = whole(item["end"], name, where)
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
                f"{where}: a frame link lacks `{needed}`; it needs `frame`, `element`, `target` "
                "and `span`."
            )
    return FrameLink(
        frame=str(item["frame"]),
        element=str(item["element"]),
        target=_span(item["target"], name, where),
        span=_span(item["span"], name, where),
        core=bool(item.get("core", True)),
    )


def _message(item: Any, name: str, where: str) -> tuple[str, str]:
    """Return the role and the content of a message; the content may be a list of parts with
    `text`."""
    if isinstance(item, list | tuple) and len(item) == 2:
        item = dict(zip(("role", "content"), item, strict=True))
    role = item.get("role") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(role, str):
        raise InputError(f"{where}: a message must be {{role, content}}, not {_kind(item)}.")
    content = item.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, Mapping)]
        content = "".join(str(part.get("text", "")) for part in parts)
    text = str(_typed(content or "", str, "content", where, "a text"))
    return ROLE_NAMES.get(role, role), text


def _features(item: Any, name: str, where: str) -> dict[str, str]:
    if item is None:
        return {}
    if isinstance(item, str):
        return features_of(item)
    if not isinstance(item, Mapping):
        raise InputError(
            f"{where}: `{name}` must hold objects or texts like 'Number=Sing|Person=3', not "
            f"{_kind(item)}."
        )
    return {str(feature): str(value) for feature, value in item.items() if value is not None}


def features_of(column: str) -> dict[str, str]:
    """Return the features of a CoNLL-U column.

    >>> features_of("Number=Sing|Person=3"), features_of("_")
    ({'Number': 'Sing', 'Person': '3'}, {})
    """
    if column in ("_", ""):
        return {}
    features = {}
    for part in column.split("|"):
        name, _, value = part.partition("=")
        features[name] = value
    return features


def _span(item: Any, name: str, where: str) -> tuple[int, int]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise InputError(f"{where}: `{name}` holds {shown(repr(item))}; it must be [start, end].")
    return whole(item[0], name, where), whole(item[1], name, where)


def _word(item: Any, name: str, where: str) -> str:
    return str(_typed(item, str, name, where, "a list of texts"))


def whole(value: Any, name: str, where: str) -> int:
    """Return a whole number; true and false are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(
            f"{where}: `{name}` holds {shown(repr(value))}; it must be a whole number."
        )
    if not -LARGEST_INDEX <= value <= LARGEST_INDEX:
        raise InputError(
            f"{where}: `{name}` holds a number of {value.bit_length()} bits, which is not an index."
        )
    return value


def _typed(value: Any, types: type | tuple[type, ...], name: str, where: str, expected: str) -> Any:
    """Return a value of one of these types; anything else is an error."""
    if not isinstance(value, types):
        raise InputError(f"{where}: `{name}` must be {expected}, not {_kind(value)}.")
    return value


_JSON_TYPES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    type(None): "null",
}


def _kind(value: Any) -> str:
    """Return what a JSON value is, in words."""
    if type(value) in _JSON_TYPES:
        return _JSON_TYPES[type(value)]
    if isinstance(value, int | float):
        return "a number"
    return type(value).__name__


# How one item of each list is read; `heads` become 0-based afterwards.
_ITEMS: dict[str, Callable[[Any, str, str], Any]] = {
    **dict.fromkeys(("words", "words_pair", "relations", "upos", "lemmas"), _word),
    **dict.fromkeys(("heads", "sentences"), whole),
    "spans": _span,
    "features": _features,
    "mentions": _mention,
    "messages": _message,
    "frames": _frame,
}
