"""Figures of other measures of mixing: what leaves each layer according to them, and how well they
agree."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from headwise.analyses.offsets.figures import SOURCE_STYLES
from headwise.plots import data, style
from headwise.plots.registry import figure

# Short names: the sides of a matrix have little room.
SHORT_NAMES = {
    "previous_layer": "previous layer",
    "value_zeroing": "value zeroing",
    "chefer": "gradient-weighted",
}


@figure(
    "attribution",
    name="mixing",
    title="What leaves each layer, by several measures: own and near, or gathered from afar",
    caption="Of what leaves a layer at a token's position: the share that each measure gives to the token itself, "
    "and the mean distance of all of it, the token itself at 0. Attention is the mean over heads, within the layer; "
    "rollout, flow, gradient-weighted attention and the contribution of the input count from the input on; norms and "
    "value zeroing within the layer, residual and norm included.",
    paper="Abnar & Zuidema 2020; Kobayashi et al. 2021; Mohebbi et al. 2023; Chefer et al. 2021",
    needs=("mixed_own", "mixed_distance"),
)
def mixing_by_layer(dataset: xr.Dataset) -> Figure:
    """`mixed_own` and `mixed_distance[layer_source, layer]`, a line for each measure, with
    intervals."""
    fig = style.new_figure(style.PAGE, 3.0)
    axes = list(fig.subplots(1, 2))
    legend: list[Artist] = []
    for ax, name in zip(axes, ("mixed_own", "mixed_distance"), strict=True):
        legend = _draw_lines(ax, dataset, name)
        ax.set_ylim(bottom=0)
        style.layer_axis(ax, data.numbers(dataset, "layer"))
    axes[0].set_ylabel("share of the token itself")
    axes[1].set_ylabel("mean distance (tokens)")
    style.panel_labels(axes, ["what stays", "how far away, all counted"])
    notes = [data.source_text(dataset), data.count_text(dataset, "mixed_own")]
    if data.has(dataset, "mixed_own_low"):
        notes.append("Bars: 95 % interval of the mean over examples")
    return style.complete(fig, "What leaves each layer, by measure", notes, legend, 3)


@figure(
    "attribution",
    name="between",
    title="How well measures of mixing agree",
    caption="Spearman's correlation of every two measures, row by row over tokens, then over rows, heads and examples; "
    "mean over layers. Left: of each head; right: of what leaves each layer. By layer, with intervals, it is in the "
    "tables.",
    paper="after Pascual et al. 2021, §5, and Mohebbi et al. 2023, §5",
    needs=("between", "mixed_between"),
)
def agreement_of_readings(dataset: xr.Dataset) -> Figure:
    """`between[source, source_b, layer]` and `mixed_between`, the same of layers: means over
    layers."""
    fig = style.new_figure(style.PAGE, 3.6)
    axes = list(fig.subplots(1, 2))
    shade = Normalize(-1, 1)
    for ax, name, rows, columns in (
        (axes[0], "between", "source", "source_b"),
        (axes[1], "mixed_between", "layer_source", "layer_source_b"),
    ):
        labels = data.labels(dataset, rows)
        by_layer = data.values(dataset, name, (rows, columns, "layer"))
        known = [i for i in range(len(labels)) if np.isfinite(by_layer[i]).any()]
        means = dataset[name].mean("layer").transpose(rows, columns).values
        _draw_matrix(ax, means[np.ix_(known, known)], [labels[i] for i in known], shade)
    style.panel_labels(axes, ["heads", "what leaves a layer"])
    fig.colorbar(
        ScalarMappable(shade, style.DIVERGING),
        ax=axes,
        fraction=0.02,
        pad=0.01,
        label="Spearman's ρ",
    )
    notes = [*data.source_notes(dataset, "between"), "Means over layers; no interval drawn"]
    return style.complete(fig, "How well measures of mixing agree", notes)


def _draw_lines(ax: Axes, dataset: xr.Dataset, name: str) -> list[Artist]:
    """Draw a line for each measure that has values, with intervals; return the legend."""
    dims = ("layer_source", "layer")
    values = data.values(dataset, name, dims)
    bounds = data.interval(dataset, name, dims)
    sources = data.labels(dataset, "layer_source")
    known = [i for i in range(len(values)) if np.isfinite(values[i]).any()]
    legend: list[Artist] = []
    for number, i in enumerate(known):
        label, colour, marker = SOURCE_STYLES[sources[i]]
        # Measures are drawn side by side, so that their intervals do not overlap.
        x = np.arange(values.shape[1]) + (number - (len(known) - 1) / 2) * 0.06
        if bounds is not None:
            ax.vlines(x, bounds[0][i], bounds[1][i], color=colour, linewidth=0.7, alpha=0.5)
        legend += ax.plot(
            x,
            values[i],
            label=label,
            color=colour,
            marker=marker,
            markersize=3.5,
            linewidth=1.1,
        )
    return legend


def _draw_matrix(ax: Axes, values: np.ndarray, labels: list[str], shade: Normalize) -> None:
    short_labels = [SHORT_NAMES.get(label, label) for label in labels]
    ax.imshow(
        np.ma.masked_invalid(values), cmap=style.DIVERGING, norm=shade, interpolation="nearest"
    )
    positions = range(len(short_labels))
    ax.set_xticks(positions, short_labels, rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(positions, short_labels)
    ax.tick_params(length=0)
    for (row, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        ax.text(
            column,
            row,
            f"{value:.2f}",
            ha="center",
            va="center",
            fontsize=style.SMALL,
            color="white" if abs(value) > 0.75 else "black",
        )
