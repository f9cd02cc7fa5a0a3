"""Probing every head: all tables and figures except those of downstream tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

from headwise.analyses.probing.analysis import probe_tasks
from headwise.analyses.probing.options import ProbingOptions
from headwise.core.labels import head_name
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.estimates import Estimates
from headwise.experiments.reproduction.jo2020 import claims
from headwise.experiments.reproduction.jo2020.claims import task_title
from headwise.experiments.reproduction.jo2020.reference import (
    BERT_BASE,
    ReleasedAccuracies,
    released_accuracies,
)
from headwise.experiments.reproduction.printed import printed_paper
from headwise.experiments.reproduction.rules import judge
from headwise.experiments.reproduction.schema import (
    EntryResult,
    NotRunError,
    ReportRow,
    ReportTable,
)
from headwise.experiments.reproduction.shared import registered_figures
from headwise.stats.intervals import wilson_interval
from headwise.text.known_tasks import SENTEVAL
from headwise.text.tasks import read_tasks

# Sentences for training, validation and testing.
PAPER_SIZES = (100_000, 10_000, 10_000)
QUICK_SIZES = (240, 120, 240)
FIGURE_3_TASKS = (
    "sentence_length",
    "tree_depth",
    "subj_number",
    "bigram_shift",
    "coordination_inversion",
    "odd_man_out",
)
POOLINGS = {"last": "last_layer", "best": "best_layer", "top": "top_heads"}
N_TOP_HEADS = 12
# Table 3's top-12 heads of BERT-base, in SentEval's order.
PRINTED_TOP_HEADS = (95.0, 73.1, 38.3, 84.2, 88.3, 89.0, 88.2, 83.4, 65.1, 74.6)


# --- data and probes ------------------------------------------------------------------------------


def probing_options(context: ReproductionContext) -> tuple[ProbingOptions, list[str]]:
    """Return the paper's solver with five folds and no standardisation, or least squares on one
    split in a quick run; and the deviations."""
    n_train, n_validation, n_test = map(context.sample_size, PAPER_SIZES, QUICK_SIZES)
    options = ProbingOptions(
        train=n_train,
        validation=n_validation,
        test=n_test,
        greedy=False,
        control=False,
        curve=(),
        seed=context.seed,
    )
    if context.options.quick:
        deviation = (
            "Least squares on standardised vectors and one split, in place of logistic regression "
            "and five folds."
        )
        return replace(options, solver="ridge"), [deviation]
    return replace(options, solver="senteval", folds=5, standardize=False), []


def available_tasks(context: ReproductionContext) -> tuple[dict[str, Path], list[str]]:
    """Return the files of the probing tasks, and a sentence on each missing one."""
    files = {}
    missing = []
    deviations = []
    for name in SENTEVAL:
        data_set = f"senteval-{name}"
        path = context.data.find(data_set)
        if path is not None:
            files[name] = path
        else:
            missing.append(context.data.missing(data_set))
            deviations.append(f"{task_title(name)}: {context.data.missing(data_set)}.")
    if not files:
        raise NotRunError(missing[0])
    return files, deviations


def task_sources(context: ReproductionContext, files: Mapping[str, Path]) -> tuple[str, list[str]]:
    """Return what the files of the tasks are, and a sentence where they are not SentEval's own.

    The names of the files say which task each stands for, not whose sentences they hold.
    """
    tasks_by_source: dict[str, list[str]] = {}
    for name, path in files.items():
        source = context.data.source(f"senteval-{name}")
        if not source:
            source = f"files in SentEval's format in {path.parent.name}, source not stated"
        tasks_by_source.setdefault(source, []).append(task_title(name))
    parts = []
    others = []
    for source, titles in tasks_by_source.items():
        part = f"{', '.join(titles)}: {source}"
        parts.append(part)
        if not source.startswith("SentEval"):
            others.append(part)
    text = "; ".join(parts)
    if not others:
        return text, []
    return text, [f"Not known to be SentEval's own sentences. {'; '.join(others)}."]


def probed_tasks(context: ReproductionContext) -> tuple[xr.Dataset, dict[str, str], list[str]]:
    """Probe all available tasks, once for all entries."""
    files, missing = available_tasks(context)
    options, deviations = probing_options(context)
    identity = {
        "tasks": list(files),
        "options": options.identity(),
        "limits": list(options.limits),
    }
    run = partial(
        probe_tasks,
        context.model,
        list(files.values()),
        options,
        store=context.job.started_store.part("probing"),
        progress=context.job.progress,
    )
    result = context.stored_dataset("probing", identity, run)
    n_train = result["train_n"].values
    if n_train.min() < PAPER_SIZES[0]:
        deviations.append(
            f"{n_train.min():,} to {n_train.max():,} training sentences a task in place of 100,000."
        )
    deviations += missing
    sources, source_deviations = task_sources(context, files)
    deviations += source_deviations
    n_test = result["accuracy_n"].max(("layer", "head")).values
    inputs = {
        "tasks": f"{len(files)} tasks, {int(n_test.min()):,} to {int(n_test.max()):,} test "
        "sentences",
        "data": sources,
    }
    return result, inputs, deviations


def _task_names(result: xr.Dataset) -> list[str]:
    return [str(task) for task in result["task"].values]


def _has_released(context: ReproductionContext) -> bool:
    return context.data.find("jo2020") is not None


# --- Figures 3, 6 and 7 ---------------------------------------------------------------------------


def heads(context: ReproductionContext, entry: str) -> EntryResult:
    """Figures 3, 6 and 7: heat maps; Figure 3 has six of the tasks and the claims."""
    result, inputs, deviations = probed_tasks(context)
    drawn_tasks = _task_names(result)
    if entry == "fig3":
        drawn_tasks = [task for task in drawn_tasks if task in FIGURE_3_TASKS]
    figure_name = "heads" if entry == "fig7" else "heads-sorted"
    figures = registered_figures("probing", result.sel(task=drawn_tasks), figure_name)
    if entry != "fig3":
        return EntryResult(figures=figures, deviations=deviations, inputs=inputs)
    figures += registered_figures("probing", result, "localised")
    tables = [localisation_table(result)]
    evidence = claims.layer_evidence(probed_by_task(result))
    if _has_released(context):
        released = released_accuracies(context)
        tables.append(released_layer_table(released))
        accuracies = {}
        for task in _task_names(result):
            accuracies[task] = 100 * result["accuracy"].sel(task=task).values
        tables += _comparison_tables(released, context.model.name, accuracies)
    return EntryResult((), tables, figures, evidence, deviations, inputs)


def probed_by_task(result: xr.Dataset) -> dict[str, claims.ProbedTask]:
    """Return the accuracies of heads in per cent, and what was learned, by task."""
    probed = {}
    for task in _task_names(result):
        scores = result.sel(task=task)
        shares = Estimates.of(scores, "accuracy")
        percent = Estimates(100 * shares.value, 100 * shares.low, 100 * shares.high)
        probed[task] = claims.ProbedTask(
            percent,
            100 * float(scores["majority"]),
            bool((scores["better"] > 0).any()),
            int(scores["accuracy_n"].max()),
        )
    return probed


def localisation_table(result: xr.Dataset) -> ReportTable:
    """Make a table of how localised every task is."""
    rows = []
    for task in _task_names(result):
        scores = result.sel(task=task)
        cells = []
        for name in ("localisation", "layer_localisation"):
            value = float(scores[name])
            low = float(scores[f"{name}_low"])
            high = float(scores[f"{name}_high"])
            cells.append(f"{value:.3f} ({low:.3f} to {high:.3f})")
        title = str(scores["paper_task"].values)
        rows.append([title, *cells, float(scores["effective_heads"])])
    columns = ["task", "among heads", "among layers", "effective heads"]
    return ReportTable("How localised each task is (0: all alike, 1: a single one)", columns, rows)


def released_layer_table(
    released: Mapping[tuple[str, str], ReleasedAccuracies],
) -> ReportTable:
    """Apply the rules on layers to the authors' own accuracies."""
    rows = []
    rules = {claim.key: claim for claim in printed_paper(claims.PAPER).claims}
    for model in _models(released):
        probed = {}
        for (name, task), accuracy in released.items():
            if name == model:
                probed[task] = _released_task(accuracy.test)
        evidence = claims.layer_evidence(probed)
        cells = [judge(rules[key], evidence[key]).verdict for key in ("lower", "middle", "upper")]
        rows.append([model, *cells])
    columns = [
        "model",
        "Length, Depth: lower",
        "SubjNum, CoordInv: middle",
        "BShift, OddManOut: upper",
    ]
    return ReportTable("The same rules on the authors' released accuracies", columns, rows)


