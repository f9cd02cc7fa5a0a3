"""Figures of probing: what each head knows, the best heads together, how tasks go together (Jo &
Myaeng 2020)."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure
from headwise.plots.scatter import head_points
from headwise.stats.correlation import correlation

_SELECTIONS = {
    "top": ("best on validation, singly", style.BLUE, "o"),
    "greedy": ("chosen greedily", style.VERMILION, "s"),
}
_POOLINGS = {
    "last_layer": ("last layer", style.GREY, "D"),
    "best_layer": ("best layer", style.ORANGE, "^"),
    "top_heads": ("top heads", style.BLUE, "o"),
    "greedy_heads": ("heads chosen greedily", style.VERMILION, "s"),
}

_LOCALISED = (
    ("localisation", "among heads", style.BLUE, "o"),
    ("layer_localisation", "among layers", style.ORANGE, "s"),
)
_LEVELS: dict[str, Any] = {
    "best_layer": (0, (4, 2)),
    "last_layer": (0, (1, 1.5)),
}  # lines across the curves


def _names(dataset: xr.Dataset) -> list[str]:
    """The tasks as the paper calls them, where it does."""
    found = (
        dataset["paper_task"].values if "paper_task" in dataset.coords else dataset["task"].values
    )
    return [str(name) for name in np.atleast_1d(found)]


def _planes(dataset: xr.Dataset, name: str = "accuracy") -> dict[str, xr.DataArray]:
    return {
        task: 100 * dataset[name].isel(task=place) for place, task in enumerate(_names(dataset))
    }


def _notes(dataset: xr.Dataset) -> list[str]:
    return data.ground(dataset, "accuracy", each="test examples")


def score_label(dataset: xr.Dataset) -> str:
    """What the scores of the tasks are, for an axis."""
    kinds = (
        {str(kind) for kind in np.atleast_1d(dataset["kind"].values)}
        if "kind" in dataset.coords
        else set()
    )
    return {
        frozenset({"regression"}): "Pearson's r × 100",
        frozenset({"classification"}): "test accuracy (%)",
    }.get(frozenset(kinds), "test accuracy (%), or Pearson's r × 100")


@figure(
    "probing",
    name="heads",
    title="How well a task can be told from each head's output",
    caption="Each cell is one head: the test accuracy of a logistic regression on its output vector at the sentence's "
    "token. All tasks share one colour scale.",
    paper="Jo & Myaeng 2020, Fig 7",
    needs=("accuracy",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """`accuracy[task, layer, head]` as heat maps on one colour scale, heads in their own order."""
    title = "Probing accuracy of each head"
    label = score_label(dataset)
    return heatmap_panels(
        _planes(dataset), title=title, label=label, annotate="none", notes=_notes(dataset)
    )


@figure(
    "probing",
    name="heads-sorted",
    title="How well a task can be told from each head's output, heads sorted",
    caption="As before, with the heads of a layer sorted from best to worst: where in the model a task is known, and "
    "by how many heads.",
    paper="Jo & Myaeng 2020, Fig 3 and 6",
    needs=("accuracy",),
)
def heads_sorted(dataset: xr.Dataset) -> Figure:
    """`accuracy[task, layer, head]` as heat maps on one colour scale, heads sorted within their
    layer."""
    title = "Probing accuracy of each head, sorted within its layer"
    return heatmap_panels(
        _planes(dataset), title=title, label=score_label(dataset), sort=True, notes=_notes(dataset)
    )


@figure(
    "probing",
    name="task",
    title="How well one task can be told from each head's output",
    caption="One task on its own colour scale, heads sorted within their layer; cells carry head numbers.",
    paper="Jo & Myaeng 2020, Fig 3",
    needs=("accuracy",),
    each="task",
)
def one_task(dataset: xr.Dataset) -> Figure:
    """One task's `accuracy[layer, head]` on its own colour scale, sorted; the majority label stands
    in the notes."""
    planes = _planes(dataset.isel(task=[0]))
    name = next(iter(planes))
    notes = _notes(dataset)
    if data.has(dataset, "majority"):
        majority = 100 * float(np.atleast_1d(dataset["majority"].values)[0])
        notes.append(f"The most frequent label alone: {majority:.1f} %")
    if "better" in dataset:
        better = np.atleast_3d(dataset["better"].values)
        notes.append(
            f"Better than that at 5 %, corrected over heads: {int(better.sum())} of {better.size} heads"
        )
    if data.has(dataset, "random_accuracy"):
        best = 100 * np.nanmax(dataset["random_accuracy"].values)
        notes.append(f"Best head of the same model with random weights: {best:.1f} %")
    title = f"{name}: probing accuracy of each head"
    return heatmap_panels(
        {"": planes[name]}, title=title, label=score_label(dataset), sort=True, notes=notes
    )


@figure(
    "probing",
    name="selectivity",
    title="How much of a score is the head's and not the probe's",
    caption="Each cell is one head: its test accuracy minus that of the same probe on a control task, where the labels "
    "were dealt out at random. Near zero, the probe alone explains the score.",
    paper="Jo & Myaeng 2020; control tasks after Hewitt & Liang 2019",
    needs=("selectivity",),
)
def selectivity(dataset: xr.Dataset) -> Figure:
    """`selectivity[task, layer, head]` as heat maps on one colour scale."""
    planes, title = _planes(dataset, "selectivity"), "Selectivity of each head"
    label = "score minus score on the control task (points)"
    return heatmap_panels(planes, title=title, label=label, annotate="none", notes=_notes(dataset))


@figure(
    "probing",
    name="poolings",
    title="Last layer, best layer, best heads together",
    caption="Test accuracy of the same classifier on three or four sentence vectors. Best layer and best heads are "
    "picked on the validation part.",
    paper="Jo & Myaeng 2020, Table 3",
    needs=("pooled_accuracy",),
)
def poolings(dataset: xr.Dataset) -> Figure:
    """`pooled_accuracy[task, pooling]` with intervals, the majority label as a tick (Jo & Myaeng
    2020, Table 3)."""
    dims = ("task", "pooling")
    values = 100 * data.values(dataset, "pooled_accuracy", dims)
    bounds = data.interval(dataset, "pooled_accuracy", dims)
    tasks, labels = _names(dataset), data.labels(dataset, "pooling")
    fig, ax = style.one_panel(style.PAGE, 0.9 + 0.3 * len(tasks))
    handles = []
    for j, label in enumerate(labels):
        other = label, style.cycle(style.OKABE_ITO, j), style.cycle(style.MARKERS, j)
        shown, colour, marker = _POOLINGS.get(label, other)
        y = np.arange(len(tasks)) + (j - (len(labels) - 1) / 2) * 0.17
        if bounds is not None:
            ax.hlines(y, 100 * bounds[0][:, j], 100 * bounds[1][:, j], color=colour, linewidth=0.9)
        ax.plot(values[:, j], y, marker, color=colour, markersize=3.6)
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle="none", label=shown))
    if data.has(dataset, "random_layer_accuracy"):
        untrained = 100 * data.values(dataset, "random_layer_accuracy", ("task", "layer"))[:, -1]
        mark: dict[str, Any] = {"marker": "D", "color": style.GREY, "markerfacecolor": "white"}
        mark |= {"markersize": 3.6, "linestyle": "none"}
        ax.plot(untrained, np.arange(len(tasks)) - (len(labels) - 1) / 2 * 0.17, **mark)
        handles.append(Line2D([], [], **mark, label="last layer, random weights"))
    if data.has(dataset, "majority"):
        level, rows = 100 * np.atleast_1d(dataset["majority"].values), np.arange(len(tasks))
        dashed: dict[str, Any] = {"color": style.INK, "linewidth": 0.8, "linestyle": (0, (2, 1.5))}
        ax.vlines(level, rows - 0.36, rows + 0.36, **dashed)
        handles.append(Line2D([], [], **dashed, label="most frequent label"))
    for edge in np.arange(1, len(tasks)) - 0.5:
        ax.axhline(edge, color="#e6e6e6", linewidth=0.5)
    ax.set_yticks(np.arange(len(tasks)), tasks)
    ax.set_ylim(len(tasks) - 0.5, -0.5)
    ax.set_xlabel(score_label(dataset))
    notes = [*_notes(dataset), "Lines: 95 % interval"]
    title = "Sentence vectors from the last layer, the best layer and the best heads"
    return style.complete(
        fig, title, notes, handles, columns=len(handles) if len(handles) < 6 else 3
    )


@figure(
    "probing",
    name="curves",
    title="How many heads it takes",
    caption="Test accuracy of the n best heads together: ranked singly on validation, or "
    "chosen one after the other so that each adds most. Dashed: the best layer; dotted: the last.",
    paper="Jo & Myaeng 2020, §3.3 and §6.1",
    needs=("curve_accuracy",),
)
def curves(dataset: xr.Dataset) -> Figure:
    """`curve_accuracy[task, n_heads, selection]` with intervals, best and last layer as
    reference."""
    dims = ("task", "n_heads", "selection")
    values, bounds = (
        100 * data.values(dataset, "curve_accuracy", dims),
        data.interval(dataset, "curve_accuracy", dims),
    )
    tasks, counts = _names(dataset), np.array(data.numbers(dataset, "n_heads"))
    lines = [
        _SELECTIONS.get(name, (name, style.GREEN, "^"))
        for name in data.labels(dataset, "selection")
    ]
    poolings = data.labels(dataset, "pooling") if data.has(dataset, "pooled_accuracy") else []
    pooled = (
        data.values(dataset, "pooled_accuracy", ("task", "pooling"))
        if poolings
        else np.empty((len(tasks), 0))
    )
    levels = {name: dashes for name, dashes in _LEVELS.items() if name in poolings}
    columns = min(5, len(tasks)) if len(tasks) > 3 else len(tasks)
    rows = -(-len(tasks) // columns)
    fig = style.new_figure(
        style.PAGE if columns > 1 else style.COLUMN, 1.55 * rows + 0.95 if columns > 1 else 2.8
    )
    axes = fig.subplots(rows, columns, squeeze=False).ravel()
    for i, ax in enumerate(axes[: len(tasks)]):
        for k, (_, colour, marker) in enumerate(lines):
            if bounds is not None:
                low, high = (100 * bound[i, :, k] for bound in bounds)
                ax.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0)
            ax.plot(
                counts, values[i, :, k], color=colour, marker=marker, markersize=2.4, linewidth=1.0
            )
        for pooling, dashes in levels.items():
            ax.axhline(
                100 * pooled[i, poolings.index(pooling)],
                color=style.GREY,
                linewidth=0.9,
                linestyle=dashes,
            )
        ax.set_xscale("log")
        ticks = [
            n for n in (1, 3, 12, 36, 100, 300) if counts.min() <= n <= counts.max()
        ] or counts.tolist()
        ax.set_xticks(ticks, [str(n) for n in ticks])
        ax.minorticks_off()
        ax.grid(axis="y")
        if i % columns == 0:
            ax.set_ylabel("test score (%)")
        if i + columns >= len(tasks):
            ax.set_xlabel("heads")
    for ax in axes[len(tasks) :]:
        ax.remove()
    style.panel_labels(list(axes[: len(tasks)]), tasks)
    handles = [
        Line2D([], [], color=colour, marker=marker, label=shown) for shown, colour, marker in lines
    ]
    for name, dashes in levels.items():
        handles.append(Line2D([], [], color=style.GREY, linestyle=dashes, label=_POOLINGS[name][0]))
    notes = [*_notes(dataset), "Bands: 95 % interval"]
    return style.complete(
        fig, "Accuracy of the n best heads together", notes, handles, columns=len(handles)
    )


@figure(
    "probing",
    name="syntactic-semantic",
    title="Syntactic against semantic score of each head",
    caption="Each point is one head: mean accuracy over the syntactic tasks (Depth, TopConst, BigramShift) against "
    "that over the semantic ones (Tense, SubjNum, ObjNum, OddManOut, CoordInv), coloured by layer.",
    paper="Jo & Myaeng 2020, Fig 5",
    needs=("syntactic_score",),
)
def syntactic_semantic(dataset: xr.Dataset) -> Figure:
    """`syntactic_score` against `semantic_score`, one point per head, coloured by layer (Jo &
    Myaeng 2020, Fig 5)."""
    x, y = (
        100 * data.values(dataset, name, ("layer", "head"))
        for name in ("syntactic_score", "semantic_score")
    )
    fig, ax = style.one_panel(style.COLUMN, 3.3)
    head_points(fig, ax, x, y, data.numbers(dataset, "layer"))
    r = float(correlation(x.ravel(), y.ravel()).r)
    ax.set_xlabel("syntactic score: mean accuracy (%)")
    ax.set_ylabel("semantic score: mean accuracy (%)")
    notes = [
        data.source_text(dataset),
        f"Pearson correlation over heads: {r:.2f}" if np.isfinite(r) else "",
    ]
    return style.complete(fig, "Syntactic and semantic score", notes)


@figure(
    "probing",
    name="task-correlation",
    title="Which tasks the same heads are good at",
    caption="Pearson correlation of two tasks' accuracies over all heads.",
    paper="Jo & Myaeng 2020, §6.2",
    needs=("task_correlation",),
)
def task_correlation(dataset: xr.Dataset) -> Figure:
    """`task_correlation[task, task_b]` as a matrix with its numbers."""
    values = data.values(dataset, "task_correlation", ("task", "task_b"))
    tasks = _names(dataset)
    size = min(style.PAGE, 1.9 + 0.36 * len(tasks))
    fig, ax = style.one_panel(size, size * 0.88)
    image = ax.imshow(values, cmap=style.DIVERGING, vmin=-1, vmax=1)
    colours = mpl.colormaps[style.DIVERGING]
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = colours((value + 1) / 2)
            dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
            placed: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.SMALL}
            ax.text(
                j, i, f"{value:.2f}".replace("-", "−"), color="white" if dark else "black", **placed
            )
    ax.set_xticks(np.arange(len(tasks)), tasks, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(np.arange(len(tasks)), tasks)
    style.bare(ax)
    style.colour_bar(fig, image, ax, "correlation over heads", fraction=0.045, pad=0.02)
    heads_count = dataset.sizes.get("layer", 0) * dataset.sizes.get("head", 0)
    notes = [data.source_text(dataset), f"{heads_count} heads" if heads_count else ""]
    return style.complete(fig, "Tasks that the same heads are good at", notes)


@figure(
    "probing",
    name="localised",
    title="How localised each task is",
    caption="From 0, all heads (or layers) gain alike over the most frequent label, to 1, a single one does. Whiskers: "
    "95 % interval, bootstrap over test examples; at the right, how many heads of equal gain would be as even.",
    paper="after Jo & Myaeng 2020, §3.2 and Fig 3",
    needs=("localisation",),
)
def localised_tasks(dataset: xr.Dataset) -> Figure:
    """`localisation` and `layer_localisation[task]` with their intervals, a row a task."""
    names = _names(dataset)
    fig, ax = style.one_panel(style.COLUMN, 1.2 + 0.24 * len(names))
    for index, (name, words, colour, marker) in enumerate(_LOCALISED):
        middle, low, high = (
            data.values(dataset, f"{name}{end}", ("task",)) for end in ("", "_low", "_high")
        )
        place = np.arange(len(names)) + 0.22 * index - 0.11
        ax.hlines(place, low, high, color=colour, linewidth=1)
        ax.plot(middle, place, marker, color=colour, label=words, linestyle="none", markersize=4)
    for row, count in enumerate(data.values(dataset, "effective_heads", ("task",))):
        text = f"{count:.0f}" if np.isfinite(count) else "no head knows it"
        ax.annotate(
            text, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=style.SMALL
        )
    ax.set_yticks(range(len(names)), names)
    ax.set(
        xlim=(0, 1), ylim=(len(names) - 0.4, -0.6), xlabel="localisation (0 even, 1 a single one)"
    )
    handles, _ = ax.get_legend_handles_labels()
    notes = [*_notes(dataset), "Right: effective number of heads"]
    return style.complete(fig, "How localised each task is", notes, handles, 2)
