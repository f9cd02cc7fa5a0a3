"""Scatter plots with one point per head: a quantity by layer, or one quantity against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """One quantity of every head, `[layer, head]`, with its label, colour and marker."""

    label: str
    values: np.ndarray
    bounds: tuple[np.ndarray, np.ndarray] | None = None
    colour: str = style.BLUE
    marker: str = "o"


def series_of(
    dataset: xr.Dataset, name: str, dim: str, chosen: dict[str, tuple[str, str, str]]
) -> list[Series]:
    """Return a variable as one series per label of a dim; labels without a number are left out.

    Parameters
    ----------
    dataset : Dataset
        Holds the variable, with its interval where there is one.
    name : str
        The variable, with the dims `layer`, `head` and `dim`.
    dim : str
        The dimension that becomes the series.
    chosen : dict of str to (str, str, str)
        Legend text, colour and marker of labels; other labels get the next of the palette.
    """
    dims = ("layer", "head", dim)
    values = data.values(dataset, name, dims)
    bounds = data.interval(dataset, name, dims)
    series = []
    for index, label in enumerate(data.labels(dataset, dim)):
        values_at_label = values[..., index]
        if not np.isfinite(values_at_label).any():
            continue
        if label in chosen:
            legend_text, colour, marker = chosen[label]
        else:
            legend_text = label
            colour = style.cycle(style.OKABE_ITO, index)
            marker = style.cycle(style.MARKERS, index)
        bounds_at_label = None
        if bounds is not None:
            bounds_at_label = (bounds[0][..., index], bounds[1][..., index])
        series.append(Series(legend_text, values_at_label, bounds_at_label, colour, marker))
    return series


def mean_over_heads(values: np.ndarray) -> np.ndarray:
    """Return the mean over the finite heads of each layer; NaN for a layer without any."""
    return share(np.nansum(values, axis=1), np.isfinite(values).sum(1))


def head_positions(layers: int, heads: int, index: int = 0, count: int = 1) -> np.ndarray:
    """Return the x of every point, `[layer, head]`.

    The heads of a layer stand side by side around their layer's number; each of `count` series has
    its own strip within the layer, in the order of `index`.
    """
    strip_width = 0.76 / count
    strip_centre = (index + 0.5) * strip_width - 0.38
    offsets = np.zeros(1)
    if heads > 1:
        offsets = np.linspace(-0.5, 0.5, heads) * strip_width * 0.72
    return np.arange(layers)[:, None] + strip_centre + offsets[None, :]


def scatter_by_layer(
    ax: Axes, series: Sequence[Series], *, mean_line: bool = True, name_best: bool = False
) -> None:
    """Draw each series: a point per head with its interval, and a line through the layer means.

    Parameters
    ----------
    ax : Axes
        Where to draw.
    series : sequence of Series
        All of the same shape.
    mean_line : bool, default True
        Whether to draw the mean over the heads of each layer.
    name_best : bool, default False
        Whether to write the name of the head with the largest value at its point.
    """
    figure_width = ax.get_figure().get_figwidth()  # type: ignore[union-attr]
    named_points: list[tuple[float, float]] = []
    for index, quantity in enumerate(series):
        layers, heads = quantity.values.shape
        x = head_positions(layers, heads, index, len(series))
        n_points = layers * heads * len(series)
        size = float(np.clip(1100 / n_points**0.85 * figure_width / 7, 1.2, 9.0))
        if quantity.bounds is not None:
            _draw_intervals(ax, x, quantity.bounds, quantity.colour)
        defined = np.isfinite(quantity.values)
        ax.scatter(
            x[defined],
            quantity.values[defined],
            s=size,
            c=quantity.colour,
            marker=quantity.marker,
            alpha=0.55,
            linewidths=0,
            zorder=3,
        )
        if mean_line:
            _draw_mean_line(ax, quantity)
        if name_best and defined.any():
            named_points.append(_name_best(ax, quantity, x, named_points))
    ax.grid(axis="y")


def _draw_intervals(
    ax: Axes, x: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], colour: str
) -> None:
    """Draw a vertical bar from the lower to the upper bound at each point."""
    low, high = bounds
    defined = np.isfinite(low) & np.isfinite(high)
    lower_ends = np.stack([x, low], -1)
    upper_ends = np.stack([x, high], -1)
    bars = np.stack([lower_ends, upper_ends], -2)[defined]
    ax.add_collection(
        LineCollection(list(bars), colors=colour, linewidths=0.5, alpha=0.45, zorder=2)
    )


def _draw_mean_line(ax: Axes, quantity: Series) -> None:
    """Draw the mean over the heads of each layer, on a white outline that sets it off."""
    layers = len(quantity.values)
    means = mean_over_heads(quantity.values)
    many_layers = layers > 14
    ax.plot(np.arange(layers), means, color="white", linewidth=2.2, zorder=4.5)
    ax.plot(
        np.arange(layers),
        means,
        color=quantity.colour,
        linewidth=1.3,
        marker=quantity.marker,
        markersize=2.6 if many_layers else 3.8,
        markeredgewidth=0.3 if many_layers else 0.5,
        markeredgecolor="white",
        zorder=5,
    )


def _name_best(
    ax: Axes, quantity: Series, x: np.ndarray, named_points: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Write the name of the head with the largest value at its point, and return the point.

    The name goes below the point where another named point is near.
    """
    values = quantity.values
    n_layers = values.shape[0]
    layer, head = np.unravel_index(np.nanargmax(values), values.shape)
    point = (float(x[layer, head]), float(values[layer, head]))
    crowded = False
    for other_x, other_y in named_points:
        if abs(point[0] - other_x) < 0.3 * n_layers and abs(point[1] - other_y) < 0.07:
            crowded = True
    in_right_half = layer >= n_layers / 2  # the name then goes left, to stay inside the axes
    ax.annotate(
        head_name(int(layer), int(head)),
        point,
        xytext=(-3 if in_right_half else 3, -3 if crowded else 2),
        textcoords="offset points",
        ha="right" if in_right_half else "left",
        va="top" if crowded else "bottom",
        fontsize=style.SMALL,
        color=quantity.colour,
        zorder=6,
        path_effects=[effects.withStroke(linewidth=1.6, foreground="white")],
    )
    return point


