"""Figures of patching: every head both ways, first order against exact, and by position."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.core.labels import head_name
from headwise.plots import style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

SHOWN_HEADS = 20


@figure(
    "patching",
    name="heads",
    title="What each head carries",
    caption="Share of the difference of logits that comes back when the head's output in the "
    "corrupted run is replaced by that of the clean run, that is lost the other way round, and the "
    "first-order estimate of the first.",
    paper="Wang et al. 2022",
    needs=("recovered", "estimate"),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps `[layer, head]` of `recovered`, `lost` and `estimate`, zero in the neutral
    colour."""
    titles = {
        "recovered": "clean into corrupted",
        "lost": "corrupted into clean",
        "estimate": "first order",
    }
    panels = {}
    for name, title in titles.items():
        if name in dataset:
            panels[title] = dataset[name]
    notes = [
        f"n = {dataset.attrs['pairs']} pairs",
        f"d clean {dataset.attrs['clean']:.2f}",
        f"d corrupted {dataset.attrs['corrupted']:.2f}",
    ]
    return heatmap_panels(
        panels, title="Patching of heads", label="share of d", centre=0.0, notes=notes
    )


@figure(
    "patching",
    name="first-order",
    title="First order against exact",
    caption="Each point is a head: the share recovered by a run of its own, against the estimate "
    "from two runs and one gradient. On the line they agree.",
    paper="Wang et al. 2022",
    needs=("recovered",),
)
def first_order(dataset: xr.Dataset) -> Figure:
    """`estimate` against `recovered`, the largest named."""
    fig, ax = style.one_panel(style.COLUMN, 2.8)
    exact = dataset["recovered"].values
    estimate = dataset["estimate"].values
    colours = np.repeat(style.layer_colours(len(exact)), exact.shape[1], axis=0)
    ends = [min(exact.min(), estimate.min()), max(exact.max(), estimate.max())]
    ax.plot(ends, ends, color=style.GREY, linewidth=0.6)
    ax.scatter(
        exact.ravel(),
        estimate.ravel(),
        s=10,
        color=colours,
        edgecolors="white",
        linewidths=0.3,
        zorder=3,
    )
    for number in np.argsort(-np.abs(exact), axis=None)[:3]:
        place = divmod(int(number), exact.shape[1])
        ax.annotate(
            head_name(*place),
            (exact[place], estimate[place]),
            fontsize=style.SMALL,
            xytext=(2, 2),
            textcoords="offset points",
        )
    ax.set_xlabel("exact")
    ax.set_ylabel("first order")
    agreement = (
        f"Pearson {dataset.attrs['pearson']:.2f}, Spearman {dataset.attrs['spearman']:.2f} over "
        f"{exact.size} heads"
    )
    return style.complete(fig, "First order against exact", [agreement, "Colour: layer"])


@figure(
    "patching",
    name="positions",
    title="Where heads carry it",
    caption="The heads that bring back most, by position from the end of the input (0 is the last "
    "token).",
    paper="Wang et al. 2022",
    needs=("recovered_at", "estimate_at"),
)
def positions(dataset: xr.Dataset) -> Figure:
    """The twenty strongest heads by position."""
    name = "recovered_at" if "recovered_at" in dataset else "estimate_at"
    values = dataset[name].values
    by_head = values.reshape(-1, values.shape[-1])
    strongest = np.argsort(-np.nanmax(np.abs(by_head), -1), kind="stable")[:SHOWN_HEADS]
    shown = by_head[strongest][:, ::-1]
    fig, ax = style.one_panel(style.COLUMN, 0.9 + 0.14 * len(strongest))
    largest = float(np.nanmax(np.abs(shown), initial=1e-9))
    image = ax.imshow(shown, cmap=style.DIVERGING, vmin=-largest, vmax=largest, aspect="auto")
    labels = [head_name(*divmod(int(number), values.shape[1])) for number in strongest]
    ax.set_yticks(range(len(strongest)), labels)
    offsets = dataset["offset"].values[::-1]
    ax.set_xticks(range(len(offsets)), [str(offset) for offset in offsets])
    ax.set_xlabel("position from the end")
    fig.colorbar(image, ax=ax, label="share of d")
    method = "exact" if name == "recovered_at" else "first order"
    return style.complete(fig, "By position", [method])
