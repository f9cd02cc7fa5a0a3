"""Drawings of attention on one input: of single heads as lines between tokens, of all heads as small
maps, layers down, heads across (Kovaleva et al. 2019, appendix A)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from headwise.core.checks import one_of
from headwise.core.errors import ParameterError
from headwise.plots import style

MOST = 24  # the most layers and the most heads drawn: smaller maps show nothing
_WIDEST_MAP = 1.2  # inches
_COLOUR_TICKS = {0: "0", 0.01: ".01", 0.05: ".05", 0.1: ".1", 0.25: ".25", 0.5: ".5", 1: "1"}


def all_maps(
    attention: ArrayLike,
    tokens: Sequence[str],
    keys: Sequence[str] | None = None,
    what: str = "attention weight",
) -> Figure:
    """Draw the maps of all heads on one input.

    Parameters
    ----------
    attention : array of [layer, head, query, key]
        NaN (keys that a query may not attend to) is left blank.
    tokens : sequence of str
        The tokens of the input, printed below in order, as far as they fit.
    keys : sequence of str, optional
        The key tokens, where they differ from the queries (the source, in cross-attention).
    what : str, default "attention weight"
        What the maps show.

    Layer 0 is the top row, head 0 the left column; within a map the first query is the top row and
    the first key the left column. All maps share one colour scale from 0 to 1, on a square-root
    scale so that small weights are visible. Of more than `MOST` layers or heads, `MOST` are drawn,
    evenly spread, and the figure says so.
    """
    maps = np.asarray(attention, dtype=float)
    n_keys = len(tokens if keys is None else keys)
    if maps.ndim != 4 or maps.shape[3] != n_keys:
        raise ParameterError(
            f"`attention` must be [layer, head, query, key] with {n_keys} keys, one per token; "
            f"its shape is {maps.shape}."
        )
    with style.context():
        n_layers, n_heads = maps.shape[:2]
        layers = _evenly_spread(n_layers)
        heads = _evenly_spread(n_heads)
        is_complete = len(layers) == n_layers and len(heads) == n_heads
        maps = maps[np.ix_(layers, heads)]

        gap = max(1, round(max(maps.shape[2:]) * 0.07))
        token_lists = {"Tokens": tokens} if keys is None else {"Target": tokens, "Source": keys}
        label = f"{what} (square-root scale)"
        fig, listing = mosaic(maps, (layers, heads), (gap, gap), label, token_lists)

        notes = [
            f"One input of {len(tokens)} tokens",
            "Within a map: rows look, columns are looked at, first token top left",
        ]
        if not is_complete:
            notes.append(
                f"{len(layers)} of {n_layers} layers and {len(heads)} of {n_heads} heads "
                "are drawn, evenly spread"
            )
        if what != "attention weight":
            title = f"Maps of one input: {what}"
        elif is_complete:
            title = "All attention maps of one input"
        else:
            title = "Attention maps of one input"
        return style.complete(fig, title, notes, below=listing)


def _evenly_spread(count: int) -> list[int]:
    """Return the indices to draw: all of them, or `MOST` that are evenly spread."""
    positions = np.linspace(0, count - 1, min(count, MOST))
    return [int(position) for position in np.unique(positions.round())]


def mosaic(
    maps: np.ndarray,
    names: Sequence[Sequence[int]],
    gap: tuple[int, int],
    label: str,
    token_lists: Mapping[str, Sequence[str]],
) -> tuple[Figure, str]:
    """Draw small maps on one square-root colour scale from 0 to 1: layers down, heads across.

    Parameters
    ----------
    maps : array of [layer, head, row, column]
        NaN is left blank.
    names : (sequence of int, sequence of int)
        The numbers of layers and of heads.
    gap : (int, int)
        Blank rows and columns between maps.
    label : str
        Of the colour scale.
    token_lists : mapping of str to sequence of str
        Tokens by what they are ("Tokens", "Source").

    Returns
    -------
    (Figure, str)
        The figure, and its tokens in lines of its width.
    """
    layers, heads, rows, columns = maps.shape
    tile_rows = rows + gap[0]
    tile_columns = columns + gap[1]
    tiles = np.full((layers, tile_rows, heads, tile_columns), np.nan)
    tiles[:, :rows, :, :columns] = maps.transpose(0, 2, 1, 3)
    picture = tiles.reshape(layers * tile_rows, heads * tile_columns)
    # No gap behind the last map.
    picture = picture[: layers * tile_rows - gap[0], : heads * tile_columns - gap[1]]

    widest_that_fits = (style.PAGE - 0.95) / heads
    highest_that_fits = (style.PAGE_HEIGHT - 1.35) / (layers * tile_rows / tile_columns)
    tile_width = min(widest_that_fits, _WIDEST_MAP, highest_that_fits)
    width = min(max(heads * tile_width + 0.95, style.COLUMN), style.PAGE)
    height = layers * tile_width * tile_rows / tile_columns
    listings = []
    for name, tokens in token_lists.items():
        listings.append(token_listing(tokens, width - 0.1, first=name))
    listing = "\n".join(listings)
    n_lines = listing.count("\n") + 1

    fig, ax = style.one_panel(width, height + 0.95 + 0.115 * n_lines)
    image = ax.imshow(
        np.ma.masked_invalid(picture),
        cmap=style.WEIGHTS,
        norm=PowerNorm(0.5, 0, 1),
        interpolation="auto",
    )
    ax.set_xticks(
        (columns - 1) / 2 + np.arange(heads) * tile_columns, [str(head) for head in names[1]]
    )
    ax.set_yticks(
        (rows - 1) / 2 + np.arange(layers) * tile_rows, [str(layer) for layer in names[0]]
    )
    style.heads_on_top(ax)
    bar = style.colour_bar(
        fig,
        image,
        ax,
        label,
        fraction=0.03,
        pad=0.01,
        aspect=max(12.0, height / 0.11),
        ticks=list(_COLOUR_TICKS),
    )
    bar.ax.set_yticklabels(list(_COLOUR_TICKS.values()))
    return fig, listing


def token_listing(
    tokens: Sequence[str], width: float, lines: int = 4, first: str = "Tokens"
) -> str:
    """Return the tokens in order, wrapped to a width in inches and shortened to some lines.

    Parameters
    ----------
    tokens : sequence of str
        The tokens.
    width : float
        The width of a line in inches.
    lines : int, default 4
        The most lines; a shortened list ends with the number of tokens left out.
    first : str, default "Tokens"
        What the list begins with.
    """
    words = [token.replace("\n", "⏎").replace("\t", "⇥") or "∅" for token in tokens]
    text = style.wrap(f"{first}: " + " ".join(words), width, style.SMALL)
    if text.count("\n") < lines:
        return text

    # Begin with about as many tokens as fit, then drop one at a time.
    text_that_fits = " ".join(text.split("\n")[:lines])
    n_shown = len(text_that_fits.split(" ")) - 1
    while n_shown > 0:
        shortened = " ".join(words[:n_shown]) + f" … and {len(words) - n_shown} more"
        text = style.wrap(f"{first}: {shortened}", width, style.SMALL)
        if text.count("\n") < lines:
            return text
        n_shown -= 1
    return f"{first}: {len(words)}"


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
