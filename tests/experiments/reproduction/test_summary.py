"""The claims of several reports in one table, by models; from Python and from the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwise.cli.main import app
from headwise.core.errors import InputError
from headwise.experiments.reproduction.summary import (
    ClaimSummary,
    read_reports,
    summarize_reports,
)


def facts(
    model: str, verdicts: Mapping[str, str], paper: str = "clark2019", **options: Any
) -> dict[str, Any]:
    """A report with claims of these verdicts."""
    claims = []
    for key, verdict in verdicts.items():
        claims.append(
            {
                "key": key,
                "where": "§3",
                "quote": f"heads | do {key}",
                "printed": "four",
                "verdict": verdict,
                "why": "some head does" if verdict == "in a weaker form" else "",
            }
        )
    return {
        "model": {"name": model},
        "paper": {"key": paper, "short": "Clark et al. 2019"},
        "options": {"quick": False, "scale": 0.5, **options},
        "claims": claims,
    }


@pytest.fixture
def summary() -> ClaimSummary:
    first = {
        "same": "as printed",
        "weak": "in a weaker form",
        "turned": "as printed",
        "against": "does not hold",
        "open": "undecided",
    }
    second = {
        "same": "as printed",
        "weak": "as printed",
        "turned": "does not hold",
        "against": "does not hold",
        "open": "as printed",
    }
    return summarize_reports([facts("wiki", first), facts("mpnet", second, quick=True)])


def test_what_two_models_tell_together(summary: ClaimSummary) -> None:
    together = {claim.key: claim.together(summary.models) for claim in summary.claims}
    assert together == {
        "same": "as printed on both",
        "weak": "at least in a weaker form on both",
        "turned": "differs between models",
        "against": "does not hold on both",
        "open": "no comparison: decided on fewer than two models",
    }
    assert summary.text() == (
        "5 claims of 1 papers on 2 models. 4 are decided on at least two models: on 3 these agree "
        "whether it holds, on 1 they do not."
    )


def test_verdicts_are_counted_by_paper_and_model(summary: ClaimSummary) -> None:
    assert summary.count_rows() == [
        ["Clark et al. 2019", "wiki", "0.5 of the paper's", 2, 1, 1, 1, 0],
        ["Clark et al. 2019", "mpnet", "quick", 3, 0, 2, 0, 0],
    ]


def test_the_table_as_markdown(summary: ClaimSummary) -> None:
    text = summary.markdown()
    assert "| claim | wiki | mpnet | together |" in text
    row = "| “heads \\| do weak” (§3) | **in a weaker form**: some head does | **as printed** |"
    assert row in text
    single = summarize_reports([facts("wiki", {"same": "as printed"})])
    assert "| claim | wiki |" in single.markdown()
    assert single.text() == "1 claims of 1 papers on wiki."


def test_a_later_report_of_the_same_model_counts() -> None:
    reports = [facts("wiki", {"same": "undecided"}), facts("wiki", {"same": "as printed"})]
    (claim,) = summarize_reports(reports).claims
    assert claim.verdicts == {"wiki": "as printed"}


def write_reports(folder: Path) -> list[str]:
    names = []
    for model in ("wiki", "mpnet"):
        report = folder / model
        report.mkdir(parents=True)
        (report / "report.json").write_text(json.dumps(facts(model, {"same": "as printed"})))
        names.append(str(report))
    return names


def test_reports_are_read_from_their_folders(tmp_path: Path) -> None:
    names = write_reports(tmp_path)
    assert [report["model"]["name"] for report in read_reports(names)] == ["wiki", "mpnet"]
    with pytest.raises(InputError, match="no report of a reproduction in"):
        read_reports([tmp_path])


def test_the_command_writes_table_page_and_data(tmp_path: Path) -> None:
    first, second = write_reports(tmp_path)
    out = tmp_path / "claims"
    arguments = ["reproduce", "--summary", first, "--summary", second, "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "1 claims of 1 papers on 2 models" in result.output
    assert "as printed on both" in (out / "claims.md").read_text()
    assert json.loads((out / "claims.json").read_text())["models"] == ["wiki", "mpnet"]
    page = (out / "index.html").read_text()
    assert "as printed on both" in page
    assert "**" not in page


def test_a_summary_names_no_paper_and_a_reproduction_one(tmp_path: Path) -> None:
    first, _ = write_reports(tmp_path)
    both = CliRunner().invoke(app, ["reproduce", "clark2019", "--summary", first])
    assert both.exit_code != 0
    neither = CliRunner().invoke(app, ["reproduce"])
    assert neither.exit_code != 0
