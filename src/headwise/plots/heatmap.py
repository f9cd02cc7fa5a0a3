"""The generic layer × head heat map: layer 0 at the top, head 0 at the left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from headwise.core.errors import ParameterError
from headwise.plots import data, style

Annotate = Literal["auto", "value", "head", "none"]
_DIMS = ("layer", "head")


def heatmap(
    array: xr.DataArray,
    *,
    title: str = "",
    label: str = "",
    unit: str = "",
    limits: tuple[float | None, float | None] = (None, None),
    centre: float | None = None,
    sort: bool = False,
    annotate: Annotate = "auto",
    cmap: str | None = None,
    notes: Iterable[str] = (),
) -> Figure:
    """One value per head as a heat map.

    Parameters
    ----------
    array
        Dims `layer` and `head`, in any order. Drawn with layer 0 at the top and head 0 at the left; NaN is hatched.
    title, label, unit, notes
        What is measured; the label and unit stand at the colour bar, the notes below.
    limits
        Ends of the colour scale; taken from the data where None.
    centre
        A value that gets the neutral colour of a diverging scale.
    sort
        Sort the heads of each layer by value, largest first.
    annotate
        Print `value` or `head` in each cell, or `none`; `auto` prints values (head numbers when sorted) where they fit.
    cmap
        A matplotlib colour map; viridis, or a purple-orange one with `centre`, unless given.
    """
    return heatmap_panels(
        {"": array},
        title=title,
        label=label,
        unit=unit,
        limits=limits,
        centre=centre,
        sort=sort,
        annotate=annotate,
        cmap=cmap,
        notes=notes,
    )


def heatmap_panels(
    arrays: Mapping[str, xr.DataArray],
    *,
    title: str = "",
    label: str = "",
    unit: str = "",
    limits: tuple[float | None, float | None] = (None, None),
    centre: float | None = None,
    sort: bool = False,
    annotate: Annotate = "auto",
    cmap: str | None = None,
    notes: Iterable[str] = (),
    across: int = 0,
) -> Figure:
    """Several heat maps on one colour scale, each named, `across` of them side by side (0: as many as look well); see `heatmap` for the other parameters."""
    if annotate not in ("auto", "value", "head", "none"):
        raise ParameterError(f"`annotate` must be one of auto, value, head, none; it is {annotate!r}.")
    if not arrays:
        raise ParameterError("`arrays` must name at least one array; it is empty.")
    with style.context():
        planes = {name: _plane(name, array) for name, array in arrays.items()}
        norm = _scale(list(planes.values()), limits, centre)
        columns, rows, width, height = _grid(list(planes.values()), wide=annotate == "value", across=across)
        fig = style.new_figure(width, height)
        axes = np.atleast_1d(fig.subplots(rows, columns, squeeze=False).ravel())
        colours = cmap or (style.SEQUENTIAL if centre is None else style.DIVERGING)
        cell_room = (width - 0.75) / columns / max(plane.shape[1] for plane in planes.values()) - 0.3 / columns / 12
        image: AxesImage | None = None
        for index, (ax, (name, plane)) in enumerate(zip(axes, planes.items(), strict=False)):
            layers, heads = data.numbers(arrays[name], "layer"), data.numbers(arrays[name], "head")
            image = _draw(ax, plane, layers, heads, norm, colours, sort, annotate, cell_room)
            _labels(
                ax,
                sort,
                first_column=index % columns == 0,
                last_row=index + columns >= len(planes),
                tall=height / rows > 1.6,
            )
        for ax in axes[len(planes) :]:
            ax.remove()
        style.panel_labels(list(axes[: len(planes)]), [name if name else "" for name in planes])
        assert image is not None
        bar = fig.colorbar(
            image, ax=list(axes[: len(planes)]), fraction=0.035, pad=0.015, aspect=max(12.0, (height - 0.9) / 0.11)
        )
        bar.outline.set_linewidth(0.4)
        bar.set_label(f"{label} ({unit})" if label and unit else label or unit)
        hatched = any(np.isnan(plane).any() for plane in planes.values())
        numbered = all(_cell_text(plane, sort, annotate, cell_room) == "head" for plane in planes.values())
        order = (
            f"Heads sorted within each layer, largest first{'; cells carry head numbers' if numbered else ''}"
            if sort
            else ""
        )
        style.annotate_figure(fig, title, [*notes, order, "Hatched: not defined" if hatched else ""])
        return style.finish(fig)


def _plane(name: str, array: xr.DataArray) -> np.ndarray:
    if set(array.dims) != set(_DIMS):
        raise ParameterError(
            f"A heat map needs the dimensions layer and head; {name or array.name or 'the array'} has {tuple(array.dims)}."
        )
    return np.asarray(array.transpose(*_DIMS).values, dtype=float)


def _scale(planes: list[np.ndarray], limits: tuple[float | None, float | None], centre: float | None) -> Normalize:
    """One colour scale over all panels; symmetric about `centre` where one is given."""
    found = np.concatenate([plane[np.isfinite(plane)] for plane in planes])
    low = limits[0] if limits[0] is not None else float(found.min()) if found.size else 0.0
    high = limits[1] if limits[1] is not None else float(found.max()) if found.size else 1.0
    if centre is not None:
        reach = max(abs(high - centre), abs(low - centre)) or 1.0
        return TwoSlopeNorm(centre, centre - reach, centre + reach)
    return Normalize(low, high if high > low else low + 1.0)


def _grid(planes: list[np.ndarray], wide: bool, across: int) -> tuple[int, int, float, float]:
    """Columns, rows, width and height in inches: square-ish cells, never higher than a page."""
    count, layers, heads = len(planes), max(p.shape[0] for p in planes), max(p.shape[1] for p in planes)
    columns = across or (2 if count in (2, 4) else min(count, 3))
    width = style.COLUMN if count == 1 and heads <= (8 if wide else 12) else style.PAGE
    rows = -(-count // columns)
    cell = ((width - 0.8) / columns - 0.3) / heads
    panel = float(np.clip(cell * layers, 0.45, (style.PAGE_HEIGHT - 1.0) / rows - 0.3))
    return columns, rows, width, rows * (panel + 0.28) + 0.85


def _draw(
    ax: Axes,
    plane: np.ndarray,
    layers: list[int],
    heads: list[int],
    norm: Normalize,
    cmap: str,
    sort: bool,
    annotate: Annotate,
    cell_room: float,
) -> AxesImage:
    """Draw one plane; row = layer, 0 at the top, column = head (or rank)."""
    names = np.tile(np.arange(plane.shape[1]), (plane.shape[0], 1))
    if sort:
        names = np.argsort(
            np.where(np.isnan(plane), np.inf, -plane), axis=1, kind="stable"
        )  # NaN last, ties to the lowest head
        plane = np.take_along_axis(plane, names, axis=1)
    image = ax.imshow(
        np.ma.masked_invalid(plane), cmap=cmap, norm=norm, aspect="auto", interpolation="nearest", origin="upper"
    )
    for layer, head in zip(*np.nonzero(np.isnan(plane)), strict=True):
        box: dict[str, Any] = {"facecolor": "#f2f2f2", "edgecolor": "#a6a6a6", "hatch": "////", "linewidth": 0}
        ax.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, **box))
    for edges, line in (
        (np.arange(1, plane.shape[1]) - 0.5, ax.axvline),
        (np.arange(1, plane.shape[0]) - 0.5, ax.axhline),
    ):
        for edge in edges:
            line(edge, color="white", linewidth=0.4)
    what = _cell_text(plane, sort, annotate, cell_room)
    if what != "none":
        _write(ax, plane, names, heads, norm, cmap, what)
    ax.set_xticks(*_ticks(list(range(len(heads))) if sort else heads, cell_room))
    ax.set_yticks(*_ticks(layers, 0.2 if len(layers) <= 16 else 0.1))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return image


def _cell_text(plane: np.ndarray, sort: bool, annotate: Annotate, cell_room: float) -> Annotate:
    """What the cells of a plane carry: what was asked for, or with `auto` what fits."""
    if annotate != "auto":
        return annotate
    what: Annotate = "head" if sort else "value"
    return what if cell_room >= (0.24 if what == "value" else 0.15) and plane.shape[0] <= 16 else "none"


def _write(
    ax: Axes, plane: np.ndarray, names: np.ndarray, heads: list[int], norm: Normalize, cmap: str, what: str
) -> None:
    """Print the value or the head's number into each cell, black or white by the cell's brightness."""
    colours = mpl.colormaps[cmap]
    whole = bool(np.nanmax(np.abs(plane), initial=0) >= 10)
    for (layer, rank), value in np.ndenumerate(plane):
        if np.isnan(value):
            continue
        red, green, blue, _ = colours(float(norm(value)))
        bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        text = str(heads[names[layer, rank]]) if what == "head" else f"{value:.0f}" if whole else short(value)
        ax.text(
            rank,
            layer,
            text,
            ha="center",
            va="center",
            fontsize=style.SMALL,
            color="black" if bright > 0.45 else "white",
        )


def short(value: float) -> str:
    """A number in at most three or four signs: `.07`, `1.0`, `−.3`."""
    text = f"{value:.2f}" if abs(value) < 0.995 else f"{value:.1f}"
    text = text.replace("-", "−")
    if text in ("0.00", "−0.00"):
        return "0"
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text


def _ticks(names: list[int], room: float) -> tuple[list[int], list[str]]:
    """Positions and texts of as many ticks as the room (inches per cell) allows."""
    step = max(1, int(np.ceil(0.14 / max(room, 0.02))))
    return list(range(0, len(names), step)), [str(name) for name in names[::step]]


def _labels(ax: Axes, sort: bool, *, first_column: bool, last_row: bool, tall: bool) -> None:
    if last_row:
        ax.set_xlabel("rank of the head in its layer" if sort else "head")
    if first_column:
        ax.set_ylabel("layer (0 at the top)" if tall else "layer")
