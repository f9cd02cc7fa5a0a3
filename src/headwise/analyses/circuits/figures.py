"""Figures of circuits: what heads copy and match by their weights, and which compose."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from headwise.core.labels import parse_head
from headwise.plots import style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure, table_of

PAPER = "Elhage et al. 2021"
MAX_PAIRS = 60  # compositions that are drawn


@figure(
    "circuits",
    name="heads",
    title="What heads copy and match, by their weights alone",
    caption="Left: 1 where every token the head sees raises its own logit, −1 where it lowers it. "
    "Right: 1 where tokens look for themselves. From the eigenvalues of whole circuits; no text was "
    "read.",
    paper=PAPER,
    needs=("ov_copying", "qk_matching"),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Draw heat maps `[layer, head]` of `ov_copying` and `qk_matching`."""
    titles = {"ov_copying": "copying (OV)", "qk_matching": "matching (QK, offset 0)"}
    panels = {title: dataset[name] for name, title in titles.items() if name in dataset}
    notes = [
        str(dataset.attrs.get("model", "")),
        f"Not in the matrices: {dataset.attrs['left_out_of_weights']}",
    ]
    return heatmap_panels(
        panels,
        title="Copying and matching circuits",
        label="Σλ / Σ|λ|",
        limits=(-1, 1),
        centre=0.0,
        notes=notes,
    )


@figure(
    "circuits",
    name="composition",
    title="Heads that compose",
    caption="The strongest compositions of an earlier head (left end) into a later one (right end), "
    "by the side of the later head that reads it. Height: place of the head in its layer; colour: "
    "side. Only those significant after correction, at most sixty.",
    paper=PAPER,
    needs=("pair_composition",),
)
def composition(dataset: xr.Dataset) -> Figure:
    """Draw lines between heads, one for each of the strongest pairs."""
    colours = {"query": style.BLUE, "key": style.VERMILION, "value": style.GREEN}
    fig, ax = style.one_panel(style.PAGE, 2.9)
    significant = np.flatnonzero(dataset["pair_p_adjusted"].values < 0.05)[:MAX_PAIRS]
    strongest = float(np.nanmax(dataset["pair_composition"].values, initial=1e-9))
    # The strongest pairs are drawn last, on top.
    for rank in significant[::-1]:
        layer_a, head_a = parse_head(str(dataset["pair_from"].values[rank]))
        layer_b, head_b = parse_head(str(dataset["pair_to"].values[rank]))
        strength = float(dataset["pair_composition"][rank]) / strongest
        x = [layer_a, layer_b]
        y = [head_a, head_b]
        ax.plot(
            x,
            y,
            color=colours[str(dataset["pair_side"].values[rank])],
            linewidth=0.4 + 1.6 * strength,
            alpha=0.35 + 0.6 * strength,
        )
        ax.plot(x, y, linestyle="", marker="o", markersize=2.5, color=style.INK)
    style.layer_axis(ax, dataset["layer"].values)
    ax.set_ylabel("head")
    ax.set_ylim(dataset.sizes["head"] - 0.5, -0.5)
    handles = []
    for side, colour in colours.items():
        handles.append(ax.plot([], [], color=colour, label=f"{side} side")[0])
    notes = [
        str(dataset.attrs.get("model", "")),
        f"{len(significant)} of {int(dataset['compositions_sure'])} significant pairs drawn, the "
        "wider the stronger. From weights alone: no inputs, so no interval",
    ]
    return style.complete(fig, "Heads that compose", notes, handles, 3)


@table_of(
    "circuits",
    name="pairs",
    title="The strongest compositions",
    note="An earlier head into a later one.",
)
def pairs(dataset: xr.Dataset) -> pd.DataFrame:
    """Return the strongest pairs with their p-values."""
    names = ("pair_from", "pair_to", "pair_side", "pair_composition", "pair_p", "pair_p_adjusted")
    return pd.DataFrame({name.removeprefix("pair_"): dataset[name].values for name in names})
