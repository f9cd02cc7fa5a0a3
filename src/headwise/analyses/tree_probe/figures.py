"""Figures of the parsing probes: Table 3, and the weight each head got (Clark et al. 2019, §5)."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

_NAMES = {
    "attention": ("attention of all heads", style.BLUE),
    "attention_words": ("attention + word vectors", style.VERMILION),
    "distance_words": ("distances + word vectors", style.GREY),
    "random_attention_words": ("attention of random weights\n+ word vectors", style.PALE),
    "right_branching": ("right-branching", style.PALE),
}
_DIRECTIONS = {
    "head_to_dependent": "head to dependent (w)",
    "dependent_to_head": "dependent to head (u)",
}


@figure(
    "tree_probe",
    name="uas",
    title="How well probes parse from attention",
    caption="Share of words (no punctuation) whose syntactic head a probe finds: a linear combination of all heads' "
    "attention, the same with weights that depend on both words, and three baselines.",
    paper="Clark et al. 2019, §5, Table 3",
    needs=("uas",),
)
def uas(dataset: xr.Dataset) -> Figure:
    """Bars of `uas[probe]`, best first, with 95 % intervals over sentences."""
    values, bounds = (
        data.values(dataset, "uas", ("probe",)),
        data.interval(dataset, "uas", ("probe",)),
    )
    probes = data.labels(dataset, "probe")
    order = [
        i for i in np.argsort(np.where(np.isnan(values), np.inf, -values)) if np.isfinite(values[i])
    ]
    fig, ax = style.one_panel(style.COLUMN, 2.6)
    for place, index in enumerate(order):
        _, colour = _NAMES.get(probes[index], (probes[index], style.PALE))
        errors = (
            None
            if bounds is None
            else [[values[index] - bounds[0][index]], [bounds[1][index] - values[index]]]
        )
        ax.barh(
            place,
            values[index],
            0.7,
            color=colour,
            xerr=errors,
            error_kw={"elinewidth": 0.8, "ecolor": style.INK},
        )
        end = (
            values[index]
            if bounds is None or not np.isfinite(bounds[1][index])
            else bounds[1][index]
        )
        ax.text(
            end + 0.015, place, f"{100 * values[index]:.1f} %", va="center", fontsize=style.SMALL
        )
    ax.set_yticks(range(len(order)), [_NAMES.get(probes[i], (probes[i], ""))[0] for i in order])
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.set_xlim(0, 1.0)
    ax.set_xticks(np.linspace(0, 1, 6))
    ax.set_xlabel("UAS (share of words)")
    ax.grid(axis="x")
    attrs = dataset.attrs
    trained = attrs.get("sentences_train")
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "uas", each="test sentences"),
        f"Trained on {int(trained):,} sentences, stopped on {int(attrs.get('sentences_validation', 0)):,}"
        if trained is not None
        else "",
        f"Word vectors: {attrs['vectors']}, for {100 * float(attrs['vector_coverage']):.0f} % of words"
        if "vector_coverage" in attrs
        else "",
        "Bars: 95 % interval over sentences"
        if bounds is not None
        else "No interval over sentences",
    ]
    return style.complete(fig, "Parsing from attention", notes)


@figure(
    "tree_probe",
    name="weights",
    title="The weight of each head in the probes",
    caption="What a probe learned to make of each head, in both directions: positive weights raise the score of the "
    "word attended to (or attending). For the probe with words, the mean over words and their true heads.",
    paper="Clark et al. 2019, §5",
    needs=("weight",),
)
def weights(dataset: xr.Dataset) -> Figure:
    """Heat maps of `weight[layer, head]` for each probe on attention and direction, scaled by each
    probe's largest."""
    panels = {}
    for place, probe in enumerate(data.labels(dataset, "probe")):
        weight = dataset["weight"].isel(probe=place)
        largest = float(np.abs(weight).max())
        for direction in data.labels(dataset, "direction") if largest > 0 else ():
            name = f"{_NAMES.get(probe, (probe, ''))[0]}: {_DIRECTIONS.get(direction, direction)}"
            panels[name] = weight.sel(direction=direction) / largest
    notes = [
        data.source_text(dataset),
        "Each probe's weights are divided by its largest, so that both fit one scale",
        "No interval: one training",
    ]
    title, label = "What the probes make of each head", "weight / largest weight"
    return heatmap_panels(
        panels, title=title, label=label, centre=0.0, annotate="none", notes=notes
    )