def _released_task(accuracy: np.ndarray) -> claims.ProbedTask:
    """Return released accuracies with Wilson's intervals for the paper's number of test
    sentences."""
    n_test = PAPER_SIZES[2]
    low, high = wilson_interval(accuracy / 100 * n_test, np.full_like(accuracy, n_test))
    return claims.ProbedTask(
        Estimates(accuracy, 100 * low, 100 * high), float("nan"), learned=True, n_test=n_test
    )


def _models(released: Mapping[tuple[str, str], ReleasedAccuracies]) -> list[str]:
    return sorted({model for model, _ in released})


def _comparison_tables(
    released: Mapping[tuple[str, str], ReleasedAccuracies],
    model_name: str,
    accuracies: Mapping[str, np.ndarray],
) -> list[ReportTable]:
    """Compare our accuracies of heads with the released ones, where the model has the same
    name."""
    model = model_name.lower().split("/")[-1].replace("google-", "")
    if model not in _models(released):
        return []
    rows = []
    for task, ours in accuracies.items():
        theirs = released.get((model, task))
        if theirs is not None and theirs.test.shape == ours.shape:
            correlation = float(np.corrcoef(ours.ravel(), theirs.test.ravel())[0, 1])
            mean_ours = float(ours.mean())
            mean_theirs = float(np.nanmean(theirs.test))
            rows.append([task_title(task), mean_ours, mean_theirs, correlation])
    columns = ["task", "mean, ours", "mean, theirs", "Pearson's r"]
    return [ReportTable(f"Heads of {model}: ours and released", columns, rows)]


