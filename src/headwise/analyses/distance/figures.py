"""Figures of distances between heads: as points, as a tree of families, by layers (Clark et al.
2019, §6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.patheffects as effects
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headwise.plots import data, style
from headwise.plots.registry import figure

NAMED_HEADS = 60  # up to so many heads, the leaves of the tree have names
LARGE_FAMILY = 0.03  # share of the heads from which on a family is named


@figure(
    "distance",
    name="map",
    title="Heads as points: near heads attend alike",
    caption="Every point is a head; the distance between two points comes near the Jensen-Shannon "
    "divergence between their attention. Left, coloured by layer: heads of one layer tend to "
    "lie together. Right, coloured by what the heads do, or by family where that is not "
    "known.",
    paper="Clark et al. 2019, §6, Fig 6",
    needs=("mds",),
)
def head_map(dataset: xr.Dataset) -> Figure:
    """Draw the map of heads by SMACOF (else by classical scaling), coloured by layer and by
    behaviour or family (Fig 6)."""
    if data.has(dataset, "mds_smacof"):
        points = data.values(dataset, "mds_smacof", ("head_a", "axis"))
        stress = dataset.attrs.get("stress_smacof")
    else:
        points = data.values(dataset, "mds", ("head_a", "axis"))
        stress = dataset.attrs.get("stress")
    if points.shape[1] < 2:
        points = np.column_stack([points, np.zeros(len(points))])
    if "behaviour" in dataset:
        groups = [str(behaviour) for behaviour in dataset["behaviour"].values]
        group_label = "by behaviour"
    else:
        groups = [f"family {number}" for number in dataset["cluster"].values]
        group_label = "by family"

    layer_of_head = dataset["layer_of_a"].values
    n_layers = int(layer_of_head.max()) + 1
    colours = style.layer_colours(n_layers)[layer_of_head]
    fig = style.new_figure(style.PAGE, 4.3)
    left, right = fig.subplots(1, 2)
    left.scatter(points[:, 0], points[:, 1], c=colours, s=14, linewidths=0.3, edgecolors="white")
    bar = style.colour_bar(fig, style.layer_scale(n_layers), left, "layer", pad=0.01, aspect=35)
    bar.set_ticks(list(range(0, n_layers, _label_step(n_layers))))
    handles = _scatter_groups(right, points, groups)

    # One square window for both, so that distances can be compared.
    x, y = (points.max(0) + points.min(0)) / 2
    reach = max(float(np.ptp(points, axis=0).max()) * 0.54, 1e-3)
    for ax in (left, right):
        ax.set(aspect="equal", xlabel="first axis (nats)")
        ax.set(xlim=(x - reach, x + reach), ylim=(y - reach, y + reach))
    left.set_ylabel("second axis (nats)")
    style.panel_labels([left, right], ["by layer", group_label])
    note = ""
    if stress is not None:
        note = f"Stress {stress:.2f}: how far the distances on paper are from the divergences"
    title = "Heads as points: near heads attend alike"
    return style.complete(fig, title, _notes(dataset, note), handles, 6)


@figure(
    "distance",
    name="tree",
    title="Families of heads",
    caption="Above, the tree of heads by Ward's rule on the root of the divergence; below it, each "
    "head's layer and the divergences between all pairs in the order of the tree. Bright "
    "squares along the diagonal are families of heads that attend alike.",
    paper="Clark et al. 2019, §6",
    needs=("linkage",),
)
def tree(dataset: xr.Dataset) -> Figure:
    """Draw a dendrogram over the matrix of distances in the order of its leaves, with the layer of
    each head between them."""
    linkage = data.values(dataset, "linkage", ("merge", "part"))
    n_heads = dataset.sizes["head_a"]
    order = np.argsort(dataset["leaf"].values)
    family = dataset["cluster"].values
    family_in_order = family[order]
    layer_of_head = dataset["layer_of_a"].values
    n_layers = int(layer_of_head.max()) + 1
    layer_scale = style.layer_scale(n_layers)
    divergence = data.values(dataset, "js", ("head_a", "head_b"))[np.ix_(order, order)]

    fig = style.new_figure(style.PAGE, 7.4)
    top, strip, square = fig.subplots(3, 1, height_ratios=[1.7, 0.14, 5.0], sharex=True)
    _draw_tree(top, linkage, order, family)
    image_style: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
    layers_in_order = layer_of_head[order][None]
    strip.imshow(layers_in_order, norm=layer_scale.norm, cmap=layer_scale.cmap, **image_style)
    strip.set_yticks([0], ["layer"])
    image = square.imshow(divergence, cmap="viridis_r", vmin=0, **image_style)
    for edge in np.flatnonzero(np.diff(family_in_order)) + 0.5:
        square.axhline(edge, color="white", linewidth=0.7)
        square.axvline(edge, color="white", linewidth=0.7)
    for ax in (top, strip, square):
        style.bare(ax)
    if n_heads <= NAMED_HEADS:
        names = [str(name) for name in dataset["head_a"].values[order]]
        square.set_xticks(range(n_heads), names, rotation=90)
        square.set_yticks(range(n_heads), names)
    else:
        _name_families(square, family_in_order)
    bar_style: dict[str, Any] = {"fraction": 0.03, "pad": 0.01}
    label = "mean Jensen-Shannon divergence (nats)"
    style.colour_bar(fig, image, square, label, aspect=40, **bar_style)
    layer_bar = style.colour_bar(fig, layer_scale, top, "layer", **bar_style)
    layer_bar.set_ticks(sorted({0, n_layers - 1}))
    top.set_ylabel("distance of a merge")
    notes = _notes(dataset, "Distance of a merge: Ward's, on the root of the divergence")
    return style.complete(fig, "Families of heads", notes)


@figure(
    "distance",
    name="layers",
    title="Are heads of one layer alike?",
    caption="The mean divergence between heads of two layers (of different heads, on the diagonal). "
    "The test permutes the layers among the heads.",
    paper="Clark et al. 2019, §6",
    needs=("layer_js",),
)
def layers(dataset: xr.Dataset) -> Figure:
    """Draw the mean distance of heads by their layers, with the test of within against between."""
    values = data.values(dataset, "layer_js", ("layer", "layer_b"))
    numbers = data.numbers(dataset, "layer")
    fig, ax = style.one_panel(style.COLUMN, 3.5)
    image = ax.imshow(
        np.ma.masked_invalid(values), cmap="viridis_r", vmin=0, interpolation="nearest"
    )
    step = _label_step(len(numbers))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(range(0, len(numbers), step), [str(n) for n in numbers[::step]])
    ax.set(xlabel="layer", ylabel="layer (0 at the top)")
    style.bare(ax)
    style.colour_bar(fig, image, ax, "mean divergence (nats)", fraction=0.045, pad=0.02)
    within = float(dataset["js_within_layer"])
    between = float(dataset["js_between_layers"])
    p = float(dataset["layer_p_value"])
    note = ""
    if np.isfinite(p):
        note = (
            f"Within a layer {within:.3f}, between layers {between:.3f} nats; "
            f"permutation test p = {p:.4f}, one-tailed"
        )
    return style.complete(fig, "Are heads of one layer alike?", _notes(dataset, note))


def _scatter_groups(ax: Axes, points: np.ndarray, groups: Sequence[str]) -> list[Line2D]:
    """Draw points by group, each with its own colour and marker, and return the legend: `other`
    first, in grey and below the rest, then the largest groups.

    A head alone in its group is named at its point too.
    """
    group_of_head = np.array(groups)
    names, counts = np.unique(group_of_head, return_counts=True)
    by_size = [str(name) for name in names[np.argsort(-counts, kind="stable")]]
    handles = []
    if "other" in by_size:
        by_size.remove("other")
        other_style: dict[str, Any] = {"color": style.PALE, "marker": "o"}
        handles.append(_draw_group(ax, "other", points[group_of_head == "other"], 2, other_style))
    for index, name in enumerate(by_size):
        members = points[group_of_head == name]
        # Where colours start again, markers are shifted: no two groups share both.
        marker_index = index // len(style.OKABE_ITO) + index % len(style.MARKERS)
        point_style = {
            "color": style.cycle(style.OKABE_ITO, index),
            "marker": style.cycle(style.MARKERS, marker_index),
        }
        handles.append(_draw_group(ax, name, members, 3, point_style))
        if len(members) == 1:
            text = ax.annotate(
                name, members[0], (3, 2), textcoords="offset points", fontsize=style.SMALL
            )
            text.set_path_effects([effects.withStroke(linewidth=1.5, foreground="white")])
    return handles


def _draw_group(
    ax: Axes, name: str, members: np.ndarray, zorder: int, point_style: dict[str, Any]
) -> Line2D:
    """Draw the points of one group and return its entry in the legend."""
    ax.scatter(
        members[:, 0],
        members[:, 1],
        s=15,
        linewidths=0.3,
        edgecolors="white",
        zorder=zorder,
        **point_style,
    )
    label = f"{name} ({len(members)})"
    return Line2D([], [], linestyle="", markersize=4, label=label, **point_style)


def _name_families(ax: Axes, family_in_order: np.ndarray) -> None:
    """Name large families beside and below the matrix, each in the middle of its heads."""
    middles = []
    x_labels = []
    y_labels = []
    for family in np.unique(family_in_order):
        positions = np.flatnonzero(family_in_order == family)
        if len(positions) >= LARGE_FAMILY * len(family_in_order):
            middles.append(float(np.mean(positions)))
            x_labels.append(f"family {family}")
            y_labels.append(f"family {family}\n({len(positions)} heads)")
    ax.set_xticks(middles, x_labels)
    ax.set_yticks(middles, y_labels)


def _draw_tree(ax: Axes, linkage: np.ndarray, order: np.ndarray, family: np.ndarray) -> None:
    """Draw the dendrogram with leaves at 0, 1, 2 … in this order; a branch within a family has the
    family's colour."""
    n_heads = len(order)
    if not len(linkage):
        return
    # Of each node of the tree: first the heads, then the merges.
    x_of = {int(head): float(position) for position, head in enumerate(order)}
    height_of = dict.fromkeys(range(n_heads), 0.0)
    family_of: dict[int, int | None] = {head: int(family[head]) for head in range(n_heads)}
    for node, (first, second, distance, _) in enumerate(linkage, start=n_heads):
        a = int(first)
        b = int(second)
        common_family = family_of[a] if family_of[a] == family_of[b] else None
        colour = style.GREY
        if common_family is not None:
            colour = style.cycle(style.OKABE_ITO, common_family)
        x = [x_of[a], x_of[a], x_of[b], x_of[b]]
        y = [height_of[a], distance, distance, height_of[b]]
        ax.plot(x, y, color=colour, linewidth=0.7)
        family_of[node] = common_family
        x_of[node] = (x_of[a] + x_of[b]) / 2
        height_of[node] = float(distance)
    ax.set_ylim(0, None)


def _label_step(n_layers: int) -> int:
    """Return every how many layers one gets a label, so that labels fit."""
    return max(1, -(-n_layers // 13))


def _notes(dataset: xr.Dataset, note: str) -> list[str]:
    n_tokens = dataset.attrs.get("tokens")
    n_examples = dataset.attrs.get("examples")
    counts = ""
    if n_tokens is not None and n_examples is not None:
        counts = f"n = {n_examples:,} examples, {n_tokens:,} tokens"
    return [
        data.source_text(dataset),
        counts,
        note,
        "No interval: distances are sums over all tokens",
    ]
