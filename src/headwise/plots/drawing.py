"""The line drawing of a head on a sentence: tokens left and right, a line per weight, as dark as
the weight is large (Clark et al. 2019, Fig 1, 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from headwise.core.checks import one_of
from headwise.core.errors import ParameterError
from headwise.plots import style

Highlight = Sequence[int] | Mapping[int, str]
_LINE = 0.125  # inches from token to token
_PLAIN = "#2f5d8a"


def draw_head(
    weights: ArrayLike | Mapping[str, ArrayLike],
    tokens: Sequence[str],
    *,
    keys: Sequence[str] | None = None,
    highlight: Highlight = (),
    side: Literal["from", "to"] = "from",
    threshold: float = 0.01,
    title: str = "",
    what: str = "attention weight",
    notes: Iterable[str] = (),
) -> Figure:
    """Draw one head, or several side by side, on a sentence.

    Parameters
    ----------
    weights : array of [query, key], or mapping of str to such
        The weights of one head, or of several by name (`L7H9`).
    tokens : sequence of str
        The tokens as written, left (looking) and right (looked at).
    keys : sequence of str, optional
        The tokens looked at, where those are others (the source, in cross-attention).
    highlight : sequence of int, or mapping of int to str, default ()
        Positions to colour, or a mapping of position to colour; their lines are coloured and all
        others turn grey.
    side : str, default "from"
        Whether `highlight` names tokens that look (`from`, left) or that are looked at (`to`,
        right).
    threshold : float, default 0.01
        Weights below it are not drawn.
    title : str, default ""
        Above the figure.
    what : str, default "attention weight"
        What the weights are.
    notes : iterable of str, default ()
        Small print below it.

    A line's opacity is its weight; NaN weights (keys that a row may not see) are not drawn.
    """
    named = weights if isinstance(weights, Mapping) else {"": weights}
    heads = {str(name): np.asarray(matrix, dtype=float) for name, matrix in named.items()}
    sides = tokens, tokens if keys is None else keys
    count = len(tokens)
    if not heads:
        raise ParameterError("`weights` must name at least one head; it is empty.")
    for name, matrix in heads.items():
        if matrix.shape != (count, len(sides[1])):
            raise ParameterError(
                f"The weights of {name or 'the head'} must be {count} queries by {len(sides[1])} keys, one per token; "
                f"they are {matrix.shape}."
            )
    one_of("side", side, ("from", "to"))
    colours = _colours(highlight, len(sides[side == "to"]))
    with style.context():
        longest = max(
            style.text_width(_shown(token), style.NORMAL) for token in (*sides[0], *sides[1], "")
        )
        panel = 2 * longest + 1.15
        columns = max(1, min(len(heads), int(style.PAGE // panel)))
        rows = -(-len(heads) // columns)
        tall = max(*map(len, sides), 2) * _LINE
        width = max(style.COLUMN, columns * panel + 0.2)
        fig = style.new_figure(width, rows * (tall + 0.42) + 0.75)
        axes = fig.subplots(rows, columns, squeeze=False).ravel()
        for ax, (name, matrix) in zip(axes, heads.items(), strict=False):
            _draw(ax, matrix, sides, colours, side, threshold)
            ax.set_title(name, loc="center", fontweight="bold")
        for ax in axes[len(heads) :]:
            ax.remove()
        how = (
            f"Left: the token that looks; right: the token looked at; opacity of a line: {what}, 0 to 1 "
            f"(under {threshold:g} not drawn)"
        )
        return style.complete(fig, title, [*notes, "One input", how])


def _colours(highlight: Highlight, count: int) -> dict[int, str]:
    """Position to colour; positions without a given colour get one of the palette."""
    if isinstance(highlight, Mapping):
        colours = {int(position): colour for position, colour in highlight.items()}
    else:
        palette = (style.VERMILION, style.BLUE, style.GREEN, style.PINK)
        colours = {int(position): style.cycle(palette, i) for i, position in enumerate(highlight)}
    for position in colours:
        if not 0 <= position < count:
            raise ParameterError(
                f"`highlight` must name positions from 0 to {count - 1}; it names {position}."
            )
    return colours


def _draw(
    ax: Axes,
    weights: np.ndarray,
    sides: tuple[Sequence[str], Sequence[str]],
    colours: dict[int, str],
    side: str,
    threshold: float,
) -> None:
    queries, keys = np.nonzero(np.nan_to_num(weights) >= max(threshold, 1e-9))
    chosen = queries if side == "from" else keys
    order = np.argsort(np.isin(chosen, list(colours)), kind="stable")  # coloured lines on top
    plain, faint = ("#808080", 0.45) if colours else (_PLAIN, 1.0)
    lines, rgba = [], []
    for query, key, mark in zip(
        queries[order].tolist(), keys[order].tolist(), chosen[order].tolist(), strict=True
    ):
        opacity = float(np.clip(weights[query, key], 0, 1)) * (1.0 if mark in colours else faint)
        lines.append(((0.0, query), (1.0, key)))
        rgba.append((*to_rgb(colours.get(mark, plain)), opacity))
    ax.add_collection(LineCollection(lines, colors=rgba, linewidths=1.4, capstyle="round"))
    for x, align, own, tokens in (
        (-0.04, "right", "from", sides[0]),
        (1.04, "left", "to", sides[1]),
    ):
        marked = colours if side == own else {}
        for position, token in enumerate(tokens):
            font: dict[str, Any] = {
                "fontsize": style.NORMAL,
                "fontweight": "bold" if position in marked else "normal",
                "color": marked.get(position, style.INK),
            }
            ax.text(x, position, _shown(token), ha=align, va="center_baseline", **font)
    ax.set_xlim(0, 1)
    ax.set_ylim(max(map(len, sides)) - 0.4, -0.6)
    ax.axis("off")


def _shown(token: str) -> str:
    """A token as it can stand on one line: line ends and tabs made visible, very long ones cut."""
    text = token.replace("\n", "⏎").replace("\t", "⇥").replace("\r", "")
    return text if len(text) <= 24 else text[:23] + "…"
