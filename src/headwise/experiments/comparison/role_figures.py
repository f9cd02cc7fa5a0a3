"""Roles that heads gain and lose between models, by thirds of the layers."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headwise.plots import data, style
from headwise.plots.registry import figure


@figure(
    "change_roles",
    name="gained-lost",
    title="Roles gained and lost",
    caption="For each role: how many heads gain it (up) and lose it (down) against the first model, in the initial, "
    "middle and final third of the layers. Full colour: the head's bias surely changed that way; pale: it crosses the "
    "border of the role without a sure change.",
    paper="beside Pande et al. 2021, Fig 6",
    needs=("gained_count",),
)
def gained_and_lost(dataset: xr.Dataset) -> Figure:
    """`gained_count` and `lost_count[model, third, role]` as bars around zero, those that are sure in full colour."""
    models, roles = data.labels(dataset, "model"), data.labels(dataset, "role")
    dims = ("model", "third", "role")
    parts = {
        name: data.values(dataset, f"{name}_count", dims) for name in ("gained", "lost", "gained_sure", "lost_sure")
    }
    before = data.values(dataset, "role_count", ("model_all", "role"))
    shown = [i for i in range(len(roles)) if before[:, i].any() or any(part[..., i].any() for part in parts.values())]
    fig = style.new_figure(style.PAGE, 1.1 + 1.75 * len(models))
    axes = list(fig.subplots(len(models), 1, sharex=True, sharey=True, squeeze=False).ravel())
    colours = style.layer_colours(3)
    for row, ax in enumerate(axes):
        for third in range(3):
            place = np.arange(len(shown)) + 0.26 * (third - 1)
            for name, sign in (("gained", 1), ("lost", -1)):
                every, sure = (sign * parts[key][row, third, shown] for key in (name, f"{name}_sure"))
                ax.bar(place, every, width=0.24, color=colours[third], alpha=0.35)
                ax.bar(place, sure, width=0.24, color=colours[third])
        ax.axhline(0, color="black", linewidth=0.5)
        ax.set_ylabel("heads\n← lost      gained →")
        for x, i in enumerate(shown):
            ax.annotate(
                f"{before[0, i]:.0f} → {before[row + 1, i]:.0f}",
                (x, 1),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="top",
                fontsize=style.SMALL,
                color=style.GREY,
            )
    names = [roles[i] for i in shown]
    axes[-1].set_xticks(range(len(shown)), names, rotation=40, ha="right", rotation_mode="anchor")
    style.panel_labels(axes, models)
    handles = [
        Patch(color=colour, label=name) for colour, name in zip(colours, data.labels(dataset, "third"), strict=True)
    ]
    handles.append(Patch(color=style.GREY, alpha=0.35, label="no sure change of bias"))
    notes = [
        f"Against {dataset.attrs.get('reference_model', 'the first model')}, whose τ decides in all models",
        "Numbers above: all heads with the role, before → after",
        "No interval: counts of heads",
    ]
    return style.complete(fig, "Roles gained and lost", notes, handles, 4)
