"""The claims of Pande et al. 2021: from measured numbers to evidence for each sentence.

The rules, with their bounds, stand beside the sentences in `printed/pande2021.json`. A count of
heads with a role is no sample: each head was tested. Its uncertainty lies in the inputs, of which
every rule needs a least number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from headwise.analyses.roles.significance import COARSE_ROLES, FINE_ROLES
from headwise.experiments.reproduction.estimates import (
    Estimate,
    Outcome,
    all_of,
    any_of,
    more_than_half,
    on_tasks,
    outcome_of,
)
from headwise.experiments.reproduction.pande2021.tasks import TASKS, TREES, TaskRoles
from headwise.experiments.reproduction.printed import bounds_of
from headwise.experiments.reproduction.rules import Evidence, cannot_try
from headwise.experiments.reproduction.shared import head_values, layers_at_depth, layers_text

PAPER = "pande2021"
PAIR_TASKS = ("QNLI", "QQP", "MRPC")  # tasks with two sentences, which can have blocks
MIDDLE_TASKS = ("QNLI", "MRPC", "SST-2")  # tasks with most multi-skilled heads in the middle
INITIAL = "initial"
FINAL = "final"
NO_TREES = "no inputs have trees"


def has_role(roles: xr.Dataset, role: str) -> np.ndarray:
    """Return which heads have a role, bool `[layer, head]`."""
    return np.asarray(head_values(roles["has_role"].sel(role=role)) > 0)


def all_roles(task_roles: TaskRoles) -> np.ndarray:
    """Return which heads have each of the nine roles, bool `[layer, head, role]`."""
    return np.stack([has_role(task_roles.roles, role) for role in FINE_ROLES], -1)


def is_multifunctional(task_roles: TaskRoles) -> np.ndarray:
    """Return which heads have more than one of the nine roles, bool `[layer, head]`."""
    return np.asarray(all_roles(task_roles).sum(-1) > 1)


def is_syntactic(task_roles: TaskRoles) -> np.ndarray:
    """Return which heads are syntactic, bool `[layer, head]`."""
    return has_role(task_roles.roles, "syntactic")


def missing_text(tasks: Iterable[str], paper_tasks: Sequence[str] = TASKS) -> str:
    """Name the paper's tasks that are not among `tasks`: not run, or nothing was learned."""
    present = set(tasks)
    missing = [task for task in paper_tasks if task not in present]
    return f"no result of {', '.join(missing)}" if missing else ""


def on_parsed_tasks(
    outcomes: Mapping[str, Outcome], paper_tasks: Sequence[str] = TASKS
) -> tuple[Outcome, Outcome]:
    """Return whether a condition holds on all of the paper's tasks, and on all inputs with trees.

    A treebank that stands in for tasks without trees is none of the paper's tasks: it speaks
    neither for the sentence as printed nor against it.
    """
    of_tasks = {task: outcome for task, outcome in outcomes.items() if task != TREES}
    printed = Outcome.OPEN
    if of_tasks:
        printed, _ = on_tasks(of_tasks, paper_tasks)
    return printed, all_of(outcomes.values())


def without_trees_text(outcomes: Mapping[str, Outcome], paper_tasks: Sequence[str] = TASKS) -> str:
    """Name the paper's tasks without trees, and say where the treebank speaks against the claim."""
    missing = [task for task in paper_tasks if task not in outcomes]
    if not missing:
        return ""
    text = f"no trees of {', '.join(missing)}"
    if outcomes.get(TREES) is Outcome.FALSE:
        text += "; on the treebank it is not so"
    return text


def _fewest_inputs(tasks: Sequence[TaskRoles]) -> dict[str, int]:
    """Return the smallest number of inputs of a task, as a sample."""
    return {"inputs": min(int(task_roles.roles.attrs["inputs"]) for task_roles in tasks)}


