"""Figures of heads that follow syntax: Table 1, baselines, maps of relations, the no-op reading
(Clark et al. 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headwise.analyses.accuracy import reported_best, shown_accuracy
from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure, table_of

MAX_RELATIONS = 32  # relations a figure has room for
ARROWS = {"dependent_to_head": "dependent → head", "head_to_dependent": "head → dependent", "": ""}


@table_of(
    "dependency",
    name="best-heads",
    title="Best head of each relation",
    note="Heads by both names: counted from 0, and as the paper counts. Accuracies on text that the "
    "head was not picked on, where it can be halved.",
)
def dependency_table(dataset: xr.Dataset, fewest: int = 30) -> pd.DataFrame:
    """Return Table 1: for each relation the best head, by both its names, its accuracy and the best
    baseline.

    Parameters
    ----------
    dataset : Dataset
        The group `dependency`.
    fewest : int, default 30
        Leave out relations with fewer pairs.

    Returns
    -------
    DataFrame
        A row for each relation, the commonest first.
    """
    ordered = dataset.isel(relation=np.argsort(-dataset["count"].values, kind="stable"))
    is_scored = ordered["best_layer"].values >= 0
    has_pairs = ordered["count"].values >= fewest
    chosen = ordered.isel(relation=is_scored & has_pairs)
    heads = []
    heads_in_paper = []
    for layer, head in zip(chosen["best_layer"], chosen["best_head"], strict=True):
        heads.append(head_name(int(layer), int(head)))
        heads_in_paper.append(f"{int(layer) + 1}-{int(head) + 1}")
    # Each relation in the direction of its best head.
    offset = chosen["baseline_possible_offset"].sel(direction=chosen["best_direction"])
    # Atlases of earlier versions know the offset baseline only.
    has_names = "best_baseline_name" in chosen
    reported = reported_best(chosen)
    columns: dict[str, Any] = {
        "relation": [str(name) for name in chosen["relation"].values],
        "pairs": reported["accuracy_n"].values.astype(int),
        "head": heads,
        "head_in_paper": heads_in_paper,
        "direction": [str(name) for name in chosen["best_direction"].values],
        "accuracy": reported["accuracy"].values.astype(float),
        "low": reported["accuracy_low"].values.astype(float),
        "high": reported["accuracy_high"].values.astype(float),
        "baseline": reported["baseline"].values,
        "baseline_name": chosen["best_baseline_name"].values if has_names else "offset",
        "offset": offset.values,
        "p_adjusted": chosen["best_p_adjusted"].values,
    }
    return pd.DataFrame(columns)


# Heading, x position and alignment of the columns of Table 1.
_TABLE_COLUMNS = (
    ("relation", 0.0, "left"),
    ("pairs", 0.185, "right"),
    ("head", 0.2, "left"),
    ("paper's name", 0.285, "left"),
    ("direction", 0.39, "left"),
    ("accuracy", 0.615, "right"),
    ("95 % interval", 0.64, "left"),
    ("best baseline", 0.78, "left"),
    ("p (corrected)", 0.99, "right"),
)
_BOLD_COLUMNS = ("relation", "head", "accuracy")


@figure(
    "dependency",
    name="table",
    title="The best head for each dependency relation",
    caption="For each relation, the head that most often finds a word's syntactic head, against the "
    "best of three baselines that know no syntax: a fixed offset, uniform attention, attention on "
    "the first token. Heads are named from 0 (L7H9) and, in the second column, as the paper names "
    "them (8-10). A head counts as better than the best of these only after correction for all the "
    "heads and relations tried; its accuracy is on text that it was not picked on.",
    paper="Clark et al. 2019, §4.2, Table 1",
    needs=("best_accuracy",),
)
def table(dataset: xr.Dataset) -> Figure:
    """Draw Table 1; what is better than the best baseline after correction stands in bold."""
    best = _rows_that_fit(dataset)
    line_height = 0.165
    fig, ax = style.one_panel(style.PAGE, line_height * (len(best) + 1) + 0.95)
    ax.set_axis_off()
    ax.set(xlim=(0, 1), ylim=(len(best) + 0.5, -1))
    for heading, x, align in _TABLE_COLUMNS:
        ax.text(x, -0.5, heading, ha=align, va="center", fontsize=style.SMALL, color=style.GREY)
    ax.axhline(0, color=style.INK, linewidth=0.6)
    for y, row in enumerate(best.itertuples()):
        is_significant = row.p_adjusted < 0.05
        cells = (
            "all (UAS)" if row.relation == "all" else row.relation,
            f"{row.pairs:,}",
            row.head,
            row.head_in_paper,
            ARROWS[row.direction],
            f"{100 * row.accuracy:.1f}",
            f"{100 * row.low:.1f} to {100 * row.high:.1f}",
            f"{100 * row.baseline:.1f}  {_baseline_text(row.baseline_name, row.offset)}",
            _p_text(row.p_adjusted),
        )
        for text, (heading, x, align) in zip(cells, _TABLE_COLUMNS, strict=True):
            is_bold = is_significant and heading in _BOLD_COLUMNS
            weight = "bold" if is_bold else "normal"
            ax.text(
                x, y + 0.5, text, ha=align, va="center", fontsize=style.SMALL, fontweight=weight
            )
        if y == 0:
            ax.axhline(1, color=style.PALE, linewidth=0.5)
    notes = [
        data.source_text(dataset),
        _count_text(dataset),
        f"Accuracy and baseline in % of word pairs{_picking_text(dataset)}, with Wilson's "
        f"interval{_units_text(dataset)}; bold: better than the best baseline after correction "
        "(p < 0.05)",
        _omitted_text(dataset, len(best)),
        str(dataset.attrs.get("note", "")),
    ]
    return style.complete(fig, "The best head for each dependency relation", notes)


@figure(
    "dependency",
    name="accuracy",
    title="Best heads against the best baseline",
    caption="For each relation, how often its best head finds the syntactic head of a word (filled), "
    "against the best baseline that knows no syntax (open): the best fixed offset, uniform "
    "attention, attention on the first token. Relations are sorted by the margin between the two.",
    paper="Clark et al. 2019, §4.2, Table 1",
    needs=("best_accuracy",),
)
def accuracy(dataset: xr.Dataset) -> Figure:
    """Draw the accuracy of each relation's best head with its interval, and the best baseline,
    sorted by margin."""
    best = _rows_that_fit(dataset)
    margin = best["accuracy"] - best["baseline"]
    best = best.assign(margin=margin).sort_values("margin", kind="stable")
    is_significant = best["p_adjusted"].to_numpy() < 0.05
    fig, ax = style.one_panel(style.COLUMN + 1.2, 0.155 * len(best) + 1.35)
    y = np.arange(len(best))
    ax.hlines(y, best["baseline"], best["accuracy"], color=style.PALE, linewidth=1.5, zorder=1)
    ax.hlines(y, best["low"], best["high"], color=style.BLUE, linewidth=0.8, zorder=2)
    ax.scatter(
        best["baseline"],
        y,
        s=14,
        facecolors="white",
        edgecolors=style.VERMILION,
        linewidths=0.9,
        zorder=3,
    )
    colours = [style.BLUE if significant else style.GREY for significant in is_significant]
    ax.scatter(best["accuracy"], y, s=16, c=colours, zorder=4, linewidths=0)
    for place, row in enumerate(best.itertuples()):
        arrow = "" if row.direction == "dependent_to_head" else " ←"
        ax.annotate(
            f"{row.head}{arrow}",
            (1.03, place),
            annotation_clip=False,
            fontsize=style.SMALL,
            color=style.INK if is_significant[place] else style.GREY,
            va="center",
        )
    ax.set_yticks(y, list(best["relation"]))
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.7, len(best) - 0.3), xlabel="share of word pairs found")
    ax.grid(axis="x")
    handles = [
        _dot(style.BLUE, "best head, better than the baseline (p < 0.05, corrected)"),
        _dot(style.GREY, "best head, not better"),
        _dot(style.VERMILION, "best baseline", markerfacecolor="white"),
    ]
    notes = [
        data.source_text(dataset),
        _count_text(dataset),
        f"Share of pairs{_picking_text(dataset)}; bars: 95 % interval (Wilson's"
        f"{_units_text(dataset)}). Heads at the right, counted from 0; "
        "← marks heads that attend from the syntactic head to the dependent",
        _omitted_text(dataset, len(best)),
    ]
    return style.complete(fig, "Single heads against the best baseline", notes, handles, 1)


@figure(
    "dependency",
    name="relations",
    title="Which heads follow which relation",
    caption="Accuracy of every head for the relations on which some head beats the best baseline by "
    "most; each head in its better direction.",
    paper="Clark et al. 2019, §4.2",
    needs=("best_accuracy",),
)
def relations(dataset: xr.Dataset) -> Figure:
    """Draw heat maps of the six relations with the largest margin of the best head over the
    baseline; `all` comes last."""
    best = _rows_that_fit(dataset)
    margin = (best["accuracy"] - best["baseline"]).where(best["relation"] != "all", -1.0)
    by_margin = best.assign(margin=margin).sort_values("margin", ascending=False, kind="stable")
    better_direction = dataset["accuracy"].max("direction")
    panels = {}
    for name in by_margin["relation"][:6]:
        baseline = 100 * float(dataset["best_baseline"].sel(relation=name))
        panels[f"{name} (baseline {baseline:.0f} %)"] = better_direction.sel(relation=name)
    notes = [
        data.source_text(dataset),
        _count_text(dataset),
        "Each head in its better direction. The intervals are in the atlas",
    ]
    return heatmap_panels(
        panels,
        title="Which heads follow which relation",
        notes=notes,
        label="accuracy",
        unit="share of pairs",
        limits=(0, 1),
        annotate="none",
    )


@figure(
    "dependency",
    name="no-op",
    title="Do heads use a sink when their relation does not apply?",
    caption="For each relation's best head: its attention to the sink token ([SEP], unless another "
    "was chosen) from words that have the relation and from words that do not. A head that attends "
    "to a sink when it has nothing to do attends there more from words without the relation.",
    paper="Clark et al. 2019, §3.2",
    needs=("best_noop_with", "best_noop_without"),
)
def no_op(dataset: xr.Dataset) -> Figure:
    """Draw the attention of each relation's best head to the sink token, from words with and
    without the relation."""
    best = _rows_that_fit(dataset)
    best = best[best["relation"] != "all"]
    chosen = dataset.sel(relation=list(best["relation"]))
    difference = chosen["best_noop_without"].values - chosen["best_noop_with"].values
    order = np.argsort(np.nan_to_num(difference), kind="stable")
    chosen = chosen.isel(relation=order)
    best = best.iloc[order]
    fig, ax = style.one_panel(style.COLUMN + 1.2, 0.155 * len(best) + 1.2)
    y = np.arange(len(best))
    right_end = 0.05
    handles = []
    for name, colour, shift in (("with", style.BLUE, 0.12), ("without", style.VERMILION, -0.12)):
        values = chosen[f"best_noop_{name}"].values
        low = chosen[f"best_noop_{name}_low"].values
        high = chosen[f"best_noop_{name}_high"].values
        ax.hlines(y + shift, low, high, color=colour, linewidth=0.8, zorder=2)
        ax.scatter(values, y + shift, s=12, c=colour, zorder=3, linewidths=0)
        handles.append(_dot(colour, f"from words {name} the relation"))
        ends = np.concatenate([values, np.nan_to_num(high)])
        right_end = max(right_end, float(np.nanmax(ends, initial=0)))
    ax.set_yticks(y, [f"{row.relation}  {row.head}" for row in best.itertuples()])
    ax.set(xlim=(-0.01, min(1.02, right_end * 1.05)), ylim=(-0.7, len(best) - 0.3))
    ax.set_xlabel(f"attention to {dataset.attrs.get('noop_target', 'sep')} tokens (share of 1)")
    ax.grid(axis="x")
    notes = [
        *data.source_notes(dataset, "best_noop_without"),
        "Bars: 95 % interval of the mean over examples",
    ]
    title = "Do heads use a sink when their relation does not apply?"
    return style.complete(fig, title, notes, handles, 1)


def _dot(colour: str, label: str, **marker: Any) -> Line2D:
    return Line2D(
        [], [], marker="o", linestyle="", color=colour, markersize=4, label=label, **marker
    )


def _rows_that_fit(dataset: xr.Dataset) -> pd.DataFrame:
    """Return the rows of Table 1 that fit a page; relations of few pairs only if there are no
    others."""
    rows = dependency_table(dataset)
    if len(rows) <= 1:
        rows = dependency_table(dataset, fewest=1)
    return rows.head(MAX_RELATIONS)


def _count_text(dataset: xr.Dataset) -> str:
    counts = dataset["count"]
    if "all" in dataset["relation"]:
        counts = counts.sel(relation="all")
    text = f"n = {int(counts.sum()):,} word pairs"
    if "examples" in dataset.attrs:
        text += f" in {int(dataset.attrs['examples']):,} examples"
    return text


def _omitted_text(dataset: xr.Dataset, n_drawn: int) -> str:
    n_omitted = int((dataset["count"] > 0).sum()) - n_drawn
    if n_omitted <= 0:
        return ""
    plural = "s" if n_omitted > 1 else ""
    return f"{n_omitted} rarer relation{plural} not shown"


def _picking_text(dataset: xr.Dataset) -> str:
    if shown_accuracy(dataset) == "best_accuracy":
        return " on the text that heads were picked on"
    return " on text that the head was not picked on"


def _units_text(dataset: xr.Dataset) -> str:
    if "units" not in dataset.attrs:
        return ""
    return f" over {int(dataset.attrs['unit_count']):,} {dataset.attrs['units']}"


def _baseline_text(name: str, offset: int) -> str:
    """Return a baseline in a word or two."""
    if name == "uniform":
        return "uniform"
    if name == "first":
        return "first word"
    return f"at {offset:+d}".replace("-", "−")


def _p_text(p: float) -> str:
    if np.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
