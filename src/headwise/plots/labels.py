"""The grid of heads with their labels: what each head does, coloured by the group of the label."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headwise.plots import style

READABLE = 16  # the most heads in a layer whose labels can be read on a page
LABEL_LENGTH = 9  # characters of a label that fit into a cell


def label_grid(labels: np.ndarray, groups: np.ndarray, title: str = "") -> Figure:
    """Draw `labels[layer, head]`, each cell in the colour of its group; layer 0 at the top.

    Parameters
    ----------
    labels, groups : array of str, [layer, head]
        The label of each head and the group it belongs to (`atlas.describe()`, columns `does` and
        `kind`).
    title : str, default ""
        Above the figure; "What each head does" where it is empty.
    """
    layers, heads = labels.shape
    readable = heads <= READABLE
    with style.context():
        cell_width = min(0.52, (style.PAGE - 0.6) / heads)
        cell_height = min(cell_width, 0.24) if readable else cell_width
        width = max(style.COLUMN, heads * cell_width + 0.6)
        fig, ax = style.one_panel(width, layers * cell_height + 0.85)

        colours = style.CATEGORY_COLOURS
        used_groups = [group for group in colours if (groups == group).any()]
        picture = np.ones((layers, heads, 3))
        legend = []
        for group in used_groups:
            picture[groups == group] = to_rgb(colours[group])
            legend.append(
                Patch(facecolor=colours[group], edgecolor="#999999", linewidth=0.4, label=group)
            )
        ax.imshow(
            picture,
            aspect="auto",
            interpolation="nearest",
            extent=(-0.5, heads - 0.5, layers - 0.5, -0.5),
        )
        if readable:
            for layer, head in np.ndindex(layers, heads):
                ax.text(
                    head,
                    layer,
                    str(labels[layer, head])[:LABEL_LENGTH],
                    ha="center",
                    va="center",
                    fontsize=style.SMALL - 1,
                    color=style.TOKEN_COLOURS.get(f"on-{groups[layer, head]}", style.INK),
                )
        ax.set_xticks(np.arange(0, heads, max(1, heads // 16)))
        ax.set_yticks(np.arange(0, layers, max(1, layers // 16)))
        style.heads_on_top(ax)
        return style.complete(fig, title or "What each head does", [], legend, columns=6)
