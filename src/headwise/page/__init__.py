"""The page of an atlas: one self-contained HTML file, and the small cards that notebooks show."""

from headwise.page.repr import html_card
from headwise.page.write import PageFigure, PageTable, Section, render_page, write_page

__all__ = ["PageFigure", "PageTable", "Section", "html_card", "render_page", "write_page"]
