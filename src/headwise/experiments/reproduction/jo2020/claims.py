"""The claims of Jo & Myaeng 2020: from measured numbers to evidence for each sentence.

The rules, with their bounds, stand beside the sentences in `printed/jo2020.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from headwise.experiments.reproduction.estimates import (
    Estimate,
    Estimates,
    Outcome,
    all_of,
    any_of,
    correlation_estimate,
    count_text,
    mean_difference,
    mean_over_units,
    on_tasks,
    outcome_of,
)
from headwise.experiments.reproduction.printed import bounds_of
from headwise.experiments.reproduction.rules import Evidence, cannot_try
from headwise.text.known_tasks import SENTEVAL

PAPER = "jo2020"
# Tasks that the paper places in lower, middle and upper layers (§4.3).
LOWER_TASKS = ("sentence_length", "tree_depth")
MIDDLE_TASKS = ("subj_number", "coordination_inversion")
UPPER_TASKS = ("bigram_shift", "odd_man_out")
DOWNSTREAM_TASKS = ("MRPC", "STS-B", "SST-2")
BEFORE = "pre-trained"
MISSING_TASK = "a task was not given"


def task_title(task: str) -> str:
    """Return the paper's name of a SentEval task."""
    title, _ = SENTEVAL[task]
    return title


@dataclass(frozen=True, slots=True, eq=False)
class ProbedTask:
    """The accuracies of all heads on one task, in per cent.

    Parameters
    ----------
    accuracy : Estimates
        `[layer, head]` on the test part, with Wilson's intervals.
    majority : float
        The accuracy of the most frequent label.
    learned : bool
        Whether any head is significantly better than that; no claim uses a task without.
    n_test : int
        The test sentences.
    """

    accuracy: Estimates
    majority: float
    learned: bool
    n_test: int


def _unusable(probed: Mapping[str, ProbedTask], tasks: Sequence[str]) -> Evidence | None:
    """Return the evidence where a task is missing or nothing was learned of it; None otherwise."""
    for task in tasks:
        if task not in probed:
            return cannot_try(MISSING_TASK)
    not_learned = [task_title(task) for task in tasks if not probed[task].learned]
    if not_learned:
        why = "no head is significantly better than the most frequent label"
        return Evidence(undecided=f"nothing learned on {', '.join(not_learned)}: {why}")
    return None


def _fewest(probed: Mapping[str, ProbedTask], tasks: Sequence[str]) -> dict[str, int]:
    return {"test sentences": min(probed[task].n_test for task in tasks)}


# --- Figure 3 -------------------------------------------------------------------------------------


def layer_evidence(probed: Mapping[str, ProbedTask]) -> dict[str, Evidence]:
    """Return the evidence on the layers of tasks, and on how few heads know them."""
    return {
        "lower": _half_evidence(probed, "lower", LOWER_TASKS, first_is_better=True),
        "middle": _middle_evidence(probed),
        "upper": _half_evidence(probed, "upper", UPPER_TASKS, first_is_better=False),
        "few-heads": _few_heads_evidence(probed),
    }


def _half_evidence(
    probed: Mapping[str, ProbedTask], key: str, tasks: tuple[str, ...], first_is_better: bool
) -> Evidence:
    """Return the evidence on whether the heads of one half of the layers are better."""
    unusable = _unusable(probed, tasks)
    if unusable is not None:
        return unusable
    parts = []
    outcomes = []
    for task in tasks:
        accuracy = probed[task].accuracy.value
        half = len(accuracy) // 2
        # The sentence is about heads: they are the units of the interval.
        difference = mean_difference(accuracy[:half], accuracy[half:])
        first = float(np.nanmean(accuracy[:half]))
        second = float(np.nanmean(accuracy[half:]))
        parts.append(
            f"{task_title(task)} {first:.1f} and {second:.1f} %, difference "
            f"{difference.text('+.1f')}"
        )
        outcomes.append(difference.above(0) if first_is_better else difference.below(0))
    return Evidence(
        f"first and second half: {'; '.join(parts)}",
        all_of(outcomes),
        {"one": any_of(outcomes)},
        _fewest(probed, tasks),
    )


