"""What all figures share: sizes, colours that colour-blind readers can tell apart, the small print
on each figure."""

from __future__ import annotations

import functools
import string
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, NullFormatter

COLUMN = 3.3  # inches: one column of a two-column paper
PAGE = 7.0  # inches: the whole width of the text
PAGE_HEIGHT = 9.3  # inches: what a page leaves for a figure and its caption
SMALL = 6.5  # points: nothing is printed smaller
NORMAL = 7.5
LARGE = 8.5

# Okabe & Ito (2008), without the yellow, which is too pale for lines on white.
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK = OKABE_ITO
INK = "#1a1a1a"
GREY = "#595959"
PALE = "#d9d9d9"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SEQUENTIAL = "viridis"
DIVERGING = "PuOr_r"

TYPE_COLOURS = {"cls": BLUE, "sep": VERMILION, "punct": GREEN, "other": BLACK}

# Tried in this order for letters that the first one lacks; only those installed are used.
_NOTO = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari")
_FONTS = ("DejaVu Sans", *_NOTO, "Arial Unicode MS")


_TICKS = {"labelsize": SMALL, "major.size": 2.5, "major.width": 0.6, "major.pad": 2.0}


@functools.cache
def fonts() -> tuple[str, ...]:
    """The installed fonts among those we ask for; the first one comes with matplotlib."""
    installed = {font.name for font in fontManager.ttflist}
    return tuple(name for name in _FONTS if name in installed) or ("sans-serif",)


def rc() -> dict[str, Any]:
    """The settings under which every figure is made and saved."""
    return {
        "font.family": list(fonts()),
        "font.size": NORMAL,
        "axes.titlesize": NORMAL,
        "axes.titlelocation": "left",
        "axes.titlepad": 4.0,
        "axes.labelsize": NORMAL,
        "axes.labelpad": 2.5,
        "axes.labelcolor": INK,
        "axes.edgecolor": "#404040",
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        **{f"{axis}tick.{name}": value for axis in "xy" for name, value in _TICKS.items()},
        "grid.color": "#e6e6e6",
        "grid.linewidth": 0.5,
        "legend.fontsize": SMALL,
        "legend.frameon": False,
        "legend.handlelength": 1.4,
        "legend.handletextpad": 0.4,
        "legend.columnspacing": 1.2,
        "legend.borderaxespad": 0.2,
        "lines.linewidth": 1.3,
        "lines.markersize": 3.0,
        "text.color": INK,
        "text.parse_math": False,  # tokens and model names may hold dollar signs
        "hatch.linewidth": 0.5,
        "figure.dpi": 150,
        "figure.constrained_layout.w_pad": 0.03,
        "figure.constrained_layout.h_pad": 0.03,
        "svg.hashsalt": "headwise",
        "pdf.fonttype": 42,
    }


@contextmanager
def context() -> Iterator[None]:
    """The shared settings, for a `with` block; nothing outside it changes."""
    settings: Any = {**_defaults(), **rc()}
    with mpl.rc_context(settings), warnings.catch_warnings():
        # A letter that no installed font has is drawn as a box, which says so itself.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


@functools.cache
def _defaults() -> dict[str, Any]:
    """matplotlib's own defaults, so that a user's settings do not change our bytes; those of
    windows stay."""
    windows = (
        "backend",
        "interactive",
        "toolbar",
        "webagg",
        "tk.",
        "macosx",
        "keymap",
        "savefig.directory",
    )
    others = (*windows, "date.", "timezone", "docstring")
    return {
        str(name): value
        for name, value in mpl.rcParamsDefault.items()
        if not str(name).startswith(others)
    }


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that belongs to no window, laid out by itself."""
    return Figure(figsize=(width, height), layout="constrained")


def one_panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A new figure with one pair of axes in it."""
    figure = new_figure(width, height)
    return figure, figure.subplots()


def layer_colours(layers: int) -> np.ndarray:
    """One colour per layer, dark to light, `[layer, rgba]`; the palest end is left out."""
    return mpl.colormaps[SEQUENTIAL](np.linspace(0.0, 0.9, max(layers, 1)))


def layer_scale(layers: int) -> ScalarMappable:
    """The scale of layers, a colour for each, as a bar shows it."""
    return ScalarMappable(
        BoundaryNorm(np.arange(layers + 1) - 0.5, layers), ListedColormap(layer_colours(layers))
    )


def colour_bar(
    figure: Figure, scale: ScalarMappable, axes: Axes | Sequence[Axes], label: str, **place: Any
) -> Colorbar:
    """A bar beside the axes that says which colour is which."""
    bar = figure.colorbar(scale, ax=axes, **place)
    bar.set_label(label)
    bar.outline.set_linewidth(0.4)
    return bar