@dataclass(frozen=True, slots=True)
class HeadCount:
    """How many heads of a group have a property."""

    count: int
    total: int

    @classmethod
    def of(cls, mask: np.ndarray) -> HeadCount:
        return cls(int(mask.sum()), mask.size)

    @property
    def share(self) -> float:
        return self.count / self.total if self.total else float("nan")

    @property
    def text(self) -> str:
        return f"{self.count} of {self.total}"


def _counts_text(counts: Mapping[str, HeadCount]) -> str:
    return ", ".join(f"{task} {count.text}" for task, count in counts.items())


def _mean_share(counts: Mapping[str, HeadCount]) -> float:
    return float(np.mean([count.share for count in counts.values()]))


# --- Figures 2 and 3 ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SkewCounts:
    """How many distributions of scores there are over heads and roles, how many are skewed and
    broad, how many roles the mean alone gives, and the inputs behind them."""

    skewed_and_broad: int
    total: int
    by_mean_only: int
    n_inputs: int


def score_evidence(counts: SkewCounts) -> dict[str, Evidence]:
    """Return the evidence on the distribution of scores over inputs."""
    sample = {"inputs": counts.n_inputs}
    averages = bounds_of(PAPER, "averages")
    n_roles = counts.by_mean_only
    return {
        "skewed": Evidence(
            f"{counts.skewed_and_broad} of {counts.total} heads and roles",
            outcome_of(counts.skewed_and_broad >= bounds_of(PAPER, "skewed")["heads"]),
            {},
            sample,
        ),
        "averages": Evidence(
            f"{n_roles} roles of heads, over all tasks",
            outcome_of(n_roles >= averages["roles"]),
            {"one": outcome_of(n_roles >= 1)},
            sample,
        ),
    }


def bimodal_evidence(p_values: np.ndarray, n_inputs: int) -> dict[str, Evidence]:
    """Return the evidence on how p-values are distributed."""
    bounds = bounds_of(PAPER, "bimodal")
    known = p_values[np.isfinite(p_values)]
    n_near_zero = int((known <= bounds["end"]).sum())
    n_near_one = int((known >= 1 - bounds["end"]).sum())
    n_between = len(known) - n_near_zero - n_near_one
    ours = (
        f"{n_between} of {len(known)} between the ends ({100 * n_between / max(len(known), 1):.1f} "
        f"%), {n_near_zero} near 0, {n_near_one} near 1"
    )
    few_between = n_between <= bounds["share"] * len(known)
    both_ends = min(n_near_zero, n_near_one) >= bounds["share"] * len(known)
    weaker = {"tenth": outcome_of(both_ends and n_between <= bounds["tenth"] * len(known))}
    printed = outcome_of(few_between and both_ends)
    return {"bimodal": Evidence(ours, printed, weaker, {"inputs": n_inputs})}


# --- Figure 4 -------------------------------------------------------------------------------------


def overlap_evidence(
    tasks: Sequence[TaskRoles], with_trees: Sequence[TaskRoles]
) -> dict[str, Evidence]:
    """Return the evidence on heads with several roles.

    Parameters
    ----------
    tasks : sequence of TaskRoles
        The roles on each task's inputs.
    with_trees : sequence of TaskRoles
        The roles on inputs with trees: the same tasks where they are parsed, else a treebank.
    """
    return {
        "delimiters": _delimiter_evidence(tasks),
        "few-unskilled": _unskilled_evidence(tasks),
        "local-syntactic": _local_syntactic_evidence(with_trees),
        "rank": _rank_evidence(with_trees),
        "nsubj-next": _direction_evidence(with_trees),
        "block-apart": _block_apart_evidence(tasks, with_trees),
    }


def _delimiter_evidence(tasks: Sequence[TaskRoles]) -> Evidence:
    share = bounds_of(PAPER, "delimiters")["share"]
    counts = {}
    for task_roles in tasks:
        counts[task_roles.task] = HeadCount.of(has_role(task_roles.roles, "delimiter"))
    outcomes = {task: outcome_of(count.share > share) for task, count in counts.items()}
    printed, on_run = on_tasks(outcomes, TASKS)
    return Evidence(
        f"{_counts_text(counts)} heads",
        printed,
        {"run": on_run, "mean": outcome_of(_mean_share(counts) > share)},
        _fewest_inputs(tasks),
        open_because=missing_text(outcomes),
    )


