"""Every table, figure and section of every paper runs, with data and without, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_data

from headwise.experiments.reproduction import (
    ReproductionOptions,
    ReproductionReport,
    papers,
    reproduce,
    reproduction_of,
)
from headwise.testing import random_model

pytestmark = pytest.mark.usefixtures("only_svg")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, tokenizer = random_model(layers=2, heads=2, d_head=16, max_length=128)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data.write_all(tmp_path_factory.mktemp("data"))


# Figures of layers that a model of two layers does not have.
DEEPER_LAYERS = {"pascual2021": {f"fig{number}" for number in range(14, 24)}}


# Figures that an entry has at least, by the end of their names.
DRAWN = {
    "clark2019": {"fig5": ("det", "coreference")},
    "kovaleva2019": {
        "fig7": ("from-cls", "from-cls-words"),
        "fig9": ("layers",),
    },
    "pande2021": {
        "fig3": ("qnli-roles-p-values", "sst-2-roles-p-values", "trees-roles-p-values"),
        "fig4": (
            "qnli-roles-venn",
            "qqp-roles-venn",
            "mrpc-roles-venn",
            "sst-2-roles-venn",
            "trees-roles-venn",
        ),
    },
}


def figure_names(report: ReproductionReport, key: str) -> list[str]:
    """The names of an entry's figures, as in the names of their files."""
    (entry,) = [entry for entry in report.facts["entries"] if entry["key"] == key]
    start = f"{report.facts['paper']['key']}-{key}-"
    names = []
    for figure in entry["figures"]:
        names.append(Path(figure["files"][0]).stem.removeprefix(start))
    return names


def entry_reasons(report: ReproductionReport) -> dict[str, str]:
    """The reason of each entry that was not run; failed ones show their traceback."""
    for failure in report.failures:
        print(failure.trace)
    assert report.facts["counts"]["entries"]["failed"] == 0
    reasons = {}
    for entry in report.facts["entries"]:
        if entry["status"] == "not run":
            reasons[entry["key"]] = entry["reason"]
    return reasons


@pytest.mark.parametrize("paper", papers())
def test_every_entry_is_computed_where_all_data_are_there(
    paper: str, model_folder: Path, data: Path, tmp_path: Path
) -> None:
    options = ReproductionOptions(data=data, quick=True)
    report = reproduce(paper, model_folder, options=options, folder=tmp_path)
    expected_keys = [entry.key for entry in reproduction_of(paper).entries]
    assert [entry["key"] for entry in report.facts["entries"]] == expected_keys
    reasons = entry_reasons(report)
    assert set(reasons) == DEEPER_LAYERS.get(paper, set())
    assert set(reasons.values()) <= {"the model has 2 layers"}
    # Each claim is decided or says why not.
    for claim in report.facts["claims"]:
        assert claim["ours"] or claim["why"], claim["key"]
    assert report.markdown().count("\n## ") > 1
    for key, names in DRAWN.get(paper, {}).items():
        assert set(names) <= set(figure_names(report, key)), key


@pytest.mark.parametrize("paper", papers())
def test_without_data_every_entry_runs_on_the_built_in_corpus_or_names_what_it_needs(
    paper: str, model_folder: Path, tmp_path: Path
) -> None:
    """The built-in corpus has documents, the tiny data sets hardly any."""
    options = ReproductionOptions(quick=True)
    report = reproduce(paper, model_folder, options=options, folder=tmp_path)
    reasons = entry_reasons(report)
    for key in DEEPER_LAYERS.get(paper, set()):
        assert reasons.pop(key) == "the model has 2 layers"
    for key, reason in reasons.items():
        assert "needs " in reason, key
        assert "https://" in reason, key
