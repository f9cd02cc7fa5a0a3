"""The claims of Kovaleva et al. 2019: from measured numbers to evidence for each sentence.

The rules, with their bounds, stand beside the sentences in `printed/kovaleva2019.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from headwise.core.labels import head_name
from headwise.experiments.reproduction.estimates import (
    Estimate,
    Estimates,
    Outcome,
    all_of,
    any_of,
    more_than_half,
    on_tasks,
    outcome_of,
    weighted_layer,
)
from headwise.experiments.reproduction.kovaleva2019.tasks import TASKS
from headwise.experiments.reproduction.printed import bounds_of
from headwise.experiments.reproduction.rules import Evidence, cannot_try
from headwise.experiments.reproduction.shared import best_head, head_values

PAPER = "kovaleva2019"
ONE_SENTENCE = ("SST-2",)  # tasks without a second segment, whose maps have no blocks
REPEATED_PATTERNS = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")
SPECIAL_TOKENS = ("cls", "sep")
HALF_PER_CENT = 0.005
SIGNIFICANT = 0.05  # corrected p, as the analyses test
SEP_NOT_MOST = ("STS-B", "RTE", "QNLI")  # the paper's exceptions (§4.5)
RANDOM_WORSE = ("STS-B", "QNLI")  # §4.3
RANDOM_HEAD_HELPS = ("MRPC", "RTE")  # §4.6
# The tasks on which a layer may be spared: the paper excepts QNLI and MNLI (§4.6).
LAYER_HELPS = ("MRPC", "STS-B", "SST-2", "QQP", "RTE")


def not_run_text(tasks: Iterable[str], paper_tasks: Sequence[str] = TASKS) -> str:
    """Name the paper's tasks that are not among `tasks`: not run, or nothing was learned."""
    present = set(tasks)
    missing = [task for task in paper_tasks if task not in present]
    return f"no result of {', '.join(missing)}" if missing else ""


def texts_by_task(estimates: Mapping[str, Estimate], spec: str = ".2f") -> str:
    """Return the number of each task with its interval."""
    return ", ".join(f"{task} {estimate.text(spec)}" for task, estimate in estimates.items())


def _fewest(results: Mapping[str, xr.Dataset], name: str) -> int:
    """Return the smallest number of inputs of a task."""
    return min(int(result[f"{name}_n"].max()) for result in results.values())


# --- §4.1: patterns -------------------------------------------------------------------------------


def pattern_evidence(patterns_by_task: Mapping[str, xr.Dataset]) -> dict[str, Evidence]:
    """Return the evidence on patterns of maps, from the result of `patterns` for each task."""
    sample = {"inputs": _fewest(patterns_by_task, "proportion")}
    shares: dict[str, dict[str, Estimate]] = {}
    for task, patterns in patterns_by_task.items():
        shares[task] = {}
        for name in REPEATED_PATTERNS:
            shares[task][name] = Estimates.of(patterns, "overall", pattern=name).one(())
    return {
        "heterogeneous": _heterogeneous_evidence(shares, sample),
        "repeated": _repeated_evidence(shares, sample),
    }


def _heterogeneous_evidence(
    shares: Mapping[str, Mapping[str, Estimate]], sample: Mapping[str, int]
) -> Evidence:
    bounds = bounds_of(PAPER, "heterogeneous")
    by_task = {task: of_task["heterogeneous"] for task, of_task in shares.items()}
    in_range = {}
    for task, share in by_task.items():
        # The range is printed in whole per cent.
        is_high_enough = share.at_least(bounds["low"] - HALF_PER_CENT)
        in_range[task] = all_of([is_high_enough, share.at_most(bounds["high"] + HALF_PER_CENT)])
    at_ends = []
    if "MRPC" in by_task:
        at_ends.append(by_task["MRPC"].below(bounds["low"] + HALF_PER_CENT))
    if "QQP" in by_task:
        at_ends.append(by_task["QQP"].above(bounds["high"] - HALF_PER_CENT))
    printed, on_run = on_tasks(in_range, TASKS)
    if printed is not Outcome.OPEN:
        printed = all_of([printed, *at_ends])
    lowest = min(by_task.values(), key=lambda share: share.value)
    highest = max(by_task.values(), key=lambda share: share.value)
    # Any two shares of so many maps differ; the sentence is about a wide range.
    spread = highest.minus(lowest)
    varies = spread.above(bounds["spread"]) if len(by_task) > 1 else Outcome.OPEN
    percent = {task: share.times(100) for task, share in by_task.items()}
    return Evidence(
        f"{texts_by_task(percent, '.0f')} %",
        printed,
        {"range": on_run, "varies": varies},
        sample,
        open_because=not_run_text(by_task),
    )


