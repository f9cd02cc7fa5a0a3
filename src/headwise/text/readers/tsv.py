"""Tables: GLUE's TSV files as they really are (columns by header, or by shape where there is none;
quotes just characters), and CSV, where quotes mean what they should."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headwise.core.checks import one_of
from headwise.core.errors import InputError, ParameterError, unknown
from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.known_tasks import NAMED, KnownTask, known_task
from headwise.text.readers.columns import KNOWN, NAME_IT, task_of_field, task_of_header
from headwise.text.readers.files import TextFile
from headwise.text.readers.limits import shown

Row = tuple[str, list[str]]  # where it stands, and its columns

NLI_LABELS = {"neutral", "contradiction", "entailment", "contradictory"}


def task_by_name(name: str) -> KnownTask:
    """A GLUE task by its name, in any case."""
    found = known_task(name)
    if found is None:
        raise ParameterError(unknown("GLUE task", name, (task.name for task in NAMED.values())))
    return found


def is_glue_header(line: str) -> bool:
    """Whether a line can only be the header of a GLUE file (for MRPC's, which end in .txt)."""
    return line.startswith("Quality\t#1 ID\t#2 ID\t")


def task_without_header(row: Sequence[str]) -> KnownTask | None:
    """CoLA's four columns (source, 0 or 1, mark, sentence) or XNLI's three (premise, hypothesis,
    label)."""
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
    bad_rows: str | None = None,
    text_field: str | None = None,
) -> Iterator[Example]:
    """Rows of a TSV file as text, pair and label. Quotes mean nothing and a line is a row, as in
    GLUE.

    Parameters
    ----------
    task : str, optional
        A GLUE task; otherwise told by the header, or by the shape of the first row for CoLA and
        XNLI, which have none.
    bad_rows : {"error", "skip"}, optional
        What happens to a row of another number of columns than the first (the halves of a row that
        a quoted line break tore apart); `skip` counts them and notes the first. By default GLUE's
        own files are read with `skip`, since some of them (QQP) are like that, all others with
        `error`.
    text_field : str, optional
        The column of the text, or `text,pair`, where the header has other names than those that are
        known.
    """
    one_of("bad_rows", bad_rows or "error", ("error", "skip"))
    named = None if task is None else task_by_name(task)
    for file in files:
        rows = ((where, line.split("\t")) for where, line in file.filled())
        yield from _rows(rows, notes, named, bad_rows, text_field)


def read_csv(
    files: Iterable[TextFile],
    notes: Notes,
    *,
    text_field: str | None = None,
    delimiter: str | None = None,
    bad_rows: str = "error",
) -> Iterator[Example]:
    """Rows of a CSV file with a header as text, pair and label. A quoted field may hold delimiters,
    line breaks and doubled quotes (RFC 4180).

    Parameters
    ----------
    text_field : str, optional
        The column of the text, or `text,pair`; by default known by its name.
    delimiter : str, optional
        What stands between fields; by default a comma, or a semicolon where the header has one and
        no comma.
    bad_rows : {"error", "skip"}, default "error"
        What happens to a row of another number of columns than the header; `skip` counts them.
    """
    one_of("bad_rows", bad_rows, ("error", "skip"))
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"'):
        raise ParameterError(
            f"`delimiter` must be one character, and no quote or line end; it is {delimiter!r}."
        )
    for file in files:
        yield from _rows(_csv_rows(file, delimiter), notes, None, bad_rows, text_field)


