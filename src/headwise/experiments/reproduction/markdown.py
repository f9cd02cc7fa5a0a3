"""Write a report as Markdown: printed numbers beside ours, deviations from the paper, entries that
were not run, claims as a checklist."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from headwise.experiments.reproduction.rules import (
    AS_PRINTED,
    CANNOT,
    DOES_NOT_HOLD,
    UNDECIDED,
    VERDICT_MEANINGS,
    WEAKER,
)

DASH = "–"
ONE_DIGIT_UNITS = ("%", "points")  # one digit after the decimal point
ROW_COLUMNS = ("", "printed", "ours (95 % interval)", "difference", "note")
CLAIM_COLUMNS = ("claim", "printed", "ours (95 % interval)", "as printed if", "verdict")


def as_markdown(facts: Mapping[str, Any], figures: bool = True) -> str:
    """Return the whole report; without `figures` no images are linked."""
    paper = facts["paper"]
    lines = [f"# {paper['short']}, on {facts['model']['name']}", "", paper["citation"], ""]
    lines += [facts["summary"], ""]
    lines += ["The paper's setting:", ""]
    lines += _bullets(facts["settings"])
    lines.append("")
    lines += _claim_lines(facts["claims"])
    for entry in facts["entries"]:
        lines += _entry_lines(entry, figures)
    return "\n".join(lines).rstrip() + "\n"


def summary(facts: Mapping[str, Any]) -> str:
    """Say in a few sentences what was run and with which result."""
    options = facts["options"]
    entries = facts["counts"]["entries"]
    claims = facts["counts"]["claims"]
    model = facts["model"]
    if options["quick"]:
        size = "a quick run on small samples"
    elif options["scale"] != 1:
        size = f"sample sizes {options['scale']:g} times the paper's"
    else:
        size = "the paper's sample sizes"
    sentences = [
        f"Model: {model['name']} ({model['architecture']}, {model['layers']} layers × "
        f"{model['heads']} heads).",
        f"Made by headwise {facts['headwise']}, {size}, seed {options['seed']}.",
        f"Of {sum(entries.values())} tables, figures and sections {entries['done']} were computed, "
        f"{entries['not run']} not run, {entries['failed']} failed; of {sum(claims.values())} "
        f"claims {claims[AS_PRINTED]} hold as printed, {claims[WEAKER]} in a weaker form, "
        f"{claims[DOES_NOT_HOLD]} do not hold, {claims[UNDECIDED]} are undecided, "
        f"{claims[CANNOT]} cannot be tried.",
        "Heads count from 0 (`L7H9` is the paper's 8-10).",
    ]
    if options["variant"] == "released":
        sentences.append("Computed as the released code does.")
    return " ".join(sentences)


def row_cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one number: name, printed, ours with interval, difference, note."""
    ours = row["ours"]
    printed = row["printed"]
    unit = f" {row['unit']}" if row["unit"] else ""
    digits = 1 if row["unit"] in ONE_DIGIT_UNITS else None
    format_value = partial(number, digits=digits)
    has_interval = ours is not None and row["low"] is not None and row["high"] is not None

    ours_cell = DASH
    if ours is not None:
        ours_cell = f"{format_value(ours)}{unit}"
    if has_interval:
        ours_cell += f" ({format_value(row['low'])} to {format_value(row['high'])})"

    difference_cell = DASH
    if ours is not None and printed is not None:
        difference_cell = format_value(ours - printed, signed=True)
        if has_interval:
            low = format_value(row["low"] - printed, signed=True)
            high = format_value(row["high"] - printed, signed=True)
            difference_cell += f" ({low} to {high})"

    printed_cell = DASH if printed is None else f"{format_value(printed)}{unit}"
    if row["printed_note"]:
        printed_cell += f" ({row['printed_note']})"
    return [row["label"], printed_cell, ours_cell, difference_cell, row["note"]]


