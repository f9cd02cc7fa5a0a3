"""Figures of the five kinds of attention map: typical ones, how often each occurs, in which
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
DARK = ("vertical", "diagonal", "block")  # print on them is white
_HATCHES = dict(
    zip(PATTERNS, ("", "", "////", "", ""), strict=True)
)  # told apart without colour too


@figure(
    "patterns",
    name="gallery",
    title="Typical maps of each kind",
    caption="Of the labelled maps that come with headwise, those the classifier is surest of: vertical, diagonal, "
    "both, block, heterogeneous. Rows attend to columns; white is no weight, black the map's 99th percentile. "
    "Triangular maps are from causal models.",
    paper="Kovaleva et al. 2019, Fig 1",
    needs=("proportion",),
)
def gallery(
    dataset: xr.Dataset | None = None, maps: Mapping[str, Sequence[np.ndarray]] | None = None
) -> Figure:
    """Typical maps per class (Kovaleva et al. 2019, Fig 1).

    Parameters
    ----------
    dataset : Dataset, optional
        Not looked at: the maps come with headwise.
    maps : Mapping, optional
        Other maps `{pattern: [[n, n], ...]}`.
    """
    shown = typical_maps() if maps is None else {name: list(own) for name, own in maps.items()}
    names = [name for name in PATTERNS if shown.get(name)]
    if not names:
        raise ParameterError(f"`maps` must hold maps of at least one of {', '.join(PATTERNS)}.")
    rows = max(len(shown[name]) for name in names)
    cell = style.PAGE / len(names)
    fig = style.new_figure(style.PAGE, rows * cell * 0.98 + 0.75)
    axes = fig.subplots(rows, len(names), squeeze=False)
    for column, name in enumerate(names):
        for row in range(rows):
            ax = axes[row, column]
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(True)
            if row >= len(shown[name]):
                ax.set_visible(False)
                continue
            weights = shown[name][row]
            smooth = "nearest" if len(weights) < 60 else "antialiased"
            ax.imshow(shade(weights), cmap="Greys", vmin=0, vmax=1, interpolation=smooth)
            if row == 0:
                ax.set_title(name, fontsize=style.NORMAL)
            ax.set_xlabel(f"{len(weights)} tokens", fontsize=style.SMALL)
    note = "White: no weight; black: the map's 99th percentile; shades by the square root"
    how = "Rows are queries, columns keys; triangular maps are from causal models"
    return style.complete(fig, "Typical attention maps of each kind", [note, how])


@figure(
    "patterns",
    name="shares",
    title="How often each kind of map occurs",
    caption="Left: the share of all maps of all heads that the classifier calls each kind, as counted and corrected "
    "for its known mistakes, with 95 % intervals. Right: the counted shares by layer.",
    paper="Kovaleva et al. 2019, Fig 2",
    needs=("overall",),
)
def shares(dataset: xr.Dataset) -> Figure:
    """Shares of the five kinds over all maps and by layer; draws `overall`, `overall_corrected` and
    `proportion`."""
    fig = style.new_figure(style.PAGE, 2.7)
    left, right = fig.subplots(1, 2, width_ratios=(1.15, 1))
    place = np.arange(len(PATTERNS))
    for offset, name, label, marker in (
        (-0.16, "overall", "as counted", "o"),
        (0.16, "overall_corrected", "corrected for confusion", "D"),
    ):
        value = data.values(dataset, name, ("pattern",))
        if (
            name == "overall_corrected" and np.isnan(value).all()
        ):  # only counts, where a correction does not help
            continue
        ends = data.interval(dataset, name, ("pattern",))
        for k, pattern in enumerate(PATTERNS):
            colour = style.GREY if pattern == "heterogeneous" else COLOURS[pattern]
            if ends is not None:
                left.hlines(k + offset, ends[0][k], ends[1][k], color=colour, linewidth=1.2)
            face = colour if marker == "o" else "white"
            (point,) = left.plot(
                value[k], k + offset, marker, color=colour, markerfacecolor=face, markersize=4.5
            )
            point.set_label(label if k == 0 else "_")
    left.set_yticks(place, PATTERNS)
    left.invert_yaxis()
    left.set_xlim(-0.02 * left.get_xlim()[1], None)  # a share of 0 is drawn whole
    left.set_xlabel("share of maps")
    left.grid(axis="x")
    left.legend(loc="lower right")
    by_layer = np.nanmean(data.values(dataset, "proportion", ("layer", "head", "pattern")), axis=1)
    stack_patterns(right, by_layer, [str(k) for k in data.numbers(dataset, "layer")])
    right.set_xlabel("layer (0 = first)")
    right.set_ylabel("share of maps")
    style.panel_labels([left, right], ["all heads together", "by layer"])
    count = int(np.max(dataset["overall_n"].values)) if "overall_n" in dataset else 0
    bars = "Intervals: 95 %, over examples; of the corrected shares also over the labelled heads behind the correction"
    if np.isnan(data.values(dataset, "overall_corrected", ("pattern",))).all():
        bars = "Intervals: 95 %, over examples; as counted, since a correction would do more harm than good here"
    notes = [data.source_text(dataset), f"n = {count:,} examples" if count else "", bars]
    return style.complete(
        fig, "The five kinds of attention map", notes, pattern_legend(), columns=len(PATTERNS)
    )


@figure(
    "patterns",
    name="heads",
    title="The commonest kind of map of each head",
    caption="Each cell is a head, coloured by the kind that most of its maps show; the paler, the smaller its share.",
    paper="after Kovaleva et al. 2019, §4.1",
    needs=("proportion",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """The most frequent pattern of each head, with its share printed where it fits; draws
    `proportion`."""
    proportion = data.values(dataset, "proportion", ("layer", "head", "pattern"))
    layers, count = proportion.shape[:2]
    known = ~np.isnan(proportion).any(-1)
    top = np.where(known, np.nan_to_num(proportion).argmax(-1), 0)
    share = np.where(known, np.nan_to_num(proportion).max(-1), 0.0)
    solid = COLOURS | {"heterogeneous": "#8c8c8c"}
    colours = np.array([to_rgb(solid[name]) for name in PATTERNS])[top]
    strength = np.clip((share - 0.2) / 0.8, 0.08, 1)[..., None] * 0.85
    cell = min(0.42, (style.PAGE - 0.7) / count)
    fig, ax = style.one_panel(max(style.COLUMN, count * cell + 0.8), layers * min(cell, 0.3) + 1.25)
    ax.imshow(
        np.where(known[..., None], 1 - strength * (1 - colours), 1.0),
        aspect="auto",
        interpolation="nearest",
    )
    if cell >= 0.28 and layers * count <= 600:
        for layer, head in zip(*np.nonzero(known), strict=True):
            dark = strength[layer, head, 0] > 0.55 and PATTERNS[top[layer, head]] in DARK
            _print(ax, head, layer, share[layer, head], "white" if dark else style.INK)
    ax.set_xticks(range(count), [str(h) for h in data.numbers(dataset, "head")])
    ax.set_yticks(range(layers), [str(k) for k in data.numbers(dataset, "layer")])
    ax.set_xlabel("head")
    ax.set_ylabel("layer (0 at the top)")
    how = "Numbers: per cent of the examples, as counted; paler: a smaller share; intervals are in the tables"
    notes = [*data.ground(dataset, "proportion"), how]
    legend = [Patch(facecolor=solid[name], label=name) for name in PATTERNS]
    return style.complete(fig, "The commonest kind of map of each head", notes, legend, columns=3)


def shares_by_corpus(results: Mapping[str, xr.Dataset], corrected: bool = False) -> Figure:
    """Shares of the five kinds for several corpora side by side (Kovaleva et al. 2019, Fig 2).

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
        values = np.stack(
            [data.values(dataset, name, ("pattern",)) for dataset in results.values()]
        )
        stack_patterns(ax, values, list(results), numbers=True)
        ax.set_ylabel("share of maps")
        what = "Corrected for the classifier's confusion" if corrected else "As counted"
        behind = [
            f"{corpus}: {_behind(dataset)}"
            for corpus, dataset in results.items()
            if _behind(dataset)
        ]
        notes = [f"{what}; intervals are in the tables. In per cent", *behind]
        return style.complete(
            fig, "Kinds of attention map by corpus", notes, pattern_legend(), columns=3
        )


