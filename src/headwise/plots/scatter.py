"""One point per head: by layer, with intervals and the mean over heads, or one quantity against
another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.patheffects as effects
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.stats.intervals import share


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity of every head, `[layer, head]`, with how to draw it."""

    label: str
    values: np.ndarray
    bounds: tuple[np.ndarray, np.ndarray] | None = None
    colour: str = style.BLUE
    marker: str = "o"


def series_of(
    dataset: xr.Dataset, name: str, dim: str, chosen: dict[str, tuple[str, str, str]]
) -> list[Series]:
    """The items of one dim as series, those all NaN left out; `chosen`: item to (shown label,
    colour, marker)."""
    dims = ("layer", "head", dim)
    values, bounds = data.values(dataset, name, dims), data.interval(dataset, name, dims)
    found = []
    for index, item in enumerate(data.labels(dataset, dim)):
        shown, colour, marker = chosen.get(
            item, (item, style.cycle(style.OKABE_ITO, index), style.cycle(style.MARKERS, index))
        )
        if np.isfinite(values[..., index]).any():
            ends = (bounds[0][..., index], bounds[1][..., index]) if bounds else None
            found.append(Series(shown, values[..., index], ends, colour, marker))
    return found


def mean_over_heads(values: np.ndarray) -> np.ndarray:
    """Mean over the heads of each layer that have a number; NaN for a layer without any."""
    return share(np.nansum(values, axis=1), np.isfinite(values).sum(1))


def head_positions(layers: int, heads: int, index: int = 0, count: int = 1) -> np.ndarray:
    """Where the points stand, `[layer, head]`: heads side by side around their layer, series beside
    series."""
    room = 0.76 / count
    centre = (index + 0.5) * room - 0.38
    spread = np.linspace(-0.5, 0.5, heads) * room * 0.72 if heads > 1 else np.zeros(1)
    return np.arange(layers)[:, None] + centre + spread[None, :]


def scatter_by_layer(
    ax: Axes, series: Sequence[Series], *, mean_line: bool = True, name_best: bool = False
) -> None:
    """Draw each series: a point per head with its interval, and a line through the means over
    heads."""
    named: list[tuple[float, float]] = []
    for index, one in enumerate(series):
        layers, heads = one.values.shape
        x = head_positions(layers, heads, index, len(series))
        width = ax.get_figure().get_figwidth()  # type: ignore[union-attr]
        size = float(np.clip(1100 / (layers * heads * len(series)) ** 0.85 * width / 7, 1.2, 9.0))
        if one.bounds is not None:
            low, high = one.bounds
            seen = np.isfinite(low) & np.isfinite(high)
            bars = np.stack([np.stack([x, low], -1), np.stack([x, high], -1)], -2)[seen]
            ax.add_collection(
                LineCollection(list(bars), colors=one.colour, linewidths=0.5, alpha=0.45, zorder=2)
            )
        seen = np.isfinite(one.values)
        ax.scatter(
            x[seen],
            one.values[seen],
            s=size,
            c=one.colour,
            marker=one.marker,
            alpha=0.55,
            linewidths=0,
            zorder=3,
        )
        if mean_line:
            means, many = mean_over_heads(one.values), layers > 14
            ax.plot(np.arange(layers), means, color="white", linewidth=2.2, zorder=4.5)
            sizes: dict[str, Any] = {
                "markersize": 2.6 if many else 3.8,
                "markeredgewidth": 0.3 if many else 0.5,
            }
            line: dict[str, Any] = {
                "color": one.colour,
                "linewidth": 1.3,
                "marker": one.marker,
                **sizes,
            }
            ax.plot(np.arange(layers), means, markeredgecolor="white", zorder=5, **line)
        if name_best and seen.any():
            named.append(_name_best(ax, one, x, named))
    ax.grid(axis="y")


def _name_best(
    ax: Axes, one: Series, x: np.ndarray, named: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Write the name of the head with the largest value at its point, below it where another is
    near; returns where."""
    layer, head = np.unravel_index(np.nanargmax(one.values), one.values.shape)
    place = float(x[layer, head]), float(one.values[layer, head])
    crowded = any(
        abs(place[0] - a) < 0.3 * one.values.shape[0] and abs(place[1] - b) < 0.07 for a, b in named
    )
    left = layer >= one.values.shape[0] / 2  # keep the text inside the axes
    ax.annotate(
        head_name(int(layer), int(head)),
        place,
        xytext=(-3 if left else 3, -3 if crowded else 2),
        textcoords="offset points",
        ha="right" if left else "left",
        va="top" if crowded else "bottom",
        fontsize=style.SMALL,
        color=one.colour,
        zorder=6,
        path_effects=[effects.withStroke(linewidth=1.6, foreground="white")],
    )
    return place


def legend_handles(series: Sequence[Series]) -> list[Line2D]:
    """What the legend shows for each series."""
    return [
        Line2D([], [], color=s.colour, marker=s.marker, markersize=4, linewidth=1.3, label=s.label)
        for s in series
    ]


def points_by_layer(ax: Axes, x: np.ndarray, y: np.ndarray, size: float) -> None:
    """Draw `x[layer, head]` against `y[layer, head]`, coloured by layer."""
    colours = np.repeat(style.layer_colours(len(x)), x.shape[1], axis=0)
    ax.scatter(
        x.ravel(), y.ravel(), s=size, color=colours, edgecolors="white", linewidths=0.3, zorder=3
    )


def head_points(fig: Figure, ax: Axes, x: np.ndarray, y: np.ndarray, layers: Sequence[int]) -> None:
    """Draw `x[layer, head]` against `y[layer, head]`, coloured by layer, with a bar that says which
    colour is which."""
    points_by_layer(ax, x, y, 13)
    ax.grid()
    ax.locator_params(axis="x", nbins=6)
    step = max(1, -(-len(layers) // 8))
    place: dict[str, Any] = {
        "fraction": 0.05,
        "pad": 0.02,
        "ticks": np.arange(0, len(layers), step),
    }
    bar = style.colour_bar(fig, style.layer_scale(len(layers)), ax, "layer", **place)
    bar.ax.set_yticklabels([str(layer) for layer in layers[::step]])
    bar.minorticks_off()
