"""Figures of heads that follow syntax: Table 1 with both names of each head, accuracies against baselines, maps of relations, the no-op reading (Clark et al. 2019, §4)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headwise.core.errors import ParameterError, unknown
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap, heatmap_panels
from headwise.plots.registry import figure, table_of

MOST = 32  # relations a figure has room for
ARROWS = {"dependent_to_head": "dependent → head", "head_to_dependent": "head → dependent", "": ""}


@table_of(
    "dependency",
    name="best-heads",
    title="Best head of each relation",
    note="Heads by both names: counted from 0, and as the paper counts.",
)
def dependency_table(dataset: xr.Dataset, fewest: int = 30) -> pd.DataFrame:
    """Table 1: for each relation the best head, by both its names, its accuracy and the best fixed offset; the commonest relation first.

    Parameters
    ----------
    dataset
        The group `dependency`.
    fewest
        Relations with fewer pairs are left out.
    """
    order = np.argsort(-dataset["count"].values, kind="stable")
    rows = []
    for place in order:
        at = dataset.isel(relation=int(place))
        layer, head = int(at["best_layer"]), int(at["best_head"])
        if layer < 0 or int(at["count"]) < fewest:
            continue
        rows.append(
            {
                "relation": str(at["relation"].values),
                "pairs": int(at["best_accuracy_n"]),
                "head": head_name(layer, head),
                "head_in_paper": f"{layer + 1}-{head + 1}",
                "direction": str(at["best_direction"].values),
                "accuracy": float(at["best_accuracy"]),
                "low": float(at["best_accuracy_low"]),
                "high": float(at["best_accuracy_high"]),
                "baseline": float(at["best_baseline"]),
                "offset": int(at["baseline_possible_offset"].sel(direction=str(at["best_direction"].values))),
                "p_adjusted": float(at["best_p_adjusted"]),
            }
        )
    return pd.DataFrame(rows)


@figure(
    "dependency",
    name="table",
    title="The best head for each dependency relation",
    caption="For each relation, the head that most often finds a word's syntactic head, against the best fixed offset. Heads are named from 0 (L7H9) and, "
    "in the second column, as the paper names them (8-10). A head is called better than the offset only after correction for all the heads tried.",
    paper="Clark et al. 2019, §4.2, Table 1",
    needs=("best_accuracy",),
)
def table(dataset: xr.Dataset) -> Figure:
    """Table 1 as a figure: relation, pairs, head (both names), direction, accuracy with interval, baseline with offset, corrected p."""
    found = _fitting(dataset)
    heading = (
        "relation",
        "pairs",
        "head",
        "paper's name",
        "direction",
        "accuracy",
        "95 % interval",
        "offset baseline",
        "p (corrected)",
    )
    places = np.array([0.0, 0.185, 0.2, 0.285, 0.39, 0.615, 0.64, 0.78, 0.99])
    sides = ("left", "right", "left", "left", "left", "right", "left", "left", "right")
    line = 0.165
    fig = style.new_figure(style.PAGE, line * (len(found) + 1) + 0.95)
    ax = fig.subplots()
    ax.set_axis_off()
    ax.set_xlim(0, 1)
    ax.set_ylim(len(found) + 0.5, -1)
    for x, side, text in zip(places, sides, heading, strict=True):
        ax.text(x, -0.5, text, ha=side, va="center", fontsize=style.SMALL, color=style.GREY)
    ax.axhline(0, color=style.INK, linewidth=0.6)
    for y, row in enumerate(found.itertuples()):
        better = row.p_adjusted < 0.05
        cells = (
            "all (UAS)" if row.relation == "all" else row.relation,
            f"{row.pairs:,}",
            row.head,
            row.head_in_paper,
            ARROWS[row.direction],
            f"{100 * row.accuracy:.1f}",
            f"{100 * row.low:.1f} to {100 * row.high:.1f}",
            f"{100 * row.baseline:.1f}  at {row.offset:+d}".replace("-", "−"),
            _p_text(row.p_adjusted),
        )
        for column, (x, side, text) in enumerate(zip(places, sides, cells, strict=True)):
            weight = "bold" if better and column in (0, 2, 5) else "normal"
            ax.text(x, y + 0.5, text, ha=side, va="center", fontsize=style.SMALL, fontweight=weight)
        if y == 0:
            ax.axhline(1, color=style.PALE, linewidth=0.5)
    notes = [
        data.source_text(dataset),
        _count_text(dataset),
        "Accuracy and baseline in % of word pairs, with Wilson's interval; bold: better than the best fixed offset after correction (p < 0.05)",
        _left_out(dataset, len(found)),
        str(dataset.attrs.get("note", "")),
    ]
    style.annotate_figure(fig, "The best head for each dependency relation", notes)
    return style.finish(fig)


@figure(
    "dependency",
    name="accuracy",
    title="Best heads against the best fixed offset",
    caption="For each relation, how often its best head finds the syntactic head of a word (filled), against always guessing the word at the best "
    "fixed distance (open). Relations are sorted by the margin between the two.",
    paper="Clark et al. 2019, §4.2, Table 1",
    needs=("best_accuracy",),
)
def accuracy(dataset: xr.Dataset) -> Figure:
    """Accuracy of each relation's best head with its interval, and the best fixed offset, sorted by margin."""
    found = _fitting(dataset)
    found = found.assign(margin=found["accuracy"] - found["baseline"]).sort_values("margin", kind="stable")
    fig = style.new_figure(style.COLUMN + 1.2, 0.155 * len(found) + 1.35)
    ax = fig.subplots()
    y = np.arange(len(found))
    better = found["p_adjusted"].to_numpy() < 0.05
    ax.hlines(y, found["baseline"], found["accuracy"], color=style.PALE, linewidth=1.5, zorder=1)
    ax.hlines(y, found["low"], found["high"], color=style.BLUE, linewidth=0.8, zorder=2)
    ax.scatter(found["baseline"], y, s=14, facecolors="white", edgecolors=style.VERMILION, linewidths=0.9, zorder=3)
    ax.scatter(found["accuracy"], y, s=16, c=[style.BLUE if b else style.GREY for b in better], zorder=4, linewidths=0)
    for place, row in enumerate(found.itertuples()):
        arrow = "" if row.direction == "dependent_to_head" else " ←"
        ax.annotate(
            f"{row.head}{arrow}",
            (1.03, place),
            fontsize=style.SMALL,
            va="center",
            annotation_clip=False,
            color=style.INK if better[place] else style.GREY,
        )
    ax.set_yticks(y, list(found["relation"]))
    ax.set_ylim(-0.7, len(found) - 0.3)
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel("share of word pairs found")
    ax.grid(axis="x")
    handles = [
        Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            color=style.BLUE,
            markersize=4,
            label="best head, better than the offset (p < 0.05, corrected)",
        ),
        Line2D([], [], marker="o", linestyle="", color=style.GREY, markersize=4, label="best head, not better"),
        Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            markerfacecolor="white",
            markeredgecolor=style.VERMILION,
            markersize=4,
            label="best fixed offset",
        ),
    ]
    notes = [
        data.source_text(dataset),
        _count_text(dataset),
        "Bars: 95 % interval (Wilson). Heads at the right, counted from 0; ← marks heads that attend from the syntactic head to the dependent",
        _left_out(dataset, len(found)),
    ]
    style.annotate_figure(fig, "Single heads against the best fixed offset", notes, handles, 1)
    return style.finish(fig)


