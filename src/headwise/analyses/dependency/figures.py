"""Figures of heads that follow syntax: Table 1, baselines, maps of relations, the no-op reading
(Clark et al. 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headwise.core.labels import head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
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
    """Table 1: for each relation the best head, by both its names, its accuracy and the best
    baseline.

    Parameters
    ----------
    dataset : Dataset
        The group `dependency`.
    fewest : int, default 30
        Relations with fewer pairs are left out.

    Returns
    -------
    DataFrame
        A row for each relation, the commonest first.
    """
    at = dataset.isel(relation=np.argsort(-dataset["count"].values, kind="stable"))
    at = at.isel(relation=(at["best_layer"].values >= 0) & (at["count"].values >= fewest))
    heads = [
        (int(layer), int(head))
        for layer, head in zip(at["best_layer"], at["best_head"], strict=True)
    ]
    offset = at["baseline_possible_offset"].sel(
        direction=at["best_direction"]
    )  # each in its own direction
    columns: dict[str, Any] = {
        "relation": [str(name) for name in at["relation"].values],
        "pairs": at["best_accuracy_n"].values,
        "head": [head_name(*head) for head in heads],
        "head_in_paper": [f"{layer + 1}-{head + 1}" for layer, head in heads],
        "direction": [str(name) for name in at["best_direction"].values],
        "accuracy": at["best_accuracy"].values.astype(float),
        "low": at["best_accuracy_low"].values.astype(float),
        "high": at["best_accuracy_high"].values.astype(float),
        "baseline": at["best_baseline"].values,
        "baseline_name": at["best_baseline_name"].values
        if "best_baseline_name" in at
        else "offset",
        "offset": offset.values,
        "p_adjusted": at["best_p_adjusted"].values,
    }
    return pd.DataFrame(columns)


@figure(
    "dependency",
    name="table",
    title="The best head for each dependency relation",
    caption="For each relation, the head that most often finds a word's syntactic head, against the best of three "
    "ways that know no syntax: a fixed offset, even attention, attention on the first token. Heads are named from 0 "
    "(L7H9) and, in the second column, as the paper names them (8-10). A head is called better than the best of these "
    "only after correction for all the heads and relations tried.",
    paper="Clark et al. 2019, §4.2, Table 1",
    needs=("best_accuracy",),
)
def table(dataset: xr.Dataset) -> Figure:
    """Table 1 as a figure; what is better than the best baseline after correction stands in
    bold."""
    found = _fitting(dataset)
    columns = (
        *(
            ("relation", 0.0, "left"),
            ("pairs", 0.185, "right"),
            ("head", 0.2, "left"),
            ("paper's name", 0.285, "left"),
        ),
        *(
            ("direction", 0.39, "left"),
            ("accuracy", 0.615, "right"),
            ("95 % interval", 0.64, "left"),
        ),
        *(("best baseline", 0.78, "left"), ("p (corrected)", 0.99, "right")),
    )
    line = 0.165
    fig, ax = style.one_panel(style.PAGE, line * (len(found) + 1) + 0.95)
    ax.set_axis_off()
    ax.set(xlim=(0, 1), ylim=(len(found) + 0.5, -1))
    for text, x, side in columns:
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
            f"{100 * row.baseline:.1f}  {_way(row.baseline_name, row.offset)}",
            _p_text(row.p_adjusted),
        )
        for text, (heading, x, side) in zip(cells, columns, strict=True):
            weight = "bold" if better and heading in ("relation", "head", "accuracy") else "normal"
            ax.text(x, y + 0.5, text, ha=side, va="center", fontsize=style.SMALL, fontweight=weight)
        if y == 0:
            ax.axhline(1, color=style.PALE, linewidth=0.5)
    notes = [
        data.source_text(dataset),
        _count_text(dataset),
        "Accuracy and baseline in % of word pairs, with Wilson's interval"
        + _over(dataset)
        + "; bold: better than the "
        "best baseline after correction (p < 0.05)",
        _left_out(dataset, len(found)),
        str(dataset.attrs.get("note", "")),
    ]
    return style.complete(fig, "The best head for each dependency relation", notes)


@figure(
    "dependency",
    name="accuracy",
    title="Best heads against the best baseline",
    caption="For each relation, how often its best head finds the syntactic head of a word (filled), against the "
    "best way that knows no syntax (open): the best fixed offset, even attention, attention on the first token. "
    "Relations are sorted by the margin between the two.",
    paper="Clark et al. 2019, §4.2, Table 1",
    needs=("best_accuracy",),
)
def accuracy(dataset: xr.Dataset) -> Figure:
    """Accuracy of each relation's best head with its interval, and the best baseline, sorted by
    margin."""
    found = _fitting(dataset)
    found = found.assign(margin=found["accuracy"] - found["baseline"]).sort_values(
        "margin", kind="stable"
    )
    fig, ax = style.one_panel(style.COLUMN + 1.2, 0.155 * len(found) + 1.35)
    y = np.arange(len(found))
    better = found["p_adjusted"].to_numpy() < 0.05
    ax.hlines(y, found["baseline"], found["accuracy"], color=style.PALE, linewidth=1.5, zorder=1)
    ax.hlines(y, found["low"], found["high"], color=style.BLUE, linewidth=0.8, zorder=2)
    ax.scatter(
        found["baseline"],
        y,
        s=14,
        facecolors="white",
        edgecolors=style.VERMILION,
        linewidths=0.9,
        zorder=3,
    )
    ax.scatter(
        found["accuracy"],
        y,
        s=16,
        c=[style.BLUE if b else style.GREY for b in better],
        zorder=4,
        linewidths=0,
    )
    for place, row in enumerate(found.itertuples()):
        arrow = "" if row.direction == "dependent_to_head" else " ←"
        colour = style.INK if better[place] else style.GREY
        text = {"fontsize": style.SMALL, "color": colour, "va": "center"}
        ax.annotate(f"{row.head}{arrow}", (1.03, place), annotation_clip=False, **text)  # type: ignore[arg-type]
    ax.set_yticks(y, list(found["relation"]))
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.7, len(found) - 0.3), xlabel="share of word pairs found")
    ax.grid(axis="x")
    handles = [
        _dot(style.BLUE, "best head, better than the baseline (p < 0.05, corrected)"),
        _dot(style.GREY, "best head, not better"),
        _dot(style.VERMILION, "best baseline", markerfacecolor="white"),
    ]
    notes = [
        data.source_text(dataset),
        _count_text(dataset),
        f"Bars: 95 % interval (Wilson's{_over(dataset)}). Heads at the right, counted from 0; ← marks heads that "
        "attend from the syntactic head to the dependent",
        _left_out(dataset, len(found)),
    ]
    return style.complete(fig, "Single heads against the best baseline", notes, handles, 1)


@figure(
    "dependency",
    name="relations",
    title="Which heads follow which relation",
    caption="Accuracy of every head for the relations on which some head beats the best baseline by most; each "
    "head in its better direction.",
    paper="Clark et al. 2019, §4.2",
    needs=("best_accuracy",),
)
def relations(dataset: xr.Dataset) -> Figure:
    """Heat maps of the six relations with the largest margin of the best head over the baseline;
    `all` comes last."""
    found = _fitting(dataset)
    margin = (found["accuracy"] - found["baseline"]).where(found["relation"] != "all", -1.0)
    chosen = list(
        found.assign(margin=margin).sort_values("margin", ascending=False, kind="stable")[
            "relation"
        ][:6]
    )
    better, bars = dataset["accuracy"].max("direction"), dataset["best_baseline"]
    arrays = {
        f"{name} (baseline {100 * float(bars.sel(relation=name)):.0f} %)": better.sel(relation=name)
        for name in chosen
    }
    shown = "Each head in its better direction. The intervals are in the atlas"
    notes = [data.source_text(dataset), _count_text(dataset), shown]
    scale: dict[str, Any] = {
        "label": "accuracy",
        "unit": "share of pairs",
        "limits": (0, 1),
        "annotate": "none",
    }
    return heatmap_panels(arrays, title="Which heads follow which relation", notes=notes, **scale)


@figure(
    "dependency",
    name="no-op",
    title="Do heads rest when their relation does not apply?",
    caption="For each relation's best head: its attention to the resting token ([SEP], unless another was chosen) from "
    "words that have the relation and from words that do not. A head that rests when it has nothing to do attends "
    "there more from words without the relation.",
    paper="Clark et al. 2019, §3.2",
    needs=("best_noop_with", "best_noop_without"),
)
def no_op(dataset: xr.Dataset) -> Figure:
    """Attention of each relation's best head to the resting token, from words with and without the
    relation."""
    found = _fitting(dataset)
    found = found[found["relation"] != "all"]
    at = dataset.sel(relation=list(found["relation"]))
    order = np.argsort(
        np.nan_to_num(at["best_noop_without"].values - at["best_noop_with"].values), kind="stable"
    )
    at, found = at.isel(relation=order), found.iloc[order]
    fig, ax = style.one_panel(style.COLUMN + 1.2, 0.155 * len(found) + 1.2)
    y = np.arange(len(found))
    top, handles = 0.05, []
    for name, colour, shift in (("with", style.BLUE, 0.12), ("without", style.VERMILION, -0.12)):
        values, low, high = (
            at[f"best_noop_{name}{suffix}"].values for suffix in ("", "_low", "_high")
        )
        ax.hlines(y + shift, low, high, color=colour, linewidth=0.8, zorder=2)
        ax.scatter(values, y + shift, s=12, c=colour, zorder=3, linewidths=0)
        handles.append(_dot(colour, f"from words {name} the relation"))
        top = max(top, float(np.nanmax(np.concatenate([values, np.nan_to_num(high)]), initial=0)))
    ax.set_yticks(y, [f"{row.relation}  {row.head}" for row in found.itertuples()])
    ax.set(xlim=(-0.01, min(1.02, top * 1.05)), ylim=(-0.7, len(found) - 0.3))
    ax.set_xlabel(f"attention to {dataset.attrs.get('noop_target', 'sep')} tokens (share of 1)")
    ax.grid(axis="x")
    notes = [
        *data.ground(dataset, "best_noop_without"),
        "Bars: 95 % interval of the mean over examples",
    ]
    return style.complete(
        fig, "Do heads rest when their relation does not apply?", notes, handles, 1
    )


def _dot(colour: str, label: str, **marker: Any) -> Line2D:
    return Line2D(
        [], [], marker="o", linestyle="", color=colour, markersize=4, label=label, **marker
    )


def _fitting(dataset: xr.Dataset) -> pd.DataFrame:
    """The rows of Table 1 that fit a page; relations of few pairs only where there are no
    others."""
    found = dependency_table(dataset)
    return (found if len(found) > 1 else dependency_table(dataset, fewest=1)).head(MOST)


def _count_text(dataset: xr.Dataset) -> str:
    total = (
        int(dataset["count"].sel(relation="all"))
        if "all" in dataset["relation"]
        else int(dataset["count"].sum())
    )
    examples = dataset.attrs.get("examples")
    return f"n = {total:,} word pairs" + (
        f" in {int(examples):,} examples" if examples is not None else ""
    )


def _left_out(dataset: xr.Dataset, shown: int) -> str:
    left = int((dataset["count"] > 0).sum()) - shown
    return f"{left} rarer relation{'s' if left > 1 else ''} not shown" if left > 0 else ""


def _over(dataset: xr.Dataset) -> str:
    return (
        f" over {int(dataset.attrs['unit_count']):,} {dataset.attrs['units']}"
        if "units" in dataset.attrs
        else ""
    )


def _way(name: str, offset: int) -> str:
    """A baseline in a word or two."""
    named = {"uniform": "even attention", "first": "first word"}
    return named.get(name, f"at {offset:+d}".replace("-", "−"))


def _p_text(p: float) -> str:
    if np.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