def _repeated_evidence(
    shares: Mapping[str, Mapping[str, Estimate]], sample: Mapping[str, int]
) -> Evidence:
    bounds = bounds_of(PAPER, "repeated")
    every_pattern = {}
    without_block = {}
    smallest: tuple[float, str] = (np.inf, "")
    for task, of_task in shares.items():
        outcomes = {}
        for name, share in of_task.items():
            if name == "block" and task in ONE_SENTENCE:
                continue
            outcomes[name] = share.at_least(bounds["share"])
            smallest = min(smallest, (share.value, f"{name} on {task} {share.text('.3f')}"))
        every_pattern[task] = all_of(outcomes.values())
        without_block[task] = all_of(
            outcome for name, outcome in outcomes.items() if name != "block"
        )
    printed, on_run = on_tasks(every_pattern, TASKS)
    return Evidence(
        f"{len(shares)} tasks; smallest share: {smallest[1]}",
        printed,
        {"run": on_run, "four": all_of(without_block.values())},
        sample,
        open_because=not_run_text(shares),
    )


# --- §4.2: frames ---------------------------------------------------------------------------------


def frame_evidence(scores: xr.Dataset) -> dict[str, Evidence]:
    """Return the evidence on heads that link a target to its elements, from the result of
    `frames`."""
    bounds = bounds_of(PAPER, "two-heads")
    is_above = head_values(scores["above"]) > 0
    stands_out = np.zeros_like(is_above)
    if "stands_out" in scores:
        stands_out = head_values(scores["stands_out"]) > 0
    n_sentences = int(scores.attrs["sentences"])
    more_than_moved = np.zeros_like(is_above)
    if "p_adjusted" in scores:
        more_than_moved = head_values(scores["p_adjusted"]) < SIGNIFICANT
    above = _head_names(is_above)
    beyond_moved = _head_names(is_above & more_than_moved)
    significant = _head_names(is_above & stands_out)
    ours = (
        f"above the percentile: {', '.join(above)}; more than moved links: "
        f"{', '.join(beyond_moved) or 'none'}; more than random weights too: "
        f"{', '.join(significant) or 'none'} ({int(stands_out.sum())} of {stands_out.size} heads in "
        "all)"
    )
    was_tested = "p_adjusted" in scores and bool(scores["p_adjusted"].notnull().any())
    if not was_tested:
        return {"two-heads": Evidence(ours, undecided="too few sentences for a test")}
    count = len(significant)
    weaker = {
        "one": outcome_of(count >= 1),
        "moved": outcome_of(len(beyond_moved) >= bounds["heads"]),
    }
    sample = {"sentences": n_sentences}
    return {
        "two-heads": Evidence(ours, outcome_of(count == bounds["heads"]), weaker, sample),
    }


def _head_names(mask: np.ndarray) -> list[str]:
    return [head_name(int(layer), int(head)) for layer, head in np.argwhere(mask)]


# --- §4.3: starts of fine-tuning, and what it changes ---------------------------------------------


@dataclass(frozen=True, slots=True)
class StartScores:
    """How the three starts of one task compare, in points with intervals over examples.

    Parameters
    ----------
    gain : Estimate
        Fine-tuned from pre-trained, less not fine-tuned.
    random_loss : Estimate
        Fine-tuned from random weights, less fine-tuned from pre-trained.
    random_gain : Estimate
        Fine-tuned from random weights, less pre-trained without fine-tuning.
    n_dev : int
        The dev examples.
    """

    gain: Estimate
    random_loss: Estimate
    random_gain: Estimate
    n_dev: int


