"""Figures of copy suppression: every head, and attention against what it takes off."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap
from headwise.plots.registry import figure

PAPER = "McDougall et al. 2023"
MAX_NAMES = 8  # heads that are named


@figure(
    "copy_suppression",
    name="heads",
    title="Heads that lower a predicted token of the text",
    caption="By how much each head lowers the logit of the token that the residual stream before its "
    "layer predicts and that stands earlier in the text, over the nearest row of the same text that "
    "does not predict it.",
    paper=PAPER,
    needs=("suppression",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Draw a heat map `[layer, head]` of `suppression`, zero in the neutral colour."""
    return heatmap(
        dataset["suppression"],
        title="Copy suppression",
        label="logit",
        centre=0.0,
        notes=data.source_notes(dataset, "suppression"),
    )


@figure(
    "copy_suppression",
    name="attention",
    title="Attention to a predicted token, and what is taken off its logit",
    caption="One point per head. Right: it attends to the earlier occurrence of a token more where "
    "that token is predicted. Up: it lowers that token's logit more there, in standard deviations of "
    "what the head adds to all logits. Copy-suppression heads do both (filled: corrected p < 0.05).",
    paper=PAPER,
    needs=("suppression_spreads", "attention_excess"),
)
def attention(dataset: xr.Dataset) -> Figure:
    """Draw `suppression_spreads` against `attention_excess`."""
    x = data.values(dataset, "attention_excess", ("layer", "head"))
    y = data.values(dataset, "suppression_spreads", ("layer", "head"))
    p_adjusted = data.values(dataset, "suppression_p_adjusted", ("layer", "head"))
    is_significant = p_adjusted < SIGNIFICANCE_LEVEL
    fig, ax = style.one_panel(style.PAGE, 3.0)
    ax.axhline(0, color=style.GREY, linewidth=0.6)
    ax.axvline(0, color=style.GREY, linewidth=0.6)
    ax.scatter(
        x[~is_significant],
        y[~is_significant],
        s=12,
        facecolors="none",
        edgecolors=style.GREY,
        linewidths=0.7,
        label="other heads",
    )
    ax.scatter(
        x[is_significant], y[is_significant], s=16, color=style.VERMILION, label="significant"
    )
    strongest = np.argwhere(is_significant)
    strongest = strongest[np.argsort(-y[is_significant], kind="stable")][:MAX_NAMES]
    for layer, head in strongest.tolist():
        ax.annotate(
            head_name(layer, head),
            (x[layer, head], y[layer, head]),
            xytext=(4, 2),
            textcoords="offset points",
        )
    ax.set_xlabel("attention to it, over the control row")
    ax.set_ylabel("lowered by (standard deviations)")
    notes = data.source_notes(dataset, "suppression_spreads")
    return style.complete(
        fig,
        "Attention to a predicted token, and its logit",
        notes,
        ax.get_legend_handles_labels()[0],
        2,
    )
