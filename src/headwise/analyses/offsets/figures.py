"""Figures of relative positions: where, relative to a token, its attention and its contributions
come from (Pascual et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headwise.core.errors import ParameterError
from headwise.plots import data, style
from headwise.plots.registry import figure
from headwise.plots.scatter import (
    Series,
    legend_handles,
    scatter_by_layer,
    series_of,
)
from headwise.stats.intervals import sample_interval

# Label, colour and marker of each source of contributions.
SOURCE_STYLES = {
    "attention": ("attention", style.BLUE, "o"),
    "previous_layer": ("contribution of the previous layer", style.GREEN, "^"),
    "input": ("contribution of the input", style.VERMILION, "s"),
    "rollout": ("attention rollout", style.PINK, "D"),
    "norm": ("norm-weighted attention", style.ORANGE, "v"),
    "flow": ("attention flow", style.SKY, "P"),
    "value_zeroing": ("value zeroing", style.BLACK, "X"),
    "chefer": ("gradient-weighted attention", style.GREY, "*"),
}
EVERY_OFFSET = (
    "Every offset weighs alike, however few pairs of tokens have it: far ones count for much"
)
PRINTED = 63  # the largest offset in the paper's histograms: inputs have at most 64 tokens
_DIMS = ("source", "layer", "head", "offset")
_SIDES = (  # where a token looks: colour, words, sign of the offset
    (style.BLUE, "before the token", -1),
    (style.BLACK, "the token itself", 0),
    (style.VERMILION, "after the token", 1),
)


@figure(
    "offsets",
    name="histogram",
    title="Where each head looks, relative to the token",
    caption="One small histogram per head, by relative position (source position minus receiving "
    "position): blue before the token, black the token itself, orange after it. Every "
    "histogram is scaled to its own peak; the number in its corner is the height of that "
    "peak.",
    paper="Pascual et al. 2021, Fig 2",
    needs=("histogram",),
    each="source",
)
def histogram_grid(
    dataset: xr.Dataset,
    *,
    source: str | None = None,
    window: int = 10,
    layers: Sequence[int] | None = None,
) -> Figure:
    """Relative-position histograms of every head, `histogram[source, layer, head, offset]`, as a
    grid of layers × heads (Pascual et al. 2021, Fig 2).

    Parameters
    ----------
    source : str, optional
        Which source to draw; the first that holds a number unless given.
    window : int, default 10
        Offsets from −window to window are drawn; the paper draws 63.
    layers : sequence of int, optional
        Only these layers, counted from 0.
    """
    if layers is not None:
        known = data.numbers(dataset, "layer")
        if not layers or not set(layers) <= set(known):
            raise ParameterError(
                f"`layers` must name layers from 0 to {known[-1]}; it is {list(layers)}."
            )
        dataset = dataset.isel(layer=[known.index(number) for number in layers])
    sources = data.labels(dataset, "source")
    cube = data.values(dataset, "histogram", _DIMS)
    present = [name for index, name in enumerate(sources) if np.isfinite(cube[index]).any()]
    chosen = source or (present[0] if present else "")
    if chosen not in present:
        raise ParameterError(
            f"`source` must be one of {', '.join(present) or 'none'}; it is {source!r}."
        )
    offsets = np.array(data.numbers(dataset, "offset"))
    bars = cube[sources.index(chosen)]
    # A causal model has nothing after the token.
    drawn = (np.abs(offsets) <= window) & np.isfinite(bars).any(axis=(0, 1))
    if not drawn.any():
        raise ParameterError(
            f"`window` must reach an offset that occurs ({offsets.min()} to {offsets.max()}); it is {window}."
        )
    bars = bars[..., drawn]
    offsets = offsets[drawn]
    rows, heads = bars.shape[:2]
    cell_width = min((style.PAGE - 0.45) / heads, 1.0)
    cell_height = min(0.52, cell_width, (style.PAGE_HEIGHT - 1.2) / rows)
    width = max(heads * cell_width + 0.45, style.COLUMN)
    fig, ax = style.one_panel(width, rows * cell_height + 1.2)
    _cells(ax, bars, offsets)
    for (layer, head), peak in np.ndenumerate(_peaks(bars)):
        if np.isfinite(peak):
            ax.text(
                head - 0.46,
                layer + 0.03,
                _peak_text(peak),
                va="top",
                fontsize=style.SMALL,
                color=style.GREY,
            )
    ax.set(xlim=(-0.5, heads - 0.5), ylim=(rows, 0), xlabel="head", ylabel="layer (0 at the top)")
    ax.set_xticks(range(heads), [str(h) for h in data.numbers(dataset, "head")])
    ax.set_yticks(np.arange(rows) + 0.5, [str(name) for name in data.numbers(dataset, "layer")])
    style.bare(ax)
    handles = []
    for colour, label, sign in _SIDES:
        on_side = np.sign(offsets) == sign
        if on_side.any():
            handles.append(Patch(color=colour, label=f"{label} ({_range(offsets[on_side])})"))
    what = SOURCE_STYLES[chosen][0] if chosen in SOURCE_STYLES else chosen
    notes = [
        data.source_text(dataset),
        data.count_text(dataset.isel(offset=np.flatnonzero(drawn)), "histogram")
        or data.count_text(dataset, "centre"),
        f"Bars: mean {what} (share of 1) per pair of tokens at that relative position, offsets {_range(offsets)}",
        "Each head is scaled to its own peak, whose height is printed; intervals, where computed, are in the tables",
    ]
    title = f"Relative position of {'' if chosen == 'attention' else 'the '}{what}"
    return style.complete(fig, title, notes, handles, 3 if width > 5 else 1)


@figure(
    "offsets",
    name="histogram-wide",
    title="Where each head looks, over the whole range that the paper prints",
    caption="As above, with offsets up to 63 tokens: what heads do far from the token. One small "
    "histogram per head, scaled to its own peak, whose height is printed.",
    paper="Pascual et al. 2021, Fig 2, 8 and 9",
    needs=("histogram",),
)
def histogram_wide(dataset: xr.Dataset) -> Figure:
    """Histograms of attention over offsets from −63 to 63, `histogram[source, layer, head,
    offset]`."""
    return histogram_grid(dataset, source="attention", window=PRINTED)


@figure(
    "offsets",
    name="centre",
    title="Centre of mass of relative positions, by layer",
    caption="Each point is one head: the mean relative position its attention comes from. Below 0 it "
    "looks back, above 0 it looks ahead. Lines are means over the heads of a layer. What "
    "contributes to its output is measured on fewer inputs: it stands beside attention on the "
    "same ones in `attribution`.",
    paper="Pascual et al. 2021, Fig 4",
    needs=("centre",),
)
def centre_of_mass(datasets: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Centre of mass of each head's histogram by layer, `centre[source, layer, head]`, one line per
    source (Pascual et al. 2021, Fig 4).

    Several datasets (a mapping of label to dataset: languages, models) stand side by side on one
    scale."""
    title = "Centre of mass of relative positions"
    label = "centre of mass (tokens)\n← before      after →"
    lines = (
        "One point per head; lines: mean over the heads of a layer; dashed: no direction. "
        f"{EVERY_OFFSET}"
    )
    return by_layer(datasets, same_inputs, "centre", title, label, lines)


