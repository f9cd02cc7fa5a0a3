"""Shared style, plot types and the registry of figures; each analysis keeps its own figures."""

from headwise.plots.heatmap import heatmap, heatmap_panels
from headwise.plots.maps import all_maps, draw_head
from headwise.plots.registry import DrawnFigure, FigureSpec, figure, figures_for
from headwise.plots.style import figure_bytes, save_figure

__all__ = [
    "DrawnFigure",
    "FigureSpec",
    "all_maps",
    "draw_head",
    "figure",
    "figure_bytes",
    "figures_for",
    "heatmap",
    "heatmap_panels",
    "save_figure",
]
