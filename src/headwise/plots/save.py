"""Write a figure to disk so that the same figure gives the same bytes."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from fontTools import subset
from fontTools.ttLib import TTFont
from matplotlib.figure import Figure

from headwise.core.errors import ParameterError
from headwise.core.files import write_atomically
from headwise.plots import style

# Dates and program versions are left out: they are all that would differ between two runs.
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "headwise"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "headwise", "Producer": None},
    "png": {"Software": None},
}
FORMATS = tuple(_METADATA)
_UNPRINTED = ("GSUB", "GPOS", "GDEF", "kern", "FFTM", "PfEd")  # of a font: how letters are set, which is done by then


def figure_bytes(figure: Figure, format: str) -> bytes:
    """The figure as the bytes of an SVG, PDF or PNG file (PNG at 300 dots per inch)."""
    if format not in _METADATA:
        raise ParameterError(f"`format` must be one of {', '.join(FORMATS)}; it is {format!r}.")
    buffer = io.BytesIO()
    with style.context(), _light_fonts():
        figure.savefig(buffer, format=format, dpi=300, metadata=_METADATA[format])
    return buffer.getvalue()


def save_figure(figure: Figure, folder: Path | str, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `folder/name.svg`, `.pdf` and `.png`, each whole or not at all, the same figure as the same bytes; returns
    the paths written."""
    folder = Path(folder)
    written = []
    for format in formats:
        path = folder / f"{name}.{format}"
        write_atomically(path, figure_bytes(figure, format))
        written.append(path)
    return written


@contextmanager
def _light_fonts() -> Iterator[None]:
    """Letters for a PDF are taken out of fonts without the tables that say how letters are set: reading those anew for
    every file takes longer than drawing it, and no reader of the file uses them."""
    whole = subset.load_font

    def light(file: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(options, "font_number", -1) > 0 or not str(file).endswith(".ttf"):
            return whole(file, options, *args, **kwargs)
        return whole(io.BytesIO(_lightened(str(file))), options, *args, **kwargs)

    subset.load_font = light
    try:
        yield
    finally:
        subset.load_font = whole


@functools.cache
def _lightened(path: str) -> bytes:
    """A font file without the tables that a printed letter does not need, its letters in their order; from
    matplotlib 3.11 on they are asked for by their place, and need neither names nor codes."""
    with TTFont(path, recalcTimestamp=False) as font:
        for table in _UNPRINTED:
            if table in font:
                del font[table]
        if mpl.__version_info__ >= (3, 11):
            font["post"].formatType = 3.0
            for codes in font["cmap"].tables:
                codes.cmap = {code: name for code, name in codes.cmap.items() if code < 128}
        written = io.BytesIO()
        font.save(written, reorderTables=False)
    return written.getvalue()
