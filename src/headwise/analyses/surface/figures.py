"""Figures of the surface statistics: what kinds of token and which positions heads attend to, and how broadly (Clark et al. 2019, §3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure
from headwise.plots.scatter import Series, legend_handles, scatter_by_layer, series_of

_LH = ("layer", "head")
_MEAN_LINE = "One point per head; lines: mean over the heads of a layer"
_TYPES = {
    "cls": ("cls: first or class token", style.BLUE, "o"),
    "sep": ("sep: separator or end token", style.VERMILION, "s"),
    "punct": ("punct: . and ,", style.GREEN, "^"),
    "other": ("other tokens", style.BLACK, "D"),
}
_POSITIONS = {
    "-1": ("previous token (−1)", style.BLUE, "o"),
    "0": ("the token itself (0)", style.BLACK, "D"),
    "1": ("next token (+1)", style.VERMILION, "s"),
}


@figure(
    "surface",
    name="token-types",
    title="Attention to each kind of token, by layer",
    caption="Each point is one head: the share of its attention that falls on tokens of one kind, from all tokens, from separators only, and from "
    "all other tokens. A head that rests on separators, whatever the token it looks from, does nothing there (a no-op).",
    paper="Clark et al. 2019, §3.2, Fig 2",
    needs=("mass", "mass_from_sep", "mass_from_other"),
)
def token_types(dataset: xr.Dataset) -> Figure:
    """Mean attention mass on each token type by layer, one point per head (Clark et al. 2019, Fig 2).

    Draws `mass`, `mass_from_sep` and `mass_from_other`, each `[layer, head, token_type]`; panels all NaN are left out.
    """
    all_panels = (
        ("mass", "from all tokens"),
        ("mass_from_sep", "from sep tokens"),
        ("mass_from_other", "from all but sep tokens"),
    )
    names = [(name, title) for name, title in all_panels if data.has(dataset, name)]
    if not data.has(dataset, "mass_from_sep"):  # without sep tokens, all but sep are all
        names = names[:1]
    width = style.PAGE if len(names) > 1 else style.COLUMN
    fig = style.new_figure(width, 2.75 if len(names) > 1 else 3.0)
    axes = np.atleast_1d(fig.subplots(1, len(names), sharey=True))
    shown: dict[str, Series] = {}
    for ax, (name, _) in zip(axes, names, strict=True):
        series = series_of(dataset, name, "token_type", _TYPES)
        shown.update({one.label: one for one in series})
        scatter_by_layer(ax, series)
        style.layer_axis(ax, data.numbers(dataset, "layer"))
        ax.set_ylim(-0.02, 1.02)
    axes[0].set_ylabel("attention mass (share of 1)")
    style.panel_labels(list(axes), [title for _, title in names])
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, *(name for name, _ in names)),
        _MEAN_LINE,
        data.interval_text(any(data.interval(dataset, name, (*_LH, "token_type")) is not None for name, _ in names)),
        "There is no sep token to look from" if len(names) == 1 else "",
    ]
    handles = legend_handles(list(shown.values()))
    style.annotate_figure(fig, "Attention to each kind of token", notes, handles, 4 if len(names) > 1 else 2)
    return style.finish(fig)


@figure(
    "surface",
    name="positions",
    title="Attention to the previous, the same and the next token",
    caption="Each point is one head: the mean weight on the token just before, on the token itself and on the token just after, over the tokens that "
    "have one. The head with the largest mean is named.",
    paper="Clark et al. 2019, §3.1",
    needs=("position",),
)
def positions(dataset: xr.Dataset) -> Figure:
    """Mean attention to the neighbouring positions by layer, one point per head: `position[layer, head, offset]` for offsets −1, 0, 1."""
    fig = style.new_figure(style.COLUMN, 3.0)
    ax = fig.subplots()
    series = series_of(dataset, "position", "offset", _POSITIONS)
    scatter_by_layer(ax, series, name_best=True)
    style.layer_axis(ax, data.numbers(dataset, "layer"))
    ax.set_ylim(-0.02, 1.06)
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.set_ylabel("mean attention weight")
    bars = data.interval(dataset, "position", (*_LH, "offset")) is not None
    notes = [data.source_text(dataset), data.count_text(dataset, "position"), _MEAN_LINE, data.interval_text(bars)]
    style.annotate_figure(fig, "Attention to neighbouring positions", notes, legend_handles(series), 2)
    return style.finish(fig)


@figure(
    "surface",
    name="entropy",
    title="How broadly heads attend: entropy by layer",
    caption="Each point is one head: the mean entropy of its attention, in nats, over all tokens and for the first ([CLS]) token alone. The dashed line "
    "is a head that attends to everything alike; low points are heads that look at one or few tokens.",
    paper="Clark et al. 2019, §3.3, Fig 4",
    needs=("entropy",),
)
def entropy(dataset: xr.Dataset) -> Figure:
    """Mean entropy of attention by layer, with the uniform head as reference (Clark et al. 2019, Fig 4).

    Draws `entropy[layer, head]` and, where it is not all NaN, `entropy_from_cls[layer, head]`; the reference is the variable (or attribute)
    `entropy_uniform`.
    """
    panels = [("entropy", "from all tokens"), ("entropy_from_cls", "from the cls token")]
    panels = [(name, title) for name, title in panels if data.has(dataset, name)]
    fig = style.new_figure(style.PAGE if len(panels) > 1 else style.COLUMN, 2.6)
    axes = np.atleast_1d(fig.subplots(1, len(panels), sharey=True))
    top = 0.0
    for ax, (name, _) in zip(axes, panels, strict=True):
        one = Series(name, data.values(dataset, name, _LH), data.interval(dataset, name, _LH), style.BLUE)
        scatter_by_layer(ax, [one])
        reference = _uniform(dataset, one.values.shape[0], f"{name.replace('entropy', 'entropy_uniform')}")
        top = max(top, float(np.nanmax(one.values)), _draw_reference(ax, reference))
        style.layer_axis(ax, data.numbers(dataset, "layer"))
    axes[0].set_ylim(0, max(top, 0.1) * 1.14)
    axes[0].set_ylabel("mean entropy (nats)")
    style.panel_labels(list(axes), [title for _, title in panels])
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, *(name for name, _ in panels)),
        _MEAN_LINE,
        data.interval_text(any(data.interval(dataset, name, _LH) is not None for name, _ in panels)),
        ""
        if len(panels) > 1
        else "From the cls token: not defined for this model (its first token sees only itself, or there is none)",
    ]
    style.annotate_figure(fig, "How broadly heads attend", notes)
    return style.finish(fig)


@figure(
    "surface",
    name="max-weight",
    title="The largest weight of a row, by layer",
    caption="Each point is one head: the mean of the largest weight in each row. A head at 0.1 puts at most a tenth of its attention on any one token; "
    "a head near 1 picks a single token.",
    paper="Clark et al. 2019, §3.3",
    needs=("max_weight",),
)
def max_weight(dataset: xr.Dataset) -> Figure:
    """Mean largest attention weight of a row by layer: `max_weight[layer, head]`."""
    fig = style.new_figure(style.COLUMN, 2.5)
    ax = fig.subplots()
    bounds = data.interval(dataset, "max_weight", _LH)
    scatter_by_layer(
        ax, [Series("max_weight", data.values(dataset, "max_weight", _LH), bounds, style.VERMILION)], name_best=True
    )
    style.layer_axis(ax, data.numbers(dataset, "layer"))
    ax.set_ylim(0, 1.06)
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.set_ylabel("mean largest weight of a row")
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "max_weight"),
        _MEAN_LINE,
        data.interval_text(bounds is not None),
    ]
    style.annotate_figure(fig, "How much the most attended token gets", notes)
    return style.finish(fig)


@figure(
    "surface",
    name="heads",
    title="Every head at a glance",
    caption="The same means as heat maps: one row per layer (0 at the top), one column per head. All panels share one scale, 0 to 1.",
    paper="Clark et al. 2019, §3.1-3.3",
    needs=("position", "mass", "max_weight"),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps `[layer, head]` of position, token type and largest weight on one scale; hatched where there is no number."""
    panels: dict[str, xr.DataArray] = {}
    wanted = {
        "-1": "to the previous token",
        "0": "to itself",
        "1": "to the next token",
        "cls": "to cls tokens",
        "sep": "to sep tokens",
    }
    for name, dim in (("position", "offset"), ("mass", "token_type")):
        if name in dataset.variables:
            cube = data.values(dataset, name, (*_LH, dim))
            for index, item in enumerate(data.labels(dataset, dim)):
                if item in wanted:
                    panels[wanted[item]] = _layer_head(dataset, cube[..., index])
    for name, title in (("sink", "to the learned sink"), ("max_weight", "largest weight of a row")):
        if name in dataset.variables:
            panels[title] = _layer_head(dataset, data.values(dataset, name, _LH))
    dropped = [title for title, panel in panels.items() if not np.isfinite(panel.values).any()]
    panels = {title: panel for title, panel in panels.items() if title not in dropped}
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "position", "mass", "max_weight"),
        "Each cell: mean over examples of one head; intervals are in the tables",
        f"Not drawn, for this model has no such thing: {', '.join(dropped)}" if dropped else "",
    ]
    return heatmap_panels(
        panels, title="Where each head's attention goes", label="mean attention", limits=(0.0, 1.0), notes=notes
    )


