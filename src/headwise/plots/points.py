"""One point for each head, coloured by layer, with a bar that says which colour is which layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from headwise.plots import style


def head_points(fig: Figure, ax: Axes, x: np.ndarray, y: np.ndarray, layers: Sequence[int]) -> None:
    """Draw `x[layer, head]` against `y[layer, head]`."""
    palette = style.layer_colours(len(layers))
    for row, colour in enumerate(palette):
        ax.scatter(x[row], y[row], s=13, color=colour, edgecolors="white", linewidths=0.3, zorder=3)
    ax.grid()
    ax.locator_params(axis="x", nbins=6)
    scale = ScalarMappable(BoundaryNorm(np.arange(len(layers) + 1) - 0.5, len(layers)), ListedColormap(palette))
    step = max(1, -(-len(layers) // 8))
    bar = fig.colorbar(scale, ax=ax, fraction=0.05, pad=0.02, ticks=np.arange(0, len(layers), step))
    bar.ax.set_yticklabels([str(layer) for layer in layers[::step]])
    bar.minorticks_off()
    bar.set_label("layer")
    bar.outline.set_linewidth(0.4)
