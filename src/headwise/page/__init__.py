"""The page of an atlas: one self-contained HTML file, and the small cards that notebooks show."""

from headwise.atlas.representation import html_card
from headwise.page.write import HeadGrid, PageFigure, PageHead, PageTable, Section, render_page, write_page

__all__ = ["HeadGrid", "PageFigure", "PageHead", "PageTable", "Section", "html_card", "render_page", "write_page"]
