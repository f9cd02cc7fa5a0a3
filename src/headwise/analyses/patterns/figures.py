"""Figures of the five patterns of attention maps: typical ones, how often each occurs, in which
heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headwise.analyses.patterns.network import PATTERNS
from headwise.analyses.patterns.store import shade, typical_maps
from headwise.core.errors import ParameterError
from headwise.plots import data, style
from headwise.plots.registry import figure

COLOURS = dict(
    zip(PATTERNS, (style.BLUE, style.VERMILION, style.PINK, style.GREEN, style.PALE), strict=True)
)
# A darker grey for heterogeneous maps, which differs from the paper.
SOLID_COLOURS = COLOURS | {"heterogeneous": "#8c8c8c"}
DARK = ("vertical", "diagonal", "block")  # numbers on these colours are white
# Patterns are distinguishable without colour too.
_HATCHES = dict(zip(PATTERNS, ("", "", "////", "", ""), strict=True))


@figure(
    "patterns",
    name="gallery",
    title="Typical maps of each pattern",
    caption="Of the maps that come with headwise, labelled by vision language models, those with "
    "the highest probability: vertical, diagonal, both, block, heterogeneous. Rows attend to "
    "columns; white is no weight, black the map's 99th percentile. Triangular maps are from causal "
    "models.",
    paper="Kovaleva et al. 2019, Fig 1",
    needs=("proportion",),
)
def gallery(
    dataset: xr.Dataset | None = None, maps: Mapping[str, Sequence[np.ndarray]] | None = None
) -> Figure:
    """Draw typical maps of each pattern (Kovaleva et al. 2019, Fig 1).

    Parameters
    ----------
    dataset : Dataset, optional
        Not used: the maps come with headwise.
    maps : Mapping, optional
        Other maps `{pattern: [[n, n], ...]}`.
    """
    by_pattern: Mapping[str, Sequence[np.ndarray]] = typical_maps() if maps is None else maps
    names = [name for name in PATTERNS if len(by_pattern.get(name, ()))]
    if not names:
        raise ParameterError(f"`maps` must hold maps of at least one of {', '.join(PATTERNS)}.")
    rows = max(len(by_pattern[name]) for name in names)
    cell = style.PAGE / len(names)
    fig = style.new_figure(style.PAGE, rows * cell * 0.98 + 0.75)
    axes = fig.subplots(rows, len(names), squeeze=False)
    for column, name in enumerate(names):
        for row in range(rows):
            ax = axes[row, column]
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(True)
            if row >= len(by_pattern[name]):
                ax.set_visible(False)
                continue
            weights = by_pattern[name][row]
            interpolation = "nearest" if len(weights) < 60 else "antialiased"
            ax.imshow(shade(weights), cmap="Greys", vmin=0, vmax=1, interpolation=interpolation)
            if row == 0:
                ax.set_title(name, fontsize=style.NORMAL)
            ax.set_xlabel(f"{len(weights)} tokens", fontsize=style.SMALL)
    notes = [
        "White: no weight; black: the map's 99th percentile; shades by the square root",
        "Rows are queries, columns keys; triangular maps are from causal models",
    ]
    return style.complete(fig, "Typical attention maps of each pattern", notes)


@figure(
    "patterns",
    name="shares",
    title="How often each pattern occurs",
    caption="Left: the share of all maps of all heads that are classified as each pattern, as "
    "counted and corrected for the classifier's known errors, with 95 % intervals. Right: the "
    "counted shares by layer.",
    paper="Kovaleva et al. 2019, Fig 2",
    needs=("overall",),
)
def shares(dataset: xr.Dataset) -> Figure:
    """Draw the shares of the five patterns over all maps and by layer, from `overall`,
    `overall_corrected` and `proportion`."""
    fig = style.new_figure(style.PAGE, 2.7)
    left, right = fig.subplots(1, 2, width_ratios=(1.15, 1))
    is_corrected = not np.isnan(data.values(dataset, "overall_corrected", ("pattern",))).all()
    _draw_shares(left, dataset, "overall", "as counted", offset=-0.16, filled=True)
    if is_corrected:
        _draw_shares(
            left,
            dataset,
            "overall_corrected",
            "corrected for confusion",
            offset=0.16,
            filled=False,
        )
    left.set_yticks(np.arange(len(PATTERNS)), PATTERNS)
    left.invert_yaxis()
    left.set_xlim(-0.02 * left.get_xlim()[1], None)  # the marker of a share of 0 is not cut
    left.set_xlabel("share of maps")
    left.grid(axis="x")
    left.legend(loc="lower right")
    by_layer = np.nanmean(data.values(dataset, "proportion", ("layer", "head", "pattern")), axis=1)
    stack_patterns(right, by_layer, [str(layer) for layer in data.numbers(dataset, "layer")])
    right.set_xlabel("layer (0 = first)")
    right.set_ylabel("share of maps")
    style.panel_labels([left, right], ["all heads together", "by layer"])

    intervals = "Intervals: 95 %, over examples or documents"
    if is_corrected:
        intervals += "; of the corrected shares also over the labelled heads behind the correction"
    else:
        intervals += "; as counted, since a correction would do more harm than good here"
    n_examples = int(np.max(dataset["overall_n"].values)) if "overall_n" in dataset else 0
    count_text = f"n = {n_examples:,} examples" if n_examples else ""
    notes = [data.source_text(dataset), count_text, intervals]
    return style.complete(
        fig,
        "The five patterns of attention maps",
        notes,
        pattern_legend(),
        columns=len(PATTERNS),
    )


def _draw_shares(
    ax: Axes, dataset: xr.Dataset, name: str, label: str, offset: float, filled: bool
) -> None:
    """Draw the share of each pattern as a point with its interval, `offset` below its line."""
    values = data.values(dataset, name, ("pattern",))
    interval = data.interval(dataset, name, ("pattern",))
    for place, pattern in enumerate(PATTERNS):
        colour = style.GREY if pattern == "heterogeneous" else COLOURS[pattern]
        if interval is not None:
            low, high = interval
            ax.hlines(place + offset, low[place], high[place], color=colour, linewidth=1.2)
        (point,) = ax.plot(
            values[place],
            place + offset,
            "o" if filled else "D",
            color=colour,
            markerfacecolor=colour if filled else "white",
            markersize=4.5,
        )
        point.set_label(label if place == 0 else "_")


@figure(
    "patterns",
    name="heads",
    title="The commonest pattern of each head",
    caption="Each cell is a head, coloured by the pattern that most of its maps show; the paler, the "
    "smaller its share.",
    paper="after Kovaleva et al. 2019, §4.1",
    needs=("proportion",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Draw the most frequent pattern of each head, with its share printed if it fits, from
    `proportion`."""
    proportion = data.values(dataset, "proportion", ("layer", "head", "pattern"))
    n_layers, n_heads = proportion.shape[:2]
    is_known = ~np.isnan(proportion).any(-1)
    top = np.where(is_known, np.nan_to_num(proportion).argmax(-1), 0)
    top_share = np.where(is_known, np.nan_to_num(proportion).max(-1), 0.0)
    colours = np.array([to_rgb(SOLID_COLOURS[name]) for name in PATTERNS])[top]
    strength = np.clip((top_share - 0.2) / 0.8, 0.08, 1)[..., None] * 0.85
    cell_colours = np.where(is_known[..., None], 1 - strength * (1 - colours), 1.0)

    cell = min(0.42, (style.PAGE - 0.7) / n_heads)
    width = max(style.COLUMN, n_heads * cell + 0.8)
    fig, ax = style.one_panel(width, n_layers * min(cell, 0.3) + 1.25)
    ax.imshow(cell_colours, aspect="auto", interpolation="nearest")
    if cell >= 0.28 and n_layers * n_heads <= 600:
        for layer, head in zip(*np.nonzero(is_known), strict=True):
            is_dark = strength[layer, head, 0] > 0.55 and PATTERNS[top[layer, head]] in DARK
            ink = "white" if is_dark else style.INK
            _print_percent(ax, head, layer, top_share[layer, head], ink)
    ax.set_xticks(range(n_heads), [str(head) for head in data.numbers(dataset, "head")])
    ax.set_yticks(range(n_layers), [str(layer) for layer in data.numbers(dataset, "layer")])
    ax.set_xlabel("head")
    ax.set_ylabel("layer (0 at the top)")
    how_to_read = (
        "Numbers: per cent of the examples, as counted; paler: a smaller share; intervals are in "
        "the tables"
    )
    notes = [*data.source_notes(dataset, "proportion"), how_to_read]
    legend = [Patch(facecolor=SOLID_COLOURS[name], label=name) for name in PATTERNS]
    return style.complete(fig, "The commonest pattern of each head", notes, legend, columns=3)


