"""Entries of the papers on planted heads, and on models that are known not to have changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_data

from headwise.experiments.reproduction import (
    Evidence,
    ReproductionContext,
    ReproductionOptions,
    ReproductionReport,
    reproduce,
    shared,
)
from headwise.experiments.reproduction.clark2019.corpora import treebank
from headwise.experiments.reproduction.shared import FEW_ROWS, evidence_on_learned
from headwise.models import HeadModel
from headwise.testing import planted_annotations, random_model
from headwise.text.demo import demo_corpus

pytestmark = pytest.mark.usefixtures("only_svg")  # all formats: test_run.py


def entry(report: ReproductionReport, key: str) -> dict:
    return next(facts for facts in report.facts["entries"] if facts["key"] == key)


def test_a_planted_head_that_follows_trees_is_the_best_of_table_1(tmp_path: Path) -> None:
    chosen = [
        e
        for e in demo_corpus(400)
        if e.heads is not None and not e.has_pair and len(e.all_words) <= 20
    ][:110]
    planted, renamed = planted_annotations(chosen, [["uniform", "previous"], ["self", "tree"]])
    (tmp_path / "en_ewt-ud-dev.conllu").write_text(tiny_data.conllu(renamed))
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    report = reproduce(
        "clark2019", model, options=ReproductionOptions(data=tmp_path, only=("table1",))
    )
    rows = {row["key"]: row for row in entry(report, "table1")["rows"]}
    for key in ("all", "det", "dobj", "nsubj"):
        assert rows[key]["ours"] == 100, key
        assert rows[key]["note"].startswith("L1H1, dependent to head"), key
    assert rows["dobj"]["note"].endswith("as obj")
    assert rows["dobj-baseline"]["ours"] < 100
    assert rows["prep"]["ours"] is None
    claims = {claim["key"]: claim for claim in report.facts["claims"]}
    assert claims["no-single"]["verdict"] == "does not hold"
    assert claims["specialise"]["verdict"] == "as printed"
    # UD has no prep, so that not all relations of the sentence can be tried.
    assert claims["dependent"]["verdict"] == "in a weaker form"
    assert claims["dependent"]["why"].startswith("it is so for ")
    assert any("UD English EWT, dev" in text for text in entry(report, "table1")["differs"])


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, tokenizer = random_model(layers=2, heads=2, d_head=8)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def context(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., ReproductionContext]]:
    """Makes what entries work with, on some data."""
    with HeadModel.open(model_folder) as model:

        def make(**options: Any) -> ReproductionContext:
            return ReproductionContext(model, None, ReproductionOptions(**options), None, tmp_path)  # type: ignore[arg-type]

        yield make


def test_the_built_in_trees_say_that_they_stand_in_and_whose_relations_they_have(
    context: Callable[..., ReproductionContext],
) -> None:
    _, seen, differs = treebank(context(), 5)
    assert seen["trees"].endswith("5 examples of 7 sentences")
    assert [text.split(":")[0] for text in differs] == [
        "The Penn Treebank is not free",
        "UD relations in place of Stanford's",
    ]


def test_a_task_read_for_its_dev_part_is_read_again_to_train(
    context: Callable[..., ReproductionContext], glue: Path
) -> None:
    data = glue.parent / "both"
    (data / "a").mkdir(parents=True)
    shutil.copytree(glue / "RTE", data / "b" / "RTE")
    shutil.copytree(glue / "RTE", data / "a" / "RTE")
    (data / "a" / "RTE" / "train.tsv").unlink()
    task_context = context(data=data)
    assert not task_context.task("RTE", train=False).train
    assert len(task_context.task("RTE").train) == 12


def test_a_quick_run_judges_models_only_where_all_were_given(
    context: Callable[..., ReproductionContext], model_folder: Path
) -> None:
    quick_context = context(quick=True, finetuned={"rte": model_folder})

    def undecided(
        work: ReproductionContext, tasks: list[str], not_learned: dict[str, str] | None = None
    ) -> str:
        evidence = evidence_on_learned(
            work,
            ("one",),
            dict.fromkeys(tasks, 0.5),
            not_learned or {},
            lambda learned: {"one": Evidence(", ".join(learned))},
        )["one"]
        return evidence.undecided or f"judged: {evidence.ours}"

    assert undecided(quick_context, ["RTE"]) == "judged: RTE"
    assert undecided(quick_context, ["RTE", "MRPC"]) == FEW_ROWS
    assert undecided(context(), ["RTE", "MRPC"]) == "judged: RTE, MRPC"
    # What was not learned is not judged.
    reason = {"MRPC": "nothing learned: it predicts one class"}
    assert undecided(context(), ["RTE", "MRPC"], reason) == "judged: RTE"
    assert undecided(context(), ["MRPC"], reason) == f"MRPC: {reason['MRPC']}"


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RTE, a few rows of it."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "RTE").mkdir()
    labels, texts = (
        ("entailment", "not_entailment"),
        ("the cat saw a dog .", "a dog sleeps .", "the cat runs ."),
    )
    for part, count in (("train", 12), ("dev", 6)):
        rows = [f"{i}\t{texts[i % 3]}\t{texts[(i + 1) % 3]}\t{labels[i % 2]}" for i in range(count)]
        (folder / "RTE" / f"{part}.tsv").write_text(
            "\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n"
        )
    return folder


def test_a_model_that_did_not_change_is_wholly_alike(model_folder: Path, glue: Path) -> None:
    options = ReproductionOptions(data=glue, only=("fig5",), finetuned={"rte": model_folder})
    report = reproduce("kovaleva2019", model_folder, options=options)
    (table,) = entry(report, "fig5")["tables"]
    assert table["rows"][0][0] == "RTE"
    assert table["rows"][0][1:] == pytest.approx([1, 1])
    assert "fine-tuned model given (tiny)" in entry(report, "fig5")["seen"]["RTE"]
    assert any(
        text.startswith("QQP: not run, needs GLUE's QQP")
        for text in entry(report, "fig5")["differs"]
    )


def test_starts_of_fine_tuning_are_trained_and_kept(
    model_folder: Path, glue: Path, tmp_path: Path
) -> None:
    options = ReproductionOptions(data=glue, only=("table1",), quick=True)
    report = reproduce("kovaleva2019", model_folder, options=options, folder=tmp_path)
    rows = {row["key"]: row["ours"] for row in entry(report, "table1")["rows"]}
    (results,) = (tmp_path / "finetuned").glob("RTE-*/results.json")
    records = {
        record["start"]: record["metrics"] for record in json.loads(results.read_text())["records"]
    }
    assert {start: rows[f"RTE-accuracy-{start}"] for start in ("none", "random", "pretrained")} == {
        start: pytest.approx(100 * metrics["accuracy"]) for start, metrics in records.items()
    }
    assert rows["MRPC-f1-none"] is None
    # A quick run judges none, least of all where nothing was learned.
    assert {claim["verdict"] for claim in report.facts["claims"]} == {"undecided"}
    notes = {row["key"]: row["note"] for row in entry(report, "table1")["rows"]}
    assert "nothing learned" in notes["RTE-accuracy-random"]
    written = results.stat().st_mtime_ns
    reproduce("kovaleva2019", model_folder, options=options, folder=tmp_path)
    assert results.stat().st_mtime_ns == written


def test_a_model_whose_special_tokens_are_alike_is_named(
    model_folder: Path, glue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the note says is tested with the statistic; here, that reports have it."""
    monkeypatch.setattr(shared, "special_token_note", lambda surface: "Their keys are the same.")
    options = ReproductionOptions(
        data=glue, only=("fig6",), quick=True, finetuned={"rte": model_folder}
    )
    report = reproduce("kovaleva2019", model_folder, options=options)
    assert "tiny: Their keys are the same." in entry(report, "fig6")["differs"]