def _middle_evidence(probed: Mapping[str, ProbedTask]) -> Evidence:
    """Return the evidence on whether the layer with the best heads lies in the middle half."""
    unusable = _unusable(probed, MIDDLE_TASKS)
    if unusable is not None:
        return unusable
    n_best = int(bounds_of(PAPER, "middle")["heads"])
    parts = []
    outcomes = []
    for task in MIDDLE_TASKS:
        accuracy = probed[task].accuracy
        layer_means = []
        for layer in range(len(accuracy.value)):
            best_first = np.argsort(-accuracy.value[layer], kind="stable")[:n_best]
            layer_means.append(accuracy.at((layer, best_first)).mean())
        n_layers = len(layer_means)
        inside = range(int(np.ceil(n_layers / 4)), int(np.ceil(3 * n_layers / 4)))
        outside = [layer for layer in range(n_layers) if layer not in inside]
        best_inside = max(inside, key=lambda layer: layer_means[layer].value)
        best_outside = max(outside, key=lambda layer: layer_means[layer].value)
        margin = layer_means[best_inside].minus(layer_means[best_outside])
        parts.append(
            f"{task_title(task)} layer {best_inside} {layer_means[best_inside].value:.1f} %, "
            f"outside layer {best_outside} {layer_means[best_outside].value:.1f} %, difference "
            f"{margin.text('+.1f')}"
        )
        outcomes.append(margin.above(0))
    weaker = {"one": any_of(outcomes)}
    return Evidence("; ".join(parts), all_of(outcomes), weaker, _fewest(probed, MIDDLE_TASKS))


def _few_heads_evidence(probed: Mapping[str, ProbedTask]) -> Evidence:
    """Return the evidence on whether few heads know SubjNum and CoordInversion."""
    unusable = _unusable(probed, MIDDLE_TASKS)
    if unusable is not None:
        return unusable
    bounds = bounds_of(PAPER, "few-heads")
    parts = []
    few = []
    fewer_than_half = []
    for task in MIDDLE_TASKS:
        accuracy = probed[task].accuracy
        best = float(np.nanmax(accuracy.value))
        halfway = probed[task].majority + bounds["gain"] * (best - probed[task].majority)
        count = accuracy.count_above(halfway)
        parts.append(f"{task_title(task)} {count_text(count, accuracy.n_known)} heads")
        few.append(count.at_most(bounds["share"] * accuracy.n_known))
        fewer_than_half.append(count.below(bounds["half"] * accuracy.n_known))
    return Evidence(
        f"over half of the best head's gain: {', '.join(parts)}",
        all_of(few),
        {"half": all_of(fewer_than_half)},
        _fewest(probed, MIDDLE_TASKS),
    )


# --- Table 3 --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PooledTask:
    """The accuracy of three poolings of one task, in per cent."""

    last: Estimate
    best: Estimate
    top: Estimate
    n_test: int


