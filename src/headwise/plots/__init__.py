"""What figures share: style, primitives, and the list of figures; the figures of a question lie
beside its analysis."""

from headwise.plots.drawing import draw_head
from headwise.plots.heatmap import heatmap, heatmap_panels
from headwise.plots.maps import all_maps
from headwise.plots.registry import Drawn, FigureSpec, figure, figures_for
from headwise.plots.save import figure_bytes, save_figure

__all__ = [
    "Drawn",
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