@figure(
    "dependency",
    name="relations",
    title="Which heads follow which relation",
    caption="Accuracy of every head for the relations on which some head beats the best fixed offset by most; each head in its better direction.",
    paper="Clark et al. 2019, §4.2",
    needs=("best_accuracy",),
)
def relations(dataset: xr.Dataset) -> Figure:
    """Heat maps of the six relations with the largest margin of the best head over the baseline (and of `all`, where fewer have any)."""
    found = _fitting(dataset)
    margin = (found["accuracy"] - found["baseline"]).where(found["relation"] != "all", -1.0)
    chosen = list(found.assign(margin=margin).sort_values("margin", ascending=False, kind="stable")["relation"][:6])
    better = dataset["accuracy"].max("direction")
    arrays = {
        f"{name} (baseline {_percent(dataset, name)})": better.sel(relation=name, drop=True).reset_coords(drop=True)
        for name in chosen
    }
    notes = [
        data.source_text(dataset),
        _count_text(dataset),
        "Each head in its better direction. The intervals are in the atlas",
    ]
    return heatmap_panels(
        arrays,
        title="Which heads follow which relation",
        label="accuracy",
        unit="share of pairs",
        limits=(0, 1),
        annotate="none",
        notes=notes,
    )


def relation_heatmap(dataset: xr.Dataset, relation: str, direction: str | None = None) -> Figure:
    """The accuracy of every head for one relation, in one direction or in the better of both."""
    known = data.labels(dataset, "relation")
    if relation not in known:
        raise ParameterError(unknown("relation", relation, known))
    scores = dataset["accuracy"].sel(relation=relation, drop=True)
    scores = scores.max("direction") if direction is None else scores.sel(direction=direction, drop=True)
    shown = ARROWS[direction] if direction else "better direction of each head"
    notes = [
        data.source_text(dataset),
        f"n = {int(dataset['count'].sel(relation=relation)):,} word pairs",
        f"Best fixed offset: {_percent(dataset, relation)}",
    ]
    return heatmap(
        scores.reset_coords(drop=True),
        title=f"{relation}: {shown}",
        label="accuracy",
        unit="share of pairs",
        limits=(0, 1),
        notes=notes,
    )


