"""Figures of roles: distributions of scores and p-values, the role grid, roles by layer and by τ (Pande et al. 2021, Fig 2, 3 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

COARSE = ("local", "syntactic", "block", "delimiter")
# Fig 5's nine, in the order of its 3 × 3 squares, each with a colour of its own; the place in the cell says the same.
FINE = {
    "nsubj": "#0072B2", "dobj": "#56B4E9", "amod": "#009E73", "advmod": "#7CB518", "cls": "#D55E00", "sep": "#E69F00", "block": "#6A3D9A",
    "local:prev": "#CC79A7", "local:next": "#1A1A1A",
}  # fmt: skip
COARSE_COLOURS = {"local": style.PINK, "syntactic": style.BLUE, "block": "#6A3D9A", "delimiter": style.VERMILION}
_LHR = ("layer", "head", "role")


def shown_roles(dataset: xr.Dataset, wanted: Sequence[str]) -> list[str]:
    """Those of the wanted roles that some head has a score for."""
    bias, roles = data.values(dataset, "bias", _LHR), data.labels(dataset, "role")
    return [role for role in wanted if role in roles and np.isfinite(bias[..., roles.index(role)]).any()]


def role_notes(dataset: xr.Dataset, roles: Sequence[str]) -> list[str]:
    """Model and corpus, how many inputs are behind the roles that a figure shows, and τ."""
    kept = [place for place, role in enumerate(data.labels(dataset, "role")) if role in roles]
    return [
        data.source_text(dataset),
        data.count_text(dataset.isel(role=kept), "bias", each="inputs"),
        f"τ = {dataset.attrs['tau']:g}" if "tau" in dataset.attrs else "",
    ]


def unseen_roles(dataset: xr.Dataset, wanted: Sequence[str]) -> str:
    """A note on roles that are not there, and on those that no head could have."""
    lacking = [role for role in wanted if role not in shown_roles(dataset, wanted)]
    parts = [f"Not computed, for this corpus or model lacks what they need: {', '.join(lacking)}"] if lacking else []
    if "ceiling" in dataset.variables and "tau" in dataset.attrs:
        roles, top = data.labels(dataset, "role"), data.values(dataset, "ceiling", ("layer", "role"))
        short = [
            r
            for r in wanted
            if r in roles
            and np.isfinite(top[:, roles.index(r)]).any()
            and np.nanmax(top[:, roles.index(r)]) <= dataset.attrs["tau"]
        ]
        parts += (
            [f"No head can have {', '.join(short)} at this τ: attending to nothing else gives less"] if short else []
        )
    return ". ".join(parts)


@figure(
    "roles",
    name="scores",
    title="Scores and p-values of all heads",
    caption="(a) Sieve bias of every head on every input, as a cumulative share, by role: 1 is uniform attention, the dashed line is τ. (b) "
    "The p-values of all heads and roles: near 0 the "
    "head has the role, near 1 it has not; few lie between. (c) One head's scores over inputs: the head and role whose test is least decided, where a mean alone would mislead.",
    paper="Pande et al. 2021, Fig 2-3",
    needs=("bias",),
)
def score_distributions(dataset: xr.Dataset) -> Figure:
    """Cumulative scores by role, the p-values, and one head's distribution, from `histogram[layer, head, role, bin]` and `p_value[layer, head, role]`."""
    roles = data.labels(dataset, "role")
    counts = data.values(dataset, "histogram", (*_LHR, "bin"))
    edges = np.asarray(dataset["bin_low"].values, dtype=float)
    shown = shown_roles(dataset, COARSE) or shown_roles(dataset, roles)[:4]
    fig = style.new_figure(style.PAGE, 2.7)
    left, middle, right = fig.subplots(1, 3)
    for index, role in enumerate(shown):
        total = counts[:, :, roles.index(role)].sum((0, 1))
        colour = COARSE_COLOURS.get(role, style.cycle(style.OKABE_ITO, index))
        left.stairs(np.cumsum(total)[:-1] / total.sum(), edges, baseline=None, color=colour, linewidth=1.3, label=role)
    _score_axis(left, dataset)
    left.set_ylim(0, 1.02)
    left.set_ylabel("share of scores at or below")
    left.legend(loc="upper left")
    p = data.values(dataset, "p_value", _LHR)
    known = p[np.isfinite(p)]
    middle.hist(known, bins=np.linspace(0, 1, 41), color=style.BLUE)
    middle.set_xlabel("p-value (H0: mean bias ≤ τ)")
    middle.set_ylabel("heads × roles")
    between = float(((known > 0.05) & (known < 0.95)).mean()) if known.size else float("nan")
    middle.text(
        0.5,
        0.95,
        f"{between:.1%} in (0.05, 0.95)".replace("%", " %"),
        transform=middle.transAxes,
        ha="center",
        va="top",
        fontsize=style.SMALL,
    )
    doubt = np.where(np.isfinite(p), np.abs(p - 0.5), np.inf)
    layer, head, place = np.unravel_index(np.argmin(doubt), p.shape)
    right.stairs(counts[layer, head, place][1:-1], edges[1:], fill=True, color=style.SKY)
    mean = data.values(dataset, "bias", _LHR)[layer, head, place]
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
    _score_axis(right, dataset)
    right.set_ylabel("inputs")
    name = head_name(data.numbers(dataset, "layer")[layer], data.numbers(dataset, "head")[head])
    style.panel_labels(
        [left, middle, right],
        ["scores of all heads", "tests", f"{name}, {roles[place]}: p = {p[layer, head, place]:.2f}"],
    )
    style.annotate_figure(
        fig,
        "Sieve bias and its tests",
        [
            *role_notes(dataset, shown),
            f"Dashed: τ. (b) has all {len(shown_roles(dataset, roles))} roles. No interval is drawn: these are distributions over inputs",
            unseen_roles(dataset, COARSE),
        ],
    )
    return style.finish(fig)


