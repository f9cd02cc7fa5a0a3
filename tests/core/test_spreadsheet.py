"""Cells that a spreadsheet would run are quoted by one rule, and read back as they were."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pandas as pd
import pytest

import headwise
from headwise.core.spreadsheet import as_written, csv_text, inert


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+cmd|' /C calc'!A0", "-x", "@SUM(A1)", "\tx", "\rx", "\n=1", " =1", "-1 cls", "--"],
)
def test_what_would_run_gets_an_apostrophe(text: str) -> None:
    assert inert(text) == f"'{text}"
    assert as_written(inert(text)) == text


@pytest.mark.parametrize(
    "text", ["", "plain", "-1", "+0.5", "-1.5e-3", ".5", "a=b", "'tis", "L0H1", "–", "12"]
)
def test_other_text_and_numbers_stay(text: str) -> None:
    assert inert(text) == text
    assert as_written(text) == text


def test_numbers_of_a_table_stay_numbers() -> None:
    frame = pd.DataFrame(
        {"=name": ["=1", "-2", "b"], "value": [-1.5, 2.0, float("nan")], "n": [-1, 2, 3]}
    )
    rows = list(csv.reader(io.StringIO(csv_text(frame))))
    assert rows == [
        ["'=name", "value", "n"],
        ["'=1", "-1.5", "-1"],
        ["-2", "2", "2"],
        ["b", "", "3"],
    ]


def test_no_other_place_writes_csv() -> None:
    source = Path(headwise.__file__).parent
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"\.to_csv\(|csv\.(Dict)?[wW]riter\(", path.read_text(encoding="utf-8"))
    }
    assert found <= {
        "core/spreadsheet.py",
        "analyses/patterns/store.py",
    }  # the second quotes by the same rule
