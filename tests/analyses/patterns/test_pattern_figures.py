"""The figures of `patterns`: drawn from a dataset, from given maps, and refusing nothing to
draw."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.text import Text

from headwise.analyses.patterns import PATTERNS
from headwise.analyses.patterns.figures import (
    COLOURS,
    gallery,
    heads,
    shade,
    shares,
    shares_by_corpus,
)
from headwise.analyses.patterns.store import typical_maps
from headwise.core.errors import ParameterError
from headwise.plots.registry import figures_for


def patterns_dataset(layers: int = 3, count: int = 4) -> xr.Dataset:
    rng = np.random.default_rng(0)
    proportion = rng.dirichlet(np.ones(5), (layers, count))
    proportion[0, 0] = np.nan
    overall = np.nanmean(proportion, (0, 1))
    variables = {
        "proportion": (("layer", "head", "pattern"), proportion),
        "overall_n": (("pattern",), np.full(5, 9)),
    }
    for name in ("overall", "overall_corrected"):
        variables |= {
            name: (("pattern",), overall),
            f"{name}_low": (("pattern",), overall - 0.05),
            f"{name}_high": (("pattern",), overall + 0.05),
        }
    return xr.Dataset(
        variables,
        coords={"layer": np.arange(layers), "head": np.arange(count), "pattern": list(PATTERNS)},
    )


def test_every_registered_figure_is_drawn() -> None:
    drawn = [
        drawing for spec in figures_for("patterns") for drawing in spec.draw(patterns_dataset())
    ]
    assert {d.name for d in drawn} == {"gallery", "shares", "heads"}
    assert all(d.figure.axes for d in drawn)


def test_figures_say_what_is_behind_them() -> None:
    dataset = (
        patterns_dataset()
        .assign(proportion_n=(("layer", "head", "pattern"), np.full((3, 4, 5), 9)))
        .assign_attrs(model="a-model", corpus="a corpus")
    )
    for figure in (shares(dataset), heads(dataset), shares_by_corpus({"pairs": dataset})):
        figure_text = " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")
        assert "a-model on a corpus" in figure_text
        assert "n = 9 examples" in figure_text
        assert "nterval" in figure_text


def test_a_share_of_nothing_is_drawn_whole() -> None:
    dataset = patterns_dataset()
    dataset["overall_corrected"][4] = 0.0
    assert shares(dataset).axes[0].get_xlim()[0] < 0


def test_stacked_bars_are_the_shares() -> None:
    dataset = patterns_dataset()
    axes = shares_by_corpus({"pairs": dataset, "single": dataset}).axes[0]
    heights = np.array([[bar.get_height() for bar in group] for group in axes.containers])
    np.testing.assert_allclose(heights[:, 0], dataset["overall"])
    right = shares(dataset).axes[1]
    heights = np.array([[bar.get_height() for bar in group] for group in right.containers]).T
    np.testing.assert_allclose(heights, dataset["proportion"].mean("head"), atol=1e-9)


def test_heads_are_coloured_by_their_commonest_pattern() -> None:
    dataset = patterns_dataset()
    dataset["proportion"][:] = 0.0
    dataset["proportion"][..., 3] = 1.0
    image = heads(dataset).axes[0].images[0].get_array()
    from matplotlib.colors import to_rgb

    np.testing.assert_allclose(
        image,
        np.broadcast_to(1 - 0.85 * (1 - np.array(to_rgb(COLOURS["block"]))), image.shape),
        atol=1e-6,
    )


def test_the_gallery_shows_the_maps_it_is_given() -> None:
    square = np.random.default_rng(0).dirichlet(np.ones(12), 12)
    axes = gallery(maps={"block": [square], "vertical": [square, square.T]}).axes
    shown = [ax.images[0].get_array() for ax in axes if ax.images]
    assert len(shown) == 3
    np.testing.assert_allclose(shown[1], shade(square))
    with pytest.raises(ParameterError, match="`maps` must hold"):
        gallery(maps={"block": []})
    with pytest.raises(ParameterError, match="at least one corpus"):
        shares_by_corpus({})


def test_typical_maps_come_with_the_package() -> None:
    maps = typical_maps()
    assert list(maps) == list(PATTERNS)
    for own in maps.values():
        assert 1 <= len(own) <= 3
        for weights in own:
            np.testing.assert_allclose(
                weights.sum(-1), 1, atol=0.1
            )  # bytes: small weights are rounded
