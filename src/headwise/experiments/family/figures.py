"""Figures of a family: the share of heads with each label by relative depth, and in all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from headwise.atlas.describe import LABEL_CATEGORIES
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.experiments.family.result import differences
from headwise.plots import style
from headwise.plots.registry import figure

MOST_LABELS = 9  # panels of a figure; with more, those with the largest shares are drawn
MOST_ROWS = 24  # labels of the dot plot
COLUMNS = 3
PROFILE_COLUMNS = 4  # with more models, two rows of about the same length
ROW_HEIGHT = 0.035  # inches of a model's row in the dot plot, beside the height of a label
PERCENT = 100


def _models(dataset: xr.Dataset) -> list[str]:
    return [str(name) for name in dataset["model"].values]


def _largest_labels(dataset: xr.Dataset, most: int) -> list[str]:
    """Return the labels with the largest share in any model, largest first."""
    largest = dataset["total_share"].max("model").fillna(0.0)
    order = np.argsort(-largest.values, kind="stable")[:most]
    return [str(dataset["label"].values[place]) for place in order]


def _colour(number: int) -> str:
    return style.cycle(style.OKABE_ITO, number)


def _marker(number: int) -> str:
    return style.cycle(style.MARKERS, number)


def _model_names(dataset: xr.Dataset) -> list[str]:
    """Return the models with their shapes, as a legend says them."""
    names = []
    for number, name in enumerate(_models(dataset)):
        layers = int(dataset["layers"].values[number])
        heads = int(dataset["heads"].values[number])
        names.append(f"{name} ({layers} × {heads})")
    return names


def _model_legend(dataset: xr.Dataset) -> list[Artist]:
    handles: list[Artist] = []
    for number, name in enumerate(_model_names(dataset)):
        line = Line2D([], [], color=_colour(number), marker=_marker(number), ms=3.5, label=name)
        handles.append(line)
    return handles


def _notes(dataset: xr.Dataset) -> list[str]:
    notes = [
        "Relative depth: 0 before the first layer, 1 after the last",
        "Labels that are not significant count as none",
    ]
    if not dataset.attrs.get("same_corpus", 1):
        notes.append("The models read different texts")
    return notes


def _depth_axis(ax: Axes) -> None:
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])


@figure(
    "family",
    name="depth",
    title="The share of heads with each label by relative depth",
    caption="A panel for each label, a line for each model: the share of the heads at a relative "
    "depth that have the label, with 95 % intervals; layers are the sample. A model that cannot have "
    "the label has no line.",
    needs=("share",),
)
def shares_by_depth(dataset: xr.Dataset) -> Figure:
    """`share[model, label, depth]` as lines with intervals, a panel for each label."""
    labels = _largest_labels(dataset, MOST_LABELS)
    n_columns = min(COLUMNS, len(labels))
    n_rows = -(-len(labels) // n_columns)
    depths = dataset["depth"].values
    n_models = dataset.sizes["model"]
    # Models stand side by side within a part of the depth, so that intervals do not overlap.
    offsets = (np.arange(n_models) - (n_models - 1) / 2) * 0.35 / len(depths) / max(1, n_models)
    fig = style.new_figure(style.PAGE, 1.0 + 1.55 * n_rows)
    axes = list(fig.subplots(n_rows, n_columns, squeeze=False, sharex=True).ravel())
    for ax, label in zip(axes, labels, strict=False):
        of_label = dataset.sel(label=label)
        for number in range(n_models):
            of_model = of_label.isel(model=number)
            values = PERCENT * of_model["share"].values
            low = PERCENT * of_model["share_low"].values
            high = PERCENT * of_model["share_high"].values
            x = depths + offsets[number]
            ax.vlines(x, low, high, color=_colour(number), lw=0.8, alpha=0.55)
            # Marks at 0 are drawn whole, on the axis.
            ax.plot(
                x,
                values,
                color=_colour(number),
                marker=_marker(number),
                ms=2.8,
                lw=1.0,
                clip_on=False,
            )
        ax.set_ylim(bottom=0)
        _depth_axis(ax)
    for place, ax in enumerate(axes[: len(labels)]):
        if place % n_columns == 0:
            ax.set_ylabel("heads (%)")
        # The last panel of each column names the axis.
        if place + n_columns >= len(labels):
            ax.set_xlabel("relative depth")
            ax.tick_params(labelbottom=True)
    for ax in axes[len(labels) :]:
        ax.remove()
    style.panel_labels(axes[: len(labels)], labels)
    notes = [*_notes(dataset), "Bars: 95 % intervals; layers are the sample"]
    if dataset.sizes["label"] > len(labels):
        notes.append(f"The {len(labels)} most frequent of {dataset.sizes['label']} labels")
    return style.complete(
        fig, "What heads do by relative depth", notes, _model_legend(dataset), COLUMNS
    )


@figure(
    "family",
    name="profile",
    title="What the heads of each model do, from the first layer to the last",
    caption="A panel for each model: at each relative depth, the share of heads by the category of "
    "their label, stacked; white: no significant label.",
    needs=("share",),
)
def profiles(dataset: xr.Dataset) -> Figure:
    """The categories of labels as stacked bars over depth, a panel for each model."""
    names = _model_names(dataset)
    n_columns = len(names)
    if len(names) > PROFILE_COLUMNS:
        n_columns = -(-len(names) // 2)
    n_rows = -(-len(names) // n_columns)
    categories = _present_categories(dataset)
    depths = dataset["depth"].values
    width = float(dataset["depth_high"].values[0] - dataset["depth_low"].values[0])
    fig = style.new_figure(style.PAGE, 0.9 + 1.75 * n_rows)
    axes = list(fig.subplots(n_rows, n_columns, squeeze=False, sharey=True).ravel())
    for number, ax in enumerate(axes[: len(names)]):
        of_model = dataset.isel(model=number)
        bottom = np.zeros(len(depths))
        for category in categories:
            of_category = of_model["count"].where(dataset["label_category"] == category, 0)
            height = PERCENT * of_category.sum("label").values / of_model["n_heads"].values
            ax.bar(
                depths,
                height,
                width,
                bottom=bottom,
                color=style.CATEGORY_COLOURS[category],
                edgecolor="white",
                lw=0.4,
            )
            bottom += height
        ax.set_ylim(0, PERCENT)
        _depth_axis(ax)
        ax.set_xlabel("relative depth")
        if number % n_columns == 0:
            ax.set_ylabel("heads (%)")
    for ax in axes[len(names) :]:
        ax.remove()
    style.panel_labels(axes[: len(names)], names)
    handles: list[Artist] = []
    for category in categories:
        handles.append(Patch(color=style.CATEGORY_COLOURS[category], label=category))
    title = "What the heads of each model do"
    return style.complete(fig, title, _notes(dataset), handles, len(categories))


def _present_categories(dataset: xr.Dataset) -> list[str]:
    """Return the categories that some label has, in their usual order."""
    present = set(map(str, dataset["label_category"].values))
    return [category for category in LABEL_CATEGORIES if category in present]


@figure(
    "family",
    name="totals",
    title="How many heads have each label",
    caption="The share of all heads of a model that have the label, with 95 % Wilson intervals over "
    "heads. A star: at least two models differ in this share (layers permuted between models "
    "within thirds of the depth, p < 0.05 corrected over pairs and labels).",
    needs=("total_share",),
)
def totals(dataset: xr.Dataset) -> Figure:
    """`total_share[model, label]` as dots with intervals, a row for each label."""
    labels = _largest_labels(dataset, MOST_ROWS)
    n_models = dataset.sizes["model"]
    row_height = 0.16 + ROW_HEIGHT * n_models
    fig, ax = style.one_panel(style.PAGE, 1.2 + row_height * len(labels))
    places = np.arange(len(labels))[::-1].astype(float)
    for number in range(n_models):
        of_model = dataset.isel(model=number).sel(label=labels)
        shift = (number - (n_models - 1) / 2) * 0.7 / n_models
        values = PERCENT * of_model["total_share"].values
        low = PERCENT * of_model["total_share_low"].values
        high = PERCENT * of_model["total_share_high"].values
        colour = _colour(number)
        ax.hlines(places - shift, low, high, color=colour, lw=0.9)
        ax.plot(values, places - shift, _marker(number), color=colour, ms=3.5, clip_on=False)
    ax.set_yticks(places, _starred(dataset, labels))
    ax.set_ylim(-0.6, len(labels) - 0.4)
    ax.set_xlim(left=0)
    ax.set_xlabel("share of all heads (%)")
    for place in places[:-1]:
        ax.axhline(place - 0.5, color=style.PALE, lw=0.5, zorder=0)
    notes = [*_notes(dataset), "* differs between models (corrected p < 0.05)"]
    return style.complete(
        fig, "How many heads have each label", notes, _model_legend(dataset), COLUMNS
    )


def _starred(dataset: xr.Dataset, labels: Sequence[str]) -> list[str]:
    """Return labels with a star where models differ significantly in share."""
    table = differences(dataset)
    differing = set(table[table["share_p"] < SIGNIFICANCE_LEVEL]["label"])
    return [f"{label} *" if label in differing else label for label in labels]
