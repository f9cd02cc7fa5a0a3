"""Who has which role: every p-value as a point, what a mean would have called that the test does
not, which roles the same heads have (as an UpSet plot and as the paper's Venn diagram), and all
beside random weights (Pande et al. 2021, Fig 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Patch

from headwise.analyses.roles.figures import (
    CENTRED,
    COLOURS,
    FINE_COLOURS,
    main_roles,
    memberships,
    notes_on,
    role_rows,
    score_axis,
    shown_roles,
)
from headwise.analyses.roles.significance import COARSE, undecided
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.registry import figure

_LHR = ("layer", "head", "role")
NAMED = 6  # heads that are named where mean and test differ


def _colour(role: str, index: int) -> str:
    return COLOURS.get(role) or FINE_COLOURS.get(role) or style.cycle(style.OKABE_ITO, index)


@figure(
    "roles",
    name="p-values",
    title="The p-values of all heads",
    caption="One point per head in the column of each role, layers from left to right: near 0 the head has the role, "
    "near 1 it has not. Between the dotted lines nothing is decided.",
    paper="Pande et al. 2021, Fig 3 (b)",
    needs=("p_value",),
)
def p_scatter(dataset: xr.Dataset) -> Figure:
    """`p_value[layer, head, role]` as a scatter."""
    roles = data.labels(dataset, "role")
    shown = shown_roles(dataset, roles)
    values = data.values(dataset, "p_value", _LHR)
    fig, ax = style.one_panel(style.PAGE, 3.1)
    for index, role in enumerate(shown):
        p = values[..., roles.index(role)].ravel()
        place = index - 0.4 + 0.8 * (np.arange(p.size) + 0.5) / p.size
        ax.plot(
            place, p, ".", markersize=3, color=_colour(role, index), alpha=0.7, markeredgewidth=0
        )
    for height in (0.05, 0.95):
        ax.axhline(height, color=style.GREY, linewidth=0.7, linestyle=(0, (1, 1)), zorder=1)
    slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len(shown) > 6 else {}
    ax.set_xticks(range(len(shown)), shown, **slanted)  # type: ignore[arg-type]
    ax.set(xlim=(-0.6, len(shown) - 0.4), ylim=(-0.03, 1.03), ylabel="p-value (H0: mean bias ≤ τ)")
    between = f"{undecided(values):.1%} of the points lie between the dotted lines".replace(
        "%", " %"
    )
    how = f"{between}. Within a column: heads in the order of layers. No interval: each point is one test"
    return style.complete(fig, "p-values of all heads", notes_on(dataset, shown, how))


@figure(
    "roles",
    name="labels",
    title="Roles by mean and roles by test",
    caption="How many heads have each role: dark, by the test; pale, by a mean over τ alone, which the test does not "
    "confirm. The heads at the right are those that only the mean calls.",
    paper="Pande et al. 2021, Hypothesis testing",
    needs=("role_by_mean",),
)
def labels(dataset: xr.Dataset) -> Figure:
    """`role_by_test` and `role_by_mean[layer, head, role]` beside each other, as bars by role."""
    roles = data.labels(dataset, "role")
    shown = shown_roles(dataset, [*COARSE, *(role for role in roles if role not in COARSE)])
    mean, test = (data.values(dataset, f"role_by_{how}", _LHR) > 0 for how in ("mean", "test"))
    layers, heads = data.numbers(dataset, "layer"), data.numbers(dataset, "head")
    fig, ax = role_rows(shown, 1.2, 0.2)
    most = max(1, int(mean.sum((0, 1)).max()))
    for row, role in enumerate(shown):
        place = roles.index(role)
        sure, only = int(test[..., place].sum()), mean[..., place] & ~test[..., place]
        ax.barh(row, sure, color=_colour(role, row), height=0.7)
        ax.barh(row, only.sum(), left=sure, color=_colour(role, row), alpha=0.35, height=0.7)
        told = [head_name(layers[i], heads[j]) for i, j in np.argwhere(only)]
        more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
        text = f"{sure}" + (f" + {len(told)}: {', '.join(told[:NAMED])}{more}" if told else "")
        ax.text(sure + only.sum() + 0.01 * most, row, text, **CENTRED | {"ha": "left"})
    ax.set(xlim=(0, 1.75 * most), xlabel="heads")
    handles = [
        Patch(color=style.GREY, label="by the test"),
        Patch(color=style.GREY, alpha=0.35, label="by the mean alone"),
    ]
    how = f"{int((mean & ~test).sum())} of {int(mean.sum())} roles that means call are not confirmed. No interval: counts"
    return style.complete(
        fig, "Roles by mean and by test", notes_on(dataset, shown, how), handles, 2
    )


@figure(
    "roles",
    name="overlap",
    title="Heads with several roles",
    caption="Each column is a set of heads that have just the roles marked by filled dots; the bar above says how "
    "many. The bars at the left are all heads of a role. Heads without any of these roles stand in the column without "
    "a filled dot.",
    paper="Pande et al. 2021, Fig 4 (as an UpSet plot)",
    needs=("bias",),
)
def upset(dataset: xr.Dataset, roles: Sequence[str] | None = None, most: int = 24) -> Figure:
    """Overlaps of roles as an UpSet plot.

    Parameters
    ----------
    dataset : xarray.Dataset
        The group `roles` of an atlas.
    roles : sequence of str, optional
        Which; the four coarse ones by default.
    most : int, default 24
        So many columns at most, the largest sets first.
    """
    chosen = main_roles(dataset, roles or COARSE)
    if not chosen:
        raise ParameterError("None of the roles has a score; nothing can be drawn.")
    members = memberships(dataset, chosen).reshape(-1, len(chosen))
    patterns, counts = np.unique(members, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    patterns, counts = patterns[order], counts[order]
    tall = 0.24 * len(chosen)
    fig = style.new_figure(style.PAGE if len(counts) > 8 else 5.2, 1.7 + tall + 0.7)
    grid = fig.add_gridspec(
        2, 2, width_ratios=[1.0, 3.2], height_ratios=[1.5, tall], wspace=0.02, hspace=0.03
    )
    bars, dots, sizes = (
        fig.add_subplot(grid[0, 1]),
        fig.add_subplot(grid[1, 1]),
        fig.add_subplot(grid[1, 0]),
    )
    columns = np.arange(len(counts))
    bars.bar(columns, counts, width=0.62, color=style.INK)
    bars.set(
        xlim=(-0.6, len(counts) - 0.4), ylim=(0, counts.max() * 1.14), ylabel="heads", xticks=[]
    )
    for row, role in enumerate(chosen):
        if row % 2 == 0:
            dots.axhspan(row - 0.5, row + 0.5, color="#f2f2f2", linewidth=0)
        colour = COLOURS.get(role, FINE_COLOURS.get(role, style.INK))
        filled = [colour if on else style.PALE for on in patterns[:, row]]
        dots.scatter(columns, np.full(len(columns), row), s=26, color=filled, zorder=3)
        size = members[:, row].sum()
        sizes.barh(row, size, height=0.55, color=colour)
        sizes.text(size, row, f"{size} ", **CENTRED | {"ha": "right"})
    for column, (pattern, count) in enumerate(zip(patterns, counts, strict=True)):
        bars.text(column, float(count), str(count), **CENTRED | {"va": "bottom"})
        on = np.flatnonzero(pattern)
        if not len(on):
            bars.text(
                column,
                -0.02,
                "none",
                transform=bars.get_xaxis_transform(),
                **CENTRED | {"va": "top"},
            )
        if len(on) > 1:
            dots.plot([column, column], [on[0], on[-1]], color=style.INK, linewidth=1.0, zorder=2)
    dots.set_yticks(range(len(chosen)), chosen)
    dots.set(xlim=bars.get_xlim(), ylim=(len(chosen) - 0.5, -0.5), xticks=[])
    style.bare(dots)
    widest = max(members.sum(0).max() * 1.3, 1)
    sizes.set(xlim=(widest, 0), ylim=dots.get_ylim(), yticks=[], xlabel="heads of the role")
    sizes.spines["left"].set_visible(False)
    how = f"{len(members)} heads in all layers; no interval: these are counts of heads"
    return style.complete(
        fig, "Which roles go together", notes_on(dataset, chosen, how, roles or COARSE)
    )


_ELLIPSES = ((0.350, 0.400, 140), (0.450, 0.500, 140), (0.544, 0.500, 40), (0.644, 0.400, 40))
_PLACES = {
    "0001": (0.85, 0.42), "0010": (0.68, 0.72), "0011": (0.77, 0.59), "0100": (0.32, 0.72), "0101": (0.71, 0.30),
    "0110": (0.50, 0.66), "0111": (0.65, 0.50), "1000": (0.14, 0.42), "1001": (0.50, 0.17), "1010": (0.29, 0.30),
    "1011": (0.39, 0.24), "1100": (0.23, 0.59), "1101": (0.61, 0.24), "1110": (0.35, 0.50), "1111": (0.50, 0.38),
}  # fmt: skip
_NAMES = ((0.02, 0.16), (0.19, 0.90), (0.80, 0.90), (0.98, 0.16))


@figure(
    "roles",
    name="venn",
    title="Heads with several roles, as a Venn diagram",
    caption="Every region holds the heads that have just the roles whose ellipses cover it; the number outside is "
    "that of heads with none of the four roles.",
    paper="Pande et al. 2021, Fig 4",
    needs=("bias",),
)
def venn(dataset: xr.Dataset) -> Figure:
    """The four coarse roles as a Venn diagram of heads, from `has_role`."""
    members = memberships(dataset, COARSE).reshape(-1, len(COARSE))
    shown = shown_roles(dataset, COARSE)
    fig, ax = style.one_panel(style.COLUMN, 3.1)
    for (x, y, angle), role, place, size in zip(
        _ELLIPSES, COARSE, _NAMES, members.sum(0), strict=True
    ):
        colour, count = COLOURS[role], size if role in shown else "not computed"
        ax.add_patch(
            Ellipse((x, y), 0.72, 0.45, angle=angle, facecolor=colour, alpha=0.22, linewidth=0)
        )
        ax.add_patch(
            Ellipse((x, y), 0.72, 0.45, angle=angle, fill=False, edgecolor=colour, linewidth=1.1)
        )
        bold = CENTRED | {"fontsize": style.NORMAL, "fontweight": "bold"}
        ax.text(*place, f"{role}\n{count}", color=colour, **bold)
    for key, place in _PLACES.items():
        count = (members == [c == "1" for c in key]).all(1).sum()
        size, colour = (style.NORMAL, style.INK) if count else (style.SMALL, style.GREY)
        ax.text(*place, str(count), color=colour, **CENTRED | {"fontsize": size})
    outside = (~members.any(1)).sum()
    ax.text(0.5, 0.02, f"none of the four: {outside} of {len(members)} heads", **CENTRED)
    ax.set(xlim=(-0.08, 1.08), ylim=(-0.02, 0.98), aspect="equal")
    ax.axis("off")
    how = "Heads of all layers; areas are not to scale; no interval: counts of heads"
    return style.complete(fig, "Roles of heads", notes_on(dataset, COARSE, how))


@figure(
    "roles",
    name="random",
    title="Roles beside random weights",
    caption="Each point is one head: its mean sieve bias for a role. The bar reaches from the mean of random-weights "
    "models of the same shape, as sharp as this one, on the same inputs, to what none of their heads passes (at the "
    "level of the tests, over all heads and roles): below it a head is called nothing. The dashed line is τ.",
    paper="Beyond Pande et al. 2021",
    needs=("random_bound",),
)
def beside_random(dataset: xr.Dataset) -> Figure:
    """`bias[layer, head, role]` over `random_bias[role]` and `random_bound[role]`."""
    labels = data.labels(dataset, "role")
    shown = shown_roles(dataset, labels)
    bias = data.values(dataset, "bias", ("role", "layer", "head")).reshape(len(labels), -1)
    has = (
        data.values(dataset, "has_role_adjusted", ("role", "layer", "head")).reshape(
            len(labels), -1
        )
        > 0
    )
    low, high = (data.values(dataset, name, ("role",)) for name in ("random_bias", "random_bound"))
    fig, ax = role_rows(
        [f"{role} ({int(has[labels.index(role)].sum())})" for role in shown], 0.9, 0.26
    )
    generator = np.random.default_rng(0)  # points lie beside each other, no more
    least = 2.0**-5
    for row, role in enumerate(shown):
        place = labels.index(role)
        values, beside = (
            np.maximum(bias[place], least),
            row + generator.uniform(-0.22, 0.22, bias.shape[1]),
        )
        ax.barh(
            row,
            high[place] - low[place],
            left=low[place],
            height=0.74,
            color=style.PALE,
            linewidth=0,
        )
        for kind, colour in ((~has[place], style.GREY), (has[place], style.VERMILION)):
            ax.scatter(values[kind], beside[kind], s=5, color=colour, linewidths=0)
    score_axis(ax, dataset, "mean sieve bias", least * 0.9)
    count = int(dataset.attrs["random_models"])
    how = (
        "Coloured, and in brackets: heads with the role after correction. "
        f"{count} random model{'s' if count > 1 else ''}. Points cut at 1/32; intervals are in the tables"
    )
    return style.complete(
        fig, "Roles of heads beside random weights", notes_on(dataset, shown, how, shown)
    )
