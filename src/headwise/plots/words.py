"""The grid of heads with their words: what each head does, at a glance, coloured by the kind of
word."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headwise.plots import style

READABLE = 16  # heads in a layer whose words can be read on a page
# Muted, told apart by colour-blind eyes (after Tol), with the word in the cell besides.
COLOURS = {
    "syntax": "#4477aa",
    "coreference": "#aa3377",
    "repeats": "#ee6677",
    "retrieval": "#cc8844",
    "copying": "#ccbb44",
    "position": "#66ccee",
    "sink": "#bbbbbb",
    "cls": "#cfcfcf",
    "sep": "#dddddd",
    "delimiters": "#e6e6e6",
    "broad": "#228833",
    "other": "#ffffff",
}
PALE = 0.45  # how much of a colour is left under a word


def word_grid(words: np.ndarray, kinds: np.ndarray, title: str = "") -> Figure:
    """Draw `words[layer, head]`, each cell in the colour of its kind; layer 0 at the top.

    Parameters
    ----------
    words, kinds : array of str, [layer, head]
        The word of each head, and what sort of word it is (`atlas.describe()`, columns `does` and
        `kind`).
    title : str, default ""
        Above the figure.
    """
    layers, heads = words.shape
    with style.context():
        cell = min(0.52, (style.PAGE - 0.6) / heads)
        width = max(style.COLUMN, heads * cell + 0.6)
        fig, ax = style.one_panel(
            width, layers * min(cell, 0.24 if heads <= READABLE else cell) + 0.85
        )
        used = [kind for kind in COLOURS if (kinds == kind).any()]
        colours = {kind: 1 - PALE * (1 - np.array(to_rgb(COLOURS[kind]))) for kind in used}
        plain = np.ones(3)
        picture = np.array([[colours.get(str(kind), plain) for kind in row] for row in kinds])
        ax.imshow(
            picture,
            aspect="auto",
            interpolation="nearest",
            extent=(-0.5, heads - 0.5, layers - 0.5, -0.5),
        )
        if heads <= READABLE:
            for layer, head in np.ndindex(layers, heads):
                ax.text(
                    head,
                    layer,
                    str(words[layer, head])[:9],
                    ha="center",
                    va="center",
                    fontsize=style.SMALL - 1,
                )
        step = max(1, heads // 16)
        ax.set_xticks(np.arange(0, heads, step))
        ax.set_yticks(np.arange(0, layers, max(1, layers // 16)))
        style.heads_on_top(ax)
        legend = [
            Patch(
                facecolor=to_hex(tuple(colours[kind].tolist())),
                edgecolor="#999999",
                linewidth=0.4,
                label=kind,
            )
            for kind in used
        ]
        return style.complete(fig, title or "What each head does", [], legend, columns=6)
