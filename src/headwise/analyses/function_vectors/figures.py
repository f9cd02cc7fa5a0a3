"""Figures of function vectors: every head, and what vectors of the best heads do."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap
from headwise.plots.registry import figure

PAPER = "Todd et al. 2023"
BARS = {
    "accuracy": ("examples with right answers", style.BLUE),
    "shuffled_accuracy": ("examples with shuffled answers", style.GREY),
    "bare_accuracy": ("no examples", style.BLACK),
    "vector_accuracy": ("no examples, vector of the best heads", style.VERMILION),
    "random_accuracy": ("no examples, vectors of random heads", style.ORANGE),
}


@figure(
    "function_vectors",
    name="heads",
    title="Heads that carry a task to its answer",
    caption="What the probability of the right answer gains when the head's mean output over prompts "
    "with right examples is put into prompts with shuffled ones, mean over tasks and prompts.",
    paper=PAPER,
    needs=("gain",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Draw a heat map `[layer, head]` of `gain`, zero in the neutral colour."""
    return heatmap(
        dataset["gain"],
        title="Gain of the right answer",
        label="probability",
        centre=0.0,
        notes=data.source_notes(dataset, "gain", each="prompts"),
    )


@figure(
    "function_vectors",
    name="tasks",
    title="What vectors of the best heads do",
    caption="Share of right answers by task. A vector is the sum of what the best heads write when "
    "they give their mean output, added to the residual stream at the last token of a prompt without "
    "examples. Tasks without such bars are those that the model cannot do.",
    paper=PAPER,
    needs=("accuracy",),
)
def tasks(dataset: xr.Dataset) -> Figure:
    """Draw the accuracies of every task as bars."""
    names = data.labels(dataset, "task")
    place = np.arange(len(names))
    width = 0.8 / len(BARS)
    fig, ax = style.one_panel(style.PAGE, 2.6)
    for number, (variable, (label, colour)) in enumerate(BARS.items()):
        values = data.values(dataset, variable, ("task",))
        shift = (number - (len(BARS) - 1) / 2) * width
        ax.bar(place + shift, values, width, color=colour, label=label)
    ax.set_xticks(place, names)
    ax.set_ylim(0, 1)
    ax.set_ylabel("share of right answers")
    notes = [
        data.source_text(dataset),
        f"{dataset.attrs['tasks_done']} of {len(names)} tasks done; vectors at layer "
        f"{dataset.attrs['vector_layer']}",
    ]
    handles = ax.get_legend_handles_labels()[0]
    return style.complete(fig, "Function vectors", notes, handles, 2)
