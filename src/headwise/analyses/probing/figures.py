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

# Label, colour and marker of each way to select heads, and of each pooling.
_SELECTIONS = {
    "top": ("best single heads on validation", style.BLUE, "o"),
    "greedy": ("forward selection", style.VERMILION, "s"),
}
_POOLINGS = {
    "last_layer": ("last layer", style.GREY, "D"),
    "best_layer": ("best layer", style.ORANGE, "^"),
    "top_heads": ("top heads", style.BLUE, "o"),
    "greedy_heads": ("heads by forward selection", style.VERMILION, "s"),
}
_LOCALISATION = (
    ("localisation", "among heads", style.BLUE, "o"),
    ("layer_localisation", "among layers", style.ORANGE, "s"),
)
# Line styles of the reference levels across the curves.
_LEVELS: dict[str, Any] = {"best_layer": (0, (4, 2)), "last_layer": (0, (1, 1.5))}
_TICKS = (1, 3, 12, 36, 100, 300)  # numbers of heads on the logarithmic axis of the curves
_ROW_GAP = 0.17  # between the poolings of a task


def _task_names(dataset: xr.Dataset) -> list[str]:
    """Return the names of the tasks, the paper's where it has one."""
    coordinate = "paper_task" if "paper_task" in dataset.coords else "task"
    return [str(name) for name in np.atleast_1d(dataset[coordinate].values)]


def _planes(dataset: xr.Dataset, name: str = "accuracy") -> dict[str, xr.DataArray]:
    """Return the values of each task, `[layer, head]` in per cent, by the task's name."""
    planes = {}
    for position, task in enumerate(_task_names(dataset)):
        planes[task] = 100 * dataset[name].isel(task=position)
    return planes


def _notes(dataset: xr.Dataset) -> list[str]:
    return data.source_notes(dataset, "accuracy", each="test examples")


def score_label(dataset: xr.Dataset) -> str:
    """Return the axis label of the scores: accuracy, Pearson's r, or both."""
    kinds = set()
    if "kind" in dataset.coords:
        kinds = {str(kind) for kind in np.atleast_1d(dataset["kind"].values)}
    if kinds == {"regression"}:
        return "Pearson's r × 100"
    if kinds == {"classification"}:
        return "test accuracy (%)"
    return "test accuracy (%), or Pearson's r × 100"


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
    return heatmap_panels(
        _planes(dataset),
        title="Probing accuracy of each head",
        label=score_label(dataset),
        annotate="none",
        notes=_notes(dataset),
    )


@figure(
    "probing",
    name="heads-sorted",
    title="How well a task can be told from each head's output, heads sorted",
    caption="As before, with the heads of a layer sorted from best to worst: in which layers a task can be told, and "
    "from how many heads.",
    paper="Jo & Myaeng 2020, Fig 3 and 6",
    needs=("accuracy",),
)
def heads_sorted(dataset: xr.Dataset) -> Figure:
    """`accuracy[task, layer, head]` as heat maps on one colour scale, heads sorted within their
    layer."""
    return heatmap_panels(
        _planes(dataset),
        title="Probing accuracy of each head, sorted within its layer",
        label=score_label(dataset),
        sort=True,
        notes=_notes(dataset),
    )


@figure(
    "probing",
    name="task",
    title="How well one task can be told from each head's output",
    caption="One task on its own colour scale, heads sorted within their layer; cells show head numbers.",
    paper="Jo & Myaeng 2020, Fig 3",
    needs=("accuracy",),
    each="task",
)
def one_task(dataset: xr.Dataset) -> Figure:
    """One task's `accuracy[layer, head]` on its own colour scale, sorted; the notes give the majority
    label."""
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
    caption="Each cell is one head: its test accuracy minus that of the same probe on a control task with random "
    "labels. Near zero, the probe alone explains the score.",
    paper="Jo & Myaeng 2020; control tasks after Hewitt & Liang 2019",
    needs=("selectivity",),
)
def selectivity(dataset: xr.Dataset) -> Figure:
    """`selectivity[task, layer, head]` as heat maps on one colour scale."""
    return heatmap_panels(
        _planes(dataset, "selectivity"),
        title="Selectivity of each head",
        label="score minus score on the control task (points)",
        annotate="none",
        notes=_notes(dataset),
    )


