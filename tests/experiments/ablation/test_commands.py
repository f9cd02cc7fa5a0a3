"""The commands finetune, ablate, prune and compare from end to end on tiny models, their figures,
and their one-sentence errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from headwise.atlas import Atlas
from headwise.cli import app
from headwise.core.errors import HeadwiseError
from headwise.experiments.ablation import GateOptions, GateResult, learn_gates
from headwise.experiments.ablation.scored_models import ScoredModel
from headwise.models import HeadModel
from headwise.page import sections
from headwise.plots import figures_for
from headwise.testing.toy import toy_examples, toy_folder

pytestmark = pytest.mark.usefixtures("only_svg")


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)
    if isinstance(result.exception, HeadwiseError):
        raise result.exception
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and a small RTE-like task, fine-tuned by the command line."""
    where = tmp_path_factory.mktemp("commands")
    toy_folder(where / "bert")
    for part, seed in (("train", 1), ("dev", 2)):
        rows = ["sentence1\tsentence2\tlabel"]
        rows += [
            f"{e.text}\t{e.pair}\t{'not_' * (e.label == '0')}entailment"
            for e in toy_examples(32, seed, pairs=True)
        ]
        (where / f"{part}.tsv").write_text("\n".join(rows) + "\n")
    files = ("--task", "RTE", "--train", where / "train.tsv", "--dev", where / "dev.tsv")
    shown = run(
        "finetune",
        where / "bert",
        *files,
        "--seeds",
        2,
        "--epochs",
        2,
        "--lr",
        "0.003",
        "--batch-size",
        16,
        "--device",
        "cpu",
        "--out",
        where / "out",
        "--figures",
        where / "scores",
    )
    assert (where / "scores" / "finetune-scores.svg").is_file()
    assert "RTE" in shown
    assert "accuracy" in shown
    return where


MODEL = "out/rte-last-layer-pretrained-kovaleva/seed-0/model"


def test_finetune_writes_one_results_file_and_ordinary_models(place: Path) -> None:
    content = json.loads((place / "out" / "results.json").read_text())
    assert [record["seed"] for record in content["records"]] == [0, 1]
    assert content["summary"][0]["metrics"]["accuracy"]["n"] == 2
    assert HeadModel.open(place / MODEL).heads == 4


def test_ablate_writes_the_group_and_its_figures(place: Path) -> None:
    shown = run(
        "ablate", place / MODEL, "--task", "RTE", "--dev", place / "dev.tsv", "--how", "zero", "--set",
        "both=L0H1,L1H2", "--device", "cpu",
        "--out", place / "ablation.nc", "--figures", place / "figures",
    )  # fmt: skip
    assert "A random head" in shown
    found = Atlas.load(place / "ablation.nc")["ablation"]
    assert found["score"].dims == ("layer", "head")
    assert found["layer_score"].dims == ("layer",)
    assert 0 <= found.attrs["baseline"] <= 1
    assert {path.stem for path in (place / "figures").glob("ablation-*.svg")} == {
        "ablation-heads",
        "ablation-layers",
        "ablation-importance",
    }
    part = place / "two.nc"
    task = ("--task", "RTE", "--dev", place / "dev.tsv", "--how", "zero", "--device", "cpu")
    words = ("ablate", place / MODEL, *task, "--no-layers", "--no-importance")
    shown = run(
        *words, "--heads", "ablation.harm:bottom2", "--atlas", place / "ablation.nc", "--out", part
    )
    assert "Mean over the 2 heads disabled" in shown  # two heads are no random head
    values, chosen = found["difference"].values, Atlas.load(part)["ablation"]["difference"].values
    assert np.isfinite(chosen).sum() == 2
    assert np.nanmin(chosen) >= np.sort(values.ravel())[-2] - 1e-9
    with pytest.raises(HeadwiseError, match="Two files of --atlas hold 'ablation'"):
        run(*words, "--atlas", place / "ablation.nc", "--atlas", part, "--out", place / "three.nc")
    with pytest.raises(HeadwiseError, match="overwrite=True"):
        run(
            "ablate",
            place / MODEL,
            "--task",
            "RTE",
            "--dev",
            place / "dev.tsv",
            "--out",
            place / "ablation.nc",
        )


