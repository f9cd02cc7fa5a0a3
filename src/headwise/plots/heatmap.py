"""The layer × head heat map: layer 0 at the top, head 0 at the left."""

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

# Inches between the centres of neighbouring cells below which a text would run into the next cell.
_MIN_SPACING = {"value": 0.24, "head": 0.15}
_MAX_ANNOTATED_LAYERS = 16
# Rec. 709 luminance of red, green and blue: decides between black and white text on a cell.
_LUMINANCE = (0.2126, 0.7152, 0.0722)


class HeatmapOptions(TypedDict, total=False):
    """How heat maps look; every key is optional."""

    title: str
    # Label of the colour bar, and the unit printed after it.
    label: str
    unit: str
    # Ends of the colour scale; None takes that end from the data.
    limits: tuple[float | None, float | None]
    # The value that gets the neutral colour of a diverging scale.
    centre: float | None
    # Sort the heads of each layer by value, largest first.
    sort: bool
    # Print `value` or `head` in each cell, or `none`; `auto`, the default, prints what fits.
    annotate: Annotate
    # A matplotlib colour map; default: viridis, or purple-orange with `centre`.
    cmap: str | None
    # Small print below the figure.
    notes: Iterable[str]
    # Panels in a row; default: chosen by the number of panels.
    across: int


def heatmap(array: xr.DataArray, **options: Unpack[HeatmapOptions]) -> Figure:
    """Draw one value per head as a heat map.

    Parameters
    ----------
    array : DataArray
        Dims `layer` and `head`, in any order. Layer 0 is drawn at the top and head 0 at the left;
        NaN is hatched.
    **options
        See `HeatmapOptions`.
    """
    return heatmap_panels({"": array}, **options)


def heatmap_panels(arrays: Mapping[str, xr.DataArray], **options: Unpack[HeatmapOptions]) -> Figure:
    """Draw several named heat maps on one colour scale.

    Parameters
    ----------
    arrays : mapping of str to DataArray
        The title of each panel and its values, as `heatmap` takes them.
    **options
        See `HeatmapOptions`.
    """
    annotate = options.get("annotate", "auto")
    sort = options.get("sort", False)
    centre = options.get("centre")
    one_of("annotate", annotate, get_args(Annotate))
    if not arrays:
        raise ParameterError("`arrays` must name at least one array; it is empty.")

    with style.context():
        planes = []
        for name, array in arrays.items():
            planes.append(_layer_by_head(name, array))
        n_panels = len(planes)

        grid = _PanelGrid.of(planes, annotate == "value", options.get("across", 0))
        fig = style.new_figure(grid.width, grid.height)
        axes = fig.subplots(grid.rows, grid.columns, squeeze=False).ravel()

        colour_map = options.get("cmap")
        if not colour_map:
            colour_map = style.SEQUENTIAL if centre is None else style.DIVERGING
        cells = _CellPainter(
            norm=_colour_scale(planes, options.get("limits", (None, None)), centre),
            colours=mpl.colormaps[colour_map],
            sort=sort,
            annotate=annotate,
            spacing=grid.cell_spacing(planes),
        )

        drawn_axes = list(axes[:n_panels])
        for index, (ax, array) in enumerate(zip(drawn_axes, arrays.values(), strict=True)):
            layers = data.numbers(array, "layer")
            heads = data.numbers(array, "head")
            cells.draw(ax, planes[index], layers, heads)
            has_panel_below = index + grid.columns < n_panels
            if not has_panel_below:
                ax.set_xlabel("rank of the head in its layer" if sort else "head")
            if index % grid.columns == 0:
                is_tall = grid.height / grid.rows > 1.6
                ax.set_ylabel("layer (0 at the top)" if is_tall else "layer")
        for unused_ax in axes[n_panels:]:
            unused_ax.remove()
        style.panel_labels(drawn_axes, list(arrays))

        style.colour_bar(
            fig,
            axes[0].images[0],
            drawn_axes,
            _bar_label(options.get("label", ""), options.get("unit", "")),
            fraction=0.035,
            pad=0.015,
            aspect=max(12.0, (grid.height - 0.9) / 0.11),
        )

        notes = list(options.get("notes", ()))
        if sort:
            order = "Heads sorted within each layer, largest first"
            if all(cells.cell_text(plane) == "head" for plane in planes):
                order += "; cells carry head numbers"
            notes.append(order)
        if any(np.isnan(plane).any() for plane in planes):
            notes.append("Hatched: not defined")
        return style.complete(fig, options.get("title", ""), notes)