# --- Table 3 --------------------------------------------------------------------------------------


def poolings(context: ReproductionContext) -> EntryResult:
    """Table 3: last layer, best layer and top heads."""
    result, inputs, deviations = probed_tasks(context)
    rows = []
    for task in _task_names(result):
        for name, pooling in POOLINGS.items():
            scores = result.sel(task=task, pooling=pooling)
            note = f"layer {int(scores['best_layer'])}" if name == "best" else ""
            rows.append(ReportRow.from_variable(f"{task}-{name}", scores, "pooled_accuracy", note))
    accuracy = 100 * result["pooled_accuracy"]
    best = accuracy.sel(pooling="best_layer").values
    top = accuracy.sel(pooling="top_heads").values
    gain = float(np.median(100 * (top / best - 1)))
    rows.append(ReportRow("gain", gain, note="over the tasks given, this model alone"))
    deviations.append(f"The printed figures are BERT-base's; ours are {context.model.name}'s.")
    tables = []
    if _has_released(context):
        tables.append(selection_table(released_accuracies(context)))
    figures = registered_figures("probing", result, "poolings")
    evidence = claims.pooling_evidence(_pooled_by_task(result))
    return EntryResult(rows, tables, figures, evidence, deviations, inputs)


def _pooled_by_task(result: xr.Dataset) -> dict[str, claims.PooledTask]:
    """Return the accuracies of three poolings in per cent, for tasks that some head learned."""
    pooled = {}
    for task, probed in probed_by_task(result).items():
        if not probed.learned:
            continue
        scores = result.sel(task=task)
        by_pooling = {}
        for name, pooling in POOLINGS.items():
            share = Estimates.of(scores.sel(pooling=pooling), "pooled_accuracy").one(())
            by_pooling[name] = share.times(100)
        n_test = int(scores["pooled_accuracy_n"].max())
        pooled[task] = claims.PooledTask(**by_pooling, n_test=n_test)
    return pooled


