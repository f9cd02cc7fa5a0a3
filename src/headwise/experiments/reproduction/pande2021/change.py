"""Figure 6: what fine-tuning changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import xarray as xr

from headwise.analyses.roles.significance import COARSE
from headwise.core.errors import HeadwiseError
from headwise.experiments.comparison import ComparisonOptions, compare
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.drawn import pictures
from headwise.experiments.reproduction.frame import NotRunError, Outcome, Picture, Row, Table, Verdict
from headwise.experiments.reproduction.inputs import judged
from headwise.experiments.reproduction.pande2021.tasks import TASKS, roles, task_inputs
from headwise.models import HeadModel
from headwise.text import Corpus

FINAL, INITIAL = "final", "initial"


def changes(bench: Bench) -> Outcome:
    """Figure 6: mean change of the bias in thirds of the layers, and the roles gained and lost."""
    found: dict[str, xr.Dataset] = {}
    differs: list[str] = []
    for task in TASKS:
        try:
            bench.data.path(f"glue-{task}-dev")
            with bench.finetuned(task, "pande") as (model, told):
                corpus, sizes = task_inputs(bench, task, model)
                key = f"change-{task}-{corpus.fingerprint()[:12]}"
                options = ComparisonOptions(
                    analyses=(roles(bench, False),), names=("pre-trained", task), limit=None, seed=bench.seed
                )
                compared = partial(_compared, [bench.model, model], corpus, options)
                found[task] = bench.store.dataset(key, compared)
                differs += [f"{told}.", *sizes]
        except HeadwiseError as error:
            differs.append(f"{task}: not run, {str(error).rstrip('.')}.")
    if not found:
        raise NotRunError("; ".join(text.rstrip(".") for text in differs))
    return Outcome(_rows(found), _tables(found), _drawn(found), judged(bench, _claims(found)), differs)


def _compared(pair: Sequence[HeadModel], corpus: Corpus, options: ComparisonOptions) -> xr.Dataset:
    return compare(pair, corpus, options)["change_roles"]


def _third(one: xr.Dataset, role: str, third: str) -> tuple[float, float, float]:
    part = one.isel(model=0).sel(role=role, third=third)
    return tuple(float(part[f"bias_third_change{end}"]) for end in ("", "_low", "_high"))  # type: ignore[return-value]


def _rows(found: dict[str, xr.Dataset]) -> list[Row]:
    rows = []
    for task, one in found.items():
        for role in (role for role in COARSE if role in one["role"].values):
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
    note = (
        "Heads with the role, by the τ of the pre-trained model; sure: the bias changed that way, corrected p < 0.05."
    )
    return [Table("Roles gained and lost by fine-tuning", columns, rows, note)]


def _drawn(found: dict[str, xr.Dataset]) -> list[Picture]:
    drawn = []
    for task, one in found.items():
        for picture in pictures("change_roles", one, "thirds", "gained-lost"):
            drawn.append(
                Picture(f"{task.lower()}-{picture.name}", f"{picture.title}: {task}", picture.caption, picture.figure)
            )
    return drawn


def _claims(found: dict[str, xr.Dataset]) -> dict[str, Verdict]:
    def moved(role: str, sign: int) -> Verdict:
        values = {task: _third(one, role, FINAL) for task, one in found.items()}
        values = {task: value for task, value in values.items() if np.isfinite(value[0])}
        if not values:
            return Verdict("", None, f"no input has the role {role}")
        told = ", ".join(f"{task} {v:+.2f} ({low:+.2f} to {high:+.2f})" for task, (v, low, high) in values.items())
        return Verdict(
            told, all(sign * v > 0 and sign * low > 0 and sign * high > 0 for v, low, high in values.values())
        )

    def both(one: xr.Dataset) -> tuple[float, float]:
        return _third(one, "sep", FINAL)[0], _third(one, "cls", FINAL)[0]

    pairs = {task: both(one) for task, one in found.items()}
    told = ", ".join(f"{task}: sep {sep:+.2f}, cls {cls:+.2f}" for task, (sep, cls) in pairs.items())
    stays, holds = [], []
    for task, one in found.items():
        for role in (role for role in COARSE if role in one["role"].values):
            first, last = _third(one, role, INITIAL)[0], _third(one, role, FINAL)[0]
            if np.isfinite(first) and np.isfinite(last):
                stays.append(f"{task} {role} {first:+.2f} and {last:+.2f}")
                holds.append(abs(first) < abs(last) / 2)
    return {
        "delimiter-falls": moved("delimiter", -1),
        "block-rises": moved("block", 1),
        "sep-not-cls": Verdict(told, all(sep < 0 and -sep > abs(cls) for sep, cls in pairs.values())),
        "initial-stays": Verdict("; ".join(stays), bool(holds) and all(holds)),
    }
