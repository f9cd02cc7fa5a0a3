"""What Pande et al. 2021 read: inputs of four tasks, each with the model fine-tuned on it; and what
stands in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import xarray as xr

from headwise.analyses.contract import make_analysis
from headwise.analyses.released import RELEASED
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.schema import NotRunError
from headwise.experiments.reproduction.shared import between, of_each, sizes_differ
from headwise.models import HeadModel
from headwise.text import Corpus, annotate

TASKS = ("QNLI", "QQP", "MRPC", "SST-2")
INPUTS, QUICK = 1000, 40
LONGEST = 128
ROLES = "local,syntactic,block,delimiter,nsubj,dobj,amod,advmod,cls,sep,local:prev,local:next"
TREES = "trees"  # the stand-in for parsed inputs


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The roles of the model of one task on that task's inputs, as printed and as released."""

    task: str
    roles: xr.Dataset
    released: xr.Dataset
    parsed: bool  # whether the syntactic roles are among them


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Every task that could be had; `trees` is the same model on a treebank where the inputs are
    not parsed."""

    tasks: tuple[Scored, ...]
    trees: Scored | None
    differs: tuple[str, ...]
    seen: dict[str, str]

    @property
    def syntactic(self) -> tuple[Scored, ...]:
        """What syntactic roles are read off."""
        parsed = tuple(one for one in self.tasks if one.parsed)
        return parsed or ((self.trees,) if self.trees else ())


def roles(bench: Bench, released: bool, tau: float | str = "paper") -> Any:
    """The analysis with the paper's bare rule."""
    reading = RELEASED if released else bench.options.reading
    bare = {"min_effect": 0.0, "random_models": 0, "bootstrap": 0}
    return make_analysis("roles", {"sieves": ROLES, "tau": tau, "reading": reading, **bare})


def task_inputs(bench: Bench, task: str, model: HeadModel) -> tuple[Corpus, list[str]]:
    """At most 1000 inputs of a task's dev part, parsed where a parser is given."""
    examples = list(bench.task(task, train=False).dev)
    corpus, lengths = between(
        examples, task, bench.count(INPUTS, QUICK), (3, LONGEST), model, bench.seed
    )
    differs = sizes_differ(bench, len(lengths), INPUTS, f"inputs ({task})")
    return annotate(corpus, bench.options.parser) if bench.options.parser else corpus, differs


def found(bench: Bench) -> Found:
    """The roles of all tasks; computed once, and kept by the bench."""
    return bench.remember("roles", lambda: _compute(bench))


def _compute(bench: Bench) -> Found:
    tasks, told = of_each(TASKS, partial(on_task, bench))
    seen = {task: f"{scored.roles.attrs['inputs']:,} inputs" for task, scored in tasks.items()}
    differs = ["Inputs of the dev parts in place of the test parts.", *told]
    trees = None
    if not bench.options.parser:
        differs.append(
            "No parser was given (--parser), so that the inputs have no trees: syntactic roles are those of the "
            "pre-trained model on a treebank's sentences, with gold trees."
        )
        trees = on_trees(bench)
        seen[TREES] = f"{trees.roles.attrs['inputs']:,} sentences"
    return Found(tuple(tasks.values()), trees, tuple(differs), seen)


def on_task(bench: Bench, task: str) -> tuple[Scored, list[str]]:
    """One task: its fine-tuned model where there is one or can be one, else the model as it is."""
    bench.data.path(f"glue-{task}-dev")
    try:
        with bench.finetuned(task, "pande") as (model, told):
            corpus, differs = task_inputs(bench, task, model)
            return _scored(bench, task, corpus, model), [f"{told}.", *differs]
    except NotRunError as error:
        corpus, differs = task_inputs(bench, task, bench.model)
        told = f"{task}: the model as it is, not fine-tuned ({str(error).rstrip('.')})."
        return _scored(bench, task, corpus, bench.model), [told, *differs]


def on_trees(bench: Bench) -> Scored:
    """The model as it is on sentences with gold trees."""
    name, count = bench.data.first("ewt-dev", "pud-en"), bench.count(INPUTS, QUICK)
    corpus, _ = bench.text(name, count, "")
    return _scored(bench, TREES, corpus, bench.model)


def _scored(bench: Bench, task: str, corpus: Corpus, model: HeadModel) -> Scored:
    as_printed = bench.watch(corpus, roles(bench, False), model=model)
    tau = float(as_printed.attrs["tau"])
    as_released = bench.watch(corpus, roles(bench, True, tau), model=model)
    parsed = bool(as_printed["bias"].sel(role="syntactic").notnull().any())
    return Scored(task, as_printed, as_released, parsed)
