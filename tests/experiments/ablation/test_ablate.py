"""Disabling heads: shared prefixes, scores, tests, sets and first-order importance, against slow
independent computations."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import stats as scipy_stats
from transformers import AlbertConfig, AlbertForSequenceClassification

from headwise.core.errors import HeadwiseError, ModelError, OutputError, ParameterError
from headwise.core.store import delete_checkpoints
from headwise.experiments.ablation import (
    AblationOptions,
    ScoredClassifier,
    ScoredLanguageModel,
    ablate_scored_model,
    evaluate,
    head_importance,
    pick_heads,
    single_heads,
    whole_layers,
)
from headwise.experiments.ablation.run import ConditionRunner
from headwise.experiments.finetuning import FinetuneOptions, finetune
from headwise.experiments.finetuning.classifier import OwnClassifier
from headwise.models import HeadModel, loading
from headwise.models.prefix import Prefix
from headwise.stats.paired import paired_differences
from headwise.testing.toy import toy_examples, toy_folder, toy_task
from headwise.text import Corpus

POOLINGS: dict[str, dict[str, Any]] = {
    "last_layer": {},
    "best_layer": {"pooling": "best_layer", "layer": 1},
    "top_heads": {"pooling": "top_heads", "heads": ["L0H1", "L2H3"]},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A toy model fine-tuned with each pooling."""
    where = tmp_path_factory.mktemp("trained")
    folder = toy_folder(where / "bert")
    found = {}
    for pooling, extra in POOLINGS.items():
        [record] = finetune(
            folder,
            toy_task(),
            where / "trained",
            options=FinetuneOptions(
                seeds=1,
                epochs=3,
                batch_size=16,
                learning_rate=3e-3,
                recipe="jo",
                device="cpu",
                **extra,
            ),
        )
        found[pooling] = where / "trained" / record.folder / "model"
    return found


def subject_of(path: Path, count: int = 64, **options: Any) -> ScoredClassifier:
    return ScoredClassifier.open(path, toy_task(count), device="cpu", batch_tokens=200, **options)


# --- running --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["uniform", "zero", "mean"])
@pytest.mark.parametrize("pooling", list(POOLINGS))
def test_sharing_the_prefix_changes_no_number(
    trained: dict[str, Path], pooling: str, how: str
) -> None:
    subject = subject_of(trained[pooling], 32)
    assert len(subject.batches) > 1
    conditions = [*single_heads(3, 4), *whole_layers(3, 4)]
    shared, whole = (evaluate(subject, conditions, how, share=share) for share in (True, False))
    assert shared.shared
    assert not whole.shared
    assert np.array_equal(shared.values, whole.values)
    assert np.array_equal(shared.baseline, whole.baseline)
    runner = ConditionRunner(subject, conditions, how)
    batch = subject.batches[-1]
    with torch.no_grad():
        prefix, _ = runner.run_intact(batch)
        for condition in conditions:
            plan = runner.plan(condition, batch)
            a, b = (
                runner.output(batch, plan, prefix, condition.first_layer),
                runner.output(batch, plan),
            )
            assert (a - b).abs().max() <= 1e-6


def test_layers_below_are_really_not_run(trained: dict[str, Path]) -> None:
    subject = subject_of(trained["last_layer"])
    conditions = single_heads(3, 4)
    runs = {0: 0, 1: 0, 2: 0}
    for layer, module in enumerate(subject.model.module.bert.encoder.layer):
        module.attention.register_forward_hook(
            lambda *_, layer=layer: runs.__setitem__(layer, runs[layer] + 1)
        )
    evaluate(subject, conditions, "zero")
    once = len(subject.batches)
    check = 1 + 3  # the first batch is run once more to be recorded, and whole for three depths
    assert runs[0] == once * (1 + 4) + check + 1
    assert runs[2] == once * (1 + 12) + check + 3


def test_a_zeroed_head_is_a_head_whose_part_of_the_output_projection_is_zero(
    trained: dict[str, Path],
) -> None:
    subject = subject_of(trained["last_layer"])
    conditions = single_heads(3, 4)
    found = evaluate(subject, conditions, "zero")
    fresh = subject_of(trained["last_layer"])
    for number, condition in enumerate(conditions):
        [(layer, head)] = condition.heads
        weight = fresh.model.module.bert.encoder.layer[layer].attention.output.dense.weight
        before = weight.detach().clone()
        with torch.no_grad():
            weight[:, head * 8 : head * 8 + 8] = 0
            assert np.array_equal(evaluate(fresh, []).baseline, found.values[number]), (
                condition.name
            )
            weight.copy_(before)


