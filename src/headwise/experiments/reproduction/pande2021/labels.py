"""Figures 4 and 5: which roles occur together, and in which layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xarray as xr

from headwise.analyses.roles.significance import FINE_ROLES
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.pande2021.tasks import (
    TASKS,
    TREES,
    TaskRoles,
    role_results,
)
from headwise.experiments.reproduction.schema import (
    EntryResult,
    ReportRow,
    ReportTable,
    Verdict,
)
from headwise.experiments.reproduction.shared import (
    figures_of_task,
    head_values,
    layer_table,
    layers_at_depth,
    layers_text,
    not_tried,
    registered_figures,
)

# Bounds of the claims: shares of heads, and a rank correlation.
MAX_UNSKILLED = 0.2
MIN_RANK_CORRELATION = 0.7
FEW = 0.25
MOST = 0.5


def has_role(roles: xr.Dataset, role: str) -> np.ndarray:
    """Return which heads have a role, bool `[layer, head]`."""
    return head_values(roles["has_role"].sel(role=role)) > 0


def overlap_share(members: np.ndarray, whole: np.ndarray) -> float:
    """Return the share of the heads in `whole` that are in `members` too; NaN where `whole` is
    empty."""
    if not whole.any():
        return float("nan")
    return float((members & whole).sum() / whole.sum())


def _shares_text(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{task} {100 * share:.1f} %" for task, share in shares.items())


def _mean(values: Mapping[str, float]) -> float:
    return float(np.mean(list(values.values())))


# --- Figure 4 -------------------------------------------------------------------------------------


def overlaps(context: ReproductionContext) -> EntryResult:
    """Figure 4: heads with several roles."""
    results = role_results(context)
    delimiter = {}
    unskilled = {}
    for task_roles in results.tasks:
        delimiter[task_roles.task] = float(has_role(task_roles.roles, "delimiter").mean())
        unskilled[task_roles.task] = float(task_roles.roles.attrs["unskilled"])
    local_of_syntactic = {}
    rank_correlation = {}
    for task_roles in results.syntactic:
        roles = task_roles.roles
        share = overlap_share(has_role(roles, "local"), has_role(roles, "syntactic"))
        if np.isfinite(share):
            local_of_syntactic[task_roles.task] = share
        rank_correlation[task_roles.task] = float(roles.attrs["spearman_local_syntactic"])
    rows = [
        ReportRow("delimiter", 100 * _mean(delimiter), note=_shares_text(delimiter)),
        ReportRow("unskilled", 100 * _mean(unskilled), note=_shares_text(unskilled)),
        *_local_rows(local_of_syntactic),
        *_rank_rows(rank_correlation),
    ]
    verdicts = share_verdicts(delimiter, unskilled, local_of_syntactic, rank_correlation)
    verdicts["nsubj-next"] = direction_verdict(results.syntactic)
    verdicts["block-apart"] = block_verdict(results.tasks, results.syntactic)
    return EntryResult(
        rows,
        [block_table(results.tasks)],
        registered_figures("roles", results.tasks[0].roles, "venn", "overlap"),
        verdicts,
        results.deviations,
        results.inputs,
    )


def _local_rows(local_of_syntactic: Mapping[str, float]) -> list[ReportRow]:
    if not local_of_syntactic:
        keys = ("local-low", "local-high", "local-mean")
        return [ReportRow(key, None, note="no syntactic head") for key in keys]
    shares = list(local_of_syntactic.values())
    note = _shares_text(local_of_syntactic)
    return [
        ReportRow("local-low", 100 * min(shares), note=note),
        ReportRow("local-high", 100 * max(shares), note=note),
        ReportRow("local-mean", 100 * float(np.mean(shares)), note=note),
    ]


def _rank_rows(rank_correlation: Mapping[str, float]) -> list[ReportRow]:
    rows = []
    for task in TASKS:
        note = "" if task in rank_correlation else "its inputs have no trees"
        rows.append(ReportRow(f"spearman-{task}", rank_correlation.get(task), note=note))
    if TREES in rank_correlation:
        label = f"Spearman, {TREES}"
        rows.append(ReportRow(f"spearman-{TREES}", rank_correlation[TREES], label=label))
    return rows


def share_verdicts(
    delimiter: Mapping[str, float],
    unskilled: Mapping[str, float],
    local_of_syntactic: Mapping[str, float],
    rank_correlation: Mapping[str, float],
) -> dict[str, Verdict]:
    """Judge the claims of Figure 4 on shares of heads and rank correlations, by task.

    Parameters
    ----------
    delimiter, unskilled : mapping of str to float
        The share of all heads that are delimiter heads, and that have no role.
    local_of_syntactic : mapping of str to float
        The share of syntactic heads that are local too; empty where no head is syntactic.
    rank_correlation : mapping of str to float
        Spearman's correlation of local and syntactic scores over heads.
    """
    verdicts = {
        "delimiters": Verdict(_shares_text(delimiter), _mean(delimiter) > MOST),
        "few-unskilled": Verdict(_shares_text(unskilled), _mean(unskilled) < MAX_UNSKILLED),
        "local-syntactic": not_tried("no head is syntactic"),
    }
    if local_of_syntactic:
        verdicts["local-syntactic"] = Verdict(
            _shares_text(local_of_syntactic), _mean(local_of_syntactic) > MOST
        )
    ranks_text = ", ".join(f"{task} {value:.2f}" for task, value in rank_correlation.items())
    verdicts["rank"] = Verdict(ranks_text, _mean(rank_correlation) > MIN_RANK_CORRELATION)
    return verdicts


def direction_verdict(with_trees: Sequence[TaskRoles]) -> Verdict:
    """Judge whether nsubj heads attend to the next token and dobj heads to the previous one."""
    if not with_trees:
        return not_tried("no trees")
    parts = []
    as_claimed = []
    for task_roles in with_trees:
        nsubj_next = _count_both(task_roles.roles, "nsubj", "local:next")
        nsubj_prev = _count_both(task_roles.roles, "nsubj", "local:prev")
        dobj_prev = _count_both(task_roles.roles, "dobj", "local:prev")
        dobj_next = _count_both(task_roles.roles, "dobj", "local:next")
        parts.append(
            f"{task_roles.task}: nsubj next {nsubj_next}, prev {nsubj_prev}; "
            f"dobj prev {dobj_prev}, next {dobj_next}"
        )
        as_claimed.append(nsubj_next > nsubj_prev and dobj_prev > dobj_next)
    return Verdict("; ".join(parts), bool(np.mean(as_claimed) > MOST))


def _count_both(roles: xr.Dataset, first: str, second: str) -> int:
    return int((has_role(roles, first) & has_role(roles, second)).sum())


def block_verdict(tasks: Sequence[TaskRoles], with_trees: Sequence[TaskRoles]) -> Verdict:
    """Judge whether few block heads are local or syntactic too."""
    syntactic: np.ndarray | None = None
    if with_trees:
        syntactic = np.any([has_role(task.roles, "syntactic") for task in with_trees], axis=0)
    shares = {}
    for task_roles in tasks:
        block_heads = has_role(task_roles.released, "block")
        if not block_heads.any():
            continue
        other_heads = has_role(task_roles.roles, "local")
        if syntactic is not None:
            other_heads = other_heads | syntactic
        shares[task_roles.task] = overlap_share(other_heads, block_heads)
    if not shares:
        return not_tried("no head is a block head, as released either")
    return Verdict(_shares_text(shares), _mean(shares) < FEW)


def block_table(tasks: Sequence[TaskRoles]) -> ReportTable:
    """Compare block heads by the printed formula and by the released score."""
    rows: list[list[object]] = []
    for task_roles in tasks:
        printed = task_roles.roles["bias"].sel(role="block")
        released = task_roles.released["bias"].sel(role="block")
        if not bool(printed.notnull().any()):
            rows.append([task_roles.task, "one sentence: no block", "", "", "", "", ""])
            continue
        rows.append(
            [
                task_roles.task,
                float(task_roles.roles.attrs["tau"]),
                float(task_roles.roles["ceiling"].sel(role="block").max()),
                float(printed.max()),
                int(has_role(task_roles.roles, "block").sum()),
                float(released.max()),
                int(has_role(task_roles.released, "block").sum()),
            ]
        )
    columns = [
        "task",
        "τ",
        "most a head can reach",
        "highest, printed",
        "block heads",
        "highest, released",
        "block heads ",
    ]
    note = "Released: the bias times the entropy of the row, special tokens included."
    return ReportTable("Block heads by the printed formula and as released", columns, rows, note)


# --- Figure 5 -------------------------------------------------------------------------------------


def grid(context: ReproductionContext) -> EntryResult:
    """Figure 5: the grid of every task, and how many heads of each layer have which role."""
    results = role_results(context)
    figures = []
    columns: dict[str, np.ndarray] = {}
    for task_roles in results.tasks:
        task = task_roles.task
        task_figures = registered_figures("roles", task_roles.roles, "grid")
        figures += figures_of_task(task, task_figures)
        for role in ("local", "delimiter"):
            columns[f"{task}: {role}"] = has_role(task_roles.roles, role).sum(1)
        columns[f"{task}: block (released)"] = has_role(task_roles.released, "block").sum(1)
    for task_roles in results.syntactic:
        syntactic = has_role(task_roles.roles, "syntactic")
        columns[f"{task_roles.task}: syntactic"] = syntactic.sum(1)
    return EntryResult(
        (),
        [layer_table("Heads with each role", columns)],
        figures,
        layer_verdicts(results.tasks, results.syntactic, context.model.layers),
        results.deviations,
        results.inputs,
    )


def layer_verdicts(
    tasks: Sequence[TaskRoles], with_trees: Sequence[TaskRoles], n_layers: int
) -> dict[str, Verdict]:
    """Judge the claims of Figure 5 on the layers of roles.

    Parameters
    ----------
    tasks : sequence of TaskRoles
        The roles on each task's inputs.
    with_trees : sequence of TaskRoles
        The roles on inputs with trees.
    n_layers : int
        The layers of the model.
    """
    # The paper's layers 5 to 9 and 6 to 8 count from 0.
    middle = layers_at_depth(6, 10, n_layers)
    syntactic_middle = layers_at_depth(7, 9, n_layers)
    last_two = layers_at_depth(11, 12, n_layers)
    last_quarter = range(n_layers - max(1, n_layers // 4), n_layers)
    return {
        "multi-middle": _more_heads_verdict(with_trees or tasks, middle, _is_multifunctional),
        "first-layer": _first_layer_verdict(tasks),
        "only-delimiters": _only_delimiters_verdict(tasks, last_quarter),
        "block-zeroth": _zeroth_layer_verdict(tasks),
        "syntactic-middle": _more_heads_verdict(with_trees, syntactic_middle, _is_syntactic),
        "last-two": _last_layers_verdict(with_trees, last_two),
    }


def _all_roles(task_roles: TaskRoles) -> np.ndarray:
    """Return which heads have each of the nine roles, bool `[layer, head, role]`."""
    return np.stack([has_role(task_roles.roles, role) for role in FINE_ROLES], -1)


def _is_multifunctional(task_roles: TaskRoles) -> np.ndarray:
    return np.asarray(_all_roles(task_roles).sum(-1) > 1)


def _is_syntactic(task_roles: TaskRoles) -> np.ndarray:
    return has_role(task_roles.roles, "syntactic")


def _more_heads_verdict(
    results: Sequence[TaskRoles],
    layers: range,
    select_heads: Callable[[TaskRoles], np.ndarray],
) -> Verdict:
    """Judge whether these layers have more selected heads than the other layers, a layer."""
    if not results:
        return not_tried("no inputs have trees")
    inside = []
    outside = []
    for task_roles in results:
        heads_by_layer = select_heads(task_roles).sum(1)
        other_layers = [layer for layer in range(len(heads_by_layer)) if layer not in layers]
        if not other_layers:
            return not_tried("the model has too few layers")
        inside.append(heads_by_layer[list(layers)].mean())
        outside.append(heads_by_layer[other_layers].mean())
    mean_inside = float(np.mean(inside))
    mean_outside = float(np.mean(outside))
    ours = (
        f"{mean_inside:.1f} heads a layer in {layers_text(layers)}, {mean_outside:.1f} in the "
        "others"
    )
    return Verdict(ours, mean_inside > mean_outside)


def _first_layer_verdict(tasks: Sequence[TaskRoles]) -> Verdict:
    shares = []
    for task_roles in tasks:
        is_delimiter = has_role(task_roles.roles, "cls") | has_role(task_roles.roles, "sep")
        shares.append(is_delimiter[0].mean())
    share = float(np.mean(shares))
    return Verdict(f"{100 * share:.0f} % of the first layer's heads", share < FEW)


def _only_delimiters_verdict(tasks: Sequence[TaskRoles], layers: range) -> Verdict:
    """Judge whether most heads with a role in the last layers are delimiter heads and nothing
    else."""
    delimiter_roles = [FINE_ROLES.index("cls"), FINE_ROLES.index("sep")]
    n_skilled = 0
    n_delimiter_only = 0
    for task_roles in tasks:
        roles = _all_roles(task_roles)[list(layers)]
        is_delimiter = roles[..., delimiter_roles].any(-1)
        has_other_role = np.delete(roles, delimiter_roles, -1).any(-1)
        n_skilled += int(roles.any(-1).sum())
        n_delimiter_only += int((is_delimiter & ~has_other_role).sum())
    if not n_skilled:
        return not_tried(f"no head of {layers_text(layers)} has a role")
    ours = f"{n_delimiter_only} of {n_skilled} heads in {layers_text(layers)}"
    return Verdict(ours, n_delimiter_only > n_skilled / 2)


def _zeroth_layer_verdict(tasks: Sequence[TaskRoles]) -> Verdict:
    shares = []
    for task_roles in tasks:
        # A task of single sentences has no blocks.
        if bool(task_roles.released["bias"].sel(role="block").notnull().any()):
            shares.append(has_role(task_roles.released, "block")[0].mean())
    if not shares:
        return not_tried("no task of two sentences")
    share = float(np.mean(shares))
    return Verdict(f"{100 * share:.0f} % of layer 0, as released", share > MOST)


def _last_layers_verdict(with_trees: Sequence[TaskRoles], layers: range) -> Verdict:
    if not with_trees:
        return not_tried("no inputs have trees")
    shares = [_is_syntactic(task_roles)[list(layers)].mean() for task_roles in with_trees]
    share = float(np.mean(shares))
    return Verdict(f"{100 * share:.0f} % of the heads of {layers_text(layers)}", share < FEW)
