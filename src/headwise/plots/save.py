"""Save figures; the same figure always gives the same bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from headwise.core.errors import ParameterError
from headwise.core.files import write_atomically
from headwise.plots import style

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