def test_layers_that_share_one_module_are_told_apart() -> None:
    from headwise.testing.models import random_model
    from headwise.testing.toy import WORDS

    _, tokenizer = random_model(words=WORDS)
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=len(tokenizer),
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.3,
    )
    subject = ScoredClassifier(
        OwnClassifier(AlbertForSequenceClassification(config).eval(), tokenizer),
        tokenizer,
        toy_task(24),
        batch_tokens=200,
    )
    shared, whole = (
        evaluate(subject, single_heads(4, 4), "zero", share=share) for share in (True, False)
    )
    assert shared.shared
    assert np.array_equal(shared.values, whole.values)
    logits = [subject.score(row)["accuracy"] for row in whole.values]
    assert len(set(logits)) > 1


def test_a_model_whose_layers_pass_on_more_is_run_whole_and_said(trained: dict[str, Path]) -> None:
    subject = subject_of(trained["last_layer"])
    memory: dict[str, torch.Tensor] = {}
    layers = subject.model.module.bert.encoder.layer
    layers[0].attention.register_forward_hook(
        lambda m, a, output: memory.__setitem__("seen", output[0])
    )  # a side path around the layers' outputs

    def add(module: Any, args: Any, output: Any) -> Any:
        kept = memory.pop("seen", None)
        return (
            output
            if kept is None
            else (output[0] + kept, *output[1:])
            if isinstance(output, tuple)
            else output + kept
        )

    layers[2].register_forward_hook(add)
    found = evaluate(subject, single_heads(3, 4), "zero")
    assert not found.shared
    assert "whole run" in found.note


@pytest.mark.parametrize("causal", [False, True])
def test_language_models_are_scored_by_their_loss(tmp_path: Path, causal: bool) -> None:
    model = HeadModel.open(toy_folder(tmp_path / "lm", causal=causal))
    subject = ScoredLanguageModel(model, Corpus.from_examples(toy_examples(30)), batch_tokens=120)
    shared, whole = (
        evaluate(subject, single_heads(3, 4), "zero", share=share) for share in (True, False)
    )
    assert shared.shared
    assert np.abs(shared.values - whole.values).max() <= 1e-6
    if causal:  # the mean over next tokens, one text at a time
        for i, example in enumerate(toy_examples(30)):
            batch = model.batch(example)
            logits = model.forward(batch, logits=True).logits[0]
            expected = torch.nn.functional.cross_entropy(logits[:-1], batch.ids[0, 1:]).item()
            assert shared.baseline[i] == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def undisturbed(trained: dict[str, Path]) -> xr.Dataset:
    return ablate_scored_model(subject_of(trained["last_layer"]))


@pytest.mark.parametrize("phase", ["batches", "importance"])
def test_a_killed_run_goes_on_to_the_same_bytes(
    trained: dict[str, Path], undisturbed: xr.Dataset, tmp_path: Path, phase: str
) -> None:
    class Killed(Exception):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if (what, done) == (phase, 2):
            raise Killed

    runs: list[tuple[str, int]] = []

    def watch(what: str, done: int, total: int) -> None:
        runs.append((what, done))

    with pytest.raises(Killed):
        ablate_scored_model(subject_of(trained["last_layer"]), folder=tmp_path / "run", report=kill)
    kept = set((tmp_path / "run").glob("*.checkpoint"))
    assert len([path for path in kept if path.name.startswith(phase.removesuffix("es")[:5])]) == 2
    stamps = {path: path.stat().st_mtime_ns for path in kept}
    resumed = ablate_scored_model(
        subject_of(trained["last_layer"]), folder=tmp_path / "run", report=watch
    )
    whole = undisturbed
    xr.testing.assert_identical(resumed, whole)
    assert all(
        np.array_equal(resumed[n].values.tobytes(), whole[n].values.tobytes())
        for n in whole.data_vars
    )
    assert all(
        path.stat().st_mtime_ns == stamp for path, stamp in stamps.items()
    )  # what was done is not done again
    with pytest.raises(OutputError, match="unfinished run that differs in ablation"):
        ablate_scored_model(
            subject_of(trained["last_layer"]), AblationOptions(how="zero"), folder=tmp_path / "run"
        )
    delete_checkpoints(
        tmp_path / "run"
    )  # pieces stay until the caller has the result safe: only then they go
    assert not (tmp_path / "run").exists()


