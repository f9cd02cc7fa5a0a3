"""Downstream tasks: Table 4 and Figure 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from headwise.analyses.probing.analysis import probe_tasks
from headwise.experiments.reproduction.context import QUICK_ROWS, ReproductionContext
from headwise.experiments.reproduction.jo2020.probing import POOLINGS, probing_options
from headwise.experiments.reproduction.schema import (
    EntryResult,
    ReportFigure,
    ReportRow,
    ReportTable,
    Verdict,
)
from headwise.experiments.reproduction.shared import (
    compute_by_task,
    not_tried,
    only_if_trained,
    registered_figures,
)
from headwise.models import HeadModel
from headwise.text.tasks import read_tasks

METRICS = {"MRPC": ("accuracy", "f1"), "STS-B": ("pearson", "spearman"), "SST-2": ("accuracy",)}
RECIPE = "jo"
N_SEEDS = 5
MIN_RANK_CORRELATION = 0.3
BEFORE = "pre-trained"
# Models after fine-tuning, by the pooling that was fine-tuned.
AFTER = {"last layer": "last_layer", "top heads": "top_heads"}


# --- Table 4 --------------------------------------------------------------------------------------


def fine_tuned(context: ReproductionContext) -> EntryResult:
    """Table 4: three poolings, fine-tuned end to end; medians over seeds."""
    n_seeds = 1 if context.options.quick else N_SEEDS
    rows_by_task, deviations = compute_by_task(
        METRICS, partial(_finetune_rows, context, n_seeds=n_seeds)
    )
    rows = []
    for task_rows in rows_by_task.values():
        rows += task_rows
    if n_seeds < N_SEEDS:
        deviations.append("One seed in place of five; one epoch on a few rows, to save time.")
    verdicts = only_if_trained(context, {"downstream": downstream_verdict(rows)})
    return EntryResult(rows, verdicts=verdicts, deviations=deviations)


def _finetune_rows(
    context: ReproductionContext, name: str, n_seeds: int
) -> tuple[list[ReportRow], list[str]]:
    """Fine-tune a task with each pooling; return the median scores over seeds."""
    task = context.training_task(name)
    metrics = METRICS[name]
    plural = "s" if n_seeds > 1 else ""
    note = f"{len(task.train):,} training rows, {n_seeds} seed{plural}"
    rows = {}
    for key, pooling in POOLINGS.items():
        records, _ = context.train(task, RECIPE, seeds=n_seeds, pooling=pooling)
        for metric in metrics:
            score = 100 * float(np.median([record.metrics[metric] for record in records]))
            rows[metric, key] = ReportRow(f"{name}-{metric}-{key}", score, note=note)
    # In the order of the printed table: metric by metric.
    return [rows[metric, key] for metric in metrics for key in POOLINGS], []


def downstream_verdict(rows: list[ReportRow]) -> Verdict:
    """Judge whether top heads are better than the last layer on average, from rows with keys
    `TASK-METRIC-top` and `TASK-METRIC-last`."""
    scores = {row.key: row.ours for row in rows}
    gains = []
    for key, score in scores.items():
        if key.endswith("-top"):
            last_score = scores[f"{key.removesuffix('-top')}-last"]
            assert score is not None
            assert last_score is not None
            gains.append(score - last_score)
    gain = float(np.mean(gains))
    return Verdict(f"{gain:+.2f} points over {len(gains)} scores", gain > 0)


# --- Figure 4 -------------------------------------------------------------------------------------


def states(context: ReproductionContext) -> EntryResult:
    """Figure 4: probing accuracy of heads before and after fine-tuning."""
    by_task, deviations = compute_by_task(METRICS, partial(_probe_states, context))
    figures = []
    table_rows = []
    accuracies: dict[str, dict[str, np.ndarray]] = {}
    for name, probed in by_task.items():
        figures += _state_figures(name, probed)
        accuracies[name] = {}
        for state, scores in probed.items():
            accuracies[name][state] = 100 * scores["accuracy"].isel(task=0).values
        before = accuracies[name][BEFORE]
        for state, accuracy in accuracies[name].items():
            rank_text = ""
            if state != BEFORE:
                correlation = rank_correlation(before, accuracy)
                if np.isfinite(correlation):
                    rank_text = f"{correlation:.2f}"
            mean = float(accuracy.mean())
            highest = float(accuracy.max())
            table_rows.append([name, state, mean, highest, *layer_thirds(accuracy), rank_text])
    verdicts = only_if_trained(context, {"amplified": amplified_verdict(accuracies)})
    if "SST-2" in accuracies:
        verdicts["sst-upper"] = upper_third_verdict(accuracies["SST-2"][BEFORE])
    columns = [
        "task",
        "state",
        "mean head",
        "best head",
        "initial",
        "middle",
        "final",
        "rank correlation with before",
    ]
    title = "Scores of heads (%, STS-B: Pearson's r × 100)"
    table = ReportTable(title, columns, table_rows)
    return EntryResult((), [table], figures, verdicts, deviations)


def _probe_states(
    context: ReproductionContext, name: str
) -> tuple[dict[str, xr.Dataset], list[str]]:
    """Probe the heads of the pre-trained model and of two fine-tuned ones on a task."""
    task = context.training_task(name)
    probed = {BEFORE: _probe_heads(context, context.model, name)}
    for state, pooling in AFTER.items():
        records, folder = context.train(task, RECIPE, pooling=pooling)
        model_folder = folder / records[0].folder / "model"
        with HeadModel.open(model_folder, device=context.options.device) as model:
            probed[state] = _probe_heads(context, model, name)
    return probed, []


def _probe_heads(context: ReproductionContext, model: HeadModel, name: str) -> xr.Dataset:
    """Probe all heads of a model on a task; a part of the training rows validates."""
    (task,) = read_tasks([context.data.path(f"glue-{name}")], context.seed)
    options, _ = probing_options(context)
    n_train = context.sample_size(len(task.split.train), QUICK_ROWS)
    n_other = QUICK_ROWS if context.options.quick else 0
    options = replace(options, train=n_train, validation=n_other, test=n_other)
    return probe_tasks(
        model, task, options, store=context.job.started_store, progress=context.job.progress
    )


def _state_figures(name: str, probed: Mapping[str, xr.Dataset]) -> list[ReportFigure]:
    """Draw the accuracies of heads in all states of one task."""
    scores = [result[["accuracy", "accuracy_n"]] for result in probed.values()]
    joined = xr.concat(scores, "model_all", coords="minimal", compat="override")
    joined = joined.assign_coords(model_all=list(probed))
    joined = joined.assign(majority=probed[BEFORE]["majority"])
    figures = []
    for figure in registered_figures("change_probing", joined, "states"):
        figures.append(replace(figure, name=f"{name.lower()}-{figure.name}"))
    return figures


def rank_correlation(before: np.ndarray, after: np.ndarray) -> float:
    """Return Spearman's correlation of the accuracies of heads before and after."""
    return float(spearmanr(before.ravel(), after.ravel()).statistic)


