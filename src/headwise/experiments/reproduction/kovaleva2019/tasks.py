"""The tasks of Kovaleva et al. 2019: which of them can be had here, their models and their dev
inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from headwise.analyses.contract import Analysis
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.schema import NotRunError
from headwise.models import HeadModel
from headwise.text import Corpus
from headwise.text.tasks import Task, sample

TASKS = ("MRPC", "STS-B", "SST-2", "QQP", "RTE", "QNLI", "MNLI")
QUICK_TASKS = ("MRPC", "RTE")
EXAMPLES, QUICK = 1000, 32  # of each dev part (§4.1, §4.3)
RECIPE = "kovaleva"


@dataclass(slots=True)
class Found:
    """What was found for each task, what it was found on, and which tasks could not be had."""

    results: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)


def available(bench: Bench) -> tuple[list[str], list[str]]:
    """The tasks that can be had, and for each other one a sentence on why not."""
    wanted = QUICK_TASKS if bench.options.quick else TASKS
    names, reasons = [], []
    for name in TASKS:
        needed = f"glue-{name}-dev" if bench.given_model(name) is not None else f"glue-{name}"
        if bench.data.find(needed) is None:
            reasons.append(f"{name}: not run, {bench.data.missing(needed)}.")
        elif name not in wanted:
            reasons.append(f"{name}: left out of a quick run.")
        else:
            names.append(name)
    if not names:
        raise NotRunError(f"no task of GLUE was found: {reasons[0].removesuffix('.')}")
    return names, reasons


def dev_of(bench: Bench, name: str, count: int | None = None) -> Task:
    """A task with at most so many (by default 1000) examples of its dev part."""
    task = bench.task(name, train=False)
    kept = sample(task.labels, task.split.test, count or bench.count(EXAMPLES, QUICK), bench.seed)
    return Task.of_parts(task.name, (), [task.examples[i] for i in kept], task.metrics)


def inputs_of(task: Task) -> Corpus:
    return Corpus.from_examples(task.dev, f"{task.name} dev")


def each_task(bench: Bench, ask: Callable[[HeadModel, Task], Any]) -> Found:
    """Ask something of the model fine-tuned on each task, on its dev part."""
    names, reasons = available(bench)
    found = Found(differs=reasons)
    for name in names:
        with bench.finetuned(name, RECIPE) as (model, told):
            task = dev_of(bench, name)
            found.results[name] = ask(model, task)
            found.seen[name] = f"{told.partition(': ')[2]}, {len(task.dev):,} dev inputs"
    if bench.options.quick:
        found.differs.append(
            "A quick run: models are fine-tuned on a few rows for one epoch, so they hardly change."
        )
    elif bench.options.scale < 1:
        found.differs.append(
            f"Fine-tuned on {bench.options.scale:g} of the training rows, where no model was given."
        )
    return found


def watch_tasks(bench: Bench, asked: Analysis) -> Found:
    """The result of an analysis on the model of each task."""

    def ask(model: HeadModel, task: Task) -> xr.Dataset:
        return bench.watch(inputs_of(task), asked, model=model)

    return each_task(bench, ask)