@figure(
    "probing",
    name="poolings",
    title="Last layer, best layer, best heads together",
    caption="Test accuracy of the same classifier on three or four sentence vectors. Best layer and best heads are "
    "selected on the validation part.",
    paper="Jo & Myaeng 2020, Table 3",
    needs=("pooled_accuracy",),
)
def poolings(dataset: xr.Dataset) -> Figure:
    """`pooled_accuracy[task, pooling]` with intervals, the majority label as a tick (Jo & Myaeng
    2020, Table 3)."""
    dims = ("task", "pooling")
    scores = 100 * data.values(dataset, "pooled_accuracy", dims)
    bounds = data.interval(dataset, "pooled_accuracy", dims)
    tasks = _task_names(dataset)
    rows = np.arange(len(tasks))
    poolings = data.labels(dataset, "pooling")
    first_offset = -(len(poolings) - 1) / 2 * _ROW_GAP
    fig, ax = style.one_panel(style.PAGE, 0.9 + 0.3 * len(tasks))
    handles = []
    for j, pooling in enumerate(poolings):
        unknown = (pooling, style.cycle(style.OKABE_ITO, j), style.cycle(style.MARKERS, j))
        label, colour, marker = _POOLINGS.get(pooling, unknown)
        y = rows + first_offset + j * _ROW_GAP
        if bounds is not None:
            ax.hlines(y, 100 * bounds[0][:, j], 100 * bounds[1][:, j], color=colour, linewidth=0.9)
        ax.plot(scores[:, j], y, marker, color=colour, markersize=3.6)
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle="none", label=label))
    if data.has(dataset, "random_layer_accuracy"):
        random_layers = data.values(dataset, "random_layer_accuracy", ("task", "layer"))
        hollow: dict[str, Any] = {
            "marker": "D",
            "color": style.GREY,
            "markerfacecolor": "white",
            "markersize": 3.6,
            "linestyle": "none",
        }
        ax.plot(100 * random_layers[:, -1], rows + first_offset, **hollow)
        handles.append(Line2D([], [], **hollow, label="last layer, random weights"))
    if data.has(dataset, "majority"):
        majority = 100 * np.atleast_1d(dataset["majority"].values)
        dashed: dict[str, Any] = {"color": style.INK, "linewidth": 0.8, "linestyle": (0, (2, 1.5))}
        ax.vlines(majority, rows - 0.36, rows + 0.36, **dashed)
        handles.append(Line2D([], [], **dashed, label="most frequent label"))
    for edge in rows[1:] - 0.5:
        ax.axhline(edge, color="#e6e6e6", linewidth=0.5)
    ax.set_yticks(rows, tasks)
    ax.set_ylim(len(tasks) - 0.5, -0.5)
    ax.set_xlabel(score_label(dataset))
    return style.complete(
        fig,
        "Sentence vectors from the last layer, the best layer and the best heads",
        [*_notes(dataset), "Lines: 95 % interval"],
        handles,
        columns=len(handles) if len(handles) < 6 else 3,
    )


@figure(
    "probing",
    name="curves",
    title="How many heads it takes",
    caption="Test accuracy of the n best heads together: ranked by their own validation score, or by forward "
    "selection, where each added head improves validation most. Dashed: the best layer; dotted: the last.",
    paper="Jo & Myaeng 2020, §3.3 and §6.1",
    needs=("curve_accuracy",),
)
def curves(dataset: xr.Dataset) -> Figure:
    """`curve_accuracy[task, n_heads, selection]` with intervals, best and last layer as
    reference."""
    dims = ("task", "n_heads", "selection")
    scores = 100 * data.values(dataset, "curve_accuracy", dims)
    bounds = data.interval(dataset, "curve_accuracy", dims)
    tasks = _task_names(dataset)
    counts = np.array(data.numbers(dataset, "n_heads"))
    lines = []
    for selection in data.labels(dataset, "selection"):
        lines.append(_SELECTIONS.get(selection, (selection, style.GREEN, "^")))
    levels = _pooled_levels(dataset)

    columns = len(tasks) if len(tasks) <= 3 else min(5, len(tasks))
    rows = -(-len(tasks) // columns)
    if columns > 1:
        fig = style.new_figure(style.PAGE, 1.55 * rows + 0.95)
    else:
        fig = style.new_figure(style.COLUMN, 2.8)
    axes = fig.subplots(rows, columns, squeeze=False).ravel()
    for i, ax in enumerate(axes[: len(tasks)]):
        for k, (_, colour, marker) in enumerate(lines):
            if bounds is not None:
                low = 100 * bounds[0][i, :, k]
                high = 100 * bounds[1][i, :, k]
                ax.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0)
            ax.plot(
                counts, scores[i, :, k], color=colour, marker=marker, markersize=2.4, linewidth=1.0
            )
        for pooling, level in levels.items():
            ax.axhline(level[i], color=style.GREY, linewidth=0.9, linestyle=_LEVELS[pooling])
        ax.set_xscale("log")
        ticks = [n for n in _TICKS if counts.min() <= n <= counts.max()] or counts.tolist()
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

    handles = []
    for label, colour, marker in lines:
        handles.append(Line2D([], [], color=colour, marker=marker, label=label))
    for pooling in levels:
        handles.append(
            Line2D(
                [],
                [],
                color=style.GREY,
                linestyle=_LEVELS[pooling],
                label=_POOLINGS[pooling][0],
            )
        )
    notes = [*_notes(dataset), "Bands: 95 % interval"]
    return style.complete(
        fig, "Accuracy of the n best heads together", notes, handles, columns=len(handles)
    )


