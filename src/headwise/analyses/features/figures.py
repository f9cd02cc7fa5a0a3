"""Figures of attention to features (Kovaleva et al. 2019, Fig 6-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.core.errors import ParameterError
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels, short
from headwise.plots.registry import figure

SPECIAL = {"cls": "opening tokens (cls)", "sep": "closing tokens (sep)", "punct": ". and ,"}
CELLS = "Each cell: mean over inputs of one head; intervals are in the tables"


def _behind(dataset: xr.Dataset, name: str, chosen: Sequence[str], start: str = "") -> str:
    """What is behind a mean of the chosen features: model, corpus and count, as far as the dataset
    says."""
    part = _part(dataset, chosen)
    return start + ", ".join(filter(None, (data.source_text(part), data.count_text(part, name))))


def _part(dataset: xr.Dataset, chosen: Sequence[str]) -> xr.Dataset:
    return dataset.isel(
        feature=[
            place for place, name in enumerate(data.labels(dataset, "feature")) if name in chosen
        ]
    )


@figure(
    "features",
    name="special-tokens",
    title="Attention to special tokens and punctuation",
    caption="Each cell is one head: the share of attention that the most attended such token of an input gets from all "
    "tokens. High values are vertical stripes in the maps.",
    paper="Kovaleva et al. 2019, Fig 6",
    needs=("attention",),
)
def special_tokens(dataset: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Heat maps `attention[layer, head]` of the special tokens on one scale.

    Of several datasets (tasks, say), one column each and `[SEP]` over `[CLS]`, as the paper has it.

    Parameters
    ----------
    dataset : xarray.Dataset or mapping of str to xarray.Dataset
        One dataset, or several by name.
    """
    if not isinstance(dataset, xr.Dataset):
        return _special_tokens_of(dataset)
    found = data.panels(dataset, "attention", "feature")
    panels = {name: panel for name, panel in found.items() if name in SPECIAL}
    if not panels:
        return feature_maps(dataset)
    return heatmap_panels(
        {SPECIAL[name]: panel for name, panel in panels.items()},
        title="Attention to special tokens and punctuation",
        label="share of attention",
        limits=(0.0, None),
        notes=_notes(dataset, list(panels)),
    )


def _special_tokens_of(several: Mapping[str, xr.Dataset]) -> Figure:
    found = {task: data.panels(one, "attention", "feature") for task, one in several.items()}
    chosen = [name for name in ("sep", "cls") if all(name in panels for panels in found.values())]
    if not several or not chosen:
        raise ParameterError(
            "`dataset` must name at least one dataset, each with attention to sep or cls tokens; one has neither."
        )
    room = (style.PAGE - 1.0) / len(several) - 0.5  # inches for a panel's name
    panels = {
        style.wrap(f"{task}: [{name.upper()}]", room, style.NORMAL): found[task][name]
        for name in chosen
        for task in several
    }
    return heatmap_panels(
        panels,
        title="Attention to special tokens by task",
        label="share of attention",
        limits=(0.0, None),
        annotate="none",
        notes=[
            *(_behind(one, "attention", chosen, f"{task}: ") for task, one in several.items()),
            CELLS,
        ],
        across=len(several),
    )


@figure(
    "features",
    name="features",
    title="Attention to linguistic features",
    caption="Each cell is one head: the share of attention that the most attended token of the feature gets, from all "
    "tokens of the input. Inputs without the feature are left out. The scale is not that of the special tokens, which "
    "get far more.",
    paper="Kovaleva et al. 2019, §4.4",
    needs=("attention",),
)
def feature_maps(dataset: xr.Dataset) -> Figure:
    """Heat maps `attention[layer, head]` of all other features on one scale."""
    found = data.panels(dataset, "attention", "feature")
    panels = {name: panel for name, panel in found.items() if name not in SPECIAL} or found
    absent = [
        name
        for name in data.labels(dataset, "feature")
        if name not in panels and name not in SPECIAL
    ]
    notes = [
        *_notes(dataset, list(panels)),
        f"Not computed or never matched: {', '.join(absent)}" if absent else "",
    ]
    return heatmap_panels(
        {SPECIAL.get(name, name): panel for name, panel in panels.items()},
        title="Attention to linguistic features",
        label="share of attention",
        limits=(0.0, None),
        annotate="none",
        notes=notes,
    )


