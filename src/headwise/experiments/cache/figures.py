"""Figures of caches: the grid of key/value heads, and what each budget costs."""

from __future__ import annotations

import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure


@figure(
    "cache",
    name="heads",
    title="Which key/value heads need the whole context",
    caption="Share of attention beyond the first and the last tokens, and what the output loses when "
    "it is cut (relative norm, which may exceed 1); the largest of the heads that share keys and values. "
    "Last: the heads that the pattern keeps whole.",
    paper="Xiao et al. 2024",
    needs=("output_error",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps `[layer, key/value head]` of `distant`, `output_error` and `whole`."""
    facts = dataset.attrs
    # Query heads have the dim `head` in this dataset; the figure is of those that share keys.
    shown = dataset[["distant", "output_error", "whole"]].rename(kv_head="head")
    drawn = heatmap_panels(
        {
            "distant attention": shown["distant"],
            "output error": shown["output_error"],
            "kept whole (1)": shown["whole"].astype(float),
        },
        title="Key/value heads and the distant context",
        label="share, relative error, or 1 for whole",
        notes=[
            f"n = {facts['ranking_texts']} texts of {facts['length']} tokens",
            f"Distant: beyond the first {facts['sink']} and the last {facts['window']} tokens",
        ],
    )
    for ax in drawn.axes:
        if ax.get_xlabel() == "head":
            ax.set_xlabel("key/value head")
    return drawn


@figure(
    "cache",
    name="curve",
    title="What a smaller cache costs",
    caption="Rise of the loss on texts that did not rank the heads, against the bytes that the cache "
    "holds per token, for several ways to choose the heads that stay whole. Bars: 95 % intervals over "
    "texts; points of one budget stand a little apart. Dotted: the rise that is acceptable. Grey: random "
    "choices of as many heads.",
    paper="Xiao et al. 2024",
    needs=("loss_rise",),
)
def curve(dataset: xr.Dataset) -> Figure:
    """`loss_rise` over `bytes_per_token`, a line for each ranking."""
    fig, ax = style.one_panel(style.COLUMN, 2.6)
    kilobytes = dataset["bytes_per_token"].values / 1024
    for number, ranking in enumerate(dataset["ranking"].values):
        rows = dataset.sel(ranking=ranking)
        rise = rows["loss_rise"].values
        # A little beside each other: intervals at one budget would hide each other.
        shift = 0.008 * kilobytes.max() * (number - (dataset.sizes["ranking"] - 1) / 2)
        low = rise - rows["loss_rise_low"].values
        high = rows["loss_rise_high"].values - rise
        ax.errorbar(
            kilobytes + shift,
            rise,
            yerr=[low, high],
            color=style.OKABE_ITO[number],
            marker=style.MARKERS[number],
            markersize=3,
            linewidth=1.0,
            elinewidth=0.6,
            label=str(ranking),
        )
    facts = dataset.attrs
    if "random_loss_rise" in dataset:
        place = float(dataset["bytes_per_token"].sel(share=facts["compared_share"])) / 1024
        drawn = dataset["random_loss_rise"].values
        ax.scatter([place] * len(drawn), drawn, s=6, color=style.GREY, label="random", zorder=1)
    ax.axhline(facts["at_most"], color=style.GREY, linewidth=0.6, linestyle=":")
    ax.set_xlabel("KiB of cache per token")
    ax.set_ylabel("rise of the loss (nats)")
    ax.legend(frameon=False, fontsize=style.SMALL)
    notes = [
        f"n = {facts['judging_texts']} texts of {facts['length']} tokens",
        f"All heads whole: {facts['whole_bytes_per_token'] / 1024:.1f} KiB",
    ]
    return style.complete(fig, "What a smaller cache costs", notes)