def start_evidence(starts: Mapping[str, StartScores]) -> dict[str, Evidence]:
    """Return the evidence on three starts, by task."""
    sample = {"dev examples": min(scores.n_dev for scores in starts.values())}
    gains = {task: scores.gain for task, scores in starts.items()}
    losses = {task: scores.random_loss for task, scores in starts.items()}
    evidence = {}
    better = {task: gain.above(0) for task, gain in gains.items()}
    lower = {task: loss.below(0) for task, loss in losses.items()}
    for key, outcomes, numbers in (
        ("better", better, gains),
        ("random-lower", lower, losses),
    ):
        printed, on_run = on_tasks(outcomes, TASKS)
        evidence[key] = Evidence(
            texts_by_task(numbers, "+.1f"),
            printed,
            {"run": on_run},
            sample,
            open_because=not_run_text(outcomes),
        )
    random_gains = {}
    for task in RANDOM_WORSE:
        if task in starts:
            random_gains[task] = starts[task].random_gain
    if not random_gains:
        evidence["random-worse"] = cannot_try("neither STS-B nor QNLI was run")
        return evidence
    worse = {task: gain.below(0) for task, gain in random_gains.items()}
    printed, _ = on_tasks(worse, RANDOM_WORSE)
    evidence["random-worse"] = Evidence(
        texts_by_task(random_gains, "+.1f"),
        printed,
        {"one": any_of(worse.values())},
        sample,
        open_because=not_run_text(worse, RANDOM_WORSE),
    )
    return evidence


def last_layers_evidence(cosines: Mapping[str, Estimates], n_inputs: int) -> dict[str, Evidence]:
    """Return the evidence on which layers change most, from the cosine `[layer, head]` of maps
    before and after fine-tuning, by task."""
    tasks = [task for task in cosines if task != "QQP"]
    if not tasks:
        return {"last-two": cannot_try("no task but QQP was run")}
    n_layers = len(cosines[tasks[0]].value)
    if n_layers <= 3:
        return {"last-two": cannot_try("of three layers the last two are no finding")}
    last_two = {}
    last_one = {}
    parts = []
    for task in tasks:
        by_layer = [cosines[task].at(layer).mean() for layer in range(n_layers)]
        outcomes = []
        for late in by_layer[-2:]:
            outcomes += [late.minus(early).below(0) for early in by_layer[:-2]]
        last_two[task] = all_of(outcomes)
        last_one[task] = all_of(by_layer[-1].minus(other).below(0) for other in by_layer[:-1])
        order = np.argsort([mean.value for mean in by_layer], kind="stable")[:2]
        parts.append(f"{task} L{order[0]}, L{order[1]}")
    paper_tasks = [task for task in TASKS if task != "QQP"]
    printed, on_run = on_tasks(last_two, paper_tasks)
    return {
        "last-two": Evidence(
            f"most changed: {'; '.join(parts)}",
            printed,
            {
                "run": on_run,
                "most": more_than_half(last_two.values()),
                "last": all_of(last_one.values()),
            },
            {"inputs": n_inputs},
            open_because=not_run_text(last_two, paper_tasks),
        )
    }


# --- §4.4 and §4.5: attention to features ---------------------------------------------------------


