"""Reports as Markdown: numbers, rows beside printed ones, tables, claims, entries."""

from __future__ import annotations

from typing import Any

import pytest

from headwise.experiments.reproduction.markdown import as_markdown, number, row_cells, summary


def row_facts(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "label": "accuracy",
        "unit": "%",
        "printed": 80.0,
        "printed_note": "",
        "ours": 82.26,
        "low": None,
        "high": None,
        "note": "L0H1",
    }
    return row | changes


def entry_facts(**changes: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "key": "fig1",
        "title": "attention",
        "where": "Figure 1",
        "quote": "",
        "status": "done",
        "reason": "",
        "rows": [],
        "tables": [],
        "figures": [],
        "differs": [],
        "seen": {},
    }
    return entry | changes


def report_facts(**changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "headwise": "1.0",
        "paper": {"short": "Someone 2020", "citation": "Someone. 2020. A paper."},
        "model": {"name": "tiny", "architecture": "Bert", "layers": 2, "heads": 3},
        "options": {"quick": False, "scale": 1.0, "seed": 7, "variant": "paper"},
        "settings": ["BERT-base."],
        "counts": {
            "entries": {"done": 1, "not run": 2, "failed": 0},
            "claims": {
                "as printed": 3,
                "in a weaker form": 2,
                "does not hold": 4,
                "undecided": 1,
                "cannot be tried": 5,
            },
        },
        "summary": "A summary.",
        "claims": [],
        "entries": [],
    }
    return facts | changes


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (False, "no"),
        ("L0H1", "L0H1"),
        (1234567, "1,234,567"),
        (3.0, "3"),
        (1234.56, "1,234.6"),
        (1.234, "1.23"),
        (0.1234, "0.123"),
        (0.00049, "4.9e-04"),
        (-0.5, "−0.500"),
    ],
)
def test_numbers_have_about_three_digits(value: object, text: str) -> None:
    assert number(value) == text


def test_numbers_with_sign_or_fixed_digits() -> None:
    assert number(0.5, signed=True) == "+0.500"
    assert number(-0.5, signed=True) == "−0.500"
    assert number(0, signed=True) == "0"
    assert number(80.0, digits=1) == "80.0"
    assert number(80, digits=1) == "80"


def test_a_row_shows_both_numbers_and_their_difference() -> None:
    assert row_cells(row_facts()) == ["accuracy", "80.0 %", "82.3 %", "+2.3", "L0H1"]


def test_a_row_with_an_interval_has_one_for_the_difference_too() -> None:
    _, _, ours, difference, _ = row_cells(row_facts(low=79.0, high=85.0))
    assert ours == "82.3 % (79.0 to 85.0)"
    assert difference == "+2.3 (−1.0 to +5.0)"


def test_a_row_without_one_of_the_numbers() -> None:
    without_ours = row_cells(row_facts(ours=None, printed_note="five seeds"))
    assert without_ours[1:4] == ["80.0 % (five seeds)", "–", "–"]
    without_printed = row_cells(row_facts(printed=None, unit="", ours=0.25))
    assert without_printed[1:4] == ["–", "0.250", "–"]


def test_the_summary_counts_entries_and_claims() -> None:
    text = summary(report_facts())
    assert "tiny (Bert, 2 layers × 3 heads)" in text
    assert "the paper's sample sizes, seed 7" in text
    assert "Of 3 tables, figures and sections 1 were computed, 2 not run, 0 failed" in text
    assert "of 15 claims 3 hold as printed, 2 in a weaker form, 4 do not hold" in text
    assert "1 are undecided, 5 cannot be tried" in text
    assert "released" not in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"quick": True}, "a quick run on small samples"),
        ({"quick": True, "scale": 0.5}, "a quick run on small samples"),
        ({"scale": 0.5}, "sample sizes 0.5 times the paper's"),
        ({"variant": "released"}, "Computed as the released code does."),
    ],
)
def test_the_summary_says_how_it_was_run(options: dict[str, Any], text: str) -> None:
    facts = report_facts()
    facts["options"] |= options
    assert text in summary(facts)


def test_claims_are_a_table_with_the_rule_and_the_verdict() -> None:
    claim = {
        "quote": "heads | attend",
        "where": "§3",
        "printed": "four heads",
        "ours": "",
        "rule": "four heads",
        "leaves_out": "their layers",
        "weaker": [{"key": "one", "rule": "at least one", "supports": "some head does"}],
        "minimum": {"segments": 1000},
        "verdict": "cannot be tried",
        "why": "no data",
    }
    text = as_markdown(report_facts(claims=[claim]))
    assert "| claim | printed | ours (95 % interval) | as printed if | verdict |" in text
    rule = "four heads; not tried: their layers; weaker: at least one; at least 1,000 segments"
    row = f"| “heads \\| attend” (§3) | four heads | – | {rule} | **cannot be tried**: no data |"
    assert row in text
    assert "*undecided*: the interval spans the bound, or the sample is too small" in text
    assert "## Claims" not in as_markdown(report_facts())


def test_an_entry_that_was_not_run_says_why() -> None:
    entry = entry_facts(status="not run", reason="needs GloVe", quote="A caption")
    text = as_markdown(report_facts(entries=[entry]))
    assert "## Figure 1: attention" in text
    assert "> A caption" in text
    assert "**Not run**: needs GloVe." in text
    assert "Computed on" not in text


def test_an_entry_has_inputs_tables_figures_and_deviations() -> None:
    table = {"title": "Layers", "note": "", "columns": ["layer", "mean"], "rows": [["L0", 0.5]]}
    figure = {"title": "Heads", "caption": "Each cell is a head.", "files": ["figures/a.svg"]}
    entry = entry_facts(
        seen={"text": "two sentences"},
        tables=[table],
        figures=[figure],
        differs=["One seed."],
        rows=[row_facts()],
        shown={"columns": ["", "ours"], "rows": [["a\nb", "1"]]},
    )
    text = as_markdown(report_facts(entries=[entry]))
    assert "Computed on: text: two sentences." in text
    assert "**Layers.**\n\n| layer | mean |\n|---|---|\n| L0 | 0.500 |" in text
    assert "| a b | 1 |" in text
    assert "![Heads](figures/a.svg)\n\n*Each cell is a head.*" in text
    assert "What differs from the paper:\n\n- One seed." in text
    without_figures = as_markdown(report_facts(entries=[entry]), figures=False)
    assert "figures/a.svg" not in without_figures
