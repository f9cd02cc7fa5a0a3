"""Figures of coreference heads: Table 2 with baselines and intervals, and every head (Clark et al.
2019, §4.3)."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.analyses.accuracy import reported_best, shown_accuracy
from headwise.analyses.coreference.windows import cut_text
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

_BASELINES = {
    "nearest": ("nearest mention", style.PALE),
    "head_match": ("nearest with the same head word", "#a6a6a6"),
    "rules": ("four sieves", style.GREY),
    "uniform": ("uniform attention", "#e8d9b5"),
    "first": ("first mention (a sink)", "#d6b656"),
}


def _shown_types(dataset: xr.Dataset) -> list[str]:
    counts = data.values(dataset, "count", ("mention_type",))
    return [
        name
        for name, count in zip(data.labels(dataset, "mention_type"), counts, strict=True)
        if count > 0
    ]


@figure(
    "coreference",
    name="antecedents",
    title="The best head against the baselines, by mention type",
    caption="How often the head word of a mention attends most to the head word of one of its "
    "antecedents, for the best head overall and the best for each mention type, beside what "
    "three rules, uniform attention and attention on the first token get right on the same "
    "mentions.",
    paper="Clark et al. 2019, §4.3, Table 2",
    needs=("accuracy",),
)
def antecedents(dataset: xr.Dataset) -> Figure:
    """Bars `[baseline or head, mention_type]` with 95 % intervals (Clark et al. 2019, Table 2)."""
    types = _shown_types(dataset)
    fig, ax = style.one_panel(style.PAGE, 3.0)
    at = dataset.sel(mention_type=types)
    overall = dataset.sel(mention_type="all")
    layer, head = int(overall["best_layer"]), int(overall["best_head"])
    bars = [
        (at.sel(baseline=name), "baseline_accuracy", *_BASELINES.get(name, (name, style.PALE)))
        for name in data.labels(dataset, "baseline")
    ]
    one = at.isel(layer=layer, head=head)
    bars.append((one, "accuracy", f"{head_name(layer, head)}, best head overall", style.BLUE))
    best = reported_best(at)
    bars.append((best, "accuracy", "best head for the type (named)", style.VERMILION))
    width = 0.8 / len(bars)
    for place, (part, name, label, colour) in enumerate(bars):
        values, low, high = (part[f"{name}{end}"].values for end in ("", "_low", "_high"))
        errors = np.clip(np.stack([values - low, high - values]), 0, None)
        x = np.arange(len(types)) + (place + 0.5) * width - 0.4
        line = {"elinewidth": 0.7, "ecolor": style.INK}
        ax.bar(x, values, width * 0.92, color=colour, label=label, yerr=errors, error_kw=line)
    text = {
        "ha": "center",
        "fontsize": style.SMALL,
        "color": style.VERMILION,
        "textcoords": "offset points",
    }
    for left, kind in zip(x, types, strict=True):  # over the last bars, those of the best heads
        own = dataset.sel(mention_type=kind)
        name = head_name(int(own["best_layer"]), int(own["best_head"]))
        top = float(best["accuracy_high"].sel(mention_type=kind))
        ax.annotate(name, (left, top), xytext=(0, 2), **text)  # type: ignore[arg-type]
    counts = {kind: int(dataset["count"].sel(mention_type=kind)) for kind in types}
    ax.set_xticks(np.arange(len(types)), [f"{kind}\nn = {counts[kind]:,}" for kind in types])
    ax.set(ylim=(0, 1.08), ylabel="antecedent found (share)")
    ax.grid(axis="y")
    without = int(dataset.attrs.get("mentions_without_antecedent", 0))
    picking = "Best for the type: on texts that the head was not picked on"
    if shown_accuracy(dataset) == "best_accuracy":
        picking = "Best for the type: on the texts that it was picked on, and so flattered"
    notes = [
        data.source_text(dataset),
        f"n = {counts.get('all', 0):,} mentions with an antecedent",
        *cut_text(dataset),
        f"Left out: {without:,} mentions without an antecedent before them",
        "Bars: Wilson's 95 % interval over documents",
        picking,
        str(dataset.attrs.get("note", "")),
    ]
    return style.complete(
        fig, "Heads that find antecedents", notes, ax.get_legend_handles_labels()[0], 3
    )


@figure(
    "coreference",
    name="heads",
    title="How often every head finds an antecedent",
    caption="One row per layer (0 at the top), one column per head: the share of mentions whose most "
    "attended candidate is the head word of an antecedent.",
    paper="Clark et al. 2019, §4.3",
    needs=("accuracy",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps of `accuracy[layer, head]` for each mention type on one scale."""
    panels = {kind: dataset["accuracy"].sel(mention_type=kind) for kind in _shown_types(dataset)}
    count = data.count_text(dataset, "accuracy", each="mentions")
    notes = [data.source_text(dataset), count, *cut_text(dataset), "Intervals are in the tables"]
    return heatmap_panels(
        panels, title="Antecedents found", label="share of mentions", limits=(0.0, 1.0), notes=notes
    )
