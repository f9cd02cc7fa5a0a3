"""Comparing models: cosines and differences against plain loops, invariances, and what is
refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from headwise.analyses.probing.analysis import probe_tasks
from headwise.analyses.probing.options import ProbingOptions
from headwise.analyses.roles.analysis import Roles
from headwise.atlas import Atlas
from headwise.core.errors import ModelError, OutputError, ParameterError
from headwise.experiments.comparison import ComparisonOptions, compare
from headwise.experiments.comparison.result import paired_means, third_of
from headwise.models import HeadModel
from headwise.models.vectors import batch_vectors
from headwise.plots import figures_for
from headwise.run import make_atlas
from headwise.testing import planted_model
from headwise.testing.models import random_model
from headwise.testing.toy import WORDS, toy_examples
from headwise.text import Corpus, Example
from headwise.text.tasks import read_tasks
from slow_intervals import slow_mean_interval

EXAMPLES = toy_examples(9, pairs=True)


def model(seed: int = 0, **sizes: int) -> HeadModel:
    module, tokenizer = random_model(
        words=WORDS, seed=seed, **({"layers": 3, "heads": 4, "d_head": 8, "max_length": 48} | sizes)
    )
    return HeadModel.open(module, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def change() -> Atlas:
    return compare(
        [model(0), model(1), model(0)],
        Corpus.from_examples(EXAMPLES),
        names=["a", "b", "copy"],
    )


def test_cosines_are_those_of_the_flattened_maps_of_each_input_alone(change: Atlas) -> None:
    first, second = model(0), model(1)
    each = []
    for example in EXAMPLES:
        maps = [
            m.trace(m.batch(example)).attention[0].flatten(-2).double() for m in (first, second)
        ]
        each.append(torch.nn.functional.cosine_similarity(*maps, dim=-1).numpy())
    values = np.stack(each)
    found = change["change"]
    assert np.abs(found["cosine"].values - values.mean(0)).max() < 1e-6
    low, high = slow_mean_interval(values)
    assert np.abs(found["cosine_low"].values - low).max() < 1e-6
    assert np.abs(found["cosine_high"].values - high).max() < 1e-6
    assert np.abs(found["cosine_third"].sel(model="b").values - values.mean((0, 2))).max() < 1e-6
    assert found.attrs["compared_model"] == "b"


def test_a_model_is_like_itself(change: Atlas) -> None:
    assert np.abs(change["change"]["cosine_to"].sel(model="copy").values - 1).max() < 1e-9
    for group in ("change_surface", "change_roles", "change_features"):
        part = change[group].sel(model="copy")
        for name in part.data_vars:
            if str(name).endswith("_change"):
                values = part[name].values
                assert (values[np.isfinite(values)] == 0).all(), name
            if str(name).endswith("_change_p"):
                values = part[name].values
                assert (values[np.isfinite(values)] == 1).all(), name


def test_differences_are_those_of_two_runs_with_paired_tests(change: Atlas) -> None:
    corpus = Corpus.from_examples(EXAMPLES)
    light = {"roles": {"random_models": 0, "bootstrap": 0}}  # only their bias is compared
    runs = [
        make_atlas(model(seed), corpus, ["surface", "roles"], parameters=light) for seed in (0, 1)
    ]
    for group, variable in (
        ("surface", "entropy"),
        ("surface", "position"),
        ("surface", "mass"),
        ("roles", "bias"),
    ):
        expected = runs[1][group][variable].values - runs[0][group][variable].values
        found = change[f"change_{group}"][f"{variable}_change"].sel(model="b").values
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        assert np.nanmax(np.abs(found - expected)) < 1e-4, variable
    alone = [
        [
            make_atlas(model(seed), Corpus.from_examples([e]), ["surface"])["surface"][
                "entropy"
            ].values
            for e in EXAMPLES
        ]
        for seed in (0, 1)
    ]
    expected_p = scipy_stats.ttest_rel(alone[1], alone[0], axis=0).pvalue
    assert (
        np.abs(
            change["change_surface"]["entropy_change_p"].sel(model="b").values - expected_p
        ).max()
        < 1e-3
    )


def test_words_are_those_of_each_model_by_itself(change: Atlas) -> None:
    words = change["change_words"]
    assert list(words["model_all"].values) == ["a", "b", "copy"]
    for seed, names in ((0, ("a", "copy")), (1, ("b",))):
        alone = compare(
            [model(seed), model(seed)],
            Corpus.from_examples(EXAMPLES),
            names=["x", "y"],
        )
        own = alone["change_words"].sel(model_all="x")
        for name in names:
            for what in ("does", "kind", "attention"):
                assert (words[what].sel(model_all=name).values == own[what].values).all()
    assert (
        words["attention"].sel(model_all="a").values != words["attention"].sel(model_all="b").values
    ).any()


def test_thirds_are_means_over_the_heads_of_their_layers(change: Atlas) -> None:
    roles = change["change_roles"].sel(model="b")
    by_head = roles["bias_change"].transpose("layer", "head", "role").values
    complete = ~np.isnan(by_head).any((0, 1))
    assert (
        np.abs(roles["bias_third_change"].values[:, complete] - by_head.mean(1)[:, complete]).max()
        < 1e-5
    )  # three layers: a third is a layer
    assert third_of(12).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert third_of(7).tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_thirds_of_the_cosine_have_intervals_over_inputs(change: Atlas) -> None:
    found = change["change"].sel(model="b", third="final")
    alone = [
        compare([model(0), model(1)], Corpus.from_examples([e]), analyses=[])["change"]["cosine"]
        .values[2]
        .mean()
        for e in EXAMPLES
    ]
    low, high = slow_mean_interval(np.array(alone))
    assert float(found["cosine_third"]) == pytest.approx(np.mean(alone), abs=1e-5)
    assert float(found["cosine_third_high"]) == pytest.approx(high, abs=2e-3)
    assert float(found["cosine_third_low"]) == pytest.approx(low, abs=2e-3)
    assert int(found["cosine_third_n"]) == len(alone)


def test_paired_means_leave_out_what_one_side_lacks() -> None:
    first = np.array([[1.0, 1.0], [2.0, np.nan], [4.0, 3.0]])
    second = np.array([[2.0, 1.0], [2.0, 5.0], [7.0, np.nan]])
    found = paired_means(first, second)
    assert found["_n"].tolist() == [3, 1]
    assert found[""] == pytest.approx([4 / 3, 0.0])
    assert found["_p"][0] == pytest.approx(scipy_stats.ttest_rel(second[:, 0], first[:, 0]).pvalue)
    assert np.isnan(found["_p"][1])


def test_examples_of_one_document_are_no_further_evidence() -> None:
    random = np.random.default_rng(0)
    first = random.normal(size=(10, 2, 3))
    second = first + random.normal(0.5, 1.0, (10, 2, 3))
    alone = paired_means(first, second)
    documents = [number for number in range(-10, 0) for _ in range(4)]
    copied = paired_means(first.repeat(4, 0), second.repeat(4, 0), documents)
    for name in ("", "_low", "_high", "_p"):
        np.testing.assert_allclose(copied[name], alone[name], rtol=1e-4, atol=1e-6)
    assert copied["_n"].tolist() == (4 * alone["_n"]).tolist()
    taken_apart = paired_means(first.repeat(4, 0), second.repeat(4, 0))
    assert (taken_apart["_high"] < copied["_high"]).all()


def test_a_comparison_takes_the_documents_of_its_corpus() -> None:
    in_documents = [replace(example, document=f"d{n // 4}") for n, example in enumerate(EXAMPLES)]
    corpora = (Corpus.from_examples(EXAMPLES), Corpus.from_examples(in_documents))
    apart, together = (
        compare([model(0), model(1)], corpus, analyses=["surface"]) for corpus in corpora
    )
    for group, name in (("change", "cosine"), ("change_surface", "entropy_change")):
        np.testing.assert_allclose(
            apart[group][name].values, together[group][name].values, atol=1e-6
        )
        assert np.abs(apart[group][f"{name}_low"] - together[group][f"{name}_low"]).max() > 1e-6


def test_batching_changes_nothing(change: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.experiments.comparison.run.MAP_BYTES", 1)
    alone = compare(
        [model(0), model(1)],
        Corpus.from_examples(EXAMPLES),
        analyses=["surface"],
    )
    assert np.abs(alone["change"]["cosine"].values - change["change"]["cosine"].values).max() < 1e-6
    a, b = (
        alone["change_surface"]["entropy_change"].values[0],
        change["change_surface"]["entropy_change"].sel(model="b").values,
    )
    assert np.abs(a - b).max() < 1e-5


def test_probing_is_compared_example_by_example() -> None:
    tasks = Corpus.from_examples(toy_examples(60), name="toy")
    wanted = ComparisonOptions(names=["a", "b", "copy"], analyses=[], probing=tasks, limit=4)
    found = compare([model(0), model(1), model(0)], tasks, options=wanted)["change_probing"]
    assert found["accuracy"].dims == ("model_all", "task", "layer", "head")
    difference = (
        found["accuracy"].sel(model_all="b").values - found["accuracy"].sel(model_all="a").values
    )
    assert np.abs(found["accuracy_change"].sel(model="b").values - difference).max() < 1e-9
    assert (found["accuracy_change"].sel(model="copy").values == 0).all()
    assert (found["accuracy_change_p"].sel(model="copy").values == 1).all()
    assert (found["accuracy_change_p_adjusted"] >= found["accuracy_change_p"]).all()
    assert found.attrs["solver"] == "lbfgs"  # as `headwise probe` fits them
    [task] = read_tasks(tasks)
    alone = probe_tasks(model(1), task, ProbingOptions(greedy=False, control=False, curve=()))
    np.testing.assert_allclose(
        found["accuracy"].sel(model_all="b").values, alone["accuracy"].values, atol=1e-6
    )
    assert float(found["majority"][0]) == pytest.approx(float(alone["majority"][0]))
    assert int(found["accuracy_n"][0]) == len(task.split.test)


def test_a_regression_is_not_drawn_as_an_accuracy(not_laid_out: None) -> None:
    graded = [
        replace(example, label=float(place % 7)) for place, example in enumerate(toy_examples(60))
    ]
    tasks = {"graded": Corpus.from_examples(graded), "toy": Corpus.from_examples(toy_examples(60))}
    wanted = ComparisonOptions(names=["a", "b"], analyses=[], probing=tasks, limit=4)
    found = compare([model(0), model(1)], tasks["toy"], options=wanted)["change_probing"]
    said = {
        drawn.name: drawn.figure.axes[-1].get_ylabel()
        for spec in figures_for("change_probing")
        for drawn in spec.draw(found)  # the last axis is the colour bar's
    }
    assert said == {
        "states-graded": "Pearson's r × 100",
        "states-toy": "test accuracy (%)",
        "heads-graded": "change of Pearson's r × 100",
        "heads-toy": "points",
    }


def test_the_result_is_an_atlas_file(change: Atlas, tmp_path: Path) -> None:
    path = change.save(tmp_path / "change.nc")
    again = Atlas.load(path)
    assert set(again) == {
        "change",
        "change_surface",
        "change_roles",
        "change_features",
        "change_words",
    }
    assert again.head("L1H2")["change", "cosine"] == pytest.approx(
        float(change["change"]["cosine"][1, 2])
    )


TOY = Corpus.from_examples(toy_examples(60), name="toy")
KILLED = ComparisonOptions(names=["a", "b"], analyses=["surface"], probing=TOY, limit=8)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwise.experiments.comparison.run.MAP_BYTES", 1)
        whole = compare([model(0), model(1)], Corpus.from_examples(EXAMPLES), options=KILLED)
    return whole.save(tmp_path_factory.mktemp("whole") / "whole.nc").read_bytes()


@pytest.mark.parametrize("when", [("examples", 2), ("toy: a", 60)])
def test_a_killed_comparison_goes_on_to_the_same_bytes(
    undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: tuple[str, int]
) -> None:
    class Killed(Exception):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if what == when[0] and done >= when[1]:
            raise Killed

    monkeypatch.setattr(
        "headwise.experiments.comparison.run.MAP_BYTES", 1
    )  # a batch for each length
    wanted, models = KILLED, [model(0), model(1)]
    with pytest.raises(Killed):
        compare(
            models,
            Corpus.from_examples(EXAMPLES),
            options=wanted,
            folder=tmp_path / "run",
            progress=kill,
        )
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.checkpoint")}
    assert stamps
    read: list[object] = []

    def counting(model: HeadModel, *about: object) -> object:
        read.append(model.identity())
        return batch_vectors(model, *about)  # type: ignore[arg-type]

    monkeypatch.setattr("headwise.models.vectors.batch_vectors", counting)
    resumed = compare(
        models, Corpus.from_examples(EXAMPLES), options=wanted, folder=tmp_path / "run"
    )
    # What was done is not done again; the vectors of a task go once its probes are stored, so those
    # are counted.
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items() if path.exists())
    assert (models[0].identity() in read) == (when[0] == "examples")
    assert models[1].identity() in read
    assert resumed.save(tmp_path / "resumed.nc").read_bytes() == undisturbed
    with pytest.raises(OutputError, match="differs in corpus, seed"):  # its eight are drawn
        compare(
            models, Corpus.from_examples(EXAMPLES), options=wanted, seed=1, folder=tmp_path / "run"
        )


def test_the_models_of_the_caller_stay_as_they_are() -> None:
    first, second = model(0), model(1).limited(9)
    module, tokenizer = random_model(
        words=WORDS, seed=2, layers=3, heads=4, d_head=8, max_length=48
    )
    before = module.config._attn_implementation
    limits = [(m.encoder.max_length, m.encoder.overlong) for m in (first, second)]
    found = compare([first, second], Corpus.from_examples(EXAMPLES), analyses=[])
    assert found.provenance["encoding"]["max_length"] == 9
    assert [(m.encoder.max_length, m.encoder.overlong) for m in (first, second)] == limits
    with HeadModel.open(module, tokenizer=tokenizer) as opened:
        compare([first, opened], Corpus.from_examples(EXAMPLES), analyses=[])
    assert module.config._attn_implementation == before


def test_what_is_refused() -> None:
    corpus = Corpus.from_examples(EXAMPLES)
    with pytest.raises(ParameterError, match="at least two models"):
        compare([model()], corpus)
    with pytest.raises(ModelError, match=r"has 2 heads, but.*has 4"):
        compare([model(), model(heads=2)], corpus, by="head")
    module, tokenizer = random_model(
        words=("other", "words"), layers=3, heads=4, d_head=8, max_length=48
    )
    with pytest.raises(ModelError, match="different tokens"):
        compare([model(), HeadModel.open(module, tokenizer=tokenizer)], corpus)
    with pytest.raises(ParameterError, match="different names"):
        compare([model(), model(1)], corpus, names=["a", "a"])
    with pytest.raises(ParameterError, match="`correction`"):
        ComparisonOptions(correction="bonferroni")


def test_roles_gained_and_lost_are_those_of_the_planted_heads() -> None:
    words = [f"w{i}" for i in range(20)]
    rng = np.random.default_rng(0)
    corpus = Corpus.from_examples([Example(words=tuple(rng.choice(words, 9))) for _ in range(32)])
    made = []
    for behaviours in ([["previous", "next", "self"]], [["previous", "previous", "self"]]):
        planted = planted_model(behaviours, words=words)
        made.append(HeadModel.open(planted.model, tokenizer=planted.tokenizer))
    roles = Roles(sieves="local,local:prev,local:next", tau=2.0, bootstrap=0, random_models=0)
    change = compare(made, corpus, analyses=(roles,), names=["a", "b"])["change_roles"]
    one = change.sel(model="b")
    gained, lost = one["gained"].sel(role="local:prev"), one["lost"].sel(role="local:next")
    assert gained.values.tolist() == lost.values.tolist() == [[False, True, False]]
    assert (one["gained_sure"].values == one["gained"].values).all()
    assert not one["gained"].sel(role=["local", "local:next"]).any()
    assert int(one["lost_count"].sel(role="local:next").sum()) == 1
    assert change["role_count"].sel(role="local:prev").values.tolist() == [1, 2]
    drawn = [
        one
        for spec in figures_for("change_roles")
        for one in spec.draw(change)
        if spec.name == "gained-lost"
    ]
    assert len(drawn) == 1