def special_token_evidence(features_by_task: Mapping[str, xr.Dataset]) -> dict[str, Evidence]:
    """Return the evidence on attention to [CLS] and [SEP], from the result of `features` for each
    task."""
    sample = {"inputs": _fewest(features_by_task, "attention")}
    cls_earlier = {}
    parts = []
    to_sep = {}
    for task, features in features_by_task.items():
        cls_layer = weighted_layer(Estimates.of(features, "attention", feature="cls"))
        sep_attention = Estimates.of(features, "attention", feature="sep")
        sep_layer = weighted_layer(sep_attention)
        cls_earlier[task] = sep_layer.minus(cls_layer).above(0)
        parts.append(f"{task} [CLS] {cls_layer.value:.1f}, [SEP] {sep_layer.value:.1f}")
        to_sep[task] = sep_attention.mean()
    printed, on_run = on_tasks(cls_earlier, TASKS)
    evidence = {
        "cls-early": Evidence(
            f"mean layers: {'; '.join(parts)}",
            printed,
            {"run": on_run, "most": more_than_half(cls_earlier.values())},
            sample,
            open_because=not_run_text(cls_earlier),
        )
    }
    if "SST-2" not in to_sep or len(to_sep) < 2:
        evidence["sst-sep"] = cannot_try("SST-2 and a task of pairs are needed")
        return evidence
    greater = {}
    for task, attention in to_sep.items():
        if task != "SST-2":
            greater[task] = to_sep["SST-2"].minus(attention).above(0)
    paper_others = [task for task in TASKS if task != "SST-2"]
    printed, on_run = on_tasks(greater, paper_others)
    evidence["sst-sep"] = Evidence(
        texts_by_task(to_sep, ".3f"),
        printed,
        {"run": on_run},
        sample,
        open_because=not_run_text(greater, paper_others),
    )
    return evidence


def cls_to_sep_evidence(features_by_task: Mapping[str, xr.Dataset]) -> dict[str, Evidence]:
    """Return the evidence on what [CLS] attends to most in the last layer, from the result of
    `features` for each task."""
    sep_is_most: dict[str, Outcome] = {}
    as_printed = {}
    parts = []
    for task, features in features_by_task.items():
        means = {}
        for name in map(str, features["feature"].values):
            attention = Estimates.of(features, "from_cls", feature=name)
            if attention.n_known:
                means[name] = attention.mean()
        if "sep" not in means or len(means) < 2:
            continue
        margins = [means["sep"].minus(mean) for name, mean in means.items() if name != "sep"]
        is_most = all_of(margin.above(0) for margin in margins)
        sep_is_most[task] = is_most
        as_printed[task] = is_most
        if task in SEP_NOT_MOST:
            as_printed[task] = any_of(margin.below(0) for margin in margins)
        highest = max(means, key=lambda name: means[name].value)
        parts.append(f"{task} {highest} {means[highest].text()}, [SEP] {means['sep'].text()}")
    if not sep_is_most:
        return {"cls-sep": cannot_try("no task has [SEP]")}
    printed, on_run = on_tasks(as_printed, TASKS)
    return {
        "cls-sep": Evidence(
            f"most attended: {'; '.join(parts)}",
            printed,
            {"run": on_run, "most": more_than_half(sep_is_most.values())},
            {"inputs": _fewest(features_by_task, "from_cls")},
            open_because=not_run_text(as_printed),
        )
    }


def feature_evidence(features: xr.Dataset) -> dict[str, Evidence]:
    """Return the evidence on attention to linguistic features, from the result of `features` on a
    treebank."""
    share = bounds_of(PAPER, "special")["share"]
    highest: dict[str, Estimate] = {}
    for name in map(str, features["feature"].values):
        attention = Estimates.of(features, "attention", feature=name)
        if attention.n_known:
            highest[name] = attention.for_all().reduce(np.nanmax)
    special = [highest[name] for name in SPECIAL_TOKENS if name in highest]
    linguistic = {}
    for name, estimate in highest.items():
        if name not in (*SPECIAL_TOKENS, "punct"):
            linguistic[name] = estimate
    if not linguistic or not special:
        return {"special": cannot_try("no linguistic features, or no special tokens")}
    most_attended = max(linguistic, key=lambda name: linguistic[name].value)
    to_special = max(special, key=lambda estimate: estimate.value)
    ours = (
        f"highest of any head: {most_attended} {linguistic[most_attended].text()}, special tokens "
        f"{to_special.text()}"
    )
    under_share = all_of(
        estimate.minus(to_special.times(share)).below(0) for estimate in linguistic.values()
    )
    below = all_of(estimate.minus(to_special).below(0) for estimate in linguistic.values())
    n_inputs = int(features["attention_n"].max())
    return {"special": Evidence(ours, under_share, {"less": below}, {"sentences": n_inputs})}


