"""Figures of attention to features and between kinds of words (Kovaleva et al. 2019, Fig 6-7 and §4.5)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.core.errors import ParameterError
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels, short
from headwise.plots.registry import figure

SPECIAL = ("cls", "sep", "punct")
NAMES = {"cls": "[CLS] tokens", "sep": "[SEP] tokens", "punct": ". and ,"}
_LHF = ("layer", "head", "feature")
CELLS = "Each cell: mean over inputs of one head; intervals are in the tables"


def _panels(dataset: xr.Dataset, name: str, dim: str, chosen: list[str]) -> dict[str, xr.DataArray]:
    labels, cube = data.labels(dataset, dim), data.values(dataset, name, ("layer", "head", dim))
    coords = {side: data.numbers(dataset, side) for side in ("layer", "head")}
    made = {item: xr.DataArray(cube[..., labels.index(item)], dims=("layer", "head"), coords=coords) for item in chosen}
    return {NAMES.get(item, item): panel for item, panel in made.items() if np.isfinite(panel.values).any()}


def _has(dataset: xr.Dataset, chosen: list[str]) -> bool:
    return bool(_panels(dataset, "attention", "feature", chosen))


@figure(
    "features",
    name="special-tokens",
    title="Attention to [CLS], [SEP] and punctuation",
    caption="Each cell is one head: the share of attention that the most attended such token of an input gets from all tokens. High values are vertical stripes in the maps.",
    paper="Kovaleva et al. 2019, Fig 6",
    needs=("attention",),
)
def special_tokens(dataset: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Heat maps `attention[layer, head]` of the special tokens on one scale; of several datasets (tasks, say), one column each and `[SEP]` over `[CLS]`, as the paper has it.

    Parameters
    ----------
    dataset
        One dataset, or several by name.
    """
    if not isinstance(dataset, xr.Dataset):
        return _special_tokens_of(dataset)
    chosen = [name for name in data.labels(dataset, "feature") if name in SPECIAL and _has(dataset, [name])]
    if not chosen:
        return feature_maps(dataset)
    return heatmap_panels(
        _panels(dataset, "attention", "feature", chosen),
        title="Attention to special tokens and punctuation",
        label="share of attention",
        limits=(0.0, None),
        notes=_notes(dataset, chosen),
    )


def _special_tokens_of(several: Mapping[str, xr.Dataset]) -> Figure:
    chosen = [
        name
        for name in ("sep", "cls")
        if all(name in data.labels(one, "feature") and _has(one, [name]) for one in several.values())
    ]
    if not several or not chosen:
        raise ParameterError(
            "`dataset` must name at least one dataset, each with attention to sep or cls tokens; one of them has neither."
        )
    room = (style.PAGE - 1.0) / len(several) - 0.5  # inches for a panel's name
    panels = {
        style.wrap(f"{task}: [{name.upper()}]", room, style.NORMAL): next(
            iter(_panels(one, "attention", "feature", [name]).values())
        )
        for name in chosen
        for task, one in several.items()
    }
    return heatmap_panels(
        panels,
        title="Attention to special tokens by task",
        label="share of attention",
        limits=(0.0, None),
        annotate="none",
        notes=[*(_behind(one, "attention", f"{task}: ", chosen) for task, one in several.items()), CELLS],
        across=len(several),
    )


@figure(
    "features",
    name="features",
    title="Attention to linguistic features",
    caption="Each cell is one head: the share of attention that the most attended token of the feature gets, from all tokens of the input. "
    "Inputs without the feature are left out. The "
    "scale is not that of the special tokens, which get far more.",
    paper="Kovaleva et al. 2019, §4.4",
    needs=("attention",),
)
def feature_maps(dataset: xr.Dataset) -> Figure:
    """Heat maps `attention[layer, head]` of all other features on one scale."""
    labels = data.labels(dataset, "feature")
    chosen = [name for name in labels if name not in SPECIAL and _has(dataset, [name])] or [
        name for name in labels if _has(dataset, [name])
    ]
    panels = _panels(dataset, "attention", "feature", chosen)
    absent = [name for name in labels if name not in chosen and name not in SPECIAL]
    notes = [*_notes(dataset, chosen), f"Not computed or never matched: {', '.join(absent)}" if absent else ""]
    return heatmap_panels(
        panels,
        title="Attention to linguistic features",
        label="share of attention",
        limits=(0.0, None),
        annotate="none",
        notes=notes,
    )


def _notes(dataset: xr.Dataset, chosen: list[str]) -> list[str]:
    dataset = dataset.isel(
        feature=[place for place, name in enumerate(data.labels(dataset, "feature")) if name in chosen]
    )
    even = (
        data.values(dataset, "uniform", ("layer", "feature")) if "uniform" in dataset.variables else np.array([np.nan])
    )
    reference = f"Uniform attention would give about {np.nanmean(even):.3f}" if np.isfinite(even).any() else ""
    return [_behind(dataset, "attention"), CELLS, reference]


def _behind(dataset: xr.Dataset, name: str, start: str = "", chosen: list[str] | None = None) -> str:
    """What is behind a mean: model, corpus and count, as far as the dataset says."""
    if chosen is not None:
        dataset = dataset.isel(
            feature=[place for place, feature in enumerate(data.labels(dataset, "feature")) if feature in chosen]
        )
    return start + ", ".join(filter(None, (data.source_text(dataset), data.count_text(dataset, name))))


