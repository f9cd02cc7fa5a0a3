"""Downstream tasks: Table 4 and Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

from headwise.analyses.probing.analysis import probe_tasks
from headwise.experiments.finetuning import TrainingRecord
from headwise.experiments.reproduction.context import QUICK_ROWS, ReproductionContext
from headwise.experiments.reproduction.jo2020 import claims
from headwise.experiments.reproduction.jo2020.claims import BEFORE
from headwise.experiments.reproduction.jo2020.probing import POOLINGS, probing_options
from headwise.experiments.reproduction.learning import (
    PREDICTIONS,
    DevPredictions,
    why_nothing_learned,
)
from headwise.experiments.reproduction.rules import Evidence
from headwise.experiments.reproduction.schema import (
    EntryResult,
    ReportFigure,
    ReportRow,
    ReportTable,
)
from headwise.experiments.reproduction.shared import (
    compute_by_task,
    evidence_on_learned,
    registered_figures,
)
from headwise.models import HeadModel
from headwise.text.tasks import read_tasks

METRICS = {"MRPC": ("accuracy", "f1"), "STS-B": ("pearson", "spearman"), "SST-2": ("accuracy",)}
RECIPE = "jo"
N_SEEDS = 5
# Models after fine-tuning, by the pooling that was fine-tuned.
AFTER = {"last layer": "last_layer", "top heads": "top_heads"}


# --- Table 4 --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FinetunedTask:
    """The rows of Table 4 of one task, the gain of top heads over the last layer in points `[seed]`
    by metric, and why a pooling learned nothing."""

    rows: list[ReportRow]
    gains: dict[str, np.ndarray]
    nothing_learned: str


def fine_tuned(context: ReproductionContext) -> EntryResult:
    """Table 4: three poolings, fine-tuned end to end; medians over seeds."""
    n_seeds = 1 if context.options.quick else N_SEEDS
    by_task, deviations = compute_by_task(
        METRICS, partial(_finetune_task, context, n_seeds=n_seeds)
    )
    rows = []
    not_learned = {}
    for name, task in by_task.items():
        rows += task.rows
        if task.nothing_learned:
            not_learned[name] = task.nothing_learned
    if n_seeds < N_SEEDS:
        deviations.append("One seed in place of five; one epoch on a few rows, to save time.")

    def gather(learned: Mapping[str, FinetunedTask]) -> dict[str, Evidence]:
        gains = {}
        for name, task in learned.items():
            for metric, gain in task.gains.items():
                gains[f"{name}-{metric}"] = gain
        return claims.downstream_evidence(gains, n_seeds)

    evidence = evidence_on_learned(context, ("downstream",), by_task, not_learned, gather)
    return EntryResult(rows, evidence=evidence, deviations=deviations)


def _finetune_task(
    context: ReproductionContext, name: str, n_seeds: int
) -> tuple[FinetunedTask, list[str]]:
    """Fine-tune a task with each pooling, and take medians over seeds."""
    task = context.training_task(name)
    metrics = METRICS[name]
    plural = "s" if n_seeds > 1 else ""
    note = f"{len(task.train):,} training rows, {n_seeds} seed{plural}"
    rows = {}
    scores: dict[tuple[str, str], np.ndarray] = {}
    reasons = []
    for key, pooling in POOLINGS.items():
        records, folder = context.train(task, RECIPE, seeds=n_seeds, pooling=pooling)
        reason = _why_most_learned_nothing(records, folder, task.regression)
        if reason:
            reasons.append(f"{pooling.replace('_', ' ')}: {reason}")
        row_note = f"{note}; {reason}" if reason else note
        for metric in metrics:
            scores[metric, key] = 100 * np.array([record.metrics[metric] for record in records])
            median = float(np.median(scores[metric, key]))
            rows[metric, key] = ReportRow(f"{name}-{metric}-{key}", median, note=row_note)
    gains = {metric: scores[metric, "top"] - scores[metric, "last"] for metric in metrics}
    # In the order of the printed table: metric by metric.
    ordered_rows = [rows[metric, key] for metric in metrics for key in POOLINGS]
    return FinetunedTask(ordered_rows, gains, "; ".join(reasons)), []


def _why_most_learned_nothing(
    records: Sequence[TrainingRecord], folder: Path, regression: bool
) -> str:
    """Say why more than half of the seeds learned nothing; empty where they learned something."""
    reasons = []
    for record in records:
        path = folder / record.folder / PREDICTIONS
        reasons.append(why_nothing_learned(DevPredictions.read(path, regression)))
    failed = [reason for reason in reasons if reason]
    return failed[0] if len(failed) > len(reasons) / 2 else ""


# --- Figure 4 -------------------------------------------------------------------------------------


def states(context: ReproductionContext) -> EntryResult:
    """Figure 4: probing accuracy of heads before and after fine-tuning."""
    by_task, deviations = compute_by_task(METRICS, partial(_probe_states, context))
    figures = []
    table_rows = []
    accuracies: dict[str, dict[str, np.ndarray]] = {}
    not_learned = {}
    n_test = 0
    for name, states_of_task in by_task.items():
        probed = states_of_task.probed
        if states_of_task.nothing_learned:
            not_learned[name] = states_of_task.nothing_learned
            deviations.append(f"{name}: {states_of_task.nothing_learned}; no claim uses it.")
        figures += _state_figures(name, probed)
        accuracies[name] = {}
        n_test = int(probed[BEFORE]["accuracy_n"].max())
        for state, scores in probed.items():
            accuracies[name][state] = 100 * scores["accuracy"].isel(task=0).values
        before = accuracies[name][BEFORE]
        for state, accuracy in accuracies[name].items():
            rank_text = ""
            if state != BEFORE:
                correlation = claims.rank_correlation(before, accuracy)
                if np.isfinite(correlation):
                    rank_text = f"{correlation:.2f}"
            mean = float(accuracy.mean())
            highest = float(accuracy.max())
            table_rows.append([name, state, mean, highest, *layer_thirds(accuracy), rank_text])
    evidence = evidence_on_learned(
        context,
        ("amplified",),
        accuracies,
        not_learned,
        lambda learned: claims.amplified_evidence(learned, n_test),
    )
    if "SST-2" in accuracies:
        pretrained = by_task["SST-2"].probed[BEFORE]
        if bool((pretrained["better"] > 0).any()):
            accuracy = accuracies["SST-2"][BEFORE]
            evidence |= claims.upper_layer_evidence(accuracy, int(pretrained["accuracy_n"].max()))
        else:
            why = "nothing learned: no head is significantly better than the most frequent label"
            evidence["sst-upper"] = Evidence(undecided=why)
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
    return EntryResult((), [table], figures, evidence, deviations)


@dataclass(frozen=True, slots=True, eq=False)
class ProbedStates:
    """The probes of one task's heads by the state of the model, and why a fine-tuned one learned
    nothing."""

    probed: dict[str, xr.Dataset]
    nothing_learned: str


def _probe_states(context: ReproductionContext, name: str) -> tuple[ProbedStates, list[str]]:
    """Probe the heads of the pre-trained model and of two fine-tuned ones on a task."""
    task = context.training_task(name)
    probed = {BEFORE: _probe_heads(context, context.model, name, BEFORE)}
    reasons = []
    for state, pooling in AFTER.items():
        records, folder = context.train(task, RECIPE, pooling=pooling)
        reason = _why_most_learned_nothing(records, folder, task.regression)
        if reason:
            reasons.append(f"{state}: {reason}")
        model_folder = folder / records[0].folder / "model"
        with HeadModel.open(model_folder, device=context.options.device) as model:
            probed[state] = _probe_heads(context, model, name, state)
    return ProbedStates(probed, "; ".join(reasons)), []


def _probe_heads(
    context: ReproductionContext, model: HeadModel, name: str, state: str
) -> xr.Dataset:
    """Probe all heads of a model on a task; a part of the training rows validates."""
    (task,) = read_tasks([context.data.path(f"glue-{name}")], context.seed)
    options, _ = probing_options(context)
    n_train = context.sample_size(len(task.split.train), QUICK_ROWS)
    n_other = QUICK_ROWS if context.options.quick else 0
    options = replace(options, train=n_train, validation=n_other, test=n_other)
    return probe_tasks(
        model,
        task,
        options,
        # A part for each state: the models differ, so that one would take the other's place.
        store=context.job.started_store.part(f"heads-{name}-{state.replace(' ', '-')}"),
        progress=context.job.progress,
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


def layer_thirds(accuracy: np.ndarray) -> list[float]:
    """Return the mean over each third of the layers; NaN for a third without layers."""
    means = []
    for third in np.array_split(accuracy, 3):
        means.append(float(third.mean()) if len(third) else float("nan"))
    return means