def test_layers_that_are_skipped_are_run_for_every_other_thread(trained: dict[str, Path]) -> None:
    subject = subject_of(trained["last_layer"])
    model, batch = subject.model, subject.batches[0]
    wanted = model.forward(batch)[0]
    runner = ConditionRunner(subject, single_heads(model.layers, model.heads), "zero")
    with torch.no_grad(), ThreadPoolExecutor(1) as other:
        (prefix, _), idle = runner.run_intact(subject.batches[-1]), Prefix(model)
        with prefix.skipping(model.layers, subject.session(batch)), idle.recording():
            found = other.submit(model.forward, batch).result()[0]
        assert not idle.outputs  # nor is recorded what another thread runs
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_nothing_of_a_model_or_of_torch_is_left_changed(
    trained: dict[str, Path], tmp_path: Path
) -> None:
    model = HeadModel.open(toy_folder(tmp_path / "lm"))
    model.module.train()
    for parameter in model.module.parameters():
        parameter.requires_grad_(False)
    limit, threads, random = (
        model.encoder.max_length,
        torch.get_num_threads(),
        torch.get_rng_state(),
    )
    ablate_scored_model(
        ScoredLanguageModel(model, Corpus.from_examples(toy_examples(6)), max_length=5)
    )
    assert (model.encoder.max_length, model.encoder.overlong) == (limit, "truncate")
    assert all(module.training for module in model.module.modules())
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), random)


def test_the_seed_draws_the_resamples_and_the_masked_tokens(tmp_path: Path) -> None:
    def ablate_with_seed(seed: int) -> xr.Dataset:
        subject = ScoredLanguageModel(model, Corpus.from_examples(toy_examples(20)), seed=seed)
        return ablate_scored_model(
            subject, AblationOptions(heads="L0H0,L1H1", layers=False, importance=False, seed=seed)
        )

    model = HeadModel.open(toy_folder(tmp_path / "lm"))
    first, again, other = ablate_with_seed(0), ablate_with_seed(0), ablate_with_seed(1)
    xr.testing.assert_identical(first, again)
    assert float(first.difference_low[0, 0]) != float(other.difference_low[0, 0])
    assert first.attrs["baseline"] != other.attrs["baseline"]


# --- results --------------------------------------------------------------------------------------


def test_the_dataset_has_scores_tests_and_the_random_head(trained: dict[str, Path]) -> None:
    subject = subject_of(trained["last_layer"])
    found = ablate_scored_model(
        subject, AblationOptions(how="zero", sets={"two": [(0, 1), (2, 3)], "layer one": "L1"})
    )
    raw = evaluate(subject, single_heads(3, 4), "zero")
    truth = subject.truth
    assert found.attrs["baseline"] == pytest.approx(np.mean(raw.baseline == truth))
    for layer in range(3):
        for head in range(4):
            said = raw.values[4 * layer + head]
            score = np.mean(said == truth)
            assert float(found.score[layer, head]) == pytest.approx(score)
            assert float(found.difference[layer, head]) == pytest.approx(
                score - found.attrs["baseline"]
            )
            right, was = said == truth, raw.baseline == truth
            only, before = int((right & ~was).sum()), int((~right & was).sum())
            p = scipy_stats.binomtest(only, only + before).pvalue if only + before else 1.0
            assert float(found.p_value[layer, head]) == pytest.approx(p)
            assert (
                float(found.difference_low[layer, head])
                <= float(found.difference[layer, head])
                <= float(found.difference_high[layer, head])
            )
    assert found.attrs["mean_difference"] == pytest.approx(float(found.difference.mean()))
    assert found.attrs["improving"] == int((found.difference > 0).sum())
    assert found.layer_score.shape == (3,)
    assert float(found.set_score.sel(set="layer one")) == pytest.approx(float(found.layer_score[1]))
    assert str(found.set_heads.sel(set="two").values) == "L0H1,L2H3"
    assert (found.p_adjusted >= found.p_value).all()


def test_heads_that_nothing_reads_do_no_harm(trained: dict[str, Path]) -> None:
    found = ablate_scored_model(subject_of(trained["top_heads"]), AblationOptions(how="zero"))
    unread = [h for h in range(4) if h != 3]
    assert (found.difference.values[2, unread] == 0).all()  # in the last layer only L2H3 is read
    assert (found.importance.values[2, unread] == 0).all()
    assert (found.p_value.values[2, unread] == 1).all()


