"""Figures of other readings of mixing: what they say leaves each layer, and how far they agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from headwise.analyses.offsets.figures import READINGS as LOOKS
from headwise.plots import data, style
from headwise.plots.registry import figure

# Short names: the sides of a matrix have little room.
SHORT = {
    "previous_layer": "previous layer",
    "value_zeroing": "value zeroing",
    "chefer": "gradient-weighted",
}


@figure(
    "attribution",
    name="mixing",
    title="What leaves each layer, by several readings: own and near, or gathered from afar",
    caption="Of what leaves a layer in the place of a token: the share that each reading gives to the token itself, "
    "and the mean distance of all of it, the token itself at 0. Attention is the mean over heads, within the layer; "
    "rollout, flow, gradient-weighted attention and the contribution of the input count from the input on; norms and "
    "value zeroing within the layer, residual and norm included.",
    paper="Abnar & Zuidema 2020; Kobayashi et al. 2021; Mohebbi et al. 2023; Chefer et al. 2021",
    needs=("mixed_own", "mixed_distance"),
)
def mixing_by_layer(dataset: xr.Dataset) -> Figure:
    """`mixed_own` and `mixed_distance[layer_source, layer]`, a line for each reading, with
    intervals."""
    fig = style.new_figure(style.PAGE, 3.0)
    axes = list(fig.subplots(1, 2))
    lines: list[Artist] = []
    for ax, name in zip(axes, ("mixed_own", "mixed_distance"), strict=True):
        lines = _lines(ax, dataset, name)
        ax.set_ylim(bottom=0)
        style.layer_axis(ax, data.numbers(dataset, "layer"))
    axes[0].set_ylabel("share of the token itself")
    axes[1].set_ylabel("mean distance (tokens)")
    style.panel_labels(axes, ["what stays", "how far away, all counted"])
    bars = (
        "Bars: 95 % interval of the mean over examples"
        if data.has(dataset, "mixed_own_low")
        else ""
    )
    notes = [data.source_text(dataset), data.count_text(dataset, "mixed_own"), bars]
    return style.complete(fig, "What leaves each layer, by reading", notes, lines, 3)


@figure(
    "attribution",
    name="between",
    title="How far readings of mixing agree",
    caption="Spearman's correlation of every two readings, row by row over tokens, then over rows, heads and examples; "
    "mean over layers. Left: of each head; right: of what leaves each layer. By layer, with intervals, it is in the "
    "tables.",
    paper="after Pascual et al. 2021, §5, and Mohebbi et al. 2023, §5",
    needs=("between", "mixed_between"),
)
def agreement_of_readings(dataset: xr.Dataset) -> Figure:
    """`between[source, source_b, layer]` and `mixed_between`, its like for layers: means over
    layers."""
    fig = style.new_figure(style.PAGE, 3.6)
    axes = list(fig.subplots(1, 2))
    shade = Normalize(-1, 1)
    for ax, name, rows in (
        (axes[0], "between", "source"),
        (axes[1], "mixed_between", "layer_source"),
    ):
        labels = data.labels(dataset, rows)
        columns = "source_b" if rows == "source" else "layer_source_b"
        values = data.values(dataset, name, (rows, columns, "layer"))
        known = [i for i in range(len(labels)) if np.isfinite(values[i]).any()]
        means = dataset[name].mean("layer").transpose(rows, columns).values
        _matrix(ax, means[np.ix_(known, known)], [labels[i] for i in known], shade)
    style.panel_labels(axes, ["heads", "what leaves a layer"])
    fig.colorbar(
        ScalarMappable(shade, style.DIVERGING),
        ax=axes,
        fraction=0.02,
        pad=0.01,
        label="Spearman's ρ",
    )
    notes = [*data.ground(dataset, "between"), "Means over layers; no interval drawn"]
    return style.complete(fig, "How far readings of mixing agree", notes)


def _lines(ax: Axes, dataset: xr.Dataset, name: str) -> list[Artist]:
    """A line for each reading that has numbers, with its intervals, readings side by side; gives
    the legend."""
    dims = ("layer_source", "layer")
    values, ends = data.values(dataset, name, dims), data.interval(dataset, name, dims)
    known = [place for place in range(len(values)) if np.isfinite(values[place]).any()]
    drawn: list[Artist] = []
    for number, place in enumerate(known):
        words, colour, marker = LOOKS[data.labels(dataset, "layer_source")[place]]
        x = np.arange(values.shape[1]) + (number - (len(known) - 1) / 2) * 0.06
        if ends is not None:
            ax.vlines(x, ends[0][place], ends[1][place], color=colour, linewidth=0.7, alpha=0.5)
        look: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "markersize": 3.5,
            "linewidth": 1.1,
        }
        drawn += ax.plot(x, values[place], label=words, **look)
    return drawn


def _matrix(ax: Axes, values: np.ndarray, labels: list[str], shade: Normalize) -> None:
    shown = [SHORT.get(label, label) for label in labels]
    ax.imshow(
        np.ma.masked_invalid(values), cmap=style.DIVERGING, norm=shade, interpolation="nearest"
    )
    ax.set_xticks(range(len(shown)), shown, rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(shown)), shown)
    ax.tick_params(length=0)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = "white" if abs(value) > 0.75 else "black"
            ax.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=style.SMALL,
                color=ink,
            )