def _unskilled_evidence(tasks: Sequence[TaskRoles]) -> Evidence:
    bounds = bounds_of(PAPER, "few-unskilled")
    counts = {}
    for task_roles in tasks:
        n_heads = task_roles.roles.sizes["layer"] * task_roles.roles.sizes["head"]
        n_unskilled = round(float(task_roles.roles.attrs["unskilled"]) * n_heads)
        counts[task_roles.task] = HeadCount(n_unskilled, n_heads)
    mean = _mean_share(counts)
    few = outcome_of(mean < bounds["share"])
    missing = missing_text(counts)
    printed = Outcome.OPEN if missing and few is Outcome.TRUE else few
    return Evidence(
        f"{_counts_text(counts)} heads, {100 * mean:.1f} % on average",
        printed,
        {"run": few, "fifth": outcome_of(mean < bounds["fifth"])},
        _fewest_inputs(tasks),
        open_because=missing,
    )


def _local_syntactic_evidence(with_trees: Sequence[TaskRoles]) -> Evidence:
    if not with_trees:
        return cannot_try(NO_TREES)
    bounds = bounds_of(PAPER, "local-syntactic")
    counts = {}
    outcomes = {}
    for task_roles in with_trees:
        roles = task_roles.roles
        syntactic = has_role(roles, "syntactic")
        count = HeadCount.of(has_role(roles, "local")[syntactic])
        counts[task_roles.task] = count
        if count.total < bounds["heads"]:
            outcomes[task_roles.task] = Outcome.OPEN
            continue
        overlap = roles["overlap_p_adjusted"].sel(role="local", role_b="syntactic")
        is_significant = float(overlap) < bounds["p"]
        outcomes[task_roles.task] = outcome_of(count.share > bounds["share"] and is_significant)
    printed, on_run = on_parsed_tasks(outcomes)
    too_few = any(count.total < bounds["heads"] for count in counts.values())
    why = without_trees_text(outcomes)
    if too_few:
        why = f"fewer than {bounds['heads']:g} syntactic heads"
    return Evidence(
        f"{_counts_text(counts)} syntactic heads are local",
        printed,
        {"run": on_run},
        _fewest_inputs(with_trees),
        open_because=why,
    )


def _rank_evidence(with_trees: Sequence[TaskRoles]) -> Evidence:
    if not with_trees:
        return cannot_try(NO_TREES)
    bounds = bounds_of(PAPER, "rank")
    correlations = {}
    for task_roles in with_trees:
        correlations[task_roles.task] = float(task_roles.roles.attrs["spearman_local_syntactic"])
    very_high = {
        task: outcome_of(value >= bounds["lowest"]) for task, value in correlations.items()
    }
    high = {task: outcome_of(value > bounds["high"]) for task, value in correlations.items()}
    printed, on_run = on_parsed_tasks(very_high)
    return Evidence(
        ", ".join(f"{task} {value:.2f}" for task, value in correlations.items()),
        printed,
        {"run": on_run, "high": all_of(high.values())},
        _fewest_inputs(with_trees),
        open_because=without_trees_text(very_high),
    )