def shares_by_corpus(results: Mapping[str, xr.Dataset], corrected: bool = False) -> Figure:
    """Draw the shares of the five patterns for several corpora side by side (Kovaleva et al. 2019,
    Fig 2).

    Parameters
    ----------
    results : Mapping
        `{corpus: dataset of the analysis patterns}`.
    corrected : bool, default False
        Draw `overall_corrected` instead of `overall`.
    """
    if not results:
        raise ParameterError("`results` must hold at least one corpus.")
    name = "overall_corrected" if corrected else "overall"
    with style.context():
        fig, ax = style.one_panel(min(style.PAGE, 1.4 + 0.75 * len(results) + 1), 2.9)
        shares_of_corpora = []
        sources = []
        for corpus, dataset in results.items():
            shares_of_corpora.append(data.values(dataset, name, ("pattern",)))
            source = _source_and_count(dataset)
            if source:
                sources.append(f"{corpus}: {source}")
        stack_patterns(ax, np.stack(shares_of_corpora), list(results), numbers=True)
        ax.set_ylabel("share of maps")
        kind = "Corrected for the classifier's confusion" if corrected else "As counted"
        notes = [f"{kind}; intervals are in the tables. In per cent", *sources]
        return style.complete(
            fig, "Patterns of attention maps by corpus", notes, pattern_legend(), columns=3
        )


