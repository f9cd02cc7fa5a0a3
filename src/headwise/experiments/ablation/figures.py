"""Figures of disabling: what each head, each layer and each set does to the score, and first-order
importance beside it (Kovaleva et al. 2019, Fig 8-9)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.core.errors import ParameterError
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap
from headwise.plots.registry import figure
from headwise.plots.scatter import head_points

PANELS_ACROSS = 3  # of a figure with a panel for each task


def _notes(dataset: xr.Dataset) -> list[str]:
    """Return the notes that all figures of an ablation have."""
    facts = dataset.attrs
    metric = str(facts.get("metric", "score"))
    scale, _ = _points(dataset)
    notes = []
    if "examples" in facts:
        notes.append(f"{int(facts['examples']):,} examples")
    baseline = scale * float(facts.get("baseline", np.nan))
    digits = 1 if scale > 1 else 3
    notes.append(f"{metric.capitalize()} of the intact model {baseline:.{digits}f}")
    if "how" in facts:
        notes.append(f"Disabled as: {facts['how']}")
    return notes


def _notes_over_heads(dataset: xr.Dataset) -> list[str]:
    """Return notes on the mean head, and on how many heads the model is better without."""
    facts = dataset.attrs
    if "mean_difference" not in facts:
        return []
    scale, unit = _points(dataset)
    change = f"{scale * facts['mean_difference']:+.2f}".replace("-", "−")
    n_disabled = facts.get("heads_disabled")
    n_heads = dataset.sizes["layer"] * dataset.sizes["head"]
    heads_text = f"{n_disabled} heads disabled"
    if n_disabled in (None, n_heads):
        heads_text = "heads (a random head)"
    return [
        f"Mean over the {heads_text} {change} {unit}",
        f"Better without {facts['improving']} heads, {facts['improving_significant']} after "
        "correction",
        f"Worse without {facts['harming']}, {facts['harming_significant']} after correction",
    ]


def _points(dataset: xr.Dataset) -> tuple[float, str]:
    """Return scale and unit: scores in hundredths, losses as they are."""
    if dataset.attrs.get("metric") == "loss":
        return 1.0, "nats"
    return 100.0, "points"


@figure(
    "ablation",
    name="heads",
    title="What disabling one head does to the score",
    caption="Each cell is one head: the score without it minus the score of the intact model. "
    "Below: the mean over the heads, and how many the model is better and worse without; a ring "
    "marks a change that is significant after correction.",
    paper="Kovaleva et al. 2019, Fig 8",
    needs=("difference",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """`difference[layer, head]` around zero (Kovaleva et al. 2019, Fig 8)."""
    scale, unit = _points(dataset)
    array = scale * dataset["difference"]
    label = f"change of {dataset.attrs.get('metric', 'score')}"
    p_values = np.ones((0, 0))
    if "p_adjusted" in dataset:
        p_values = data.values(dataset, "p_adjusted", ("layer", "head"))
    rows, columns = np.nonzero(p_values < SIGNIFICANCE_LEVEL)
    notes = [*_notes(dataset), *_notes_over_heads(dataset)]
    if len(rows):
        notes.append(f"Ringed: corrected p < {SIGNIFICANCE_LEVEL}")
    fig = heatmap(
        array,
        title="Score without one head",
        label=label,
        unit=unit,
        centre=0.0,
        annotate="none",
        notes=notes,
    )
    for colour, width in (("white", 1.6), (style.INK, 0.7)):
        fig.axes[0].scatter(
            columns, rows, s=22, facecolors="none", edgecolors=colour, linewidths=width
        )
    return fig


@figure(
    "ablation",
    name="layers",
    title="What disabling a layer or a set of heads does to the score",
    caption="Bars are the score without a whole layer (or a set) minus that of the intact model, "
    "with 95 % intervals over examples; filled where the change is significant after correction.",
    paper="Kovaleva et al. 2019, Fig 9",
    needs=("layer_difference", "set_difference"),
)
def layers(dataset: xr.Dataset) -> Figure:
    """`layer_difference[layer]` and `set_difference[set]` with intervals (Kovaleva et al. 2019, Fig
    9)."""
    scale, unit = _points(dataset)
    dims = [dim for dim in ("layer", "set") if f"{dim}_difference" in dataset]
    names = []
    for dim in dims:
        for label in dataset[dim].values:
            names.append(f"layer {label}" if dim == "layer" else str(label))

    def values(key: str) -> np.ndarray:
        return np.concatenate([data.values(dataset, f"{dim}_{key}", (dim,)) for dim in dims])

    middle = values("difference")
    below = middle - values("difference_low")
    above = values("difference_high") - middle
    fig, ax = style.one_panel(style.COLUMN, 0.9 + 0.19 * len(names))
    place = np.arange(len(names))
    colours = [style.SKY if p < SIGNIFICANCE_LEVEL else "white" for p in values("p_adjusted")]
    errors = scale * np.abs(np.stack([below, above]))
    ax.barh(place, scale * middle, color=colours, edgecolor=style.BLUE, linewidth=0.6, height=0.7)
    ax.errorbar(
        scale * middle,
        place,
        xerr=errors,
        fmt="none",
        ecolor=style.INK,
        elinewidth=0.7,
        capsize=1.5,
    )
    ax.axvline(0, color="black", linewidth=0.6)
    ax.set_yticks(place, names)
    ax.invert_yaxis()
    ax.set_xlabel(f"change of {dataset.attrs.get('metric', 'score')} ({unit})")
    notes = [*_notes(dataset), f"Filled: corrected p < {SIGNIFICANCE_LEVEL}"]
    return style.complete(fig, "Score without a layer or a set of heads", notes)


def layers_by_task(datasets: Mapping[str, xr.Dataset]) -> Figure:
    """Draw `layer_difference[layer]` of several tasks, a panel each (Kovaleva et al. 2019, Fig 9).

    Parameters
    ----------
    datasets : mapping of str to xarray.Dataset
        Ablations with whole layers, by task.
    """
    if not datasets:
        raise ParameterError("`datasets` must name at least one dataset; it is empty.")
    columns = min(len(datasets), PANELS_ACROSS)
    lines = -(-len(datasets) // columns)
    panel_width = style.PAGE / PANELS_ACROSS
    width = max(style.COLUMN, columns * panel_width)
    with style.context():
        figure = style.new_figure(width, 1.5 * lines + 0.9)
        axes = figure.subplots(lines, columns, squeeze=False).ravel()
        notes = []
        for ax, (task, dataset) in zip(axes, datasets.items(), strict=False):
            _draw_layer_bars(ax, dataset)
            notes.append(f"{task}: {'; '.join(_notes(dataset))}")
        for ax in axes[len(datasets) :]:
            ax.remove()
        drawn = list(axes[: len(datasets)])
        style.panel_labels(drawn, list(datasets))
        notes.append(
            f"Bars: change of the score, 95 % interval; filled: corrected p < {SIGNIFICANCE_LEVEL}"
        )
        return style.complete(figure, "Score without a layer", notes)


def _draw_layer_bars(ax: Axes, dataset: xr.Dataset) -> None:
    """Draw a bar with its interval for each layer."""
    scale, unit = _points(dataset)
    middle = scale * data.values(dataset, "layer_difference", ("layer",))
    low = scale * data.values(dataset, "layer_difference_low", ("layer",))
    high = scale * data.values(dataset, "layer_difference_high", ("layer",))
    p_adjusted = data.values(dataset, "layer_p_adjusted", ("layer",))
    layer_numbers = data.numbers(dataset, "layer")
    colours = [style.SKY if p < SIGNIFICANCE_LEVEL else "white" for p in p_adjusted]
    ax.bar(layer_numbers, middle, color=colours, edgecolor=style.BLUE, linewidth=0.6, width=0.75)
    # Rounding may put an end of an interval beyond its middle.
    errors = np.abs(np.stack([middle - low, high - middle]))
    ax.errorbar(
        layer_numbers, middle, yerr=errors, fmt="none", ecolor=style.INK, elinewidth=0.7, capsize=1
    )
    ax.axhline(0, color="black", linewidth=0.6)
    step = max(1, len(layer_numbers) // 6)
    ax.set_xticks(layer_numbers[::step])
    ax.set_xlabel("layer")
    ax.set_ylabel(f"{dataset.attrs.get('metric', 'score')} ({unit})")


@figure(
    "ablation",
    name="importance",
    title="First-order importance against the harm of disabling",
    caption="Each dot is one head: across, how much the loss would change to first order if its "
    "output were scaled to zero; up, how much the score falls without it.",
    paper="Michel et al. 2019, §4.1",
    needs=("importance",),
)
def importance(dataset: xr.Dataset) -> Figure:
    """`importance[layer, head]` against `difference[layer, head]`, coloured by layer; a heat map
    where nothing was disabled."""
    if "difference" not in dataset:
        return heatmap(
            dataset["importance"],
            title="First-order importance of heads",
            label="importance",
            annotate="none",
            notes=_notes(dataset),
        )
    scale, unit = _points(dataset)
    sign = -1.0 if dataset.attrs.get("higher_better", 1) else 1.0
    x = data.values(dataset, "importance", ("layer", "head"))
    y = sign * scale * data.values(dataset, "difference", ("layer", "head"))
    fig, ax = style.one_panel(style.COLUMN, 2.6)
    head_points(fig, ax, x, y, data.numbers(dataset, "layer"))
    ax.axhline(0, color=style.GREY, linewidth=0.5)
    ax.set_xlabel("first-order importance (nats)")
    ax.set_ylabel(f"harm of disabling ({unit})")
    notes = _notes(dataset)
    spearman = dataset.attrs.get("importance_spearman")
    if spearman is not None:
        notes.append(f"Spearman over heads {float(spearman):.2f}".replace("-", "−"))
    return style.complete(fig, "Importance and harm of heads", notes)


@figure(
    "ablation",
    name="roles",
    title="Which roles go with the harm of disabling a head",
    caption="Spearman's correlation over heads between the harm of disabling a head and its bias "
    "to each role, with 95 % intervals; filled where it is significant after correction over "
    "roles. To the right: the more bias a head has to the role, the more disabling it harms.",
    paper="Kovaleva et al. 2019, §4.6 and §5",
    needs=("role_correlation", "role_correlation_p_adjusted"),
)
def roles(dataset: xr.Dataset) -> Figure:
    """`role_correlation[role]` with intervals, largest first."""
    correlation = data.values(dataset, "role_correlation", ("role",))
    low = data.values(dataset, "role_correlation_low", ("role",))
    high = data.values(dataset, "role_correlation_high", ("role",))
    p_values = data.values(dataset, "role_correlation_p_adjusted", ("role",))
    ranked = np.argsort(-correlation, kind="stable").tolist()
    shown = [number for number in ranked if np.isfinite(correlation[number])]
    fig, ax = style.one_panel(style.COLUMN, 0.9 + 0.17 * len(shown))
    place = np.arange(len(shown))
    ax.hlines(place, low[shown], high[shown], color=style.BLUE, linewidth=0.9)
    for row, number in enumerate(shown):
        fill = style.BLUE if p_values[number] < SIGNIFICANCE_LEVEL else "white"
        ax.plot(
            correlation[number], row, "o", color=style.BLUE, markerfacecolor=fill, markersize=3.6
        )
    ax.axvline(0, color=style.GREY, linewidth=0.6)
    labels = data.labels(dataset, "role")
    ax.set_yticks(place, [labels[i].replace("_", " ") for i in shown])
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xlabel("correlation of harm and bias to the role")
    notes = [
        *_notes(dataset),
        "Lines: 95 % interval",
        f"Filled: corrected p < {SIGNIFICANCE_LEVEL}",
    ]
    return style.complete(fig, "Harm of disabling heads, by role", notes)
