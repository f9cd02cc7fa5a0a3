"""Figures of a series: heads by steps, curves of single heads with the loss beside them, and the
steps at which heads are born."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.core.labels import head_name
from headwise.experiments.track.result import BEHAVIOURS, births
from headwise.plots import style
from headwise.plots.registry import figure

MOST_PANELS = 4
MOST_ROWS = 96  # heads of a heat map by steps; with more, those that change most are drawn
MOST_CURVES = 6  # heads of one panel that have a colour of their own
NAMED_ROWS = 48  # rows that have room for the name of a head


def _shown(dataset: xr.Dataset) -> list[str]:
    """Return the measures that are drawn: those with births, or all where there is none."""
    measures = [str(name) for name in np.atleast_1d(dataset.attrs["shown"])]
    with_births = set(births(dataset)["measure"])
    if with_births:
        measures = [name for name in measures if name in with_births]
    return measures[:MOST_PANELS]


def _notes(dataset: xr.Dataset) -> list[str]:
    facts = dataset.attrs
    return [
        f"{dataset.sizes['step']} models, evenly spaced whatever their steps",
        f"n = {facts['examples']} examples ({facts['corpus']})",
    ]


def _step_names(steps: np.ndarray) -> list[str]:
    return [f"{step:,g}" for step in steps]


def _step_ticks(ax: Axes, steps: np.ndarray) -> None:
    """Label the models of an axis with their steps, as many as have room."""
    names = _step_names(steps)
    longest = max(map(len, names))
    n_ticks = max(2, int(24 / longest))
    places = np.unique(np.linspace(0, len(steps) - 1, min(n_ticks, len(steps))).round().astype(int))
    ax.set_xticks(places, [names[place] for place in places])


@figure(
    "track",
    name="steps",
    title="What every head does over training",
    caption="A row for each head, layer 0 at the top; a column for each model of the series. White "
    "marks: births (the first step after a significant rise).",
    paper="Olsson et al. 2022",
    needs=("value",),
)
def heads_by_steps(dataset: xr.Dataset) -> Figure:
    """Heat maps heads × steps of the shown measures."""
    measures = _shown(dataset)
    steps = dataset["step"].values
    n_heads = dataset.sizes["head"]
    table = births(dataset)
    n_rows = dataset.sizes["layer"] * n_heads
    height = min(7.5, max(2.4, 0.9 + 0.085 * min(n_rows, MOST_ROWS)))
    with style.context():
        fig = style.new_figure(style.PAGE, height)
        axes = fig.subplots(1, len(measures), squeeze=False).ravel()
        for ax, measure in zip(axes, measures, strict=True):
            values = dataset["value"].sel(measure=measure).transpose("layer", "head", "step").values
            rows = values.reshape(n_rows, len(steps))
            kept = _rows_that_change_most(rows)
            image = ax.imshow(
                rows[kept],
                aspect="auto",
                cmap=mpl.colormaps[style.SEQUENTIAL],
                interpolation="nearest",
                vmin=0.0 if np.nanmin(rows) >= 0 else None,
            )
            born = table[table["measure"] == measure]
            row_of_name = {}
            for row, number in enumerate(kept):
                row_of_name[head_name(*divmod(int(number), n_heads))] = row
            for head, step in zip(born["head"], born["born_by"], strict=True):
                if head in row_of_name:
                    column = int(np.flatnonzero(steps == step)[0])
                    ax.plot(column, row_of_name[head], "o", color="white", mec=style.INK, ms=3)
            _step_ticks(ax, steps)
            ax.set_xlabel("step")
            _name_rows(ax, list(row_of_name), n_heads)
            style.colour_bar(fig, image, ax, "")
        style.panel_labels(list(axes), [BEHAVIOURS.get(name, name) for name in measures])
        return style.complete(fig, "What every head does over training", _notes(dataset))


def _rows_that_change_most(rows: np.ndarray) -> np.ndarray:
    """Return the rows to draw, in their order: all, or those with the largest range."""
    if len(rows) <= MOST_ROWS:
        return np.arange(len(rows))
    ranges = np.nan_to_num(np.ptp(rows, axis=1))
    return np.sort(np.argsort(-ranges)[:MOST_ROWS])


def _name_rows(ax: Axes, names: Sequence[str], n_heads: int) -> None:
    """Name every row where there is room, else the first head of each layer."""
    places = range(len(names))
    if len(names) > NAMED_ROWS:
        places = range(0, len(names), n_heads)
    ax.set_yticks(list(places), [names[place] for place in places])


@figure(
    "track",
    name="curves",
    title="Heads being born",
    caption="Heads that are born in each measure, with 95 % intervals over examples or documents; grey: all other "
    "heads. Bars at the bottom: between which models each is born (95 %). Last panel: the loss.",
    paper="Olsson et al. 2022",
    needs=("value",),
)
def curves(dataset: xr.Dataset) -> Figure:
    """Curves over steps of the shown measures, and the loss."""
    measures = _shown(dataset)
    steps = dataset["step"].values
    places = np.arange(len(steps))
    has_loss = bool(np.isfinite(dataset["loss"].values).any())
    n_panels = len(measures) + int(has_loss)
    n_columns = min(2, n_panels)
    n_rows = -(-n_panels // n_columns)
    table = births(dataset)
    with style.context():
        fig = style.new_figure(style.PAGE, 0.5 + 1.9 * n_rows)
        axes = list(fig.subplots(n_rows, n_columns, squeeze=False).ravel())
        for ax, measure in zip(axes, measures, strict=False):
            born = table[table["measure"] == measure]
            _draw_curves(ax, dataset.sel(measure=measure), steps, born)
            ax.set_ylabel("attention" if measure in BEHAVIOURS else measure)
        titles = [BEHAVIOURS.get(name, name) for name in measures]
        if has_loss:
            ax = axes[len(measures)]
            low = dataset["loss_low"].values
            high = dataset["loss_high"].values
            ax.fill_between(places, low, high, color=style.PALE, lw=0)
            ax.plot(places, dataset["loss"].values, color=style.INK, lw=1.2)
            ax.set_ylabel("loss (nats)")
            titles.append("loss")
        for ax in axes[:n_panels]:
            _step_ticks(ax, steps)
            ax.set_xlabel("step")
            ax.set_xlim(-0.5, len(steps) - 0.5)
        for ax in axes[n_panels:]:
            ax.remove()
        style.panel_labels(axes[:n_panels], titles)
        return style.complete(fig, "Heads being born", _notes(dataset))


def _draw_curves(ax: Axes, dataset: xr.Dataset, steps: np.ndarray, born: pd.DataFrame) -> None:
    """Draw one measure: heads that are born in colour, with the interval of their birth as a bar at
    the bottom; where there are none, the heads that change most; all others in grey."""
    places = np.arange(len(steps))
    birth_of = {str(row["head"]): row for row in born.to_dict("records")}
    size = np.abs(np.nan_to_num(dataset["change_size"].transpose("layer", "head").values))
    order = []
    for number in np.argsort(-size.ravel()).tolist():
        order.append((number, head_name(*divmod(number, size.shape[1]))))
    coloured = [name for _, name in order if name in birth_of or not birth_of][:MOST_CURVES]
    # From the last to the first, so that the largest change lies on top.
    for number, name in reversed(order):
        layer, head = divmod(number, size.shape[1])
        curve = dataset.isel(layer=layer, head=head)
        values = curve["value"].values
        if name not in coloured:
            ax.plot(places, values, color=style.PALE, lw=0.6, zorder=1)
            continue
        rank = coloured.index(name)
        colour = style.OKABE_ITO[rank]
        low = curve["low"].values
        high = curve["high"].values
        ax.fill_between(places, low, high, color=colour, alpha=0.2, lw=0)
        marker = style.MARKERS[rank]
        ax.plot(places, values, color=colour, lw=1.1, marker=marker, ms=2.5, label=name, zorder=3)
        if name in birth_of:
            _draw_birth(ax, birth_of[name], steps, colour, 0.02 + 0.035 * rank)
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], frameon=False, fontsize=style.SMALL, loc="upper left")


def _draw_birth(
    ax: Axes, birth: Mapping[Hashable, Any], steps: np.ndarray, colour: str, height: float
) -> None:
    """Draw the interval of a birth as a bar: from the last model before to the last plausible."""
    first, step, last = np.searchsorted(
        steps, [birth["earliest"], birth["born_by"], birth["latest"]]
    )
    across = ax.get_xaxis_transform()  # steps along, shares of the panel upwards
    ax.plot([first - 1, last], [height] * 2, color=colour, lw=1.6, alpha=0.6, transform=across)
    ax.plot([step - 0.5], [height], "|", color=colour, ms=5, transform=across)
