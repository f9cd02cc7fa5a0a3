"""The figure of a knockout: what the answer loses, layer by layer."""

from __future__ import annotations

import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import style
from headwise.plots.registry import figure

SPAN_NAMES = {"marked": "marked span", "first": "first token", "other": "other tokens"}
SPAN_COLOURS = {"marked": style.VERMILION, "first": style.BLUE, "other": style.GREEN}


@figure(
    "knockout",
    name="layers",
    title="What the answer loses when attention is cut",
    caption="Relative change of the answer's probability when the last tokens cannot attend to a "
    "span in a window of layers around the one shown. Bands: 95 % intervals over texts or their units. Dashed: the "
    "remaining attention is scaled up to 1.",
    paper="Geva et al. 2023",
    needs=("change",),
)
def layers(dataset: xr.Dataset) -> Figure:
    """`change` over layers, a line for each span."""
    fig, ax = style.one_panel(style.COLUMN, 2.6)
    numbers = dataset["layer"].values
    for span, name in SPAN_NAMES.items():
        colour = SPAN_COLOURS[span]
        for renormalised in (False, True):
            row = dataset.sel(span=span, renormalised=renormalised)
            label = None if renormalised else name
            linestyle = "--" if renormalised else "-"
            ax.plot(
                numbers,
                100 * row["change"].values,
                color=colour,
                linestyle=linestyle,
                linewidth=1.1,
                label=label,
            )
            if not renormalised:
                low = 100 * row["change_low"].values
                high = 100 * row["change_high"].values
                ax.fill_between(numbers, low, high, color=colour, alpha=0.18, linewidth=0)
    ax.axhline(0, color=style.GREY, linewidth=0.6)
    style.layer_axis(ax, numbers, "layer in the middle of the window (0 = first)")
    ax.set_ylabel("change of probability (%)")
    ax.legend(frameon=False, fontsize=style.SMALL)
    facts = dataset.attrs
    notes = [
        f"n = {facts['texts']} of {facts['all_texts']} texts, whose answer is predicted "
        f"(mean probability {facts['probability']:.2f})",
        f"Window of {facts['window']} layers",
    ]
    return style.complete(fig, "Knockout of attention", notes)
