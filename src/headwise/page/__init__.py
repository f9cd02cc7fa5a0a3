"""The page of an atlas: one self-contained HTML file."""

from headwise.page.write import (
    HeadGrid,
    PageFigure,
    PageHead,
    PageTable,
    Section,
    render_page,
    write_page,
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
