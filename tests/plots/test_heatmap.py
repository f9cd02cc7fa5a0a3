"""The generic heat map: which cell is where, what is written in it, and one scale over several
panels."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import synthetic
from headwise import plots
from headwise.analyses.surface import figures as surface_figures
from headwise.core.errors import ParameterError
from headwise.plots.heatmap import short


def array(values: np.ndarray | list[list[float]]) -> xr.DataArray:
    return xr.DataArray(np.asarray(values, dtype=float), dims=("layer", "head"))


def image(figure: Figure, axes: int = 0) -> np.ma.MaskedArray:
    return figure.axes[axes].images[0].get_array()


def cells(figure: Figure) -> dict[tuple[int, int], str]:
    """What is written in each cell, by (row from the top, column)."""
    return {
        (round(t.get_position()[1]), round(t.get_position()[0])): t.get_text()
        for t in figure.axes[0].texts
        if isinstance(t, Text)
    }


def test_layer_0_is_at_the_top_and_head_0_at_the_left() -> None:
    values = np.arange(6).reshape(2, 3) / 10
    figure = plots.heatmap(array(values).transpose("head", "layer"))
    axes = figure.axes[0]
    assert np.array_equal(image(figure), values)
    bottom, top = axes.get_ylim()
    assert bottom > top  # row 0 is drawn highest
    left, right = axes.get_xlim()
    assert left < right
    place = axes.transData.transform
    assert place((0, 0))[1] > place((0, 1))[1]
    assert cells(figure) == {
        (0, 0): "0",
        (0, 1): ".10",
        (0, 2): ".20",
        (1, 0): ".30",
        (1, 1): ".40",
        (1, 2): ".50",
    }
    assert axes.get_ylabel().startswith("layer")
    assert axes.get_xlabel() == "head"


def test_tick_labels_are_the_names_of_layers_and_heads() -> None:
    given = array([[1, 2], [3, 4]]).assign_coords(layer=[4, 7], head=[0, 9])
    axes = plots.heatmap(given).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["4", "7"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0", "9"]


def test_nan_is_hatched_and_said() -> None:
    figure = plots.heatmap(array([[0.1, np.nan], [0.3, 0.4]]))
    hatched = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_hatch()]
    assert [(p.get_x(), p.get_y()) for p in hatched] == [(0.5, -0.5)]
    assert (0, 1) not in cells(figure)
    assert "Hatched: not defined" in figure.get_supxlabel()
    assert "Hatched" not in plots.heatmap(array([[0.1, 0.2]])).get_supxlabel()


def test_sorted_heads_carry_their_numbers() -> None:
    figure = plots.heatmap(array([[0.1, 0.9, 0.5], [0.2, np.nan, 0.2]]), sort=True)
    assert image(figure)[0].tolist() == [0.9, 0.5, 0.1]
    assert image(figure)[1].tolist() == [0.2, 0.2, None]
    assert cells(figure) == {(0, 0): "1", (0, 1): "2", (0, 2): "0", (1, 0): "0", (1, 1): "2"}
    assert "rank" in figure.axes[0].get_xlabel()


def test_where_numbers_do_not_fit_they_are_not_spoken_of() -> None:
    crowded = plots.heatmap(array(np.ones((20, 64))), sort=True)
    assert "cells carry" not in " ".join(
        " ".join(text.get_text() for text in crowded.findobj(Text)).split()
    )


@pytest.mark.parametrize(
    ("options", "carry"),
    [
        ({}, True),
        ({"annotate": "head"}, True),
        ({"annotate": "none"}, False),
        ({"annotate": "value"}, False),
    ],
)
def test_head_numbers_are_spoken_of_only_where_they_are_written(
    options: dict[str, str], carry: bool
) -> None:
    figure = plots.heatmap(array([[0.1, 0.9, 0.5], [0.2, 0.3, 0.2]]), sort=True, **options)  # type: ignore[arg-type]
    said = " ".join(" ".join(text.get_text() for text in figure.findobj(Text)).split())
    assert "sorted within each layer" in said
    assert ("cells carry head numbers" in said) == carry


def test_several_panels_share_one_scale() -> None:
    figure = plots.heatmap_panels(
        {"before": array([[0.0, 0.2]]), "after": array([[0.5, 2.0]])}, label="score", unit="nats"
    )
    norms = [axes.images[0].norm for axes in figure.axes[:2]]
    assert [(norm.vmin, norm.vmax) for norm in norms] == [(0.0, 2.0)] * 2
    assert figure.axes[0].get_title("left") == "(a) before"
    assert figure.axes[-1].get_ylabel() == "score (nats)"


def test_a_centre_gets_the_middle_of_the_scale() -> None:
    norm = plots.heatmap(array([[-1.0, 3.0]]), centre=0.0).axes[0].images[0].norm
    assert float(norm(0.0)) == 0.5
    assert float(norm(3.0)) == 1.0
    assert float(norm(-3.0)) == 0.0


@pytest.mark.parametrize("shape", [(1, 1), (12, 12), (30, 9)])
def test_sizes_of_real_models(shape: tuple[int, int]) -> None:
    figure = plots.heatmap(array(np.random.default_rng(0).random(shape)))
    assert figure.get_figwidth() <= 7
    assert figure.get_figheight() <= 9.5
    assert image(figure).shape == shape


def test_all_nan_and_constant_arrays_are_drawn() -> None:
    plots.heatmap(array(np.full((2, 2), np.nan)), sort=True)
    plots.heatmap(array(np.full((2, 2), 3.0)))


def test_wrong_dims_and_options_are_refused() -> None:
    with pytest.raises(ParameterError, match="layer and head"):
        plots.heatmap(xr.DataArray(np.zeros((2, 2)), dims=("layer", "role")))
    with pytest.raises(ParameterError, match="`annotate`"):
        plots.heatmap(array([[1.0]]), annotate="all")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="`arrays`"):
        plots.heatmap_panels({})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.004, "0"),
        (0.07, ".07"),
        (-0.3, "−.30"),
        (0.999, "1.0"),
        (-2.04, "−2.0"),
        (1.25, "1.2"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_the_heads_figure_puts_each_measure_in_its_panel() -> None:
    dataset = synthetic.surface(3, 4)
    figure = surface_figures.heads(dataset)
    titles = [axes.get_title("left") for axes in figure.axes[:6]]
    assert titles[0] == "(a) to the previous token"
    assert titles[4] == "(e) to sep tokens"
    assert np.allclose(image(figure, 0), dataset["position"].values[..., 0])
    assert np.allclose(image(figure, 4), dataset["mass"].sel(token_type="sep").values)
    assert np.allclose(image(figure, 5), dataset["max_weight"].values)
