"""How localised each task is among heads and among layers."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.registry import figure

_SHOWN = (("localisation", "among heads", style.BLUE, "o"), ("layer_localisation", "among layers", style.ORANGE, "s"))


@figure(
    "probing",
    name="localised",
    title="How localised each task is",
    caption="From 0, all heads (or layers) gain alike over the most frequent label, to 1, a single one does. Whiskers: "
    "95 % interval, bootstrap over test examples; at the right, how many heads of equal gain would be as even.",
    paper="after Jo & Myaeng 2020, §3.2 and Fig 3",
    needs=("localisation",),
)
def localised_tasks(dataset: xr.Dataset) -> Figure:
    """`localisation` and `layer_localisation[task]` with their intervals, a row a task."""
    names = np.atleast_1d(dataset["paper_task" if "paper_task" in dataset.coords else "task"].values)
    fig, ax = style.one_panel(style.COLUMN, 1.2 + 0.24 * len(names))
    for index, (name, words, colour, marker) in enumerate(_SHOWN):
        middle, low, high = (data.values(dataset, f"{name}{end}", ("task",)) for end in ("", "_low", "_high"))
        place = np.arange(len(names)) + 0.22 * index - 0.11
        ax.hlines(place, low, high, color=colour, linewidth=1)
        ax.plot(middle, place, marker, color=colour, label=words, linestyle="none", markersize=4)
    for row, count in enumerate(data.values(dataset, "effective_heads", ("task",))):
        text = f"{count:.0f}" if np.isfinite(count) else "no head knows it"
        ax.annotate(text, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=style.SMALL)
    ax.set_yticks(range(len(names)), [str(name) for name in names])
    ax.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6), xlabel="localisation (0 even, 1 a single one)")
    handles, _ = ax.get_legend_handles_labels()
    notes = [*data.ground(dataset, "accuracy", each="test examples"), "Right: effective number of heads"]
    return style.complete(fig, "How localised each task is", notes, handles, 2)
