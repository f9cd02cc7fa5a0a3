"""Figures of change between models: similarity of maps, change by role or feature and by thirds of the layers, probing on one colour scale."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

MARKS = ("initial", "middle", "final")


def _against(dataset: xr.Dataset) -> str:
    return f"Against {dataset.attrs.get('reference_model', 'the first model')}"


def _planes(dataset: xr.Dataset, name: str, dim: str, scale: float = 1.0) -> dict[str, xr.DataArray]:
    coords = {d: data.numbers(dataset, d) for d in ("layer", "head")}
    values = scale * data.values(dataset, name, (dim, "layer", "head"))
    return {str(label): xr.DataArray(values[i], dims=("layer", "head"), coords=coords) for i, label in enumerate(dataset[dim].values)}


@figure(
    "change",
    name="cosine",
    title="How far the attention maps of two models are alike",
    caption="Each cell is one head: the cosine similarity of its flattened attention maps in two models on the same inputs (real tokens only). Dark heads changed most.",
    paper="Kovaleva et al. 2019, Fig 5",
    needs=("cosine_to",),
)
def cosine(dataset: xr.Dataset) -> Figure:
    """`cosine_to[model, layer, head]` as heat maps on one colour scale (Kovaleva et al. 2019, Fig 5)."""
    notes = [_against(dataset), f"{dataset.attrs.get('examples', '?')} inputs"]
    planes = _planes(dataset, "cosine_to", "model")
    return heatmap_panels(
        planes, title="Similarity of attention maps", label="cosine similarity", limits=(None, 1.0), annotate="none", notes=notes
    )


def _thirds(dataset: xr.Dataset, variable: str, dim: str, title: str, label: str) -> Figure:
    models = [str(name) for name in dataset["model"].values]
    labels = [str(name) for name in (dataset[f"{dim}_name"] if f"{dim}_name" in dataset.coords else dataset[dim]).values]
    parts = {key: dataset[f"{variable}_third_change{key}"].transpose("model", "third", dim).values for key in ("", "_low", "_high")}
    shown = [i for i in range(len(labels)) if np.isfinite(parts[""][..., i]).any()]
    fig = style.new_figure(style.PAGE, 0.9 + 1.7 * len(models))
    axes = np.atleast_1d(fig.subplots(len(models), 1, sharex=True, squeeze=False).ravel())
    colours = style.layer_colours(3)
    for row, ax in enumerate(axes):
        for third in range(3):
            place = np.arange(len(shown)) + 0.26 * (third - 1)
            middle, low, high = (parts[key][row, third, shown] for key in ("", "_low", "_high"))
            ax.bar(place, middle, width=0.24, color=colours[third], label=MARKS[third])
            ax.errorbar(
                place, middle, yerr=np.abs(np.stack([middle - low, high - middle])), fmt="none", ecolor="black", elinewidth=0.5, capsize=1
            )
        ax.axhline(0, color="black", linewidth=0.5)
        ax.set_ylabel(label)
    axes[-1].set_xticks(np.arange(len(shown)), [labels[i].replace("_", " ") for i in shown], rotation=30, ha="right")
    style.panel_labels(list(axes), models)
    handles, _ = axes[0].get_legend_handles_labels()
    notes = [_against(dataset), "Whiskers: 95 % interval over inputs, paired", "Thirds of the layers, mean over their heads"]
    style.annotate_figure(fig, title, notes, legend=handles, columns=3)
    return style.finish(fig)


@figure(
    "change_roles",
    name="thirds",
    title="Change of sieve bias by role, for initial, middle and final layers",
    caption="Bars above zero: heads of these layers lean more to the role than in the first model.",
    paper="Pande et al. 2021, Fig 6",
    needs=("bias_third_change",),
)
def roles(dataset: xr.Dataset) -> Figure:
    """`bias_third_change[model, third, role]` with paired intervals (Pande et al. 2021, Fig 6)."""
    return _thirds(dataset, "bias", "role", "Change of sieve bias", "change of bias")


@figure(
    "change_features",
    name="thirds",
    title="Change of attention to linguistic features, for initial, middle and final layers",
    caption="Bars above zero: tokens of the feature get more attention than in the first model.",
    paper="Kovaleva et al. 2019, Fig 6",
    needs=("attention_third_change",),
)
def features(dataset: xr.Dataset) -> Figure:
    """`attention_third_change[model, third, feature]` with paired intervals (Kovaleva et al. 2019, Fig 6)."""
    return _thirds(dataset, "attention", "feature", "Change of attention to features", "change of attention")


@figure(
    "change_features",
    name="heads",
    title="Change of attention to each linguistic feature, head by head",
    caption="Each cell is one head: how much more (or less) attention tokens of the feature get than in the first model. One colour scale for all.",
    paper="Kovaleva et al. 2019, Fig 6",
    needs=("attention_change",),
)
def feature_heads(dataset: xr.Dataset) -> Figure:
    """`attention_change[model, layer, head, feature]` as heat maps on one colour scale around zero."""
    return _change_panels(dataset, "attention_change", "feature", "Change of attention to features", "change of attention")


@figure(
    "change_surface",
    name="heads",
    title="Change of attention to token types, head by head",
    caption="Each cell is one head: how much more (or less) of its attention goes to tokens of the type than in the first model. One colour scale for all.",
    paper="Clark et al. 2019, Fig 2",
    needs=("token_type_change",),
)
def surface_heads(dataset: xr.Dataset) -> Figure:
    """`token_type_change[model, layer, head, token_type]` as heat maps on one colour scale around zero."""
    return _change_panels(dataset, "token_type_change", "token_type", "Change of attention to token types", "change of share")


def _change_panels(dataset: xr.Dataset, name: str, dim: str, title: str, label: str) -> Figure:
    array = dataset[name]
    labels = [str(value) for value in (dataset[f"{dim}_name"] if f"{dim}_name" in dataset.coords else dataset[dim]).values]
    values = array.transpose("model", dim, "layer", "head").values
    coords = {d: data.numbers(dataset, d) for d in ("layer", "head")}
    models = [str(value) for value in dataset["model"].values]
    panels = {}
    for m, model in enumerate(models):
        for i, text in enumerate(labels):
            if np.isfinite(values[m, i]).any():
                panels[f"{model}: {text}" if len(models) > 1 else text] = xr.DataArray(values[m, i], dims=("layer", "head"), coords=coords)
    return heatmap_panels(panels, title=title, label=label, centre=0.0, annotate="none", notes=[_against(dataset)])


@figure(
    "change_probing",
    name="states",
    title="Probing accuracy of heads in every model, on one colour scale",
    caption="Each cell is one head; one panel for each model and task, heads sorted within their layer, all on one colour scale.",
    paper="Jo & Myaeng 2020, Fig 4",
    needs=("accuracy",),
)
def probing(dataset: xr.Dataset) -> Figure:
    """`accuracy[model_all, task, layer, head]` on one colour scale, heads sorted (Jo & Myaeng 2020, Fig 4)."""
    panels: dict[str, xr.DataArray] = {}
    for task in dataset["task"].values:
        planes = _planes(dataset.sel(task=task), "accuracy", "model_all", 100.0)
        panels |= {f"{task}: {model}": plane for model, plane in planes.items()}
    return heatmap_panels(
        panels, title="Probing accuracy in every model", label="test accuracy (%)", sort=True, annotate="none", notes=[_against(dataset)]
    )