@figure(
    "dependency",
    name="no-op",
    title="Do heads rest when their relation does not apply?",
    caption="For each relation's best head: its attention to the resting token ([SEP], unless another was chosen) from words that have the relation and "
    "from words that do not. A head that rests when it has nothing to do attends there more from words without the relation.",
    paper="Clark et al. 2019, §3.2",
    needs=("best_noop_with", "best_noop_without"),
)
def no_op(dataset: xr.Dataset) -> Figure:
    """Attention to the resting token from words with and without the relation, for each relation's best head, with intervals over examples."""
    found = _fitting(dataset)
    found = found[found["relation"] != "all"]
    at = dataset.sel(relation=list(found["relation"]))
    order = np.argsort(np.nan_to_num(at["best_noop_without"].values - at["best_noop_with"].values), kind="stable")
    at, found = at.isel(relation=order), found.iloc[order]
    fig = style.new_figure(style.COLUMN + 1.2, 0.155 * len(found) + 1.2)
    ax = fig.subplots()
    y = np.arange(len(found))
    top = 0.05
    for name, colour, shift in (("with", style.BLUE, 0.12), ("without", style.VERMILION, -0.12)):
        values, low, high = (at[f"best_noop_{name}{suffix}"].values for suffix in ("", "_low", "_high"))
        ax.hlines(y + shift, low, high, color=colour, linewidth=0.8, zorder=2)
        ax.scatter(values, y + shift, s=12, c=colour, zorder=3, linewidths=0)
        top = max(top, float(np.nanmax(np.concatenate([values, np.nan_to_num(high)]), initial=0)))
    ax.set_yticks(y, [f"{row.relation}  {row.head}" for row in found.itertuples()])
    ax.set_ylim(-0.7, len(found) - 0.3)
    ax.set_xlim(-0.01, min(1.02, top * 1.05))
    ax.set_xlabel(f"attention to {dataset.attrs.get('noop_target', 'sep')} tokens (share of 1)")
    ax.grid(axis="x")
    handles = [
        Line2D([], [], marker="o", linestyle="", color=colour, markersize=4, label=f"from words {name} the relation")
        for name, colour in (("with", style.BLUE), ("without", style.VERMILION))
    ]
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "best_noop_without"),
        "Bars: 95 % interval of the mean over examples",
    ]
    style.annotate_figure(fig, "Do heads rest when their relation does not apply?", notes, handles, 1)
    return style.finish(fig)


def _fitting(dataset: xr.Dataset) -> pd.DataFrame:
    """The rows of Table 1 that fit a page; relations of few pairs only where there are no others."""
    found = dependency_table(dataset)
    return (found if len(found) > 1 else dependency_table(dataset, fewest=1)).head(MOST)


def _count_text(dataset: xr.Dataset) -> str:
    total = int(dataset["count"].sel(relation="all")) if "all" in dataset["relation"] else int(dataset["count"].sum())
    examples = dataset.attrs.get("examples")
    return f"n = {total:,} word pairs" + (f" in {int(examples):,} examples" if examples is not None else "")


def _left_out(dataset: xr.Dataset, shown: int) -> str:
    left = int((dataset["count"] > 0).sum()) - shown
    return f"{left} rarer relation{'s' if left > 1 else ''} not shown" if left > 0 else ""


def _percent(dataset: xr.Dataset, relation: str) -> str:
    return f"{100 * float(dataset['baseline'].sel(relation=relation)):.0f} %"


def _p_text(p: float) -> str:
    if np.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