def _pooled_levels(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """Return the scores of best and last layer, `[task]` in per cent, as far as there are any."""
    if not data.has(dataset, "pooled_accuracy"):
        return {}
    poolings = data.labels(dataset, "pooling")
    pooled = data.values(dataset, "pooled_accuracy", ("task", "pooling"))
    levels = {}
    for pooling in _LEVELS:
        if pooling in poolings:
            levels[pooling] = 100 * pooled[:, poolings.index(pooling)]
    return levels


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
    syntactic = 100 * data.values(dataset, "syntactic_score", ("layer", "head"))
    semantic = 100 * data.values(dataset, "semantic_score", ("layer", "head"))
    fig, ax = style.one_panel(style.COLUMN, 3.3)
    head_points(fig, ax, syntactic, semantic, data.numbers(dataset, "layer"))
    ax.set_xlabel("syntactic score: mean accuracy (%)")
    ax.set_ylabel("semantic score: mean accuracy (%)")
    notes = [data.source_text(dataset)]
    r = float(correlation(syntactic.ravel(), semantic.ravel()).r)
    if np.isfinite(r):
        notes.append(f"Pearson correlation over heads: {r:.2f}")
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
    tasks = _task_names(dataset)
    size = min(style.PAGE, 1.9 + 0.36 * len(tasks))
    fig, ax = style.one_panel(size, size * 0.88)
    image = ax.imshow(values, cmap=style.DIVERGING, vmin=-1, vmax=1)
    colours = mpl.colormaps[style.DIVERGING]
    for (i, j), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        red, green, blue, _ = colours((value + 1) / 2)
        luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        ax.text(
            j,
            i,
            f"{value:.2f}".replace("-", "−"),
            color="white" if luminance < 0.45 else "black",
            ha="center",
            va="center",
            fontsize=style.SMALL,
        )
    ax.set_xticks(np.arange(len(tasks)), tasks, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(np.arange(len(tasks)), tasks)
    style.bare(ax)
    style.colour_bar(fig, image, ax, "correlation over heads", fraction=0.045, pad=0.02)
    notes = [data.source_text(dataset)]
    n_heads = dataset.sizes.get("layer", 0) * dataset.sizes.get("head", 0)
    if n_heads:
        notes.append(f"{n_heads} heads")
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
    tasks = _task_names(dataset)
    fig, ax = style.one_panel(style.COLUMN, 1.2 + 0.24 * len(tasks))
    for index, (name, label, colour, marker) in enumerate(_LOCALISATION):
        value = data.values(dataset, name, ("task",))
        low = data.values(dataset, f"{name}_low", ("task",))
        high = data.values(dataset, f"{name}_high", ("task",))
        y = np.arange(len(tasks)) + 0.22 * index - 0.11
        ax.hlines(y, low, high, color=colour, linewidth=1)
        ax.plot(value, y, marker, color=colour, label=label, linestyle="none", markersize=4)
    for row, count in enumerate(data.values(dataset, "effective_heads", ("task",))):
        ax.annotate(
            f"{count:.0f}" if np.isfinite(count) else "no significant head",
            (1.02, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=style.SMALL,
        )
    ax.set_yticks(range(len(tasks)), tasks)
    ax.set_xlim(0, 1)
    ax.set_ylim(len(tasks) - 0.4, -0.6)
    ax.set_xlabel("localisation (0: even, 1: a single one)")
    handles, _ = ax.get_legend_handles_labels()
    notes = [*_notes(dataset), "Right: effective number of heads"]
    return style.complete(fig, "How localised each task is", notes, handles, 2)
