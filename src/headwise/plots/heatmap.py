"""The generic layer × head heat map: layer 0 at the top, head 0 at the left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, get_args

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headwise.core.checks import one_of
from headwise.core.errors import ParameterError
from headwise.plots import data, style

Annotate = Literal["auto", "value", "head", "none"]
_DIMS = ("layer", "head")


class Look(TypedDict, total=False):
    """How heat maps look."""

    title: str
    label: str  # at the colour bar
    unit: str  # beside the label
    limits: tuple[
        float | None, float | None
    ]  # ends of the colour scale; taken from the data where None
    centre: float | None  # a value that gets the neutral colour of a diverging scale
    sort: bool  # sort the heads of each layer by value, largest first
    annotate: Annotate  # print `value` or `head` in each cell, or `none`; `auto`, the default, prints what fits
    cmap: (
        str | None
    )  # a matplotlib colour map; viridis, or a purple-orange one with `centre`, unless given
    notes: Iterable[str]  # small print below
    across: int  # panels side by side; as many as look well unless given


def heatmap(array: xr.DataArray, **look: Unpack[Look]) -> Figure:
    """One value per head as a heat map.

    Parameters
    ----------
    array : DataArray
        Dims `layer` and `head`, in any order. Drawn with layer 0 at the top and head 0 at the left;
        NaN is hatched.
    **look
        See `Look`.
    """
    return heatmap_panels({"": array}, **look)


def heatmap_panels(arrays: Mapping[str, xr.DataArray], **look: Unpack[Look]) -> Figure:
    """Several heat maps, each named, on one colour scale; see `heatmap`."""
    annotate, sort, centre = (
        look.get("annotate", "auto"),
        look.get("sort", False),
        look.get("centre"),
    )
    one_of("annotate", annotate, get_args(Annotate))
    if not arrays:
        raise ParameterError("`arrays` must name at least one array; it is empty.")
    with style.context():
        planes = {name: _plane(name, array) for name, array in arrays.items()}
        norm = _scale(list(planes.values()), look.get("limits", (None, None)), centre)
        columns, rows, width, height = _grid(
            list(planes.values()), annotate == "value", look.get("across", 0)
        )
        fig = style.new_figure(width, height)
        axes = fig.subplots(rows, columns, squeeze=False).ravel()
        room = (width - 0.75) / columns / max(
            plane.shape[1] for plane in planes.values()
        ) - 0.3 / columns / 12
        colours = look.get("cmap") or (style.SEQUENTIAL if centre is None else style.DIVERGING)
        cells = _Cells(norm, mpl.colormaps[colours], sort, annotate, room)
        for index, (ax, (name, plane)) in enumerate(zip(axes, planes.items(), strict=False)):
            cells.draw(
                ax, plane, data.numbers(arrays[name], "layer"), data.numbers(arrays[name], "head")
            )
            if index + columns >= len(planes):
                ax.set_xlabel("rank of the head in its layer" if sort else "head")
            if index % columns == 0:
                ax.set_ylabel("layer (0 at the top)" if height / rows > 1.6 else "layer")
        drawn = list(axes[: len(planes)])
        for ax in axes[len(planes) :]:
            ax.remove()
        style.panel_labels(drawn, list(planes))
        label, unit = look.get("label", ""), look.get("unit", "")
        label = f"{label} ({unit})" if label and unit else label or unit
        long = max(12.0, (height - 0.9) / 0.11)
        style.colour_bar(
            fig, axes[0].images[0], drawn, label, fraction=0.035, pad=0.015, aspect=long
        )
        numbered = all(cells.text(plane) == "head" for plane in planes.values())
        order = f"Heads sorted within each layer, largest first{'; cells carry head numbers' if numbered else ''}"
        hatched = any(np.isnan(plane).any() for plane in planes.values())
        notes = [
            *look.get("notes", ()),
            order if sort else "",
            "Hatched: not defined" if hatched else "",
        ]
        return style.complete(fig, look.get("title", ""), notes)


def _plane(name: str, array: xr.DataArray) -> np.ndarray:
    if set(array.dims) != set(_DIMS):
        raise ParameterError(
            "A heat map needs the dimensions layer and head; "
            f"{name or array.name or 'the array'} has {tuple(array.dims)}."
        )
    return np.asarray(array.transpose(*_DIMS).values, dtype=float)


def _scale(
    planes: list[np.ndarray], limits: tuple[float | None, float | None], centre: float | None
) -> Normalize:
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
    count, layers, heads = (
        len(planes),
        max(p.shape[0] for p in planes),
        max(p.shape[1] for p in planes),
    )
    columns = across or (2 if count in (2, 4) else min(count, 3))
    width = style.COLUMN if count == 1 and heads <= (8 if wide else 12) else style.PAGE
    rows = -(-count // columns)
    cell = ((width - 0.8) / columns - 0.3) / heads
    panel = float(np.clip(cell * layers, 0.45, (style.PAGE_HEIGHT - 1.0) / rows - 0.3))
    return columns, rows, width, rows * (panel + 0.28) + 0.85


@dataclass(frozen=True, slots=True)
class _Cells:
    """How the cells of all panels are drawn."""

    norm: Normalize
    colours: Colormap
    sort: bool
    annotate: Annotate
    room: float  # inches from cell to cell

    def draw(self, ax: Axes, plane: np.ndarray, layers: list[int], heads: list[int]) -> None:
        """Draw one plane; row = layer, 0 at the top, column = head (or rank)."""
        names = np.tile(np.arange(plane.shape[1]), (plane.shape[0], 1))
        if self.sort:  # NaN last, ties to the lowest head
            names = np.argsort(np.where(np.isnan(plane), np.inf, -plane), axis=1, kind="stable")
            plane = np.take_along_axis(plane, names, axis=1)
        shown = np.ma.masked_invalid(plane)
        ax.imshow(shown, cmap=self.colours, norm=self.norm, aspect="auto", interpolation="nearest")
        for layer, head in zip(*np.nonzero(np.isnan(plane)), strict=True):
            box: dict[str, Any] = {
                "facecolor": "#f2f2f2",
                "edgecolor": "#a6a6a6",
                "hatch": "////",
                "linewidth": 0,
            }
            ax.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, **box))
        high, wide = plane.shape[0] - 0.5, plane.shape[1] - 0.5
        upright = [((edge, -0.5), (edge, high)) for edge in np.arange(0.5, wide)]
        level = [((-0.5, edge), (wide, edge)) for edge in np.arange(0.5, high)]
        ax.add_collection(
            LineCollection(upright + level, colors="white", linewidths=0.4), autolim=False
        )
        what = self.text(plane)
        if what != "none":
            self.write(ax, plane, np.array(heads)[names] if what == "head" else None)
        ax.set_xticks(*_ticks(list(range(len(heads))) if self.sort else heads, self.room))
        ax.set_yticks(*_ticks(layers, 0.2 if len(layers) <= 16 else 0.1))
        style.bare(ax)

    def text(self, plane: np.ndarray) -> Annotate:
        """What the cells of a plane carry: what was asked for, or with `auto` what fits."""
        if self.annotate != "auto":
            return self.annotate
        what: Annotate = "head" if self.sort else "value"
        return (
            what
            if self.room >= (0.24 if what == "value" else 0.15) and plane.shape[0] <= 16
            else "none"
        )

    def write(self, ax: Axes, plane: np.ndarray, heads: np.ndarray | None) -> None:
        """Print the value, or the head's number, into each cell, black or white by the cell's
        brightness."""
        whole = bool(np.nanmax(np.abs(plane), initial=0) >= 10)
        for place, value in np.ndenumerate(plane):
            if np.isnan(value):
                continue
            bright = np.dot(self.colours(float(self.norm(value)))[:3], (0.2126, 0.7152, 0.0722))
            text = (
                str(heads[place])
                if heads is not None
                else f"{value:.0f}"
                if whole
                else short(value)
            )
            colour = "black" if bright > 0.45 else "white"
            ax.text(
                place[1],
                place[0],
                text,
                ha="center",
                va="center",
                fontsize=style.SMALL,
                color=colour,
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