def _direction_evidence(with_trees: Sequence[TaskRoles]) -> Evidence:
    """Return the evidence on whether nsubj heads attend ahead and dobj heads back."""
    if not with_trees:
        return cannot_try(NO_TREES)
    bounds = bounds_of(PAPER, "nsubj-next")
    overlaps = {}
    more_that_way = {}
    parts = []
    too_few = ""
    for task_roles in with_trees:
        in_claim = []
        more = []
        for role, claimed, other in (
            ("nsubj", "local:next", "local:prev"),
            ("dobj", "local:prev", "local:next"),
        ):
            with_role = has_role(task_roles.roles, role)
            n_claimed = int((with_role & has_role(task_roles.roles, claimed)).sum())
            n_other = int((with_role & has_role(task_roles.roles, other)).sum())
            total = int(with_role.sum())
            parts.append(
                f"{task_roles.task}: of {total} {role} heads {n_claimed} {claimed}, {n_other} {other}"
            )
            if total < bounds["heads"]:
                too_few = f"fewer than {bounds['heads']:g} {role} heads"
                in_claim.append(Outcome.OPEN)
                more.append(Outcome.OPEN)
            else:
                in_claim.append(outcome_of(n_claimed > bounds["share"] * total))
                more.append(outcome_of(n_claimed > n_other))
        overlaps[task_roles.task] = all_of(in_claim)
        more_that_way[task_roles.task] = all_of(more)
    printed, on_run = on_parsed_tasks(overlaps)
    return Evidence(
        "; ".join(parts),
        printed,
        {"run": on_run, "more": all_of(more_that_way.values())},
        _fewest_inputs(with_trees),
        open_because=too_few or without_trees_text(overlaps),
    )


def _block_apart_evidence(tasks: Sequence[TaskRoles], with_trees: Sequence[TaskRoles]) -> Evidence:
    """Return the evidence on whether block heads are local or syntactic too."""
    if not with_trees:
        return cannot_try(NO_TREES)
    bounds = bounds_of(PAPER, "block-apart")
    by_task = {task_roles.task: task_roles for task_roles in with_trees}
    counts = {}
    for task_roles in tasks:
        block_heads = has_role(task_roles.released, "block")
        if not block_heads.any():
            continue
        # Where the task is not parsed, the treebank's syntactic heads stand for its own.
        trees = by_task.get(task_roles.task, by_task.get(TREES, with_trees[0]))
        other_heads = has_role(task_roles.roles, "local") | is_syntactic(trees)
        counts[task_roles.task] = HeadCount.of(other_heads[block_heads])
    if not counts:
        return Evidence(undecided="no head is a block head, as released either")
    marginal = {}
    for task, count in counts.items():
        marginal[task] = outcome_of(count.share < bounds["share"])
        if count.total < bounds["heads"]:
            marginal[task] = Outcome.OPEN
    printed, on_run = on_tasks(marginal, PAIR_TASKS)
    why = missing_text(marginal, PAIR_TASKS)
    is_small = outcome_of(_mean_share(counts) < bounds["quarter"])
    if Outcome.OPEN in marginal.values():
        why = f"fewer than {bounds['heads']:g} block heads"
        is_small = Outcome.OPEN
    return Evidence(
        f"{_counts_text(counts)} block heads",
        printed,
        {"run": on_run, "quarter": is_small},
        _fewest_inputs(tasks),
        open_because=why,
    )


# --- Figure 5 -------------------------------------------------------------------------------------


def layer_evidence(
    tasks: Sequence[TaskRoles], with_trees: Sequence[TaskRoles], n_layers: int
) -> dict[str, Evidence]:
    """Return the evidence on the layers of roles; parameters as in `overlap_evidence`, and the
    number of layers of the model."""
    # The paper's layers 5 to 9 and 6 to 8 count from 0.
    middle = layers_at_depth(6, 10, n_layers)
    syntactic_middle = layers_at_depth(7, 9, n_layers)
    last_two = layers_at_depth(11, 12, n_layers)
    last_three = layers_at_depth(10, 12, n_layers)
    return {
        "multi-middle": _multi_middle_evidence(with_trees, middle),
        "first-layer": _first_layer_evidence(tasks),
        "only-delimiters": _only_delimiters_evidence(tasks, last_three),
        "block-zeroth": _zeroth_layer_evidence(tasks),
        "syntactic-middle": _syntactic_middle_evidence(with_trees, syntactic_middle),
        "last-two": _last_layers_evidence(with_trees, last_two),
    }


