"""Figures of attention between kinds of words (Kovaleva et al. 2019, §4.5)."""

from __future__ import annotations

import xarray as xr
from matplotlib.figure import Figure

from headwise.analyses.features.figures import CELLS, random_text
from headwise.analyses.summaries import ranked_heads
from headwise.core.labels import head_name
from headwise.plots import data
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure


@figure(
    "token_pairs",
    name="pairs",
    title="Attention between kinds of words",
    caption="The largest weight of such a pair in an input, mean over inputs. Words like these often stand side by "
    "side, so heads that look at a neighbour score high too: see the excess.",
    paper="Kovaleva et al. 2019, §4.5",
    needs=("attention",),
)
def pair_maps(dataset: xr.Dataset) -> Figure:
    """Heat maps `attention[layer, head]`, one for each kind of pair."""
    notes = [*data.ground(dataset, "attention"), CELLS]
    return heatmap_panels(
        data.panels(dataset, "attention", "pair"),
        title="Largest weight between two kinds of words",
        label="attention weight",
        limits=(0.0, None),
        annotate="none",
        notes=notes,
    )


@figure(
    "token_pairs",
    name="excess",
    title="Attention between kinds of words, beyond their distance",
    caption="Mean weight of such pairs minus that of other pairs at the same distances in the same input, of the same "
    "parts of speech where there are such: what remains is not due to the words being neighbours.",
    paper="Beyond Kovaleva et al. 2019, §4.5",
    needs=("excess",),
)
def pair_excess(dataset: xr.Dataset) -> Figure:
    """Heat maps `excess[layer, head]`, one for each kind of pair; the best tested head is named."""
    panels = data.panels(dataset, "excess", "pair")
    layers, heads = data.numbers(dataset, "layer"), data.numbers(dataset, "head")
    best = []
    for name, panel in panels.items():
        excess, out = (
            one.transpose("layer", "head").values
            for one in (panel, dataset["stands_out"].sel(pair=name))
        )
        place = ranked_heads(excess)[0]
        sure = " (stands out)" if out[place] else ""
        best.append(
            f"{name}: {head_name(layers[place[0]], heads[place[1]])} +{excess[place]:.2f}{sure}"
        )
    notes = [
        *data.ground(dataset, "excess"),
        "Best: " + "; ".join(best),
        random_text(dataset, list(panels), "pair"),
        "Mean over inputs; intervals are in the tables",
    ]
    return heatmap_panels(
        panels,
        title="Attention between two kinds of words beyond their distance",
        label="excess weight",
        centre=0.0,
        annotate="none",
        notes=notes,
    )
