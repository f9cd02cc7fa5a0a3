"""Figures 4 and 5: which roles occur together, and in which layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.pande2021 import claims
from headwise.experiments.reproduction.pande2021.claims import has_role
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
)
from headwise.experiments.reproduction.shared import (
    evidence_on_learned,
    figures_of_task,
    layer_table,
    registered_figures,
)

OVERLAP_CLAIMS = (
    "delimiters",
    "few-unskilled",
    "local-syntactic",
    "rank",
    "nsubj-next",
    "block-apart",
)
LAYER_CLAIMS = (
    "multi-middle",
    "first-layer",
    "only-delimiters",
    "block-zeroth",
    "syntactic-middle",
    "last-two",
)


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
    evidence = evidence_on_learned(
        context,
        OVERLAP_CLAIMS,
        results.by_task,
        results.not_learned,
        lambda learned: claims.overlap_evidence(list(learned.values()), results.syntactic),
    )
    figures = []
    for task_roles in results.with_trees:
        task_figures = registered_figures("roles", task_roles.roles, "venn", "overlap")
        figures += figures_of_task(task_roles.task, task_figures)
    return EntryResult(
        rows,
        [block_table(results.tasks)],
        figures,
        evidence,
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
        evidence_on_learned(
            context,
            LAYER_CLAIMS,
            results.by_task,
            results.not_learned,
            lambda learned: claims.layer_evidence(
                list(learned.values()), results.syntactic, context.model.layers
            ),
        ),
        results.deviations,
        results.inputs,
    )
