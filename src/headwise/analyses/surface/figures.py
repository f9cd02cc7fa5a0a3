"""Figures of the surface statistics: which token types and positions heads attend to, and how
broadly (Clark et al. 2019, §3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.atlas.behaviours import is_decoder
from headwise.core.token_types import TOKEN_TYPES
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure
from headwise.plots.scatter import Series, legend_handles, scatter_by_layer, series_of

_LH = ("layer", "head")
_TYPES = {"first": ("first: the first token, whatever it is", style.TYPE_COLOURS["first"], "o")}
for _type in TOKEN_TYPES:
    _legend = f"{_type.name}: {_type.phrase}"
    _TYPES[_type.name] = (_legend, style.TYPE_COLOURS[_type.name], _type.marker)
_TYPES["other"] = ("other tokens", style.BLACK, "D")
_POSITIONS = {
    "-1": ("previous token (−1)", style.line_colour("position"), "o"),
    "0": ("the token itself (0)", style.BLACK, "D"),
    "1": ("next token (+1)", style.SKY, "s"),
}
_PANELS = {  # of the map of all heads: variable, label, title
    ("position", "-1"): "to the previous token",
    ("position", "0"): "to itself",
    ("position", "1"): "to the next token",
    ("mass", "first"): "to the first token",
    ("mass", "cls"): "to cls tokens",
    ("mass", "sep"): "to sep tokens",
    ("sink", ""): "to the learned sink",
    ("max_weight", ""): "largest weight of a row",
    ("position_rest", "-1"): "first token left out: to the previous",
    ("max_weight_rest", ""): "first token left out: largest weight",
}


@figure(
    "surface",
    name="token-types",
    title="Attention to each token type, by layer",
    caption="Each point is one head: the share of its attention that falls on tokens of one type, "
    "from all tokens, from separators only, and from all other tokens. A head whose sink is a "
    "separator, whatever the query, does nothing there (a no-op).",
    paper="Clark et al. 2019, §3.2, Fig 2",
    needs=("mass", "mass_from_sep", "mass_from_other"),
)
def token_types(dataset: xr.Dataset) -> Figure:
    """Mean attention mass on each token type by layer, one point per head (Clark et al. 2019, Fig
    2).

    Draws `mass`, `mass_from_sep` and `mass_from_other`, each `[layer, head, token_type]`; panels
    all NaN are left out."""
    panels = {"mass": "from all tokens"}
    if data.has(dataset, "mass_from_sep"):  # without sep tokens, all but sep are all
        panels |= {"mass_from_sep": "from sep tokens", "mass_from_other": "from all but sep tokens"}
    panels = {name: title for name, title in panels.items() if data.has(dataset, name)}
    types = _types(dataset)
    series = {
        name: series_of(dataset.sel(token_type=list(types)), name, "token_type", types)
        for name in panels
    }
    many = len(panels) > 1
    fig, axes = _by_layer(dataset, series, 2.75 if many else 3.0, "attention mass (share of 1)")
    axes[0].set_ylim(-0.02, 1.02)
    style.panel_labels(axes, list(panels.values()))
    shown = {one.label: one for own in series.values() for one in own}
    handles = legend_handles(list(shown.values()))
    columns = 4 if many else 2
    return style.complete(
        fig, "Attention to each token type", _notes(dataset, series), handles, columns
    )


@figure(
    "surface",
    name="roles",
    title="Attention to each role of a conversation, by layer",
    caption="Each point is one head: the share of its attention that falls on what each role says, "
    "and on what the template adds around it, excluding the first token; beside it the same "
    "with rows scaled to sum to one without the first token. A role with more tokens gets "
    "more from any head: the share of uniform attention is in the tables.",
    paper="after Clark et al. 2019, §3.2",
    needs=("role_mass",),
)
def conversation_roles(dataset: xr.Dataset) -> Figure:
    """`role_mass` and `role_mass_rest[layer, head, role]` by layer, one point per head."""
    panels = {
        "role_mass": "of all attention",
        "role_mass_rest": "of what is not on the first token",
    }
    series = {name: series_of(dataset, name, "role", {}) for name in panels}
    fig, axes = _by_layer(dataset, series, 2.9, "attention mass (share of 1)")
    axes[0].set_ylim(-0.02, 1.02)
    style.panel_labels(axes, list(panels.values()))
    handles = legend_handles(series["role_mass"])
    return style.complete(
        fig, "Attention to each role of a conversation", _notes(dataset, series), handles, 5
    )


@figure(
    "surface",
    name="positions",
    title="Attention to the previous, the same and the next token",
    caption="Each point is one head: the mean weight on the token just before, on the token itself "
    "and on the token just after, over the tokens that have one. The head with the largest "
    "mean is named.",
    paper="Clark et al. 2019, §3.1",
    needs=("position",),
)
def positions(dataset: xr.Dataset) -> Figure:
    """Mean attention to the neighbouring positions by layer, one point per head: `position[layer,
    head, offset]` for offsets −1, 0, 1."""
    series = {"position": series_of(dataset, "position", "offset", _POSITIONS)}
    fig, axes = _by_layer(dataset, series, 3.0, "mean attention weight", name_best=True)
    axes[0].set(ylim=(-0.02, 1.06), yticks=np.linspace(0, 1, 6))
    handles = legend_handles(series["position"])
    return style.complete(
        fig, "Attention to neighbouring positions", _notes(dataset, series), handles, 2
    )


@figure(
    "surface",
    name="entropy",
    title="How broadly heads attend: entropy by layer",
    caption="Each point is one head: the mean entropy of its attention, in nats, over all tokens; "
    "beside it, of an encoder for the opening token alone, of a decoder excluding the first "
    "token, the sink of many heads. The dashed line is uniform attention; low points are "
    "heads that look at one or few tokens.",
    paper="Clark et al. 2019, §3.3, Fig 4",
    needs=("entropy",),
)
def entropy(dataset: xr.Dataset) -> Figure:
    """Mean entropy of attention by layer, with the uniform head, `entropy_uniform[layer]`, as
    reference (Clark et al. 2019, Fig 4).

    Draws `entropy[layer, head]` and, where it is not all NaN, `entropy_from_cls[layer, head]`, of a
    decoder `entropy_rest` instead."""
    panels = {"entropy": "from all tokens", "entropy_from_cls": "from the cls token"}
    if "position" in dataset and is_decoder(dataset):
        panels = {"entropy": "from all tokens", "entropy_rest": "the first token left out"}
    panels = {name: title for name, title in panels.items() if data.has(dataset, name)}
    series = {name: [_one(dataset, name, style.BLUE)] for name in panels}
    fig, axes = _by_layer(dataset, series, 2.6, "mean entropy (nats)")
    top = max(float(np.nanmax(own[0].values)) for own in series.values())
    if data.has(dataset, "entropy_uniform"):
        for ax, name in zip(axes, panels, strict=True):
            uniform_name = "entropy_uniform"
            if name == "entropy_rest":
                uniform_name = "entropy_rest_uniform"
            reference = data.values(dataset, uniform_name, ["layer"])
            top = max(top, float(reference.max()))
            _draw_uniform(ax, reference)
    axes[0].set_ylim(0, max(top, 0.1) * 1.14)
    style.panel_labels(axes, list(panels.values()))
    return style.complete(fig, "How broadly heads attend", _notes(dataset, series))


@figure(
    "surface",
    name="max-weight",
    title="The largest weight of a row, by layer",
    caption="Each point is one head: the mean of the largest weight in each row. A head at 0.1 puts "
    "at most a tenth of its attention on any one token; a head near 1 picks a single token.",
    paper="Clark et al. 2019, §3.3",
    needs=("max_weight",),
)
def max_weight(dataset: xr.Dataset) -> Figure:
    """Mean largest attention weight of a row by layer: `max_weight[layer, head]`."""
    series = {"max_weight": [_one(dataset, "max_weight", style.VERMILION)]}
    fig, axes = _by_layer(dataset, series, 2.5, "mean largest weight of a row", name_best=True)
    axes[0].set(ylim=(0, 1.06), yticks=np.linspace(0, 1, 6))
    return style.complete(fig, "How much the most attended token gets", _notes(dataset, series))


@figure(
    "surface",
    name="heads",
    title="Every head at a glance",
    caption="The same means as heat maps: one row per layer (0 at the top), one column per head. All "
    "panels share one scale, 0 to 1.",
    paper="Clark et al. 2019, §3.1-3.3",
    needs=("position", "mass", "max_weight"),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps `[layer, head]` of position, token type and largest weight on one scale; hatched
    where there is no number."""
    panels: dict[str, xr.DataArray] = {}
    types = _types(dataset)
    # Values without the first token are drawn where the first token is a token type of its own.
    draws_without_first = "first" in types
    for (name, item), title in _PANELS.items():
        if name not in dataset or (name == "mass" and item not in types):
            continue
        if name.endswith("_rest") and not draws_without_first:
            continue
        panel = dataset[name]
        for dim in set(panel.dims) - set(_LH):
            panel = panel.isel({dim: data.labels(dataset, str(dim)).index(item)})
        panels[title] = panel
    cells = "Each cell: mean over examples of one head; intervals are in the tables"
    notes = [*data.source_notes(dataset, "position", "mass", "max_weight"), cells]
    shown = {title: panel for title, panel in panels.items() if np.isfinite(panel.values).any()}
    return heatmap_panels(
        shown,
        title="Where each head's attention goes",
        label="mean attention",
        limits=(0.0, 1.0),
        notes=notes,
    )