def test_roles_are_correlated_with_the_harm(trained: dict[str, Path]) -> None:
    subject = subject_of(trained["last_layer"])
    plain = ablate_scored_model(subject, AblationOptions(how="zero", importance=False))
    bias = np.stack([-plain.difference.values, np.random.default_rng(0).normal(size=(3, 4))], -1)
    atlas = {
        "roles": xr.Dataset(
            {"bias": (("layer", "head", "role"), bias)}, coords={"role": ["harm", "noise"]}
        )
    }
    found = ablate_scored_model(subject, AblationOptions(how="zero", importance=False), atlas=atlas)
    assert float(found.role_correlation.sel(role="harm")) == pytest.approx(1.0)
    expected = scipy_stats.spearmanr(
        bias[..., 1].ravel(), -plain.difference.values.ravel()
    ).statistic
    assert float(found.role_correlation.sel(role="noise")) == pytest.approx(expected)
    raw = found.role_correlation_p.values
    np.testing.assert_allclose(
        found.role_correlation_p_adjusted.values,
        np.minimum(1, [2 * raw.min(), max(raw.max(), 2 * raw.min())]),
    )


def test_a_correlation_that_is_not_defined_is_left_out(trained: dict[str, Path]) -> None:
    subject = subject_of(trained["top_heads"])
    everything = ablate_scored_model(subject, AblationOptions(how="zero", layers=False))
    assert {"importance_pearson", "importance_spearman"} <= set(everything.attrs)
    alike = [
        (int(a), int(b))
        for a, b in zip(*np.nonzero(everything.difference.values == 0), strict=True)
    ]
    assert len(alike) > 3  # a correlation over four heads that all do no harm
    found = ablate_scored_model(subject, AblationOptions(how="zero", heads=alike, layers=False))
    assert found.attrs["heads_disabled"] == len(alike)
    assert not [name for name in found.attrs if name.startswith("importance_")]


@pytest.mark.parametrize("pooling", list(POOLINGS))
def test_importance_is_the_slope_of_the_loss_in_a_gate_on_the_head(
    trained: dict[str, Path], pooling: str
) -> None:
    """Each head's output is scaled by a gate in float64; the slope is taken by finite differences,
    example by example."""
    from headwise.models.interventions import Patch

    subject = subject_of(trained[pooling])
    subject.classifier.double()
    found = head_importance(subject)
    runner = ConditionRunner(subject, [], "zero")
    step = 1e-4
    for layer, head in ((0, 1), (1, 2), (2, 3)):
        total = 0.0
        for batch in subject.batches:
            with torch.no_grad():
                outputs = subject.model.trace(batch, {"outputs"}).outputs[:, layer, head]
                losses = [
                    subject.losses(
                        runner.output(batch, {layer: {head: Patch(output=outputs * gate)}}), batch
                    )
                    for gate in (1 + step, 1 - step)
                ]
            total += float(((losses[0] - losses[1]) / (2 * step)).abs().sum())
        assert found["mean"][layer, head] == pytest.approx(
            total / subject.examples, rel=1e-2, abs=2e-4
        )


# --- significance ---------------------------------------------------------------------------------


def test_a_condition_that_changes_nothing_has_p_1_and_a_loss_is_tested_in_pairs() -> None:
    random = np.random.default_rng(0)
    base = random.normal(size=50)
    worse = base + 1 + 0.1 * random.normal(size=50)
    found = paired_differences("loss", base, np.stack([base, worse]), None)
    assert found.p_value[0] == 1.0
    assert found.p_value[1] == pytest.approx(scipy_stats.ttest_rel(worse, base).pvalue)
    assert found.low[1] < found.difference[1] < found.high[1]
    same = paired_differences("pearson", base, np.stack([base, worse]), random.normal(size=50))
    assert same.p_value[0] == 1.0


# --- sets -----------------------------------------------------------------------------------------


def atlas_of() -> dict[str, xr.Dataset]:
    has = np.zeros((2, 3, 2), dtype=bool)
    has[0, 1, 1] = has[1, 2, 1] = True
    score = np.array([[0.1, 0.5, np.nan], [0.4, 0.2, 0.3]])
    return {
        "roles": xr.Dataset(
            {"has_role": (("layer", "head", "role"), has)}, coords={"role": ["local", "delimiter"]}
        ),
        "frames": xr.Dataset({"score": (("layer", "head"), score)}),
        "ablation": xr.Dataset(
            {"difference": (("layer", "head"), score)}, attrs={"higher_better": 1}
        ),
        "probing": xr.Dataset(
            {"accuracy": (("task", "layer", "head"), np.stack([score, -score]))},
            coords={"task": ["A", "B"]},
        ),
    }