def _inside_and_outside(
    task_roles: TaskRoles, layers: range, select_heads: Callable[[TaskRoles], np.ndarray]
) -> tuple[float, float]:
    """Return how many selected heads a layer has, in these layers and in the others."""
    heads_by_layer = select_heads(task_roles).sum(1)
    other_layers = [layer for layer in range(len(heads_by_layer)) if layer not in layers]
    return float(heads_by_layer[list(layers)].mean()), float(heads_by_layer[other_layers].mean())


def _multi_middle_evidence(with_trees: Sequence[TaskRoles], layers: range) -> Evidence:
    if not with_trees:
        return cannot_try(NO_TREES)
    if len(layers) == with_trees[0].roles.sizes["layer"]:
        return cannot_try("the model has too few layers")
    higher = {}
    parts = []
    for task_roles in with_trees:
        inside, outside = _inside_and_outside(task_roles, layers, is_multifunctional)
        parts.append(f"{task_roles.task} {inside:.1f} and {outside:.1f}")
        higher[task_roles.task] = outcome_of(inside > outside)
    named = {task: outcome for task, outcome in higher.items() if task != "QQP"}
    printed, on_run = on_parsed_tasks(named, MIDDLE_TASKS)
    return Evidence(
        f"heads a layer in {layers_text(layers)} and in the others: {', '.join(parts)}",
        printed,
        {"run": on_run},
        _fewest_inputs(with_trees),
        open_because=without_trees_text(named, MIDDLE_TASKS),
    )


def _first_layer_evidence(tasks: Sequence[TaskRoles]) -> Evidence:
    bounds = bounds_of(PAPER, "first-layer")
    counts = {}
    for task_roles in tasks:
        is_delimiter = has_role(task_roles.roles, "cls") | has_role(task_roles.roles, "sep")
        counts[task_roles.task] = HeadCount.of(is_delimiter[0])
    few = {task: outcome_of(count.share <= bounds["share"]) for task, count in counts.items()}
    printed, on_run = on_tasks(few, TASKS)
    return Evidence(
        f"{_counts_text(counts)} heads of the first layer",
        printed,
        {"run": on_run, "quarter": outcome_of(_mean_share(counts) < bounds["quarter"])},
        _fewest_inputs(tasks),
        open_because=missing_text(few),
    )


def _only_delimiters_evidence(tasks: Sequence[TaskRoles], layers: range) -> Evidence:
    """Return the evidence on whether heads of the last layers are delimiter heads and nothing
    else."""
    share = bounds_of(PAPER, "only-delimiters")["share"]
    delimiter_roles = [FINE_ROLES.index("cls"), FINE_ROLES.index("sep")]
    counts = {}
    for task_roles in tasks:
        roles = all_roles(task_roles)[list(layers)]
        is_skilled = roles.any(-1)
        is_delimiter = roles[..., delimiter_roles].any(-1)
        has_other_role = np.delete(roles, delimiter_roles, -1).any(-1)
        only_delimiter = np.logical_and(is_delimiter, np.logical_not(has_other_role))
        if is_skilled.any():
            counts[task_roles.task] = HeadCount.of(only_delimiter[is_skilled])
    if not counts:
        return Evidence(undecided=f"no head of {layers_text(layers)} has a role")
    mostly = {task: outcome_of(count.share > share) for task, count in counts.items()}
    printed, on_run = on_tasks(mostly, TASKS)
    return Evidence(
        f"{_counts_text(counts)} heads with a role in {layers_text(layers)}",
        printed,
        {"run": on_run, "mean": outcome_of(_mean_share(counts) > share)},
        _fewest_inputs(tasks),
        open_because=missing_text(mostly),
    )


