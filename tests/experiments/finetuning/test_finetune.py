"""Fine-tuning: poolings, starts, seeds, checkpoints, saved models, and what is refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from headwise.core.errors import HeadwiseError, InputError, OutputError, ParameterError
from headwise.core.interrupts import Interrupted, watching_signals
from headwise.experiments.finetuning import (
    RECIPES,
    ClassifierOptions,
    ResultsFile,
    finetune,
    make_classifier,
    open_classifier,
)
from headwise.experiments.finetuning.classifier import OwnClassifier
from headwise.experiments.finetuning.data import collate_rows, encode_rows, training_order
from headwise.experiments.finetuning.rank import rank_heads
from headwise.experiments.finetuning.train import predict
from headwise.models import HeadModel, loading
from headwise.models.pooling import HeadPooling
from headwise.run.job import no_progress
from headwise.testing.toy import toy_folder, toy_task
from headwise.text.tasks import read_task

QUICK: dict[str, Any] = {
    "seeds": 1,
    "epochs": 2,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "device": "cpu",
}


def tune(
    model: Path,
    task: Any,
    out: Path,
    *,
    overwrite: bool = False,
    report: Any = no_progress,
    **options: Any,
) -> Any:
    return finetune(model, task, out, **options, overwrite=overwrite, progress=report)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("toy") / "bert")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("toy") / "gpt2", causal=True)


def rows_of(folder: Path, task: Any) -> Any:
    return encode_rows(task.dev, task.targets(task.dev), loading.load_tokenizer(folder), 32)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_toy_task_is_learned_from_pretrained_weights(
    folder: Path, tmp_path: Path, pairs: bool
) -> None:
    [record] = tune(folder, toy_task(160, pairs=pairs), tmp_path, **{**QUICK, "epochs": 8})
    assert record.metrics["accuracy"] > 0.8
    assert record.history[-1]["loss"] < record.history[0]["loss"]


def test_a_regression_is_learned(folder: Path, tmp_path: Path) -> None:
    [record] = tune(folder, toy_task(160, regression=True), tmp_path, **{**QUICK, "epochs": 6})
    assert set(record.metrics) == {"pearson", "spearman"}
    assert record.metrics["pearson"] > 0.6


@pytest.mark.parametrize(
    ("pooling", "extra"),
    [("last_layer", {}), ("best_layer", {"layer": 1}), ("top_heads", {"heads": ["L0H1", "L2H3"]})],
)
@pytest.mark.parametrize("start", ["none", "random", "pretrained", "frozen"])
def test_every_pooling_and_start_ends_in_a_folder_that_gives_the_same_predictions(
    folder: Path, tmp_path: Path, pooling: str, extra: dict[str, Any], start: str
) -> None:
    task = toy_task(32)
    [record] = tune(
        folder, task, tmp_path, recipe="jo", pooling=pooling, start=start, **extra, **QUICK
    )
    saved = tmp_path / record.folder / "model"
    model, _ = open_classifier(saved)
    rows = rows_of(folder, task)
    lines = (tmp_path / record.folder / "predictions.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[2] for line in lines] == [
        task.classes[i] for i in predict(model, task, rows)
    ]
    assert record.metrics["accuracy"] == np.mean(
        [a == b for a, b in (line.split("\t")[1:] for line in lines)]
    )
    opened = HeadModel.open(saved)
    assert (opened.layers, opened.heads) == (3, 4)
    before, after = _encoder_weights(folder), _encoder_weights(saved)
    same = all(torch.equal(before[name], after[name]) for name in before)
    assert same == (start in ("none", "frozen"))
    assert len(record.history) == (0 if start == "none" else 2)


def _encoder_weights(folder: Path) -> dict[str, torch.Tensor]:
    module = HeadModel.open(folder).module.base_model
    return {
        name: value
        for name, value in module.named_parameters()
        if "encoder" in name or "embeddings" in name
    }


def test_the_random_start_draws_every_matrix_anew(folder: Path) -> None:
    task = toy_task(4)
    tokenizer = loading.load_tokenizer(folder)
    torch.manual_seed(3)
    random = make_classifier(folder, tokenizer, task, ClassifierOptions(start="random"))
    given = make_classifier(folder, tokenizer, task)
    for (name, drawn), (_, known) in zip(
        random.encoder.base_model.named_parameters(),
        given.encoder.base_model.named_parameters(),
        strict=True,
    ):
        if drawn.ndim == 2 and "pooler" not in name:
            assert not torch.allclose(drawn, known), name
            assert drawn.std().item() == pytest.approx(
                random.encoder.config.initializer_range, rel=0.2
            )


def test_last_layer_models_open_in_plain_transformers(folder: Path, tmp_path: Path) -> None:
    task = toy_task(16)
    [record] = tune(folder, task, tmp_path, **QUICK)
    saved = tmp_path / record.folder / "model"
    plain = AutoModelForSequenceClassification.from_pretrained(saved).eval()
    assert plain.config.id2label == {0: "0", 1: "1"}
    model, _ = open_classifier(saved)
    batch = collate_rows(rows_of(folder, task), range(6), model.pad_id, "cpu")
    inputs = {
        "input_ids": batch.ids,
        "attention_mask": batch.attention_mask.long(),
        "token_type_ids": batch.types,
    }
    with torch.no_grad():
        assert torch.allclose(
            plain(**inputs).logits, model(batch.ids, batch.types, batch.attention_mask), atol=1e-6
        )


def test_top_heads_are_what_head_pooling_gives(folder: Path) -> None:
    task, heads = toy_task(8), ["L0H1", "L2H3", "L1H0"]
    tokenizer = loading.load_tokenizer(folder)
    model = make_classifier(
        folder, tokenizer, task, ClassifierOptions(pooling="top_heads", heads=heads)
    ).eval()
    batch = collate_rows(rows_of(folder, task), range(8), model.pad_id, "cpu")
    features = {
        "input_ids": batch.ids,
        "attention_mask": batch.attention_mask.long(),
        "token_type_ids": batch.types,
    }
    with torch.no_grad():
        expected = HeadPooling(folder, heads)(features)["sentence_embedding"]
        assert torch.allclose(
            model.pooled(batch.ids, batch.types, batch.attention_mask), expected, atol=1e-6
        )


def test_a_layer_is_the_hidden_state_that_leaves_it(decoder: Path) -> None:
    task = toy_task(8)
    tokenizer = loading.load_tokenizer(decoder)
    model = make_classifier(
        decoder, tokenizer, task, ClassifierOptions(pooling="best_layer", layer=1)
    ).eval()
    batch = collate_rows(rows_of(decoder, task), range(8), model.pad_id, "cpu")
    with HeadModel.open(decoder) as opened:
        for i in range(8):
            length = int(batch.attention_mask[i].sum())
            trace = opened.trace(opened.batch(task.dev[i].text), {"hidden"})
            with torch.no_grad():
                pooled = model.pooled(batch.ids, batch.types, batch.attention_mask)
            assert torch.allclose(
                pooled[i], trace.hidden[0, 2, length - 1], atol=1e-5
            )  # E[2] leaves layer 1; the last real token of a decoder


def test_decoders_are_trained_too(decoder: Path, tmp_path: Path) -> None:
    [record] = tune(decoder, toy_task(160), tmp_path, **{**QUICK, "epochs": 8})
    assert record.metrics["accuracy"] > 0.8


def test_dropout_is_on_in_training_and_the_frozen_encoder_runs_without(folder: Path) -> None:
    options = ClassifierOptions(pooling="top_heads", heads=["L2H0"], start="frozen")
    model = make_classifier(folder, loading.load_tokenizer(folder), toy_task(4), options)
    model.training_mode(frozen=True)
    assert model.dropout.training  # type: ignore[union-attr]
    assert not model.encoder.training
    model.training_mode(frozen=False)
    assert model.encoder.training
    batch = collate_rows(rows_of(folder, toy_task(4)), range(4), model.pad_id, "cpu")
    first, second = (model.pooled(batch.ids, batch.types, batch.attention_mask) for _ in range(2))
    assert not torch.equal(first, second)  # attention dropout is in the vectors


# --- checkpoints ----------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize("recipe", ["kovaleva", "pande"])
def test_a_killed_training_goes_on_to_the_same_numbers(
    folder: Path, tmp_path: Path, recipe: str
) -> None:
    options = {**QUICK, "epochs": 3, "recipe": recipe}
    whole = tune(folder, toy_task(48), tmp_path / "whole", **options)

    def kill(what: str, done: int, total: int) -> None:
        if done == 7:  # in the third epoch of three steps each
            raise Killed

    with pytest.raises(Killed):
        tune(folder, toy_task(48), tmp_path / "killed", report=kill, **options)
    steps: list[int] = []
    resumed = tune(
        folder,
        toy_task(48),
        tmp_path / "killed",
        report=lambda what, done, total: steps.append(done),
        **options,
    )
    assert steps == [7, 8, 9]
    assert not list((tmp_path / "killed").rglob("*.checkpoint"))
    first, second = (_files(tmp_path / run) for run in ("whole", "killed"))
    assert first.keys() == second.keys()
    assert first == second
    assert resumed[0].metrics == whole[0].metrics


def _files(folder: Path) -> dict[str, bytes]:
    """Return all that a call wrote, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_kill_between_the_record_and_the_end_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(where: Path) -> None:
        raise Killed

    monkeypatch.setattr("headwise.experiments.finetuning.run.delete_checkpoints", kill)
    with pytest.raises(Killed):
        tune(folder, toy_task(16), tmp_path, **QUICK)
    monkeypatch.undo()
    assert list(tmp_path.rglob("*.checkpoint"))
    [record] = tune(folder, toy_task(16), tmp_path, **QUICK)
    assert record.seed == 0
    assert not list(tmp_path.rglob("*.checkpoint"))


