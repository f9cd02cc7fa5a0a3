"""Figure 6: what fine-tuning changes."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headwise.analyses.roles.significance import COARSE_ROLES
from headwise.experiments.comparison import ComparisonOptions, compare
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.pande2021.tasks import TASKS, roles, task_inputs
from headwise.experiments.reproduction.schema import Outcome, Row, Table, Verdict
from headwise.experiments.reproduction.shared import judged, of_each, of_task, pictures, untried

FINAL, INITIAL = "final", "initial"


def changes(bench: Bench) -> Outcome:
    """Figure 6: mean change of the bias in thirds of the layers, and the roles gained and lost."""

    def ask(task: str) -> tuple[xr.Dataset, list[str]]:
        bench.data.path(f"glue-{task}-dev")
        with bench.finetuned(task, "pande") as (model, told):
            corpus, sizes = task_inputs(bench, task, model)

            def make() -> xr.Dataset:
                options = ComparisonOptions(
                    (roles(bench, False),), ("pre-trained", task), limit=None, seed=bench.seed
                )
                return compare([bench.model, model], corpus, options)["change_roles"]

            about = {"inputs": corpus.fingerprint(), "model": model.identity()}
            return bench.dataset(f"change-{task}", about, make), [f"{told}.", *sizes]

    found, differs = of_each(TASKS, ask)
    drawn = [
        picture
        for task, one in found.items()
        for picture in of_task(task, pictures("change_roles", one, "thirds", "gained-lost"))
    ]
    return Outcome(
        _rows(found), _tables(found), drawn, judged(bench, _claims(found), found), differs
    )


def _third(one: xr.Dataset, role: str, third: str) -> tuple[float, float, float]:
    part = one.isel(model=0).sel(role=role, third=third)
    return tuple(float(part[f"bias_third_change{end}"]) for end in ("", "_low", "_high"))  # type: ignore[return-value]


def _rows(found: dict[str, xr.Dataset]) -> list[Row]:
    rows = []
    for task, one in found.items():
        for role in (role for role in COARSE_ROLES if role in one["role"].values):
            for third in (INITIAL, "middle", FINAL):
                value, low, high = _third(one, role, third)
                if np.isfinite(value):
                    label = f"{task}, {role}, {third} third: change of mean bias"
                    rows.append(Row(f"{task}-{role}-{third}", value, low, high, label=label))
    return rows


def _tables(found: dict[str, xr.Dataset]) -> list[Table]:
    rows = []
    for task, one in found.items():
        part = one.isel(model=0)
        for role in map(str, one["role"].values):
            before, after = (int(one["role_count"].sel(role=role)[i]) for i in (0, 1))
            counts = [
                int(part[f"{name}_count"].sel(role=role).sum())
                for name in ("gained", "lost", "gained_sure", "lost_sure")
            ]
            if before or after:
                rows.append([task, role, before, after, *counts])
    columns = ["task", "role", "before", "after", "gained", "lost", "gained, sure", "lost, sure"]
    note = "Heads with the role, by the τ of the pre-trained model; sure: the bias changed that way, corrected p < 0.05."
    return [Table("Roles gained and lost by fine-tuning", columns, rows, note)]


def _claims(found: dict[str, xr.Dataset]) -> dict[str, Verdict]:
    def moved(role: str, sign: int) -> Verdict:
        values = {task: _third(one, role, FINAL) for task, one in found.items()}
        values = {task: value for task, value in values.items() if np.isfinite(value[0])}
        if not values:
            return untried(f"no input has the role {role}")
        told = ", ".join(
            f"{task} {v:+.2f} ({low:+.2f} to {high:+.2f})"
            for task, (v, low, high) in values.items()
        )
        return Verdict(told, all(sign * end > 0 for value in values.values() for end in value))

    pairs = {
        task: [_third(one, role, FINAL)[0] for role in ("sep", "cls")]
        for task, one in found.items()
    }
    told = ", ".join(
        f"{task}: sep {sep:+.2f}, cls {cls:+.2f}" for task, (sep, cls) in pairs.items()
    )
    stays, holds = [], []
    for task, one in found.items():
        for role in (role for role in COARSE_ROLES if role in one["role"].values):
            first, last = _third(one, role, INITIAL)[0], _third(one, role, FINAL)[0]
            if np.isfinite(first) and np.isfinite(last):
                stays.append(f"{task} {role} {first:+.2f} and {last:+.2f}")
                holds.append(abs(first) < abs(last) / 2)
    return {
        "delimiter-falls": moved("delimiter", -1),
        "block-rises": moved("block", 1),
        "sep-not-cls": Verdict(
            told, all(sep < 0 and -sep > abs(cls) for sep, cls in pairs.values())
        ),
        "initial-stays": Verdict("; ".join(stays), bool(holds) and all(holds)),
    }
