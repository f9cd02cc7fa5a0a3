"""Figure 6: what fine-tuning changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import xarray as xr

from headwise.analyses.roles.significance import COARSE_ROLES
from headwise.experiments.comparison import ComparisonOptions, compare
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.pande2021.tasks import (
    RECIPE,
    TASKS,
    role_analysis,
    task_inputs,
)
from headwise.experiments.reproduction.schema import (
    EntryResult,
    ReportRow,
    ReportTable,
    Verdict,
)
from headwise.experiments.reproduction.shared import (
    compute_by_task,
    figures_of_task,
    not_tried,
    only_if_trained,
    registered_figures,
)

INITIAL = "initial"
MIDDLE = "middle"
FINAL = "final"


def changes(context: ReproductionContext) -> EntryResult:
    """Figure 6: mean change of the bias in thirds of the layers, and the roles gained and lost."""
    by_task, deviations = compute_by_task(TASKS, partial(_change_of_task, context))
    figures = []
    for task, change in by_task.items():
        task_figures = registered_figures("change_roles", change, "thirds", "gained-lost")
        figures += figures_of_task(task, task_figures)
    return EntryResult(
        _change_rows(by_task),
        [_role_table(by_task)],
        figures,
        only_if_trained(context, change_verdicts(by_task), by_task),
        deviations,
    )


def _change_of_task(context: ReproductionContext, task: str) -> tuple[xr.Dataset, list[str]]:
    context.data.path(f"glue-{task}-dev")  # raises where the inputs are missing
    with context.open_finetuned(task, RECIPE) as (model, origin):
        corpus, deviations = task_inputs(context, task, model)

        def compare_roles() -> xr.Dataset:
            options = ComparisonOptions(
                analyses=(role_analysis(context, False),),
                names=("pre-trained", task),
                limit=None,
                seed=context.seed,
            )
            return compare([context.model, model], corpus, options=options)["change_roles"]

        identity = {"inputs": corpus.fingerprint(), "model": model.identity()}
        change = context.stored_dataset(f"change-{task}", identity, compare_roles)
    return change, [f"{origin}.", *deviations]


def change_in_third(change: xr.Dataset, role: str, third: str) -> tuple[float, float, float]:
    """Return the change of a role's mean bias in a third of the layers, with its interval."""
    cell = change.isel(model=0).sel(role=role, third=third)
    return (
        float(cell["bias_third_change"]),
        float(cell["bias_third_change_low"]),
        float(cell["bias_third_change_high"]),
    )


def _present_roles(change: xr.Dataset) -> list[str]:
    return [role for role in COARSE_ROLES if role in change["role"].values]


def _change_rows(by_task: Mapping[str, xr.Dataset]) -> list[ReportRow]:
    rows = []
    for task, change in by_task.items():
        for role in _present_roles(change):
            for third in (INITIAL, MIDDLE, FINAL):
                value, low, high = change_in_third(change, role, third)
                if np.isfinite(value):
                    label = f"{task}, {role}, {third} third: change of mean bias"
                    rows.append(ReportRow(f"{task}-{role}-{third}", value, low, high, label=label))
    return rows


def _role_table(by_task: Mapping[str, xr.Dataset]) -> ReportTable:
    rows = []
    for task, change in by_task.items():
        finetuned = change.isel(model=0)
        for role in map(str, change["role"].values):
            n_heads = change["role_count"].sel(role=role)
            before = int(n_heads[0])
            after = int(n_heads[1])
            if not before and not after:
                continue
            row = [task, role, before, after]
            for name in ("gained", "lost", "gained_sure", "lost_sure"):
                row.append(int(finetuned[f"{name}_count"].sel(role=role).sum()))
            rows.append(row)
    columns = [
        "task",
        "role",
        "before",
        "after",
        "gained",
        "lost",
        "gained, significant",
        "lost, significant",
    ]
    note = (
        "Heads with the role, by the τ of the pre-trained model; significant: the bias changed "
        "that way, corrected p < 0.05."
    )
    return ReportTable("Roles gained and lost by fine-tuning", columns, rows, note)


def change_verdicts(by_task: Mapping[str, xr.Dataset]) -> dict[str, Verdict]:
    """Judge the claims on fine-tuning from the change of bias, by task."""
    return {
        "delimiter-falls": _final_third_verdict(by_task, "delimiter", sign=-1),
        "block-rises": _final_third_verdict(by_task, "block", sign=1),
        "sep-not-cls": _sep_not_cls_verdict(by_task),
        "initial-stays": _initial_stays_verdict(by_task),
    }


def _final_third_verdict(by_task: Mapping[str, xr.Dataset], role: str, sign: int) -> Verdict:
    """Judge whether a role's bias rises (1) or falls (-1) in the final third on every task, with
    its whole interval."""
    parts = []
    as_claimed = []
    for task, change in by_task.items():
        value, low, high = change_in_third(change, role, FINAL)
        if np.isfinite(value):
            parts.append(f"{task} {value:+.2f} ({low:+.2f} to {high:+.2f})")
            as_claimed.append(sign * value > 0 and sign * low > 0 and sign * high > 0)
    if not parts:
        return not_tried(f"no input has the role {role}")
    return Verdict(", ".join(parts), all(as_claimed))


def _sep_not_cls_verdict(by_task: Mapping[str, xr.Dataset]) -> Verdict:
    """Judge whether the bias to [SEP] falls, by more than that to [CLS] moves, on every task."""
    parts = []
    as_claimed = []
    for task, change in by_task.items():
        to_sep, _, _ = change_in_third(change, "sep", FINAL)
        to_cls, _, _ = change_in_third(change, "cls", FINAL)
        parts.append(f"{task}: sep {to_sep:+.2f}, cls {to_cls:+.2f}")
        as_claimed.append(to_sep < 0 and -to_sep > abs(to_cls))
    return Verdict(", ".join(parts), all(as_claimed))


def _initial_stays_verdict(by_task: Mapping[str, xr.Dataset]) -> Verdict:
    """Judge whether every role changes less than half as much in the initial third as in the
    final one."""
    parts = []
    as_claimed = []
    for task, change in by_task.items():
        for role in _present_roles(change):
            initial, _, _ = change_in_third(change, role, INITIAL)
            final, _, _ = change_in_third(change, role, FINAL)
            if np.isfinite(initial) and np.isfinite(final):
                parts.append(f"{task} {role} {initial:+.2f} and {final:+.2f}")
                as_claimed.append(abs(initial) < abs(final) / 2)
    return Verdict("; ".join(parts), bool(as_claimed) and all(as_claimed))