@pytest.mark.parametrize("moment", ["ResultsFile.add", "delete_checkpoints"])
def test_an_interruption_after_a_training_says_that_the_call_resumes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The training is finished and its job closed; its record is not yet written, or just so."""

    def interrupt(*given: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(f"headwise.experiments.finetuning.run.{moment}", interrupt)
    with watching_signals(), pytest.raises(Interrupted, match="repeat the command to resume"):
        tune(folder, toy_task(16), tmp_path, **QUICK)
    assert list(tmp_path.rglob("*.checkpoint"))


def test_torchs_random_state_and_threads_are_left_as_found(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(11)
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    tune(folder, toy_task(16), tmp_path, pooling="top_heads", top=2, recipe="jo", **QUICK)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_num_threads() == threads


def test_what_is_finished_is_not_done_again_and_another_models_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    [first] = tune(folder, toy_task(16), tmp_path / "out", **QUICK)

    def never(what: str, done: int, total: int) -> None:
        raise AssertionError("trained again")

    [second] = tune(folder, toy_task(16), tmp_path / "out", report=never, **QUICK)
    assert first == second
    other = toy_folder(tmp_path / "other", seed=5)
    with pytest.raises(OutputError, match=r"differs in model.*another model"):
        tune(other, toy_task(16), tmp_path / "out", **QUICK)
    with pytest.raises(OutputError, match="differs in data"):
        tune(folder, toy_task(20), tmp_path / "out", **QUICK)
    [replaced] = tune(other, toy_task(16), tmp_path / "out", overwrite=True, **QUICK)
    assert ResultsFile(tmp_path / "out").records == [replaced]


def test_a_checkpoint_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    def kill(what: str, done: int, total: int) -> None:
        if done == total:
            raise Killed

    with pytest.raises(Killed):
        tune(folder, toy_task(16), tmp_path / "out", report=kill, **QUICK)
    other = toy_folder(tmp_path / "other", seed=5)
    with pytest.raises(OutputError, match="unfinished run that differs in model"):
        tune(other, toy_task(16), tmp_path / "out", **QUICK)
    [piece] = (tmp_path / "out").rglob("epoch.checkpoint")
    piece.write_bytes(
        piece.read_bytes()[:100]
    )  # a damaged checkpoint counts as not there: the training begins anew
    [record] = tune(folder, toy_task(16), tmp_path / "out", **QUICK)
    [whole] = tune(folder, toy_task(16), tmp_path / "whole", **QUICK)
    assert record.history == whole.history


def test_seeds_differ_and_repeat(folder: Path, tmp_path: Path) -> None:
    options = {**QUICK, "seeds": (4, 9)}
    first = tune(folder, toy_task(32), tmp_path / "a", **options)
    again = tune(folder, toy_task(32), tmp_path / "b", **options)
    assert [r.history for r in first] == [r.history for r in again]
    assert first[0].history != first[1].history
    content = json.loads((tmp_path / "a" / "results.json").read_text())
    scores = sorted(r.metrics["accuracy"] for r in first)
    [row] = content["summary"]
    assert row["seeds"] == [4, 9]
    assert row["metrics"]["accuracy"]["median"] == pytest.approx(np.mean(scores))
    assert (row["metrics"]["accuracy"]["low"], row["metrics"]["accuracy"]["high"]) == (
        scores[0],
        scores[1],
    )


def test_heads_are_ranked_on_the_training_part(folder: Path, tmp_path: Path) -> None:
    [record] = tune(
        folder, toy_task(60), tmp_path, pooling="top_heads", top=3, recipe="jo", **QUICK
    )
    with HeadModel.open(folder) as opened:
        ranking = rank_heads(opened, toy_task(60))
        assert rank_heads(opened, toy_task(60), seed=1).scores != ranking.scores
    assert record.detail["heads"] == ranking.heads[:3]
    assert ranking.scores == sorted(ranking.scores, reverse=True)
    assert len(ranking.heads) == 12
    [again] = tune(
        folder,
        toy_task(60),
        tmp_path,
        pooling="best_layer",
        recipe="jo",
        **{**QUICK, "start": "none"},
    )
    assert again.detail["layer"] == ranking.layer
    assert len(list(tmp_path.rglob("ranking.checkpoint"))) == 1
    with pytest.raises(ParameterError, match="from 1 to 12"):
        tune(folder, toy_task(60), tmp_path, pooling="top_heads", top=13, recipe="jo", **QUICK)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pooling": "middle"}, "`pooling` must be one of"),
        ({"start": "warm"}, "`start` must be one of"),
        ({"recipe": "clark"}, "no recipe 'clark'"),
        ({"seeds": 0}, "`seeds` must be"),
        ({"layer": 1}, "belongs to the pooling best_layer"),
        ({"pooling": "best_layer", "layer": 3}, "no layer 3"),
        ({"pooling": "top_heads", "heads": ["L0H4"]}, "no head L0H4"),
        ({"learning_rate": 0.0}, "`learning_rate` must be greater than 0"),
        ({"epochs": 0}, "`epochs` must be at least 1"),
    ],
)
def test_what_is_refused(folder: Path, tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(HeadwiseError, match=words):
        tune(folder, toy_task(8), tmp_path, **{**QUICK, **given})


def test_a_rate_that_breaks_the_model_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="NaN or infinite"):
        tune(
            folder,
            toy_task(32, regression=True),
            tmp_path,
            **{**QUICK, "learning_rate": 1e18, "epochs": 4},
        )


# --- parts ----------------------------------------------------------------------------------------


def test_batches_hold_every_row_once_and_neighbours_in_length(folder: Path) -> None:
    rows = rows_of(folder, toy_task(200))
    order = training_order(rows, 8, seed=1, epoch=0)
    assert sorted(i for batch in order for i in batch) == list(range(200))
    assert len(order) == 25
    assert order == training_order(rows, 8, seed=1, epoch=0)
    assert order != training_order(rows, 8, seed=1, epoch=1)
    spread = np.mean([np.ptp([len(rows.ids[i]) for i in batch]) for batch in order])
    assert spread < 1.5


def test_padding_changes_nothing(folder: Path) -> None:
    task = toy_task(12)
    model = make_classifier(folder, loading.load_tokenizer(folder), task).eval()
    rows = rows_of(folder, task)
    together = collate_rows(rows, range(12), model.pad_id, "cpu")
    with torch.no_grad():
        batch = model(together.ids, together.types, together.attention_mask)
        for i in range(12):
            alone = collate_rows(rows, [i], model.pad_id, "cpu")
            assert torch.allclose(
                batch[i], model(alone.ids, alone.types, alone.attention_mask)[0], atol=1e-5
            )


def test_segments_reach_every_model_that_tells_them_apart() -> None:
    sizes = {
        "vocab_size": 20,
        "d_model": 8,
        "n_layer": 1,
        "n_head": 2,
        "d_inner": 8,
    }  # XLNet names no number of types
    encoder = XLNetForSequenceClassification(XLNetConfig(**sizes, num_labels=2)).eval()
    torch.nn.init.normal_(encoder.transformer.layer[0].rel_attn.seg_embed)
    model = OwnClassifier(encoder, None)
    ids, real = torch.tensor([[5, 6, 7, 8]]), torch.ones(1, 4, dtype=torch.bool)
    with torch.no_grad():
        one, two = (
            model(ids, torch.tensor([types]), real) for types in ([0, 0, 0, 0], [0, 0, 1, 1])
        )
        expected = encoder(
            ids, attention_mask=real.long(), token_type_ids=torch.tensor([[0, 0, 1, 1]])
        ).logits
    assert torch.equal(two, expected)
    assert not torch.equal(one, two)


def test_recipes_warm_up_and_end_at_zero() -> None:
    for recipe in RECIPES.values():
        factors = [recipe.factor(step, 100) for step in range(100)]
        rising = recipe.warmup(100)
        assert rising == (33 if recipe.name == "pande" else 10)
        assert np.all(np.diff(factors[: rising + 1]) > 0)
        assert np.all(np.diff(factors[rising:]) < 0)
        assert factors[rising] == 1.0
        assert 0 < factors[-1] < 0.02
    assert RECIPES["pande"].warmup(60_000) == 10_000


@pytest.mark.real
def test_wiki_bert_is_trained_a_little(shared: Path, wiki_bert: Path, tmp_path: Path) -> None:
    task = read_task("RTE", data=shared / "data" / "glue", limit=8)
    options = {"seeds": 1, "epochs": 1, "batch_size": 8, "max_length": 32, "device": "cpu"}
    [record] = tune(wiki_bert, task, tmp_path, **options)
    assert 0 <= record.metrics["accuracy"] <= 1
    assert HeadModel.open(tmp_path / record.folder / "model").heads == 12
