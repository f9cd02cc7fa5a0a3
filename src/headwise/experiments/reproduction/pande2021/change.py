"""Figure 6: what fine-tuning changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import xarray as xr

from headwise.experiments.comparison import ComparisonOptions, compare
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.pande2021 import claims
from headwise.experiments.reproduction.pande2021.tasks import (
    RECIPE,
    TASKS,
    role_analysis,
    task_inputs,
)
from headwise.experiments.reproduction.rules import Evidence
from headwise.experiments.reproduction.schema import (
    EntryResult,
    ReportRow,
    ReportTable,
)
from headwise.experiments.reproduction.shared import (
    compute_by_task,
    evidence_on_learned,
    figures_of_task,
    registered_figures,
)

CLAIMS = ("delimiter-falls", "block-rises", "sep-not-cls", "initial-stays")
THIRDS = ("initial", "middle", "final")


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
        _evidence(context, by_task),
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


def _evidence(
    context: ReproductionContext, by_task: Mapping[str, xr.Dataset]
) -> dict[str, Evidence]:
    not_learned = {}
    for task in by_task:
        reason = context.why_nothing_learned(task, RECIPE)
        if reason:
            not_learned[task] = reason

    def gather(changes: Mapping[str, xr.Dataset]) -> dict[str, Evidence]:
        n_inputs = [int(change["bias_third_change_n"].max()) for change in changes.values()]
        return claims.change_evidence(changes, min(n_inputs))

    return evidence_on_learned(context, CLAIMS, by_task, not_learned, gather)


def _change_rows(by_task: Mapping[str, xr.Dataset]) -> list[ReportRow]:
    rows = []
    for task, change in by_task.items():
        for role in claims.present_roles(change):
            for third in THIRDS:
                bias = claims.change_in_third(change, role, third)
                if np.isfinite(bias.value):
                    key = f"{task}-{role}-{third}"
                    label = f"{task}, {role}, {third} third: change of mean bias"
                    rows.append(ReportRow(key, bias.value, bias.low, bias.high, label=label))
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
