"""One function per figure: an `xarray.Dataset` in, a matplotlib `Figure` out."""

from headwise.plots.attribution import contribution_centre, correlation
from headwise.plots.attribution_maps import map_pairs, word_mix
from headwise.plots.attribution_tables import special_table
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
    "contribution_centre",
    "correlation",
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
    "map_pairs",
    "max_weight",
    "mean_distance",
    "positions",
    "save_figure",
    "special_table",
    "token_types",
    "word_mix",
]