def _behind(dataset: xr.Dataset) -> str:
    return ", ".join(filter(None, (data.source_text(dataset), data.count_text(dataset, "overall"))))


def stack_patterns(
    ax: Axes, values: np.ndarray, names: Sequence[str], numbers: bool = False
) -> None:
    """Stacked bars of `values[bar, pattern]`."""
    place = np.arange(len(names))
    below = np.zeros(len(names))
    for k, pattern in enumerate(PATTERNS):
        height = np.nan_to_num(values[:, k])
        colour, hatch = COLOURS[pattern], _HATCHES[pattern]
        ax.bar(
            place, height, 0.8, below, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4
        )
        box = {"facecolor": colour, "edgecolor": "none", "pad": 0.8} if hatch else None
        for bar in np.flatnonzero(height > 0.04).tolist() if numbers else ():
            ink = "white" if pattern in DARK else style.INK
            _print(ax, bar, below[bar] + height[bar] / 2, height[bar], ink, box)
        below = below + height
    step = max(1, -(-len(names) // 13))
    ax.set_xticks(place[::step], list(names)[::step])
    ax.set_ylim(0, 1)


def _print(
    ax: Axes, x: float, y: float, share: float, ink: str, box: dict[str, Any] | None = None
) -> None:
    """A share in per cent, in the middle of its cell or bar."""
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
    """The colours and hatches of `stack_patterns`."""
    return [
        Patch(facecolor=COLOURS[name], hatch=_HATCHES[name], edgecolor="white", label=name)
        for name in PATTERNS
    ]