def _zeroth_layer_evidence(tasks: Sequence[TaskRoles]) -> Evidence:
    bounds = bounds_of(PAPER, "block-zeroth")
    counts = {}
    more_than_later = []
    for task_roles in tasks:
        # A task of single sentences has no blocks.
        if bool(task_roles.released["bias"].sel(role="block").notnull().any()):
            blocks = has_role(task_roles.released, "block")
            counts[task_roles.task] = HeadCount.of(blocks[0])
            is_more = outcome_of(blocks[0].mean() > blocks[1:].mean())
            # One head or two say nothing of layers.
            more_than_later.append(is_more if blocks.sum() >= bounds["heads"] else Outcome.OPEN)
    if not counts:
        return cannot_try("no task of two sentences")
    prevalent = {task: outcome_of(count.share > bounds["share"]) for task, count in counts.items()}
    printed, on_run = on_tasks(prevalent, PAIR_TASKS)
    return Evidence(
        f"{_counts_text(counts)} heads of layer 0, as released",
        printed,
        {"run": on_run, "more": all_of(more_than_later)},
        _fewest_inputs(tasks),
        open_because=missing_text(prevalent, PAIR_TASKS),
    )


def _syntactic_middle_evidence(with_trees: Sequence[TaskRoles], layers: range) -> Evidence:
    if not with_trees:
        return cannot_try(NO_TREES)
    if len(layers) == with_trees[0].roles.sizes["layer"]:
        return cannot_try("the model has too few layers")
    least = bounds_of(PAPER, "syntactic-middle")["heads"]
    higher = {}
    parts = []
    too_few = ""
    for task_roles in with_trees:
        n_syntactic = int(is_syntactic(task_roles).sum())
        inside, outside = _inside_and_outside(task_roles, layers, is_syntactic)
        parts.append(f"{task_roles.task} {inside:.1f} and {outside:.1f} ({n_syntactic} in all)")
        higher[task_roles.task] = outcome_of(inside > outside)
        if n_syntactic < least:
            higher[task_roles.task] = Outcome.OPEN
            too_few = f"fewer than {least:g} syntactic heads"
    printed, on_run = on_parsed_tasks(higher)
    return Evidence(
        f"heads a layer in {layers_text(layers)} and in the others: {', '.join(parts)}",
        printed,
        {"run": on_run},
        _fewest_inputs(with_trees),
        open_because=too_few or without_trees_text(higher),
    )


def _last_layers_evidence(with_trees: Sequence[TaskRoles], layers: range) -> Evidence:
    if not with_trees:
        return cannot_try(NO_TREES)
    bounds = bounds_of(PAPER, "last-two")
    either = {}
    syntactic = {}
    few_syntactic = []
    for task_roles in with_trees:
        of_syntax = is_syntactic(task_roles)[list(layers)]
        of_several = is_multifunctional(task_roles)[list(layers)]
        either[task_roles.task] = HeadCount.of(of_syntax | of_several)
        syntactic[task_roles.task] = HeadCount.of(of_syntax)
        is_few = outcome_of(syntactic[task_roles.task].share <= bounds["share"])
        # Where hardly any head is syntactic, few of these layers are no finding.
        has_enough = is_syntactic(task_roles).sum() >= bounds["heads"]
        few_syntactic.append(is_few if has_enough else Outcome.OPEN)
    few = {task: outcome_of(count.share <= bounds["share"]) for task, count in either.items()}
    printed, on_run = on_parsed_tasks(few)
    return Evidence(
        f"{_counts_text(either)} heads of {layers_text(layers)}, {_counts_text(syntactic)} syntactic",
        printed,
        {"run": on_run, "syntactic": all_of(few_syntactic)},
        _fewest_inputs(with_trees),
        open_because=without_trees_text(few),
    )


# --- Figure 6 -------------------------------------------------------------------------------------


def change_in_third(change: xr.Dataset, role: str, third: str) -> Estimate:
    """Return the change of a role's mean bias in a third of the layers, with its interval."""
    cell = change.isel(model=0).sel(role=role, third=third)
    return Estimate(
        float(cell["bias_third_change"]),
        float(cell["bias_third_change_low"]),
        float(cell["bias_third_change_high"]),
    )


