"""Figures of repeated sequences: the three scores of every head, weight by offset, and what
disabling the best does."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.analyses.summaries import ranked_heads
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap, heatmap_panels
from headwise.plots.registry import figure

PAPER = "Olsson et al. 2022"
MAX_HEADS = 6  # heads whose weight by offset is drawn


@figure(
    "induction",
    name="heads",
    title="Attention in the second half of a repeated sequence",
    caption="Mean weight of each head, from a token of the second half of a random sequence written "
    "twice: on the token after its earlier occurrence (prefix matching: what an induction head "
    "does), on the earlier occurrence itself, and on the token before. All panels share one scale, 0 "
    "to 1.",
    paper=PAPER,
    needs=("prefix_matching",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Draw heat maps `[layer, head]` of the three scores on one scale."""
    titles = {
        "prefix_matching": "after the earlier one",
        "duplicate": "the earlier one",
        "previous": "the token before",
    }
    notes = [
        *_source_notes(dataset, "prefix_matching"),
        "Intervals and corrected p-values are in the tables",
    ]
    return heatmap_panels(
        {title: dataset[name] for name, title in titles.items()},
        title="Attention on repeated sequences",
        label="mean attention",
        limits=(0.0, 1.0),
        notes=notes,
    )


@figure(
    "induction",
    name="copying",
    title="What each head adds to the logit of the token it attends to",
    caption="Direct contribution of a head to the logit of the token it most attends to, less the "
    "mean over the vocabulary: above zero it copies, below zero it suppresses that token.",
    paper=PAPER,
    needs=("copying",),
)
def copying(dataset: xr.Dataset) -> Figure:
    """Draw a heat map `[layer, head]` of `copying`, zero in the neutral colour."""
    notes = _source_notes(dataset, "copying")
    return heatmap(dataset["copying"], title="Copying", label="logit", centre=0.0, notes=notes)


@figure(
    "induction",
    name="profile",
    title="Weight by offset, of the heads that match prefixes best",
    caption="Mean weight that a token of the second half gives to the token so many places before it. "
    "An induction head peaks just right of the repeated token (dotted), a duplicate-token head on "
    "it, a previous-token head at −1.",
    paper=PAPER,
    needs=("profile",),
)
def profile(dataset: xr.Dataset) -> Figure:
    """Draw the weight by offset of the six best heads by `prefix_matching`."""
    score = dataset["prefix_matching"].values
    best = ranked_heads(score)[:MAX_HEADS]
    fig, ax = style.one_panel(style.PAGE, 2.6)
    offsets = dataset["offset"].values
    for place, (layer, head) in enumerate(best):
        ax.plot(
            offsets,
            dataset["profile"].isel(layer=layer, head=head).values,
            color=style.cycle(style.OKABE_ITO, place),
            marker=style.cycle(style.MARKERS, place),
            markersize=2.5,
            linewidth=0.9,
            label=f"{head_name(layer, head)} {score[layer, head]:.2f}",
        )
    ax.axvline(-float(dataset.attrs["length"]), color=style.GREY, linewidth=0.7, linestyle=":")
    ax.set(
        xlabel="offset (0 = the token itself, dotted: its earlier occurrence)",
        ylabel="mean attention",
    )
    ax.set_ylim(bottom=0)
    handles = ax.get_legend_handles_labels()[0]
    how_to_read = (
        f"Halves of {dataset.attrs['length']} tokens. Beside a head: its prefix matching; "
        "intervals are in the tables"
    )
    notes = [*_source_notes(dataset, "prefix_matching"), how_to_read]
    return style.complete(
        fig, "Weight by offset, six best heads by prefix matching", notes, handles, MAX_HEADS
    )


@figure(
    "induction",
    name="disabled",
    title="What disabling the best induction heads does",
    caption="Rise of the loss of the second half when the best heads by prefix matching attend "
    "uniformly (line, with its 95 % interval over sequences), and when as many random heads of the "
    "same layers do (points).",
    paper=PAPER,
    needs=("drawn_effect",),
)
def disabled(dataset: xr.Dataset) -> Figure:
    """Draw the effect of the best heads against random draws."""
    attrs = dataset.attrs
    fig, ax = style.one_panel(style.COLUMN, 1.7)
    drawn = dataset["drawn_effect"].values
    height = np.linspace(0.15, 0.85, len(drawn))
    ax.scatter(drawn, height, s=12, color=style.BLUE, label=f"{len(drawn)} random draws", zorder=3)
    ax.axvspan(
        attrs["disabled_effect_low"],
        attrs["disabled_effect_high"],
        color=style.VERMILION,
        alpha=0.2,
        lw=0,
    )
    ax.axvline(attrs["disabled_effect"], color=style.VERMILION, linewidth=1.4, label="best heads")
    ax.axvline(0, color=style.GREY, linewidth=0.6)
    ax.set_yticks([])
    ax.set_xlabel("rise of the second half's loss (nats)")
    how_to_read = (
        f"Best: {attrs['disabled']}; p = {attrs['disabled_p']:.2g}; shade: 95 % interval over "
        "sequences"
    )
    notes = [*_source_notes(dataset, "prefix_matching"), how_to_read]
    return style.complete(
        fig, "Disabling induction heads", notes, ax.get_legend_handles_labels()[0], 2
    )


def _source_notes(dataset: xr.Dataset, name: str) -> list[str]:
    """Return the model, and the number of sequences, which belong to no corpus."""
    return [str(dataset.attrs.get("model", "")), data.count_text(dataset, name, each="sequences")]
