"""§4.3, §4.6 and §5: scores of fine-tuning from three starts, and the effect of disabling heads;
Table 1, Figures 8 and 9."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import xarray as xr

from headwise.core.errors import HeadwiseError
from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name
from headwise.experiments.ablation import AblationOptions, ScoredClassifier, ablate_scored_model
from headwise.experiments.ablation.figures import layers_by_task
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.kovaleva2019 import claims
from headwise.experiments.reproduction.kovaleva2019.frames import best_frame_heads
from headwise.experiments.reproduction.kovaleva2019.tasks import (
    RECIPE,
    TaskResults,
    available_tasks,
    dev_task,
    inputs_text,
    note_learning,
)
from headwise.experiments.reproduction.learning import (
    PREDICTIONS,
    DevPredictions,
    score_difference,
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
    best_head,
    evidence_on_learned,
    head_values,
)
from headwise.plots import heatmap_panels

STARTS = ("none", "random", "pretrained")
METRICS = {"MRPC": ("f1", "accuracy"), "QQP": ("f1", "accuracy"), "STS-B": ("pearson",)}
N_DEV = 10_000  # dev examples of an ablation, before `scale`
N_DEV_QUICK = 64


# --- Table 1 --------------------------------------------------------------------------------------


def scores(context: ReproductionContext) -> EntryResult:
    """Table 1."""
    names, deviations = available_tasks(context)
    rows = []
    inputs = {}
    starts: dict[str, claims.StartScores] = {}
    not_learned = {}
    for name in names:
        if context.data.find(f"glue-{name}") is None:
            missing = context.data.missing(f"glue-{name}")
            deviations.append(f"{name}: {missing}, so its rows are left out.")
            continue
        task = context.training_task(name)
        inputs[name] = f"{len(task.train):,} training and {len(task.dev):,} dev rows"
        metrics = METRICS.get(name, ("accuracy",))
        predictions = {}
        for start in STARTS:
            (record,), folder = context.train(task, RECIPE, start)
            path = folder / record.folder / PREDICTIONS
            predictions[start] = DevPredictions.read(path, task.regression)
            note = f"seed {record.seed}"
            reason = why_nothing_learned(predictions[start])
            if start != "none" and reason:
                note += f"; {reason}"
            for metric in metrics:
                key = f"{name}-{metric}-{start}"
                rows.append(ReportRow(key, 100 * record.metrics[metric], note=note))
        # From random weights little is learned; that is the paper's finding, not a failure.
        reason = why_nothing_learned(predictions["pretrained"])
        if reason:
            not_learned[name] = reason
        starts[name] = _compare_starts(predictions, metrics[-1])
    deviations.append(
        "One seed each; the paper does not say how many. MRPC is scored on its labelled test file."
    )
    if context.options.quick:
        deviations.append("A quick run: 256 rows, one epoch.")
    elif context.options.scale < 1:
        deviations.append(f"Trained on {context.options.scale:g} of the rows.")
    evidence = evidence_on_learned(
        context,
        ("better", "random-lower", "random-worse"),
        starts,
        not_learned,
        claims.start_evidence,
    )
    return EntryResult(rows, evidence=evidence, deviations=deviations, inputs=inputs)


def _compare_starts(predictions: Mapping[str, DevPredictions], metric: str) -> claims.StartScores:
    """Compare the starts of one task by the metric that decides, Table 1's last one."""
    not_trained = predictions["none"]
    from_random = predictions["random"]
    from_pretrained = predictions["pretrained"]
    return claims.StartScores(
        score_difference(from_pretrained, not_trained, metric),
        score_difference(from_random, from_pretrained, metric),
        score_difference(from_random, not_trained, metric),
        len(from_pretrained.truth),
    )


# --- disabling ------------------------------------------------------------------------------------


def _ablations(context: ReproductionContext) -> TaskResults:
    """Return the ablation of every head and layer of every task's model, with the two best frame
    heads as sets."""
    return context.compute_once("disabled", partial(_run_ablations, context))


def _run_ablations(context: ReproductionContext) -> TaskResults:
    names, deviations = available_tasks(context)
    ablations = TaskResults(deviations=deviations)
    sets: dict[str, Any] = {}
    try:
        for head in best_frame_heads(context):
            sets[f"frames {head_name(*head)}"] = [head]
    except HeadwiseError as error:
        deviations.append(f"Frame heads were not disabled: {str(error).rstrip('.')}.")
    options = AblationOptions(
        how="uniform", sets=sets, importance=False, sinks=False, seed=context.seed
    )
    n_dev = context.sample_size(N_DEV, N_DEV_QUICK)
    for name in names:
        folder, origin = context.finetuned_folder(name, RECIPE)
        task = dev_task(context, name, n_dev)
        subject = ScoredClassifier.open(folder, task, device=context.options.device)
        identity = {
            "model": subject.model.identity(),
            "task": subject.identity(),
            "sets": list(sets),
        }
        run = partial(ablate_scored_model, subject, options, report=context.job.progress)
        ablations.results[name] = context.stored_dataset(f"ablation-{name}", identity, run)
        note_learning(context, ablations, name)
        ablations.inputs[name] = inputs_text(ablations, name, origin, subject.examples)
    return ablations