def test_prune_takes_heads_from_an_ablation(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def learned(subject: ScoredModel, options: GateOptions, **more: Any) -> GateResult:
        return learn_gates(
            subject, replace(options, steps=30), **more
        )  # what is learned: test_gates.py

    monkeypatch.setattr("headwise.experiments.ablation.pruning.learn_gates", learned)
    run(
        "ablate",
        place / MODEL,
        "--task",
        "RTE",
        "--dev",
        place / "dev.tsv",
        "--no-layers",
        "--device",
        "cpu",
        "--out",
        place / "for-pruning.nc",
    )
    shown = run(
        "prune", place / MODEL, "--atlas", place / "for-pruning.nc", "--heads", "ablation.importance:bottom3", "--zero",
        "--task", "RTE", "--dev", place / "dev.tsv", "--device", "cpu", "--out", place / "pruned",
    )  # fmt: skip
    assert "accuracy" in shown
    assert "seconds" in shown
    assert "Outputs differ from those with the heads disabled by" in shown
    assert HeadModel.open(place / "pruned").heads == 4
    words = ("prune", place / MODEL, "--device", "cpu", "--out", place / "smaller")
    with pytest.raises(
        HeadwiseError, match=r"BertForSequenceClassification .*zero these heads instead"
    ):
        run(*words, "--heads", "L0H0,L1H0,L2H0", "--remove")
    with pytest.raises(HeadwiseError, match="gates are learned on data"):
        run(*words, "--heads", "gates:3")
    shown = run(*words, "--heads", "gates:2", "--task", "RTE", "--dev", place / "dev.tsv")
    assert "On the half that the gates did not see: accuracy" in shown
    assert "2 heads zeroed" in shown
    assert "Zeroed, at the same size: BertForSequenceClassification has heads" in shown


def test_compare_writes_groups_and_figures(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All figures are drawn for `--figures`; those of the page are the same: one of them stands for
    # all.
    monkeypatch.setattr(
        sections, "figures_for", lambda group: figures_for(group)[:1] if group == "change" else ()
    )
    shown = run(
        "compare", place / "bert", place / MODEL, "--names", "before,some/after", "--corpus", place / "dev.tsv",
        "--limit", 8, "--device", "cpu", "--probing", place / "dev.tsv", "--probing-limit", 12, "--out",
        place / "change.nc", "--figures", place / "figures",
    )  # fmt: skip
    assert "after" in shown
    found = Atlas.load(place / "change.nc")
    assert set(found) == {
        "change",
        "change_surface",
        "change_roles",
        "change_features",
        "change_probing",
        "change_words",
    }
    assert found["change"]["cosine"].dims == ("layer", "head")
    names = {path.stem for path in (place / "figures").glob("change*.svg")}
    assert {
        "change-cosine",
        "change_roles-thirds",
        "change_roles-heads-some-after",
        "change_surface-heads-some-after",
    } <= names
    assert {"change_probing-states-dev", "change_probing-heads-dev"} <= names
    assert int(found["change_probing"]["accuracy_n"].max()) <= 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("finetune", "--task", "MRPC"), "needs its files"),
        (("finetune", "--task", "MRPC,RTE", "--train", "a.tsv"), "belong to one task"),
        (("finetune", "nowhere/at/all", "--task", "RTE", "--dev", "a.tsv"), "no folder"),
        (
            ("ablate", "--task", "RTE", "--dev", "a.tsv", "--corpus", "b.txt", "--out", "x.nc"),
            "not both",
        ),
        (("prune", "--out", "x"), "No heads are named"),
    ],
)
def test_errors_are_one_sentence(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadwiseError, match=message) as error:
        run(*words)
    assert "\n" not in str(error.value)


def test_scores_are_drawn(place: Path) -> None:
    from headwise.experiments.finetuning.figures import score_figure

    content = json.loads((place / "out" / "results.json").read_text())
    figure = score_figure(content["summary"])
    assert figure.axes[0].get_xlabel() == "score on the dev part (× 100)"
    assert len(figure.axes[0].get_yticklabels()) == 1
