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

NAMED_HEADS = 60  # up to so many heads, leaves carry their names


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
    """The map of heads by SMACOF (else by classical scaling), coloured by layer and by behaviour or
    family (Fig 6)."""
    name = "mds_smacof" if data.has(dataset, "mds_smacof") else "mds"
    points = data.values(dataset, name, ("head_a", "axis"))
    if points.shape[1] < 2:
        points = np.column_stack([points, np.zeros(len(points))])
    layer = dataset["layer_of_a"].values
    layers = int(layer.max()) + 1
    fig = style.new_figure(style.PAGE, 4.3)
    left, right = fig.subplots(1, 2)
    colours = style.layer_colours(layers)
    left.scatter(
        points[:, 0], points[:, 1], c=colours[layer], s=14, linewidths=0.3, edgecolors="white"
    )
    bar = style.colour_bar(fig, style.layer_scale(layers), left, "layer", pad=0.01, aspect=35)
    bar.set_ticks(list(range(0, layers, _step(layers))))
    known = "behaviour" in dataset
    groups = [
        str(word) if known else f"family {word}"
        for word in dataset["behaviour" if known else "cluster"].values
    ]
    handles = _scatter_groups(right, points, groups)
    middle = (points.max(0) + points.min(0)) / 2
    # One square window for both, so that distances can be compared.
    reach = max(float(np.ptp(points, axis=0).max()) * 0.54, 1e-3)
    for ax in (left, right):
        ax.set(aspect="equal", xlabel="first axis (nats)")
        ax.set(
            xlim=(middle[0] - reach, middle[0] + reach), ylim=(middle[1] - reach, middle[1] + reach)
        )
    left.set_ylabel("second axis (nats)")
    style.panel_labels([left, right], ["by layer", "by behaviour" if known else "by family"])
    stress = dataset.attrs.get("stress_smacof" if name == "mds_smacof" else "stress")
    said = (
        ""
        if stress is None
        else f"Stress {stress:.2f}: how far the distances on paper are from the divergences"
    )
    return style.complete(
        fig, "Heads as points: near heads attend alike", _notes(dataset, said), handles, 6
    )


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
    """A dendrogram over the matrix of distances in the order of its leaves, the layer of each head
    between them."""
    linkage = data.values(dataset, "linkage", ("merge", "part"))
    count = dataset.sizes["head_a"]
    order = np.argsort(dataset["leaf"].values)
    family = dataset["cluster"].values
    fig = style.new_figure(style.PAGE, 7.4)
    top, strip, square = fig.subplots(3, 1, height_ratios=[1.7, 0.14, 5.0], sharex=True)
    _draw_tree(top, linkage, order, family)
    layer = dataset["layer_of_a"].values
    layers = int(layer.max()) + 1
    plain: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
    scale = style.layer_scale(layers)
    strip.imshow(layer[order][None], norm=scale.norm, cmap=scale.cmap, **plain)
    strip.set_yticks([0], ["layer"])
    js = data.values(dataset, "js", ("head_a", "head_b"))[np.ix_(order, order)]
    image = square.imshow(js, cmap="viridis_r", vmin=0, **plain)
    for edge in np.flatnonzero(np.diff(family[order])) + 0.5:
        square.axhline(edge, color="white", linewidth=0.7)
        square.axvline(edge, color="white", linewidth=0.7)
    for ax in (top, strip, square):
        style.bare(ax)
    middles = {
        int(f): float(np.mean(np.flatnonzero(family[order] == f))) for f in np.unique(family)
    }
    if count <= NAMED_HEADS:
        names = [str(name) for name in dataset["head_a"].values[order]]
        square.set_xticks(range(count), names, rotation=90)
        square.set_yticks(range(count), names)
    else:
        sizes = {f: int((family == f).sum()) for f in middles}
        large = [f for f in middles if sizes[f] >= 0.03 * count]
        at = [middles[f] for f in large]
        square.set_xticks(at, [f"family {f}" for f in large])
        square.set_yticks(at, [f"family {f}\n({sizes[f]} heads)" for f in large])
    beside: dict[str, Any] = {"fraction": 0.03, "pad": 0.01}
    style.colour_bar(
        fig, image, square, "mean Jensen-Shannon divergence (nats)", aspect=40, **beside
    )
    style.colour_bar(fig, scale, top, "layer", **beside).set_ticks(sorted({0, layers - 1}))
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
    """Mean distance of heads by their layers, with the test of within against between."""
    values = data.values(dataset, "layer_js", ("layer", "layer_b"))
    numbers = data.numbers(dataset, "layer")
    fig, ax = style.one_panel(style.COLUMN, 3.5)
    image = ax.imshow(
        np.ma.masked_invalid(values), cmap="viridis_r", vmin=0, interpolation="nearest"
    )
    step = _step(len(numbers))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(range(0, len(numbers), step), [str(n) for n in numbers[::step]])
    ax.set(xlabel="layer", ylabel="layer (0 at the top)")
    style.bare(ax)
    style.colour_bar(fig, image, ax, "mean divergence (nats)", fraction=0.045, pad=0.02)
    within, between, p = (
        float(dataset[name]) for name in ("js_within_layer", "js_between_layers", "layer_p_value")
    )
    said = f"Within a layer {within:.3f}, between layers {between:.3f} nats; permutation test p = {p:.4f}, one-tailed"
    return style.complete(
        fig, "Are heads of one layer alike?", _notes(dataset, said if np.isfinite(p) else "")
    )


