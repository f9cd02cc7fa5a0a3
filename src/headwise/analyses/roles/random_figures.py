"""The figure of roles beside random-weights models."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.analyses.roles.figures import notes_on, role_rows, score_axis, shown_roles
from headwise.plots import data, style
from headwise.plots.registry import figure


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
    has = data.values(dataset, "has_role_adjusted", ("role", "layer", "head")).reshape(len(labels), -1) > 0
    low, high = (data.values(dataset, name, ("role",)) for name in ("random_bias", "random_bound"))
    fig, ax = role_rows([f"{role} ({int(has[labels.index(role)].sum())})" for role in shown], 0.9, 0.26)
    generator = np.random.default_rng(0)  # points lie beside each other, no more
    least = 2.0**-5
    for row, role in enumerate(shown):
        place = labels.index(role)
        values, beside = np.maximum(bias[place], least), row + generator.uniform(-0.22, 0.22, bias.shape[1])
        ax.barh(row, high[place] - low[place], left=low[place], height=0.74, color=style.PALE, linewidth=0)
        for kind, colour in ((~has[place], style.GREY), (has[place], style.VERMILION)):
            ax.scatter(values[kind], beside[kind], s=5, color=colour, linewidths=0)
    score_axis(ax, dataset, "mean sieve bias", least * 0.9)
    count = int(dataset.attrs["random_models"])
    how = (
        "Coloured, and in brackets: heads with the role after correction. "
        f"{count} random model{'s' if count > 1 else ''}. Points cut at 1/32; intervals are in the tables"
    )
    return style.complete(fig, "Roles of heads beside random weights", notes_on(dataset, shown, how, shown))