def selection_table(released: Mapping[tuple[str, str], ReleasedAccuracies]) -> ReportTable:
    """Apply our rule of selection to the authors' own accuracies.

    Table 3's classifiers were not released, but the single heads they join were.
    """
    rows = []
    for task, printed in zip(SENTEVAL, PRINTED_TOP_HEADS, strict=True):
        accuracy = released.get((BERT_BASE, task))
        if accuracy is None:
            continue
        best_by_test = float(np.nanmax(accuracy.test))
        top_mean = float(np.mean([accuracy.test[head] for head in accuracy.top_heads(N_TOP_HEADS)]))
        beats_every_head = "yes" if printed > best_by_test else "no"
        rows.append(
            [
                task_title(task),
                accuracy.best_head_text,
                best_by_test,
                top_mean,
                printed,
                beats_every_head,
            ]
        )
    columns = [
        "task",
        "best head by validation",
        "best by test",
        "mean of the top 12",
        "printed, top 12 joined",
        "joined beats every head",
    ]
    note = (
        "BERT-base, test accuracy in %, from the released accuracies of single heads. Layers and "
        "joined heads were not released, so that Table 3 itself cannot be computed from them."
    )
    return ReportTable("Our rule of selection on the authors' figures", columns, rows, note)


# --- Figure 5 -------------------------------------------------------------------------------------


def scores(context: ReproductionContext) -> EntryResult:
    """Figure 5: syntactic against semantic scores."""
    result, inputs, deviations = probed_tasks(context)
    syntactic = 100 * result["syntactic_score"].values
    semantic = 100 * result["semantic_score"].values
    if not np.isfinite(syntactic).all() or not np.isfinite(semantic).all():
        raise NotRunError("a syntactic and a semantic task are needed")
    tables = []
    if _has_released(context):
        tables.append(released_score_table(released_accuracies(context)))
    figures = registered_figures("probing", result, "syntactic-semantic")
    n_test = min(task.n_test for task in probed_by_task(result).values())
    evidence = claims.score_evidence(syntactic, semantic, n_test)
    return EntryResult((), tables, figures, evidence, deviations, inputs)


def released_score_table(
    released: Mapping[tuple[str, str], ReleasedAccuracies],
) -> ReportTable:
    """Compute Figure 5 of every model from the released accuracies."""
    rows = []
    for model in _models(released):
        syntactic = _group_mean(released, model, "syntactic")
        semantic = _group_mean(released, model, "semantic")
        is_known = np.isfinite(syntactic) & np.isfinite(semantic)
        correlation = float(np.corrcoef(syntactic[is_known], semantic[is_known])[0, 1])
        mean_syntactic = float(syntactic[is_known].mean())
        mean_semantic = float(semantic[is_known].mean())
        rows.append([model, int(is_known.sum()), mean_syntactic, mean_semantic, correlation])
    columns = ["model", "heads", "syntactic, mean", "semantic, mean", "Pearson's r over heads"]
    return ReportTable("Figure 5 from the authors' released accuracies", columns, rows)


def _group_mean(
    released: Mapping[tuple[str, str], ReleasedAccuracies], model: str, group: str
) -> np.ndarray:
    """Return the mean test accuracy `[layer, head]` over the tasks of a group."""
    accuracies = []
    for task, (_, task_group) in SENTEVAL.items():
        if task_group == group and (model, task) in released:
            accuracies.append(released[model, task].test)
    return np.asarray(np.mean(accuracies, axis=0))


