"""A report as Markdown: the printed numbers beside ours, what differs, what was not run, the claims
as a checklist."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

DASH = "–"
HUNDREDTHS = ("%", "points")  # written with one digit behind the point


def as_markdown(facts: Mapping[str, Any], figures: bool = True) -> str:
    """The whole report; without `figures` no pictures are linked."""
    lines = [
        f"# {facts['paper']['short']}, on {facts['model']['name']}",
        "",
        facts["paper"]["citation"],
        "",
    ]
    lines += [facts["summary"], ""]
    lines += ["The paper's setting:", "", *(f"- {text}" for text in facts["settings"]), ""]
    lines += _claims(facts["claims"])
    for entry in facts["entries"]:
        lines += _entry(entry, figures)
    return "\n".join(lines).rstrip() + "\n"


def summary(facts: Mapping[str, Any]) -> str:
    """What was run and what came of it, in a few sentences."""
    options, entries, claims = (
        facts["options"],
        facts["counts"]["entries"],
        facts["counts"]["claims"],
    )
    model = facts["model"]
    size = "a quick run on small samples" if options["quick"] else "the paper's sample sizes"
    if not options["quick"] and options["scale"] != 1:
        size = f"sample sizes {options['scale']:g} times the paper's"
    text = (
        f"Model: {model['name']} ({model['architecture']}, {model['layers']} layers × {model['heads']} heads). "
        f"Made by headwise {facts['headwise']}, {size}, seed {options['seed']}. "
        f"Of {sum(entries.values())} tables, figures and sections {entries['done']} were computed, "
        f"{entries['not run']} not run, {entries['failed']} failed; of {sum(claims.values())} claims "
        f"{claims['holds']} hold, {claims['does not hold']} do not, {claims['not tried']} could not be tried. "
        "Heads count from 0 (`L7H9` is the paper's 8-10)."
    )
    return text + (
        " Computed as the released code does." if options["reading"] == "released" else ""
    )


def row_cells(row: Mapping[str, Any]) -> list[str]:
    """One number: its name, printed, ours with its interval, the difference with its own, notes."""
    ours, low, high, unit = (
        row["ours"],
        row["low"],
        row["high"],
        f" {row['unit']}" if row["unit"] else "",
    )
    own = partial(number, digits=1 if row["unit"] in HUNDREDTHS else None)
    shown = DASH if ours is None else f"{own(ours)}{unit}"
    difference = DASH
    if ours is not None and row["printed"] is not None:
        difference = own(ours - row["printed"], signed=True)
    if ours is not None and low is not None and high is not None:
        shown += f" ({own(low)} to {own(high)})"
        if row["printed"] is not None:
            ends = (own(end - row["printed"], signed=True) for end in (low, high))
            difference += " ({} to {})".format(*ends)
    printed = DASH if row["printed"] is None else f"{own(row['printed'])}{unit}"
    printed += f" ({row['printed_note']})" if row["printed_note"] else ""
    return [row["label"], printed, shown, difference, row["note"]]


ROW_COLUMNS = ("", "printed", "ours (95 % interval)", "difference", "note")


def number(value: Any, signed: bool = False, digits: int | None = None) -> str:
    """A number as people read it; with its sign, or with so many digits behind the point, where
    that is asked for.

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
    else:
        text = f"{value:.3f}" if abs(value) >= 5e-4 else f"{value:.1e}"
    text = f"+{text}" if signed and value > 0 else text
    return text.replace("-", "−", 1) if text.startswith("-") else text


def _claims(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    if not claims:
        return []
    rows = [
        [f"“{c['quote']}” ({c['where']})", c["printed"], c["ours"] or DASH, c["rule"], _verdict(c)]
        for c in claims
    ]
    return ["## Claims", "", *_table(("claim", "printed", "ours", "holds if", "verdict"), rows), ""]


def _verdict(claim: Mapping[str, Any]) -> str:
    return f"**{claim['verdict']}**" + (f": {claim['why']}" if claim["why"] else "")


def _entry(entry: Mapping[str, Any], figures: bool) -> list[str]:
    lines = [f"## {entry['where']}: {entry['title']}", ""]
    if entry["quote"]:
        lines += [f"> {entry['quote']}", ""]
    if entry["status"] != "done":
        lines += [f"**{entry['status'].capitalize()}**: {entry['reason']}.", ""]
    if entry["seen"]:
        lines += [
            "Computed on: "
            + "; ".join(f"{key}: {value}" for key, value in entry["seen"].items())
            + ".",
            "",
        ]
    if entry["rows"]:
        lines += [*_table(**entry["shown"]), ""]
    for table in entry["tables"]:
        lines += [
            f"**{table['title']}.** {table['note']}".rstrip(),
            "",
            *_table(table["columns"], table["rows"]),
            "",
        ]
    for figure in entry["figures"] if figures else ():
        lines += [f"![{figure['title']}]({figure['files'][0]})", "", f"*{figure['caption']}*", ""]
    if entry["differs"]:
        lines += [
            "What differs from the paper:",
            "",
            *(f"- {text}" for text in entry["differs"]),
            "",
        ]
    return lines


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(map(_cell, columns)) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]


def _cell(value: Any) -> str:
    return number(value).replace("|", "\\|").replace("\n", " ")