def _scatter_groups(ax: Axes, points: np.ndarray, groups: Sequence[str]) -> list[Line2D]:
    """Points by group, each with a colour and a marker of its own; the commonest first, `other`
    grey.

    A head alone in its group is named at its point too.
    """
    names, counts = np.unique(groups, return_counts=True)
    order = [str(n) for n in names[np.argsort(-counts, kind="stable")]]
    order = [n for n in order if n == "other"] + [n for n in order if n != "other"]
    handles = []
    for place, name in enumerate(order):
        mine = np.array([g == name for g in groups])
        index = place - ("other" in order)
        colour, marker, above = style.PALE, "o", 2
        if name != "other":
            turn = index // len(style.OKABE_ITO) + index % len(style.MARKERS)
            colour, marker, above = (
                style.cycle(style.OKABE_ITO, index),
                style.cycle(style.MARKERS, turn),
                3,
            )
        look: dict[str, Any] = {"color": colour, "marker": marker}
        ax.scatter(
            points[mine, 0],
            points[mine, 1],
            s=15,
            linewidths=0.3,
            edgecolors="white",
            zorder=above,
            **look,
        )
        handles.append(
            Line2D([], [], linestyle="", markersize=4, label=f"{name} ({int(mine.sum())})", **look)
        )
        if name != "other" and mine.sum() == 1:
            text = ax.annotate(
                name, points[mine][0], (3, 2), textcoords="offset points", fontsize=style.SMALL
            )
            text.set_path_effects([effects.withStroke(linewidth=1.5, foreground="white")])
    return handles


def _draw_tree(ax: Axes, linkage: np.ndarray, order: np.ndarray, family: np.ndarray) -> None:
    """The dendrogram with leaves at 0, 1, 2 … in the given order; a branch within a family has the
    family's colour."""
    count = len(order)
    if not len(linkage):
        return
    place = {int(head): float(position) for position, head in enumerate(order)}
    height = dict.fromkeys(range(count), 0.0)
    owner: dict[int, int] = {head: int(family[head]) for head in range(count)}
    for merge, (first, second, distance, _) in enumerate(linkage):
        a, b, new = int(first), int(second), count + merge
        owner[new] = owner[a] if owner[a] == owner[b] else -1
        colour = style.cycle(style.OKABE_ITO, owner[new]) if owner[new] >= 0 else style.GREY
        across, up = (
            [place[a], place[a], place[b], place[b]],
            [height[a], distance, distance, height[b]],
        )
        ax.plot(across, up, color=colour, linewidth=0.7)
        place[new], height[new] = (place[a] + place[b]) / 2, float(distance)
    ax.set_ylim(0, None)


def _step(layers: int) -> int:
    """Every how many layers one is named, so that names fit."""
    return max(1, -(-layers // 13))


def _notes(dataset: xr.Dataset, said: str) -> list[str]:
    tokens, examples = dataset.attrs.get("tokens"), dataset.attrs.get("examples")
    count = (
        ""
        if tokens is None or examples is None
        else f"n = {examples:,} examples, {tokens:,} tokens"
    )
    return [
        data.source_text(dataset),
        count,
        said,
        "No interval: distances are sums over all tokens",
    ]
