"""The tasks of Kovaleva et al. 2019: which are available, their models and their dev inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from headwise.analyses.contract import Analysis
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.schema import NotRunError
from headwise.models import HeadModel
from headwise.text import Corpus
from headwise.text.tasks import Task, sample

TASKS = ("MRPC", "STS-B", "SST-2", "QQP", "RTE", "QNLI", "MNLI")
QUICK_TASKS = ("MRPC", "SST-2", "RTE")
N_EXAMPLES = 1000  # of each dev part (§4.1, §4.3)
N_EXAMPLES_QUICK = 32
RECIPE = "kovaleva"


@dataclass(slots=True)
class TaskResults:
    """The results of each task, what they were computed on, and deviations from the paper.

    `not_learned` has the tasks whose model learned nothing, with the reason: no claim uses them.
    """

    results: dict[str, Any] = field(default_factory=dict)
    not_learned: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    deviations: list[str] = field(default_factory=list)


def available_tasks(context: ReproductionContext) -> tuple[list[str], list[str]]:
    """Return the tasks that can be run, and for each other one a sentence on why not."""
    wanted = QUICK_TASKS if context.options.quick else TASKS
    names = []
    reasons = []
    for name in TASKS:
        # A provided model needs no training part.
        data_set = f"glue-{name}"
        if context.provided_model(name) is not None:
            data_set = f"glue-{name}-dev"
        if context.data.find(data_set) is None:
            reasons.append(f"{name}: not run, {context.data.missing(data_set)}.")
        elif name not in wanted:
            reasons.append(f"{name}: left out of a quick run.")
        else:
            names.append(name)
    if not names:
        raise NotRunError(f"no task of GLUE was found: {reasons[0].removesuffix('.')}")
    return names, reasons


def dev_task(context: ReproductionContext, name: str, count: int | None = None) -> Task:
    """Return a task with at most `count` (default: 1000) examples of its dev part."""
    task = context.task(name, train=False)
    if count is None:
        count = context.sample_size(N_EXAMPLES, N_EXAMPLES_QUICK)
    indices = sample(task.labels, task.split.test, count, context.seed)
    examples = [task.examples[index] for index in indices]
    return Task.of_parts(task.name, (), examples, task.metrics)


def dev_corpus(task: Task) -> Corpus:
    """Return the dev part of a task as a corpus."""
    return Corpus.from_examples(task.dev, f"{task.name} dev")


def compute_by_task(
    context: ReproductionContext, compute: Callable[[HeadModel, Task], Any]
) -> TaskResults:
    """Compute something for the model fine-tuned on each task, on the task's dev part."""
    names, reasons = available_tasks(context)
    task_results = TaskResults(deviations=reasons)
    for name in names:
        with context.open_finetuned(name, RECIPE) as (model, origin):
            task = dev_task(context, name)
            task_results.results[name] = compute(model, task)
            note_learning(context, task_results, name)
            task_results.inputs[name] = inputs_text(task_results, name, origin, len(task.dev))
    if context.options.quick:
        task_results.deviations.append(
            "A quick run: models are fine-tuned on a few rows for one epoch, so they hardly change."
        )
    elif context.options.scale < 1:
        task_results.deviations.append(
            f"Fine-tuned on {context.options.scale:g} of the training rows, where no model was "
            "given."
        )
    return task_results


def note_learning(context: ReproductionContext, task_results: TaskResults, name: str) -> None:
    """Record where the model of a task learned nothing."""
    reason = context.why_nothing_learned(name, RECIPE)
    if reason:
        task_results.not_learned[name] = reason


def inputs_text(task_results: TaskResults, name: str, origin: str, n_inputs: int) -> str:
    """Say which model, what it learned, and how many inputs; `origin` begins with the task's
    name."""
    _, _, model_text = origin.partition(": ")
    text = f"{model_text}, {n_inputs:,} dev inputs"
    if name in task_results.not_learned:
        text += f", {task_results.not_learned[name]}, so that no claim uses it"
    return text


def analyse_by_task(context: ReproductionContext, analysis: Analysis) -> TaskResults:
    """Run an analysis on the model of each task."""

    def compute(model: HeadModel, task: Task) -> xr.Dataset:
        return context.run_analysis(dev_corpus(task), analysis, model=model)

    return compute_by_task(context, compute)
