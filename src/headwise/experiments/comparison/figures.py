"""Figures of change between models: similarity of maps, change by role or feature and by thirds of the layers, probing
on one colour scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.analyses.probing.figures import score_label
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

MARKS = ("initial", "middle", "final")


def _against(dataset: xr.Dataset) -> str:
    return f"Against {dataset.attrs.get('reference_model', 'the first model')}"


def _planes(dataset: xr.Dataset, name: str, dim: str, scale: float = 1.0) -> dict[str, xr.DataArray]:
    coords = {d: data.numbers(dataset, d) for d in ("layer", "head")}
    values = scale * data.values(dataset, name, (dim, "layer", "head"))
    return {
        str(label): xr.DataArray(values[i], dims=("layer", "head"), coords=coords)
        for i, label in enumerate(dataset[dim].values)
    }


@figure(
    "change",
    name="cosine",
    title="How far the attention maps of two models are alike",
    caption="Each cell is one head: the cosine similarity of its flattened attention maps in two models on the same "
    "inputs (real tokens only). Dark heads changed most.",
    paper="Kovaleva et al. 2019, Fig 5",
    needs=("cosine_to",),
)
def cosine(dataset: xr.Dataset) -> Figure:
    """`cosine_to[model, layer, head]` as heat maps on one colour scale (Kovaleva et al. 2019, Fig 5)."""
    notes = [_against(dataset), f"{dataset.attrs.get('examples', '?')} inputs"]
    planes = _planes(dataset, "cosine_to", "model")
    title, label = "Similarity of attention maps", "cosine similarity"
    return heatmap_panels(planes, title=title, label=label, limits=(None, 1.0), annotate="none", notes=notes)


def _thirds(dataset: xr.Dataset, variable: str, dim: str, title: str, label: str) -> Figure:
    models = [str(name) for name in dataset["model"].values]
    labels = data.labels(dataset, dim)
    parts = {
        key: dataset[f"{variable}_third_change{key}"].transpose("model", "third", dim).values
        for key in ("", "_low", "_high")
    }
    shown = [i for i in range(len(labels)) if np.isfinite(parts[""][..., i]).any()]
    fig = style.new_figure(style.PAGE, 0.9 + 1.7 * len(models))
    axes = np.atleast_1d(fig.subplots(len(models), 1, sharex=True, sharey=True, squeeze=False).ravel())
    colours = style.layer_colours(3)
    for row, ax in enumerate(axes):
        for third in range(3):
            place = np.arange(len(shown)) + 0.26 * (third - 1)
            middle, low, high = (parts[key][row, third, shown] for key in ("", "_low", "_high"))
            ax.bar(place, middle, width=0.24, color=colours[third], label=MARKS[third])
            errors = np.abs(np.stack([middle - low, high - middle]))
            ax.errorbar(place, middle, yerr=errors, fmt="none", ecolor="black", elinewidth=0.5, capsize=1)
        ax.axhline(0, color="black", linewidth=0.5)
        ax.set_ylabel(label)
    slanted: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len(shown) > 6 else {}
    axes[-1].set_xticks(np.arange(len(shown)), [labels[i].replace("_", " ") for i in shown], **slanted)
    style.panel_labels(list(axes), models)
    handles, _ = axes[0].get_legend_handles_labels()
    notes = ["Whiskers: 95 % interval over inputs, paired", "Thirds of the layers, mean over their heads"]
    return style.complete(fig, title, [_against(dataset), *notes], legend=handles, columns=3)


@dataclass(frozen=True, slots=True)
class Changed:
    """A quantity with one value a head and label that is compared: where it lies in the result, and in which words it
    is drawn."""

    group: str
    variable: str
    dim: str
    what: str  # what changed, after "change of"
    label: str  # at the axis
    reading: str  # what a change above zero means
    paper: str

    def thirds(self, dataset: xr.Dataset) -> Figure:
        return _thirds(dataset, self.variable, self.dim, f"Change of {self.what}", self.label)

    def heads(self, dataset: xr.Dataset) -> Figure:
        return _head_panels(dataset, f"{self.variable}_change", self.dim, f"Change of {self.what}", self.label)


CHANGED = (
    Changed(
        "change_roles", "bias", "role", "sieve bias", "change of bias", "heads lean more to the role than in the first "
        "model",
        "Pande et al. 2021, Fig 6",
    ),
    Changed(
        "change_features", "attention", "feature", "attention to features", "change of attention",
        "tokens of the feature get more attention than in the first model", "Kovaleva et al. 2019, Fig 6",
    ),
    Changed(
        "change_surface", "mass", "token_type", "attention to token types", "change of share",
        "more of the attention goes to tokens of the type than in the first model", "Clark et al. 2019, Fig 2",
    ),
)  # fmt: skip


def _register(changed: Changed) -> None:
    """Two figures of each quantity: means over thirds of the layers with intervals, and every head."""
    figure(
        changed.group,
        name="thirds",
        title=f"Change of {changed.what}, for initial, middle and final layers",
        caption=f"Bars above zero: {changed.reading}.",
        paper=changed.paper,
        needs=(f"{changed.variable}_third_change",),
    )(changed.thirds)
    figure(
        changed.group,
        name="heads",
        title=f"Change of {changed.what}, head by head",
        caption=f"Each cell is one head, all on one colour scale; above zero, {changed.reading}.",
        paper=changed.paper,
        needs=(f"{changed.variable}_change",),
        each="model",
    )(changed.heads)


for _changed in CHANGED:
    _register(_changed)


def _head_panels(dataset: xr.Dataset, name: str, dim: str, title: str, label: str) -> Figure:
    """One model's change, a panel for each label."""
    model = str(dataset["model"].values[0])
    values = dataset[name].isel(model=0).transpose(dim, "layer", "head").values
    coords = {d: data.numbers(dataset, d) for d in ("layer", "head")}
    panels = {
        text.replace("_", " "): xr.DataArray(plane, dims=("layer", "head"), coords=coords)
        for text, plane in zip(data.labels(dataset, dim), values, strict=True)
        if np.isfinite(plane).any()
    }
    return heatmap_panels(
        panels, title=f"{title}: {model}", label=label, centre=0.0, annotate="none", notes=[_against(dataset)]
    )


