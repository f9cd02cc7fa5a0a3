"""Figures of `why`: the score of one query and one key by pairs of components, and the mean margins
of a corpus."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from headwise.experiments.why.result import SIDES, largest_margins
from headwise.plots import style
from headwise.plots.heatmap import short
from headwise.plots.registry import figure

SHOWN = 8  # components on each side of the heat map
SHOWN_MARGINS = 10


@figure(
    "why",
    name="pairs",
    title="Why the head attends there",
    caption="The score of one query and one key, split over the components that wrote the residual "
    "stream at both. Rows: what was written at the query; columns: at the key. All cells add up to "
    "the score.",
    paper="Elhage et al. 2021",
    needs=("score",),
)
def pairs(dataset: xr.Dataset) -> Figure:
    """Heat map of `score` for the components with the largest margins, the others summed up."""
    table, row_names, column_names = summed_table(dataset)
    fig, ax = style.one_panel(style.COLUMN, 1.2 + 0.24 * len(row_names))
    largest = float(np.abs(table).max()) or 1.0
    ax.imshow(table, cmap=style.DIVERGING, norm=TwoSlopeNorm(0, -largest, largest), aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        is_dark = abs(value) > 0.6 * largest
        ax.text(
            column,
            row,
            short(float(value)),
            ha="center",
            va="center",
            fontsize=style.SMALL,
            color="white" if is_dark else "black",
        )
    ax.set_xticks(range(len(column_names)), column_names, rotation=90)
    ax.set_yticks(range(len(row_names)), row_names)
    style.bare(ax)
    ax.set_xlabel("wrote at the key")
    ax.set_ylabel("wrote at the query")
    facts = dataset.attrs
    title = f"{facts['head']}: «{facts['query'].strip()}» to «{facts['key'].strip()}»"
    notes = [f"Score {facts['score']:.2f}, attention {facts['weight']:.2f}"]
    return style.complete(fig, title, notes)


def summed_table(dataset: xr.Dataset) -> tuple[np.ndarray, list[str], list[str]]:
    """Return the table of the components with the largest margins, with a last row and column for
    the sum of all others: it adds up to the score."""
    names = [str(name) for name in dataset["query_component"].values]
    table = dataset["score"].values
    sides = []
    for axis, margin in ((0, dataset["query_margin"].values), (1, dataset["key_margin"].values)):
        kept = largest_margins(margin, names, SHOWN)
        places = [names.index(name) for name in kept]
        others = [place for place in range(len(names)) if place not in places]
        shown = table.take(places, axis)
        if others:
            rest = table.take(others, axis).sum(axis, keepdims=True)
            shown = np.concatenate([shown, rest], axis)
            kept = [*kept, f"{len(others)} others"]
        table = shown
        sides.append(kept)
    return table, sides[0], sides[1]


@figure(
    "why",
    name="margins",
    title="What makes the head attend, on text",
    caption="What each component adds to the score by what it wrote at the query (a) and at the key "
    "(b): in rows where one token has at least half of the attention that is not on the first "
    "token, and in all others. Bars: 95 % intervals over examples or documents. Star: they differ, "
    "corrected p < 0.05.",
    paper="Elhage et al. 2021",
    needs=("key_difference",),
)
def margins(dataset: xr.Dataset) -> Figure:
    """`query_margin` and `key_margin` of the components whose margins differ most."""
    n_components = min(SHOWN_MARGINS, dataset.sizes["component"])
    fig = style.new_figure(style.PAGE, 1.2 + 0.2 * n_components)
    axes = fig.subplots(1, 2)
    for ax, side in zip(axes, SIDES, strict=True):
        _draw_side(ax, dataset, side)
    style.panel_labels(list(axes), ["written at the query", "written at the key"])
    handles, _ = axes[0].get_legend_handles_labels()
    facts = dataset.attrs
    notes = [
        f"n = {facts['firing_rows']} rows where the role fires, {facts['other_rows']} others, in "
        f"{facts['examples']} examples"
    ]
    return style.complete(fig, f"Scores of {facts['head']} by component", notes, handles, 2)


def _draw_side(ax: Axes, dataset: xr.Dataset, side: str) -> None:
    names = [str(name) for name in dataset["component"].values]
    differences = dataset[f"{side}_difference"].values
    if np.isnan(differences).all():
        differences = dataset[f"{side}_margin"].sel(rows="firing").values
    kept = largest_margins(differences, names, SHOWN_MARGINS)
    chosen = dataset.sel(component=kept)
    places = np.arange(len(kept))
    for rows, colour, shift in (("firing", style.VERMILION, -0.14), ("other", style.GREY, 0.14)):
        of_rows = chosen.sel(rows=rows)
        mean = of_rows[f"{side}_margin"].values
        low = mean - of_rows[f"{side}_margin_low"].values
        high = of_rows[f"{side}_margin_high"].values - mean
        ax.errorbar(
            mean,
            places + shift,
            xerr=[low, high],
            color=colour,
            linestyle="none",
            marker="o",
            markersize=3,
            elinewidth=0.8,
            label="role fires" if rows == "firing" else "other rows",
        )
    labels = []
    adjusted = chosen[f"{side}_difference_p_adjusted"].values
    for name, p in zip(kept, adjusted, strict=True):
        labels.append(f"{name} *" if p < 0.05 else name)
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    ax.axvline(0, color=style.GREY, linewidth=0.6)
    ax.set_xlabel("part of the score")
