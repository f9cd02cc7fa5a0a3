"""Figures of hidden token attribution: how far attention tells what heads gather, and what they do
gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headwise.analyses.attribution.tables import SHOWN
from headwise.analyses.offsets.figures import EVERY_OFFSET, by_layer
from headwise.analyses.offsets.figures import READINGS as LOOKS
from headwise.analyses.patterns.figures import pattern_legend, stack_patterns
from headwise.core.errors import ParameterError
from headwise.plots import data, style
from headwise.plots.registry import figure
from headwise.plots.scatter import Series, legend_handles, scatter_by_layer

LIFTING = "; set `length` to lift it"
BY_TYPE = "What is looked at, and what is gathered, by type of token"


@figure(
    "attribution",
    name="correlation",
    title="How far attention tells what a head gathers, by layer",
    caption="One point per head: the correlation of its attention with what tokens really contribute to its output, "
    "from the layer below and from the input, and with other readings of mixing. Bars across are medians over the "
    "heads of a layer. High for the layer below and falling for the input: attention says what a head does locally, "
    "not what reaches it from the words.",
    paper="Pascual et al. 2021, Fig 1 and 6",
    needs=("pearson", "spearman"),
)
def correlation(dataset: xr.Dataset, *, sources: Sequence[str] | None = None) -> Figure:
    """Correlation of attention with each reading, `[source, layer, head]`, Pearson's left,
    Spearman's right."""
    known = data.labels(dataset, "source")
    sources = known if sources is None else sources
    shown = [
        one for one in sources if one in known and data.has(dataset.sel(source=one), "pearson")
    ]
    if not shown:
        raise ParameterError(
            f"`sources` must name one of {', '.join(known)} that has a correlation; it is {', '.join(sources)}."
        )
    fig = style.new_figure(style.PAGE, min(1.0 + 1.35 * len(shown), style.PAGE_HEIGHT))
    axes = fig.subplots(len(shown), 2, sharey=True, sharex=True, squeeze=False)
    titles, lowest = [], -0.05
    for row, source in zip(axes, shown, strict=True):
        words, colour, marker = LOOKS.get(source, (source, style.BLACK, "o"))
        for ax, name in zip(row, ("pearson", "spearman"), strict=True):
            one = dataset.sel(source=source)
            values = data.values(one, name, ("layer", "head"))
            ends = data.interval(one, name, ("layer", "head"))
            scatter_by_layer(ax, [Series(words, values, ends, colour, marker)], mean_line=False)
            _medians(ax, values)
            ax.axhline(0, color=style.GREY, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
            lowest = min(
                lowest, float(np.nanmin(values if ends is None else np.fmin(values, ends[0])))
            )
            last = source == shown[-1]
            style.layer_axis(
                ax, data.numbers(dataset, "layer"), "layer (0 = first)" if last else ""
            )
            titles.append(f"{name.capitalize()}, {words}")
        row[0].set_ylabel("correlation")
    axes[0, 0].set_ylim(max(-1.02, lowest - 0.05), 1.02)  # shared by all panels
    style.panel_labels(list(axes.ravel()), titles)
    bars = data.interval_text(data.has(dataset, "pearson_low"))
    median = Line2D(
        [], [], color=style.BLACK, linewidth=1.6, label="median of the heads of a layer"
    )
    notes = [*data.ground(dataset, "pearson"), _rule_text(dataset), _error_text(dataset), bars]
    return style.complete(
        fig, "Correlation of attention with what tokens contribute", notes, [median]
    )


@figure(
    "attribution",
    name="centre",
    title="Where heads look and what they gather: centres of mass by layer",
    caption="Each point is one head: the mean relative position of its attention, and of what contributes to its "
    "output, on the same examples. Lines are means over the heads of a layer.",
    paper="Pascual et al. 2021, Fig 4 and 5",
    needs=("centre",),
)
def contribution_centre(datasets: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Centres of mass of attention and of contributions by layer (Pascual et al. 2021, Fig 4, 5).

    Several datasets (a mapping of label to dataset: models, each on its own language) stand side by
    side on one scale."""

    def chosen(one: xr.Dataset) -> xr.Dataset:
        return one.sel(source=[source for source in data.labels(one, "source") if source in SHOWN])

    lines = f"One point per head; lines: mean over the heads of a layer; dashed: no direction. {EVERY_OFFSET}"
    label = "centre of mass (tokens)\n← before      after →"
    return by_layer(
        datasets, chosen, "centre", "Centre of mass: attention and contributions", label, lines
    )


@figure(
    "attribution",
    name="special",
    title=BY_TYPE,
    caption="For each layer: the share of attention on, and of contributions from, tokens of each type, means over the "
    "heads. Where attention goes to a type of token (an encoder's separators, above all) but the input's contribution "
    "does not come from it, such tokens only carry what they gathered from elsewhere.",
    paper="after Pascual et al. 2021, §9.1",
    needs=("share",),
)
def special_tokens(dataset: xr.Dataset) -> Figure:
    """Shares by token type, `share[source, layer, head, receiver, token_type]`, for all receiving
    tokens."""
    dims = ("source", "layer", "head", "receiver", "token_type")
    values = data.values(dataset, "share", dims)[
        :, :, :, data.labels(dataset, "receiver").index("all")
    ]
    fig, panels = _panels(dataset, values, 2.6, "share of 1")
    series: list[Series] = []
    for ax, own in panels:
        series = [
            Series(
                kind,
                own[..., t],
                None,
                style.TYPE_COLOURS.get(kind, style.GREY),
                style.cycle(style.MARKERS, t),
            )
            for t, kind in enumerate(data.labels(dataset, "token_type"))
            if np.nansum(values[..., t]) > 0  # a decoder's texts have no opening and closing token
        ]
        scatter_by_layer(ax, series)
        ax.set_ylim(0, 1)
        style.layer_axis(ax, data.numbers(dataset, "layer"))
    how = "One point per head; lines: mean over the heads of a layer. No interval drawn; intervals are in the tables"
    notes = [*data.ground(dataset, "share"), _error_text(dataset), how]
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
    values = data.values(dataset, "pattern_share", ("source", "layer", "pattern"))
    fig, panels = _panels(dataset, values, 2.7, "share of heads")
    for ax, own in panels:
        stack_patterns(ax, own, [str(layer) for layer in data.numbers(dataset, "layer")])
        ax.set_xlabel("layer (0 = first)")
    how = "Patterns as the network of `patterns` names them, not corrected for its errors; intervals are in the tables"
    notes = [*data.ground(dataset, "pattern_share"), how]
    return style.complete(
        fig, "Patterns of attention maps and of contribution maps", notes, pattern_legend(), 5
    )


def _panels(
    dataset: xr.Dataset, values: np.ndarray, height: float, label: str
) -> tuple[Figure, list[tuple[Axes, np.ndarray]]]:
    """A figure with a panel for each of the main readings that has values, `values[source,
    ...]`."""
    found = [(s, values[i]) for i, s in enumerate(data.labels(dataset, "source")) if s in SHOWN]
    found = [(source, own) for source, own in found if np.isfinite(own).any()]
    fig = style.new_figure(style.PAGE, height)
    axes = list(fig.subplots(1, len(found), sharey=True, squeeze=False)[0])
    axes[0].set_ylabel(label)
    style.panel_labels(axes, [LOOKS[source][0] for source, _ in found])
    return fig, [(ax, own) for ax, (_, own) in zip(axes, found, strict=True)]


def _medians(ax: Axes, values: np.ndarray) -> None:
    for layer, row in enumerate(values):
        if np.isfinite(row).any():
            across, height = [layer - 0.4, layer + 0.4], [np.nanmedian(row)] * 2
            ax.plot(
                across, height, color=style.BLACK, linewidth=1.6, zorder=5, solid_capstyle="butt"
            )


def _rule_text(dataset: xr.Dataset) -> str:
    """Which inputs were taken, and how many were not; how to lift the rule is in the result and
    needs no room here."""
    rule = str(dataset.attrs.get("length_rule", "")).replace(LIFTING, "")
    longer = int(dataset.attrs.get("left_out_longer", 0))
    return rule[:1].upper() + rule[1:] + (f"; {longer:,} longer ones left out" if longer else "")


def _error_text(dataset: xr.Dataset) -> str:
    if dataset.attrs.get("method") != "sketch" or "total_variation" not in dataset.attrs:
        return ""
    error = 100 * float(dataset.attrs["total_variation"])
    return f"Input contributions by sketch, median error of a row {error:.1f} % (total variation)"
