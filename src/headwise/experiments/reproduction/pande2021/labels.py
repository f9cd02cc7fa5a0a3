"""Figure 4: which roles go together."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.frame import Outcome, Row, Table, Verdict
from headwise.experiments.reproduction.pande2021.tasks import TASKS, TREES, Scored, found
from headwise.experiments.reproduction.shared import by_head, pictures, untried


def has(roles: xr.Dataset, role: str) -> np.ndarray:
    """Which heads have a role, bool `[layer, head]`."""
    return by_head(roles["has_role"].sel(role=role)) > 0


def share(part: np.ndarray, whole: np.ndarray) -> float:
    """The share of the heads of the second set that the first has too; NaN where it is empty."""
    return float((part & whole).sum() / whole.sum()) if whole.sum() else float("nan")


def overlaps(bench: Bench) -> Outcome:
    """Figure 4: heads with several roles."""
    all_found = found(bench)
    delimiter = {one.task: float(has(one.roles, "delimiter").mean()) for one in all_found.tasks}
    unskilled = {one.task: float(one.roles.attrs["unskilled"]) for one in all_found.tasks}
    trees = all_found.syntactic
    local = {one.task: share(has(one.roles, "local"), has(one.roles, "syntactic")) for one in trees}
    ranks = {one.task: float(one.roles.attrs["spearman_local_syntactic"]) for one in trees}
    known = [value for value in local.values() if np.isfinite(value)]
    rows = [
        Row("delimiter", 100 * float(np.mean(list(delimiter.values()))), note=_told(delimiter)),
        Row("unskilled", 100 * float(np.mean(list(unskilled.values()))), note=_told(unskilled)),
        *(
            Row(key, 100 * float(how(known)) if known else None, note=_told(local) if known else "no syntactic head")
            for key, how in (("local-low", min), ("local-high", max), ("local-mean", np.mean))
        ),
        *(
            Row(f"spearman-{one}", ranks.get(one), note="" if one in ranks else "its inputs have no trees")
            for one in TASKS
        ),
    ]
    if TREES in ranks:
        rows.append(Row(f"spearman-{TREES}", ranks[TREES], label=f"Spearman, {TREES}"))
    claims = {
        "delimiters": Verdict(_told(delimiter), bool(np.mean(list(delimiter.values())) > 0.5)),
        "few-unskilled": Verdict(_told(unskilled), bool(np.mean(list(unskilled.values())) < 0.2)),
        "local-syntactic": Verdict(_told(local), bool(np.mean(known) > 0.5))
        if known
        else untried("no head is syntactic"),
        "rank": Verdict(", ".join(f"{t} {x:.2f}" for t, x in ranks.items()), bool(np.mean(list(ranks.values())) > 0.7)),
        "nsubj-next": _directions(trees),
        "block-apart": _blocks(all_found.tasks, trees),
    }
    drawn = pictures("roles", all_found.tasks[0].roles, "venn", "overlap")
    return Outcome(rows, [block_table(all_found.tasks)], drawn, claims, all_found.differs, all_found.seen)


def block_table(tasks: tuple[Scored, ...]) -> Table:
    """Block heads by the printed formula and by the released score."""
    rows: list[list[object]] = []
    for one in tasks:
        ceiling = float(one.roles["ceiling"].sel(role="block").max())
        known = bool(one.roles["bias"].sel(role="block").notnull().any())
        if not known:
            rows.append([one.task, "one sentence: no block", "", "", "", "", ""])
            continue
        printed, released = (x["bias"].sel(role="block") for x in (one.roles, one.released))
        counts = [int(has(x, "block").sum()) for x in (one.roles, one.released)]
        tau = float(one.roles.attrs["tau"])
        rows.append([one.task, tau, ceiling, float(printed.max()), counts[0], float(released.max()), counts[1]])
    columns = ["task", "τ", "most a head can reach"]
    columns += ["highest, printed", "block heads", "highest, released", "block heads "]
    note = "Released: the bias times the entropy of the row, special tokens included."
    return Table("Block heads by the printed formula and as released", columns, rows, note)


def _told(values: dict[str, float]) -> str:
    return ", ".join(f"{task} {100 * value:.1f} %" for task, value in values.items())


def _directions(trees: tuple[Scored, ...]) -> Verdict:
    told, holds = [], []
    for one in trees:
        numbers = [
            (has(one.roles, relation) & has(one.roles, f"local:{side}")).sum()
            for relation, side in (("nsubj", "next"), ("nsubj", "prev"), ("dobj", "prev"), ("dobj", "next"))
        ]
        told.append(
            f"{one.task}: nsubj next {numbers[0]}, prev {numbers[1]}; dobj prev {numbers[2]}, next {numbers[3]}"
        )
        holds.append(numbers[0] > numbers[1] and numbers[2] > numbers[3])
    return Verdict("; ".join(told), bool(np.mean(holds) > 0.5)) if told else untried("no trees")


def _blocks(tasks: tuple[Scored, ...], trees: tuple[Scored, ...]) -> Verdict:
    shares = {}
    syntactic = np.any([has(one.roles, "syntactic") for one in trees], axis=0) if trees else None
    for one in tasks:
        blocks = has(one.released, "block")
        if blocks.any():
            others = has(one.roles, "local")
            shares[one.task] = share(others if syntactic is None else others | syntactic, blocks)
    if not shares:
        return untried("no head is a block head, as released either")
    return Verdict(_told(shares), bool(np.mean(list(shares.values())) < 0.25))