def pooling_evidence(pooled: Mapping[str, PooledTask]) -> dict[str, Evidence]:
    """Return the evidence on last layer, best layer and top heads, by task."""
    if not pooled:
        undecided = Evidence(undecided="nothing learned on any task")
        return {"last-not-best": undecided, "top-better": undecided}
    sample = {"test sentences": min(task.n_test for task in pooled.values())}
    tolerance = bounds_of(PAPER, "last-not-best")["points"]
    no_better = {}
    better = {}
    for name, task in pooled.items():
        # The same layer twice has the same score: its difference is no estimate.
        if task.last == task.best:
            no_better[name] = Outcome.TRUE
        else:
            no_better[name] = task.last.minus(task.best).below(tolerance)
        better[name] = task.top.minus(task.best).above(0)
    printed, on_given = on_tasks(no_better, SENTEVAL)
    worse = [task_title(name) for name, outcome in no_better.items() if outcome is Outcome.FALSE]
    evidence = {
        "last-not-best": Evidence(
            f"{_certain_text(no_better)}; last better: {', '.join(worse) or 'none'}",
            printed,
            {"given": on_given, "most": _at_least(no_better, 0.5)},
            sample,
            open_because=_missing_text(no_better),
        )
    }
    share = bounds_of(PAPER, "top-better")["share"]
    almost_all = _at_least(better, share)
    missing = _missing_text(better)
    gains = [100 * (task.top.value / task.best.value - 1) for task in pooled.values()]
    evidence["top-better"] = Evidence(
        f"{_certain_text(better)}; median gain {np.median(gains):.1f} %",
        Outcome.OPEN if missing and almost_all is Outcome.TRUE else almost_all,
        {"given": almost_all, "most": _at_least(better, 0.5)},
        sample,
        open_because=missing,
    )
    return evidence


def _missing_text(outcomes: Mapping[str, Outcome]) -> str:
    missing = [task_title(task) for task in SENTEVAL if task not in outcomes]
    return f"{', '.join(missing)} not given or nothing learned" if missing else ""


def _certain_text(outcomes: Mapping[str, Outcome]) -> str:
    values = list(outcomes.values())
    n_true = values.count(Outcome.TRUE)
    count = Estimate(n_true, n_true, n_true + values.count(Outcome.OPEN))
    return f"{count_text(count, len(values))} tasks"


def _at_least(outcomes: Mapping[str, Outcome], share: float) -> Outcome:
    """Return whether a condition holds on more than half, or at least a larger share, of tasks."""
    values = list(outcomes.values())
    n_true = values.count(Outcome.TRUE)
    count = Estimate(n_true, n_true, n_true + values.count(Outcome.OPEN))
    if share <= 0.5:
        return count.above(share * len(values))
    return count.at_least(share * len(values))


# --- Table 4 and Figure 4 -------------------------------------------------------------------------


def downstream_evidence(gains: Mapping[str, np.ndarray], n_seeds: int) -> dict[str, Evidence]:
    """Return the evidence on fine-tuned top heads against the fine-tuned last layer.

    Parameters
    ----------
    gains : mapping of str to np.ndarray
        The gain in points `[seed]` of each score (`MRPC-accuracy`), for tasks that were learned.
    n_seeds : int
        The seeds.
    """
    points = bounds_of(PAPER, "downstream")["points"]
    by_seed = np.mean(np.stack(list(gains.values())), axis=0)
    gain = mean_over_units(by_seed)
    ours = f"{gain.text('+.2f')} points over {len(gains)} scores, {n_seeds} seeds"
    # Three tasks, five scores: a task in which nothing was learned is missing in the mean.
    tasks = {key.rsplit("-", 1)[0] for key in gains}
    missing = [task for task in DOWNSTREAM_TASKS if task not in tasks]
    is_gain = gain.above(0)
    printed = all_of([is_gain, outcome_of(gain.high >= points)])
    why = ""
    if missing:
        why = f"{', '.join(missing)} not run or nothing learned"
        printed = Outcome.OPEN if printed is Outcome.TRUE else printed
    return {
        "downstream": Evidence(
            ours, printed, {"gain": is_gain}, {"seeds": n_seeds}, open_because=why
        )
    }


def rank_correlation(before: np.ndarray, after: np.ndarray) -> float:
    """Return Spearman's correlation of the accuracies of heads before and after."""
    return float(spearmanr(before.ravel(), after.ravel()).statistic)


