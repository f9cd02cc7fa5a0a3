"""Probing: planted heads that know a word and heads that cannot, vectors, parts, resuming, and bad
input."""

from __future__ import annotations

import importlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import binomtest
from sklearn.metrics import f1_score, matthews_corrcoef
from statsmodels.stats.multitest import multipletests

import headwise
from headwise.analyses.contract import Shape, make_analysis
from headwise.analyses.probing import options as options_module
from headwise.analyses.probing.analysis import Probing, probe_tasks, task_vectors
from headwise.analyses.probing.fit import control_labels, fit_task, task_features
from headwise.analyses.probing.options import ProbingOptions
from headwise.analyses.probing.result import pooling_rows, probing_dataset, second_metric
from headwise.core.errors import InputError, ParameterError
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.models import vectors as vectors_module
from headwise.models.random_init import with_random_weights
from headwise.models.vectors import collect_vectors, pool_tokens, token_rule
from headwise.probes import PENALTIES as LIBRARY_PENALTIES
from headwise.probes import ProbeSettings, fit_probes
from headwise.probes.settings import SOLVERS
from headwise.stats.corrections import CORRECTIONS
from headwise.testing import eager_hidden, planted_model
from headwise.text import Corpus, Example
from headwise.text.tasks import (
    Split,
    Task,
    glue_task,
    read_tasks,
    sample,
    senteval_task,
    task_from_examples,
)

WORDS = [f"w{i}" for i in range(12)]
BEHAVIOURS = [["next", "cls", "offset:+3"], ["cls", "sep", "offset:+2"]]
PENALTIES = (1e-3, 1e-1)
FAST = ProbingOptions(penalties=PENALTIES)
PLAIN = ProbingOptions(penalties=PENALTIES, greedy=False, control=False, curve=())


def sentences(count: int, seed: int = 0, lengths: tuple[int, int] = (4, 9)) -> list[list[str]]:
    random = np.random.default_rng(seed)
    return [
        [WORDS[i] for i in random.choice(len(WORDS), random.integers(*lengths))]
        for _ in range(count)
    ]


