"""Figures of circuits: the faithfulness of growing circuits, the circuit as a graph, and what every
head and MLP carries."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from headwise.experiments.circuit.layout import NODE, CircuitEdge, CircuitLayout, circuit_layout
from headwise.plots import style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure, table_of

INPUT_COLOURS = {
    "query": style.BLUE,
    "key": style.VERMILION,
    "value": style.GREEN,
    "": style.GREY,
}
INPUT_NAMES = {"query": "query", "key": "key", "value": "value", "": "MLP or logits"}
WIDEST = 3.0  # points: the line of the strongest edge
NARROW_ROW = 3  # nodes side by side that fit a column
ROW_HEIGHT = 0.3  # inches
ARC_ROOM = 0.25  # inches
ARC_REACH = 0.5  # inches from the column of MLPs
NODE_HEIGHT = 7.0  # points: half of a node's box, with room for the tip of an arrow
LETTER_WIDTH = 1.9  # points: half of a letter of a node's name
TABLE_EDGES = 100


@figure(
    "circuit",
    name="curve",
    title="How much of the behaviour a circuit keeps",
    caption="Share of the metric that the best edges keep when all others carry the corrupted input "
    "(faithfulness), and that is left when only they do (completeness), on pairs that were not used "
    "to rank edges. Bands: 95 % intervals over units. Grey: random rankings.",
    paper="Hanna et al. 2024",
    needs=("faithfulness",),
)
def curve(dataset: xr.Dataset) -> Figure:
    """`faithfulness` and `completeness` over the number of edges."""
    fig, ax = style.one_panel(style.COLUMN, 2.6)
    sizes = dataset["size"].values
    if "random_faithfulness" in dataset:
        for shares in dataset["random_faithfulness"].values:
            ax.plot(sizes, shares, color=style.PALE, linewidth=0.6, zorder=1)
    lines = {
        "faithfulness": ("these edges alone", style.BLUE),
        "completeness": ("all edges but these", style.VERMILION),
    }
    for name, (label, colour) in lines.items():
        low = dataset[f"{name}_low"].values
        high = dataset[f"{name}_high"].values
        ax.fill_between(sizes, low, high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(sizes, dataset[name].values, color=colour, linewidth=1.2, label=label)
    facts = dataset.attrs
    ax.axhline(facts["wanted_faithfulness"], color=style.GREY, linewidth=0.6, linestyle=":")
    if facts["circuit_size"]:
        ax.axvline(facts["circuit_size"], color=style.GREY, linewidth=0.6, linestyle=":")
    style.log_axis(ax.xaxis)
    ax.set_xlabel("edges")
    ax.set_ylabel("share of the metric")
    # Where neither line is: to the left of the rise, above the remainder.
    ax.legend(loc="upper left", frameon=False, fontsize=style.SMALL, bbox_to_anchor=(0.0, 0.78))
    notes = [f"n = {facts['pairs']} pairs in {facts['units']} units"]
    if "random_area" in facts:
        notes.append(
            f"Area {facts['area']:.2f}; random rankings (grey) {facts['random_area']:.2f}, "
            f"p {facts['area_p']:.2g}"
        )
    return style.complete(fig, f"Circuit of {facts['task']}", notes)


@figure(
    "circuit",
    name="graph",
    title="The circuit",
    caption="The strongest edges of the smallest circuit that keeps the stated share of the metric. "
    "Layers from the embedding (bottom) to the logits (top); width: effect of the edge; colour: the "
    "input of the head that it enters; dashed: the edge works against the answer.",
    paper="Wang et al. 2022",
    needs=("in_circuit",),
)
def graph(dataset: xr.Dataset) -> Figure:
    """The circuit as a graph with a row for each layer."""
    layout = circuit_layout(dataset)
    height = min(style.PAGE_HEIGHT, max(2.6, 0.9 + ROW_HEIGHT * len(layout.rows)))
    # A circuit of few heads side by side fits a column, and its edges are not stretched flat.
    n_beside = max((len(row) for row in layout.rows), default=0)
    width = style.COLUMN if n_beside <= NARROW_ROW else style.PAGE
    fig, ax = style.one_panel(width, height)
    if not layout.edges:
        ax.set_axis_off()
        return style.complete(fig, "No circuit", ["No part of the model does the task alone."])
    largest = max(abs(edge.effect) for edge in layout.edges)
    for edge in layout.edges:
        _draw_edge(ax, layout, edge, largest, width)
    for name, (x, y) in layout.places.items():
        ax.annotate(
            name,
            (x, y),
            ha="center",
            va="center",
            fontsize=style.SMALL,
            zorder=4,
            bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": style.GREY},
        )
    rows = range(len(layout.rows))
    ax.set_yticks(list(rows), [_row_label(nodes) for nodes in layout.rows])
    ax.set_xticks([])
    # Arcs between MLPs bend out to the right of their column.
    ax.set_xlim(-0.06, 1.06 + ARC_ROOM / width)
    ax.set_ylim(-0.6, len(layout.rows) - 0.4)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)
    inputs = [role for role in INPUT_COLOURS if any(edge.input == role for edge in layout.edges)]
    handles = []
    for role in inputs:
        handles.append(Line2D([], [], color=INPUT_COLOURS[role], label=INPUT_NAMES[role]))
    ax.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(handles),
        frameon=False,
        fontsize=style.SMALL,
    )
    facts = dataset.attrs
    notes = [
        f"{len(layout.edges)} strongest of {facts['circuit_edges']} edges; effects from "
        f"{min(abs(edge.effect) for edge in layout.edges):.2f} to {largest:.2f}",
        f"n = {facts['pairs']} pairs",
    ]
    return style.complete(fig, f"Circuit of {facts['task']}", notes)


def _draw_edge(
    ax: Axes, layout: CircuitLayout, edge: CircuitEdge, largest: float, width: float
) -> None:
    """Draw an edge as an arc, wider the stronger it is, in a figure of this width in inches."""
    start = layout.places[edge.sender]
    stop = layout.places[edge.receiver]
    # Edges that span several layers bend, so that they do not run through the nodes between.
    bend = 0.0
    if stop[1] - start[1] > 1:
        bend = 0.12 if start[0] >= stop[0] else -0.12
    if start[0] == stop[0] and stop[1] - start[1] > 1:
        bend = _bend_beside(stop[1] - start[1])
    across = abs(stop[0] - start[0]) * width
    upward = abs(stop[1] - start[1]) * ROW_HEIGHT
    ax.add_patch(
        FancyArrowPatch(
            start,
            stop,
            arrowstyle="-|>",
            mutation_scale=6,
            shrinkA=0,  # the box of the sender hides the beginning
            shrinkB=_gap(edge.receiver, across, upward),
            linewidth=max(0.4, WIDEST * abs(edge.effect) / largest),
            linestyle="-" if edge.effect > 0 else (0, (3, 2)),
            color=INPUT_COLOURS[edge.input],
            alpha=0.75,
            connectionstyle=f"arc3,rad={bend}",
            zorder=2,
        )
    )


def _bend_beside(n_rows: float) -> float:
    """Return the bend (offset of the control point over the length) of an arc that spans so many
    rows of one column: longer ones reach further out, none further than there is room."""
    reach = ARC_REACH * n_rows / (n_rows + 6)
    return 2 * reach / (n_rows * ROW_HEIGHT)


def _gap(node: str, across: float, upward: float) -> float:
    """Return the points between the middle of a node and where a line in this direction leaves its
    box: an arrow that ends nearer would hide its tip."""
    length = math.hypot(across, upward)
    half_width = LETTER_WIDTH * len(node) + 3.5
    gap = NODE_HEIGHT * length / upward if upward else math.inf
    if across:
        gap = min(gap, half_width * length / across)
    return gap


def _row_label(nodes: list[str]) -> str:
    """Return the label of a row of heads, its layer; other rows need none."""
    match = NODE.fullmatch(nodes[0])
    if match is None or match[2] == "MLP":
        return ""
    return f"layer {match[1]}"


@figure(
    "circuit",
    name="nodes",
    title="What every head carries",
    caption="What the metric loses, to first order, when the head gives what it gives on the "
    "corrupted input: the sum over its outgoing edges.",
    paper="Syed et al. 2023",
    needs=("head_effect",),
)
def nodes(dataset: xr.Dataset) -> Figure:
    """Heat map `[layer, head]` of `head_effect`, zero in the neutral colour."""
    total = float(np.abs(dataset["mlp_effect"].values).max())
    return heatmap_panels(
        {"heads": dataset["head_effect"]},
        title="What every head carries",
        label="loss of the metric",
        centre=0.0,
        notes=[
            f"n = {dataset.attrs['pairs']} pairs",
            f"metric {dataset.attrs['clean']:.2f} clean, {dataset.attrs['corrupted']:.2f} corrupted",
            f"strongest MLP {total:.2f}",
        ],
    )


@table_of("circuit", name="edges", title="The best edges")
def edges(dataset: xr.Dataset) -> pd.DataFrame:
    """The edges with the largest effects, with intervals, exact effects and corrected p-values."""
    best = dataset.isel(edge=slice(0, TABLE_EDGES))
    columns = {
        "sender": best["sender"].values,
        "receiver": best["receiver"].values,
        "input": best["input"].values,
        "effect": best["effect"].values,
        "low": best["effect_low"].values,
        "high": best["effect_high"].values,
        "exact": best["exact"].values,
        "corrected p": best["effect_p_adjusted"].values,
        "in the circuit": np.where(best["in_circuit"].values, "yes", ""),
    }
    return pd.DataFrame(columns)
