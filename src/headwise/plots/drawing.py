"""The line drawing of a head on a sentence: tokens left and right, one line per weight, opaque in
proportion to the weight (Clark et al. 2019, Fig. 1 and 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

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
_LINE_COLOUR = "#2f5d8a"
_MUTED_COLOUR = "#808080"  # of the lines that are not highlighted, where others are
_LONGEST_TOKEN = 24  # characters


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
        The tokens as written: the queries on the left and, without `keys`, the keys on the right.
    keys : sequence of str, optional
        The key tokens, where they differ from the queries (the source, in cross-attention).
    highlight : sequence of int, or mapping of int to str, default ()
        Positions to colour, or a mapping of position to colour; their lines are coloured and all
        others turn grey.
    side : {"from", "to"}, default "from"
        Whether `highlight` names queries (`from`, left) or keys (`to`, right).
    threshold : float, default 0.01
        Weights below it are not drawn.
    title : str, default ""
        Above the figure.
    what : str, default "attention weight"
        What the weights are.
    notes : iterable of str, default ()
        Small print below the figure.

    A line's opacity is its weight; NaN weights (keys that a query may not attend to) are not drawn.
    """
    matrices = weights if isinstance(weights, Mapping) else {"": weights}
    heads = {}
    for name, matrix in matrices.items():
        heads[str(name)] = np.asarray(matrix, dtype=float)
    if not heads:
        raise ParameterError("`weights` must name at least one head; it is empty.")

    queries = tokens
    keys = tokens if keys is None else keys
    for name, matrix in heads.items():
        if matrix.shape != (len(queries), len(keys)):
            raise ParameterError(
                f"The weights of {name or 'the head'} must be {len(queries)} queries by "
                f"{len(keys)} keys, one per token; they are {matrix.shape}."
            )
    one_of("side", side, ("from", "to"))
    query_colours: dict[int, str] = {}
    key_colours: dict[int, str] = {}
    if side == "from":
        query_colours = _colours(highlight, len(queries))
    else:
        key_colours = _colours(highlight, len(keys))

    with style.context():
        longest_token = 0.0
        for token in (*queries, *keys):
            width_of_token = style.text_width(_printable(token), style.NORMAL)
            longest_token = max(longest_token, width_of_token)
        panel_width = 2 * longest_token + 1.15
        panel_height = max(len(queries), len(keys), 2) * _LINE
        columns = max(1, min(len(heads), int(style.PAGE // panel_width)))
        rows = -(-len(heads) // columns)
        figure_width = max(style.COLUMN, columns * panel_width + 0.2)
        fig = style.new_figure(figure_width, rows * (panel_height + 0.42) + 0.75)

        axes = fig.subplots(rows, columns, squeeze=False).ravel()
        for ax, (name, matrix) in zip(axes, heads.items(), strict=False):
            _draw_lines(ax, matrix, query_colours, key_colours, threshold)
            _write_tokens(ax, queries, -0.04, "right", query_colours)
            _write_tokens(ax, keys, 1.04, "left", key_colours)
            ax.set_xlim(0, 1)
            ax.set_ylim(max(len(queries), len(keys)) - 0.4, -0.6)
            ax.axis("off")
            ax.set_title(name, loc="center", fontweight="bold")
        for unused_ax in axes[len(heads) :]:
            unused_ax.remove()

        how_to_read = (
            "Left: the token that looks; right: the token looked at; "
            f"opacity of a line: {what}, 0 to 1 (under {threshold:g} not drawn)"
        )
        return style.complete(fig, title, [*notes, "One input", how_to_read])


def _colours(highlight: Highlight, count: int) -> dict[int, str]:
    """Return the colour of each highlighted position, from the palette where none is named."""
    colours = {}
    if isinstance(highlight, Mapping):
        for position, colour in highlight.items():
            colours[int(position)] = colour
    else:
        palette = (style.VERMILION, style.BLUE, style.GREEN, style.PINK)
        for index, position in enumerate(highlight):
            colours[int(position)] = style.cycle(palette, index)
    for position in colours:
        if not 0 <= position < count:
            raise ParameterError(
                f"`highlight` must name positions from 0 to {count - 1}; it names {position}."
            )
    return colours


def _draw_lines(
    ax: Axes,
    weights: np.ndarray,
    query_colours: dict[int, str],
    key_colours: dict[int, str],
    threshold: float,
) -> None:
    """Draw a line from query to key for each weight from the threshold on."""
    queries, keys = np.nonzero(np.nan_to_num(weights) >= max(threshold, 1e-9))
    highlighted = np.isin(queries, list(query_colours)) | np.isin(keys, list(key_colours))
    # Highlighted lines come last, so that they lie on top.
    order = np.argsort(highlighted, kind="stable")

    lines = []
    rgba = []
    for index in order.tolist():
        query = int(queries[index])
        key = int(keys[index])
        opacity = float(np.clip(weights[query, key], 0, 1))
        if highlighted[index]:
            colour = query_colours.get(query) or key_colours[key]
        elif query_colours or key_colours:
            colour = _MUTED_COLOUR
            opacity *= 0.45
        else:
            colour = _LINE_COLOUR
        lines.append(((0.0, query), (1.0, key)))
        rgba.append((*to_rgb(colour), opacity))
    ax.add_collection(LineCollection(lines, colors=rgba, linewidths=1.4, capstyle="round"))


def _write_tokens(
    ax: Axes,
    tokens: Sequence[str],
    x: float,
    align: Literal["left", "right"],
    colours: dict[int, str],
) -> None:
    """Write one token per row beside the lines, the highlighted ones bold and coloured."""
    for position, token in enumerate(tokens):
        ax.text(
            x,
            position,
            _printable(token),
            ha=align,
            va="center_baseline",
            fontsize=style.NORMAL,
            fontweight="bold" if position in colours else "normal",
            color=colours.get(position, style.INK),
        )


def _printable(token: str) -> str:
    """Return a token for one line: line ends and tabs made visible, long tokens shortened."""
    text = token.replace("\n", "⏎").replace("\t", "⇥").replace("\r", "")
    return text if len(text) <= _LONGEST_TOKEN else text[: _LONGEST_TOKEN - 1] + "…"
