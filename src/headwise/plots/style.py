"""The shared style of all figures: sizes, colours that colour-blind readers can tell apart, titles
and small print."""

from __future__ import annotations

import functools
import io
import re
import string
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import (
    BoundaryNorm,
    LinearSegmentedColormap,
    ListedColormap,
    to_hex,
    to_rgb,
)
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, NullFormatter

from headwise.core.errors import ParameterError
from headwise.core.files import write_atomically
from headwise.core.token_types import TOKEN_TYPES
from headwise.plots import style
from headwise.plots.scripts import TOKENS, view_file

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


def _read_tokens() -> dict[str, str]:
    """Return the colours of the light theme by name, from the one source that pages use too."""
    first_block = view_file(TOKENS).partition("}")[0]
    return dict(re.findall(r"--hw-([a-z-]+): (#[0-9a-f]{6});", first_block))


TOKEN_COLOURS = _read_tokens()
# A name with an ink (`on-NAME`) is a category of labels (`atlas.describe()`, column `kind`).
CATEGORY_COLOURS = {
    name: colour for name, colour in TOKEN_COLOURS.items() if f"on-{name}" in TOKEN_COLOURS
}


def line_colour(category: str) -> str:
    """Return the colour of a category for lines and marks on white: dark enough to be seen."""
    colour = np.array(to_rgb(CATEGORY_COLOURS[category]))
    # 3 : 1 is the least contrast of graphics (WCAG 2.1, 1.4.11).
    while contrast(colour, WHITE) < 3:
        colour = colour * 0.97
    return to_hex(tuple(colour.tolist()))


def contrast(first: np.ndarray, second: np.ndarray) -> float:
    """Return the contrast of two colours `[rgb]`, 1 to 21, as WCAG defines it."""
    lights = []
    for colour in (first, second):
        linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        lights.append(float(linear @ np.array([0.2126, 0.7152, 0.0722])) + 0.05)
    return max(lights) / min(lights)


WHITE = np.ones(3)
# Token types, in the colours of the labels that name them (`to cls`, `to sep`, `to punct`, `sink`).
TYPE_COLOURS = {"first": line_colour("sink"), "other": BLACK}
for _token_type in TOKEN_TYPES:
    TYPE_COLOURS[_token_type.name] = (
        line_colour(_token_type.colour) if _token_type.colour else BLACK
    )
# Attention weights: white for none, as on the page and in the explorer.
WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#ffffff", TOKEN_COLOURS["weight"]])

# Tried in this order for characters that the first font lacks; only installed ones are used.
_NOTO = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari")
_FONTS = ("DejaVu Sans", *_NOTO, "Arial Unicode MS")
_TICKS = {"labelsize": SMALL, "major.size": 2.5, "major.width": 0.6, "major.pad": 2.0}


@functools.cache
def fonts() -> tuple[str, ...]:
    """Return the installed fonts among those we use; the first one comes with matplotlib."""
    installed_names = {font.name for font in fontManager.ttflist}
    available = [name for name in _FONTS if name in installed_names]
    return tuple(available) or ("sans-serif",)


def rc() -> dict[str, Any]:
    """Return the matplotlib settings under which every figure is drawn and saved."""
    tick_settings = {}
    for axis in "xy":
        for name, value in _TICKS.items():
            tick_settings[f"{axis}tick.{name}"] = value
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
        **tick_settings,
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
        "text.parse_math": False,  # tokens and model names may contain dollar signs
        "hatch.linewidth": 0.5,
        "figure.dpi": 150,
        "figure.constrained_layout.w_pad": 0.03,
        "figure.constrained_layout.h_pad": 0.03,
        "svg.hashsalt": "headwise",
        "pdf.fonttype": 42,
    }


@contextmanager
def context() -> Iterator[None]:
    """Apply the shared settings within a `with` block; nothing outside it changes."""
    settings: Any = {**_defaults(), **rc()}
    with mpl.rc_context(settings), warnings.catch_warnings():
        # A character that no installed font has is drawn as a box: no warning is needed.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