@pytest.mark.parametrize(
    ("rule", "heads"),
    [
        ("L1H2,L0H0", [(0, 0), (1, 2)]),
        ("L1", [(1, 0), (1, 1), (1, 2)]),
        ("layer:0", [(0, 0), (0, 1), (0, 2)]),
        ("roles:delimiter", [(0, 1), (1, 2)]),
        ("frames:top2", [(0, 1), (1, 0)]),
        ("frames:bottom1", [(0, 0)]),
        ("frames.score:bottom1/layer", [(0, 0), (1, 1)]),
        ("probing.accuracy=B:top1", [(0, 0)]),
        ("ablation.harm:bottom1", [(0, 1)]),  # the score rises most without it
    ],
)
def test_rules_pick_heads(rule: str, heads: list[tuple[int, int]]) -> None:
    assert pick_heads(rule, 2, 3, atlas_of()) == heads


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("L2H0", "no head L2H0"),
        ("L5", "no layer 5"),
        ("best", "names no heads"),
        ("roles:nsubj", "no role 'nsubj'"),
        ("roles:local", "No head has the role"),
        ("frames:top6", "from 1 to 5"),
        (
            "probing.acuracy:top1",
            r"no variable 'probing.acuracy'.*Did you mean 'probing.accuracy'\?",
        ),
        ("coreference:top1", "has no 'coreference'"),
        ("probing:top1", "several values a head by task"),
    ],
)
def test_rules_that_pick_nothing_are_told(rule: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        pick_heads(rule, 2, 3, atlas_of())


def test_harm_is_a_rise_of_a_loss() -> None:
    atlas = atlas_of()
    atlas["ablation"].attrs["higher_better"] = 0
    assert pick_heads("ablation.harm:bottom1", 2, 3, atlas) == [(0, 0)]
    assert pick_heads("ablation.harm:top1", 2, 3, atlas) == [(0, 1)]


def test_results_of_another_model_are_refused() -> None:
    with pytest.raises(ParameterError, match="2 layers of 3 heads; this one has 12 of 12"):
        pick_heads("frames:top1", 12, 12, atlas_of())
    with pytest.raises(ParameterError, match="pass it as `atlas`"):
        pick_heads("frames:top1", 12, 12)


# --- what is refused ------------------------------------------------------------------------------


def test_bad_input_is_told(trained: dict[str, Path], tmp_path: Path) -> None:
    regression = toy_task(regression=True)
    with pytest.raises(ModelError, match=r"gives 2 outputs, but toy has 1.*another task"):
        ScoredClassifier.open(trained["last_layer"], regression)
    with pytest.raises(ModelError, match="no trained classifier"):
        ScoredClassifier.open(toy_folder(tmp_path / "plain"), toy_task())
    with pytest.raises(ModelError, match="no language-modelling head"):
        ScoredLanguageModel(
            HeadModel.open(trained["last_layer"]), Corpus.from_examples(toy_examples(4))
        )
    subject = subject_of(trained["last_layer"])
    for given, words in (
        ({"how": "noise"}, "`how` must be one of"),
        ({"heads": [(9, 0)]}, "no head L9H0"),
        ({"correction": "x"}, "`correction` must be"),
        ({"sets": {"a": "b"}}, "names no heads"),
    ):
        with pytest.raises(HeadwiseError, match=words):
            ablate_scored_model(subject, AblationOptions(**given))  # type: ignore[arg-type]


@pytest.mark.real
def test_wiki_bert_as_a_language_model(wiki_bert: Path) -> None:
    model = HeadModel.open(wiki_bert, device="cpu")
    subject = ScoredLanguageModel(
        model,
        Corpus.from_texts(["The old man sat by the river and watched the boats go by."] * 2),
        max_length=24,
    )
    conditions = [c for c in single_heads(12, 12) if c.name in ("L0H0", "L6H1", "L11H11")]
    shared, whole = (
        evaluate(subject, conditions, "uniform", share=share) for share in (True, False)
    )
    assert shared.shared
    assert np.abs(shared.values - whole.values).max() <= 1e-6


def test_the_tokenizer_is_the_models(trained: dict[str, Path]) -> None:
    assert (
        len(loading.load_tokenizer(trained["last_layer"]))
        == subject_of(trained["last_layer"]).model.module.config.vocab_size
    )
