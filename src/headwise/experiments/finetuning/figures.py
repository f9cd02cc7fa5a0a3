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
    """Draw median scores with their intervals over seeds, one row for each task, pooling, start and
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
        names = []
        heights = []
        height = 0.0
        for number, task in enumerate(tasks):
            colour = style.cycle(COLOURS, number)
            for row in summary:
                if row["task"] != task:
                    continue
                shown_metric = metric if metric in row["metrics"] else next(iter(row["metrics"]))
                score = row["metrics"][shown_metric]
                ends = [100 * score["low"], 100 * score["high"]]
                ax.plot(ends, [height, height], color=colour, linewidth=1.2)
                ax.plot(100 * score["median"], height, "o", color=colour, markersize=3.5)
                pooling = row["pooling"].replace("_", " ")
                names.append(f"{pooling}, {row['start']}, {row['recipe']} ({shown_metric})")
                heights.append(height)
                height += 1
            height += 0.6
        ax.set_yticks(heights, names)
        ax.invert_yaxis()
        ax.set_xlabel("score on the dev part (× 100)")
        handles = []
        for number, task in enumerate(tasks):
            colour = style.cycle(COLOURS, number)
            handles.append(Line2D([], [], color=colour, marker="o", markersize=3.5, label=task))
        seed_counts = sorted({len(row["seeds"]) for row in summary})
        coverages = [next(iter(row["metrics"].values()))["coverage"] for row in summary]
        note = (
            f"Dot: median over {' to '.join(map(str, seed_counts))} seeds; line: its interval by "
            f"order statistics (coverage at least {100 * float(np.min(coverages)):.0f} %)"
        )
        return style.complete(fig, "Fine-tuning scores", [note], legend=handles, columns=len(tasks))
