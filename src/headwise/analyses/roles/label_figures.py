"""Every p-value as a point, and what a mean would have called that the test does not (Pande et al. 2021, Fig 3)."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headwise.analyses.roles.figures import CENTRED, COLOURS, FINE_COLOURS, notes_on, role_rows, shown_roles
from headwise.analyses.roles.significance import COARSE, undecided
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
        ax.plot(place, p, ".", markersize=3, color=_colour(role, index), alpha=0.7, markeredgewidth=0)
    for height in (0.05, 0.95):
        ax.axhline(height, color=style.GREY, linewidth=0.7, linestyle=(0, (1, 1)), zorder=1)
    slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len(shown) > 6 else {}
    ax.set_xticks(range(len(shown)), shown, **slanted)  # type: ignore[arg-type]
    ax.set(xlim=(-0.6, len(shown) - 0.4), ylim=(-0.03, 1.03), ylabel="p-value (H0: mean bias ≤ τ)")
    between = f"{undecided(values):.1%} of the points lie between the dotted lines".replace("%", " %")
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
    how = (
        f"{int((mean & ~test).sum())} of {int(mean.sum())} roles that means call are not confirmed. No interval: counts"
    )
    return style.complete(fig, "Roles by mean and by test", notes_on(dataset, shown, how), handles, 2)