def _types(dataset: xr.Dataset) -> dict[str, tuple[str, str, str]]:
    """Return the token types to draw: the opening token of an encoder, else the first, whatever it is."""
    shown = {
        name: drawn for name, drawn in _TYPES.items() if name in data.labels(dataset, "token_type")
    }
    opened = "cls" in shown and bool(dataset["mass"].sel(token_type="cls").notnull().any())
    if "first" not in shown:  # an atlas from before it was a type
        return shown
    shown.pop(
        "first" if opened and not ("position" in dataset and is_decoder(dataset)) else "cls", None
    )
    return shown


def _one(dataset: xr.Dataset, name: str, colour: str) -> Series:
    return Series(name, data.values(dataset, name, _LH), data.interval(dataset, name, _LH), colour)


def _by_layer(
    dataset: xr.Dataset,
    panels: Mapping[str, list[Series]],
    height: float,
    label: str,
    name_best: bool = False,
) -> tuple[Figure, list[Axes]]:
    """One panel for each variable, its series drawn by layer, on one scale."""
    fig = style.new_figure(style.PAGE if len(panels) > 1 else style.COLUMN, height)
    axes = list(np.atleast_1d(fig.subplots(1, len(panels), sharey=True)))
    for ax, series in zip(axes, panels.values(), strict=True):
        scatter_by_layer(ax, series, name_best=name_best)
        style.layer_axis(ax, data.numbers(dataset, "layer"))
    axes[0].set_ylabel(label)
    return fig, axes


def _notes(dataset: xr.Dataset, panels: Mapping[str, Sequence[Series]]) -> list[str]:
    bars = any(one.bounds is not None for series in panels.values() for one in series)
    lines = "One point per head; lines: mean over the heads of a layer"
    return [*data.source_notes(dataset, *panels), lines, data.interval_text(bars)]


def _draw_uniform(ax: Axes, reference: np.ndarray) -> None:
    """Draw the uniform head's line with its name."""
    edges = np.arange(len(reference) + 1) - 0.5
    ax.stairs(
        reference,
        edges,
        baseline=None,
        color=style.GREY,
        linewidth=0.9,
        linestyle=(0, (4, 2)),
        zorder=4,
    )
    level = f"{reference[0]:.2f} nats" if np.ptp(reference) < 0.005 else "by layer"
    place: dict[str, Any] = {
        "xytext": (0, 2),
        "textcoords": "offset points",
        "va": "bottom",
        "zorder": 6,
    }
    at = edges[0] + 0.05, float(reference[0])
    ax.annotate(f"uniform attention: {level}", at, **place, fontsize=style.SMALL, color=style.GREY)