def present_roles(change: xr.Dataset) -> list[str]:
    """Return the coarse roles of a comparison."""
    return [role for role in COARSE_ROLES if role in change["role"].values]


def change_evidence(changes: Mapping[str, xr.Dataset], n_inputs: int) -> dict[str, Evidence]:
    """Return the evidence on what fine-tuning changes, from the change of bias by task."""
    sample = {"inputs": n_inputs}
    return {
        "delimiter-falls": _final_third_evidence(changes, "delimiter", -1, TASKS, sample),
        "block-rises": _final_third_evidence(changes, "block", 1, PAIR_TASKS, sample),
        "sep-not-cls": _sep_not_cls_evidence(changes, sample),
        "initial-stays": _initial_stays_evidence(changes, sample),
    }


def _final_third_evidence(
    changes: Mapping[str, xr.Dataset],
    role: str,
    sign: int,
    paper_tasks: Sequence[str],
    sample: Mapping[str, int],
) -> Evidence:
    """Return the evidence on whether a role's bias rises (1) or falls (-1) in the final third."""
    outcomes = {}
    parts = []
    for task, change in changes.items():
        estimate = change_in_third(change, role, FINAL)
        if np.isfinite(estimate.value):
            parts.append(f"{task} {estimate.text('+.2f')}")
            outcomes[task] = estimate.above(0) if sign > 0 else estimate.below(0)
    if not outcomes:
        return cannot_try(f"no input has the role {role}")
    printed, on_run = on_tasks(outcomes, paper_tasks)
    return Evidence(
        ", ".join(parts),
        printed,
        {"run": on_run, "some": any_of(outcomes.values())},
        sample,
        open_because=missing_text(outcomes, paper_tasks),
    )


def _sep_not_cls_evidence(changes: Mapping[str, xr.Dataset], sample: Mapping[str, int]) -> Evidence:
    share = bounds_of(PAPER, "sep-not-cls")["share"]
    outcomes = {}
    falls_more = {}
    parts = []
    for task, change in changes.items():
        to_sep = change_in_third(change, "sep", FINAL)
        to_cls = change_in_third(change, "cls", FINAL)
        parts.append(f"{task}: [SEP] {to_sep.text('+.2f')}, [CLS] {to_cls.text('+.2f')}")
        falls = to_sep.below(0)
        # [CLS] moves, either way, by less than a share of the fall of [SEP].
        fall = Estimate(-to_sep.value, -to_sep.high, -to_sep.low)
        moves = to_cls.size()
        outcomes[task] = all_of([falls, moves.minus(fall.times(share)).below(0)])
        falls_more[task] = all_of([falls, moves.minus(fall).below(0)])
    printed, on_run = on_tasks(outcomes, TASKS)
    return Evidence(
        "; ".join(parts),
        printed,
        {"run": on_run, "more": all_of(falls_more.values())},
        sample,
        open_because=missing_text(outcomes),
    )


def _initial_stays_evidence(
    changes: Mapping[str, xr.Dataset], sample: Mapping[str, int]
) -> Evidence:
    share = bounds_of(PAPER, "initial-stays")["share"]
    by_task = {}
    all_cells = []
    parts = []
    for task, change in changes.items():
        cells = []
        for role in present_roles(change):
            initial = change_in_third(change, role, INITIAL)
            final = change_in_third(change, role, FINAL)
            if np.isfinite(initial.value) and np.isfinite(final.value):
                parts.append(f"{task} {role} {initial.value:+.2f} and {final.value:+.2f}")
                cells.append(outcome_of(abs(initial.value) < share * abs(final.value)))
        all_cells += cells
        by_task[task] = all_of(cells)
    if not all_cells:
        return cannot_try("no role has a bias in both thirds")
    printed, on_run = on_tasks(by_task, TASKS)
    return Evidence(
        f"initial and final third: {'; '.join(parts)}",
        printed,
        {"run": on_run, "most": more_than_half(all_cells)},
        sample,
        open_because=missing_text(by_task),
    )
