"""`headwise reproduce` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path


def test_report_page_and_data_are_written_and_not_replaced_untold(headwise, model_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    call = ("reproduce", "clark2019", "--model", model_folder, "--quick", "--only", "text3.1", "--out", out)
    made = headwise(*call)
    assert made.code == 0, made.err
    assert "1 were computed" in made.out
    facts = json.loads((out / "report.json").read_text())
    assert facts["options"]["quick"] is True
    assert "No Wikipedia was given" in facts["entries"][0]["differs"][0]
    page = (out / "index.html").read_text()
    assert "attention to neighbouring tokens" in page
    assert "attention to neighbouring tokens" in (out / "report.md").read_text()
    assert len(list((out / "figures").iterdir())) == 3
    assert not (out / ".reproduction").exists()
    again = headwise(*call)
    assert again.code == 2
    assert "exists; give --overwrite" in again.err
    assert headwise(*call, "--overwrite").code == 0


def test_wrong_names_are_one_sentence(headwise, tmp_path: Path) -> None:
    assert "There is no paper to reproduce 'clark'" in headwise("reproduce", "clark").err
    wrong = headwise("reproduce", "clark2019", "--finetuned", "MRPC", "--out", tmp_path / "x")
    assert wrong.code == 2
    assert "--finetuned takes TASK=FOLDER" in wrong.err


def test_entries_are_listed(headwise) -> None:
    listed = headwise("reproduce", "clark2019", "--list")
    assert listed.code == 0
    assert "text3.1" in listed.out
    assert "§3.1" in listed.out
