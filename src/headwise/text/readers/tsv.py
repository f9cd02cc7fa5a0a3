"""Read tables: GLUE's TSV files, where quotes are ordinary characters, and CSV, where they quote."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from headwise.core.errors import InputError, ParameterError, unknown
from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.known_tasks import NAMED, KnownTask, known_task
from headwise.text.readers.columns import KNOWN, NAME_IT, task_of_field, task_of_header
from headwise.text.readers.files import TextFile
from headwise.text.readers.limits import BLANK_ROWS, BlankRowError, Walk, shown

Row = tuple[str, list[str]]  # file and line, and the columns

NLI_LABELS = {"neutral", "contradiction", "entailment", "contradictory"}


def task_by_name(name: str) -> KnownTask:
    """Return a GLUE task by its name, in any case."""
    task = known_task(name)
    if task is None:
        raise ParameterError(unknown("GLUE task", name, (task.name for task in NAMED.values())))
    return task


def is_glue_header(line: str) -> bool:
    """Return whether a line is the header of MRPC's files, which end in .txt."""
    return line.startswith("Quality\t#1 ID\t#2 ID\t")


def task_without_header(row: Sequence[str]) -> KnownTask | None:
    """Return CoLA for its four columns (source, 0 or 1, mark, sentence), XNLI for its three
    (premise, hypothesis, label)."""
    if len(row) == 4 and row[1] in ("0", "1") and row[2] in ("", "*", "**", "?", "??"):
        return NAMED["cola"]
    if len(row) == 3 and row[2] in NLI_LABELS:
        return NAMED["xnli"]
    return None


def read_tsv(
    files: Iterable[TextFile],
    notes: Notes,
    *,
    task: str | None = None,
    text_field: str | None = None,
) -> Iterator[Example]:
    """Read a TSV file as text, pair and label; quotes are ordinary characters, as in GLUE.

    A row with another number of columns than the first (such as the halves of a row that was split
    at a quoted line break) is malformed. In GLUE's own files, some of which (QQP) have such rows,
    they are skipped and counted unless `bad_rows` is `error`.

    Parameters
    ----------
    task : str, optional
        A GLUE task; default: by the header, or by the shape of the first row for CoLA and XNLI,
        which have none.
    text_field : str, optional
        The column of the text, or `text,pair`, where the header has no known names.
    """
    named = None if task is None else task_by_name(task)
    for file in files:
        rows = ((where, line.split("\t")) for where, line in file.filled())
        yield from _rows(rows, file.walk, named, text_field)


def read_csv(
    files: Iterable[TextFile],
    notes: Notes,
    *,
    text_field: str | None = None,
    delimiter: str | None = None,
) -> Iterator[Example]:
    """Read a CSV file with a header as text, pair and label.

    A quoted field may contain delimiters, line breaks and doubled quotes (RFC 4180). A row with
    another number of columns than the header is malformed.

    Parameters
    ----------
    text_field : str, optional
        The column of the text, or `text,pair`; default: by its name.
    delimiter : str, optional
        The delimiter of fields; default: a comma, or a semicolon where the header has one and no
        comma.
    """
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"'):
        raise ParameterError(
            f"`delimiter` must be one character, not a quote or line end; it is {delimiter!r}."
        )
    for file in files:
        yield from _rows(_csv_rows(file, delimiter), file.walk, None, text_field)


def _csv_rows(file: TextFile, delimiter: str | None) -> Iterator[Row]:
    if delimiter is None:
        first, file = file.first_line(lambda line: bool(line.strip()))
        delimiter = ";" if ";" in first and "," not in first else ","
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        for number, line in file.lines():  # noqa: B007  # the rows below read it
            yield line + "\n"

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    max_characters = file.walk.limits.max_text
    while True:
        last_line = number
        # The limit belongs to the whole process: it is set for this row only.
        previous_limit = csv.field_size_limit(max_characters)
        try:
            row = next(reader, None)
        except csv.Error as error:
            where = file.where(last_line + 1)
            if "field limit" in str(error):
                what = "a field of more than {} characters, or a quote that is never closed"
                file.walk.limits.refuse(where, what, "max_text")
            raise InputError(
                f"{where}: the row that starts here is not CSV ({error}); fix its quotes."
            ) from error
        finally:
            csv.field_size_limit(previous_limit)
        if row is None:
            return
        if any(field.strip() for field in row):
            yield file.where(last_line + 1), row
        else:
            file.walk.notes[BLANK_ROWS] += 1


