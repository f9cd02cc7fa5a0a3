"""Figures 4 and 5: which roles go together, and where."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from headwise.analyses.roles.significance import FINE_ROLES
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.pande2021.tasks import TASKS, TREES, Scored, found
from headwise.experiments.reproduction.schema import Outcome, Row, Table, Verdict
from headwise.experiments.reproduction.shared import (
    by_head,
    depth,
    layer_table,
    of_task,
    pictures,
    untried,
    words,
)


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
            Row(
                key,
                100 * float(how(known)) if known else None,
                note=_told(local) if known else "no syntactic head",
            )
            for key, how in (("local-low", min), ("local-high", max), ("local-mean", np.mean))
        ),
        *(
            Row(
                f"spearman-{one}",
                ranks.get(one),
                note="" if one in ranks else "its inputs have no trees",
            )
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
        "rank": Verdict(
            ", ".join(f"{t} {x:.2f}" for t, x in ranks.items()),
            bool(np.mean(list(ranks.values())) > 0.7),
        ),
        "nsubj-next": _directions(trees),
        "block-apart": _blocks(all_found.tasks, trees),
    }
    drawn = pictures("roles", all_found.tasks[0].roles, "venn", "overlap")
    return Outcome(
        rows, [block_table(all_found.tasks)], drawn, claims, all_found.differs, all_found.seen
    )


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
        rows.append(
            [
                one.task,
                tau,
                ceiling,
                float(printed.max()),
                counts[0],
                float(released.max()),
                counts[1],
            ]
        )
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
            for relation, side in (
                ("nsubj", "next"),
                ("nsubj", "prev"),
                ("dobj", "prev"),
                ("dobj", "next"),
            )
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


def grid(bench: Bench) -> Outcome:
    """Figure 5: the grid of every task, and how many heads of each layer have which role."""
    all_found = found(bench)
    drawn = [
        picture
        for one in all_found.tasks
        for picture in of_task(one.task, pictures("roles", one.roles, "grid"))
    ]
    layers = bench.model.layers
    middle, syntax = (
        depth(6, 10, layers),
        depth(7, 9, layers),
    )  # the paper's layers 5 to 9 and 6 to 8, from 0
    last = depth(11, 12, layers)
    trees, tasks = all_found.syntactic, all_found.tasks
    first = _mean(
        tasks, lambda one: float((has(one.roles, "cls") | has(one.roles, "sep"))[0].mean())
    )
    claims = {
        "multi-middle": _more(trees or tasks, middle, lambda one: _skills(one).sum(-1) > 1),
        "first-layer": Verdict(f"{100 * first:.0f} % of the first layer's heads", first < 0.25),
        "only-delimiters": _only(tasks, range(layers - max(1, layers // 4), layers)),
        "block-zeroth": _zeroth(tasks),
        "syntactic-middle": _more(trees, syntax, lambda one: has(one.roles, "syntactic")),
        "last-two": _last(trees, last),
    }
    columns: dict[str, np.ndarray] = {}
    for one in tasks:
        columns |= {
            f"{one.task}: {role}": has(one.roles, role).sum(1) for role in ("local", "delimiter")
        }
        columns[f"{one.task}: block (released)"] = has(one.released, "block").sum(1)
    for one in trees:
        columns[f"{one.task}: syntactic"] = has(one.roles, "syntactic").sum(1)
    table = layer_table("Heads with each role", columns)
    return Outcome((), [table], drawn, claims, all_found.differs, all_found.seen)


def _skills(one: Scored) -> np.ndarray:
    """Bool `[layer, head, role]` of the nine roles."""
    return np.stack([has(one.roles, role) for role in FINE_ROLES], -1)


def _mean(scored: tuple[Scored, ...], value: Callable[[Scored], float]) -> float:
    return float(np.mean([value(one) for one in scored]))


def _more(
    scored: tuple[Scored, ...], inside: range, which: Callable[[Scored], np.ndarray]
) -> Verdict:
    """More such heads a layer in these layers than in the others."""
    if not scored:
        return untried("no inputs have trees")
    here = _mean(scored, lambda one: float(which(one)[list(inside)].sum(1).mean()))
    others = [i for i in range(len(which(scored[0]))) if i not in inside]
    if not others:
        return untried("the model has too few layers")
    elsewhere = _mean(scored, lambda one: float(which(one)[others].sum(1).mean()))
    return Verdict(
        f"{here:.1f} heads a layer in {words(inside)}, {elsewhere:.1f} in the others",
        here > elsewhere,
    )


def _only(tasks: tuple[Scored, ...], last: range) -> Verdict:
    alone = skilled = 0
    for one in tasks:
        skills = _skills(one)[list(last)]
        delimiters = [FINE_ROLES.index("cls"), FINE_ROLES.index("sep")]
        others = np.delete(skills, delimiters, -1).any(-1)
        skilled += int(skills.any(-1).sum())
        alone += int((skills[..., delimiters].any(-1) & ~others).sum())
    if not skilled:
        return untried(f"no head of {words(last)} has a role")
    return Verdict(f"{alone} of {skilled} heads in {words(last)}", alone > skilled / 2)


def _zeroth(tasks: tuple[Scored, ...]) -> Verdict:
    pairs = [one for one in tasks if bool(one.released["bias"].sel(role="block").notnull().any())]
    if not pairs:
        return untried("no task of two sentences")
    share = _mean(tuple(pairs), lambda one: float(has(one.released, "block")[0].mean()))
    return Verdict(f"{100 * share:.0f} % of layer 0, as released", share > 0.5)


def _last(trees: tuple[Scored, ...], last: range) -> Verdict:
    if not trees:
        return untried("no inputs have trees")
    share = _mean(trees, lambda one: float(has(one.roles, "syntactic")[list(last)].mean()))
    return Verdict(f"{100 * share:.0f} % of the heads of {words(last)}", share < 0.25)
