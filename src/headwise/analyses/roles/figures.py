"""Figures of roles: scores and p-values, the role grid, roles by layer and by τ, overlaps of roles,
and all beside random weights (Pande et al. 2021, Fig 2 to 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Patch, Rectangle

from headwise.analyses.roles.significance import COARSE_ROLES, FINE_ROLES, undecided_share
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

# The colours of the labels that say the same; no label is a block.
COLOURS = {
    "local": style.line_colour("position"),
    "syntactic": style.line_colour("syntax"),
    "block": "#6A3D9A",
    "delimiter": style.line_colour("delimiters"),
}
# The nine roles of Fig 5, in the order of its 3 × 3 squares. Position and colour say the same, so
# the figure can be read without colours.
_NINE_COLOURS = (
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
FINE_COLOURS = dict(zip(FINE_ROLES, _NINE_COLOURS, strict=True))
CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.SMALL}
DIMS = ("layer", "head", "role")
MAX_NAMED_HEADS = 6  # heads that are named where mean and test differ


# --- which roles are drawn, and the notes below a figure ------------------------------------------


def scored_roles(dataset: xr.Dataset, candidates: Sequence[str]) -> list[str]:
    """Return those of the candidate roles for which some head has a score."""
    bias = data.values(dataset, "bias", DIMS)
    roles = data.labels(dataset, "role")
    scored = []
    for role in candidates:
        if role in roles and np.isfinite(bias[..., roles.index(role)]).any():
            scored.append(role)
    return scored


def main_roles(dataset: xr.Dataset, candidates: Sequence[str] = COARSE_ROLES) -> list[str]:
    """Return the candidate roles that have a score; if none has, the first four others."""
    scored = scored_roles(dataset, candidates)
    return scored or scored_roles(dataset, data.labels(dataset, "role"))[:4]


def memberships(dataset: xr.Dataset, roles: Sequence[str]) -> np.ndarray:
    """Return bool `[layer, head, role]`; no head has a role that the dataset lacks."""
    has_role = dataset["has_role"].reindex(role=list(roles), fill_value=False)
    return np.asarray(has_role.transpose(*DIMS).values, dtype=bool)


def role_notes(
    dataset: xr.Dataset,
    drawn: Sequence[str],
    how_to_read: str,
    expected: Sequence[str] = COARSE_ROLES,
) -> list[str]:
    """Return the notes below a figure of roles.

    They name model and corpus, the number of inputs and τ, say how to read the figure, and list the
    expected roles that were not computed or that no head can reach.

    Parameters
    ----------
    dataset : Dataset
        The group `roles`.
    drawn : sequence of str
        Roles that the figure shows.
    how_to_read : str
        One or two sentences.
    expected : sequence of str, default the four coarse roles
        Roles whose absence is explained.
    """
    roles = data.labels(dataset, "role")
    tau = dataset.attrs.get("tau")
    tau_text = "" if tau is None else f"τ = {tau:g}"
    drawn_places = [place for place, role in enumerate(roles) if role in drawn]

    explanations = []
    scored = scored_roles(dataset, expected)
    missing = [role for role in expected if role not in scored]
    if missing:
        explanations.append(
            f"Not computed, for this corpus or model lacks what they need: {', '.join(missing)}"
        )
    unreachable = _unreachable_roles(dataset, expected)
    if unreachable:
        explanations.append(
            f"No head can have {', '.join(unreachable)} at this τ: attending to nothing else gives "
            "less"
        )
    return [
        data.source_text(dataset),
        data.count_text(dataset.isel(role=drawn_places), "bias", each="inputs"),
        tau_text,
        random_bound_text(dataset, drawn),
        how_to_read,
        ". ".join(explanations),
    ]


def _unreachable_roles(dataset: xr.Dataset, expected: Sequence[str]) -> list[str]:
    """Return the roles whose ceiling is at or below τ in every layer."""
    tau = dataset.attrs.get("tau")
    if tau is None or "ceiling" not in dataset.variables:
        return []
    roles = data.labels(dataset, "role")
    ceiling = data.values(dataset, "ceiling", ("layer", "role"))
    unreachable = []
    for role in expected:
        if role not in roles:
            continue
        of_role = ceiling[:, roles.index(role)]
        if np.isfinite(of_role).any() and np.nanmax(of_role) <= tau:
            unreachable.append(role)
    return unreachable


def random_bound_text(dataset: xr.Dataset, drawn: Sequence[str]) -> str:
    """Say in which of these roles heads of random-weights models exceed τ."""
    if "random_bound" not in dataset.variables:
        return ""
    bounds = dict(zip(data.labels(dataset, "role"), dataset["random_bound"].values, strict=True))
    above_tau = []
    for role in drawn:
        if role in bounds and bounds[role] > dataset.attrs["tau"]:
            above_tau.append(f"{role} {bounds[role]:.1f}")
    if not above_tau:
        return "Random heads stay below τ"
    return f"Above random heads too, which reach {', '.join(above_tau)}"


# --- axes -----------------------------------------------------------------------------------------


def score_axis(
    ax: Axes, dataset: xr.Dataset, quantity: str = "sieve bias", lowest: float = 2**-4
) -> None:
    """Make x the axis of scores, in powers of two from `lowest` on, with τ as a dashed line."""
    powers = [2.0**k for k in range(-4, 8, 2)]
    ax.set_xscale("log", base=2)
    ax.set_xlim(lowest, 2**7)
    ax.set_xticks(powers, [f"{power:g}" for power in powers])
    ax.minorticks_off()
    ax.set_xlabel(f"{quantity} (1 = uniform)")
    _mark_tau(ax, dataset)


def _mark_tau(ax: Axes, dataset: xr.Dataset) -> None:
    if np.isfinite(dataset.attrs.get("tau", np.nan)):
        ax.axvline(dataset.attrs["tau"], color=style.GREY, linewidth=0.9, linestyle=(0, (4, 2)))


def role_rows(names: Sequence[str], margin: float, row_height: float) -> tuple[Figure, Axes]:
    """Return a figure with one row for each role, the first at the top; sizes in inches."""
    fig, ax = style.one_panel(style.PAGE, margin + row_height * len(names))
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    return fig, ax


def _layer_ticks(ax: Axes, dataset: xr.Dataset, max_ticks: int) -> None:
    """Label the rows of layers, at most `max_ticks` of them."""
    layers = data.numbers(dataset, "layer")
    step = max(1, -(-len(layers) // max_ticks))
    ax.set_yticks(range(0, len(layers), step), [str(n) for n in layers[::step]])
    ax.set_ylabel("layer (0 at the top)")
    style.bare(ax)


def _colour(role: str, index: int) -> str:
    return COLOURS.get(role) or FINE_COLOURS.get(role) or style.cycle(style.OKABE_ITO, index)


def _undecided_text(p_values: np.ndarray) -> str:
    """Return the share of p-values in (0.05, 0.95) in per cent."""
    return f"{undecided_share(p_values):.1%}".replace("%", " %")


# --- figures --------------------------------------------------------------------------------------


@figure(
    "roles",
    name="scores",
    title="Scores and p-values of all heads",
    caption="(a) Sieve bias of every head on every input, as a cumulative share, by role: 1 is "
    "uniform attention, the dashed line is τ. (b) The p-values of all heads and roles: near 0 the "
    "head has the role, near 1 it has not; few lie between. (c) One head's scores over inputs: the "
    "head and role whose test is least decided, where a mean alone would mislead.",
    paper="Pande et al. 2021, Fig 2-3",
    needs=("bias",),
)
def score_distributions(dataset: xr.Dataset) -> Figure:
    """Draw cumulative scores by role, the p-values, and one head's distribution.

    From `histogram[layer, head, role, bin]` and `p_value[layer, head, role]`.
    """
    roles = data.labels(dataset, "role")
    counts = data.values(dataset, "histogram", (*DIMS, "bin"))
    edges = np.asarray(dataset["bin_low"].values, dtype=float)
    p_values = data.values(dataset, "p_value", DIMS)
    drawn = main_roles(dataset)
    fig = style.new_figure(style.PAGE, 2.7)
    left, middle, right = fig.subplots(1, 3)

    for index, role in enumerate(drawn):
        of_role = counts[:, :, roles.index(role)].sum((0, 1))
        left.stairs(
            np.cumsum(of_role)[:-1] / of_role.sum(),
            edges,
            baseline=None,
            color=COLOURS.get(role, style.cycle(style.OKABE_ITO, index)),
            linewidth=1.3,
            label=role,
        )
    score_axis(left, dataset)
    left.set(ylim=(0, 1.02), ylabel="share of scores at or below")
    left.legend(loc="upper left")

    middle.hist(p_values[np.isfinite(p_values)], bins=np.linspace(0, 1, 41), color=style.BLUE)
    middle.set(xlabel="p-value (H0: mean bias ≤ τ)", ylabel="heads × roles")
    undecided = f"{_undecided_text(p_values)} in (0.05, 0.95)"
    middle.text(0.5, 0.95, undecided, transform=middle.transAxes, **CENTRED | {"va": "top"})

    distance_from_half = np.where(np.isfinite(p_values), np.abs(p_values - 0.5), np.inf)
    layer, head, place = np.unravel_index(np.argmin(distance_from_half), p_values.shape)
    mean = data.values(dataset, "bias", DIMS)[layer, head, place]
    right.stairs(counts[layer, head, place][1:-1], edges[1:], fill=True, color=style.SKY)
    right.axvline(mean, color=style.INK, linewidth=0.9)
    right.annotate(
        f"mean {mean:.1f}",
        (mean, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, -2),
        textcoords="offset points",
        va="top",
        fontsize=style.SMALL,
    )
    score_axis(right, dataset)
    right.set_ylabel("inputs")

    layers = data.numbers(dataset, "layer")
    heads = data.numbers(dataset, "head")
    least_decided = (
        f"{head_name(layers[layer], heads[head])}, {roles[place]}: "
        f"p = {p_values[layer, head, place]:.2f}"
    )
    style.panel_labels([left, middle, right], ["scores of all heads", "tests", least_decided])
    how_to_read = (
        f"Dashed: τ. (b) has all {len(scored_roles(dataset, roles))} roles. "
        "No interval is drawn: these are distributions over inputs"
    )
    return style.complete(fig, "Sieve bias and its tests", role_notes(dataset, drawn, how_to_read))


@figure(
    "roles",
    name="grid",
    title="The roles of every head",
    caption="One square per head, one row per layer (0 at the top), divided into nine: each small "
    "square stands for a role, always at the same place, and is coloured where the head has it. "
    "Heads are sorted within the layer by the number of their roles; the number below a square is "
    "the head's; the legend is arranged as the small squares are.",
    paper="Pande et al. 2021, Fig 5",
    needs=("bias",),
)
def role_grid(dataset: xr.Dataset) -> Figure:
    """Draw Fig 5 from `has_role[layer, head, role]`: nine roles.

    Heads are sorted within the layer, most roles first (ties: lowest head first).
    """
    has_role = memberships(dataset, FINE_ROLES)
    layers, heads = has_role.shape[:2]
    head_numbers = data.numbers(dataset, "head")
    order = np.argsort(-has_role.sum(-1), axis=1, kind="stable")
    width = min(style.PAGE, 0.8 + heads * 0.44)
    cell = (width - 0.6) / heads
    # Rows stand further apart than columns: the head's number is printed between them.
    row_pitch = 1.14
    height = min(layers * row_pitch * cell + 1.3, style.PAGE_HEIGHT)
    fig, ax = style.one_panel(max(width, 3.6), height)

    background: list[Rectangle] = []
    squares: dict[str, list[Rectangle]] = {role: [] for role in FINE_ROLES}
    small = 0.8 / 3
    for layer in range(layers):
        for rank, head in enumerate(order[layer]):
            corner = (rank - 0.42, layer - 0.42 / row_pitch)
            background.append(Rectangle(corner, 0.84, 0.84 / row_pitch))
            for place in np.flatnonzero(has_role[layer, head]):
                row, column = divmod(int(place), 3)
                left = rank - 0.4 + column * small + 0.01
                top = layer + (-0.4 + row * small + 0.01) / row_pitch
                square = Rectangle((left, top), small - 0.02, (small - 0.02) / row_pitch)
                squares[FINE_ROLES[place]].append(square)
            if cell >= 0.34:
                number = str(head_numbers[head])
                ax.text(rank, layer + 0.57 / row_pitch, number, color=style.GREY, **CENTRED)
    ax.add_collection(PatchCollection(background, facecolor="#e9e9e9", edgecolor="none"))
    for role, patches in squares.items():
        ax.add_collection(PatchCollection(patches, facecolor=FINE_COLOURS[role], edgecolor="none"))
    ax.set(
        xlim=(-0.6, heads - 0.4),
        ylim=(layers - 1 + 0.75 / row_pitch, -0.5 / row_pitch),
        aspect=row_pitch,
        xticks=[],
    )
    _layer_ticks(ax, dataset, 24)

    heads_per_role = dict(zip(FINE_ROLES, has_role.sum((0, 1)), strict=True))
    entries = []
    for role, colour in FINE_COLOURS.items():
        entries.append(Patch(facecolor=colour, label=f"{role} ({heads_per_role[role]})"))
    # A legend is filled column by column; the squares are numbered row by row.
    handles = [*entries[0::3], *entries[1::3], *entries[2::3]]
    how_to_read = (
        "The legend's places are those within a square. In brackets: heads with the role. Below a "
        "square: its head. No interval: each small square is a test"
    )
    notes = role_notes(dataset, FINE_ROLES, how_to_read, FINE_ROLES)
    return style.complete(fig, "What each head does", notes, handles, 3)


@figure(
    "roles",
    name="by-layer",
    title="Roles by layer",
    caption="How many heads of each layer have each role, and how many have two or more of the "
    "paper's nine roles.",
    paper="Pande et al. 2021, Fig 5",
    needs=("bias",),
)
def roles_by_layer(dataset: xr.Dataset) -> Figure:
    """Draw `per_layer[layer, role]` and `multi_skilled[layer]` as a table of numbers in colour."""
    roles = data.labels(dataset, "role")
    drawn = scored_roles(dataset, roles)
    places = [roles.index(role) for role in drawn]
    counts = data.values(dataset, "per_layer", ("layer", "role"))[:, places]
    table = np.column_stack([counts, data.values(dataset, "multi_skilled", ("layer",))])
    heads = dataset.sizes["head"]
    fig, ax = style.one_panel(style.PAGE, min(1.9 + 0.2 * len(table), style.PAGE_HEIGHT))
    image = ax.imshow(table, cmap=style.SEQUENTIAL, vmin=0, vmax=heads, aspect="auto")
    if len(table) <= 40:
        for (row, column), value in np.ndenumerate(table):
            if value:
                ink = "black" if value > 0.55 * heads else "white"
                ax.text(column, row, f"{value:.0f}", color=ink, **CENTRED)
    ax.axvline(len(drawn) - 0.5, color="white", linewidth=2)
    names = [*drawn, "two or more of nine"]
    ax.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    _layer_ticks(ax, dataset, 30)
    style.colour_bar(fig, image, ax, "heads of the layer", fraction=0.03, pad=0.015)
    how_to_read = f"{heads} heads a layer; no interval: counts of heads"
    notes = role_notes(dataset, drawn, how_to_read, roles)
    return style.complete(fig, "How many heads of each layer have a role", notes)


@figure(
    "roles",
    name="bias",
    title="Sieve bias of every head",
    caption="Mean sieve bias for the four coarse roles, as a power of two: 0 is uniform attention, "
    "1 twice as much as the average token gets.",
    paper="Pande et al. 2021, sieve bias score",
    needs=("bias",),
)
def bias_maps(dataset: xr.Dataset) -> Figure:
    """Draw heat maps of `log2 bias[layer, head]` for the coarse roles on one scale."""
    drawn = main_roles(dataset)
    panels = {}
    for role in drawn:
        bias = dataset["bias"].sel(role=role).clip(min=2**-6)
        panels[role] = bias.copy(data=np.log2(bias.values))
    how_to_read = (
        "Each cell: mean over inputs of one head, cut at 2^−6; intervals are in the tables"
    )
    return heatmap_panels(
        panels,
        title="Sieve bias",
        label="log2 of the sieve bias",
        centre=0.0,
        annotate="none",
        notes=role_notes(dataset, drawn, how_to_read),
    )


@figure(
    "roles",
    name="tau",
    title="Roles at other thresholds",
    caption="How many heads have each of the four roles when τ is set to other values; the dashed "
    "line is the τ in use. The grey line is the share of heads with none of them.",
    paper="Pande et al. 2021, choice of τ",
    needs=("sweep",),
)
def tau_sweep(dataset: xr.Dataset) -> Figure:
    """Draw `sweep[threshold, role]` for the coarse roles and `sweep_unskilled[threshold]`."""
    roles = data.labels(dataset, "role")
    thresholds = np.asarray(dataset["threshold"].values, dtype=float)
    counts = data.values(dataset, "sweep", ("threshold", "role"))
    heads = dataset.sizes["layer"] * dataset.sizes["head"]
    drawn = main_roles(dataset)
    fig, ax = style.one_panel(style.COLUMN, 2.9)
    for index, role in enumerate(drawn):
        ax.plot(
            thresholds,
            counts[:, roles.index(role)] / heads,
            color=COLOURS.get(role, style.cycle(style.OKABE_ITO, index)),
            marker=style.cycle(style.MARKERS, index),
            label=role,
        )
    without_role = data.values(dataset, "sweep_unskilled", ("threshold",))
    ax.plot(
        thresholds,
        without_role,
        color=style.GREY,
        linestyle=(0, (1, 1)),
        label="none of the four",
    )
    _mark_tau(ax, dataset)
    ax.set(ylim=(-0.02, 1.02), xlabel="τ", ylabel=f"share of {heads} heads")
    handles, _ = ax.get_legend_handles_labels()
    notes = role_notes(dataset, drawn, "No interval: shares of heads")
    return style.complete(fig, "Roles at other thresholds, all layers", notes, handles, 3)


@figure(
    "roles",
    name="p-values",
    title="The p-values of all heads",
    caption="One point per head in the column of each role, layers from left to right: near 0 the "
    "head has the role, near 1 it has not. Between the dotted lines nothing is decided.",
    paper="Pande et al. 2021, Fig 3 (b)",
    needs=("p_value",),
)
def p_scatter(dataset: xr.Dataset) -> Figure:
    """Draw `p_value[layer, head, role]` as a scatter."""
    roles = data.labels(dataset, "role")
    drawn = scored_roles(dataset, roles)
    p_values = data.values(dataset, "p_value", DIMS)
    fig, ax = style.one_panel(style.PAGE, 3.1)
    for index, role in enumerate(drawn):
        of_role = p_values[..., roles.index(role)].ravel()
        x = index - 0.4 + 0.8 * (np.arange(of_role.size) + 0.5) / of_role.size
        colour = _colour(role, index)
        ax.plot(x, of_role, ".", markersize=3, color=colour, alpha=0.7, markeredgewidth=0)
    for height in (0.05, 0.95):
        ax.axhline(height, color=style.GREY, linewidth=0.7, linestyle=(0, (1, 1)), zorder=1)
    ax.set_xticks(range(len(drawn)), drawn)
    if len(drawn) > 6:
        ax.set_xticks(range(len(drawn)), drawn, rotation=40, ha="right", rotation_mode="anchor")
    ax.set(xlim=(-0.6, len(drawn) - 0.4), ylim=(-0.03, 1.03), ylabel="p-value (H0: mean bias ≤ τ)")
    how_to_read = (
        f"{_undecided_text(p_values)} of the points lie between the dotted lines. Within a column: "
        "heads in the order of layers. No interval: each point is one test"
    )
    return style.complete(fig, "p-values of all heads", role_notes(dataset, drawn, how_to_read))


@figure(
    "roles",
    name="labels",
    title="Roles, and what a mean alone would say",
    caption="How many heads have each role: dark, heads with the role, as in all figures (a "
    "significant test after correction, a large effect, more than random heads); pale, further heads "
    "whose mean is over τ. The heads at the right have the role by their mean only.",
    paper="Pande et al. 2021, Hypothesis testing",
    needs=("role_by_mean",),
)
def labels(dataset: xr.Dataset) -> Figure:
    """Draw `has_role` and `role_by_mean[layer, head, role]` beside each other, as bars."""
    roles = data.labels(dataset, "role")
    other_roles = [role for role in roles if role not in COARSE_ROLES]
    drawn = scored_roles(dataset, [*COARSE_ROLES, *other_roles])
    by_mean = data.values(dataset, "role_by_mean", DIMS) > 0
    has_role = memberships(dataset, roles)
    fig, ax = role_rows(drawn, 1.2, 0.2)
    longest = max(1, int(by_mean.sum((0, 1)).max()))
    for row, role in enumerate(drawn):
        place = roles.index(role)
        mean_only = by_mean[..., place] & ~has_role[..., place]
        n_with_role = int(has_role[..., place].sum())
        n_mean_only = int(mean_only.sum())
        colour = _colour(role, row)
        ax.barh(row, n_with_role, color=colour, height=0.7)
        ax.barh(row, n_mean_only, left=n_with_role, color=colour, alpha=0.35, height=0.7)
        text = str(n_with_role)
        if n_mean_only:
            text += f" + {n_mean_only}: {_first_names(dataset, mean_only)}"
        x = n_with_role + n_mean_only + 0.01 * longest
        ax.text(x, row, text, **CENTRED | {"ha": "left"})
    ax.set(xlim=(0, 1.75 * longest), xlabel="heads")
    handles = [
        Patch(color=style.GREY, label="with the role"),
        Patch(color=style.GREY, alpha=0.35, label="by the mean alone"),
    ]
    how_to_read = (
        f"{int((by_mean & ~has_role).sum())} of {int(by_mean.sum())} roles by the mean do not meet "
        "the whole rule. No interval: counts"
    )
    notes = role_notes(dataset, drawn, how_to_read)
    return style.complete(fig, "Roles, and what a mean alone would say", notes, handles, 2)


def _first_names(dataset: xr.Dataset, chosen: np.ndarray) -> str:
    """Name the first of the heads chosen by `[layer, head]`, and say how many more there are."""
    layers = data.numbers(dataset, "layer")
    heads = data.numbers(dataset, "head")
    names = [head_name(layers[layer], heads[head]) for layer, head in np.argwhere(chosen)]
    text = ", ".join(names[:MAX_NAMED_HEADS])
    if len(names) > MAX_NAMED_HEADS:
        text += f" and {len(names) - MAX_NAMED_HEADS} more"
    return text


@figure(
    "roles",
    name="overlap",
    title="Heads with several roles",
    caption="Each column is a set of heads that have just the roles marked by filled dots; the bar "
    "above says how many. The bars at the left are all heads of a role. Heads without any of these "
    "roles stand in the column without a filled dot.",
    paper="Pande et al. 2021, Fig 4 (as an UpSet plot)",
    needs=("bias",),
)
def upset(dataset: xr.Dataset, roles: Sequence[str] | None = None, most: int = 24) -> Figure:
    """Draw the overlaps of roles as an UpSet plot.

    Parameters
    ----------
    dataset : xarray.Dataset
        The group `roles` of an atlas.
    roles : sequence of str, optional
        Default: the four coarse ones.
    most : int, default 24
        Largest number of columns; the largest sets come first.
    """
    expected = roles or COARSE_ROLES
    drawn = main_roles(dataset, expected)
    if not drawn:
        raise ParameterError("None of the roles has a score; nothing can be drawn.")
    members = memberships(dataset, drawn).reshape(-1, len(drawn))
    combinations, counts = np.unique(members, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    combinations = combinations[order]
    counts = counts[order]

    rows_height = 0.24 * len(drawn)
    width = style.PAGE if len(counts) > 8 else 5.2
    fig = style.new_figure(width, 1.7 + rows_height + 0.7)
    grid = fig.add_gridspec(
        2, 2, width_ratios=[1.0, 3.2], height_ratios=[1.5, rows_height], wspace=0.02, hspace=0.03
    )
    bars = fig.add_subplot(grid[0, 1])
    dots = fig.add_subplot(grid[1, 1])
    sizes = fig.add_subplot(grid[1, 0])
    _upset_columns(bars, dots, combinations, counts)
    _upset_rows(dots, sizes, drawn, members, combinations)
    dots.set(xlim=bars.get_xlim(), ylim=(len(drawn) - 0.5, -0.5), xticks=[])
    style.bare(dots)
    widest = max(members.sum(0).max() * 1.3, 1)
    sizes.set(xlim=(widest, 0), ylim=dots.get_ylim(), yticks=[], xlabel="heads of the role")
    sizes.spines["left"].set_visible(False)
    how_to_read = f"{len(members)} heads in all layers; no interval: these are counts of heads"
    notes = role_notes(dataset, drawn, how_to_read, expected)
    return style.complete(fig, "Which roles go together", notes)


def _upset_columns(bars: Axes, dots: Axes, combinations: np.ndarray, counts: np.ndarray) -> None:
    """Draw one bar for each combination of roles, and a line that joins its dots."""
    bars.bar(np.arange(len(counts)), counts, width=0.62, color=style.INK)
    bars.set(
        xlim=(-0.6, len(counts) - 0.4), ylim=(0, counts.max() * 1.14), ylabel="heads", xticks=[]
    )
    for column, (combination, count) in enumerate(zip(combinations, counts, strict=True)):
        bars.text(column, float(count), str(count), **CENTRED | {"va": "bottom"})
        rows = np.flatnonzero(combination)
        if not len(rows):
            below_axis = CENTRED | {"va": "top", "transform": bars.get_xaxis_transform()}
            bars.text(column, -0.02, "none", **below_axis)
        if len(rows) > 1:
            ends = [rows[0], rows[-1]]
            dots.plot([column, column], ends, color=style.INK, linewidth=1.0, zorder=2)


def _upset_rows(
    dots: Axes, sizes: Axes, roles: Sequence[str], members: np.ndarray, combinations: np.ndarray
) -> None:
    """Draw one row of dots for each role, and the number of its heads as a bar."""
    columns = np.arange(len(combinations))
    for row, role in enumerate(roles):
        if row % 2 == 0:
            dots.axhspan(row - 0.5, row + 0.5, color="#f2f2f2", linewidth=0)
        colour = COLOURS.get(role, FINE_COLOURS.get(role, style.INK))
        dot_colours = [colour if filled else style.PALE for filled in combinations[:, row]]
        dots.scatter(columns, np.full(len(columns), row), s=26, color=dot_colours, zorder=3)
        n_heads = members[:, row].sum()
        sizes.barh(row, n_heads, height=0.55, color=colour)
        sizes.text(n_heads, row, f"{n_heads} ", **CENTRED | {"ha": "right"})
    dots.set_yticks(range(len(roles)), roles)


# Four ellipses whose 15 overlaps all have room for a number: centre and angle of each, where its
# name stands, and the middle of every region by the roles that cover it.
_ELLIPSES = ((0.350, 0.400, 140), (0.450, 0.500, 140), (0.544, 0.500, 40), (0.644, 0.400, 40))
_NAME_PLACES = ((0.02, 0.16), (0.19, 0.90), (0.80, 0.90), (0.98, 0.16))
_REGIONS = {
    "0001": (0.85, 0.42), "0010": (0.68, 0.72), "0011": (0.77, 0.59), "0100": (0.32, 0.72),
    "0101": (0.71, 0.30), "0110": (0.50, 0.66), "0111": (0.65, 0.50), "1000": (0.14, 0.42),
    "1001": (0.50, 0.17), "1010": (0.29, 0.30), "1011": (0.39, 0.24), "1100": (0.23, 0.59),
    "1101": (0.61, 0.24), "1110": (0.35, 0.50), "1111": (0.50, 0.38),
}  # fmt: skip


@figure(
    "roles",
    name="venn",
    title="Heads with several roles, as a Venn diagram",
    caption="Every region holds the heads that have just the roles whose ellipses cover it; the "
    "number outside is that of heads with none of the four roles.",
    paper="Pande et al. 2021, Fig 4",
    needs=("bias",),
)
def venn(dataset: xr.Dataset) -> Figure:
    """Draw the four coarse roles as a Venn diagram of heads, from `has_role`."""
    members = memberships(dataset, COARSE_ROLES).reshape(-1, len(COARSE_ROLES))
    scored = scored_roles(dataset, COARSE_ROLES)
    fig, ax = style.one_panel(style.COLUMN, 3.1)
    bold = CENTRED | {"fontsize": style.NORMAL, "fontweight": "bold"}
    for number, role in enumerate(COARSE_ROLES):
        x, y, angle = _ELLIPSES[number]
        colour = COLOURS[role]
        shape: dict[str, Any] = {"xy": (x, y), "width": 0.72, "height": 0.45, "angle": angle}
        ax.add_patch(Ellipse(**shape, facecolor=colour, alpha=0.22, linewidth=0))
        ax.add_patch(Ellipse(**shape, fill=False, edgecolor=colour, linewidth=1.1))
        count = members[:, number].sum() if role in scored else "not computed"
        ax.text(*_NAME_PLACES[number], f"{role}\n{count}", color=colour, **bold)
    for covered_by, place in _REGIONS.items():
        combination = [digit == "1" for digit in covered_by]
        n_heads = (members == combination).all(1).sum()
        if n_heads:
            ax.text(*place, str(n_heads), color=style.INK, **CENTRED | {"fontsize": style.NORMAL})
        else:
            ax.text(*place, "0", color=style.GREY, **CENTRED)
    n_outside = (~members.any(1)).sum()
    ax.text(0.5, 0.02, f"none of the four: {n_outside} of {len(members)} heads", **CENTRED)
    ax.set(xlim=(-0.08, 1.08), ylim=(-0.02, 0.98), aspect="equal")
    ax.axis("off")
    how_to_read = "Heads of all layers; areas are not to scale; no interval: counts of heads"
    return style.complete(fig, "Roles of heads", role_notes(dataset, COARSE_ROLES, how_to_read))


@figure(
    "roles",
    name="random",
    title="Roles beside random weights",
    caption="Each point is one head: its mean sieve bias for a role. The bar reaches from the mean "
    "of random-weights models of the same shape, as sharp as this one, on the same inputs, to what "
    "none of their heads passes (at the level of the tests, over all heads and roles): below it a "
    "head has no role. The dashed line is τ.",
    paper="Beyond Pande et al. 2021",
    needs=("random_bound",),
)
def beside_random(dataset: xr.Dataset) -> Figure:
    """Draw `bias[layer, head, role]` over `random_bias[role]` and `random_bound[role]`."""
    roles = data.labels(dataset, "role")
    drawn = scored_roles(dataset, roles)
    by_role = ("role", "layer", "head")
    bias = data.values(dataset, "bias", by_role).reshape(len(roles), -1)
    has_role = data.values(dataset, "has_role", by_role).reshape(len(roles), -1) > 0
    random_mean = data.values(dataset, "random_bias", ("role",))
    random_bound = data.values(dataset, "random_bound", ("role",))
    names = [f"{role} ({int(has_role[roles.index(role)].sum())})" for role in drawn]
    fig, ax = role_rows(names, 0.9, 0.26)
    # Random heights only keep the points of one row apart.
    generator = np.random.default_rng(0)
    lowest = 2.0**-5
    for row, role in enumerate(drawn):
        place = roles.index(role)
        x = np.maximum(bias[place], lowest)
        y = row + generator.uniform(-0.22, 0.22, bias.shape[1])
        ax.barh(
            row,
            random_bound[place] - random_mean[place],
            left=random_mean[place],
            height=0.74,
            color=style.PALE,
            linewidth=0,
        )
        significant = has_role[place]
        ax.scatter(x[~significant], y[~significant], s=5, color=style.GREY, linewidths=0)
        ax.scatter(x[significant], y[significant], s=5, color=style.VERMILION, linewidths=0)
    score_axis(ax, dataset, "mean sieve bias", lowest * 0.9)
    n_models = int(dataset.attrs["random_models"])
    plural = "s" if n_models > 1 else ""
    how_to_read = (
        "Coloured, and in brackets: heads with the role after correction. "
        f"{n_models} random model{plural}. Points cut at 1/32; intervals are in the tables"
    )
    notes = role_notes(dataset, drawn, how_to_read, drawn)
    return style.complete(fig, "Roles of heads beside random weights", notes)
