"""Which fields of a row are its text, second text and label, in JSON lines, tables and datasets of
the hub."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headwise.core.errors import InputError
from headwise.text.known_tasks import TASKS, KnownTask
from headwise.text.readers.limits import BlankRowError, shown

LABELS = ("label", "score")
KNOWN = (
    "text, content, sentence, sentence1 and sentence2, question and sentence, "
    "premise and hypothesis, prompt and completion, source and target"
)
NAME_IT = "name the field of the text with text_field=NAME (NAME,NAME for a pair)"


def task_of_header(header: Collection[str]) -> KnownTask | None:
    """Return the task that a header belongs to, or None.

    A task with its label column comes first; test files have no labels.
    """
    for with_label in (True, False):
        for task in TASKS:
            if not task.header:
                continue
            columns = [task.text]
            if task.pair is not None:
                columns.append(task.pair)
            if with_label and task.label is not None:
                columns.append(task.label)
            if all(name in header for name in columns):
                return task
    return None


def task_of_field(text_field: str, header: Collection[str], where: str) -> KnownTask:
    """Return the columns of a `text_field` that the user named: `text`, or `text,pair`."""
    names = [text_field]
    if text_field not in header and "," in text_field:
        first, _, second = text_field.partition(",")
        names = [first.strip(), second.strip()]
    for name in names:
        if name not in header:
            existing_fields = shown(", ".join(header), 200) or "nothing"
            raise InputError(
                f"{where}: there is no field '{shown(name)}' (text_field); "
                f"there are: {existing_fields}."
            )
    label = next((name for name in LABELS if name in header), LABELS[0])
    return KnownTask("named field", names[0], names[1] if len(names) > 1 else None, label)


def with_text(
    row: Mapping[str, Any], where: str, text_field: str | None = None
) -> Mapping[str, Any]:
    """Return a row with `text` (and `pair`) or `words`, taken from whatever fields hold them.

    A row that already has them is returned as it is.

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
            existing_fields = shown(", ".join(f"`{name}`" for name in row), 200) or "nothing"
            raise InputError(
                f"{where}: the row needs `text` or `words`; it has {existing_fields}; {NAME_IT}.",
                option="text_field",
            )
    else:
        task = task_of_field(text_field, row, where)
        if task.pair is None and isinstance(row[task.text], list | tuple):
            # The field holds words; a text beside it would not belong to them.
            row_of_words = dict(row)
            row_of_words.pop("text", None)
            row_of_words["words"] = row[task.text]
            return row_of_words
    text = row[task.text]
    if text is None:
        raise BlankRowError(f"{where}: `{task.text}` is null.")
    if isinstance(text, str) and not text.strip():
        raise BlankRowError(f"{where}: `{task.text}` is empty.")
    pair = row.get(task.pair) if task.pair else None
    return {"text": text, "pair": pair or None, "label": row.get(task.label)}