def diagonal_evidence(
    neighbour_shares: Mapping[str, Sequence[tuple[str, float]]], n_sentences: int
) -> dict[str, Evidence]:
    """Return the evidence on whether heads that link word classes are diagonal ones.

    Parameters
    ----------
    neighbour_shares : mapping
        For each pair of word classes its best heads, best first: the name of each, and its mean
        attention to the previous or the next token, whichever is larger.
    n_sentences : int
        The sentences.
    """
    if not neighbour_shares:
        return {"diagonal": cannot_try("no such pair of words occurs")}
    bounds = bounds_of(PAPER, "diagonal")
    n_candidates = int(bounds["heads"])
    all_candidates = []
    best_candidates = []
    parts = []
    for pair, candidates in neighbour_shares.items():
        shares = [share for _, share in candidates[:n_candidates]]
        all_candidates += [outcome_of(share > bounds["share"]) for share in shares]
        best_candidates.append(outcome_of(shares[0] > bounds["share"]))
        texts = ", ".join(f"{name} {share:.2f}" for name, share in candidates[:n_candidates])
        parts.append(f"{pair}: {texts}")
    return {
        "diagonal": Evidence(
            f"on a neighbour: {'; '.join(parts)}",
            all_of(all_candidates),
            {"best": all_of(best_candidates)},
            {"sentences": n_sentences},
        )
    }


# --- §4.6: disabling ------------------------------------------------------------------------------


def head_evidence(ablations: Mapping[str, xr.Dataset]) -> dict[str, Evidence]:
    """Return the evidence on disabling single heads, a random head, and frame heads, from the
    ablation of each task."""
    sample = {
        "dev examples": min(int(ablation.attrs["examples"]) for ablation in ablations.values())
    }
    gains = {}
    gain_texts = []
    means = {}
    for task, ablation in ablations.items():
        gains[task] = _some_gain(ablation, "", bounds_of(PAPER, "some-gain")["p"])
        gain_texts.append(_gain_text(task, ablation))
        means[task] = _mean_difference(ablation)
    printed, on_run = on_tasks(gains, TASKS)
    named = {task: means[task].above(0) for task in RANDOM_HEAD_HELPS if task in means}
    random_printed, _ = on_tasks(named, RANDOM_HEAD_HELPS)
    evidence = {
        "some-gain": Evidence(
            "; ".join(gain_texts),
            printed,
            {"run": on_run, "some": any_of(gains.values())},
            sample,
            open_because=not_run_text(gains) if on_run is Outcome.TRUE else "",
        ),
        "random-head": Evidence(
            texts_by_task(means, "+.2f"),
            random_printed,
            {"some": any_of(mean.above(0) for mean in means.values())},
            sample,
            open_because=not_run_text(named, RANDOM_HEAD_HELPS),
        ),
    }
    frames = _frame_head_evidence(ablations, sample)
    if frames is not None:
        evidence["frames-idle"] = frames
    return evidence


def _some_gain(ablation: xr.Dataset, prefix: str, level: float) -> Outcome:
    """Return whether disabling some head (or layer) raises the score, after correction.

    It does not where no upper end of an interval is above zero; between the two it is open.
    """
    difference = ablation[f"{prefix}difference"].values
    is_significant = ablation[f"{prefix}p_adjusted"].values < level
    if ((difference > 0) & is_significant).any():
        return Outcome.TRUE
    may_gain = ablation[f"{prefix}difference_high"].values > 0
    return Outcome.OPEN if may_gain.any() else Outcome.FALSE


def _gain_text(task: str, ablation: xr.Dataset) -> str:
    attrs = ablation.attrs
    difference = 100 * head_values(ablation["difference"])
    best = best_head(difference)
    return (
        f"{task} {attrs['improving']} heads better, {attrs['improving_significant']} significant, "
        f"best {head_name(*best)} {difference[best]:+.1f}"
    )


def _mean_difference(ablation: xr.Dataset) -> Estimate:
    """Return the mean over heads of the change of the score, in points."""
    attrs = ablation.attrs
    mean = Estimate(
        float(attrs["mean_difference"]),
        float(attrs["mean_difference_low"]),
        float(attrs["mean_difference_high"]),
    )
    return mean.times(100)


