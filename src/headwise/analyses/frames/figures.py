"""Figures of heads that follow frame semantics (Kovaleva et al. 2019, Fig 3-4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headwise.analyses.frames.analysis import too_few
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure
from headwise.text.example import Example

_LH = ("layer", "head")


@figure(
    "frames",
    name="heads",
    title="Heads that link a frame's target to its elements",
    caption="Each cell is one head: the largest weight from a target to one of its core elements, mean over "
    "sentences, and how far that is above what the same words give unlinked: links moved along the sentence, the same "
    "element seen from other words, the same target looking at others. Heads above the 99th percentile are named.",
    paper="Kovaleva et al. 2019, Fig 3",
    needs=("score",),
)
def frame_scores(dataset: xr.Dataset) -> Figure:
    """`score[layer, head]` and, where the permutation test was made, `score − expected`.

    The heads of `above` and their p-values are named below.
    """
    score = data.values(dataset, "score", _LH)
    panels = {"target to element": dataset["score"]}
    if "expected" in dataset.variables:
        panels["beyond the same words unlinked"] = dataset["score"] - dataset["expected"]
    p_adjusted = (
        data.values(dataset, "p_adjusted", _LH)
        if "p_adjusted" in dataset.variables
        else score * np.nan
    )
    named = []
    for place, name in _marked(dataset, "above").items():
        p = f", p = {p_adjusted[place]:.3f} corrected" if np.isfinite(p_adjusted[place]) else ""
        named.append((score[place], f"{name} {score[place]:.3f}{p}"))
    best = "; ".join(text for _, text in sorted(named, reverse=True))
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "score", each="sentences"),
        f"Above the percentile ({dataset.attrs.get('cut', float('nan')):.3f}): {best}"
        if best
        else "",
        too_few(dataset) or _standing_out(dataset),
        "Each cell: mean over sentences of one head; intervals are in the tables",
    ]
    return heatmap_panels(
        panels,
        title="Heads that follow frames",
        label="attention weight",
        annotate="none",
        notes=notes,
    )


def _marked(dataset: xr.Dataset, name: str) -> dict[tuple[int, int], str]:
    """The heads for which a variable holds: their names by their places."""
    layers, heads = data.numbers(dataset, "layer"), data.numbers(dataset, "head")
    places = np.argwhere(data.values(dataset, name, _LH) > 0).tolist()
    return {(layer, head): head_name(layers[layer], heads[head]) for layer, head in places}


def _standing_out(dataset: xr.Dataset) -> str:
    """Which heads stand out, and what random heads reach."""
    if "stands_out" not in dataset.variables:
        return ""
    names = ", ".join(_marked(dataset, "stands_out").values())
    bound = dataset.attrs.get("random_bound")
    beside = f"; random heads stay below +{bound:.2f}" if bound is not None else ""
    return f"Standing out, after correction: {names or 'none'}{beside}"


def frame_annotation(example: Example) -> Figure:
    """A sentence with its frame: the target and each element boxed and named (Kovaleva et al. 2019,
    Fig 4).

    Parameters
    ----------
    example : Example
        An example with `words` and `frames`.
    """
    if not example.frames:
        raise ParameterError(f"{example.where}: the example has no frame links to draw.")
    with style.context():
        words = list(example.all_words)
        gap = 0.09
        starts = np.concatenate(
            [[0.0], np.cumsum([style.text_width(word, style.LARGE) + gap for word in words])]
        )
        total = max(float(starts[-1]), 2.2)
        fig, ax = style.one_panel(min(total + 0.5, style.PAGE), 1.45)
        ax.set_xlim(-0.1, total + 0.1)
        ax.set_ylim(-0.75, 0.75)
        ax.axis("off")
        for word, start in zip(words, starts, strict=False):
            ax.text(start, 0, word, ha="left", va="center", fontsize=style.LARGE)
        boxes: dict[
            tuple[int, int, str], tuple[str, int, str]
        ] = {}  # each once: (span, label) -> colour, side, line
        for number, link in enumerate(example.frames):
            element = style.cycle(style.OKABE_ITO, number), -1, "-" if link.core else ":"
            boxes.setdefault((*link.target, link.frame), (style.INK, 1, "-"))
            boxes.setdefault((*link.span, link.element), element)
        for (a, b, label), (colour, up, line) in boxes.items():
            left, right = starts[a] - 0.035, starts[b] - gap + 0.035
            box: dict[str, Any] = {
                "fill": False,
                "edgecolor": colour,
                "linewidth": 1.1,
                "linestyle": line,
            }
            ax.add_patch(Rectangle((left, -0.22), right - left, 0.44, **box))
            name: dict[str, Any] = {"fontsize": style.SMALL, "color": colour, "fontweight": "bold"}
            low = "bottom" if up > 0 else "top"
            ax.text(
                (left + right) / 2, 0.36 * up, label.replace("_", " "), ha="center", va=low, **name
            )
        frame = example.frames[0].frame.replace("_", " ")
        note = f"Frame: {frame}; above: the target; below: its elements (dotted: not core)"
        return style.complete(fig, "", [note])


def best_heads(score: np.ndarray) -> list[tuple[int, int]]:
    """The two heads with the highest `score[layer, head]`."""
    order = np.argsort(-np.nan_to_num(score, nan=-1.0), axis=None, kind="stable")[:2]
    return [(int(i) // score.shape[1], int(i) % score.shape[1]) for i in order]


def frame_heads(
    dataset: xr.Dataset,
    tokens: Sequence[str],
    maps: np.ndarray,
    target: Sequence[int],
    elements: Sequence[int] | Mapping[int, str],
    heads: Sequence[tuple[int, int]] | None = None,
    frame: str = "",
) -> Figure:
    """The two best heads on one sentence: each head's map, and where the target's attention goes.

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
    count = len(tokens)
    if maps.ndim != 4 or maps.shape[2:] != (count, count):
        raise ParameterError(
            f"`maps` must be [layer, head, {count}, {count}] for these tokens; it is {list(maps.shape)}."
        )
    score = data.values(dataset, "score", _LH)
    heads = best_heads(score) if heads is None else heads
    colours = [
        style.VERMILION if position in set(elements) else style.PALE for position in range(count)
    ]
    named = elements if isinstance(elements, Mapping) else {}
    slanted: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    framed: dict[str, Any] = {"fill": False, "edgecolor": style.VERMILION, "linewidth": 1.0}
    with style.context():
        fig = style.new_figure(style.PAGE, 4.4)
        axes = fig.subplots(2, len(heads), height_ratios=[2.4, 1], squeeze=False)
        for (layer, head), top, low in zip(heads, *axes, strict=True):
            plane = maps[layer, head]
            top.imshow(plane, cmap=style.SEQUENTIAL, vmin=0, aspect="auto")
            top.set_xticks(range(count), tokens, **slanted)
            top.set_yticks(range(count), tokens)
            for position in target:
                top.add_patch(Rectangle((-0.5, position - 0.5), count, 1, **framed))
            low.bar(range(count), plane[list(target)].max(0), color=colours)
            low.set_xticks(range(count), tokens, **slanted)
            low.set_ylabel("weight")
            for position, name in named.items():
                if name != named.get(position - 1):  # once for an element of several tokens
                    here: dict[str, Any] = {
                        "ha": "center",
                        "va": "bottom",
                        "color": style.VERMILION,
                    }
                    low.text(
                        position,
                        plane[list(target)].max(0)[position],
                        name,
                        fontsize=style.SMALL,
                        **here,
                    )
            low.margins(y=0.25)
            top.set_title(f"{head_name(layer, head)} (score {score[layer, head]:.3f})")
        how = (
            "Above: each map, dark for no weight to bright for its own largest; framed: the target's row. "
            "Below: the weights of that row; red: its elements. One sentence, so no interval"
        )
        title = "The heads that link targets to elements most" + (
            f": frame {frame}" if frame else ""
        )
        return style.complete(fig, title, [data.source_text(dataset), how])
