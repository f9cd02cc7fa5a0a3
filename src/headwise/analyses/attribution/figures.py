"""Figures of hidden token attribution: how well attention predicts what heads gather, and what they
do gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headwise.analyses.attribution.tables import MAIN_SOURCES
from headwise.analyses.offsets.figures import EVERY_OFFSET, SOURCE_STYLES, by_layer
from headwise.analyses.patterns.figures import pattern_legend, stack_patterns
from headwise.core.errors import ParameterError
from headwise.plots import data, style
from headwise.plots.registry import figure
from headwise.plots.scatter import Series, legend_handles, scatter_by_layer

LIFTING = "; set `length` to lift it"
BY_TYPE = "What is attended to, and what is gathered, by type of token"


@figure(
    "attribution",
    name="correlation",
    title="How well attention predicts what a head gathers, by layer",
    caption="One point per head: the correlation of its attention with what tokens contribute to its output, from the "
    "layer below and from the input, and with other measures of mixing. Bars are medians over the heads of a layer. "
    "High for the layer below and falling for the input: attention shows what a head does locally, not what reaches "
    "it from the words.",
    paper="Pascual et al. 2021, Fig 1 and 6",
    needs=("pearson", "spearman"),
)
def correlation(dataset: xr.Dataset, *, sources: Sequence[str] | None = None) -> Figure:
    """Correlation of attention with each source, `[source, layer, head]`, Pearson's left,
    Spearman's right."""
    known = data.labels(dataset, "source")
    if sources is None:
        sources = known
    shown = []
    for source in sources:
        if source in known and data.has(dataset.sel(source=source), "pearson"):
            shown.append(source)
    if not shown:
        raise ParameterError(
            f"`sources` must name one of {', '.join(known)} that has a correlation; it is "
            f"{', '.join(sources)}."
        )
    fig = style.new_figure(style.PAGE, min(1.0 + 1.35 * len(shown), style.PAGE_HEIGHT))
    axes = fig.subplots(len(shown), 2, sharey=True, sharex=True, squeeze=False)
    layers = data.numbers(dataset, "layer")
    titles = []
    lowest = -0.05
    for row, source in zip(axes, shown, strict=True):
        label, colour, marker = SOURCE_STYLES.get(source, (source, style.BLACK, "o"))
        one_source = dataset.sel(source=source)
        axis_label = "layer (0 = first)" if source == shown[-1] else ""
        for ax, name in zip(row, ("pearson", "spearman"), strict=True):
            values = data.values(one_source, name, ("layer", "head"))
            bounds = data.interval(one_source, name, ("layer", "head"))
            series = Series(label, values, bounds, colour, marker)
            scatter_by_layer(ax, [series], mean_line=False)
            _draw_medians(ax, values)
            ax.axhline(0, color=style.GREY, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
            low_ends = values if bounds is None else np.fmin(values, bounds[0])
            lowest = min(lowest, float(np.nanmin(low_ends)))
            style.layer_axis(ax, layers, axis_label)
            titles.append(f"{name.capitalize()}, {label}")
        row[0].set_ylabel("correlation")
    axes[0, 0].set_ylim(max(-1.02, lowest - 0.05), 1.02)  # shared by all panels
    style.panel_labels(list(axes.ravel()), titles)
    median = Line2D(
        [], [], color=style.BLACK, linewidth=1.6, label="median of the heads of a layer"
    )
    notes = [
        *data.source_notes(dataset, "pearson"),
        _length_note(dataset),
        _error_note(dataset),
        data.interval_text(data.has(dataset, "pearson_low")),
    ]
    return style.complete(
        fig, "Correlation of attention with what tokens contribute", notes, [median]
    )


@figure(
    "attribution",
    name="centre",
    title="Where heads attend and what they gather: centres of mass by layer",
    caption="Each point is one head: the mean relative position of its attention, and of what contributes to its "
    "output, on the same examples. Lines are means over the heads of a layer.",
    paper="Pascual et al. 2021, Fig 4 and 5",
    needs=("centre",),
)
def contribution_centre(datasets: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Centres of mass of attention and of contributions by layer (Pascual et al. 2021, Fig 4, 5).

    Several datasets (a mapping of label to dataset: models, each on its own language) are drawn
    side by side on one scale.
    """

    def main_sources(dataset: xr.Dataset) -> xr.Dataset:
        names = [name for name in data.labels(dataset, "source") if name in MAIN_SOURCES]
        return dataset.sel(source=names)

    note = (
        "One point per head; lines: mean over the heads of a layer; dashed: no direction. "
        f"{EVERY_OFFSET}"
    )
    label = "centre of mass (tokens)\n← before      after →"
    title = "Centre of mass: attention and contributions"
    return by_layer(datasets, main_sources, "centre", title, label, note)


@figure(
    "attribution",
    name="special",
    title=BY_TYPE,
    caption="For each layer: the share of attention on, and of contributions from, tokens of each type, means over the "
    "heads. Where attention goes to a type of token (an encoder's separators, above all) but the input's contribution "
    "does not come from it, such tokens only pass on what they gathered from elsewhere.",
    paper="after Pascual et al. 2021, §9.1",
    needs=("share",),
)
def special_tokens(dataset: xr.Dataset) -> Figure:
    """Shares by token type, `share[source, layer, head, receiver, token_type]`, for all receiving
    tokens."""
    dims = ("source", "layer", "head", "receiver", "token_type")
    all_receivers = data.labels(dataset, "receiver").index("all")
    shares = data.values(dataset, "share", dims)[:, :, :, all_receivers]
    token_types = data.labels(dataset, "token_type")
    fig, panels = _source_panels(dataset, shares, 2.6, "share of 1")
    series: list[Series] = []
    for ax, source_shares in panels:
        series = []
        for t, token_type in enumerate(token_types):
            if np.nansum(shares[..., t]) <= 0:
                continue  # a decoder's texts have no opening and closing token
            colour = style.TYPE_COLOURS.get(token_type, style.GREY)
            marker = style.cycle(style.MARKERS, t)
            series.append(Series(token_type, source_shares[..., t], None, colour, marker))
        scatter_by_layer(ax, series)
        ax.set_ylim(0, 1)
        style.layer_axis(ax, data.numbers(dataset, "layer"))
    notes = [
        *data.source_notes(dataset, "share"),
        _error_note(dataset),
        "One point per head; lines: mean over the heads of a layer. No interval drawn; intervals "
        "are in the tables",
    ]
    return style.complete(fig, BY_TYPE, notes, legend_handles(series), 4)


@figure(
    "attribution",
    name="patterns",
    title="Which patterns persist: attention maps and contribution maps",
    caption="Share of the heads of each layer whose map shows each of the five patterns, in attention and in what the "
    "input contributes.",
    paper="Pascual et al. 2021, §9.1 and Fig 7",
    needs=("pattern_share",),
)
def persisting_patterns(dataset: xr.Dataset) -> Figure:
    """Stacked shares of the five patterns by layer, `pattern_share[source, layer, pattern]`."""
    shares = data.values(dataset, "pattern_share", ("source", "layer", "pattern"))
    layers = [str(layer) for layer in data.numbers(dataset, "layer")]
    fig, panels = _source_panels(dataset, shares, 2.7, "share of heads")
    for ax, source_shares in panels:
        stack_patterns(ax, source_shares, layers)
        ax.set_xlabel("layer (0 = first)")
    notes = [
        *data.source_notes(dataset, "pattern_share"),
        "Patterns as classified by the network of `patterns`, not corrected for its errors; "
        "intervals are in the tables",
    ]
    return style.complete(
        fig, "Patterns of attention maps and of contribution maps", notes, pattern_legend(), 5
    )


def _source_panels(
    dataset: xr.Dataset, values: np.ndarray, height: float, label: str
) -> tuple[Figure, list[tuple[Axes, np.ndarray]]]:
    """Return a figure with a panel for each main source that has values, `values[source, ...]`."""
    shown = []
    for source, source_values in zip(data.labels(dataset, "source"), values, strict=True):
        if source in MAIN_SOURCES and np.isfinite(source_values).any():
            shown.append((source, source_values))
    fig = style.new_figure(style.PAGE, height)
    axes = list(fig.subplots(1, len(shown), sharey=True, squeeze=False)[0])
    axes[0].set_ylabel(label)
    style.panel_labels(axes, [SOURCE_STYLES[source][0] for source, _ in shown])
    panels = []
    for ax, (_, source_values) in zip(axes, shown, strict=True):
        panels.append((ax, source_values))
    return fig, panels


def _draw_medians(ax: Axes, values: np.ndarray) -> None:
    """Draw the median over the heads of each layer as a horizontal bar."""
    for layer, row in enumerate(values):
        if not np.isfinite(row).any():
            continue
        median = np.nanmedian(row)
        ax.plot(
            [layer - 0.4, layer + 0.4],
            [median, median],
            color=style.BLACK,
            linewidth=1.6,
            zorder=5,
            solid_capstyle="butt",
        )


def _length_note(dataset: xr.Dataset) -> str:
    """Return which inputs were used, and how many were left out."""
    # How to lift the rule is said in the result; there is no room for it here.
    rule = str(dataset.attrs.get("length_rule", "")).replace(LIFTING, "")
    note = rule[:1].upper() + rule[1:]
    n_longer = int(dataset.attrs.get("left_out_longer", 0))
    if n_longer:
        note += f"; {n_longer:,} longer ones left out"
    return note


def _error_note(dataset: xr.Dataset) -> str:
    if dataset.attrs.get("method") != "sketch" or "total_variation" not in dataset.attrs:
        return ""
    error = 100 * float(dataset.attrs["total_variation"])
    return f"Input contributions by sketch, median error of a row {error:.1f} % (total variation)"