def number(value: Any, signed: bool = False, digits: int | None = None) -> str:
    """Format a number for a table.

    Parameters
    ----------
    value : Any
        A number; None and NaN become a dash, other values their text.
    signed : bool, default False
        Show the sign of positive numbers too.
    digits : int, optional
        Digits after the decimal point of a float; by default about three significant digits.

    Examples
    --------
    >>> number(94.31234), number(0.012345), number(-2), number(True)
    ('94.3', '0.012', '−2', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if not isinstance(value, int | float):
        return str(value)
    if digits is not None and not isinstance(value, int):
        text = f"{value:,.{digits}f}"
    elif float(value).is_integer() and abs(value) < 1e15:
        text = f"{int(value):,}"
    elif abs(value) >= 10:
        text = f"{value:,.1f}"
    elif abs(value) >= 1:
        text = f"{value:.2f}"
    elif abs(value) >= 5e-4:
        text = f"{value:.3f}"
    else:
        text = f"{value:.1e}"
    if text.startswith("-"):
        return text.replace("-", "−", 1)
    if signed and value > 0:
        return f"+{text}"
    return text


def _claim_lines(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    if not claims:
        return []
    rows = []
    for claim in claims:
        verdict = f"**{claim['verdict']}**"
        if claim["why"]:
            verdict += f": {claim['why']}"
        quote = f"“{claim['quote']}” ({claim['where']})"
        rows.append([quote, claim["printed"], claim["ours"] or DASH, rule_text(claim), verdict])
    meanings = [f"*{name}*: {meaning}" for name, meaning in VERDICT_MEANINGS.items()]
    note = f"Verdicts: {'; '.join(meanings)}."
    return ["## Claims", "", note, "", *table_lines(CLAIM_COLUMNS, rows), ""]


def rule_text(claim: Mapping[str, Any]) -> str:
    """Return the rule of a claim with its weaker forms and its least sample."""
    parts = [claim["rule"]]
    if claim["leaves_out"]:
        parts.append(f"not tried: {claim['leaves_out']}")
    for form in claim["weaker"]:
        parts.append(f"weaker: {form['rule']}")
    for name, minimum in claim["minimum"].items():
        parts.append(f"at least {minimum:,} {name}")
    return "; ".join(parts)


def _entry_lines(entry: Mapping[str, Any], figures: bool) -> list[str]:
    lines = [f"## {entry['where']}: {entry['title']}", ""]
    if entry["quote"]:
        lines += [f"> {entry['quote']}", ""]
    if entry["status"] != "done":
        lines += [f"**{entry['status'].capitalize()}**: {entry['reason']}.", ""]
    if entry["seen"]:
        inputs = "; ".join(f"{key}: {value}" for key, value in entry["seen"].items())
        lines += [f"Computed on: {inputs}.", ""]
    if entry["rows"]:
        lines += [*table_lines(**entry["shown"]), ""]
    for table in entry["tables"]:
        lines += [f"**{table['title']}.** {table['note']}".rstrip(), ""]
        lines += [*table_lines(table["columns"], table["rows"]), ""]
    if figures:
        for figure in entry["figures"]:
            lines += [f"![{figure['title']}]({figure['files'][0]})", ""]
            lines += [f"*{figure['caption']}*", ""]
    if entry["differs"]:
        lines += ["What differs from the paper:", "", *_bullets(entry["differs"]), ""]
    return lines


def _bullets(texts: Sequence[str]) -> list[str]:
    return [f"- {text}" for text in texts]


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [_table_line(columns), "|" + "---|" * len(columns)]
    for row in rows:
        lines.append(_table_line(row))
    return lines


def _table_line(values: Sequence[Any]) -> str:
    cells = []
    for value in values:
        # A bar or a line break in a cell would end it.
        cells.append(number(value).replace("|", "\\|").replace("\n", " "))
    return f"| {' | '.join(cells)} |"
