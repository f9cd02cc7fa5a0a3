"""§4.3, §4.6 and §5: scores of fine-tuning from three starts, and the effect of disabling heads;
Table 1, Figures 8 and 9."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from headwise.core.errors import HeadwiseError
from headwise.core.labels import head_name
from headwise.experiments.ablation import AblationOptions, ScoredClassifier, ablate_scored_model
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.kovaleva2019.frames import best_frame_heads
from headwise.experiments.reproduction.kovaleva2019.tasks import (
    RECIPE,
    TaskResults,
    available_tasks,
    dev_task,
)
from headwise.experiments.reproduction.schema import (
    EntryResult,
    ReportFigure,
    ReportRow,
    ReportTable,
    Verdict,
)
from headwise.experiments.reproduction.shared import (
    best_head,
    head_values,
    not_tried,
    only_if_trained,
)
from headwise.plots import heatmap_panels

STARTS = ("none", "random", "pretrained")
METRICS = {"MRPC": ("f1", "accuracy"), "QQP": ("f1", "accuracy"), "STS-B": ("pearson",)}
SIGNIFICANCE = 0.05
N_DEV = 10_000  # dev examples of an ablation, before `scale`
N_DEV_QUICK = 64


# --- Table 1 --------------------------------------------------------------------------------------


def scores(context: ReproductionContext) -> EntryResult:
    """Table 1."""
    names, deviations = available_tasks(context)
    rows = []
    inputs = {}
    # The deciding score of each task by start; Table 1's last metric decides.
    scores_by_start: dict[str, dict[str, float]] = {}
    for name in names:
        if context.data.find(f"glue-{name}") is None:
            missing = context.data.missing(f"glue-{name}")
            deviations.append(f"{name}: {missing}, so its rows are left out.")
            continue
        task = context.training_task(name)
        inputs[name] = f"{len(task.train):,} training and {len(task.dev):,} dev rows"
        scores_by_start[name] = {}
        for start in STARTS:
            (record,), _ = context.train(task, RECIPE, start)
            for metric in METRICS.get(name, ("accuracy",)):
                score = 100 * record.metrics[metric]
                scores_by_start[name][start] = score
                key = f"{name}-{metric}-{start}"
                rows.append(ReportRow(key, score, note=f"seed {record.seed}"))
    deviations.append(
        "One seed each; the paper does not say how many. MRPC is scored on its labelled test file."
    )
    if context.options.quick:
        deviations.append("A quick run: 256 rows, one epoch.")
    elif context.options.scale < 1:
        deviations.append(f"Trained on {context.options.scale:g} of the rows.")
    verdicts = only_if_trained(context, start_verdicts(scores_by_start))
    return EntryResult(rows, verdicts=verdicts, deviations=deviations, inputs=inputs)


def start_verdicts(scores_by_start: Mapping[str, Mapping[str, float]]) -> dict[str, Verdict]:
    """Judge the claims on three starts from each task's score, in per cent, by start."""
    verdicts = {}
    if scores_by_start:
        gains = []
        random_losses = {}
        for task, by_start in scores_by_start.items():
            gains.append(by_start["pretrained"] - by_start["none"])
            random_losses[task] = by_start["random"] - by_start["pretrained"]
        verdicts["better"] = Verdict(
            f"{np.mean(gains):+.1f} points on average over {len(gains)} tasks",
            all(gain > 0 for gain in gains),
        )
        verdicts["random-lower"] = Verdict(
            _points_text(random_losses), all(loss < 0 for loss in random_losses.values())
        )
    random_gains = {}
    for task in ("STS-B", "QNLI"):
        if task in scores_by_start:
            by_start = scores_by_start[task]
            random_gains[task] = by_start["random"] - by_start["none"]
    if random_gains:
        is_worse = any(gain < 0 for gain in random_gains.values())
        verdicts["random-worse"] = Verdict(_points_text(random_gains), is_worse)
    else:
        verdicts["random-worse"] = not_tried("neither STS-B nor QNLI was run")
    return verdicts


def _points_text(points: Mapping[str, float]) -> str:
    return ", ".join(f"{task} {value:+.1f}" for task, value in points.items())


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
        _, _, model_text = origin.partition(": ")
        ablations.inputs[name] = f"{model_text}, {subject.examples:,} dev inputs"
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
    verdicts = only_if_trained(context, head_verdicts(ablations.results), ablations.results)
    return EntryResult(rows, [table], [figure], verdicts, ablations.deviations, ablations.inputs)


def _mean_difference(ablation: xr.Dataset) -> tuple[float, float, float]:
    """Return the mean over heads of the change of the score, and its interval, in points."""
    attrs = ablation.attrs
    return (
        100 * float(attrs["mean_difference"]),
        100 * float(attrs["mean_difference_low"]),
        100 * float(attrs["mean_difference_high"]),
    )


def head_verdicts(ablations: Mapping[str, xr.Dataset]) -> dict[str, Verdict]:
    """Judge the claims of §4.6 on single heads, and of §5 on frame heads, by task."""
    n_improving = {}
    mean_texts = []
    any_gain = False
    frame_texts = []
    any_frame_drop = False
    for task, ablation in ablations.items():
        n_improving[task] = int(ablation.attrs["improving"])
        mean, low, high = _mean_difference(ablation)
        mean_texts.append(f"{task} {mean:+.2f} ({low:+.2f} to {high:+.2f})")
        any_gain = any_gain or low > 0
        set_names = ablation["set"].values if "set" in ablation.dims else ()
        for set_name in map(str, set_names):
            of_set = ablation.sel(set=set_name)
            difference = float(of_set["set_difference"])
            is_significant = float(of_set["set_p_adjusted"]) < SIGNIFICANCE
            frame_texts.append(f"{set_name} on {task} {100 * difference:+.1f}")
            any_frame_drop = any_frame_drop or (difference < 0 and is_significant)
    improving_text = ", ".join(f"{task} {count} heads" for task, count in n_improving.items())
    verdicts = {
        "some-gain": Verdict(improving_text, all(count > 0 for count in n_improving.values())),
        "random-head": Verdict(", ".join(mean_texts), any_gain),
    }
    if frame_texts:
        verdicts["frames-idle"] = Verdict("; ".join(frame_texts), not any_frame_drop)
    return verdicts


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
            star = "*" if p_value < SIGNIFICANCE else ""
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
    verdicts = only_if_trained(context, layer_verdicts(ablations.results), ablations.results)
    return EntryResult(
        rows,
        [table],
        verdicts=verdicts,
        deviations=ablations.deviations,
        inputs=ablations.inputs,
    )


def layer_verdicts(ablations: Mapping[str, xr.Dataset]) -> dict[str, Verdict]:
    """Judge the claims of §4.6 on whole layers, by task."""
    verdicts = {"first-layer": not_tried("RTE was not run")}
    n_better: dict[str, int] = {}
    for task, ablation in ablations.items():
        n_better[task] = int((ablation["layer_difference"].values > 0).sum())
    if "RTE" in ablations:
        verdicts["first-layer"] = _first_layer_verdict(ablations["RTE"])
    ours = ", ".join(f"{task} {count} layers" for task, count in n_better.items())
    verdicts["layer-gain"] = Verdict(ours, any(n_better.values()))
    return verdicts


def _first_layer_verdict(ablation: xr.Dataset) -> Verdict:
    difference = 100 * float(ablation["layer_difference"].values[0])
    low = 100 * float(ablation["layer_difference_low"].values[0])
    high = 100 * float(ablation["layer_difference_high"].values[0])
    return Verdict(f"{difference:+.1f} ({low:+.1f} to {high:+.1f})", low > 0)
