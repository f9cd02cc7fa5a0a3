"""Figures of syntax and families: drawn for several shapes, saying what they must, from results
with gaps too."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.text import Text

from headwise import plots
from headwise.analyses.dependency.arcs import PairRules
from headwise.analyses.dependency.figures import dependency_table
from headwise.analyses.dependency.result import PairTotals, accuracy_dataset
from headwise.analyses.distance.analysis import Distance, distance_dataset
from headwise.plots import style
from headwise.text.example import UPOS

LABELS = ("all", "det", "nsubj", "obj", "rare", "vocative")
SHAPES = [
    (4, 3),
    (1, 4),
    (2, 1),
    pytest.param(12, 12, marks=pytest.mark.slow),
    pytest.param(24, 16, marks=pytest.mark.slow),
]


def dependency_dataset(layers: int, heads: int, causal: bool = False) -> xr.Dataset:
    """From made-up counts: `obj` is what the last head of the last layer does, `rare` is rare,
    `vocative` has none."""
    rules = PairRules(LABELS, reach=3)
    generator = np.random.default_rng(0)
    pairs = generator.integers(20, 60, size=(len(LABELS), rules.bins)).astype(float)
    pairs[LABELS.index("rare")] = np.eye(rules.bins)[1]
    pairs[LABELS.index("vocative")] = 0
    possible = np.broadcast_to(pairs, (2, layers, heads, *pairs.shape)).copy()
    if causal:
        possible[0, ..., 4:] = 0
        possible[1, ..., :3] = 0
    best_table = np.floor(possible * generator.uniform(0, 0.5, size=possible.shape))
    best_table[0, -1, -1, LABELS.index("obj")] = np.floor(
        possible[0, -1, -1, LABELS.index("obj")] * 0.9
    )
    none = np.zeros((2, *pairs.shape[:1], 2))
    simple = np.concatenate([possible[:, 0, 0], none], -1)
    # As if each of ten documents had a tenth of the pairs.
    shares = [
        part[None].repeat(10, 0) / 10
        for part in (best_table.sum(-1), possible[:, :, 0].sum(-1), simple)
    ]
    no_upos = np.zeros((10, 2, len(pairs), len(UPOS)))
    dataset = accuracy_dataset(PairTotals(*shares, no_upos, pairs), rules, "holm").assign_coords(
        layer=np.arange(layers), head=np.arange(heads)
    )
    for group in ("with", "without"):
        for suffix in ("", "_n", "_low", "_high"):
            dataset[f"best_noop_{group}{suffix}"] = (
                "relation",
                np.full(len(LABELS), 137 if suffix == "_n" else 0.3),
            )
    return dataset.assign_attrs(examples=137, model="tiny-bert", corpus="made-up sentences")


@cache
def placed_heads(layers: int, heads: int) -> xr.Dataset:
    points = np.random.default_rng(1).normal(size=(layers * heads, 4)) * 0.2
    js = ((points[:, None] - points[None]) ** 2).sum(-1)
    return distance_dataset(js, layers, heads, Distance(permutations=19))


def made_distance(layers: int, heads: int, behaviours: bool) -> xr.Dataset:
    about = {"tokens": 5000, "examples": 137, "model": "tiny-bert", "corpus": "made-up sentences"}
    best_table = placed_heads(layers, heads).assign_attrs(about)
    if behaviours:
        best_table["behaviour"] = (
            "head_a",
            ["other", "to sep", "obj", "previous token"] * (layers * heads // 4)
            + ["broad"] * (layers * heads % 4),
        )
    return best_table


def texts(figure: Figure) -> str:
    return "\n".join(
        text.get_text() for text in figure.findobj(Text) if text.get_visible()
    ).replace("\n", " ")


def checked_text(figure: Figure) -> str:
    figure_text = texts(figure)
    assert "tiny-bert on made-up sentences" in figure_text
    width, height = figure.get_size_inches()
    assert width <= style.PAGE + 1e-6
    assert height <= 9.5
    assert (
        min(
            text.get_fontsize()
            for text in figure.findobj(Text)
            if text.get_visible() and text.get_text()
        )
        >= style.SMALL
    )
    return figure_text


@pytest.mark.parametrize(("layers", "heads"), SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_figures_of_dependency(
    layers: int, heads: int, causal: bool, request: pytest.FixtureRequest
) -> None:
    if (layers, heads) != SHAPES[0]:  # that everything has room is seen of one shape
        request.getfixturevalue("not_laid_out")
    dataset = dependency_dataset(layers, heads, causal)
    drawn = {
        one.name: one for spec in plots.figures_for("dependency") for one in spec.draw(dataset)
    }
    assert {"table", "accuracy", "relations", "no-op"} <= set(drawn)
    for one in drawn.values():
        figure_text = checked_text(one.figure)
        assert "n = " in figure_text
        assert "vocative" not in figure_text  # nothing was counted
    best = f"L{layers - 1}H{heads - 1}"
    figure_text = texts(drawn["table"].figure)
    assert best in figure_text
    assert f"{layers}-{heads}" in figure_text  # the paper's name
    assert best in texts(drawn["accuracy"].figure)
    assert "Wilson" in figure_text


def test_the_table_is_the_datasets() -> None:
    dataset = dependency_dataset(3, 4)
    table = dependency_table(dataset)
    assert isinstance(table, pd.DataFrame)
    assert "rare" not in list(table["relation"])
    assert "rare" in list(dependency_table(dataset, fewest=1)["relation"])
    row = table.set_index("relation").loc["obj"]
    assert (row["head"], row["head_in_paper"], row["direction"]) == (
        "L2H3",
        "3-4",
        "dependent_to_head",
    )
    assert row["accuracy"] == pytest.approx(float(dataset["accuracy"].sel(relation="obj").max()))
    assert row["baseline"] == pytest.approx(float(dataset["baseline"].sel(relation="obj")))
    assert row["offset"] == int(dataset["baseline_offset"].sel(relation="obj"))
    assert list(table["pairs"]) == sorted(table["pairs"], reverse=True)


@pytest.mark.parametrize(("layers", "heads"), SHAPES)
@pytest.mark.parametrize("behaviours", [False, True])
def test_figures_of_distance(
    layers: int, heads: int, behaviours: bool, request: pytest.FixtureRequest
) -> None:
    if (layers, heads) != SHAPES[0]:
        request.getfixturevalue("not_laid_out")
    dataset = made_distance(layers, heads, behaviours)
    drawn = {one.name: one for spec in plots.figures_for("distance") for one in spec.draw(dataset)}
    assert {"map", "tree", "layers"} <= set(drawn)
    for one in drawn.values():
        assert "n = 137 examples, 5,000 tokens" in checked_text(one.figure)
    figure_text = texts(drawn["map"].figure)
    assert ("by behaviour" in figure_text) == behaviours
    if layers * heads <= 60:
        assert f"L{layers - 1}H{heads - 1}" in texts(drawn["tree"].figure)


def test_nothing_to_draw() -> None:
    empty = dependency_dataset(2, 2)
    empty["best_accuracy"] = empty["best_accuracy"] * np.nan
    assert not any(
        spec.draw(empty) for spec in plots.figures_for("dependency") if spec.name == "table"
    )


@pytest.mark.parametrize("name", ["table", "accuracy"])
def test_captions_name_the_baselines_that_heads_are_held_against(name: str) -> None:
    (spec,) = (spec for spec in plots.figures_for("dependency") if spec.name == name)
    assert all(
        words in spec.caption
        for words in ("fixed offset", "uniform attention", "attention on the first token")
    )
