"""Figure 5: roles by layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headwise.analyses.roles.significance import FINE
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.frame import Outcome, Verdict
from headwise.experiments.reproduction.pande2021.labels import has
from headwise.experiments.reproduction.pande2021.tasks import Scored, found
from headwise.experiments.reproduction.shared import depth, layer_table, of_task, pictures, untried, words


def grid(bench: Bench) -> Outcome:
    """Figure 5: the grid of every task, and how many heads of each layer have which role."""
    all_found = found(bench)
    drawn = [picture for one in all_found.tasks for picture in of_task(one.task, pictures("roles", one.roles, "grid"))]
    layers = bench.model.layers
    middle, syntax = depth(6, 10, layers), depth(7, 9, layers)  # the paper's layers 5 to 9 and 6 to 8, from 0
    last = depth(11, 12, layers)
    trees, tasks = all_found.syntactic, all_found.tasks
    first = _mean(tasks, lambda one: float((has(one.roles, "cls") | has(one.roles, "sep"))[0].mean()))
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
        columns |= {f"{one.task}: {role}": has(one.roles, role).sum(1) for role in ("local", "delimiter")}
        columns[f"{one.task}: block (released)"] = has(one.released, "block").sum(1)
    for one in trees:
        columns[f"{one.task}: syntactic"] = has(one.roles, "syntactic").sum(1)
    table = layer_table("Heads with each role", columns)
    return Outcome((), [table], drawn, claims, all_found.differs, all_found.seen)


def _skills(one: Scored) -> np.ndarray:
    """Bool `[layer, head, role]` of the nine roles."""
    return np.stack([has(one.roles, role) for role in FINE], -1)


def _mean(scored: tuple[Scored, ...], value: Callable[[Scored], float]) -> float:
    return float(np.mean([value(one) for one in scored]))


def _more(scored: tuple[Scored, ...], inside: range, which: Callable[[Scored], np.ndarray]) -> Verdict:
    """More such heads a layer in these layers than in the others."""
    if not scored:
        return untried("no inputs have trees")
    here = _mean(scored, lambda one: float(which(one)[list(inside)].sum(1).mean()))
    others = [i for i in range(len(which(scored[0]))) if i not in inside]
    if not others:
        return untried("the model has too few layers")
    elsewhere = _mean(scored, lambda one: float(which(one)[others].sum(1).mean()))
    return Verdict(f"{here:.1f} heads a layer in {words(inside)}, {elsewhere:.1f} in the others", here > elsewhere)


def _only(tasks: tuple[Scored, ...], last: range) -> Verdict:
    alone = skilled = 0
    for one in tasks:
        skills = _skills(one)[list(last)]
        delimiters = [FINE.index("cls"), FINE.index("sep")]
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
