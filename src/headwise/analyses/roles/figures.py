"""Figures of roles: scores and p-values, the role grid, roles by layer and by τ (Pande et al. 2021,
Fig 2, 3 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from headwise.analyses.roles.significance import COARSE, FINE, undecided
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

COLOURS = {
    "local": style.PINK,
    "syntactic": style.BLUE,
    "block": "#6A3D9A",
    "delimiter": style.VERMILION,
}
# Fig 5's nine, in the order of its 3 × 3 squares, each with a colour of its own; the place in the
# cell says the same.
_NINE = (
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#7CB518",
    "#D55E00",
    "#E69F00",
    "#6A3D9A",
    "#CC79A7",
    "#1A1A1A",
)
FINE_COLOURS = dict(zip(FINE, _NINE, strict=True))
CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.SMALL}
_LHR = ("layer", "head", "role")


def shown_roles(dataset: xr.Dataset, wanted: Sequence[str]) -> list[str]:
    """Those of the wanted roles that some head has a score for."""
    bias, roles = data.values(dataset, "bias", _LHR), data.labels(dataset, "role")
    return [
        role for role in wanted if role in roles and np.isfinite(bias[..., roles.index(role)]).any()
    ]


def main_roles(dataset: xr.Dataset, wanted: Sequence[str] = COARSE) -> list[str]:
    """The coarse roles (or the wanted ones) that have a score; where none has, the first four
    others."""
    return shown_roles(dataset, wanted) or shown_roles(dataset, data.labels(dataset, "role"))[:4]


def memberships(dataset: xr.Dataset, roles: Sequence[str]) -> np.ndarray:
    """Bool `[layer, head, role]`; no head has a role that the dataset lacks."""
    found = dataset["has_role"].reindex(role=list(roles), fill_value=False)
    return np.asarray(found.transpose(*_LHR).values, dtype=bool)


def notes_on(
    dataset: xr.Dataset, roles: Sequence[str], how: str, wanted: Sequence[str] = COARSE
) -> list[str]:
    """The small print of a figure that shows these roles: model and corpus, how many inputs are
    behind them, τ; how to read it; which of the wanted roles are not there or could not be had by
    any head."""
    labels, tau = data.labels(dataset, "role"), dataset.attrs.get("tau")
    kept = [place for place, role in enumerate(labels) if role in roles]
    lacking = [role for role in wanted if role not in shown_roles(dataset, wanted)]
    short = []
    if "ceiling" in dataset.variables and tau is not None:
        top = data.values(dataset, "ceiling", ("layer", "role"))
        highest = {role: top[:, labels.index(role)] for role in wanted if role in labels}
        short = [
            role for role, t in highest.items() if np.isfinite(t).any() and np.nanmax(t) <= tau
        ]
    unseen = [
        f"Not computed, for this corpus or model lacks what they need: {', '.join(lacking)}"
        if lacking
        else "",
        f"No head can have {', '.join(short)} at this τ: attending to nothing else gives less"
        if short
        else "",
    ]
    return [
        data.source_text(dataset),
        data.count_text(dataset.isel(role=kept), "bias", each="inputs"),
        "" if tau is None else f"τ = {tau:g}",
        random_text(dataset, roles),
        how,
        ". ".join(filter(None, unseen)),
    ]


def random_text(dataset: xr.Dataset, roles: Sequence[str]) -> str:
    """What heads of random-weights models reach in these roles, where that is more than τ."""
    if "random_bound" not in dataset.variables:
        return ""
    bounds = dict(zip(data.labels(dataset, "role"), dataset["random_bound"].values, strict=True))
    over = [
        f"{role} {bounds[role]:.1f}"
        for role in roles
        if role in bounds and bounds[role] > dataset.attrs["tau"]
    ]
    return (
        f"Above random heads too, which reach {', '.join(over)}"
        if over
        else "Random heads stay below τ"
    )


@figure(
    "roles",
    name="scores",
    title="Scores and p-values of all heads",
    caption="(a) Sieve bias of every head on every input, as a cumulative share, by role: 1 is uniform attention, the "
    "dashed line is τ. (b) The p-values of all heads and roles: near 0 the head has the role, near 1 it has not; few "
    "lie between. (c) One head's scores over inputs: the head and role whose test is least decided, where a mean "
    "alone would mislead.",
    paper="Pande et al. 2021, Fig 2-3",
    needs=("bias",),
)
def score_distributions(dataset: xr.Dataset) -> Figure:
    """Cumulative scores by role, the p-values, and one head's distribution.

    From `histogram[layer, head, role, bin]` and `p_value[layer, head, role]`.
    """
    roles = data.labels(dataset, "role")
    counts = data.values(dataset, "histogram", (*_LHR, "bin"))
    edges = np.asarray(dataset["bin_low"].values, dtype=float)
    shown = main_roles(dataset)
    fig = style.new_figure(style.PAGE, 2.7)
    left, middle, right = fig.subplots(1, 3)
    for index, role in enumerate(shown):
        total = counts[:, :, roles.index(role)].sum((0, 1))
        colour = COLOURS.get(role, style.cycle(style.OKABE_ITO, index))
        left.stairs(
            np.cumsum(total)[:-1] / total.sum(),
            edges,
            baseline=None,
            color=colour,
            linewidth=1.3,
            label=role,
        )
    score_axis(left, dataset)
    left.set(ylim=(0, 1.02), ylabel="share of scores at or below")
    left.legend(loc="upper left")
    p = data.values(dataset, "p_value", _LHR)
    middle.hist(p[np.isfinite(p)], bins=np.linspace(0, 1, 41), color=style.BLUE)
    middle.set(xlabel="p-value (H0: mean bias ≤ τ)", ylabel="heads × roles")
    between = f"{undecided(p):.1%} in (0.05, 0.95)".replace("%", " %")
    middle.text(0.5, 0.95, between, transform=middle.transAxes, **CENTRED | {"va": "top"})
    doubt = np.where(np.isfinite(p), np.abs(p - 0.5), np.inf)
    layer, head, place = np.unravel_index(np.argmin(doubt), p.shape)
    right.stairs(counts[layer, head, place][1:-1], edges[1:], fill=True, color=style.SKY)
    mean = data.values(dataset, "bias", _LHR)[layer, head, place]
    right.axvline(mean, color=style.INK, linewidth=0.9)
    beside: dict[str, Any] = {
        "xycoords": ("data", "axes fraction"),
        "xytext": (3, -2),
        "textcoords": "offset points",
    }
    right.annotate(f"mean {mean:.1f}", (mean, 1), va="top", fontsize=style.SMALL, **beside)
    score_axis(right, dataset)
    right.set_ylabel("inputs")
    name = head_name(data.numbers(dataset, "layer")[layer], data.numbers(dataset, "head")[head])
    least = f"{name}, {roles[place]}: p = {p[layer, head, place]:.2f}"
    style.panel_labels([left, middle, right], ["scores of all heads", "tests", least])
    how = (
        f"Dashed: τ. (b) has all {len(shown_roles(dataset, roles))} roles. "
        "No interval is drawn: these are distributions over inputs"
    )
    return style.complete(fig, "Sieve bias and its tests", notes_on(dataset, shown, how))


def score_axis(
    ax: Axes, dataset: xr.Dataset, what: str = "sieve bias", least: float = 2**-4
) -> None:
    """The axis of scores, in powers of two from `least` on, with τ as a dashed line."""
    ax.set_xscale("log", base=2)
    ax.set_xlim(least, 2**7)
    ax.set_xticks([2.0**k for k in range(-4, 8, 2)], [f"{2.0**k:g}" for k in range(-4, 8, 2)])
    ax.minorticks_off()
    ax.set_xlabel(f"{what} (1 = uniform)")
    _mark_tau(ax, dataset)


def role_rows(names: Sequence[str], own: float, each: float) -> tuple[Figure, Axes]:
    """A figure with a row of height `each` for every role, the first at the top, and `own` inches
    for the rest."""
    fig, ax = style.one_panel(style.PAGE, own + each * len(names))
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    return fig, ax


def _mark_tau(ax: Axes, dataset: xr.Dataset) -> None:
    if np.isfinite(dataset.attrs.get("tau", np.nan)):
        ax.axvline(dataset.attrs["tau"], color=style.GREY, linewidth=0.9, linestyle=(0, (4, 2)))


def _layer_ticks(ax: Axes, dataset: xr.Dataset, most: int) -> None:
    """Rows of layers, at most so many of them named."""
    layers = data.numbers(dataset, "layer")
    step = max(1, -(-len(layers) // most))
    ax.set_yticks(range(0, len(layers), step), [str(n) for n in layers[::step]])
    ax.set_ylabel("layer (0 at the top)")
    style.bare(ax)


@figure(
    "roles",
    name="grid",
    title="The roles of every head",
    caption="One square per head, one row per layer (0 at the top), divided into nine: each small square stands for a "
    "role, always at the same place, and is coloured where the head has it. Heads are sorted within the layer by the "
    "number of their roles; the number below a square is the head's; the legend lies as the small squares do.",
    paper="Pande et al. 2021, Fig 5",
    needs=("bias",),
)
def role_grid(dataset: xr.Dataset) -> Figure:
    """Fig 5 from `has_role[layer, head, role]`: nine roles.

    Heads are sorted within the layer, most roles first (ties: lowest head first).
    """
    fine = memberships(dataset, FINE)
    order = np.argsort(-fine.sum(-1), axis=1, kind="stable")
    layers, heads = fine.shape[:2]
    width = min(style.PAGE, 0.8 + heads * 0.44)
    cell = (width - 0.6) / heads
    pitch = (
        1.14  # rows stand further apart than columns: the head's number has its place between them
    )
    fig, ax = style.one_panel(max(width, 3.6), min(layers * pitch * cell + 1.3, style.PAGE_HEIGHT))
    squares: dict[str, list[Rectangle]] = {"": [], **{role: [] for role in FINE}}
    small = 0.8 / 3
    for layer in range(layers):
        for rank, head in enumerate(order[layer]):
            squares[""].append(Rectangle((rank - 0.42, layer - 0.42 / pitch), 0.84, 0.84 / pitch))
            for place in np.flatnonzero(fine[layer, head]):
                row, column = divmod(int(place), 3)
                corner = (
                    rank - 0.4 + column * small + 0.01,
                    layer + (-0.4 + row * small + 0.01) / pitch,
                )
                squares[FINE[place]].append(Rectangle(corner, small - 0.02, (small - 0.02) / pitch))
            if cell >= 0.34:
                number = str(data.numbers(dataset, "head")[head])
                ax.text(rank, layer + 0.57 / pitch, number, color=style.GREY, **CENTRED)
    for role, patches in squares.items():
        ax.add_collection(
            PatchCollection(patches, facecolor=FINE_COLOURS.get(role, "#e9e9e9"), edgecolor="none")
        )
    ax.set(
        xlim=(-0.6, heads - 0.4),
        ylim=(layers - 1 + 0.75 / pitch, -0.5 / pitch),
        aspect=pitch,
        xticks=[],
    )
    _layer_ticks(ax, dataset, 24)
    counts = dict(zip(FINE, fine.sum((0, 1)), strict=True))
    named = [
        Patch(facecolor=colour, label=f"{role} ({counts[role]})")
        for role, colour in FINE_COLOURS.items()
    ]
    handles = [
        named[place] for column in range(3) for place in range(column, 9, 3)
    ]  # a legend is filled by columns
    how = (
        "The legend's places are those within a square. In brackets: heads with the role. Below a square: its head. "
        "No interval: each small square is a test"
    )
    return style.complete(
        fig, "What each head does", notes_on(dataset, FINE, how, FINE), handles, 3
    )


@figure(
    "roles",
    name="by-layer",
    title="Roles by layer",
    caption="How many heads of each layer have each role, and how many have two or more of the paper's nine roles.",
    paper="Pande et al. 2021, Fig 5",
    needs=("bias",),
)
def roles_by_layer(dataset: xr.Dataset) -> Figure:
    """`per_layer[layer, role]` and `multi_skilled[layer]` as a table of numbers in colour."""
    labels = data.labels(dataset, "role")
    chosen = shown_roles(dataset, labels)
    counts = data.values(dataset, "per_layer", ("layer", "role"))[
        :, [labels.index(role) for role in chosen]
    ]
    table = np.column_stack([counts, data.values(dataset, "multi_skilled", ("layer",))])
    heads = dataset.sizes["head"]
    fig, ax = style.one_panel(style.PAGE, min(1.9 + 0.2 * len(table), style.PAGE_HEIGHT))
    image = ax.imshow(table, cmap=style.SEQUENTIAL, vmin=0, vmax=heads, aspect="auto")
    if len(table) <= 40:
        for (row, column), value in np.ndenumerate(table):
            ink = "black" if value > 0.55 * heads else "white"
            ax.text(column, row, f"{value:.0f}" if value else "", color=ink, **CENTRED)
    ax.axvline(len(chosen) - 0.5, color="white", linewidth=2)
    names = [*chosen, "two or more of nine"]
    ax.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    _layer_ticks(ax, dataset, 30)
    style.colour_bar(fig, image, ax, "heads of the layer", fraction=0.03, pad=0.015)
    notes = notes_on(
        dataset, chosen, f"{heads} heads a layer; no interval: counts of heads", labels
    )
    return style.complete(fig, "How many heads of each layer have a role", notes)


@figure(
    "roles",
    name="bias",
    title="Sieve bias of every head",
    caption="Mean sieve bias for the four coarse roles, as a power of two: 0 is uniform attention, 1 twice as much as "
    "the average token gets.",
    paper="Pande et al. 2021, sieve bias score",
    needs=("bias",),
)
def bias_maps(dataset: xr.Dataset) -> Figure:
    """Heat maps of `log2 bias[layer, head]` for the coarse roles on one scale."""
    chosen = main_roles(dataset)
    bias = {role: dataset["bias"].sel(role=role).clip(min=2**-6) for role in chosen}
    panels = {role: array.copy(data=np.log2(array.values)) for role, array in bias.items()}
    how = "Each cell: mean over inputs of one head, cut at 2^−6; intervals are in the tables"
    return heatmap_panels(
        panels,
        title="Sieve bias",
        label="log2 of the sieve bias",
        centre=0.0,
        annotate="none",
        notes=notes_on(dataset, chosen, how),
    )


@figure(
    "roles",
    name="tau",
    title="Roles at other thresholds",
    caption="How many heads have each of the four roles when τ is set to other values; the dashed line is the τ in "
    "use. The grey line is the share of heads with none of them.",
    paper="Pande et al. 2021, choice of τ",
    needs=("sweep",),
)
def tau_sweep(dataset: xr.Dataset) -> Figure:
    """`sweep[threshold, role]` for the coarse roles and `sweep_unskilled[threshold]`."""
    labels, thresholds = (
        data.labels(dataset, "role"),
        np.asarray(dataset["threshold"].values, dtype=float),
    )
    counts = data.values(dataset, "sweep", ("threshold", "role"))
    fig, ax = style.one_panel(style.COLUMN, 2.9)
    heads = dataset.sizes["layer"] * dataset.sizes["head"]
    shown = main_roles(dataset)
    for index, role in enumerate(shown):
        colour, marker = (
            COLOURS.get(role, style.cycle(style.OKABE_ITO, index)),
            style.cycle(style.MARKERS, index),
        )
        ax.plot(
            thresholds,
            counts[:, labels.index(role)] / heads,
            color=colour,
            marker=marker,
            label=role,
        )
    none = data.values(dataset, "sweep_unskilled", ("threshold",))
    ax.plot(thresholds, none, color=style.GREY, linestyle=(0, (1, 1)), label="none of the four")
    _mark_tau(ax, dataset)
    ax.set(ylim=(-0.02, 1.02), xlabel="τ", ylabel=f"share of {heads} heads")
    handles, _ = ax.get_legend_handles_labels()
    notes = notes_on(dataset, shown, "No interval: shares of heads")
    return style.complete(fig, "Roles at other thresholds, all layers", notes, handles, 3)
