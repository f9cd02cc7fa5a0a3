"""Which roles the same heads have, as an UpSet plot and as the paper's Venn diagram (Pande et al. 2021, Fig 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from headwise.analyses.roles.figures import (
    CENTRED,
    COLOURS,
    FINE_COLOURS,
    main_roles,
    memberships,
    notes_on,
    shown_roles,
)
from headwise.analyses.roles.significance import COARSE
from headwise.core.errors import ParameterError
from headwise.plots import style
from headwise.plots.registry import figure


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
    grid = fig.add_gridspec(2, 2, width_ratios=[1.0, 3.2], height_ratios=[1.5, tall], wspace=0.02, hspace=0.03)
    bars, dots, sizes = fig.add_subplot(grid[0, 1]), fig.add_subplot(grid[1, 1]), fig.add_subplot(grid[1, 0])
    columns = np.arange(len(counts))
    bars.bar(columns, counts, width=0.62, color=style.INK)
    bars.set(xlim=(-0.6, len(counts) - 0.4), ylim=(0, counts.max() * 1.14), ylabel="heads", xticks=[])
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
            bars.text(column, -0.02, "none", transform=bars.get_xaxis_transform(), **CENTRED | {"va": "top"})
        if len(on) > 1:
            dots.plot([column, column], [on[0], on[-1]], color=style.INK, linewidth=1.0, zorder=2)
    dots.set_yticks(range(len(chosen)), chosen)
    dots.set(xlim=bars.get_xlim(), ylim=(len(chosen) - 0.5, -0.5), xticks=[])
    style.bare(dots)
    widest = max(members.sum(0).max() * 1.3, 1)
    sizes.set(xlim=(widest, 0), ylim=dots.get_ylim(), yticks=[], xlabel="heads of the role")
    sizes.spines["left"].set_visible(False)
    how = f"{len(members)} heads in all layers; no interval: these are counts of heads"
    return style.complete(fig, "Which roles go together", notes_on(dataset, chosen, how, roles or COARSE))


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
    for (x, y, angle), role, place, size in zip(_ELLIPSES, COARSE, _NAMES, members.sum(0), strict=True):
        colour, count = COLOURS[role], size if role in shown else "not computed"
        ax.add_patch(Ellipse((x, y), 0.72, 0.45, angle=angle, facecolor=colour, alpha=0.22, linewidth=0))
        ax.add_patch(Ellipse((x, y), 0.72, 0.45, angle=angle, fill=False, edgecolor=colour, linewidth=1.1))
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