def bare(ax: Axes) -> None:
    """Axes of a grid: names without tick marks, and no frame."""
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def heads_on_top(ax: Axes) -> None:
    """A bare grid of layers down and heads across, heads named above it."""
    bare(ax)
    ax.xaxis.set_ticks_position("top")
    ax.xaxis.set_label_position("top")
    ax.set(xlabel="head", ylabel="layer (0 at the top)")


def cycle(values: Sequence[str], index: int) -> str:
    return values[index % len(values)]


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Width of a line of text in inches."""
    if not text:
        return 0.0
    width, _, _ = text_to_path.get_text_width_height_descent(
        text, FontProperties(family=list(fonts()), size=size), ismath=False
    )
    return width / 72


def wrap(text: str, width: float, size: float) -> str:
    """Break a text into lines no wider than `width` inches, measured word by word."""
    space = text_width("a b", size) - text_width("ab", size)
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line, used = "", 0.0
        for word in paragraph.split(" "):
            needed = text_width(word, size)
            if line and used + space + needed > width:
                lines.append(line)
                line, used = word, needed
            else:
                line, used = (f"{line} {word}", used + space + needed) if line else (word, needed)
        lines.append(line)
    return "\n".join(lines)


def annotate_figure(
    figure: Figure,
    title: str,
    notes: Iterable[str],
    legend: Sequence[Artist] = (),
    columns: int = 1,
    below: str = "",
) -> None:
    """Put title and legend above, the small print (count, interval, how to read) below a figure, as
    wide as it is."""
    width = (
        0.965 * figure.get_figwidth() - 0.08
    )  # hinted letters in bitmaps run up to 3.5 % wider than their outlines
    margin = 0.04 / figure.get_figwidth()
    if legend:  # the layout does not keep a title and a legend outside the axes apart, so the legend carries the title
        font = {"size": LARGE, "weight": "bold"}
        heading = wrap(title, width, LARGE)
        place: dict[str, Any] = {"loc": "outside upper left", "alignment": "left", "borderpad": 0.1}
        for number in range(columns, 0, -1):  # as many columns as the figure's width holds
            drawn = figure.legend(
                handles=list(legend),
                ncols=number,
                title=heading,
                title_fontproperties=font,
                **place,
            )
            if number == 1 or drawn.get_window_extent().width <= figure.bbox.width:
                break
            drawn.remove()
    elif title:
        figure.suptitle(
            wrap(title, width, LARGE),
            x=margin,
            ha="left",
            fontsize=LARGE,
            fontweight="bold",
            linespacing=1.15,
        )
    note = " ".join(part if part.endswith((".", "?")) else part + "." for part in notes if part)
    small_print = "\n".join(
        part for part in (wrap(note, width, SMALL) if note else "", below) if part
    )
    if small_print:
        figure.supxlabel(
            small_print, x=margin, ha="left", fontsize=SMALL, color=GREY, linespacing=1.25
        )


def finish(figure: Figure) -> Figure:
    """Lay the figure out now, under the shared settings: it then looks the same wherever it is
    shown or saved later."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(
            figure
        )  # the layout alone: drawing the figure to no place costs as much as saving it
    # Each further layout would move things by a hair, and with it the bytes; and with an engine,
    # were it one that does nothing, every saving draws the figure twice.
    figure.set_layout_engine(None)
    return figure


def complete(
    figure: Figure,
    title: str,
    notes: Iterable[str],
    legend: Sequence[Artist] = (),
    columns: int = 1,
    below: str = "",
) -> Figure:
    """The figure with its title, legend and small print (see `annotate_figure`), laid out."""
    annotate_figure(figure, title, notes, legend, columns, below)
    return finish(figure)


def panel_labels(axes: Sequence[Axes], titles: Sequence[str] = ()) -> None:
    """Letter the panels a, b, c … before their titles; a single panel gets no letter."""
    for index, ax in enumerate(axes):
        letter = f"({string.ascii_lowercase[index % 26]}) " if len(axes) > 1 else ""
        ax.set_title(letter + (titles[index] if index < len(titles) else ""))


def log_axis(axis: XAxis | YAxis) -> None:
    """A logarithmic axis with plain numbers: the default writes formulas, which our settings print
    as they are."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def layer_axis(
    ax: Axes, layers: Sequence[int] | np.ndarray, label: str = "layer (0 = first)"
) -> None:
    """An x axis of layers with as many ticks as fit."""
    count = len(layers)
    step = next(step for step in (1, 2, 3, 4, 5, 10, 20, 50, 100, count) if count / step <= 13)
    ax.set_xticks(np.arange(0, count, step), [str(layer) for layer in layers[::step]])
    ax.set_xlim(-0.6, count - 0.4)
    ax.set_xlabel(label)