def _csv_rows(file: TextFile, delimiter: str | None) -> Iterator[Row]:
    if delimiter is None:
        first, file = file.first_line(lambda line: bool(line.strip()))
        delimiter = ";" if ";" in first and "," not in first else ","
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        for number, line in file.lines():  # noqa: B007  # told to the rows
            yield line + "\n"

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    longest = file.walk.limits.max_text
    while True:
        before = number
        usual = csv.field_size_limit(longest)  # it is the whole process's: set for this row only
        try:
            row = next(reader, None)
        except csv.Error as error:
            where = file.where(before + 1)
            if "field limit" in str(error):
                what = "a field of more than {} characters, or a quote that is never closed"
                file.walk.limits.refuse(where, what, "max_text")
            raise InputError(
                f"{where}: the row that begins here is no CSV ({error}); mend its quotes."
            ) from error
        finally:
            csv.field_size_limit(usual)
        if row is None:
            return
        if any(field.strip() for field in row):
            yield file.where(before + 1), row


def _rows(
    rows: Iterable[Row],
    notes: Notes,
    named: KnownTask | None,
    bad_rows: str | None,
    text_field: str | None,
) -> Iterator[Example]:
    chosen: KnownTask | None = None
    columns: Mapping[str, int] = {}
    width, first_bad = 0, ""
    for where, row in rows:
        if chosen is None:
            chosen, columns = _choose(row, named, where, text_field)
            width = len(row)
            if chosen.header or "sentence" in columns:
                continue
        problem = _problem(row, width, chosen, columns)
        if problem:
            skip = bad_rows == "skip" or (bad_rows is None and chosen in NAMED.values())
            if not skip:
                raise InputError(
                    f"{where}: {problem}; mend the row, or leave such rows out with bad_rows=skip."
                )
            first_bad = first_bad or f"{where}: {problem}"
            notes[f"broken rows left out (first: {first_bad})"] += 1
            continue
        pair = columns.get(chosen.pair) if chosen.pair else None
        label = row[columns[chosen.label]].strip() if chosen.label in columns else None
        yield Example(
            text=row[columns[chosen.text]].strip(),
            pair=None if pair is None else row[pair].strip(),
            label=float(label) if label is not None and chosen.regression else label,
            origin=where,
        )


def _choose(
    row: Sequence[str], named: KnownTask | None, where: str, text_field: str | None
) -> tuple[KnownTask, dict[str, int]]:
    """The task of a file by its first row, and where its columns are."""
    header = [name.strip() for name in row]
    by_name = {name: index for index, name in enumerate(header)}
    if text_field is not None:
        return task_of_field(text_field, by_name, where), by_name
    if named is not None and not named.header:
        if (
            "sentence" in by_name and named.name == "CoLA"
        ):  # CoLA's test file has a header and no labels
            return KnownTask("CoLA", "sentence", None, "label"), by_name
        if len(row) != named.columns:
            raise InputError(
                f"{where}: the row has {len(row)} columns; a {named.name} file has {named.columns}."
            )
        return named, {str(i): i for i in range(named.columns)}
    found = named if named is not None else task_of_header(header)
    if found is not None:
        missing = ", ".join(
            name for name in (found.text, found.pair) if name is not None and name not in by_name
        )
        if missing:
            has = shown(", ".join(header), 200)
            raise InputError(
                f"{where}: the header of a {found.name} file has {missing}; this one has {has}."
            )
        return found, by_name
    found = task_without_header(row)
    if found is None:
        raise InputError(
            f"{where}: the header names no text: one of {KNOWN} is needed; it has {shown(', '.join(header[:8]), 200)}. "
            f"For a GLUE file give glue:TASK:path; for any other {NAME_IT}."
        )
    return found, {str(i): i for i in range(found.columns)}


def _problem(row: Sequence[str], width: int, task: KnownTask, columns: Mapping[str, int]) -> str:
    """What is wrong with a row; "" for nothing."""
    if len(row) != width:
        return f"the row has {len(row)} columns where the first line has {width}"
    for name in (task.text, task.pair):
        if name and not row[columns[name]].strip():
            return f"the column '{name}' is empty"
    if task.regression and task.label in columns:
        try:
            float(row[columns[task.label]])
        except ValueError:
            return f"the column '{task.label}' holds '{shown(row[columns[task.label]])}' where a number is needed"
    return ""
