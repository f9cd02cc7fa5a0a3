"""All attention maps of one input on a page: one small map per head, layers down, heads across (Kovaleva et al. 2019, App. A)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from headwise.core.errors import ParameterError
from headwise.plots import style


def all_maps(
    attention: ArrayLike,
    tokens: Sequence[str],
    *,
    title: str = "All attention maps of one input",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    cmap: str = style.SEQUENTIAL,
    notes: Iterable[str] = (),
) -> Figure:
    """All `L × H` maps of one input.

    Parameters
    ----------
    attention
        `[layer, head, query, key]`; NaN (keys that a row may not see) is left blank.
    tokens
        The tokens of the input, printed below in order, as far as they fit.
    layers, heads
        The numbers to print at rows and columns, where only some layers or heads are given.

    Layer 0 is the top row, head 0 the left column; within a map the first token looks from the top row, at the first token in the left column.
    All maps share one colour scale from 0 to 1, spread as the square root so that small weights can be seen.
    """
    maps = np.asarray(attention, dtype=float)
    if maps.ndim != 4 or maps.shape[3] != len(tokens):
        raise ParameterError(
            f"`attention` must be [layer, head, query, key] with {len(tokens)} keys, one per token; its shape is {maps.shape}."
        )
    names = (
        list(range(maps.shape[0])) if layers is None else list(layers),
        list(range(maps.shape[1])) if heads is None else list(heads),
    )
    if (len(names[0]), len(names[1])) != maps.shape[:2]:
        raise ParameterError(
            f"`layers` and `heads` must name {maps.shape[0]} layers and {maps.shape[1]} heads; they name {len(names[0])} and {len(names[1])}."
        )
    with style.context():
        mosaic, pitch, gap = _mosaic(maps)
        rows, columns = maps.shape[:2]
        cell = min((style.PAGE - 0.95) / columns, 1.2, (style.PAGE_HEIGHT - 1.35) / rows)
        width = min(max(columns * cell + 0.95, style.COLUMN), style.PAGE)
        listing = token_listing(tokens, width - 0.1)
        fig = style.new_figure(width, rows * cell + 0.95 + 0.115 * (listing.count("\n") + 1))
        ax = fig.subplots()
        image = ax.imshow(
            mosaic, cmap=cmap, norm=PowerNorm(0.5, 0, 1), aspect="equal", interpolation="auto", origin="upper"
        )
        centre = (pitch[0] - gap - 1) / 2, (pitch[1] - gap - 1) / 2
        ax.set_xticks(centre[1] + np.arange(columns) * pitch[1], [str(h) for h in names[1]])
        ax.set_yticks(centre[0] + np.arange(rows) * pitch[0], [str(name) for name in names[0]])
        ax.tick_params(length=0)
        ax.xaxis.set_ticks_position("top")
        ax.xaxis.set_label_position("top")
        ax.set_xlabel("head")
        ax.set_ylabel("layer (0 at the top)")
        ax.spines[:].set_visible(False)
        bar = fig.colorbar(
            image,
            ax=ax,
            fraction=0.03,
            pad=0.01,
            aspect=max(12.0, rows * cell / 0.11),
            ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 1],
        )
        bar.ax.set_yticklabels(["0", ".01", ".05", ".1", ".25", ".5", "1"])
        bar.outline.set_linewidth(0.4)
        bar.set_label("attention weight (square-root scale)")
        how = "Within a map: rows look, columns are looked at, first token top left"
        style.annotate_figure(fig, title, [*notes, f"One input of {len(tokens)} tokens", how], below=listing)
        return style.finish(fig)


def _mosaic(maps: np.ndarray) -> tuple[np.ma.MaskedArray, tuple[int, int], int]:
    """All maps in one array with blank strips between them; its pitch (rows, columns from map to map) and the strips' width."""
    layers, heads, queries, keys = maps.shape
    gap = max(1, round(max(queries, keys) * 0.07))
    pitch = queries + gap, keys + gap
    tiled = np.full((layers, pitch[0], heads, pitch[1]), np.nan)
    tiled[:, :queries, :, :keys] = maps.transpose(0, 2, 1, 3)
    flat = tiled.reshape(layers * pitch[0], heads * pitch[1])[: layers * pitch[0] - gap, : heads * pitch[1] - gap]
    return np.ma.masked_invalid(flat), pitch, gap


def token_listing(tokens: Sequence[str], width: float, lines: int = 4) -> str:
    """The tokens in order, wrapped, cut after some lines with the number left out."""
    words = [token.replace("\n", "⏎").replace("\t", "⇥") or "∅" for token in tokens]
    text = style.wrap("Tokens: " + " ".join(words), width, style.SMALL)
    if text.count("\n") < lines:
        return text
    shown = "\n".join(text.split("\n")[:lines]).split(
        " "
    )  # about as many as fit; then fewer until the rest can be named
    kept = sum(len(part.split("\n")) for part in shown) - 1
    while kept > 0:
        text = style.wrap("Tokens: " + " ".join(words[:kept]) + f" … and {len(words) - kept} more", width, style.SMALL)
        if text.count("\n") < lines:
            return text
        kept -= 1
    return f"Tokens: {len(words)}"