def first_word_task(
    count: int = 260, name: str = "first", position: int = 0, classes: int = 3
) -> Task:
    """The label is told by one word of the sentence."""
    texts = sentences(count)
    examples = tuple(
        Example(text=" ".join(words), label=f"c{int(words[position][1:]) % classes}")
        for words in texts
    )
    return Task(
        name, examples, Split(*np.split(np.arange(count), [count * 6 // 10, count * 8 // 10]))
    )


@pytest.fixture(scope="module")
def planted() -> HeadModel:
    made = planted_model(BEHAVIOURS, words=WORDS, max_length=16)
    return HeadModel.open(made.model, tokenizer=made.tokenizer)


@pytest.fixture(scope="module")
def result(planted: HeadModel) -> Any:
    return probe_tasks(
        planted,
        [first_word_task(), first_word_task(name="third", position=2)],
        replace(FAST, random_baseline=True, curve=(1, 2, 6)),
    )


def test_planted_heads_know_the_word_they_look_at(result: Any) -> None:
    accuracy = result.accuracy
    assert accuracy.sel(task="first").values[0, 0] == 1.0  # looks at the first word from [CLS]
    assert accuracy.sel(task="third").values[0, 2] == 1.0  # three places on
    for task, knows in (("first", (0, 0)), ("third", (0, 2))):
        others = [accuracy.sel(task=task).values[0, h] for h in range(3) if (0, h) != knows]
        assert max(others) < 0.7
        assert bool(result.better.sel(task=task).values[knows])
        assert (
            int(result.top_layer.sel(task=task)[0]),
            int(result.top_head.sel(task=task)[0]),
        ) == knows
        assert float(result.pooled_accuracy.sel(task=task, pooling="top_heads")) > 0.95
        assert float(result.selectivity.sel(task=task).values[knows]) > 0.4


def test_the_best_head_is_picked_on_validation(result: Any) -> None:
    lucky = result.copy(deep=True)
    lucky["accuracy"][:, 0, 1] = 1.5  # on the test part, which picks nothing
    row = pooling_rows(lucky)[0]
    assert row[:2] == ("first", "accuracy")
    assert row[-1] == "L0H0 1.000"
    [line, _] = Probing().summary(lucky)
    assert "best head L0H0 1.000 (selected on validation)" in line
    numbers = lucky.assign_coords(metric=("task", ["Pearson's r"] * 2))
    assert "first, Pearson's r on the test part" in Probing().summary(numbers)[0]


def test_dims_coordinates_and_intervals(result: Any, planted: HeadModel) -> None:
    assert result.accuracy.dims == ("task", "layer", "head")
    assert result.layer_accuracy.dims == ("task", "layer")
    assert result.pooled_accuracy.dims == ("task", "pooling")
    assert result.pooling.values[:3].tolist() == ["last_layer", "best_layer", "top_heads"]
    assert result.sizes["layer"] == planted.layers
    assert result.sizes["head"] == planted.heads
    for name in (
        "accuracy",
        "layer_accuracy",
        "pooled_accuracy",
        "curve_accuracy",
        "control_accuracy",
        "random_accuracy",
        "selectivity",
    ):
        value, low, high = (result[name + end].values for end in ("", "_low", "_high"))
        assert (low <= value + 1e-6).all(), name
        assert (value <= high + 1e-6).all(), name
        assert (result[f"{name}_n"] == 52).all(), name
    np.testing.assert_allclose(
        result.task_correlation.values,
        np.corrcoef(result.accuracy.values.reshape(2, -1)),
        atol=1e-5,
    )


def test_the_test_against_the_majority_is_mcnemars_with_holm(planted: HeadModel) -> None:
    task = first_word_task()
    fit = fit_task(
        task,
        collect_vectors(planted, task.examples),
        PLAIN,
    )
    shape = Shape(planted.layers, planted.heads, planted.d_head, planted.hidden, False, 16, ())
    dataset = probing_dataset([task], [fit], shape, 3, ())
    labels = np.array(task.labels)
    names, counts = np.unique(labels[task.split.train], return_counts=True)
    majority = labels[task.split.test] == names[counts.argmax()]
    assert float(dataset.majority[0]) == pytest.approx(majority.mean())
    p = []
    for row in fit["heads/predicted"]:
        right = np.array(sorted(names))[row] == labels[task.split.test]
        first, second = int((right & ~majority).sum()), int((~right & majority).sum())
        p.append(
            binomtest(first, first + second, 0.5, alternative="greater").pvalue
            if first + second
            else 1.0
        )
    np.testing.assert_allclose(dataset.p_value.values.ravel(), p, rtol=1e-9)
    np.testing.assert_allclose(
        dataset.p_adjusted.values.ravel(), multipletests(p, method="holm")[1], rtol=1e-9
    )


def test_top_heads_are_ranked_on_validation_and_refitted(planted: HeadModel) -> None:
    task = first_word_task()
    vectors = collect_vectors(planted, task.examples)
    fit = fit_task(task, vectors, replace(PLAIN, curve=(2,)))
    order = np.argsort(-fit["heads/validation"], kind="stable")
    np.testing.assert_array_equal(fit["top/order"], order)
    joined = np.concatenate(
        [vectors.heads.reshape(6, -1, planted.d_head)[u] for u in order[:2]], -1
    )[None]
    again = fit_probes(joined, task.labels, task.split, FAST.probe_settings())
    np.testing.assert_array_equal(fit["top/2/predicted"], again.predicted)


def test_vectors_are_the_slow_ones_whatever_the_batch(
    planted: HeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = [Example(text=" ".join(words)) for words in sentences(9)]
    together = collect_vectors(planted, examples)
    monkeypatch.setattr(vectors_module, "MAX_TOKENS", 1)
    alone = collect_vectors(planted, examples)
    np.testing.assert_allclose(together.heads, alone.heads, atol=1e-5)
    rows = [planted.encode(example, i) for i, example in enumerate(examples)]
    hidden = eager_hidden(planted, rows)
    for i, states in enumerate(hidden):
        np.testing.assert_allclose(together.layers[:, i], states[1:, 0], atol=1e-5)
        trace = planted.trace(planted.batch([rows[i]]), {"outputs"})
        np.testing.assert_allclose(
            together.heads[:, :, i],
            trace.outputs[:, 0, :, 0]
            if trace.outputs.shape[0] == planted.layers
            else trace.outputs[0, :, :, 0],
            atol=1e-5,
        )


def test_tokens_that_stand_for_a_sentence() -> None:
    values = torch.arange(2 * 3 * 4 * 2, dtype=torch.float32).view(2, 3, 4, 2)
    real = torch.tensor([[True, True, True, True], [True, True, False, False]])
    np.testing.assert_array_equal(pool_tokens(values, real, "first"), values[:, :, 0])
    np.testing.assert_array_equal(
        pool_tokens(values, real, "last"), torch.stack([values[0, :, 3], values[1, :, 1]])
    )
    np.testing.assert_allclose(
        pool_tokens(values, real, "mean"),
        torch.stack([values[0].mean(1), values[1, :, :2].mean(1)]),
    )
    np.testing.assert_array_equal(
        pool_tokens(values[:, 0], real, "last"), torch.stack([values[0, 0, 3], values[1, 0, 1]])
    )


def test_decoders_are_read_at_their_last_token() -> None:
    made = planted_model([["self", "previous"]], words=WORDS, causal=True, max_length=16)
    model = HeadModel.open(made.model, tokenizer=made.tokenizer)
    assert token_rule(model) == "last"
    assert token_rule(model, "mean") == "mean"
    texts = sentences(240)
    examples = tuple(
        Example(text=" ".join(words), label=str(int(words[-1][1:]) % 2)) for words in texts
    )
    task = Task("last", examples, Split(*np.split(np.arange(240), [140, 190])))
    found = probe_tasks(model, [task], PLAIN)
    assert found.accuracy.values[0, 0, 0] == 1.0
    assert found.attrs["token"] == "last"


def test_order_of_examples_does_not_matter_for_a_corpus(planted: HeadModel) -> None:
    examples = list(first_word_task(150).examples)
    results = [
        probe_tasks(planted, Corpus.from_examples(list_, "c"), PLAIN)
        for list_ in (examples, examples[::-1])
    ]
    np.testing.assert_array_equal(results[0].accuracy.values, results[1].accuracy.values)
    np.testing.assert_array_equal(
        results[0].pooled_accuracy.values, results[1].pooled_accuracy.values
    )


def opened_store(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder, {"test": "probing"})


@pytest.mark.parametrize("in_memory", [2**30, 1])
def test_vectors_resume_to_the_same_bytes_and_are_of_one_model(
    planted: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    task = first_word_task(150)
    monkeypatch.setattr(vectors_module, "CHECKPOINT_EXAMPLES", 40)
    monkeypatch.setattr(vectors_module, "MAX_BYTES_IN_MEMORY", in_memory)
    whole = collect_vectors(planted, task.examples)
    real_batch, seen = vectors_module.batch_vectors, []

    def killed(model: Any, batch: Any, token: str) -> Any:
        seen.append(len(batch))
        if sum(seen) > 90:
            raise KeyboardInterrupt
        return real_batch(model, batch, token)

    monkeypatch.setattr(vectors_module, "batch_vectors", killed)
    with pytest.raises(KeyboardInterrupt), opened_store(tmp_path) as store:
        collect_vectors(planted, task.examples, store)
    counted: list[int] = []
    monkeypatch.setattr(
        vectors_module,
        "batch_vectors",
        lambda m, b, t: counted.append(len(b)) or real_batch(m, b, t),
    )
    with opened_store(tmp_path) as store:
        resumed = collect_vectors(planted, task.examples, store)
        assert sum(counted) == 70  # two pieces of forty were there
        assert resumed.heads.tobytes() == whole.heads.tobytes()
        assert resumed.layers.tobytes() == whole.layers.tobytes()
        assert isinstance(resumed.heads, np.memmap) == (in_memory == 1)
        for model, examples in (
            (with_random_weights(planted), task.examples),
            (planted, task.examples[:-1]),
        ):
            counted.clear()
            other = collect_vectors(model, examples, store)
            assert sum(counted) == len(
                examples
            )  # nothing of another model or other examples is taken
            assert other.heads.shape[2] == len(examples)


PHASES = (
    "headwise.models.vectors.batch_vectors",
    *(f"headwise.analyses.probing.fit.{n}" for n in ("fit_probes", "_select_greedily")),
)


INTERRUPTED = (
    [first_word_task(90), first_word_task(90, "third", 2)],
    replace(FAST, curve=(1,), random_baseline=True),
)


@pytest.fixture(scope="module")
def undisturbed(planted: HeadModel) -> Any:
    return probe_tasks(planted, *INTERRUPTED)


@pytest.mark.parametrize("phase", PHASES)
def test_an_interruption_in_any_phase_resumes_to_the_same_bytes(
    planted: HeadModel,
    undisturbed: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
) -> None:
    tasks, options = INTERRUPTED
    module, _, name = phase.rpartition(".")
    real = getattr(importlib.import_module(module), name)
    calls: list[int] = []

    def killed(*args: Any) -> Any:
        calls.append(1)
        if len(calls) in (1, 3, 7):
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(phase, killed)
    for _ in range(3):
        with suppress(KeyboardInterrupt), opened_store(tmp_path) as store:
            probe_tasks(planted, tasks, options, store=store)
    assert len(calls) >= 3
    monkeypatch.setattr(phase, real)
    with opened_store(tmp_path) as store:
        found = probe_tasks(planted, tasks, options, store=store)
    assert found.identical(undisturbed)
    for name, variable in undisturbed.variables.items():
        assert np.asarray(found[name].values).tobytes() == np.asarray(variable.values).tobytes(), (
            name
        )


def test_progress_counts_few_things_to_their_end(planted: HeadModel) -> None:
    told: dict[str, list[tuple[int, int]]] = {}
    options = replace(PLAIN, control=True)
    probe_tasks(
        planted,
        [first_word_task(120)],
        options,
        progress=lambda w, d, t: told.setdefault(w, []).append((d, t)),
    )
    assert [name.split()[0] for name in told] == [
        "tasks",
        "vectors",
        "probes",
    ]  # a bar each, not one for every call
    for steps in told.values():
        assert [done for done, _ in steps] == sorted({done for done, _ in steps})
        assert len({total for _, total in steps}) == 1
        assert steps[-1][0] == steps[-1][1]
    assert told["tasks"] == [(0, 1), (1, 1)]
    assert len(next(v for k, v in told.items() if "probes" in k)) == 5


def test_a_fit_is_done_once(
    planted: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_store(tmp_path) as store:
        first = probe_tasks(planted, [first_word_task(120)], PLAIN, store=store)
        monkeypatch.setattr(
            "headwise.analyses.probing.analysis.fit_task", lambda *a: pytest.fail("fitted again")
        )
        assert first.identical(probe_tasks(planted, [first_word_task(120)], PLAIN, store=store))
        monkeypatch.undo()
        other = replace(PLAIN, solver="ridge")
        assert (
            probe_tasks(planted, [first_word_task(120)], other, store=store).attrs["solver"]
            != first.attrs["solver"]
        )


def test_pairs_as_features_and_as_one_input(planted: HeadModel) -> None:
    left, right = sentences(200, 1), sentences(200, 2)
    right = [
        one[:1] + two[1:] if i % 2 else two
        for i, (one, two) in enumerate(zip(left, right, strict=True))
    ]
    examples = tuple(
        Example(text=" ".join(one), pair=" ".join(two), label=float(one[0] == two[0]))
        for one, two in zip(left, right, strict=True)
    )
    task = Task(
        "same",
        tuple(replace(e, label=str(int(e.label))) for e in examples),
        Split(*np.split(np.arange(200), [130, 165])),
    )
    apart = probe_tasks(planted, [task], replace(PLAIN, pairs="features"))
    joint = probe_tasks(planted, [task], PLAIN)
    assert apart.accuracy.values[0, 0, 0] > 0.85  # |u - v| of the heads that read the first words
    assert (
        joint.accuracy.values[0, 0, 0] < 0.75
    )  # one input's [CLS] never sees the second first word there
    numeric = Task("score", examples, task.split, ("pearson", "spearman"))
    found = probe_tasks(planted, [numeric], replace(FAST, pairs="features", curve=(1,)))
    assert found.accuracy.values[0, 0, 0] > 0.6
    assert np.isfinite(found.pooled_spearman.values).all()
    assert found.kind.values.tolist() == ["regression"]
    assert found.metric.values.tolist() == ["Pearson's r"]


def test_control_labels_keep_the_shape_and_random_weights_are_seeded(planted: HeadModel) -> None:
    task = first_word_task(200)
    dealt = control_labels(task, 0)
    for rows in (task.split.train, task.split.test):
        texts = {task.examples[i].text for i in rows}
        if len(texts) == len(rows):
            assert sorted(dealt[i] for i in rows) == sorted(task.labels[i] for i in rows)
    by_text: dict[str | None, set] = {}
    for example, label in zip(task.examples, dealt, strict=True):
        by_text.setdefault(example.text, set()).add(label)
    assert all(len(labels) == 1 for labels in by_text.values())
    assert dealt != task.labels
    one, two, three = (
        with_random_weights(planted, seed).identity()["weight_hash"] for seed in (0, 0, 1)
    )
    assert one == two != three


def test_syntactic_and_semantic_scores_are_means_over_their_tasks(planted: HeadModel) -> None:
    names = ("tree_depth", "bigram_shift", "past_present", "sentence_length")
    tasks = [first_word_task(100, name, position=i) for i, name in enumerate(names)]
    found = probe_tasks(planted, tasks, replace(PLAIN, solver="ridge"))
    np.testing.assert_allclose(found.syntactic_score, found.accuracy.values[:2].mean(0), atol=1e-6)
    np.testing.assert_allclose(found.semantic_score, found.accuracy.values[2], atol=1e-6)


def test_second_metrics_are_scikit_learns() -> None:
    random = np.random.default_rng(0)
    truth, said = random.integers(0, 2, (2, 80))
    fit = {"truth": truth, "x/predicted": said[None]}
    assert second_metric("f1", fit, "x", 0) == pytest.approx(f1_score(truth, said))
    assert second_metric("matthews", fit, "x", 0) == pytest.approx(matthews_corrcoef(truth, said))


# --- tasks ----------------------------------------------------------------------------------------


def test_senteval_files(tmp_path: Path) -> None:
    path = tmp_path / "tree_depth.txt"
    path.write_text("tr\t5\ta b\nva\t6\tc d\ntr\t6\te f\nte\t5\tg h\n")
    task = senteval_task(path)
    assert (task.name, task.group, task.labels) == ("tree_depth", "syntactic", ["5", "6", "6", "5"])
    assert [
        part.tolist() for part in (task.split.train, task.split.validation, task.split.test)
    ] == [[0, 1], [2], [3]]
    assert [t.name for t in read_tasks(tmp_path)] == ["tree_depth"]
    (tmp_path / "bad.txt").write_text("tr\t5\ta b\nva\t6\tc d\n")
    with pytest.raises(InputError, match="no rows of the part 'te'"):
        senteval_task(tmp_path / "bad.txt")


def test_glue_folders(tmp_path: Path) -> None:
    folder = tmp_path / "RTE"
    folder.mkdir()
    head = "index\tsentence1\tsentence2\tlabel\n"
    (folder / "train.tsv").write_text(
        head
        + "".join(
            f"{i}\ta{i}\tb{i}\t{'entailment' if i % 2 else 'not_entailment'}\n" for i in range(20)
        )
    )
    (folder / "dev.tsv").write_text(head + "0\tc\td\tentailment\n")
    task = glue_task(folder)
    assert task.paired
    assert (len(task.split.train), len(task.split.validation), len(task.split.test)) == (18, 2, 1)
    assert not set(task.split.train) & set(task.split.validation)
    assert task.examples[task.split.test[0]].text == "c"
    only = tmp_path / "QNLI"
    only.mkdir()
    (only / "dev.tsv").write_text(
        "index\tquestion\tsentence\tlabel\n"
        + "".join(f"{i}\tq{i}\ts{i}\tentailment\n" for i in range(10))
    )
    assert len(glue_task(only).split.train) == 6
    assert [t.name for t in read_tasks(f"{folder},{only}")] == ["RTE", "QNLI"]


def test_samples_keep_labels_in_proportion() -> None:
    labels = ["a"] * 60 + ["b"] * 30 + ["c"] * 10
    rows = sample(labels, np.arange(100), 50, seed=3)
    assert [sum(labels[r] == name for r in rows) for name in "abc"] == [30, 15, 5]
    assert rows.tolist() == sorted(rows)
    assert rows.tolist() == sample(labels, np.arange(100), 50, seed=3).tolist()
    assert rows.tolist() != sample(labels, np.arange(100), 50, seed=4).tolist()


def test_bad_input(planted: HeadModel, tmp_path: Path) -> None:
    task = first_word_task(60)
    for bad, message in (
        ({"top": 7}, "7 heads, but the model has 6"),
        ({"curve": (1, 9)}, "9 heads, but the model has 6"),
        ({"top": -1}, "`top` must be at least 0"),
    ):
        with pytest.raises(ParameterError, match=message):
            probe_tasks(planted, [task], replace(FAST, **bad))
    one_class = replace(task, examples=tuple(replace(e, label="x") for e in task.examples))
    with pytest.raises(InputError, match="at least two classes"):
        probe_tasks(planted, [one_class], FAST)
    missing = replace(
        task,
        examples=tuple(
            replace(e, label=None) if i == 59 else e for i, e in enumerate(task.examples)
        ),
    )
    with pytest.raises(InputError, match="test part have no label"):
        probe_tasks(planted, [missing], FAST)
    with pytest.raises(ParameterError, match="Two tasks are called 'first'"):
        probe_tasks(planted, [task, task], PLAIN)
    with pytest.raises(ParameterError, match="`token` must be one of"):
        probe_tasks(planted, [task], ProbingOptions(token="middle"))
    with pytest.raises(ParameterError, match="`pairs` must be one of"):
        probe_tasks(planted, [task], ProbingOptions(pairs="both"))
    with pytest.raises(InputError, match="neither SentEval files"):
        read_tasks(tmp_path)
    with pytest.raises(InputError, match="no example has a label"):
        task_from_examples([Example(text="a")])
    with pytest.raises(InputError, match="cannot be cut into 50 folds"):
        probe_tasks(planted, [task], replace(PLAIN, folds=50))
    mixed = replace(task, examples=(replace(task.examples[0], pair="w1"), *task.examples[1:]))
    with pytest.raises(InputError, match="1 of 60 examples have a second sentence"):
        probe_tasks(planted, [mixed], replace(PLAIN, pairs="features"))


def test_nan_weights_are_refused(planted: HeadModel) -> None:
    broken = with_random_weights(planted)
    with torch.no_grad():
        next(p for n, p in broken.module.named_parameters() if "query.weight" in n).fill_(
            float("nan")
        )
    with pytest.raises(InputError, match="NaN or infinity"):
        collect_vectors(broken, first_word_task(5).examples)


def test_the_experiment_runs_on_a_labelled_corpus(planted: HeadModel, tmp_path: Path) -> None:
    analysis = make_analysis("probing", {"greedy": False, "control": False, "train": 80})
    assert isinstance(analysis, Probing)
    assert analysis.requires == {"label"}
    assert Probing(tasks="x").requires == frozenset()

    class Bench:
        model, store, limit = planted, opened_store(tmp_path), 140
        corpus = Corpus.from_examples(first_word_task(150).examples, "words")
        shape = Shape(planted.layers, planted.heads, planted.d_head, planted.hidden, False, 16, ())

        def progress(self, what: str, done: int, total: int) -> None:
            assert what in ("tasks", "vectors of words", "probes of words")

    found = analysis.perform(Bench())
    assert found.accuracy.shape == (1, 2, 3)
    assert int(found.train_n[0]) == 80
    with pytest.raises(ParameterError, match="`folds` must be 0"):
        Probing(folds=1)
    with pytest.raises(ParameterError, match="`solver` must be one of"):
        Probing(solver="svm")


def test_features_of_pairs_take_first_and_second_sentences(planted: HeadModel) -> None:
    examples = tuple(Example(text=f"w{i}", pair=f"w{i + 1}", label=str(i % 2)) for i in range(6))
    task = Task("p", examples, Split([0, 1], [2, 3], [4, 5]))
    vectors = task_vectors(planted, task, ProbingOptions(pairs="features"))
    heads, _ = task_features(vectors, task)
    alone = collect_vectors(planted, [Example(text="w3"), Example(text="w4")])
    block = heads.block(0, 1, np.array([3]))[0, 0]
    u, v = alone.heads[0, 0]
    np.testing.assert_allclose(block, np.concatenate([u, v, np.abs(u - v), u * v]), atol=1e-5)


def test_the_public_function_takes_options_as_keywords_and_resumes(
    planted: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = first_word_task(120)
    expected = probe_tasks(planted, task, replace(PLAIN, solver="ridge"))
    first = headwise.probe(planted, task, options=PLAIN, solver="ridge", folder=tmp_path)
    xr.testing.assert_identical(first, expected)
    monkeypatch.setattr(
        "headwise.analyses.probing.analysis.fit_task", lambda *a: pytest.fail("fitted again")
    )
    second = headwise.probe(planted, task, options=PLAIN, solver="ridge", folder=tmp_path)
    xr.testing.assert_identical(second, expected)
    with pytest.raises(ParameterError, match="no option of probe 'solvers'"):
        headwise.probe(planted, task, solvers="ridge")


def test_choices_of_options_are_those_of_the_library() -> None:
    assert set(options_module.SOLVERS) == set(SOLVERS)
    assert set(options_module.CORRECTIONS) == set(CORRECTIONS)
    assert options_module.TOKENS == vectors_module.TOKENS
    assert options_module.DTYPES == vectors_module.DTYPES
    assert options_module.PENALTIES == LIBRARY_PENALTIES


@pytest.mark.real
def test_real_vectors_and_scikit_learn_agree_on_forty_heads(
    shared: Path, wiki_model: HeadModel
) -> None:
    from sklearn.linear_model import LogisticRegression

    model = wiki_model
    task = senteval_task(shared / "data" / "probing" / "subj_number.txt.gz").limit(60, 10, 40)
    vectors = collect_vectors(model, task.examples)
    heads = vectors.heads.reshape(144, len(task.examples), -1)[
        np.random.default_rng(0).choice(144, 40, replace=False)
    ]
    labels = np.array(task.labels)
    found = fit_probes(heads, labels, task.split, ProbeSettings(solver="lbfgs", penalties=(1e-2,)))
    for unit in range(40):
        x = heads[unit].astype(np.float64)
        x = (x - x[task.split.train].mean(0)) / x[task.split.train].std(0)
        reference = LogisticRegression(C=1 / (60 * 1e-2), max_iter=2000, tol=1e-5).fit(
            x[task.split.train], labels[task.split.train]
        )
        assert (
            abs(found.test[unit] - reference.score(x[task.split.test], labels[task.split.test]))
            <= 0.005
        )