def _frame_head_evidence(
    ablations: Mapping[str, xr.Dataset], sample: Mapping[str, int]
) -> Evidence | None:
    points = bounds_of(PAPER, "frames-idle")["points"]
    changes: list[tuple[str, Estimate]] = []
    texts = []
    for task, ablation in ablations.items():
        if "set" not in ablation.dims:
            continue
        for name in map(str, ablation["set"].values):
            of_set = ablation.sel(set=name)
            change = Estimates.of(of_set, "set_difference").one(()).times(100)
            changes.append((task, change))
            texts.append(f"{name.removeprefix('frames ')} on {task} {change.text('+.1f')}")
    if not changes:
        return None
    at_once = _for_all([change for _, change in changes])
    no_drop: dict[str, Outcome] = {}
    small_drop: dict[str, Outcome] = {}
    for (task, change), widened in zip(changes, at_once, strict=True):
        is_small = change.above(-points)
        # A sure fall is a drop, however small; of several heads and tasks one may fall by chance.
        falls_surely = widened.below(0) is Outcome.TRUE
        stays = Outcome.FALSE if falls_surely else is_small
        no_drop[task] = all_of([no_drop.get(task, Outcome.TRUE), stays])
        small_drop[task] = all_of([small_drop.get(task, Outcome.TRUE), is_small])
    printed, on_run = on_tasks(no_drop, TASKS)
    return Evidence(
        "; ".join(texts),
        printed,
        {"run": on_run, "small": all_of(small_drop.values())},
        sample,
        open_because=not_run_text(no_drop) if on_run is Outcome.TRUE else "",
    )


def _for_all(changes: Sequence[Estimate]) -> list[Estimate]:
    """Widen the intervals so that all of them together hold with 95 %."""
    together = Estimates(
        np.array([change.value for change in changes]),
        np.array([change.low for change in changes]),
        np.array([change.high for change in changes]),
    ).for_all()
    return [together.one(index) for index in range(len(changes))]


def layer_evidence(ablations: Mapping[str, xr.Dataset]) -> dict[str, Evidence]:
    """Return the evidence on disabling whole layers, from the ablation of each task."""
    sample = {
        "dev examples": min(int(ablation.attrs["examples"]) for ablation in ablations.values())
    }
    level = bounds_of(PAPER, "layer-gain")["p"]
    gains = {}
    texts = []
    for task, ablation in ablations.items():
        gains[task] = _some_gain(ablation, "layer_", level)
        difference = 100 * ablation["layer_difference"].values
        p_adjusted = ablation["layer_p_adjusted"].values
        n_significant = int(((difference > 0) & (p_adjusted < level)).sum())
        best = int(np.nanargmax(difference))
        texts.append(
            f"{task} {int((difference > 0).sum())} of {len(difference)} layers better, "
            f"{n_significant} significant, best L{best} {difference[best]:+.1f}"
        )
    named = {task: gain for task, gain in gains.items() if task in LAYER_HELPS}
    printed, on_run = on_tasks(named, LAYER_HELPS)
    evidence = {
        "layer-gain": Evidence(
            "; ".join(texts),
            printed,
            {"run": on_run, "some": any_of(gains.values())},
            sample,
            open_because=not_run_text(named, LAYER_HELPS) if on_run is Outcome.TRUE else "",
        )
    }
    if "RTE" in ablations:
        evidence["first-layer"] = _first_layer_evidence(ablations["RTE"])
    else:
        evidence["first-layer"] = cannot_try("RTE was not run")
    return evidence


def _first_layer_evidence(ablation: xr.Dataset) -> Evidence:
    points = bounds_of(PAPER, "first-layer")["points"]
    change = Estimates.of(ablation, "layer_difference").one(0).times(100)
    gains = change.above(0)
    # The printed gain must lie in the interval, or below it.
    reaches = outcome_of(change.high >= points)
    sample = {"dev examples": int(ablation.attrs["examples"])}
    return Evidence(change.text("+.1f"), all_of([gains, reaches]), {"gain": gains}, sample)
