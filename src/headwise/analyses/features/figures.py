"""Figures of attention to features (Kovaleva et al. 2019, Fig 6-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from headwise.core.errors import ParameterError
from headwise.core.token_types import TOKEN_TYPES
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels, short
from headwise.plots.registry import figure

SPECIAL = {token_type.name: token_type.phrase for token_type in TOKEN_TYPES}
CELLS = "Each cell: mean over inputs of one head; intervals are in the tables"


def _source_and_count(
    dataset: xr.Dataset, name: str, features: Sequence[str], start: str = ""
) -> str:
    """Return model, corpus and count behind a mean of these features, as far as they are known."""
    part = _select_features(dataset, features)
    texts = [data.source_text(part), data.count_text(part, name)]
    return start + ", ".join(text for text in texts if text)


def _select_features(dataset: xr.Dataset, features: Sequence[str]) -> xr.Dataset:
    labels = data.labels(dataset, "feature")
    places = [place for place, name in enumerate(labels) if name in features]
    return dataset.isel(feature=places)


@figure(
    "features",
    name="special-tokens",
    title="Attention to special tokens and punctuation",
    caption="Each cell is one head: the share of attention that the most attended such token of an "
    "input gets from all tokens. High values are vertical stripes in the maps.",
    paper="Kovaleva et al. 2019, Fig 6",
    needs=("attention",),
)
def special_tokens(dataset: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Draw heat maps `attention[layer, head]` of the special tokens on one scale.

    Several datasets (of tasks, for example) have one column each, `[SEP]` over `[CLS]`, as in the
    paper.

    Parameters
    ----------
    dataset : xarray.Dataset or mapping of str to xarray.Dataset
        One dataset, or several by name.
    """
    if not isinstance(dataset, xr.Dataset):
        return _special_tokens_by_task(dataset)
    panels = {}
    for name, panel in data.panels(dataset, "attention", "feature").items():
        if name in SPECIAL:
            panels[name] = panel
    if not panels:
        return feature_maps(dataset)
    return heatmap_panels(
        {SPECIAL[name]: panel for name, panel in panels.items()},
        title="Attention to special tokens and punctuation",
        label="share of attention",
        limits=(0.0, None),
        notes=_notes(dataset, list(panels)),
    )


def _special_tokens_by_task(datasets: Mapping[str, xr.Dataset]) -> Figure:
    maps = {}
    for task, dataset in datasets.items():
        maps[task] = data.panels(dataset, "attention", "feature")
    chosen = [name for name in ("sep", "cls") if all(name in of_task for of_task in maps.values())]
    if not datasets or not chosen:
        raise ParameterError(
            "`dataset` must name at least one dataset, each with attention to sep or cls tokens; "
            "one has neither."
        )
    title_width = (style.PAGE - 1.0) / len(datasets) - 0.5  # inches
    panels = {}
    for name in chosen:
        for task in datasets:
            title = style.wrap(f"{task}: [{name.upper()}]", title_width, style.NORMAL)
            panels[title] = maps[task][name]
    notes = []
    for task, dataset in datasets.items():
        notes.append(_source_and_count(dataset, "attention", chosen, f"{task}: "))
    return heatmap_panels(
        panels,
        title="Attention to special tokens by task",
        label="share of attention",
        limits=(0.0, None),
        annotate="none",
        notes=[*notes, CELLS],
        across=len(datasets),
    )


@figure(
    "features",
    name="features",
    title="Attention to linguistic features",
    caption="Each cell is one head: the share of attention that the most attended token of the "
    "feature gets, from all tokens of the input. Inputs without the feature are left out. The "
    "scale is not that of the special tokens, which get far more.",
    paper="Kovaleva et al. 2019, §4.4",
    needs=("attention",),
)
def feature_maps(dataset: xr.Dataset) -> Figure:
    """Draw heat maps `attention[layer, head]` of all other features on one scale."""
    all_panels = data.panels(dataset, "attention", "feature")
    panels = {}
    for name, panel in all_panels.items():
        if name not in SPECIAL:
            panels[name] = panel
    if not panels:
        panels = all_panels
    notes = _notes(dataset, list(panels))
    absent = []
    for name in data.labels(dataset, "feature"):
        if name not in panels and name not in SPECIAL:
            absent.append(name)
    if absent:
        notes.append(f"Not computed or never matched: {', '.join(absent)}")
    return heatmap_panels(
        {SPECIAL.get(name, name): panel for name, panel in panels.items()},
        title="Attention to linguistic features",
        label="share of attention",
        limits=(0.0, None),
        annotate="none",
        notes=notes,
    )