@figure(
    "features",
    name="from-cls",
    title="What [CLS] attends to in the last layer",
    caption="In the last layer, the weight from the [CLS] token, which a classifier reads, to the most attended token of each feature: one row per feature, one column per head.",
    paper="Kovaleva et al. 2019, Fig 7",
    needs=("from_cls",),
)
def from_cls(dataset: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """`from_cls[head, feature]` as a table of colours; several datasets (tasks, say) as panels on one scale.

    Parameters
    ----------
    dataset
        One dataset, or several by name.
    """
    several = {"": dataset} if isinstance(dataset, xr.Dataset) else dict(dataset)
    if not several:
        raise ParameterError("`dataset` must name at least one dataset; it is empty.")
    planes = {name: data.values(one, "from_cls", ("feature", "head")) for name, one in several.items()}
    high = max(float(np.nanmax(plane)) for plane in planes.values())
    rows = max(plane.shape[0] for plane in planes.values())
    columns = min(len(planes), 2)
    lines = -(-len(planes) // columns)
    width = style.PAGE if columns > 1 else 4.6
    fig = style.new_figure(width, lines * (0.24 * rows + 0.45) + 1.0)
    axes = np.atleast_1d(fig.subplots(lines, columns, squeeze=False).ravel())
    image = None
    for ax, (name, plane) in zip(axes, planes.items(), strict=False):
        one = several[name]
        image = ax.imshow(np.ma.masked_invalid(plane), cmap=style.SEQUENTIAL, vmin=0, vmax=high, aspect="auto")
        ax.set_yticks(range(plane.shape[0]), data.labels(one, "feature"))
        ax.set_xticks(range(plane.shape[1]), [str(h) for h in data.numbers(one, "head")])
        ax.set_xlabel(f"head of the last layer ({data.numbers(one, 'layer')[-1]})")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        if plane.shape[1] <= 16 and columns == 1:
            for (row, column), value in np.ndenumerate(plane):
                if np.isfinite(value):
                    ax.text(
                        column,
                        row,
                        short(value),
                        ha="center",
                        va="center",
                        fontsize=style.SMALL,
                        color="black" if value > 0.6 * high else "white",
                    )
    for ax in axes[len(planes) :]:
        ax.remove()
    style.panel_labels(list(axes[: len(planes)]), list(planes))
    assert image is not None
    bar = fig.colorbar(image, ax=list(axes[: len(planes)]), fraction=0.035, pad=0.015)
    bar.set_label("weight from [CLS]")
    bar.outline.set_linewidth(0.4)
    notes = [_behind(one, "from_cls", f"{name}: " if name else "") for name, one in several.items()]
    style.annotate_figure(
        fig,
        "What the first token attends to in the last layer",
        [*notes, "Mean over inputs; intervals are in the tables"],
    )
    return style.finish(fig)


@figure(
    "token_pairs",
    name="pairs",
    title="Attention between kinds of words",
    caption="The largest weight of such a pair in an input, mean over inputs. Words like these often stand side by side, so heads that look "
    "at a neighbour score high too: see the excess.",
    paper="Kovaleva et al. 2019, §4.5",
    needs=("attention",),
)
def pair_maps(dataset: xr.Dataset) -> Figure:
    """Heat maps `attention[layer, head]`, one for each kind of pair."""
    notes = [data.source_text(dataset), data.count_text(dataset, "attention"), CELLS]
    return heatmap_panels(
        _panels(dataset, "attention", "pair", data.labels(dataset, "pair")),
        title="Largest weight between two kinds of words",
        label="attention weight",
        limits=(0.0, None),
        annotate="none",
        notes=notes,
    )


@figure(
    "token_pairs",
    name="excess",
    title="Attention between kinds of words, beyond their distance",
    caption="Mean weight of such pairs minus the head's mean weight at the same distances in the same input: what remains is not due to the words being neighbours.",
    paper="Beyond Kovaleva et al. 2019, §4.5",
    needs=("excess",),
)
def pair_excess(dataset: xr.Dataset) -> Figure:
    """Heat maps `excess[layer, head]`, one for each kind of pair; the best tested head is named."""
    labels = data.labels(dataset, "pair")
    excess, p = (
        data.values(dataset, "excess", ("layer", "head", "pair")),
        data.values(dataset, "p_adjusted", ("layer", "head", "pair")),
    )
    best = []
    for place, name in enumerate(labels):
        if np.isfinite(excess[..., place]).any():
            layer, head = np.unravel_index(np.nanargmax(excess[..., place]), excess.shape[:2])
            where = head_name(data.numbers(dataset, "layer")[layer], data.numbers(dataset, "head")[head])
            best.append(
                f"{name}: {where} +{excess[layer, head, place]:.2f}"
                + (" (p < 0.05 corrected)" if p[layer, head, place] < 0.05 else "")
            )
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "excess"),
        "Best: " + "; ".join(best),
        "Mean over inputs; intervals are in the tables",
    ]
    return heatmap_panels(
        _panels(dataset, "excess", "pair", labels),
        title="Attention between two kinds of words beyond their distance",
        label="excess weight",
        centre=0.0,
        annotate="none",
        notes=notes,
    )
