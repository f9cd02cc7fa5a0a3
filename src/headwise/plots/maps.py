"""All attention maps of one input on a page: one small map per head, layers down, heads across
(Kovaleva et al. 2019, appendix A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

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
        cmap=style.SEQUENTIAL,
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