# --- entries without probes -----------------------------------------------------------------------


def every_encoder(context: ReproductionContext) -> EntryResult:
    """Table 5: what the released file says of each encoder."""
    rows = []
    for (model, task), accuracy in released_accuracies(context).items():
        if task in SENTEVAL:
            mean = float(np.nanmean(accuracy.test))
            rows.append([model, task_title(task), accuracy.best_head_text, mean])
    title = "Best head (by validation) and mean head, released accuracies (%)"
    table = ReportTable(title, ["encoder", "task", "best head", "mean head"], rows)
    deviation = (
        "Table 5 is of classifiers on layers and joined heads, which were not released; the model "
        "given here stands in Table 3. Printed increments are relative to the last layer."
    )
    return EntryResult(tables=[table], deviations=[deviation])


def drawing(context: ReproductionContext, what: str) -> EntryResult:
    """Describe the vectors of a drawing of the method; nothing is measured in it."""
    model = context.model
    n_heads = model.layers * model.heads
    inputs = {
        "vectors": f"{model.layers} layers of {model.hidden}, {n_heads} heads of {model.d_head}",
        "token": "the last token" if model.causal else "the first token",
    }
    deviation = f"A drawing of the method ({what}); it has no numbers."
    return EntryResult(deviations=[deviation], inputs=inputs)


def selection(context: ReproductionContext) -> EntryResult:
    """Figure 2: the heads that validation picks, task by task."""
    result, inputs, deviations = probed_tasks(context)
    rows = []
    for task in _task_names(result):
        picks = result.sel(task=task)
        count = min(int(picks.attrs["top"]), picks.sizes["rank"])
        names = []
        for rank in range(count):
            names.append(head_name(int(picks["top_layer"][rank]), int(picks["top_head"][rank])))
        rows.append([str(picks["paper_task"].values), " ".join(names)])
    table = ReportTable("Heads picked on validation, best first", ["task", "heads"], rows)
    return EntryResult(tables=[table], deviations=deviations, inputs=inputs)


def encoders(context: ReproductionContext) -> EntryResult:
    """Table 1: the model of this reproduction."""
    model = context.model
    n_parameters = f"{model.module.num_parameters() / 1e6:.0f}M"
    row = [model.name, model.layers, model.heads, model.layers * model.heads, n_parameters]
    table = ReportTable("The encoder", ["encoder", "L", "H", "L × H", "parameters"], [row])
    deviation = "One encoder, the one that was given, in place of seven."
    return EntryResult(tables=[table], deviations=[deviation])


def tasks(context: ReproductionContext) -> EntryResult:
    """Table 2: the tasks as they were given."""
    files, missing = available_tasks(context)
    rows = []
    sizes = []
    for name, path in files.items():
        (task,) = read_tasks([path], context.seed)
        n_classes = len({str(label) for label in task.labels})
        rows.append(ReportRow(name, n_classes))
        split = task.split
        sizes.append([task_title(name), len(split.train), len(split.validation), len(split.test)])
    table = ReportTable("Sentences given", ["task", "train", "validation", "test"], sizes)
    sources, source_deviations = task_sources(context, files)
    deviations = [*missing, *source_deviations, *_class_deviations(rows)]
    return EntryResult(rows, [table], deviations=deviations, inputs={"data": sources})


def _class_deviations(rows: Sequence[ReportRow]) -> list[str]:
    """Return a sentence for each task with another number of classes than the paper prints."""
    printed_classes = {}
    for value in printed_paper("jo2020").entries["table2"].values:
        printed_classes[value.key] = value.value
    deviations = []
    for row in rows:
        printed = printed_classes.get(row.key)
        if printed is not None and row.ours != printed:
            deviations.append(
                f"{task_title(row.key)}: {row.ours:g} classes in place of {printed:g}, so that its "
                "accuracies are not comparable with the printed ones."
            )
    return deviations
