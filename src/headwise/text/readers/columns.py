"""Which fields of a row are its text, second text and label: of JSON lines, of tables and of
datasets of the hub."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headwise.core.errors import InputError
from headwise.text.known_tasks import TASKS, KnownTask
from headwise.text.readers.limits import shown

LABELS = ("label", "score")
KNOWN = (
    "text, content, sentence, sentence1 and sentence2, question and sentence, premise and hypothesis, prompt and "
    "completion, source and target"
)
NAME_IT = "name the field of the text with text_field=NAME (NAME,NAME for a pair)"


def task_of_header(header: Collection[str]) -> KnownTask | None:
    """The task that a header belongs to: its label column too must be there, except in test files,
    which have none."""
    for with_label in (True, False):
        for task in TASKS:
            wanted = [task.text, task.pair, task.label if with_label else None]
            if task.header and all(name in header for name in wanted if name is not None):
                return task
    return None


def task_of_field(text_field: str, header: Collection[str], where: str) -> KnownTask:
    """The columns where a user names that of the text, or `text,pair`."""
    first, comma, second = text_field.partition(",")
    names = [text_field] if text_field in header or not comma else [first.strip(), second.strip()]
    for name in names:
        if name not in header:
            has = shown(", ".join(header), 200) or "nothing"
            raise InputError(
                f"{where}: there is no field '{shown(name)}' (text_field); there are: {has}."
            )
    label = next((name for name in LABELS if name in header), LABELS[0])
    return KnownTask("named field", names[0], names[1] if len(names) > 1 else None, label)


def with_text(
    row: Mapping[str, Any], where: str, text_field: str | None = None
) -> Mapping[str, Any]:
    """The same row with `text` (and `pair`) or `words`, from whatever fields hold them; unchanged
    where it has them.

    >>> dict(with_text({"prompt": "Why?", "completion": "So."}, "row 1"))
    {'text': 'Why?', 'pair': 'So.', 'label': None}
    """
    if text_field is None:
        if "text" in row or "words" in row or "messages" in row:
            return row
        if "tokens" in row:
            return {**row, "words": row["tokens"]}
        task = task_of_header(row)
        if task is None and "prompt" in row:
            task = task_of_field("prompt", row, where)
        if task is None:
            has = shown(", ".join(f"`{name}`" for name in row), 200) or "nothing"
            raise InputError(
                f"{where}: the row needs `text` or `words`; it has {has}; {NAME_IT}.",
                option="text_field",
            )
    else:
        task = task_of_field(text_field, row, where)
        if task.pair is None and isinstance(row[task.text], list | tuple):
            return {**{k: v for k, v in row.items() if k != "text"}, "words": row[task.text]}
    pair = row.get(task.pair) if task.pair else None
    return {"text": row[task.text], "pair": pair or None, "label": row.get(task.label)}
