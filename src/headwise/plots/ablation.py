"""Figures of disabling: what each head, each layer and each set does to the score, and first-order importance beside it (Kovaleva et al. 2019, Fig 8-9)."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap
from headwise.plots.registry import figure

SURE = 0.05


def _notes(dataset: xr.Dataset) -> list[str]:
    facts = dataset.attrs
    metric = str(facts.get("metric", "score"))
    notes = [f"{facts.get('examples', '?')} examples", f"Baseline {metric} {float(facts.get('baseline', np.nan)):.3f}"]
    if "how" in facts:
        notes.append(f"Disabled as: {facts['how']}")
    if "mean_difference" in facts:
        notes.append(
            f"A random head: {facts['mean_difference']:+.4f}; better without {facts['improving']} heads, {facts['improving_significant']} after correction"
        )
    return notes


def _points(dataset: xr.Dataset) -> tuple[float, str]:
    """Scores in hundredths, losses as they are."""
    return (1.0, "nats") if dataset.attrs.get("metric") == "loss" else (100.0, "points")


@figure(
    "ablation",
    name="heads",
    title="What disabling one head does to the score",
    caption="Each cell is one head: the score without it minus the score of the whole model. Below: the mean over all heads, and how many the model is better without.",
    paper="Kovaleva et al. 2019, Fig 8",
    needs=("difference",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """`difference[layer, head]` around zero (Kovaleva et al. 2019, Fig 8)."""
    scale, unit = _points(dataset)
    coords = {dim: data.numbers(dataset, dim) for dim in ("layer", "head")}
    array = xr.DataArray(scale * data.values(dataset, "difference", ("layer", "head")), dims=("layer", "head"), coords=coords)
    label = f"change of {dataset.attrs.get('metric', 'score')}"
    return heatmap(array, title="Score without one head", label=label, unit=unit, centre=0.0, annotate="none", notes=_notes(dataset))


@figure(
    "ablation",
    name="layers",
    title="What disabling a layer or a set of heads does to the score",
    caption="Bars are the score without a whole layer (or a set) minus that of the whole model, with 95 % intervals over examples; filled where the change survives correction.",
    paper="Kovaleva et al. 2019, Fig 9",
    needs=("layer_difference", "set_difference"),
)
def layers(dataset: xr.Dataset) -> Figure:
    """`layer_difference[layer]` and `set_difference[set]` with intervals (Kovaleva et al. 2019, Fig 9)."""
    scale, unit = _points(dataset)
    names: list[str] = []
    parts: dict[str, list[np.ndarray]] = {key: [] for key in ("difference", "difference_low", "difference_high", "p_adjusted")}
    for prefix, dim in (("layer_", "layer"), ("set_", "set")):
        if f"{prefix}difference" not in dataset:
            continue
        names += [f"layer {n}" if dim == "layer" else str(n) for n in dataset[dim].values]
        for key, found in parts.items():
            found.append(np.asarray(dataset[f"{prefix}{key}"].values, dtype=float))
    middle, low, high, p = (np.concatenate(parts[key]) for key in parts)
    fig = style.new_figure(style.COLUMN, 0.9 + 0.19 * len(names))
    ax = fig.subplots()
    place = np.arange(len(names))
    colours = [style.BLUE if value < SURE else "white" for value in p]
    errors = scale * np.abs(np.stack([middle - low, high - middle]))
    ax.barh(place, scale * middle, color=colours, edgecolor=style.BLUE, linewidth=0.6, height=0.7)
    ax.errorbar(scale * middle, place, xerr=errors, fmt="none", ecolor=style.GREY, elinewidth=0.7, capsize=1.5)
    ax.axvline(0, color="black", linewidth=0.6)
    ax.set_yticks(place, names)
    ax.invert_yaxis()
    ax.set_xlabel(f"change of {dataset.attrs.get('metric', 'score')} ({unit})")
    style.annotate_figure(fig, "Score without a layer or a set of heads", [*_notes(dataset), "Filled: corrected p < 0.05"])
    return style.finish(fig)


@figure(
    "ablation",
    name="importance",
    title="First-order importance against the harm of disabling",
    caption="Each dot is one head: across, how much the loss would change to first order if its output were scaled away; up, how much the score falls without it.",
    paper="Michel et al. 2019, §4.1",
    needs=("importance",),
)
def importance(dataset: xr.Dataset) -> Figure:
    """`importance[layer, head]` against `difference[layer, head]`, coloured by layer; a heat map where nothing was disabled."""
    if "difference" not in dataset:
        coords = {dim: data.numbers(dataset, dim) for dim in ("layer", "head")}
        array = xr.DataArray(data.values(dataset, "importance", ("layer", "head")), dims=("layer", "head"), coords=coords)
        return heatmap(array, title="First-order importance of heads", label="importance", annotate="none", notes=_notes(dataset))
    scale, unit = _points(dataset)
    sign = -1.0 if dataset.attrs.get("higher_better", 1) else 1.0
    x = data.values(dataset, "importance", ("layer", "head"))
    y = sign * scale * data.values(dataset, "difference", ("layer", "head"))
    fig = style.new_figure(style.COLUMN, 2.6)
    ax = fig.subplots()
    colours = style.layer_colours(x.shape[0])
    for layer in range(x.shape[0]):
        ax.scatter(x[layer], y[layer], s=9, color=colours[layer], linewidths=0)
    ax.axhline(0, color=style.GREY, linewidth=0.5)
    ax.set_xlabel("first-order importance (nats)")
    ax.set_ylabel(f"harm of disabling ({unit})")
    spearman = dataset.attrs.get("importance_spearman")
    note = "" if spearman is None else f"Spearman {float(spearman):.2f}"
    style.annotate_figure(fig, "Importance and harm of heads", [*_notes(dataset)[:3], note, "Dark: lower layers, light: upper layers"])
    return style.finish(fig)
