"""GLUE's TSV files as they really are: columns by header (or by shape where there is none), quotes just characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from headwise.core.checks import one_of
from headwise.core.errors import InputError, ParameterError, unknown
from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.known_tasks import NAMED, TASKS, KnownTask, known_task
from headwise.text.readers.files import TextFile

NLI_LABELS = {"neutral", "contradiction", "entailment", "contradictory"}


def task_by_name(name: str) -> KnownTask:
    """A GLUE task by its name, in any case."""
    found = known_task(name)
    if found is None:
        raise ParameterError(unknown("GLUE task", name, (task.name for task in NAMED.values())))
    return found


def task_of_header(header: Sequence[str]) -> KnownTask | None:
    """The task that a header belongs to: its label column too must be there, except in test files, which have none."""
    for with_label in (True, False):
        for task in TASKS:
            wanted = [task.text, task.pair, task.label if with_label else None]
            if task.header and all(name in header for name in wanted if name is not None):
                return task
    return None


def is_glue_header(line: str) -> bool:
    """Whether a line can only be the header of a GLUE file (for MRPC's, which end in .txt)."""
    return line.startswith("Quality\t#1 ID\t#2 ID\t")


def task_without_header(row: Sequence[str]) -> KnownTask | None:
    """CoLA's four columns (source, 0 or 1, mark, sentence) or XNLI's three (premise, hypothesis, label)."""
    if len(row) == 4 and row[1] in ("0", "1") and row[2] in ("", "*", "**", "?", "??"):
        return NAMED["cola"]
    if len(row) == 3 and row[2] in NLI_LABELS:
        return NAMED["xnli"]
    return None


def read_tsv(
    files: Iterable[TextFile], notes: Notes, *, task: str | None = None, bad_rows: str | None = None
) -> Iterator[Example]:
    """Rows of a TSV file as text, pair and label. Quotes mean nothing and a line is a row, as in GLUE.

    Parameters
    ----------
    task : str, optional
        A GLUE task; otherwise told by the header, or by the shape of the first row for CoLA and XNLI, which have none.
    bad_rows : {"error", "skip"}, optional
        What happens to a row of another number of columns than the first (the halves of a row that a quoted line break
        tore apart); `skip` counts them and notes the first. By default GLUE's own files are read with `skip`, since
        some of them (QQP) are like that, all others with `error`.
    """
    one_of("bad_rows", bad_rows or "error", ("error", "skip"))
    named = None if task is None else task_by_name(task)
    for file in files:
        yield from _rows(file, notes, named, bad_rows)


def _rows(file: TextFile, notes: Notes, named: KnownTask | None, bad_rows: str | None) -> Iterator[Example]:
    chosen: KnownTask | None = None
    columns: Mapping[str, int] = {}
    width, first_bad = 0, ""
    for where, line in file.filled():
        row = line.split("\t")
        if chosen is None:
            chosen, columns = _choose(row, named, where)
            width = len(row)
            if chosen.header or "sentence" in columns:
                continue
        problem = _problem(row, width, chosen, columns)
        if problem:
            skip = bad_rows == "skip" or (bad_rows is None and chosen in NAMED.values())
            if not skip:
                raise InputError(f"{where}: {problem}; mend the row, or leave such rows out with bad_rows=skip.")
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


def _choose(row: Sequence[str], named: KnownTask | None, where: str) -> tuple[KnownTask, dict[str, int]]:
    """The task of a file by its first row, and where its columns are."""
    header = [name.strip() for name in row]
    by_name = {name: index for index, name in enumerate(header)}
    if named is not None and not named.header:
        if "sentence" in by_name and named.name == "CoLA":  # CoLA's test file has a header and no labels
            return KnownTask("CoLA", "sentence", None, "label"), by_name
        if len(row) != named.columns:
            raise InputError(f"{where}: the row has {len(row)} columns; a {named.name} file has {named.columns}.")
        return named, {str(i): i for i in range(named.columns)}
    found = named if named is not None else task_of_header(header)
    if found is not None:
        missing = ", ".join(name for name in (found.text, found.pair) if name is not None and name not in by_name)
        if missing:
            has = ", ".join(header)
            raise InputError(f"{where}: the header of a {found.name} file has {missing}; this one has {has}.")
        return found, by_name
    found = task_without_header(row)
    if found is None:
        raise InputError(
            f"{where}: the header names no text: one of text, sentence, sentence1 and sentence2, question and "
            f"sentence, premise and hypothesis is needed; it has {', '.join(header[:8])[:200]}. "
            "For a GLUE file give glue:TASK:path."
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
            return f"the column '{task.label}' holds '{row[columns[task.label]]}' where a number is needed"
    return ""
