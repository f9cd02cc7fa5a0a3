"""Figures of retrieval: scores of heads, and where the needle was found."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap
from headwise.plots.registry import figure

PAPER = "Wu et al. 2024"


@figure(
    "retrieval",
    name="heads",
    title="Heads that attend to the needle while it is said",
    caption="Share of the needle's tokens at which the head's largest weight lay on that very token "
    "when it was said, mean over the trials that the model passed.",
    paper=PAPER,
    needs=("score",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Draw a heat map `[layer, head]` of `score`."""
    notes = data.source_notes(dataset, "score", each="trials")
    return heatmap(
        dataset["score"], title="Retrieval score", label="share", limits=(0.0, 1.0), notes=notes
    )


@figure(
    "retrieval",
    name="trials",
    title="Where the needle was found",
    caption="Share of the needle that the model said, by length of the prompt and depth of the needle "
    "(0: beginning, 1: end). Trials under one half count as failed.",
    paper=PAPER,
    needs=("emitted",),
)
def trials(dataset: xr.Dataset) -> Figure:
    """Draw `emitted[length, depth]` as a grid with its numbers."""
    emitted = dataset["emitted"].values
    fig, ax = style.one_panel(style.COLUMN, 0.9 + 0.35 * len(emitted))
    image = ax.imshow(emitted, vmin=0, vmax=1, cmap=style.SEQUENTIAL, aspect="auto")
    for (row, column), value in np.ndenumerate(emitted):
        ax.text(
            column,
            row,
            f"{value:.2f}",
            ha="center",
            va="center",
            color="black" if value > 0.6 else "white",
        )
    ax.set_xticks(range(emitted.shape[1]), [f"{depth:.2f}" for depth in dataset["depth"].values])
    ax.set_yticks(range(emitted.shape[0]), [str(length) for length in dataset["length"].values])
    ax.set(xlabel="depth of the needle", ylabel="tokens")
    fig.colorbar(image, ax=ax, label="share said")
    passed = f"{dataset.attrs['trials_passed']} of {dataset.attrs['trials']} trials passed"
    return style.complete(fig, "The needle", [data.source_text(dataset), passed])
