"""Figures of disabling: what each head, each layer and each set does to the score, and first-order
importance beside it (Kovaleva et al. 2019, Fig 8-9)."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap
from headwise.plots.registry import figure
from headwise.plots.scatter import head_points

SURE = 0.05


def _notes(dataset: xr.Dataset, over_heads: bool = False) -> list[str]:
    facts = dataset.attrs
    metric = str(facts.get("metric", "score"))
    scale, unit = _points(dataset)
    notes = [f"{int(facts['examples']):,} examples"] if "examples" in facts else []
    notes.append(
        f"{metric.capitalize()} of the whole model "
        f"{scale * float(facts.get('baseline', np.nan)):.{1 if scale > 1 else 3}f}"
    )
    if "how" in facts:
        notes.append(f"Disabled as: {facts['how']}")
    if over_heads and "mean_difference" in facts:
        change = f"{scale * facts['mean_difference']:+.2f}".replace("-", "−")
        disabled, every = (
            facts.get("heads_disabled"),
            dataset.sizes["layer"] * dataset.sizes["head"],
        )
        which = (
            "heads (a random head)" if disabled in (None, every) else f"{disabled} heads disabled"
        )
        notes.append(f"Mean over the {which} {change} {unit}")
        notes.append(
            f"Better without {facts['improving']} heads, {facts['improving_significant']} after correction"
        )
        notes.append(
            f"Worse without {facts['harming']}, {facts['harming_significant']} after correction"
        )
    return notes


def _points(dataset: xr.Dataset) -> tuple[float, str]:
    """Scores in hundredths, losses as they are."""
    return (1.0, "nats") if dataset.attrs.get("metric") == "loss" else (100.0, "points")


@figure(
    "ablation",
    name="heads",
    title="What disabling one head does to the score",
    caption="Each cell is one head: the score without it minus the score of the whole model. "
    "Below: the mean over the heads, and how many the model is better and worse without; a ring marks a change that "
    "survives correction.",
    paper="Kovaleva et al. 2019, Fig 8",
    needs=("difference",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """`difference[layer, head]` around zero (Kovaleva et al. 2019, Fig 8)."""
    scale, unit = _points(dataset)
    array = scale * dataset["difference"]
    label = f"change of {dataset.attrs.get('metric', 'score')}"
    p = (
        data.values(dataset, "p_adjusted", ("layer", "head"))
        if "p_adjusted" in dataset
        else np.ones((0, 0))
    )
    rows, columns = np.nonzero(p < SURE)
    notes = [*_notes(dataset, over_heads=True), "Ringed: corrected p < 0.05" if len(rows) else ""]
    title = "Score without one head"
    fig = heatmap(
        array, title=title, label=label, unit=unit, centre=0.0, annotate="none", notes=notes
    )
    for colour, width in (("white", 1.6), (style.INK, 0.7)):
        fig.axes[0].scatter(
            columns, rows, s=22, facecolors="none", edgecolors=colour, linewidths=width
        )
    return fig


@figure(
    "ablation",
    name="layers",
    title="What disabling a layer or a set of heads does to the score",
    caption="Bars are the score without a whole layer (or a set) minus that of the whole model, with 95 % intervals "
    "over examples; filled where the change survives correction.",
    paper="Kovaleva et al. 2019, Fig 9",
    needs=("layer_difference", "set_difference"),
)
def layers(dataset: xr.Dataset) -> Figure:
    """`layer_difference[layer]` and `set_difference[set]` with intervals (Kovaleva et al. 2019, Fig
    9)."""
    scale, unit = _points(dataset)
    shown = [dim for dim in ("layer", "set") if f"{dim}_difference" in dataset]
    names = [
        f"layer {n}" if dim == "layer" else str(n) for dim in shown for n in dataset[dim].values
    ]
    middle, low, high, p = (
        np.concatenate([data.values(dataset, f"{dim}_{key}", (dim,)) for dim in shown])
        for key in ("difference", "difference_low", "difference_high", "p_adjusted")
    )
    fig, ax = style.one_panel(style.COLUMN, 0.9 + 0.19 * len(names))
    place = np.arange(len(names))
    colours = [style.SKY if value < SURE else "white" for value in p]
    errors = scale * np.abs(np.stack([middle - low, high - middle]))
    ax.barh(place, scale * middle, color=colours, edgecolor=style.BLUE, linewidth=0.6, height=0.7)
    ax.errorbar(
        scale * middle,
        place,
        xerr=errors,
        fmt="none",
        ecolor=style.INK,
        elinewidth=0.7,
        capsize=1.5,
    )
    ax.axvline(0, color="black", linewidth=0.6)
    ax.set_yticks(place, names)
    ax.invert_yaxis()
    ax.set_xlabel(f"change of {dataset.attrs.get('metric', 'score')} ({unit})")
    notes = [*_notes(dataset), "Filled: corrected p < 0.05"]
    return style.complete(fig, "Score without a layer or a set of heads", notes)


@figure(
    "ablation",
    name="importance",
    title="First-order importance against the harm of disabling",
    caption="Each dot is one head: across, how much the loss would change to first order if its output were scaled "
    "away; up, how much the score falls without it.",
    paper="Michel et al. 2019, §4.1",
    needs=("importance",),
)
def importance(dataset: xr.Dataset) -> Figure:
    """`importance[layer, head]` against `difference[layer, head]`, coloured by layer; a heat map
    where nothing was disabled."""
    if "difference" not in dataset:
        title, notes = "First-order importance of heads", _notes(dataset)
        return heatmap(
            dataset["importance"], title=title, label="importance", annotate="none", notes=notes
        )
    scale, unit = _points(dataset)
    sign = -1.0 if dataset.attrs.get("higher_better", 1) else 1.0
    x = data.values(dataset, "importance", ("layer", "head"))
    y = sign * scale * data.values(dataset, "difference", ("layer", "head"))
    fig, ax = style.one_panel(style.COLUMN, 2.6)
    head_points(fig, ax, x, y, data.numbers(dataset, "layer"))
    ax.axhline(0, color=style.GREY, linewidth=0.5)
    ax.set_xlabel("first-order importance (nats)")
    ax.set_ylabel(f"harm of disabling ({unit})")
    spearman = dataset.attrs.get("importance_spearman")
    note = (
        "" if spearman is None else f"Spearman over heads {float(spearman):.2f}".replace("-", "−")
    )
    return style.complete(fig, "Importance and harm of heads", [*_notes(dataset), note])


@figure(
    "ablation",
    name="roles",
    title="Which roles go with the harm of disabling a head",
    caption="Spearman's correlation over heads between the harm of disabling a head and its bias to each role, with "
    "95 % intervals; filled where it survives correction over roles. "
    "To the right: heads that lean more to the role are missed more.",
    paper="Kovaleva et al. 2019, §4.6 and §5",
    needs=("role_correlation", "role_correlation_p_adjusted"),
)
def roles(dataset: xr.Dataset) -> Figure:
    """`role_correlation[role]` with intervals, largest first."""
    keys = ("", "_low", "_high", "_p_adjusted")
    found = [data.values(dataset, f"role_correlation{key}", ("role",)) for key in keys]
    shown = [i for i in np.argsort(-found[0], kind="stable").tolist() if np.isfinite(found[0][i])]
    middle, low, high, p = (values[shown] for values in found)
    fig, ax = style.one_panel(style.COLUMN, 0.9 + 0.17 * len(shown))
    place = np.arange(len(shown))
    ax.hlines(place, low, high, color=style.BLUE, linewidth=0.9)
    for row, value in enumerate(middle):
        filled = style.BLUE if p[row] < SURE else "white"
        ax.plot(value, row, "o", color=style.BLUE, markerfacecolor=filled, markersize=3.6)
    ax.axvline(0, color=style.GREY, linewidth=0.6)
    labels = data.labels(dataset, "role")
    ax.set_yticks(place, [labels[i].replace("_", " ") for i in shown])
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xlabel("correlation of harm and bias to the role")
    notes = [*_notes(dataset), "Lines: 95 % interval", "Filled: corrected p < 0.05"]
    return style.complete(fig, "Harm of disabling heads, by role", notes)
