"""Figures of gradient importance: how much the loss depends on attention to each token
type (Clark et al. 2019, Fig 3)."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure
from headwise.plots.scatter import (
    Series,
    legend_handles,
    mean_over_heads,
    scatter_by_layer,
    series_of,
)

_LH = ("layer", "head")
_LOSSES = {
    "masked": "Loss: masked tokens predicted",
    "all": "Loss: every token predicted, none masked",
    "causal": "Loss: every token predicted from those before it",
}


def _series(dataset: xr.Dataset) -> list[Series]:
    """The three lines of the paper: separators, periods and commas, everything else."""
    shown = {
        "sep": ("sep", style.TYPE_COLOURS["sep"], "s"),
        "punct": (". and ,", style.TYPE_COLOURS["punct"], "^"),
    }
    found = series_of(dataset.sel(token_type=list(shown)), "importance", "token_type", shown)
    if data.has(dataset, "importance_paper_other"):
        name = "importance_paper_other"
        own, bounds = data.values(dataset, name, _LH), data.interval(dataset, name, _LH)
        found.append(Series("other (cls included)", own, bounds, style.BLACK, "D"))
    return found


@figure(
    "gradient",
    name="importance",
    title="How much the loss depends on attention, by the token type attended to",
    caption="Each point is one head: the mean size of the gradient of the loss with respect to its "
    "attention weights on tokens of one type. Where attention to separators is high and its "
    "gradient near zero, attending to them is a no-op: more or less of it changes nothing.",
    paper="Clark et al. 2019, §3.2, Fig 3",
    needs=("importance", "importance_paper_other"),
)
def importance(dataset: xr.Dataset) -> Figure:
    """Mean `|d loss / d A|` by layer, one point per head, on a logarithmic scale, with the mean
    over heads (Clark et al. 2019, Fig 3)."""
    series = _series(dataset)
    fig = style.new_figure(style.PAGE, 2.9)
    axes = fig.subplots(1, 2, width_ratios=(1.5, 1))
    scatter_by_layer(axes[0], series, mean_line=True)
    positive = np.concatenate([one.values[one.values > 0] for one in series] or [np.array([1.0])])
    if positive.size:
        style.log_axis(axes[0].yaxis)
        axes[0].set_ylim(float(np.quantile(positive, 0.002)) / 1.5, float(positive.max()) * 1.5)
    axes[0].set_ylabel("mean |d loss / d attention|")
    for one in series:
        means = mean_over_heads(one.values)
        axes[1].plot(
            np.arange(len(means)), means, color=one.colour, marker=one.marker, markersize=3
        )
    axes[1].set_ylim(bottom=0)
    axes[1].grid(axis="y")
    axes[1].set_ylabel("mean over heads")
    axes[1].ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))
    for ax in axes:
        style.layer_axis(ax, data.numbers(dataset, "layer"))
    style.panel_labels(list(axes), ["one point per head (logarithmic)", "mean over heads (linear)"])
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "importance_paper_other"),
        _LOSSES.get(str(dataset.attrs.get("loss", "")), ""),
        "Lines: mean over the heads of a layer",
        data.interval_text(any(one.bounds is not None for one in series)),
    ]
    return style.complete(
        fig, "What attention the loss depends on", notes, legend_handles(series), 3
    )


@figure(
    "gradient",
    name="heads",
    title="Importance of every head, by token type",
    caption="The same means as heat maps, in powers of ten: one row per layer (0 at the top), one "
    "column per head.",
    paper="Clark et al. 2019, §3.2",
    needs=("importance",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps of `log10 importance[layer, head]` for each token type on one scale."""
    values = dataset["importance"].astype(float)
    logarithms = xr.DataArray(np.log10(values.where(values > 0))).dropna("token_type", how="all")
    panels = {
        f"to {kind} tokens": logarithms.sel(token_type=kind)
        for kind in data.labels(logarithms, "token_type")
    }
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "importance"),
        "Each cell: mean over examples of one head; intervals are in the tables",
    ]
    return heatmap_panels(
        panels,
        title="Importance of attention",
        label="log10 of mean |d loss / d attention|",
        annotate="none",
        notes=notes,
    )