@figure(
    "change_probing",
    name="states",
    title="Probing accuracy of heads in every model, on one colour scale",
    caption="Each cell is one head; one panel for each model, heads sorted within their layer, on one colour scale.",
    paper="Jo & Myaeng 2020, Fig 4",
    needs=("accuracy",),
    each="task",
)
def probing(dataset: xr.Dataset) -> Figure:
    """`accuracy[model_all, task, layer, head]` of one task on one colour scale, heads sorted (Jo & Myaeng 2020, Fig
    4)."""
    task = str(dataset["task"].values[0])
    notes = [data.count_text(dataset, "accuracy", each="test examples")]
    if data.has(dataset, "majority"):
        notes.append(f"The most frequent label alone: {100 * float(dataset['majority'].values[0]):.1f} %")
    planes = _planes(dataset.isel(task=0), "accuracy", "model_all", 100.0)
    title, label = f"{task}: probing accuracy in every model", score_label(dataset)
    return heatmap_panels(planes, title=title, label=label, sort=True, annotate="none", notes=notes)


@figure(
    "change_probing",
    name="heads",
    title="Change of probing accuracy, head by head",
    caption="Each cell is one head: its test score minus that of the same head in the first model, one panel for each "
    "other model, all on one colour scale.",
    paper="Jo & Myaeng 2020, Fig 4",
    needs=("accuracy_change",),
    each="task",
)
def probing_heads(dataset: xr.Dataset) -> Figure:
    """`accuracy_change[model, task, layer, head]` of one task around zero."""
    task = str(dataset["task"].values[0])
    planes = _planes(dataset.isel(task=0), "accuracy_change", "model", 100.0)
    scores = score_label(dataset)
    label = "points" if scores.endswith("(%)") else f"change of {scores}"
    title, notes = f"{task}: change of probing accuracy", [_against(dataset)]
    return heatmap_panels(planes, title=title, label=label, centre=0.0, annotate="none", notes=notes)