def significant_text(dataset: xr.Dataset, items: Sequence[str], dim: str) -> str:
    """Say how many heads stand out for each of these items, and whether random heads were used."""
    if "stands_out" not in dataset.variables:
        return ""
    labels = data.labels(dataset, dim)
    stands_out = data.values(dataset, "stands_out", (dim, "layer", "head")) > 0
    counts = []
    for item in items:
        if item in labels:
            counts.append(f"{item} {int(stands_out[labels.index(item)].sum())}")
    condition = ""
    if "random_bound" in dataset.variables:
        condition = " and above random heads of the same shape"
    return f"Heads that stand out, after correction{condition}: {'; '.join(counts)}"


def _notes(dataset: xr.Dataset, features: Sequence[str]) -> list[str]:
    part = _select_features(dataset, features)
    reference = ""
    if data.has(part, "uniform"):
        uniform = np.nanmean(data.values(part, "uniform", ("layer", "feature")))
        reference = f"Uniform attention would give about {uniform:.3f}"
    return [
        _source_and_count(dataset, "attention", features),
        CELLS,
        reference,
        significant_text(dataset, features, "feature"),
    ]


@figure(
    "features",
    name="from-cls",
    title="What [CLS] attends to in the last layer",
    caption="In the last layer, the weight from the [CLS] token, which a classifier reads, to the "
    "most attended token of each feature: one row per feature, one column per head.",
    paper="Kovaleva et al. 2019, Fig 7",
    needs=("from_cls",),
)
def from_cls(dataset: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Draw `from_cls[head, feature]` as a table of colours; several datasets (of tasks, for
    example) as panels on one scale.

    Parameters
    ----------
    dataset : xarray.Dataset or mapping of str to xarray.Dataset
        One dataset, or several by name.
    """
    datasets = {"": dataset} if isinstance(dataset, xr.Dataset) else dict(dataset)
    if not datasets:
        raise ParameterError("`dataset` must name at least one dataset; it is empty.")
    tables = {}
    for name, one_dataset in datasets.items():
        tables[name] = data.values(one_dataset, "from_cls", ("feature", "head"))
    highest = max(float(np.nanmax(table)) for table in tables.values())
    most_features = max(table.shape[0] for table in tables.values())
    columns = min(len(tables), 2)
    lines = -(-len(tables) // columns)
    width = style.PAGE if columns > 1 else 4.6
    fig = style.new_figure(width, lines * (0.24 * most_features + 0.45) + 1.0)
    axes = fig.subplots(lines, columns, squeeze=False).ravel()
    for ax, (name, table) in zip(axes, tables.items(), strict=False):
        with_numbers = table.shape[1] <= 16 and columns == 1
        image = _draw_from_cls(ax, datasets[name], table, highest, with_numbers)
    for ax in axes[len(tables) :]:
        ax.remove()
    drawn = list(axes[: len(tables)])
    style.panel_labels(drawn, list(tables))
    style.colour_bar(fig, image, drawn, "weight from [CLS]", fraction=0.035, pad=0.015)
    notes = []
    for name, one_dataset in datasets.items():
        start = f"{name}: " if name else ""
        features = data.labels(one_dataset, "feature")
        notes.append(_source_and_count(one_dataset, "from_cls", features, start))
    notes.append("Mean over inputs; intervals are in the tables")
    return style.complete(fig, "What the first token attends to in the last layer", notes)


def _draw_from_cls(
    ax: Axes, dataset: xr.Dataset, table: np.ndarray, highest: float, with_numbers: bool
) -> AxesImage:
    """Draw `table[feature, head]` in colours from 0 to `highest`."""
    image = ax.imshow(
        np.ma.masked_invalid(table), cmap=style.SEQUENTIAL, vmin=0, vmax=highest, aspect="auto"
    )
    ax.set_yticks(range(table.shape[0]), data.labels(dataset, "feature"))
    ax.set_xticks(range(table.shape[1]), [str(head) for head in data.numbers(dataset, "head")])
    ax.set_xlabel(f"head of the last layer ({data.numbers(dataset, 'layer')[-1]})")
    style.bare(ax)
    if with_numbers:
        for (row, column), value in np.ndenumerate(table):
            if np.isfinite(value):
                ax.text(
                    column,
                    row,
                    short(value),
                    ha="center",
                    va="center",
                    fontsize=style.SMALL,
                    color="black" if value > 0.6 * highest else "white",
                )
    return image
