"""The inputs of Pande et al. 2021 (four tasks, each with the model fine-tuned on it), their
substitutes, and the roles of heads on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import xarray as xr

from headwise.analyses.contract import Analysis, make_analysis
from headwise.analyses.released import RELEASED
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.schema import NotRunError
from headwise.experiments.reproduction.shared import (
    compute_by_task,
    sample_by_length,
    size_deviation,
    size_text,
    special_token_deviations,
)
from headwise.models import HeadModel
from headwise.text import Corpus, annotate

TASKS = ("QNLI", "QQP", "MRPC", "SST-2")
RECIPE = "pande"
N_INPUTS = 1000
N_INPUTS_QUICK = 40
TOKEN_RANGE = (3, 128)
SIEVES = "local,syntactic,block,delimiter,nsubj,dobj,amod,advmod,cls,sep,local:prev,local:next"
TREES = "trees"  # stands for a task where roles are measured on a treebank


@dataclass(frozen=True, slots=True, eq=False)
class TaskRoles:
    """The roles of the model of one task on that task's inputs, as printed and as released."""

    task: str
    roles: xr.Dataset
    released: xr.Dataset
    parsed: bool  # whether the syntactic roles are among them
    nothing_learned: str = ""  # why its model learned nothing; no claim uses such a task


@dataclass(frozen=True, slots=True, eq=False)
class RoleResults:
    """The roles of every available task; `trees` holds the pre-trained model's on a treebank where
    the inputs are not parsed."""

    tasks: tuple[TaskRoles, ...]
    trees: TaskRoles | None
    deviations: tuple[str, ...]
    inputs: dict[str, str]

    @property
    def by_task(self) -> dict[str, TaskRoles]:
        """The results by the name of the task."""
        return {task_roles.task: task_roles for task_roles in self.tasks}

    @property
    def not_learned(self) -> dict[str, str]:
        """The tasks whose model learned nothing, with the reason."""
        reasons = {}
        for task_roles in self.tasks:
            if task_roles.nothing_learned:
                reasons[task_roles.task] = task_roles.nothing_learned
        return reasons

    @property
    def syntactic(self) -> tuple[TaskRoles, ...]:
        """The results with syntactic roles: the parsed tasks, else the treebank."""
        parsed = tuple(task for task in self.tasks if task.parsed and not task.nothing_learned)
        if parsed:
            return parsed
        return () if self.trees is None else (self.trees,)

    @property
    def with_trees(self) -> tuple[TaskRoles, ...]:
        """All tasks, and the treebank where there is one."""
        return self.tasks if self.trees is None else (*self.tasks, self.trees)


def role_analysis(
    context: ReproductionContext, released: bool, tau: float | str = "paper"
) -> Analysis:
    """Make the roles analysis with the paper's rule: no least effect, no random models, no
    bootstrap."""
    parameters = {
        "sieves": SIEVES,
        "tau": tau,
        "reading": RELEASED if released else context.options.variant,
        "min_effect": 0.0,
        "random_models": 0,
        "bootstrap": 0,
    }
    return make_analysis("roles", parameters)


def task_inputs(
    context: ReproductionContext, task: str, model: HeadModel
) -> tuple[Corpus, list[str]]:
    """Return at most 1000 inputs of a task's dev part, parsed where the options name a parser."""
    examples = list(context.task(task, train=False).dev)
    count = context.sample_size(N_INPUTS, N_INPUTS_QUICK)
    corpus, lengths = sample_by_length(examples, task, count, TOKEN_RANGE, model, context.seed)
    deviations = size_deviation(context, len(lengths), N_INPUTS, f"inputs ({task})")
    if context.options.parser:
        corpus = annotate(corpus, context.options.parser)
    return corpus, deviations


def role_results(context: ReproductionContext) -> RoleResults:
    """Return the roles of all tasks; computed once for all entries."""
    return context.compute_once("roles", partial(_compute_roles, context))


def _compute_roles(context: ReproductionContext) -> RoleResults:
    by_task, task_deviations = compute_by_task(TASKS, partial(roles_of_task, context))
    inputs = {}
    for task, task_roles in by_task.items():
        inputs[task] = f"{task_roles.roles.attrs['inputs']:,} inputs"
    deviations = ["Inputs of the dev parts in place of the test parts.", *task_deviations]
    trees = None
    if not context.options.parser:
        deviations.append(
            "No parser was given, so that the inputs have no trees: syntactic roles are those of "
            "the pre-trained model on a treebank's sentences, with gold trees."
        )
        trees, inputs[TREES] = roles_on_treebank(context)
    deviations += special_token_deviations(context)
    return RoleResults(tuple(by_task.values()), trees, tuple(deviations), inputs)


def roles_of_task(context: ReproductionContext, task: str) -> tuple[TaskRoles, list[str]]:
    """Compute the roles of a task's fine-tuned model, or of the model as it is where there is
    none."""
    context.data.path(f"glue-{task}-dev")  # raises where the inputs are missing
    try:
        with context.open_finetuned(task, RECIPE) as (model, origin):
            corpus, deviations = task_inputs(context, task, model)
            task_roles = _compute_task_roles(context, task, corpus, model)
            reason = context.why_nothing_learned(task, RECIPE)
            if reason:
                origin += f", {reason}, so that no claim uses it"
            return replace(task_roles, nothing_learned=reason), [f"{origin}.", *deviations]
    except NotRunError as error:
        corpus, deviations = task_inputs(context, task, context.model)
        origin = f"{task}: the model as it is, not fine-tuned ({str(error).rstrip('.')})."
        task_roles = _compute_task_roles(context, task, corpus, context.model)
        return task_roles, [origin, *deviations]


def roles_on_treebank(context: ReproductionContext) -> tuple[TaskRoles, str]:
    """Compute the roles of the model as it is on sentences with gold trees; return them with how
    many sentences there are."""
    name = context.data.first("ewt-dev", "pud-en")
    count = context.sample_size(N_INPUTS, N_INPUTS_QUICK)
    corpus, _ = context.corpus_or_built_in(name, count, "")
    trees = _compute_task_roles(context, TREES, corpus, context.model)
    return trees, f"{corpus.name}, {size_text(corpus)}"


def _compute_task_roles(
    context: ReproductionContext, task: str, corpus: Corpus, model: HeadModel
) -> TaskRoles:
    printed_roles = context.run_analysis(corpus, role_analysis(context, False), model=model)
    # The released score is tested against the τ of the printed one.
    tau = float(printed_roles.attrs["tau"])
    released_analysis = role_analysis(context, True, tau)
    released_roles = context.run_analysis(corpus, released_analysis, model=model)
    is_parsed = bool(printed_roles["bias"].sel(role="syntactic").notnull().any())
    return TaskRoles(task, printed_roles, released_roles, is_parsed)
