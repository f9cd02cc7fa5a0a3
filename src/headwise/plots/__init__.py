"""One function per figure: an `xarray.Dataset` in, a matplotlib `Figure` out."""

from headwise.plots.drawing import draw_head
from headwise.plots.heatmap import heatmap, heatmap_panels
from headwise.plots.maps import all_maps
from headwise.plots.offsets import centre_of_mass, histogram_grid, mean_distance
from headwise.plots.registry import Drawn, FigureSpec, figure, figure_groups, figures_for
from headwise.plots.save import figure_bytes, save_figure
from headwise.plots.surface import entropy, heads, max_weight, positions, token_types

__all__ = [
    "Drawn",
    "FigureSpec",
    "all_maps",
    "centre_of_mass",
    "draw_head",
    "entropy",
    "figure",
    "figure_bytes",
    "figure_groups",
    "figures_for",
    "heads",
    "heatmap",
    "heatmap_panels",
    "histogram_grid",
    "max_weight",
    "mean_distance",
    "positions",
    "save_figure",
    "token_types",
]