def _rows(
    rows: Iterable[Row], walk: Walk, named: KnownTask | None, text_field: str | None
) -> Iterator[Example]:
    """Yield the rows of a table as examples; the first row tells the task and the columns."""
    task: KnownTask | None = None
    columns: Mapping[str, int] = {}
    n_columns = 0
    for where, row in rows:
        if task is None:
            task, columns = _choose(row, named, where, text_field)
            n_columns = len(row)
            if task.header or "sentence" in columns:
                continue
        read_row = partial(_example, row, n_columns, task, columns, where)
        example = walk.attempt(read_row, skip_bad=task in NAMED.values())
        if example is not None:
            yield example


def _example(
    row: Sequence[str], n_columns: int, task: KnownTask, columns: Mapping[str, int], where: str
) -> Example:
    problem = _problem(row, n_columns, task, columns)
    if problem:
        raise InputError(f"{where}: {problem}.")
    if not row[columns[task.text]].strip():
        raise BlankRowError(f"{where}: the column '{task.text}' is empty.")
    pair = None
    if task.pair and task.pair in columns:
        pair = row[columns[task.pair]].strip()
    label: str | float | None = None
    if task.label in columns:
        label = row[columns[task.label]].strip()
        if task.regression:
            label = float(label)
    return Example(text=row[columns[task.text]].strip(), pair=pair, label=label, origin=where)


def _choose(
    row: Sequence[str], named: KnownTask | None, where: str, text_field: str | None
) -> tuple[KnownTask, dict[str, int]]:
    """Return the task of a file by its first row, and the position of each column."""
    header = [name.strip() for name in row]
    by_name = {name: index for index, name in enumerate(header)}
    if text_field is not None:
        return task_of_field(text_field, by_name, where), by_name
    if named is not None and not named.header:
        if "sentence" in by_name and named.name == "CoLA":
            # CoLA's test file has a header and no labels.
            return KnownTask("CoLA", "sentence", None, "label"), by_name
        if len(row) != named.columns:
            raise InputError(
                f"{where}: the row has {len(row)} columns; a {named.name} file has {named.columns}."
            )
        return named, {str(position): position for position in range(named.columns)}
    task = named if named is not None else task_of_header(header)
    if task is not None:
        needed = [name for name in (task.text, task.pair) if name is not None]
        missing = ", ".join(name for name in needed if name not in by_name)
        if missing:
            has = shown(", ".join(header), 200)
            raise InputError(
                f"{where}: the header of a {task.name} file has {missing}; this one has {has}."
            )
        return task, by_name
    task = task_without_header(row)
    if task is None:
        has = shown(", ".join(header[:8]), 200)
        raise InputError(
            f"{where}: the header names no text column (one of {KNOWN}); it has {has}. For a GLUE "
            f"file use glue:TASK:path; for any other {NAME_IT}.",
            option="text_field",
        )
    return task, {str(position): position for position in range(task.columns)}


def _problem(
    row: Sequence[str], n_columns: int, task: KnownTask, columns: Mapping[str, int]
) -> str:
    """Return what is wrong with a row; "" where nothing is."""
    if len(row) != n_columns:
        return f"the row has {len(row)} columns where the first line has {n_columns}"
    has_text = bool(row[columns[task.text]].strip())
    if has_text and task.pair and not row[columns[task.pair]].strip():
        return f"the column '{task.pair}' is empty"
    if task.regression and task.label in columns:
        try:
            float(row[columns[task.label]])
        except ValueError:
            value = shown(row[columns[task.label]])
            return f"the column '{task.label}' holds '{value}' where a number is needed"
    return ""