# Settings of windows, dates and help texts have no effect on a saved figure.
_NOT_RESET = (
    "backend",
    "interactive",
    "toolbar",
    "webagg",
    "tk.",
    "macosx",
    "keymap",
    "savefig.directory",
    "date.",
    "timezone",
    "docstring",
)


@functools.cache
def _defaults() -> dict[str, Any]:
    """Return matplotlib's own defaults, so that a user's settings do not change our bytes."""
    defaults = {}
    for name, value in mpl.rcParamsDefault.items():
        if not str(name).startswith(_NOT_RESET):
            defaults[str(name)] = value
    return defaults


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that belongs to no window and is laid out automatically."""
    return Figure(figsize=(width, height), layout="constrained")


def one_panel(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a new figure and its single pair of axes."""
    figure = new_figure(width, height)
    return figure, figure.subplots()


def layer_colours(layers: int) -> np.ndarray:
    """Return one colour per layer, dark to light, `[layer, rgba]`, without the palest ones."""
    return mpl.colormaps[SEQUENTIAL](np.linspace(0.0, 0.9, max(layers, 1)))


def layer_scale(layers: int) -> ScalarMappable:
    """Return the colour scale of layers, one colour each, for a colour bar."""
    boundaries = np.arange(layers + 1) - 0.5
    return ScalarMappable(BoundaryNorm(boundaries, layers), ListedColormap(layer_colours(layers)))


def colour_bar(
    figure: Figure, scale: ScalarMappable, axes: Axes | Sequence[Axes], label: str, **layout: Any
) -> Colorbar:
    """Add a colour bar beside the axes; `layout` goes to `Figure.colorbar`."""
    bar = figure.colorbar(scale, ax=axes, **layout)
    bar.set_label(label)
    bar.outline.set_linewidth(0.4)
    return bar


def bare(ax: Axes) -> None:
    """Remove tick marks and frame, as suits a grid; tick labels stay."""
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def heads_on_top(ax: Axes) -> None:
    """Label a grid of layers (down) and heads (across), with the heads named above it."""
    bare(ax)
    ax.xaxis.set_ticks_position("top")
    ax.xaxis.set_label_position("top")
    ax.set(xlabel="head", ylabel="layer (0 at the top)")


def cycle(values: Sequence[str], index: int) -> str:
    """Return the value at an index, starting over after the last one."""
    return values[index % len(values)]


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Return the width of a line of text in inches, at a size in points."""
    if not text:
        return 0.0
    font = FontProperties(family=list(fonts()), size=size)
    width_in_points, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return width_in_points / 72


def wrap(text: str, width: float, size: float) -> str:
    """Break a text into lines no wider than `width` inches, measured word by word."""
    space_width = text_width("a b", size) - text_width("ab", size)
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        line_width = 0.0
        for word in paragraph.split(" "):
            word_width = text_width(word, size)
            if not line:
                line = word
                line_width = word_width
            elif line_width + space_width + word_width > width:
                lines.append(line)
                line = word
                line_width = word_width
            else:
                line = f"{line} {word}"
                line_width = line_width + space_width + word_width
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
    """Add title and legend above a figure and the small print below it, wrapped to its width.

    Parameters
    ----------
    figure : Figure
        The figure to annotate.
    title : str
        Printed in bold at the top left; "" for none.
    notes : iterable of str
        Sentences of the small print (number of examples, interval, how to read); empty ones are
        left out and a missing full stop is added.
    legend : sequence of Artist, default ()
        The handles of the legend.
    columns : int, default 1
        The most columns of the legend; fewer where the figure is too narrow.
    below : str, default ""
        Lines printed below the small print as they are.
    """
    # Hinted letters in bitmaps run up to 3.5 % wider than their outlines.
    width = 0.965 * figure.get_figwidth() - 0.08
    margin = 0.04 / figure.get_figwidth()
    if legend:
        # The layout engine lets a title and a legend outside the axes overlap, so the legend
        # carries the title.
        _add_legend(figure, wrap(title, width, LARGE), legend, columns)
    elif title:
        figure.suptitle(
            wrap(title, width, LARGE),
            x=margin,
            ha="left",
            fontsize=LARGE,
            fontweight="bold",
            linespacing=1.15,
        )

    sentences = []
    for note in notes:
        if note:
            sentences.append(note if note.endswith((".", "?")) else note + ".")
    blocks = []
    if sentences:
        blocks.append(wrap(" ".join(sentences), width, SMALL))
    if below:
        blocks.append(below)
    if blocks:
        figure.supxlabel(
            "\n".join(blocks), x=margin, ha="left", fontsize=SMALL, color=GREY, linespacing=1.25
        )


def _add_legend(figure: Figure, title: str, handles: Sequence[Artist], columns: int) -> None:
    """Add a legend above the axes, in as many columns as the figure's width holds."""
    for n_columns in range(columns, 0, -1):
        legend = figure.legend(
            handles=list(handles),
            ncols=n_columns,
            title=title,
            title_fontproperties={"size": LARGE, "weight": "bold"},
            loc="outside upper left",
            alignment="left",
            borderpad=0.1,
        )
        if n_columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()


