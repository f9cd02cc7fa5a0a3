"""Figures of attention between types of words (Kovaleva et al. 2019, §4.5)."""

from __future__ import annotations

import xarray as xr
from matplotlib.figure import Figure

from headwise.analyses.features.figures import CELLS, significant_text
from headwise.analyses.summaries import ranked_heads
from headwise.core.labels import head_name
from headwise.plots import data
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure


@figure(
    "token_pairs",
    name="pairs",
    title="Attention between types of words",
    caption="The largest weight of such a pair in an input, mean over inputs. Words like these often "
    "stand side by side, so heads that attend to a neighbour score high too: see the excess.",
    paper="Kovaleva et al. 2019, §4.5",
    needs=("attention",),
)
def pair_maps(dataset: xr.Dataset) -> Figure:
    """Draw heat maps `attention[layer, head]`, one for each pair type."""
    return heatmap_panels(
        data.panels(dataset, "attention", "pair"),
        title="Largest weight between two types of words",
        label="attention weight",
        limits=(0.0, None),
        annotate="none",
        notes=[*data.source_notes(dataset, "attention"), CELLS],
    )


@figure(
    "token_pairs",
    name="excess",
    title="Attention between types of words, beyond their distance",
    caption="Mean weight of such pairs minus that of other pairs at the same distances in the same "
    "input, of the same parts of speech where there are such: what remains is not due to the words "
    "being neighbours.",
    paper="Beyond Kovaleva et al. 2019, §4.5",
    needs=("excess",),
)
def pair_excess(dataset: xr.Dataset) -> Figure:
    """Draw heat maps `excess[layer, head]`, one for each pair type; the best tested head is
    named."""
    panels = data.panels(dataset, "excess", "pair")
    layers = data.numbers(dataset, "layer")
    heads = data.numbers(dataset, "head")
    best_heads = []
    for name, panel in panels.items():
        excess = panel.transpose("layer", "head").values
        stands_out = dataset["stands_out"].sel(pair=name).transpose("layer", "head").values
        layer, head = ranked_heads(excess)[0]
        text = f"{name}: {head_name(layers[layer], heads[head])} +{excess[layer, head]:.2f}"
        if stands_out[layer, head]:
            text += " (stands out)"
        best_heads.append(text)
    notes = [
        *data.source_notes(dataset, "excess"),
        "Best: " + "; ".join(best_heads),
        significant_text(dataset, list(panels), "pair"),
        "Mean over inputs; intervals are in the tables",
    ]
    return heatmap_panels(
        panels,
        title="Attention between two types of words beyond their distance",
        label="excess weight",
        centre=0.0,
        annotate="none",
        notes=notes,
    )