def _score_axis(ax: Axes, dataset: xr.Dataset) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xlim(2**-4, 2**7)
    ax.set_xticks([2.0**k for k in range(-4, 8, 2)], [f"{2.0**k:g}" for k in range(-4, 8, 2)])
    ax.minorticks_off()
    ax.set_xlabel("sieve bias (1 = uniform)")
    if "tau" in dataset.attrs and np.isfinite(dataset.attrs["tau"]):
        ax.axvline(dataset.attrs["tau"], color=style.GREY, linewidth=0.9, linestyle=(0, (4, 2)))


@figure(
    "roles",
    name="grid",
    title="The roles of every head",
    caption="One square per head, one row per layer (0 at the top), divided into nine: each small square stands for a role, always at the "
    "same place, and is coloured where the head has it. "
    "Heads are sorted within the layer by the number of their roles; the number below a square is the head's; the legend lies as the small squares do.",
    paper="Pande et al. 2021, Fig 5",
    needs=("bias",),
)
def role_grid(dataset: xr.Dataset) -> Figure:
    """Fig 5 from `has_role[layer, head, role]`: nine roles, heads sorted within the layer, most roles first (ties: lowest head first)."""
    labels = data.labels(dataset, "role")
    has = data.values(dataset, "has_role", _LHR) > 0
    shape = has.shape[:2]
    fine = np.stack([has[..., labels.index(r)] if r in labels else np.zeros(shape, dtype=bool) for r in FINE], axis=-1)
    order = np.argsort(-fine.sum(-1), axis=1, kind="stable")
    layers, heads = shape
    width = min(style.PAGE, 0.8 + heads * 0.44)
    cell = (width - 0.6) / heads
    pitch = 1.14  # rows stand further apart than columns: the head's number has its place between them
    fig = style.new_figure(max(width, 3.6), min(layers * pitch * cell + 1.3, style.PAGE_HEIGHT))
    ax = fig.subplots()
    squares: dict[str, list[Rectangle]] = {"": [], **{role: [] for role in FINE}}
    small = 0.8 / 3
    for layer in range(layers):
        for rank, head in enumerate(order[layer]):
            squares[""].append(Rectangle((rank - 0.42, layer - 0.42 / pitch), 0.84, 0.84 / pitch))
            for place, role in enumerate(FINE):
                if fine[layer, head, place]:
                    row, column = divmod(place, 3)
                    squares[role].append(
                        Rectangle(
                            (rank - 0.4 + column * small + 0.01, layer + (-0.4 + row * small + 0.01) / pitch),
                            small - 0.02,
                            (small - 0.02) / pitch,
                        )
                    )
            if cell >= 0.34:
                ax.text(
                    rank,
                    layer + 0.57 / pitch,
                    str(data.numbers(dataset, "head")[head]),
                    ha="center",
                    va="center",
                    fontsize=style.SMALL,
                    color=style.GREY,
                )
    for role, patches in squares.items():
        ax.add_collection(PatchCollection(patches, facecolor=FINE.get(role, "#e9e9e9"), edgecolor="none"))
    ax.set_xlim(-0.6, heads - 0.4)
    ax.set_ylim(layers - 1 + 0.75 / pitch, -0.5 / pitch)
    ax.set_aspect(pitch)
    ax.set_xticks([])
    step = max(1, -(-layers // 24))
    ax.set_yticks(range(0, layers, step), [str(n) for n in data.numbers(dataset, "layer")[::step]])
    ax.set_ylabel("layer (0 at the top)")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    handles = [
        Patch(facecolor=colour, label=f"{role} ({int(fine[..., place].sum())})")
        for place, (role, colour) in enumerate(FINE.items())
    ]
    handles = [
        handles[3 * row + column] for column in range(3) for row in range(3)
    ]  # a legend is filled column by column, a square row by row
    notes = [
        *role_notes(dataset, list(FINE)),
        "The legend's places are those within a square. In brackets: heads with the role. Below a square: its head. No interval: each small square is a test",
        unseen_roles(dataset, list(FINE)),
    ]
    style.annotate_figure(fig, "What each head does", notes, handles, 3)
    return style.finish(fig)


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
    counts = data.values(dataset, "per_layer", ("layer", "role"))[:, [labels.index(role) for role in chosen]]
    table = np.column_stack([counts, data.values(dataset, "multi_skilled", ("layer",))])
    heads = dataset.sizes["head"]
    fig = style.new_figure(style.PAGE, min(1.9 + 0.2 * len(table), style.PAGE_HEIGHT))
    ax = fig.subplots()
    image = ax.imshow(table, cmap=style.SEQUENTIAL, vmin=0, vmax=heads, aspect="auto")
    if len(table) <= 40:
        for (row, column), value in np.ndenumerate(table):
            ax.text(
                column,
                row,
                f"{value:.0f}" if value else "",
                ha="center",
                va="center",
                fontsize=style.SMALL,
                color="black" if value > 0.55 * heads else "white",
            )
    ax.axvline(len(chosen) - 0.5, color="white", linewidth=2)
    ax.set_xticks(
        range(len(chosen) + 1), [*chosen, "two or more of nine"], rotation=40, ha="right", rotation_mode="anchor"
    )
    step = max(1, -(-len(table) // 30))
    ax.set_yticks(range(0, len(table), step), [str(n) for n in data.numbers(dataset, "layer")[::step]])
    ax.set_ylabel("layer (0 at the top)")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    bar = fig.colorbar(image, ax=ax, fraction=0.03, pad=0.015)
    bar.set_label("heads of the layer")
    bar.outline.set_linewidth(0.4)
    style.annotate_figure(
        fig,
        "How many heads of each layer have a role",
        [
            *role_notes(dataset, chosen),
            f"{heads} heads a layer; no interval: counts of heads",
            unseen_roles(dataset, labels),
        ],
    )
    return style.finish(fig)


@figure(
    "roles",
    name="bias",
    title="Sieve bias of every head",
    caption="Mean sieve bias for the four coarse roles, as a power of two: 0 is uniform attention, 1 twice as much as the average token gets.",
    paper="Pande et al. 2021, sieve bias score",
    needs=("bias",),
)
def bias_maps(dataset: xr.Dataset) -> Figure:
    """Heat maps of `log2 bias[layer, head]` for the coarse roles on one scale."""
    panels = {}
    chosen = shown_roles(dataset, COARSE) or shown_roles(dataset, data.labels(dataset, "role"))[:4]
    for role in chosen:
        array = dataset["bias"].sel(role=role).drop_vars(["role", "about"], errors="ignore")
        panels[role] = array.clip(min=2**-6).copy(data=np.log2(array.clip(min=2**-6).values))
    notes = [
        *role_notes(dataset, chosen),
        "Each cell: mean over inputs of one head, cut at 2^−6; intervals are in the tables",
        unseen_roles(dataset, COARSE),
    ]
    return heatmap_panels(
        panels, title="Sieve bias", label="log2 of the sieve bias", centre=0.0, annotate="none", notes=notes
    )


@figure(
    "roles",
    name="tau",
    title="Roles at other thresholds",
    caption="How many heads have each of the four roles when τ is set to other values; the dashed line is the τ in use. The grey line is the share of heads with none of them.",
    paper="Pande et al. 2021, choice of τ",
    needs=("sweep",),
)
def tau_sweep(dataset: xr.Dataset) -> Figure:
    """`sweep[threshold, role]` for the coarse roles and `sweep_unskilled[threshold]`."""
    labels, thresholds = data.labels(dataset, "role"), np.asarray(dataset["threshold"].values, dtype=float)
    counts = data.values(dataset, "sweep", ("threshold", "role"))
    fig = style.new_figure(style.COLUMN, 2.9)
    ax = fig.subplots()
    heads = dataset.sizes["layer"] * dataset.sizes["head"]
    shown = shown_roles(dataset, COARSE) or shown_roles(dataset, labels)[:4]
    for index, role in enumerate(shown):
        colour = COARSE_COLOURS.get(role, style.cycle(style.OKABE_ITO, index))
        ax.plot(
            thresholds,
            counts[:, labels.index(role)] / heads,
            color=colour,
            marker=style.cycle(style.MARKERS, index),
            label=role,
        )
    ax.plot(
        thresholds,
        data.values(dataset, "sweep_unskilled", ("threshold",)),
        color=style.GREY,
        linestyle=(0, (1, 1)),
        label="none of the four",
    )
    if "tau" in dataset.attrs and np.isfinite(dataset.attrs["tau"]):
        ax.axvline(dataset.attrs["tau"], color=style.GREY, linewidth=0.9, linestyle=(0, (4, 2)))
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlabel("τ")
    ax.set_ylabel(f"share of {heads} heads")
    handles, _ = ax.get_legend_handles_labels()
    style.annotate_figure(
        fig,
        "Roles at other thresholds, all layers",
        [*role_notes(dataset, shown), "No interval: shares of heads", unseen_roles(dataset, COARSE)],
        handles,
        3,
    )
    return style.finish(fig)