def _layer_by_head(name: str, array: xr.DataArray) -> np.ndarray:
    """Return the values as `[layer, head]`."""
    if set(array.dims) != set(_DIMS):
        raise ParameterError(
            "A heat map needs the dimensions layer and head; "
            f"{name or array.name or 'the array'} has {tuple(array.dims)}."
        )
    return np.asarray(array.transpose(*_DIMS).values, dtype=float)


def _bar_label(label: str, unit: str) -> str:
    if label and unit:
        return f"{label} ({unit})"
    return label or unit


def _colour_scale(
    planes: list[np.ndarray], limits: tuple[float | None, float | None], centre: float | None
) -> Normalize:
    """Return one colour scale for all panels; symmetric about `centre` where one is given."""
    finite_values = np.concatenate([plane[np.isfinite(plane)] for plane in planes])
    if not finite_values.size:
        finite_values = np.array([0.0, 1.0])
    low, high = limits
    if low is None:
        low = float(finite_values.min())
    if high is None:
        high = float(finite_values.max())

    if centre is not None:
        half_range = max(abs(high - centre), abs(low - centre)) or 1.0
        return TwoSlopeNorm(centre, centre - half_range, centre + half_range)
    if not high > low:
        high = low + 1.0  # a constant array has no range, but matplotlib needs one
    return Normalize(low, high)


