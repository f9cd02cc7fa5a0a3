"""Figures of heads that follow frame semantics (Kovaleva et al. 2019, Fig 3-4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headwise.analyses.frames.analysis import too_few_text
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure
from headwise.text.example import Example

HEADS = ("layer", "head")
WORD_GAP = 0.09  # inches between two words of a drawn sentence


@figure(
    "frames",
    name="heads",
    title="Heads that link a frame's target to its elements",
    caption="Each cell is one head: the largest weight from a target to one of its core elements, "
    "mean over sentences, and how far that is above what the same words give unlinked: links moved "
    "along the sentence, the same element seen from other words, the same target attending to "
    "others. Heads above the 99th percentile are named.",
    paper="Kovaleva et al. 2019, Fig 3",
    needs=("score",),
)
def frame_scores(dataset: xr.Dataset) -> Figure:
    """Draw `score[layer, head]` and, if the permutation test was made, `score − expected`.

    The heads of `above` and their p-values are named below.
    """
    panels = {"target to element": dataset["score"]}
    if "expected" in dataset.variables:
        panels["beyond the same words unlinked"] = dataset["score"] - dataset["expected"]
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "score", each="sentences"),
        _above_percentile_text(dataset),
        too_few_text(dataset) or _significant_text(dataset),
        "Each cell: mean over sentences of one head; intervals are in the tables",
    ]
    return heatmap_panels(
        panels,
        title="Heads that follow frames",
        label="attention weight",
        annotate="none",
        notes=notes,
    )


def _marked_heads(dataset: xr.Dataset, name: str) -> dict[tuple[int, int], str]:
    """Return the names of the heads for which a variable is true, by their places."""
    layers = data.numbers(dataset, "layer")
    heads = data.numbers(dataset, "head")
    places = np.argwhere(data.values(dataset, name, HEADS) > 0).tolist()
    return {(layer, head): head_name(layers[layer], heads[head]) for layer, head in places}


def _above_percentile_text(dataset: xr.Dataset) -> str:
    """Name the heads above the percentile, the highest score first."""
    score = data.values(dataset, "score", HEADS)
    p_adjusted = np.full(score.shape, np.nan)
    if "p_adjusted" in dataset.variables:
        p_adjusted = data.values(dataset, "p_adjusted", HEADS)
    scored_texts = []
    for place, name in _marked_heads(dataset, "above").items():
        text = f"{name} {score[place]:.3f}"
        if np.isfinite(p_adjusted[place]):
            text += f", p = {p_adjusted[place]:.3f} corrected"
        scored_texts.append((score[place], text))
    if not scored_texts:
        return ""
    texts = [text for _, text in sorted(scored_texts, reverse=True)]
    cut = dataset.attrs.get("cut", float("nan"))
    return f"Above the percentile ({cut:.3f}): {'; '.join(texts)}"


def _significant_text(dataset: xr.Dataset) -> str:
    """Say which heads stand out, and what random heads reach."""
    if "stands_out" not in dataset.variables:
        return ""
    names = ", ".join(_marked_heads(dataset, "stands_out").values())
    text = f"Standing out, after correction: {names or 'none'}"
    bound = dataset.attrs.get("random_bound")
    if bound is not None:
        text += f"; random heads stay below +{bound:.2f}"
    return text


# --- one sentence with its frame ------------------------------------------------------------------


def frame_annotation(example: Example) -> Figure:
    """Draw a sentence with its frame: the target and each element boxed and named.

    As in Kovaleva et al. 2019, Fig 4.

    Parameters
    ----------
    example : Example
        An example with `words` and `frames`.
    """
    if not example.frames:
        raise ParameterError(f"{example.where}: the example has no frame links to draw.")
    with style.context():
        words = list(example.all_words)
        widths = [style.text_width(word, style.LARGE) + WORD_GAP for word in words]
        starts = np.concatenate([[0.0], np.cumsum(widths)])
        total = max(float(starts[-1]), 2.2)
        fig, ax = style.one_panel(min(total + 0.5, style.PAGE), 1.45)
        ax.set_xlim(-0.1, total + 0.1)
        ax.set_ylim(-0.75, 0.75)
        ax.axis("off")
        for word, start in zip(words, starts, strict=False):
            ax.text(start, 0, word, ha="left", va="center", fontsize=style.LARGE)
        # Several links may share a span: each box is drawn once.
        drawn: set[tuple[int, int, str]] = set()
        for number, link in enumerate(example.frames):
            target = (*link.target, link.frame)
            if target not in drawn:
                drawn.add(target)
                _draw_box(ax, starts, target, style.INK, above=True)
            element = (*link.span, link.element)
            if element not in drawn:
                drawn.add(element)
                colour = style.cycle(style.OKABE_ITO, number)
                line = "-" if link.core else ":"
                _draw_box(ax, starts, element, colour, above=False, line=line)
        frame = example.frames[0].frame.replace("_", " ")
        note = f"Frame: {frame}; above: the target; below: its elements (dotted: not core)"
        return style.complete(fig, "", [note])


def _draw_box(
    ax: Axes,
    starts: np.ndarray,
    span: tuple[int, int, str],
    colour: str,
    above: bool,
    line: str = "-",
) -> None:
    """Draw a box around the words of (first, end, label), and the label above or below."""
    first, end, label = span
    left = starts[first] - 0.035
    right = starts[end] - WORD_GAP + 0.035
    ax.add_patch(
        Rectangle(
            (left, -0.22),
            right - left,
            0.44,
            fill=False,
            edgecolor=colour,
            linewidth=1.1,
            linestyle=line,
        )
    )
    ax.text(
        (left + right) / 2,
        0.36 if above else -0.36,
        label.replace("_", " "),
        ha="center",
        va="bottom" if above else "top",
        fontsize=style.SMALL,
        color=colour,
        fontweight="bold",
    )


# --- two heads on one sentence --------------------------------------------------------------------


def best_heads(score: np.ndarray) -> list[tuple[int, int]]:
    """Return the two heads with the highest `score[layer, head]`."""
    order = np.argsort(-np.nan_to_num(score, nan=-1.0), axis=None, kind="stable")[:2]
    return [divmod(int(place), score.shape[1]) for place in order]


def frame_heads(
    dataset: xr.Dataset,
    tokens: Sequence[str],
    maps: np.ndarray,
    target: Sequence[int],
    elements: Sequence[int] | Mapping[int, str],
    heads: Sequence[tuple[int, int]] | None = None,
    frame: str = "",
) -> Figure:
    """Draw the two best heads on one sentence: each head's map, and where the target attends.

    The sides of Kovaleva et al. 2019, Fig 3.

    Parameters
    ----------
    dataset : xarray.Dataset
        The group `frames` of an atlas, which says which heads are best.
    tokens : sequence of str
        The sentence's tokens.
    maps : numpy.ndarray
        Its maps `[layer, head, query, key]`.
    target : sequence of int
        Positions of the tokens of the target.
    elements : sequence of int, or mapping of int to str
        Positions of the tokens of its elements, or the name of the element at each position.
    heads : sequence of (int, int), optional
        (layer, head) pairs to draw instead of the two best.
    frame : str, default ""
        The frame's name, for the title.
    """
    maps = np.asarray(maps, dtype=float)
    n_tokens = len(tokens)
    if maps.ndim != 4 or maps.shape[2:] != (n_tokens, n_tokens):
        raise ParameterError(
            f"`maps` must be [layer, head, {n_tokens}, {n_tokens}] for these tokens; it is "
            f"{list(maps.shape)}."
        )
    score = data.values(dataset, "score", HEADS)
    if heads is None:
        heads = best_heads(score)
    with style.context():
        fig = style.new_figure(style.PAGE, 4.4)
        axes = fig.subplots(2, len(heads), height_ratios=[2.4, 1], squeeze=False)
        for column, (layer, head) in enumerate(heads):
            weights = maps[layer, head]
            upper, lower = axes[:, column]
            _draw_map(upper, weights, tokens, target)
            _draw_target_row(lower, weights[list(target)].max(0), tokens, elements)
            upper.set_title(f"{head_name(layer, head)} (score {score[layer, head]:.3f})")
        how_to_read = (
            "Above: each map, dark for no weight to bright for its own largest; framed: the "
            "target's row. Below: the weights of that row; red: its elements. One sentence, so no "
            "interval"
        )
        title = "The heads that link targets to elements most"
        if frame:
            title += f": frame {frame}"
        return style.complete(fig, title, [data.source_text(dataset), how_to_read])


_SLANTED: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}


def _draw_map(ax: Axes, weights: np.ndarray, tokens: Sequence[str], target: Sequence[int]) -> None:
    """Draw the map of one head, with the rows of the target framed."""
    n_tokens = len(tokens)
    ax.imshow(weights, cmap=style.SEQUENTIAL, vmin=0, aspect="auto")
    ax.set_xticks(range(n_tokens), tokens, **_SLANTED)
    ax.set_yticks(range(n_tokens), tokens)
    for position in target:
        corner = (-0.5, position - 0.5)
        frame = Rectangle(corner, n_tokens, 1, fill=False, edgecolor=style.VERMILION, linewidth=1.0)
        ax.add_patch(frame)


def _draw_target_row(
    ax: Axes,
    row: np.ndarray,
    tokens: Sequence[str],
    elements: Sequence[int] | Mapping[int, str],
) -> None:
    """Draw the weights from the target as bars, those on its elements in red and named."""
    positions = range(len(tokens))
    element_positions = set(elements)
    colours = []
    for position in positions:
        colours.append(style.VERMILION if position in element_positions else style.PALE)
    ax.bar(positions, row, color=colours)
    ax.set_xticks(positions, tokens, **_SLANTED)
    ax.set_ylabel("weight")
    names = elements if isinstance(elements, Mapping) else {}
    for position, name in names.items():
        # An element of several tokens is named once.
        if name != names.get(position - 1):
            ax.text(
                position,
                row[position],
                name,
                fontsize=style.SMALL,
                ha="center",
                va="bottom",
                color=style.VERMILION,
            )
    ax.margins(y=0.25)