def centre_lines(datasets: Mapping[str, xr.Dataset], source: str = "attention") -> Figure:
    """Mean centre of mass by layer of several datasets (languages, models) in one panel, a line for
    each (Pascual et al. 2021, Fig 4).

    Parameters
    ----------
    datasets : mapping of str to Dataset
        Results of `offsets` (or of `attribution`) by what they are called in the legend.
    source : str, default "attention"
        Which source is drawn.
    """
    if not datasets:
        raise ParameterError("`datasets` must name at least one dataset; it is empty.")
    with style.context():
        fig, ax = style.one_panel(style.COLUMN, 2.9)
        notes = []
        for index, (which, dataset) in enumerate(datasets.items()):
            if source not in data.labels(dataset, "source"):
                raise ParameterError(f"`source` must be one that {which} has; it is {source!r}.")
            dataset = dataset.sel(source=[source])
            values = data.values(dataset, "centre", ("source", "layer", "head"))[0]
            mean, low, high = sample_interval(values.T)
            colour = style.cycle(style.OKABE_ITO, index)
            marker = style.cycle(style.MARKERS, index)
            ax.plot(range(len(mean)), mean, color=colour, marker=marker, label=which)
            ax.fill_between(range(len(mean)), low, high, color=colour, alpha=0.15, linewidth=0)
            notes.append(_counted(dataset, which, "mean_offset", "histogram"))
        ax.axhline(0, color=style.GREY, linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
        style.layer_axis(ax, data.numbers(next(iter(datasets.values())), "layer"))
        ax.set_ylabel("centre of mass (tokens)\n← before      after →")
        handles, _ = ax.get_legend_handles_labels()
        how = f"Lines: mean over the heads of a layer; shade: its 95 % interval over heads. {EVERY_OFFSET}"
        return style.complete(
            fig, "Mean centre of mass by layer", [*notes, how], handles, min(3, len(handles))
        )


def same_inputs(dataset: xr.Dataset) -> xr.Dataset:
    """Return the sources that were measured on the same inputs as attention: others must not be
    drawn beside it."""
    if "mean_offset_n" not in dataset.variables:
        return dataset
    if "attention" not in data.labels(dataset, "source"):
        return dataset
    counts = dataset["mean_offset_n"]
    count_by_source = counts.max([dim for dim in counts.dims if dim != "source"])
    is_same = count_by_source == count_by_source.sel(source="attention")
    return dataset.isel(source=np.flatnonzero(is_same.values))


@figure(
    "offsets",
    name="distance",
    title="How far heads look, by layer",
    caption="Each point is one head: the mean distance, in tokens, between a token and where its "
    "attention falls, whatever the direction.",
    paper="Not in a paper; beside Pascual et al. 2021, Fig 4",
    needs=("mean_distance",),
)
def mean_distance(datasets: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Mean distance between a token and what its head attends to, by layer: `mean_distance[source,
    layer, head]`; one or several datasets."""
    lines = "One point per head; lines: mean over the heads of a layer"
    label = "mean distance (tokens)"
    return by_layer(datasets, same_inputs, "mean_distance", "How far heads look", label, lines)


def by_layer(
    datasets: xr.Dataset | Mapping[str, xr.Dataset],
    chosen: Callable[[xr.Dataset], xr.Dataset],
    name: str,
    title: str,
    label: str,
    lines: str,
) -> Figure:
    """A variable `[source, layer, head]` of what is `chosen` of one or several datasets by layer,
    side by side on one scale."""
    given = {"": datasets} if isinstance(datasets, xr.Dataset) else datasets
    named = {which: chosen(one) for which, one in given.items()}
    if not named:
        raise ParameterError("`datasets` must name at least one dataset; it is empty.")
    count = len(named)
    columns = min(count, 3)
    rows = -(-count // columns)
    fig = style.new_figure(style.COLUMN if count == 1 else style.PAGE, 1.05 + 1.75 * rows)
    axes = fig.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    shown: dict[str, Series] = {}
    notes = []
    for index, (ax, (which, dataset)) in enumerate(zip(axes, named.items(), strict=False)):
        series = series_of(dataset, name, "source", SOURCE_STYLES)
        shown.update({one.label: one for one in series})
        scatter_by_layer(ax, series)
        if name == "centre":
            ax.axhline(0, color=style.GREY, linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
        else:
            ax.set_ylim(bottom=0)
        style.layer_axis(
            ax,
            data.numbers(dataset, "layer"),
            "layer (0 = first)" if index + columns >= count else "",
        )
        notes.append(_counted(dataset, which, name, "mean_offset", "histogram"))
    for ax in axes[count:]:
        ax.remove()
    for ax in axes[:count:columns]:
        ax.set_ylabel(label)
    style.panel_labels(list(axes[:count]), list(named))
    bars = data.interval_text(any(one.bounds is not None for one in shown.values()))
    handles = legend_handles(list(shown.values()))
    return style.complete(fig, title, [*notes, lines, bars], handles, 3 if count > 1 else 1)


def _counted(dataset: xr.Dataset, which: str, *names: str) -> str:
    """Whose these are, which model on which corpus, and on how many examples: of the first name
    that says so."""
    count = ""
    for name in names:
        count = data.count_text(dataset, name)
        if count:
            break
    text = ", ".join(part for part in (data.source_text(dataset), count) if part)
    return ": ".join(part for part in (which, text) if part)


def _peaks(bars: np.ndarray) -> np.ndarray:
    """Height of each head's highest bar, `[layer, head]`; NaN for a head without any."""
    peaks = np.max(np.where(np.isfinite(bars), bars, -np.inf), axis=-1)
    return np.where(np.isfinite(peaks), peaks, np.nan)


def _range(offsets: np.ndarray) -> str:
    low = int(offsets.min())
    high = int(offsets.max())
    text = str(low) if low == high else f"{low} to {high}"
    return text.replace("-", "−")


def _peak_text(peak: float) -> str:
    if peak >= 0.995:
        return f"{peak:.2g}"
    return f"{peak:.2f}".lstrip("0") if peak >= 0.005 else "<.01"


def _cells(ax: Axes, bars: np.ndarray, offsets: np.ndarray) -> None:
    """Draw all histograms into one axes: cell (layer, head) spans head ± 0.5 and layer to layer +
    1; three shapes per head keep the file small."""
    slot = 0.92 / len(offsets)
    left = -0.46 + np.arange(len(offsets)) * slot
    peaks = _peaks(bars)
    shapes: dict[str, list[np.ndarray]] = {colour: [] for colour, *_ in _SIDES}
    for layer, head in np.ndindex(*peaks.shape):
        floor = layer + 0.97
        if not np.isfinite(peaks[layer, head]):
            ax.text(
                head,
                layer + 0.5,
                "n/a",
                ha="center",
                va="center",
                fontsize=style.SMALL,
                color=style.GREY,
            )
            continue
        height = np.nan_to_num(bars[layer, head]) / (peaks[layer, head] or 1.0) * 0.86
        for colour, _, sign in _SIDES:
            part = np.sign(offsets) == sign
            if part.any():
                x = np.column_stack([left[part], left[part] + slot]).ravel() + head
                y = floor - np.repeat(height[part], 2)
                shapes[colour].append(
                    np.column_stack([np.r_[x[0], x, x[-1]], np.r_[floor, y, floor]])
                )
    for colour, polygons in shapes.items():
        ax.add_collection(PolyCollection(polygons, facecolors=colour, edgecolors="none", zorder=2))
    for layer in range(peaks.shape[0]):
        ax.plot(
            [-0.5, peaks.shape[1] - 0.5],
            [layer + 0.97] * 2,
            color=style.PALE,
            linewidth=0.5,
            zorder=1,
        )
    for here in left[offsets == 0] + slot / 2:  # where the token itself stands
        for head in range(peaks.shape[1]):
            ax.plot(
                [head + here] * 2, [0, peaks.shape[0]], color="#ececec", linewidth=0.5, zorder=0
            )
