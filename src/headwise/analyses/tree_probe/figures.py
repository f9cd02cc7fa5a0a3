"""Figures of the parsing probes: Table 3, and the weight each head got (Clark et al. 2019, §5)."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

_PROBES = {
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
    values = data.values(dataset, "uas", ("probe",))
    bounds = data.interval(dataset, "uas", ("probe",))
    probes = data.labels(dataset, "probe")
    best_first = np.argsort(np.where(np.isnan(values), np.inf, -values))
    order = [index for index in best_first if np.isfinite(values[index])]
    fig, ax = style.one_panel(style.COLUMN, 2.6)
    labels = []
    for row, index in enumerate(order):
        label, colour = _PROBES.get(probes[index], (probes[index], style.PALE))
        labels.append(label)
        value = values[index]
        text_start = value
        errors = None
        if bounds is not None:
            low = bounds[0][index]
            high = bounds[1][index]
            errors = [[value - low], [high - value]]
            if np.isfinite(high):
                text_start = high
        ax.barh(
            row,
            value,
            0.7,
            color=colour,
            xerr=errors,
            error_kw={"elinewidth": 0.8, "ecolor": style.INK},
        )
        ax.text(text_start + 0.015, row, f"{100 * value:.1f} %", va="center", fontsize=style.SMALL)
    ax.set_yticks(range(len(order)), labels)
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.set_xlim(0, 1.0)
    ax.set_xticks(np.linspace(0, 1, 6))
    ax.set_xlabel("UAS (share of words)")
    ax.grid(axis="x")
    return style.complete(fig, "Parsing from attention", _uas_notes(dataset, bounds is not None))


def _uas_notes(dataset: xr.Dataset, has_interval: bool) -> list[str]:
    attrs = dataset.attrs
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "uas", each="test sentences"),
    ]
    if "sentences_train" in attrs:
        n_validation = int(attrs.get("sentences_validation", 0))
        notes.append(
            f"Trained on {int(attrs['sentences_train']):,} sentences, stopped on {n_validation:,}"
        )
    if "vector_coverage" in attrs:
        coverage = 100 * float(attrs["vector_coverage"])
        notes.append(f"Word vectors: {attrs['vectors']}, for {coverage:.0f} % of words")
    if has_interval:
        notes.append("Bars: 95 % interval over sentences")
    else:
        notes.append("No interval over sentences")
    return notes


@figure(
    "tree_probe",
    name="weights",
    title="The weight of each head in the probes",
    caption="The weight that a probe learned for each head, in both directions: positive weights "
    "raise the score of the word attended to (or attending). For the probe with words, the mean "
    "over words and their true heads.",
    paper="Clark et al. 2019, §5",
    needs=("weight",),
)
def weights(dataset: xr.Dataset) -> Figure:
    """Heat maps of `weight[layer, head]` for each probe on attention and direction, scaled by each
    probe's largest."""
    panels = {}
    for position, probe in enumerate(data.labels(dataset, "probe")):
        weight = dataset["weight"].isel(probe=position)
        largest = float(np.abs(weight).max())
        if not largest > 0:  # a baseline without weights
            continue
        label, _ = _PROBES.get(probe, (probe, ""))
        for direction in data.labels(dataset, "direction"):
            panel = f"{label}: {_DIRECTIONS.get(direction, direction)}"
            panels[panel] = weight.sel(direction=direction) / largest
    notes = [
        data.source_text(dataset),
        "Each probe's weights are divided by its largest, so that both fit one scale",
        "No interval: one training",
    ]
    return heatmap_panels(
        panels,
        title="The weight of each head in the probes",
        label="weight / largest weight",
        centre=0.0,
        annotate="none",
        notes=notes,
    )