@dataclass(frozen=True, slots=True)
class _PanelGrid:
    """How the panels are arranged; sizes in inches."""

    columns: int
    rows: int
    width: float
    height: float

    @classmethod
    def of(cls, planes: list[np.ndarray], wide_cells: bool, across: int) -> _PanelGrid:
        """Choose a grid of nearly square cells that is never higher than a page."""
        n_panels = len(planes)
        n_layers = max(plane.shape[0] for plane in planes)
        n_heads = max(plane.shape[1] for plane in planes)

        if across:
            columns = across
        elif n_panels in (2, 4):
            columns = 2
        else:
            columns = min(n_panels, 3)
        rows = -(-n_panels // columns)

        width = style.PAGE
        most_heads_in_a_column = 8 if wide_cells else 12
        if n_panels == 1 and n_heads <= most_heads_in_a_column:
            width = style.COLUMN
        cell_width = ((width - 0.8) / columns - 0.3) / n_heads
        highest_panel = (style.PAGE_HEIGHT - 1.0) / rows - 0.3
        panel_height = float(np.clip(cell_width * n_layers, 0.45, highest_panel))
        return cls(columns, rows, width, rows * (panel_height + 0.28) + 0.85)

    def cell_spacing(self, planes: list[np.ndarray]) -> float:
        """Return the inches between the centres of neighbouring cells of the widest panel."""
        n_heads = max(plane.shape[1] for plane in planes)
        gap = 0.3 / self.columns / 12
        return (self.width - 0.75) / self.columns / int(n_heads) - gap


@dataclass(frozen=True, slots=True)
class _CellPainter:
    """Draws the cells of all panels in the same way."""

    norm: Normalize
    colours: Colormap
    sort: bool
    annotate: Annotate
    spacing: float  # inches between the centres of neighbouring cells

    def draw(self, ax: Axes, plane: np.ndarray, layers: list[int], heads: list[int]) -> None:
        """Draw `plane[layer, head]`; the column is the head, or its rank where heads are sorted."""
        n_layers, n_heads = plane.shape
        head_of_cell = np.tile(np.arange(n_heads), (n_layers, 1))
        if self.sort:
            # Stable, so that ties go to the lowest head; NaN comes last.
            descending = np.where(np.isnan(plane), np.inf, -plane)
            head_of_cell = np.argsort(descending, axis=1, kind="stable")
            plane = np.take_along_axis(plane, head_of_cell, axis=1)

        ax.imshow(
            np.ma.masked_invalid(plane),
            cmap=self.colours,
            norm=self.norm,
            aspect="auto",
            interpolation="nearest",
        )
        _hatch_undefined(ax, plane)
        _draw_grid_lines(ax, n_layers, n_heads)

        cell_text = self.cell_text(plane)
        if cell_text == "head":
            self._write(ax, plane, np.array(heads)[head_of_cell])
        elif cell_text == "value":
            self._write(ax, plane, None)

        column_names = list(range(len(heads))) if self.sort else heads
        ax.set_xticks(*_ticks(column_names, self.spacing))
        ax.set_yticks(*_ticks(layers, 0.2 if len(layers) <= 16 else 0.1))
        style.bare(ax)

    def cell_text(self, plane: np.ndarray) -> Annotate:
        """Return what the cells of a plane show: the chosen text, or with `auto` what fits."""
        if self.annotate != "auto":
            return self.annotate
        preferred: Annotate = "head" if self.sort else "value"
        fits = self.spacing >= _MIN_SPACING[preferred] and plane.shape[0] <= _MAX_ANNOTATED_LAYERS
        return preferred if fits else "none"

    def _write(self, ax: Axes, plane: np.ndarray, head_numbers: np.ndarray | None) -> None:
        """Print the head's number, or without `head_numbers` the value, into each cell."""
        as_integers = bool(np.nanmax(np.abs(plane), initial=0) >= 10)
        for cell, value in np.ndenumerate(plane):
            if np.isnan(value):
                continue
            if head_numbers is not None:
                text = str(head_numbers[cell])
            elif as_integers:
                text = f"{value:.0f}"
            else:
                text = short(value)
            brightness = np.dot(self.colours(float(self.norm(value)))[:3], _LUMINANCE)
            ax.text(
                cell[1],
                cell[0],
                text,
                ha="center",
                va="center",
                fontsize=style.SMALL,
                color="black" if brightness > 0.45 else "white",
            )


def _hatch_undefined(ax: Axes, plane: np.ndarray) -> None:
    """Hatch the cells that are NaN."""
    hatching: dict[str, Any] = {
        "facecolor": "#f2f2f2",
        "edgecolor": "#a6a6a6",
        "hatch": "////",
        "linewidth": 0,
    }
    for layer, head in zip(*np.nonzero(np.isnan(plane)), strict=True):
        ax.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, **hatching))


def _draw_grid_lines(ax: Axes, n_layers: int, n_heads: int) -> None:
    """Draw white lines between the cells."""
    bottom = n_layers - 0.5
    right = n_heads - 0.5
    lines = []
    for x in np.arange(0.5, right):
        lines.append(((x, -0.5), (x, bottom)))
    for y in np.arange(0.5, bottom):
        lines.append(((-0.5, y), (right, y)))
    ax.add_collection(LineCollection(lines, colors="white", linewidths=0.4), autolim=False)


def short(value: float) -> str:
    """Return a number in at most three or four characters: `.07`, `1.0`, `−.30`."""
    if abs(value) >= 0.995:  # two decimals would round to 1.00
        return f"{value:.1f}".replace("-", "−")
    text = f"{value:.2f}".replace("-", "−")
    if text in ("0.00", "−0.00"):
        return "0"
    return text.replace("0.", ".", 1)


def _ticks(names: list[int], spacing: float) -> tuple[list[int], list[str]]:
    """Return positions and texts of as many ticks as the spacing (inches per cell) allows."""
    step = max(1, int(np.ceil(0.14 / max(spacing, 0.02))))
    positions = list(range(0, len(names), step))
    return positions, [str(name) for name in names[::step]]
