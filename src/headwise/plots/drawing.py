"""The line drawing of a head on a sentence: tokens left and right, a line per weight, as dark as the weight is large (Clark et al. 2019, Fig 1, 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from headwise.core.errors import ParameterError
from headwise.plots import style

Highlight = Sequence[int] | Mapping[int, str]
_LINE = 0.125  # inches from token to token
_PLAIN = "#2f5d8a"


def draw_head(
    weights: ArrayLike | Mapping[str, ArrayLike],
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    highlight: Highlight = (),
    side: Literal["from", "to"] = "from",
    threshold: float = 0.01,
    title: str = "",
    notes: Iterable[str] = (),
) -> Figure:
    """Draw one head, or several side by side, on a sentence.

    Parameters
    ----------
    weights
        `[query, key]` of one head, or a mapping of a head's name (`L7H9`) to its weights.
    tokens
        The tokens as written, left (looking) and right (looked at).
    key_tokens
        The tokens on the right where they differ (cross-attention).
    highlight
        Positions to colour, or a mapping of position to colour; their lines are coloured and all others turn grey.
    side
        Whether `highlight` names tokens that look (`from`, left) or that are looked at (`to`, right).
    threshold
        Weights below it are not drawn.

    A line's opacity is its weight; NaN weights (keys that a row may not see) are not drawn.
    """
    heads = (
        {str(name): np.asarray(matrix, dtype=float) for name, matrix in weights.items()}
        if isinstance(weights, Mapping)
        else None
    )
    heads = heads if heads is not None else {"": np.asarray(weights, dtype=float)}
    right = list(tokens if key_tokens is None else key_tokens)
    if not heads:
        raise ParameterError("`weights` must name at least one head; it is empty.")
    for name, matrix in heads.items():
        if matrix.shape != (len(tokens), len(right)):
            raise ParameterError(
                f"The weights of {name or 'the head'} must be {len(tokens)} queries by {len(right)} keys, one per token; they are {matrix.shape}."
            )
    if side not in ("from", "to"):
        raise ParameterError(f"`side` must be one of from, to; it is {side!r}.")
    colours = _colours(highlight, len(tokens) if side == "from" else len(right))
    with style.context():
        longest = max(style.text_width(_shown(token), style.NORMAL) for token in (*tokens, *right, ""))
        panel = 2 * longest + 1.15
        columns = max(1, min(len(heads), int(style.PAGE // panel)))
        rows = -(-len(heads) // columns)
        tall = max(len(tokens), len(right), 2) * _LINE
        width = max(style.COLUMN, columns * panel + 0.2)
        fig = style.new_figure(width, rows * (tall + 0.42) + 0.75)
        axes = fig.subplots(rows, columns, squeeze=False).ravel()
        for ax, (name, matrix) in zip(axes, heads.items(), strict=False):
            _draw(ax, matrix, list(tokens), right, colours, side, threshold)
            ax.set_title(name, loc="center", fontweight="bold")
        for ax in axes[len(heads) :]:
            ax.remove()
        how = f"Left: the token that looks; right: the token looked at; opacity of a line: attention weight, 0 to 1 (under {threshold:g} not drawn)"
        style.annotate_figure(fig, title, [*notes, "One input", how])
        return style.finish(fig)


def _colours(highlight: Highlight, count: int) -> dict[int, str]:
    """Position to colour; positions without a given colour get one of the palette."""
    if isinstance(highlight, Mapping):
        colours = {int(position): colour for position, colour in highlight.items()}
    else:
        colours = {
            int(position): style.cycle((style.VERMILION, style.BLUE, style.GREEN, style.PINK), i)
            for i, position in enumerate(highlight)
        }
    for position in colours:
        if not 0 <= position < count:
            raise ParameterError(f"`highlight` must name positions from 0 to {count - 1}; it names {position}.")
    return colours


def _draw(
    ax: Axes,
    weights: np.ndarray,
    left: list[str],
    right: list[str],
    colours: dict[int, str],
    side: str,
    threshold: float,
) -> None:
    queries, keys = np.nonzero(np.nan_to_num(weights) >= max(threshold, 1e-9))
    chosen = queries if side == "from" else keys
    base = to_rgb("#808080") if colours else to_rgb(_PLAIN)
    order = np.argsort(np.isin(chosen, list(colours)), kind="stable")  # coloured lines on top
    queries, keys, chosen = queries[order], keys[order], chosen[order]
    faint = 0.45 if colours else 1.0
    lines = [((0.0, float(q)), (1.0, float(k))) for q, k in zip(queries, keys, strict=True)]
    rgba = [
        (
            *(to_rgb(colours[c]) if c in colours else base),
            float(np.clip(weights[q, k], 0, 1)) * (1.0 if c in colours else faint),
        )
        for q, k, c in zip(queries, keys, chosen.tolist(), strict=True)
    ]
    ax.add_collection(LineCollection(lines, colors=rgba, linewidths=1.4, capstyle="round"))
    coloured = {"from": (colours, {}), "to": ({}, colours)}[side]
    for x, words, marked, align in ((-0.04, left, coloured[0], "right"), (1.04, right, coloured[1], "left")):
        for position, word in enumerate(words):
            weight = "bold" if position in marked else "normal"
            ax.text(
                x,
                position,
                _shown(word),
                ha=align,
                va="center_baseline",
                color=marked.get(position, style.INK),
                fontweight=weight,
                fontsize=style.NORMAL,
            )
    ax.set_xlim(0, 1)
    ax.set_ylim(max(len(left), len(right)) - 0.4, -0.6)
    ax.axis("off")


def _shown(token: str) -> str:
    """A token as it can stand on one line: line ends and tabs made visible, very long ones cut."""
    text = token.replace("\n", "⏎").replace("\t", "⇥").replace("\r", "")
    return text if len(text) <= 24 else text[:23] + "…"