def random_text(dataset: xr.Dataset, chosen: Sequence[str], dim: str) -> str:
    """How many heads stand out in each of these, and what random heads reach."""
    if "stands_out" not in dataset.variables:
        return ""
    found = dict(
        zip(
            data.labels(dataset, dim),
            data.values(dataset, "stands_out", (dim, "layer", "head")),
            strict=True,
        )
    )
    said = "; ".join(f"{name} {int((found[name] > 0).sum())}" for name in chosen if name in found)
    beside = (
        " and above random heads of the same shape" if "random_bound" in dataset.variables else ""
    )
    return f"Heads that stand out, after correction{beside}: {said}"


def _notes(dataset: xr.Dataset, chosen: Sequence[str]) -> list[str]:
    part = _part(dataset, chosen)
    reference = ""
    if data.has(part, "uniform"):
        even = np.nanmean(data.values(part, "uniform", ("layer", "feature")))
        reference = f"Uniform attention would give about {even:.3f}"
    return [
        _behind(dataset, "attention", chosen),
        CELLS,
        reference,
        random_text(dataset, chosen, "feature"),
    ]


@figure(
    "features",
    name="from-cls",
    title="What [CLS] attends to in the last layer",
    caption="In the last layer, the weight from the [CLS] token, which a classifier reads, to the most attended token "
    "of each feature: one row per feature, one column per head.",
    paper="Kovaleva et al. 2019, Fig 7",
    needs=("from_cls",),
)
def from_cls(dataset: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """`from_cls[head, feature]` as a table of colours; several datasets (tasks, say) as panels on
    one scale.

    Parameters
    ----------
    dataset : xarray.Dataset or mapping of str to xarray.Dataset
        One dataset, or several by name.
    """
    several = {"": dataset} if isinstance(dataset, xr.Dataset) else dict(dataset)
    if not several:
        raise ParameterError("`dataset` must name at least one dataset; it is empty.")
    planes = {
        name: data.values(one, "from_cls", ("feature", "head")) for name, one in several.items()
    }
    high = max(float(np.nanmax(plane)) for plane in planes.values())
    rows = max(plane.shape[0] for plane in planes.values())
    columns = min(len(planes), 2)
    lines = -(-len(planes) // columns)
    fig = style.new_figure(style.PAGE if columns > 1 else 4.6, lines * (0.24 * rows + 0.45) + 1.0)
    axes = fig.subplots(lines, columns, squeeze=False).ravel()
    for ax, (name, plane) in zip(axes, planes.items(), strict=False):
        one = several[name]
        image = ax.imshow(
            np.ma.masked_invalid(plane), cmap=style.SEQUENTIAL, vmin=0, vmax=high, aspect="auto"
        )
        ax.set_yticks(range(plane.shape[0]), data.labels(one, "feature"))
        ax.set_xticks(range(plane.shape[1]), [str(h) for h in data.numbers(one, "head")])
        ax.set_xlabel(f"head of the last layer ({data.numbers(one, 'layer')[-1]})")
        style.bare(ax)
        for (row, column), value in (
            np.ndenumerate(plane) if plane.shape[1] <= 16 and columns == 1 else ()
        ):
            if np.isfinite(value):
                ink = "black" if value > 0.6 * high else "white"
                ax.text(
                    column,
                    row,
                    short(value),
                    ha="center",
                    va="center",
                    fontsize=style.SMALL,
                    color=ink,
                )
    for ax in axes[len(planes) :]:
        ax.remove()
    drawn = list(axes[: len(planes)])
    style.panel_labels(drawn, list(planes))
    style.colour_bar(fig, image, drawn, "weight from [CLS]", fraction=0.035, pad=0.015)
    labels = {name: data.labels(one, "feature") for name, one in several.items()}
    notes = [
        _behind(one, "from_cls", labels[name], f"{name}: " if name else "")
        for name, one in several.items()
    ]
    notes.append("Mean over inputs; intervals are in the tables")
    return style.complete(fig, "What the first token attends to in the last layer", notes)
