"""Figures of fine-tuning: scores by pooling and start over seeds (Kovaleva et al. 2019, Table 1; Jo
& Myaeng 2020, Table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headwise.core.errors import ParameterError
from headwise.plots import style

COLOURS = (style.BLUE, style.VERMILION, style.ORANGE, style.GREY)


def score_figure(summary: Sequence[Mapping[str, Any]], metric: str | None = None) -> Figure:
    """Median scores with their intervals over seeds, one row for each task, pooling, start and
    recipe.

    Parameters
    ----------
    summary
        The `summary` of a results file (`headwise.experiments.finetuning.results.summary`).
    metric
        The metric drawn; by default the first of each task.
    """
    if not summary:
        raise ParameterError("There are no finished trainings to draw.")
    with style.context():
        tasks = list(dict.fromkeys(row["task"] for row in summary))
        fig, ax = style.one_panel(style.PAGE, 0.9 + 0.2 * len(summary) + 0.15 * len(tasks))
        names, place = [], []
        at = 0.0
        for number, task in enumerate(tasks):
            colour = style.cycle(COLOURS, number)
            for row in [r for r in summary if r["task"] == task]:
                chosen = metric if metric in row["metrics"] else next(iter(row["metrics"]))
                found = row["metrics"][chosen]
                ax.plot(
                    [100 * found["low"], 100 * found["high"]], [at, at], color=colour, linewidth=1.2
                )
                ax.plot(100 * found["median"], at, "o", color=colour, markersize=3.5)
                names.append(
                    f"{row['pooling'].replace('_', ' ')}, {row['start']}, {row['recipe']} ({chosen})"
                )
                place.append(at)
                at += 1
            at += 0.6
        ax.set_yticks(place, names)
        ax.invert_yaxis()
        ax.set_xlabel("score on the dev part (× 100)")
        handles = [
            Line2D([], [], color=style.cycle(COLOURS, i), marker="o", markersize=3.5, label=task)
            for i, task in enumerate(tasks)
        ]
        seeds = sorted({len(row["seeds"]) for row in summary})
        coverage = float(
            np.min([next(iter(row["metrics"].values()))["coverage"] for row in summary])
        )
        notes = [
            f"Dot: median over {' to '.join(map(str, seeds))} seeds; line: its interval by order statistics (coverage "
            f"at least {100 * coverage:.0f} %)"
        ]
        return style.complete(fig, "Fine-tuning scores", notes, legend=handles, columns=len(tasks))