def legend_handles(series: Sequence[Series]) -> list[Line2D]:
    """Return the line and marker of each series, for a legend."""
    handles = []
    for quantity in series:
        handle = Line2D(
            [],
            [],
            color=quantity.colour,
            marker=quantity.marker,
            markersize=4,
            linewidth=1.3,
            label=quantity.label,
        )
        handles.append(handle)
    return handles


def points_by_layer(ax: Axes, x: np.ndarray, y: np.ndarray, size: float) -> None:
    """Draw `x[layer, head]` against `y[layer, head]`, coloured by layer."""
    colours = np.repeat(style.layer_colours(len(x)), x.shape[1], axis=0)
    ax.scatter(
        x.ravel(), y.ravel(), s=size, color=colours, edgecolors="white", linewidths=0.3, zorder=3
    )


def head_points(fig: Figure, ax: Axes, x: np.ndarray, y: np.ndarray, layers: Sequence[int]) -> None:
    """Draw `x[layer, head]` against `y[layer, head]`, coloured by layer, with a colour bar."""
    points_by_layer(ax, x, y, 13)
    ax.grid()
    ax.locator_params(axis="x", nbins=6)
    step = max(1, -(-len(layers) // 8))
    bar = style.colour_bar(
        fig,
        style.layer_scale(len(layers)),
        ax,
        "layer",
        fraction=0.05,
        pad=0.02,
        ticks=np.arange(0, len(layers), step),
    )
    bar.ax.set_yticklabels([str(layer) for layer in layers[::step]])
    bar.minorticks_off()
