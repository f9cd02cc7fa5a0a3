"""The figures of `attribution`: drawn from made-up numbers, saying what they must, refusing what
cannot be drawn."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from headwise import plots
from headwise.analyses.attribution.figures import contribution_centre, correlation, special_tokens
from headwise.analyses.attribution.map_figures import (
    five_patterns,
    head_maps,
    map_pairs,
    sample_word,
    word_mix,
)
from headwise.core.errors import ParameterError
from headwise.plots import style

SOURCES = ["attention", "previous_layer", "input", "rollout", "norm"]
PATTERNS = ["vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous"]


def attribution_dataset(layers: int = 3, heads: int = 4, n: int = 12, seed: int = 0) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    heads_dims, maps = ("source", "layer", "head"), ("layer", "head", "token", "source_token")
    variables = {}
    for name, shape, dims in (
        ("pearson", (5, layers, heads), heads_dims),
        ("spearman", (5, layers, heads), heads_dims),
        ("share", (5, layers, heads, 4, 4), (*heads_dims, "receiver", "token_type")),
        ("pattern_share", (5, layers, 5), ("source", "layer", "pattern")),
        ("mixed_own", (4, layers), ("layer_source", "layer")),
        ("mixed_distance", (4, layers), ("layer_source", "layer")),
        ("between", (5, 5, layers), ("source", "source_b", "layer")),
        ("mixed_between", (4, 4, layers), ("layer_source", "layer_source_b", "layer")),
    ):
        values = rng.random(shape)
        if name == "pattern_share":
            values = values / values.sum(-1, keepdims=True)
        if name in ("pearson", "spearman"):
            values[0] = np.nan
        counts = np.where(np.isnan(values), 0, 137)
        variables |= {
            name: (dims, values),
            f"{name}_n": (dims, counts),
            f"{name}_low": (dims, values - 0.01),
            f"{name}_high": (dims, values + 0.01),
        }
    variables["centre"] = (heads_dims, rng.normal(size=(5, layers, heads)))
    variables["mean_offset_n"] = (heads_dims, np.full((5, layers, heads), 137))
    for name in ("attention", "previous_layer", "input"):
        values = rng.random((layers, heads, n, n))
        variables[f"sample_{name}"] = (maps, values / values.sum(-1, keepdims=True))
    values = rng.random((layers, n, n))
    variables["sample_layer"] = (
        ("layer", "token", "source_token"),
        values / values.sum(-1, keepdims=True),
    )
    texts = ["[CLS]", *(f"word{chr(97 + i)}" for i in range(n - 2)), "[SEP]"]
    coords = {
        "source": SOURCES,
        "source_b": SOURCES,
        **{
            key: [one for one in SOURCES if one != "previous_layer"]
            for key in ("layer_source", "layer_source_b")
        },
        "layer": np.arange(layers),
        "head": np.arange(heads),
        "receiver": ["all", "cls", "sep", "other"],
    }
    coords |= {
        "token_type": ["cls", "sep", "punct", "other"],
        "pattern": PATTERNS,
        "token_text": ("token", texts),
    }
    attrs = {
        "model": "tiny-bert",
        "corpus": "made-up sentences",
        "method": "sketch",
        "total_variation": 0.05,
        "length_rule": "inputs of at most 32 tokens",
    }
    return xr.Dataset(variables, coords, attrs)


def texts(figure: Figure) -> str:
    return "\n".join(
        text.get_text() for text in figure.findobj(Text) if text.get_visible()
    ).replace("\n", " ")


@pytest.mark.parametrize(
    ("layers", "heads"), [(3, 4), (1, 1), pytest.param(24, 16, marks=pytest.mark.slow)]
)
def test_every_figure_is_drawn_and_says_what_it_shows(
    layers: int, heads: int, request: pytest.FixtureRequest
) -> None:
    if layers != 3:  # that everything has room is seen of one shape
        request.getfixturevalue("not_laid_out")
    dataset = attribution_dataset(layers, heads)
    specs = plots.figures_for("attribution")
    names = [
        "correlation",
        "centre",
        "special",
        "patterns",
        "maps",
        "five",
        "head",
        "word",
        "mixing",
        "between",
    ]
    assert [spec.name for spec in specs] == names
    for spec in specs:
        (drawn,) = spec.draw(dataset)
        said = texts(drawn.figure)
        assert "tiny-bert on made-up sentences" in said, spec.name
        assert "interval" in said, spec.name
        assert "n = 137 examples" in said or "One input of 12 tokens" in said, spec.name
        assert "layer" in said
        width, height = drawn.figure.get_size_inches()
        assert width <= style.PAGE + 1e-6
        assert height <= 9.5, spec.name
        sizes = [
            text.get_fontsize()
            for text in drawn.figure.findobj(Text)
            if text.get_visible() and text.get_text()
        ]
        assert min(sizes) >= style.SMALL, spec.name
        assert drawn.caption
        assert "Pascual" in drawn.paper or spec.name == "mixing"


@pytest.mark.usefixtures("not_laid_out")
def test_medians_and_points_are_the_numbers() -> None:
    dataset = attribution_dataset()
    figure = correlation(dataset, sources=["input"])
    lines = [line for line in figure.axes[0].lines if line.get_color() == style.BLACK]
    medians = [float(line.get_ydata()[0]) for line in lines]
    assert medians == pytest.approx(np.median(dataset["pearson"].sel(source="input"), axis=1))
    assert "5.0 % (total variation)" in texts(figure)
    with pytest.raises(ParameterError, match="has a correlation"):
        correlation(dataset, sources=["attention"])


@pytest.mark.usefixtures("not_laid_out")
def test_kinds_of_token_that_no_text_has_are_not_named() -> None:
    dataset = attribution_dataset()
    assert {"cls", "sep"} <= set(texts(special_tokens(dataset)).split())
    gone = dataset.assign(
        share=dataset["share"].where(~dataset["token_type"].isin(["cls", "sep"]), 0.0)
    )
    said = texts(special_tokens(gone)).split()
    assert not {"cls", "sep"} & set(said)
    assert {"punct", "other"} <= set(said)


@pytest.mark.usefixtures("not_laid_out")
def test_no_point_lies_below_its_panel() -> None:
    dataset = attribution_dataset()
    dataset["pearson"].loc[
        {"source": "input", "layer": 2, "head": 1}
    ] = -0.6  # in a panel that is not the last
    dataset["pearson_low"].loc[{"source": "input", "layer": 2, "head": 1}] = -0.7
    for ax in correlation(dataset).axes:
        assert ax.get_ylim()[0] < -0.7


def test_a_legend_is_no_wider_than_its_figure() -> None:
    figure = style.new_figure(style.COLUMN, 2.0)
    figure.subplots()
    handles = [Line2D([], [], label=f"the series of number {i}") for i in range(4)]
    style.annotate_figure(figure, "Title", ["A note"], handles, columns=4)
    (legend,) = figure.legends
    assert legend.get_window_extent().width <= figure.bbox.width
    assert [text.get_text() for text in legend.get_texts()] == [
        handle.get_label() for handle in handles
    ]


@pytest.mark.usefixtures("not_laid_out")
def test_maps_stand_above_each_other() -> None:
    dataset = attribution_dataset(2, 3, n=6)
    attention, deep = dataset["sample_attention"].values, dataset["sample_input"].values
    figure = map_pairs(attention, deep, dataset["token_text"].values.tolist())
    image = figure.axes[0].images[0].get_array()
    assert np.allclose(image[:6, :6], attention[0, 0])
    assert np.allclose(image[7:13, :6], deep[0, 0])
    assert np.allclose(image[15 + 0 : 15 + 6, 7:13], attention[1, 1])
    part = map_pairs(attention, deep, dataset["token_text"].values.tolist(), layers=[1])
    assert np.allclose(part.axes[0].images[0].get_array()[:6, :6], attention[1, 0])
    for wrong in ({"tokens": ["a"]}, {"layers": [7]}):
        with pytest.raises(ParameterError):
            map_pairs(
                attention, deep, **({"tokens": dataset["token_text"].values.tolist()} | wrong)
            )


@pytest.mark.usefixtures("not_laid_out")
def test_one_word() -> None:
    dataset = attribution_dataset(2, 3, n=6)
    layers, tokens = dataset["sample_layer"].values, dataset["token_text"].values.tolist()
    figure = word_mix(layers, tokens, 2)
    assert np.allclose(figure.axes[0].images[0].get_array(), layers[:, 2])
    assert "wordb" in texts(figure)
    assert "[CLS]” is made of" not in texts(sample_word(dataset))
    for wrong in ((layers, tokens, 6), (layers[0], tokens, 1)):
        with pytest.raises(ParameterError):
            word_mix(*wrong)


@pytest.mark.usefixtures("not_laid_out")
def test_several_models_side_by_side() -> None:
    figure = contribution_centre(
        {"English": attribution_dataset(seed=1), "German": attribution_dataset(5, 2, seed=2)}
    )
    assert len(figure.axes) == 2
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    said = texts(figure)
    assert "English" in said
    assert "German" in said
    assert "rollout" not in said


@pytest.mark.usefixtures("not_laid_out")
def test_one_head_shows_where_it_looks_and_both_contributions() -> None:
    dataset = attribution_dataset()
    with style.context():
        figure, several, five = (
            head_maps(dataset),
            head_maps(dataset, heads=["L0H1", "L2H3"]),
            five_patterns(dataset),
        )
    told = dataset["pearson"].sel(source="input").values
    layer, head = np.unravel_index(told.argmin(), told.shape)
    shown = [np.asarray(ax.images[0].get_array()) for ax in figure.axes if ax.images]
    names = ("attention", "previous_layer", "input")
    assert all(
        np.array_equal(one, dataset[f"sample_{name}"].values[layer, head])
        for one, name in zip(shown[:3], names, strict=True)
    )
    assert f"L{layer}H{head}, attention" in texts(figure)
    assert sum(bool(ax.images) for ax in several.axes) - 1 in (
        5,
        6,
    )  # the scale may count as an image
    assert "of the previous layer" in texts(five)
    with pytest.raises(ParameterError, match="L9H0"):
        head_maps(dataset, heads=["L9H0"])