def _source_and_count(dataset: xr.Dataset) -> str:
    texts = [data.source_text(dataset), data.count_text(dataset, "overall")]
    return ", ".join(text for text in texts if text)


def stack_patterns(
    ax: Axes, values: np.ndarray, names: Sequence[str], numbers: bool = False
) -> None:
    """Draw stacked bars of `values[bar, pattern]`."""
    places = np.arange(len(names))
    bottom = np.zeros(len(names))
    for number, pattern in enumerate(PATTERNS):
        height = np.nan_to_num(values[:, number])
        colour = COLOURS[pattern]
        hatch = _HATCHES[pattern]
        ax.bar(
            places, height, 0.8, bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4
        )
        if numbers:
            ink = "white" if pattern in DARK else style.INK
            # A box keeps the number readable on a hatch.
            box = {"facecolor": colour, "edgecolor": "none", "pad": 0.8} if hatch else None
            for bar in np.flatnonzero(height > 0.04).tolist():
                middle = bottom[bar] + height[bar] / 2
                _print_percent(ax, bar, middle, height[bar], ink, box)
        bottom = bottom + height
    step = max(1, -(-len(names) // 13))
    ax.set_xticks(places[::step], list(names)[::step])
    ax.set_ylim(0, 1)


def _print_percent(
    ax: Axes, x: float, y: float, share: float, ink: str, box: dict[str, Any] | None = None
) -> None:
    """Print a share in per cent in the middle of its cell or bar."""
    ax.text(
        x,
        y,
        f"{100 * share:.0f}",
        ha="center",
        va="center",
        fontsize=style.SMALL,
        color=ink,
        bbox=box,
    )


def pattern_legend() -> list[Patch]:
    """Return the colours and hatches of `stack_patterns`."""
    handles = []
    for name in PATTERNS:
        handles.append(
            Patch(facecolor=COLOURS[name], hatch=_HATCHES[name], edgecolor="white", label=name)
        )
    return handles