def one_head(context: ReproductionContext) -> EntryResult:
    """Figure 8."""
    ablations = _ablations(context)
    rows = []
    table_rows = []
    planes = {}
    for task, ablation in ablations.results.items():
        difference = 100 * head_values(ablation["difference"])
        planes[task] = 100 * ablation["difference"]
        layer, head = best_head(difference)
        best = ablation.isel(layer=layer, head=head)
        note = (
            f"{head_name(layer, head)}, corrected p {float(best['p_adjusted']):.3g}, "
            f"{ablation.attrs['metric']}"
        )
        label = f"best gain by disabling one head, {task}"
        row = ReportRow.from_variable(f"{task}-gain", best, "difference", note, label=label)
        rows.append(replace(row, unit="points"))
        worst = best_head(-difference)
        table_rows.append(
            [
                task,
                100 * float(ablation.attrs["baseline"]),
                ablation.attrs["improving"],
                ablation.attrs["improving_significant"],
                ablation.attrs["harming"],
                ablation.attrs["harming_significant"],
                "{:+.2f} ({:+.2f} to {:+.2f})".format(*_mean_difference(ablation)),
                f"{head_name(*worst)} {difference[worst]:+.1f}",
            ]
        )
    columns = [
        "task",
        "baseline",
        "better without",
        "significant",
        "worse without",
        "significant",
        "a random head",
        "worst loss",
    ]
    note = "Points; significant: after correction over heads."
    table = ReportTable("Disabling one head at a time", columns, table_rows, note)
    drawing = heatmap_panels(
        planes,
        title="Score without one head",
        label="change of score",
        unit="points",
        centre=0.0,
        annotate="none",
    )
    caption = (
        "Each cell is one head: the score without it minus that of the intact model, for each task."
    )
    figure = ReportFigure("heads", "The effect of disabling one head, by task", caption, drawing)
    evidence = evidence_on_learned(
        context,
        ("some-gain", "random-head", "frames-idle"),
        ablations.results,
        ablations.not_learned,
        claims.head_evidence,
    )
    return EntryResult(rows, [table], [figure], evidence, ablations.deviations, ablations.inputs)


def _mean_difference(ablation: xr.Dataset) -> tuple[float, float, float]:
    """Return the mean over heads of the change of the score, and its interval, in points."""
    attrs = ablation.attrs
    return (
        100 * float(attrs["mean_difference"]),
        100 * float(attrs["mean_difference_low"]),
        100 * float(attrs["mean_difference_high"]),
    )


def one_layer(context: ReproductionContext) -> EntryResult:
    """Figure 9."""
    ablations = _ablations(context)
    rows = []
    table_rows = []
    n_layers = 0
    for task, ablation in ablations.results.items():
        difference = 100 * ablation["layer_difference"].values
        low = 100 * ablation["layer_difference_low"].values
        high = 100 * ablation["layer_difference_high"].values
        p_adjusted = ablation["layer_p_adjusted"].values
        n_layers = len(difference)
        cells = []
        for value, p_value in zip(difference, p_adjusted, strict=True):
            star = "*" if p_value < SIGNIFICANCE_LEVEL else ""
            cells.append(f"{value:+.1f}{star}")
        table_rows.append([task, *cells])
        rows.append(
            ReportRow(
                f"{task}-first-layer",
                difference[0],
                low[0],
                high[0],
                note=f"corrected p {p_adjusted[0]:.3g}",
                label=f"gain by disabling the first layer, {task}",
                unit="points",
            )
        )
    columns = ["task", *(f"L{layer}" for layer in range(n_layers))]
    note = "Points; a star: corrected p < 0.05."
    table = ReportTable("Change of the score without a layer", columns, table_rows, note)
    caption = (
        "For each task, the score without the heads of one layer minus that of the intact model, "
        "with 95 % intervals over inputs; filled where it is significant after correction. The "
        "scales differ between tasks."
    )
    title = "The effect of disabling one layer, by task"
    figure = ReportFigure("layers", title, caption, layers_by_task(ablations.results))
    evidence = evidence_on_learned(
        context,
        ("first-layer", "layer-gain"),
        ablations.results,
        ablations.not_learned,
        claims.layer_evidence,
    )
    if "RTE" in ablations.not_learned:
        reason = ablations.not_learned["RTE"]
        evidence["first-layer"] = Evidence(undecided=f"RTE: {reason}")
    return EntryResult(
        rows,
        [table],
        [figure],
        evidence=evidence,
        deviations=ablations.deviations,
        inputs=ablations.inputs,
    )
