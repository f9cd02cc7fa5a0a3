"""`headwise reproduce` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwise.experiments.reproduction import (
    Entry,
    EntryResult,
    Reproduction,
    ReproductionContext,
    run,
)


@pytest.mark.usefixtures("not_laid_out")
def test_report_page_and_data_are_written_and_not_replaced_untold(
    headwise, model_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    call = (
        "reproduce",
        "clark2019",
        "--model",
        model_folder,
        "--quick",
        "--only",
        "text3.1",
        "--out",
        out,
    )
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
    assert "exists; pass overwrite=True" in again.err
    # What a killed process left between the bytes of a file and its name.
    for name in ("report.md", "report.json", "index.html"):
        (out / f".{name}.999999999.headwise-tmp").write_text("half")
    assert headwise(*call, "--overwrite").code == 0
    assert not list(out.rglob("*.headwise-tmp"))


def test_an_entry_that_failed_is_tried_again_and_the_others_are_kept(
    headwise, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def succeeding_entry(context: ReproductionContext) -> EntryResult:
        calls.append("kept")
        return EntryResult()

    def broken(context: ReproductionContext) -> EntryResult:
        calls.append("broken")
        if calls.count("broken") == 1:
            raise ZeroDivisionError("no rows")
        return EntryResult()

    entries = (Entry("fig2", "types", succeeding_entry), Entry("fig4", "entropy", broken))
    monkeypatch.setattr(run, "reproduction_of", lambda key: Reproduction(key, [], entries))
    out = tmp_path / "report"
    call = ("reproduce", "clark2019", "--model", model_folder, "--out", out)
    made = headwise(*call)
    assert made.code == 3
    assert "fig4 of clark2019 failed unexpectedly" in made.err
    assert json.loads((out / "report.json").read_text())["counts"]["entries"]["failed"] == 1
    assert headwise(*call).code == 0
    assert calls == ["kept", "broken", "broken"]
    assert json.loads((out / "report.json").read_text())["counts"]["entries"]["done"] == 2
    assert not (out / ".reproduction").exists()
    assert headwise(*call).code == 2  # a whole report is not replaced untold


def test_wrong_names_are_one_sentence(headwise, tmp_path: Path) -> None:
    assert "There is no paper to reproduce 'clark'" in headwise("reproduce", "clark").err
    wrong = headwise("reproduce", "clark2019", "--finetuned", "MRPC", "--out", tmp_path / "x")
    assert wrong.code == 2
    assert "given as TASK=FOLDER, not 'MRPC'" in wrong.err


def test_entries_are_listed(headwise) -> None:
    listed = headwise("reproduce", "clark2019", "--list")
    assert listed.code == 0
    assert "text3.1" in listed.out
    assert "§3.1" in listed.out


@pytest.mark.usefixtures("not_laid_out")
@pytest.mark.parametrize("flag", ["--variant", "--as"])
def test_the_variant_is_chosen_by_either_flag(
    headwise, model_folder: Path, tmp_path: Path, flag: str
) -> None:
    out = tmp_path / "report"
    call = ("reproduce", "jo2020", "--model", model_folder, "--only", "table1", "--out", out)
    result = headwise(*call, flag, "released")
    assert result.code == 0, result.err
    report = json.loads((out / "report.json").read_text())
    assert report["options"]["variant"] == "released"
    assert "Computed as the released code does." in result.out.replace("\n", " ")


def test_an_unknown_paper_leaves_no_folder(
    headwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert headwise("reproduce", "clark2018").code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("not_laid_out")
def test_without_data_the_command_says_how_to_give_them(
    headwise, model_folder: Path, tmp_path: Path
) -> None:
    call = ("reproduce", "jo2020", "--model", model_folder, "--out", tmp_path / "report")
    result = headwise(*call, "--only", "table2", "--only", "table1")
    assert "1 were computed, 1 not run" in " ".join(result.out.split())
    assert "with --data to run more" in result.out
