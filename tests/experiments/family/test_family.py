"""Models of different shapes side by side: planted heads are matched, random heads never."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from headwise import Atlas, Corpus, HeadModel, compare, make_atlas
from headwise.atlas import behaviours
from headwise.core.errors import HeadwiseError, ParameterError
from headwise.experiments.comparison import ComparisonOptions
from headwise.experiments.family import compares_by_depth, differences, matches
from headwise.experiments.family.result import (
    MemberLabels,
    family_datasets,
    labels_of_member,
    match_heads,
)
from headwise.page.family import render_family
from headwise.plots import figures_for
from headwise.stats.depth import (
    depth_bins,
    depth_difference_p,
    depth_distance,
    depth_distance_test,
    relative_depth,
    share_difference_p,
)
from headwise.testing import planted_model, random_model

WORDS = ["the", "a", "cat", "dog", "saw", "sleeps", ".", ","]
TEXTS = [" ".join(WORDS[(3 * i + j) % 6] for j in range(6 + i % 7)) for i in range(24)]
SMALL = [["previous", "next"], ["sep", "sep"], ["sep", "uniform"]]
LARGE = [
    ["uniform", "previous", "uniform"],
    ["next", "uniform", "uniform"],
    ["uniform", "sep", "uniform"],
    ["uniform", "uniform", "sep"],
]


def save_planted(behaviours_by_layer: Sequence[Sequence[str]], folder: Path) -> Path:
    planted = planted_model(behaviours_by_layer, words=WORDS)
    planted.model.save_pretrained(folder)
    planted.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [save_planted(SMALL, folder / "small"), save_planted(LARGE, folder / "large")]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_texts(TEXTS, name="toy")


@pytest.fixture(scope="module")
def result(models: list[Path], corpus: Corpus) -> Atlas:
    return compare(models, corpus, analyses=["surface"])


def test_planted_heads_are_counted_by_depth(result: Atlas) -> None:
    family = result["family"]
    assert family["layers"].values.tolist() == [3, 4]
    counts = family["total_count"].to_pandas()
    assert counts.loc["small"].to_dict() == {"previous token": 1, "next token": 1, "to sep": 3}
    assert counts.loc["large"].to_dict() == {"previous token": 1, "next token": 1, "to sep": 2}
    assert family.sizes["depth"] == 3
    small_sep = family["count"].sel(model="small", label="to sep").values
    assert small_sep.tolist() == [0, 2, 1]
    # The layers of the larger model: first third, middle third (two layers), last third.
    assert family["n_heads"].sel(model="large").values.tolist() == [3, 6, 3]
    assert family["count"].sel(model="large", label="to sep").values.tolist() == [0, 1, 1]
    shares = family["share"].sel(model="large", label="to sep").values
    np.testing.assert_allclose(shares, [0, 1 / 6, 1 / 3])
    low = family["share_low"].values
    high = family["share_high"].values
    assert (low <= family["share"].values + 1e-12).all()
    assert (family["share"].values <= high + 1e-12).all()


def test_heads_are_matched_by_label_not_by_index(result: Atlas) -> None:
    table = matches(result)
    pairs = set(zip(table["label"], table["head"], table["head_other"], strict=True))
    assert ("previous token", "L0H0", "L0H1") in pairs
    assert ("next token", "L0H1", "L1H0") in pairs
    assert len(pairs) == 4
    assert int(result["family"]["matched"].sel(model="small", other="large")) == 4


def test_a_match_is_the_nearest_in_depth_of_all_assignments() -> None:
    generator = np.random.default_rng(0)
    first = member("first", np.where(generator.random((7, 2)) < 0.3, "sink", "other"))
    second = member("second", np.where(generator.random((5, 3)) < 0.5, "sink", "other"))
    pairs = match_heads(first, second, "sink")
    first_depths = relative_depth(7)[np.argwhere(first.label == "sink")[:, 0]]
    second_depths = relative_depth(5)[np.argwhere(second.label == "sink")[:, 0]]
    assert len(first_depths) <= len(second_depths)
    best = min(
        sum(abs(a - second_depths[b]) for a, b in zip(first_depths, order, strict=True))
        for order in permutations(range(len(second_depths)), len(first_depths))
    )
    cost = sum(abs(relative_depth(7)[a] - relative_depth(5)[b]) for a, _, b, _ in pairs)
    assert len(pairs) == len(first_depths)
    assert cost == pytest.approx(best)


def member(name: str, label: np.ndarray) -> MemberLabels:
    return MemberLabels(name, label, label, label, label, ("obj",), frozenset({"to cls"}))


def test_random_weights_give_no_label_and_no_match(tmp_path: Path) -> None:
    opened = []
    for seed, (layers, heads) in enumerate([(2, 3), (4, 2), (3, 4)]):
        module, tokenizer = random_model(layers=layers, heads=heads, seed=seed)
        opened.append(HeadModel.open(module, tokenizer=tokenizer))
    out = tmp_path / "random.nc"
    result = compare(opened, limit=20, names=["a", "b", "c"], out=out)
    assert result["family"].sizes["label"] == 0
    assert len(matches(result)) == 0
    assert int(result["family"]["matched"].sum()) == 0
    assert len(differences(result["family"])) == 0
    stored = Atlas.load(out)
    assert "none is matched" in render_family(stored, [], tmp_path)
    for spec in figures_for("family"):
        assert spec.draw(stored["family"]) == []


def test_atlases_give_the_same_as_models(
    models: list[Path], corpus: Corpus, result: Atlas, tmp_path: Path
) -> None:
    atlases: list[Atlas | Path] = []
    for folder in models:
        atlas = make_atlas(folder, corpus, ["surface", "offsets"])
        atlases.append(atlas)
    atlases[1].save(tmp_path / "large" / "atlas.nc")  # type: ignore[union-attr]
    atlases[1] = tmp_path / "large"
    from_atlases = compare(atlases)
    # An atlas beside a model.
    mixed = compare([models[0], tmp_path / "large" / "atlas.nc"], corpus, analyses=["surface"])
    for other in (from_atlases, mixed):
        for name in ("family", "family_heads", "family_matches"):
            assert (
                other[name]
                .drop_vars("corpus", errors="ignore")
                .identical(result[name].drop_vars("corpus", errors="ignore"))
            )
    # `offsets` gives no label, and no model was run for it.
    assert from_atlases.provenance["groups"] == ["surface"]


def test_models_of_one_shape_are_compared_head_by_head(
    models: list[Path], corpus: Corpus, result: Atlas
) -> None:
    same = compare([models[0], models[0]], corpus, analyses=["surface"])
    assert "change" in same
    by_depth = compare([models[0], models[0]], corpus, analyses=["surface"], by="depth")
    assert by_depth["family"]["model"].values.tolist() == ["small", "small (2)"]
    assert float(by_depth["family"]["depth_distance"].isel(model=0, other=1)) == 0
    assert compares_by_depth(models, "auto")
    assert not compares_by_depth(models, "head")
    with pytest.raises(HeadwiseError, match="by depth"):
        compare(models, corpus, analyses=[], by="head")
    with pytest.raises(ParameterError, match="no maps"):
        compares_by_depth([result, models[0]], "head")


def test_what_cannot_be_compared_is_rejected(models: list[Path], result: Atlas) -> None:
    with pytest.raises(ParameterError, match="2 to 8"):
        compare([*models] * 5)
    with pytest.raises(ParameterError, match="Probing"):
        compare(models, probing="nothing")
    with pytest.raises(ParameterError, match="shallowest"):
        compare(models, analyses=["surface"], limit=2, bins=4)
    with pytest.raises(HeadwiseError, match="No analysis that gives labels"):
        compare([result, result])


def test_an_interrupted_comparison_resumes_with_the_next_model(
    models: list[Path], corpus: Corpus, tmp_path: Path
) -> None:
    out = tmp_path / "family.nc"

    def stop(what: str, done: int, total: int) -> None:
        if what == "models" and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(models, corpus, analyses=["surface"], out=out, progress=stop)
    assert not out.exists()
    checkpoints = list(tmp_path.rglob("model-*.checkpoint"))
    assert [path.stem for path in checkpoints] == ["model-0000"]
    when = checkpoints[0].stat().st_mtime_ns
    seen = []

    def see(what: str, done: int, total: int) -> None:
        if what == "models":
            seen.append(checkpoints[0].stat().st_mtime_ns if checkpoints[0].exists() else 0)

    compare(models, corpus, analyses=["surface"], out=out, progress=see)
    assert set(seen) == {when}
    whole = tmp_path / "whole.nc"
    compare(models, corpus, analyses=["surface"], out=whole)
    assert out.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_labels_need_their_interval_too(models: list[Path], corpus: Corpus) -> None:
    groups = {"surface": make_atlas(models[0], corpus, ["surface"])["surface"]}
    labels = behaviours.head_labels(groups, 3, 2)
    assert behaviours.significant_labels(groups, labels).sum() == 5
    surface = groups["surface"]
    wide = surface.assign(position_low=surface["position_low"] - 0.6)
    significant = behaviours.significant_labels({"surface": wide}, labels)
    assert not significant[0].any()
    assert significant[1].all()
    counted = labels_of_member("small", {"surface": wide})
    assert (counted.label[0] == "other").all()
    assert counted.in_atlas[0].tolist() == ["previous token", "next token"]


# --- the tests of differences ---------------------------------------------------------------------


def test_bins_of_depth() -> None:
    for layers in range(1, 40):
        for bins in range(1, min(8, layers) + 1):
            by_midpoint = [int(np.floor(depth * bins + 1e-9)) for depth in relative_depth(layers)]
            assert depth_bins(layers, bins).tolist() == by_midpoint
            assert set(by_midpoint) == set(range(bins))


def test_p_of_shares_is_that_of_all_permutations() -> None:
    generator = np.random.default_rng(1)
    first = generator.random((4, 1))
    second = generator.random((3, 1)) + 0.3
    strata = np.array([0, 0, 1, 1]), np.array([0, 1, 1])

    def statistic(values: np.ndarray, in_second: np.ndarray, all_strata: np.ndarray) -> float:
        gaps = []
        for stratum in (0, 1):
            here = all_strata == stratum
            gap = values[here & in_second].mean() - values[here & ~in_second].mean()
            gaps.append(gap)
        return abs(float(np.mean(gaps)))

    values = np.concatenate([first, second])[:, 0]
    all_strata = np.concatenate(strata)
    observed = statistic(values, np.arange(7) >= 4, all_strata)
    drawn = []
    for members in set(permutations([False] * 4 + [True] * 3)):
        in_second = np.array(members)
        if in_second[all_strata == 0].sum() == 1:  # as many of each stratum as before
            drawn.append(statistic(values, in_second, all_strata))
    exact = np.mean(np.array(drawn) >= observed - 1e-12)
    p = share_difference_p(first, second, *strata)
    assert p[0] == pytest.approx(exact, abs=0.015)


def test_tests_keep_their_level_where_heads_of_a_layer_are_alike() -> None:
    """Under the null, with layers that are all one label or none, at most 5 % (and error) are
    significant; a test that takes heads for independent finds several times as many."""
    generator = np.random.default_rng(2)
    n_significant = 0
    n_depth = 0
    n_repeats = 150
    for repeat in range(n_repeats):
        first = (generator.random((12, 1)) < 0.4).astype(float)
        second = (generator.random((9, 1)) < 0.4).astype(float)
        strata = depth_bins(12, 3), depth_bins(9, 3)
        n_significant += int(share_difference_p(first, second, *strata, repeat)[0] < 0.05)
        p = depth_difference_p(12 * first[:, 0], 9 * second[:, 0], repeat)
        n_depth += int(p < 0.05)
    # 5 % of 150 is 7.5; 15 lies beyond the 99th percentile of the binomial.
    assert n_significant <= 15
    assert n_depth <= 15


def test_a_difference_in_share_and_in_depth_is_significant() -> None:
    first = np.zeros((12, 2))
    first[:4, 0] = 0.8
    first[:, 1] = 0.5
    second = np.zeros((24, 2))
    second[16:, 0] = 0.8
    strata = depth_bins(12, 3), depth_bins(24, 3)
    assert share_difference_p(first, second, *strata)[1] < 0.001
    assert depth_difference_p(first[:, 0], second[:, 0]) < 0.01
    assert np.isnan(depth_difference_p(first[:, 0], np.zeros(24)))


def test_depth_distance_of_known_profiles() -> None:
    early = np.zeros((4, 1))
    early[0] = 3
    late = np.zeros((8, 1))
    late[6:] = 2
    # Heads of the first quarter against the last quarter: three quarters apart.
    assert depth_distance(early, late) == pytest.approx(0.75, abs=0.01)
    assert depth_distance(early, np.repeat(early, 2, axis=0)) == pytest.approx(0, abs=1e-9)
    assert np.isnan(depth_distance(early, np.zeros((8, 1))))
    profile = np.zeros((12, 3))
    profile[:4, 0] = profile[4:8, 1] = profile[8:, 2] = 5
    distance, by_chance, p = depth_distance_test(profile, profile)
    assert distance == pytest.approx(0, abs=1e-9)
    assert by_chance > 0.15
    assert p < 0.01


def test_labels_that_a_model_cannot_have_are_no_difference() -> None:
    generator = np.random.default_rng(3)
    cls = np.where(generator.random((6, 4)) < 0.6, "to cls", "other")
    encoder = MemberLabels("encoder", cls, cls, cls, cls, (), frozenset({"sink"}))
    sink = np.where(generator.random((8, 4)) < 0.6, "sink", "other")
    decoder = MemberLabels("decoder", sink, sink, sink, sink, (), frozenset({"to cls"}))
    family = family_datasets([encoder, decoder], ["x", "x"], 3, ComparisonOptions())["family"]
    assert family["share"].sel(model="decoder", label="to cls").isnull().all()
    assert family["share_difference_p"].isnull().all()
    assert int(family["matched"].sum()) == 0


def test_page_and_figures(result: Atlas, tmp_path: Path) -> None:
    page = render_family(result, [], tmp_path)
    assert "small" in page
    assert "family-grid" in page
    drawn = [spec.draw(result["family"]) for spec in figures_for("family")]
    assert [len(figures) for figures in drawn] == [1, 1, 1]
    shown = result._repr_mimebundle_()
    assert "by relative depth: small, large" in shown["text/html"]
    assert "small and large" in shown["text/plain"]