def _layer_head(dataset: xr.Dataset, values: np.ndarray) -> xr.DataArray:
    return xr.DataArray(values, dims=_LH, coords={dim: data.numbers(dataset, dim) for dim in _LH})


def _uniform(dataset: xr.Dataset, layers: int, name: str) -> np.ndarray | None:
    """The entropy of uniform attention for each layer, from a variable of any of the dims layer and head, or from an attribute."""
    for candidate in (name, "entropy_uniform"):
        if data.has(dataset, candidate):
            variable = dataset.variables[candidate]
            rest = [axis for axis, dim in enumerate(variable.dims) if dim != "layer"]
            return np.broadcast_to(np.nanmean(np.asarray(variable.values, dtype=float), axis=tuple(rest)), (layers,))
        if candidate in dataset.attrs:
            return np.full(layers, float(dataset.attrs[candidate]))
    return None


def _draw_reference(ax: Axes, reference: Sequence[float] | np.ndarray | None) -> float:
    """Draw the uniform head's line with its name; returns its highest value."""
    if reference is None:
        return 0.0
    reference = np.asarray(reference)
    edges = np.arange(len(reference) + 1) - 0.5
    ax.stairs(reference, edges, baseline=None, color=style.GREY, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
    level = f"{reference[0]:.2f} nats" if np.ptp(reference) < 0.005 else "by layer"
    ax.annotate(
        f"uniform attention: {level}",
        (edges[0] + 0.05, float(reference[0])),
        xytext=(0, 2),
        textcoords="offset points",
        fontsize=style.SMALL,
        color=style.GREY,
        va="bottom",
        zorder=6,
    )
    return float(reference.max())
