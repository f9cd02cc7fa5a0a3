"""All attention maps of one input on a page: one small map per head, layers down, heads across
(Kovaleva et al. 2019, App. A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from headwise.core.errors import ParameterError
from headwise.plots import style

MOST = 24  # layers, and heads, drawn at most: smaller maps show nothing


def all_maps(
    attention: ArrayLike,
    tokens: Sequence[str],
    keys: Sequence[str] | None = None,
    what: str = "attention weight",
) -> Figure:
    """All `L × H` maps of one input.

    Parameters
    ----------
    attention : array of [layer, head, query, key]
        NaN (keys that a row may not see) is left blank.
    tokens : sequence of str
        The tokens of the input, printed below in order, as far as they fit.
    keys : sequence of str, optional
        The tokens looked at, where those are others (the source, in cross-attention).
    what : str, default "attention weight"
        What the maps show.

    Layer 0 is the top row, head 0 the left column; within a map the first token looks from the top
    row, at the first token in the left column. All maps share one colour scale from 0 to 1, spread
    as the square root so that small weights can be seen. Of more than `MOST` layers or heads so
    many are drawn, evenly spread, and the figure says so."""
    maps = np.asarray(attention, dtype=float)
    looked_at = tokens if keys is None else keys
    if maps.ndim != 4 or maps.shape[3] != len(looked_at):
        raise ParameterError(
            f"`attention` must be [layer, head, query, key] with {len(looked_at)} keys, one per token; "
            f"its shape is {maps.shape}."
        )
    with style.context():
        whole = maps.shape[:2]
        kept = [
            np.unique(np.linspace(0, size - 1, min(size, MOST)).round().astype(int)).tolist()
            for size in whole
        ]
        maps = maps[np.ix_(*kept)]
        gap = max(1, round(max(maps.shape[2:]) * 0.07))
        listed = {"Tokens": tokens} if keys is None else {"Target": tokens, "Source": keys}
        fig, listing = mosaic(maps, kept, (gap, gap), f"{what} (square-root scale)", listed)
        how = "Within a map: rows look, columns are looked at, first token top left"
        notes = [f"One input of {len(tokens)} tokens", how]
        if maps.shape[:2] != whole:
            drawn = f"{len(kept[0])} of {whole[0]} layers and {len(kept[1])} of {whole[1]} heads"
            notes.append(f"{drawn} are drawn, evenly spread")
        title = (
            "All attention maps of one input"
            if maps.shape[:2] == whole
            else "Attention maps of one input"
        )
        title = title if what == "attention weight" else f"Maps of one input: {what}"
        return style.complete(fig, title, notes, below=listing)


def mosaic(
    maps: np.ndarray,
    names: Sequence[Sequence[int]],
    gap: tuple[int, int],
    label: str,
    listed: Mapping[str, Sequence[str]],
) -> tuple[Figure, str]:
    """Small maps `[layer, head, row, column]` on one colour scale from 0 to 1, spread as the square
    root: layers down, heads across. The figure, and its tokens in lines of its width.

    Parameters
    ----------
    maps : array
        NaN is left blank.
    names : (sequence of int, sequence of int)
        The numbers of layers and of heads.
    gap : (int, int)
        Blank rows and columns between maps.
    label : str
        Of the colour scale.
    listed : mapping of str to sequence of str
        Tokens, by what they are.
    """
    layers, heads, rows, columns = maps.shape
    down, across = rows + gap[0], columns + gap[1]
    tiled = np.full((layers, down, heads, across), np.nan)
    tiled[:, :rows, :, :columns] = maps.transpose(0, 2, 1, 3)
    flat = tiled.reshape(layers * down, heads * across)[
        : layers * down - gap[0], : heads * across - gap[1]
    ]
    cell = min(
        (style.PAGE - 0.95) / heads, 1.2, (style.PAGE_HEIGHT - 1.35) / (layers * down / across)
    )
    width, tall = (
        min(max(heads * cell + 0.95, style.COLUMN), style.PAGE),
        layers * cell * down / across,
    )
    listing = "\n".join(
        token_listing(tokens, width - 0.1, first=what) for what, tokens in listed.items()
    )
    fig, ax = style.one_panel(width, tall + 0.95 + 0.115 * (listing.count("\n") + 1))
    image = ax.imshow(
        np.ma.masked_invalid(flat),
        cmap=style.SEQUENTIAL,
        norm=PowerNorm(0.5, 0, 1),
        interpolation="auto",
    )
    ax.set_xticks((columns - 1) / 2 + np.arange(heads) * across, [str(head) for head in names[1]])
    ax.set_yticks((rows - 1) / 2 + np.arange(layers) * down, [str(layer) for layer in names[0]])
    style.heads_on_top(ax)
    ticks = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]
    place: dict[str, Any] = {
        "fraction": 0.03,
        "pad": 0.01,
        "aspect": max(12.0, tall / 0.11),
        "ticks": ticks,
    }
    bar = style.colour_bar(fig, image, ax, label, **place)
    bar.ax.set_yticklabels(["0", ".01", ".05", ".1", ".25", ".5", "1"])
    return fig, listing


def token_listing(
    tokens: Sequence[str], width: float, lines: int = 4, first: str = "Tokens"
) -> str:
    """The tokens in order, wrapped, cut after some lines with the number left out."""
    words = [token.replace("\n", "⏎").replace("\t", "⇥") or "∅" for token in tokens]
    text = style.wrap(f"{first}: " + " ".join(words), width, style.SMALL)
    if text.count("\n") < lines:
        return text
    kept = (
        len(" ".join(text.split("\n")[:lines]).split(" ")) - 1
    )  # about as many as fit, then fewer
    while kept > 0:
        text = style.wrap(
            f"{first}: " + " ".join(words[:kept]) + f" … and {len(words) - kept} more",
            width,
            style.SMALL,
        )
        if text.count("\n") < lines:
            return text
        kept -= 1
    return f"{first}: {len(words)}"