def finish(figure: Figure) -> Figure:
    """Lay the figure out now, under the shared settings, so that it looks the same wherever it is
    displayed or saved later."""
    engine = figure.get_layout_engine()
    if engine is not None:
        # The layout alone: a full drawing without output costs as much as saving the figure.
        engine.execute(figure)
    # A second layout would move things slightly and change the bytes. With any engine, even one
    # that does nothing, each save would also draw the figure twice.
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
    """Add title, legend and small print (see `annotate_figure`), then lay the figure out."""
    annotate_figure(figure, title, notes, legend, columns, below)
    return finish(figure)


def panel_labels(axes: Sequence[Axes], titles: Sequence[str] = ()) -> None:
    """Letter the panels a, b, c … before their titles; a single panel gets no letter."""
    for index, ax in enumerate(axes):
        letter = f"({string.ascii_lowercase[index % 26]}) " if len(axes) > 1 else ""
        title = titles[index] if index < len(titles) else ""
        ax.set_title(letter + title)


def log_axis(axis: XAxis | YAxis) -> None:
    """Make an axis logarithmic, with plain numbers as tick labels."""
    # The default labels are formulas, which our settings (no `text.parse_math`) print literally.
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def layer_axis(
    ax: Axes, layers: Sequence[int] | np.ndarray, label: str = "layer (0 = first)"
) -> None:
    """Label the x axis with layers, with as many ticks as fit."""
    count = len(layers)
    steps = (1, 2, 3, 4, 5, 10, 20, 50, 100, count)
    step = next(step for step in steps if count / step <= 13)
    ax.set_xticks(np.arange(0, count, step), [str(layer) for layer in layers[::step]])
    ax.set_xlim(-0.6, count - 0.4)
    ax.set_xlabel(label)


# --- files: the same figure always gives the same bytes ------------------------------------------

# Without dates and program versions, which are all that would differ between two runs.
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "headwise"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "headwise", "Producer": None},
    "png": {"Software": None},
}
FORMATS = tuple(_METADATA)


def figure_bytes(figure: Figure, format: str) -> bytes:
    """Return a figure as the bytes of an SVG, PDF or PNG file (PNG at 300 dots per inch)."""
    if format not in _METADATA:
        raise ParameterError(f"`format` must be one of {', '.join(FORMATS)}; it is {format!r}.")
    buffer = io.BytesIO()
    with style.context():
        figure.savefig(buffer, format=format, dpi=300, metadata=_METADATA[format])
    return buffer.getvalue()


def save_figure(
    figure: Figure, folder: Path | str, name: str, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write `folder/name.svg`, `.pdf` and `.png` atomically, and return the paths written."""
    folder = Path(folder)
    written = []
    for format in formats:
        path = folder / f"{name}.{format}"
        write_atomically(path, figure_bytes(figure, format))
        written.append(path)
    return written