def amplified_verdict(accuracies: Mapping[str, Mapping[str, np.ndarray]]) -> Verdict:
    """Judge whether fine-tuning raises the accuracies of heads and keeps their order, from
    accuracies `[layer, head]` in per cent by task and state."""
    changes = []
    correlations = []
    for by_state in accuracies.values():
        before = by_state[BEFORE]
        for state, after in by_state.items():
            if state != BEFORE:
                changes.append(after.mean() - before.mean())
                correlations.append(rank_correlation(before, after))
    lowest = float(np.min(correlations))  # NaN, where heads do not differ, fails the rule
    ours = f"mean change {np.mean(changes):+.1f} points, least rank correlation {lowest:.2f}"
    return Verdict(ours, bool(min(changes) > 0 and lowest > MIN_RANK_CORRELATION))


def upper_third_verdict(accuracy: np.ndarray) -> Verdict:
    """Judge whether the final third of the layers has the highest mean accuracy."""
    thirds = layer_thirds(accuracy)
    if np.isnan(thirds).any():
        return not_tried("the model has fewer than three layers")
    ours = ", ".join(f"{value:.1f} %" for value in thirds)
    return Verdict(f"thirds: {ours}", int(np.argmax(thirds)) == 2)


def layer_thirds(accuracy: np.ndarray) -> list[float]:
    """Return the mean over each third of the layers; NaN for a third without layers."""
    means = []
    for third in np.array_split(accuracy, 3):
        means.append(float(third.mean()) if len(third) else float("nan"))
    return means
