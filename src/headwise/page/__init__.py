"""The page of an atlas: one self-contained HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.page.write import (
        HeadGrid,
        PageFigure,
        PageHead,
        PageTable,
        Section,
        render_page,
        write_page,
    )

# Imported when first used: `options.py` of this package must not wait for matplotlib and torch.
__getattr__ = lazy_names(
    __name__,
    {
        "headwise.page.write": (
            "HeadGrid",
            "PageFigure",
            "PageHead",
            "PageTable",
            "Section",
            "render_page",
            "write_page",
        ),
    },
)

__all__ = [
    "HeadGrid",
    "PageFigure",
    "PageHead",
    "PageTable",
    "Section",
    "render_page",
    "write_page",
]