def amplified_evidence(
    accuracies: Mapping[str, Mapping[str, np.ndarray]], n_test: int
) -> dict[str, Evidence]:
    """Return the evidence on whether fine-tuning raises the accuracies of heads and keeps their
    order, from accuracies `[layer, head]` in per cent by task and state."""
    bounds = bounds_of(PAPER, "amplified")
    as_printed = {}
    rises = {}
    parts = []
    for task, by_state in accuracies.items():
        before = by_state[BEFORE]
        of_states = []
        rise_of_states = []
        for state, after in by_state.items():
            if state == BEFORE:
                continue
            rise = mean_over_units((after - before).ravel())
            correlation = correlation_estimate(
                rank_correlation(before, after), before.size, "spearman"
            )
            parts.append(f"{task}, {state} {rise.text('+.1f')}, ranks {correlation.text()}")
            is_higher = rise.above(0)
            rise_of_states.append(is_higher)
            of_states.append(all_of([is_higher, correlation.above(bounds["correlation"])]))
        as_printed[task] = all_of(of_states)
        rises[task] = all_of(rise_of_states)
    printed, on_run = on_tasks(as_printed, DOWNSTREAM_TASKS)
    missing = [task for task in DOWNSTREAM_TASKS if task not in as_printed]
    return {
        "amplified": Evidence(
            "; ".join(parts),
            printed,
            {"run": on_run, "rises": all_of(rises.values())},
            {"test examples": n_test},
            open_because=f"{', '.join(missing)} not run or nothing learned" if missing else "",
        )
    }


def upper_layer_evidence(accuracy: np.ndarray, n_test: int) -> dict[str, Evidence]:
    """Return the evidence on where the best heads of SST-2 lie, from accuracies `[layer, head]`."""
    bounds = bounds_of(PAPER, "sst-upper")
    n_layers, n_heads = accuracy.shape
    if n_layers < 4:
        return {"sst-upper": cannot_try("the model has fewer than four layers")}
    n_top = max(1, round(bounds["top"] * accuracy.size))
    best_first = np.argsort(-accuracy, axis=None, kind="stable")[:n_top]
    first_upper = n_layers - n_layers // 4
    n_upper = int((best_first // n_heads >= first_upper).sum())
    thirds = np.array_split(accuracy, 3)
    means = [float(third.mean()) for third in thirds]
    last_third = [mean_difference(thirds[2], other) for other in thirds[:2]]
    ours = (
        f"{n_upper} of the {n_top} best heads in layers {first_upper} to {n_layers - 1}; thirds "
        f"{', '.join(f'{mean:.1f}' for mean in means)} %"
    )
    return {
        "sst-upper": Evidence(
            ours,
            outcome_of(n_upper > bounds["share"] * n_top),
            {"third": all_of(difference.above(0) for difference in last_third)},
            {"test examples": n_test},
        )
    }


# --- Figure 5 -------------------------------------------------------------------------------------


def score_evidence(syntactic: np.ndarray, semantic: np.ndarray, n_test: int) -> dict[str, Evidence]:
    """Return the evidence on syntactic and semantic scores `[layer, head]`."""
    bounds = bounds_of(PAPER, "linear")
    sample = {"test sentences": n_test}
    n_layers, n_heads = syntactic.shape
    pearson = float(np.corrcoef(syntactic.ravel(), semantic.ravel())[0, 1])
    linear = correlation_estimate(pearson, syntactic.size)
    layer_of_head = np.repeat(np.arange(n_layers), n_heads)
    rises = []
    parts = []
    for name, scores in (("syntactic", syntactic), ("semantic", semantic)):
        trend = float(spearmanr(layer_of_head, scores.ravel()).statistic)
        rise = correlation_estimate(trend, scores.size, "spearman")
        rises.append(rise.above(0))
        parts.append(f"{name} {rise.text()}")
    return {
        "linear": Evidence(
            f"r = {linear.text()} over {syntactic.size} heads",
            linear.above(bounds["correlation"]),
            {"positive": linear.above(0)},
            sample,
        ),
        "lower-less": Evidence(
            f"Spearman with the layer: {', '.join(parts)}",
            all_of(rises),
            {"one": any_of(rises)},
            sample,
        ),
    }
