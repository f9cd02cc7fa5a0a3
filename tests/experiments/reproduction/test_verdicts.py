"""Every claim's rule: numbers for which it holds as printed, in each weaker form, not at all, and
numbers that decide nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from headwise.analyses.roles.significance import COARSE_ROLES, FINE_ROLES
from headwise.experiments.reproduction import Evidence, Verdict, papers
from headwise.experiments.reproduction.clark2019 import claims as clark
from headwise.experiments.reproduction.estimates import Estimate, Estimates, Outcome
from headwise.experiments.reproduction.jo2020 import claims as jo
from headwise.experiments.reproduction.kovaleva2019 import claims as kovaleva
from headwise.experiments.reproduction.pande2021 import claims as pande
from headwise.experiments.reproduction.pande2021.tasks import TREES, TaskRoles
from headwise.experiments.reproduction.pascual2021 import claims as pascual
from headwise.experiments.reproduction.printed import Claim, printed_paper
from headwise.experiments.reproduction.rules import (
    AS_PRINTED,
    CANNOT,
    DOES_NOT_HOLD,
    UNDECIDED,
    WEAKER,
    judge,
)
from headwise.text.known_tasks import SENTEVAL

HEADS = ("layer", "head")
LAYERS = 12
Findings = Mapping[str, Evidence]
# By claim: a verdict, or for a weaker form its key, and the evidence that must lead to it.
Cases = Mapping[str, Mapping[str, Findings]]
SURE = 0.001  # half of an interval that decides
WIDE = 0.6  # half of an interval that decides little


def estimate(value: float, half: float = SURE) -> Estimate:
    return Estimate(value, value - half, value + half)


def estimates(values: np.ndarray, half: float = SURE) -> Estimates:
    return Estimates(values, values - half, values + half)


def with_interval(
    name: str, dims: Sequence[str], values: np.ndarray, half: float = SURE, count: int = 1000
) -> dict[str, tuple[Sequence[str], np.ndarray]]:
    """The variables of a mean: the values, the ends of their intervals, how many examples."""
    return {
        name: (dims, values),
        f"{name}_low": (dims, values - half),
        f"{name}_high": (dims, values + half),
        f"{name}_n": (dims, np.full(values.shape, count)),
    }


# --- clark2019 ------------------------------------------------------------------------------------

# The heads of the paper (§3.1), with layers from 0.
PREVIOUS_HEADS = [(1, 0), (3, 0), (6, 0), (7, 0)]
NEXT_HEADS = [(0, 1), (1, 1), (1, 2), (2, 1), (5, 1)]


def position_claims(
    previous: Sequence[tuple[int, int]] = PREVIOUS_HEADS,
    following: Sequence[tuple[int, int]] = NEXT_HEADS,
    on_self: float = 0.05,
    half: float = SURE,
) -> Findings:
    """Twelve layers of three heads, some of which have 0.6 on a neighbour."""
    values = np.full((LAYERS, 3, 3), 0.2)
    values[..., 1] = on_self
    for head in previous:
        values[(*head, 0)] = 0.6
    for head in following:
        values[(*head, 2)] = 0.6
    dataset = xr.Dataset(
        with_interval("position", (*HEADS, "offset"), values, half),
        coords={"offset": [-1, 0, 1]},
    )
    return clark.neighbour_evidence(dataset)


def type_claims(
    to_sep: Sequence[float] = (0.6,) * 5,
    sep_to_sep: float = 0.95,
    peaks: Sequence[int] = (0, 1, 2),
    half: float = SURE,
) -> Findings:
    """Attention to three token types; each is highest in one third of the layers, and `to_sep` is
    what [SEP] gets in the paper's layers 6 to 10."""
    types = ["cls", "sep", "punct"]
    mass = np.full((LAYERS, 2, 3), 0.05)
    for place, third in enumerate(peaks):
        mass[4 * third : 4 * third + 4, :, place] = 0.4
    dataset = xr.Dataset(
        {
            **with_interval("mass", (*HEADS, "token_type"), mass, half),
            **with_interval(
                "mass_from_sep", (*HEADS, "token_type"), np.full_like(mass, sep_to_sep), half
            ),
        },
        coords={"token_type": types},
    )
    depth = clark.token_type_evidence(dataset)
    values = mass.copy()
    values[5:10, :, 1] = np.array(to_sep)[:, None]
    shares = dataset.assign(with_interval("mass", (*HEADS, "token_type"), values, half))
    return {**clark.token_type_evidence(shares), "early-cls": depth["early-cls"]}


def deep_types(by_third: Mapping[str, Sequence[float]], half: float = SURE) -> Findings:
    """Attention to each token type in each third of the layers."""
    mass = np.zeros((LAYERS, 2, 3))
    for place, shares in enumerate(by_third.values()):
        mass[..., place] = np.repeat(shares, 4)[:, None]
    dataset = xr.Dataset(
        {
            **with_interval("mass", (*HEADS, "token_type"), mass, half),
            **with_interval("mass_from_sep", (*HEADS, "token_type"), mass, half),
        },
        coords={"token_type": list(by_third)},
    )
    return clark.token_type_evidence(dataset)


def gradient_claims(late: float, half: float = SURE) -> Findings:
    importance = np.full((LAYERS, 2, 1), 1.0)
    importance[4:] = late
    dataset = xr.Dataset(
        with_interval("importance", (*HEADS, "token_type"), importance, half),
        coords={"token_type": ["sep"]},
    )
    return clark.gradient_evidence(dataset)


def entropy_claims(
    broad: Sequence[tuple[int, int]] = ((0, 0), (1, 0), (9, 0)),
    largest: float = 0.08,
    from_cls: float = 4.0,
    half: float = SURE,
    broadest: tuple[int, int] | None = None,
    highest: float = 4.6,
) -> Findings:
    """An even row has 5 nats; broad heads have 4.5, others 3."""
    entropy = np.full((LAYERS, 3), 3.0)
    for head in broad:
        entropy[head] = 4.5
    if broadest is not None:
        entropy[broadest] = highest
    max_weight = np.full((LAYERS, 3), largest)
    dataset = xr.Dataset(
        {
            **with_interval("entropy", HEADS, entropy, half),
            **with_interval("entropy_from_cls", HEADS, np.full((LAYERS, 3), from_cls), half),
            **with_interval("max_weight", HEADS, max_weight, half),
            "entropy_uniform": ("layer", np.full(LAYERS, 5.0)),
        }
    )
    return clark.entropy_evidence(dataset)


def entropy_with_one_low_weight() -> Findings:
    """Of the broadest heads, one has at most 0.1 on a token."""
    entropy = np.full((LAYERS, 3), 3.0)
    entropy[:4, 0] = 4.5
    max_weight = np.full((LAYERS, 3), 0.5)
    max_weight[0, 0] = 0.05
    dataset = xr.Dataset(
        {
            **with_interval("entropy", HEADS, entropy),
            **with_interval("entropy_from_cls", HEADS, entropy),
            **with_interval("max_weight", HEADS, max_weight),
            "entropy_uniform": ("layer", np.full(LAYERS, 5.0)),
        }
    )
    return clark.entropy_evidence(dataset)


TABLE_1 = ("prep", "pobj", "det", "nn")


def relation_claims(
    overall: float = 40.0,
    n_specialised: int = 3,
    from_dependent: Sequence[Outcome] = (Outcome.TRUE, Outcome.FALSE, Outcome.TRUE, Outcome.TRUE),
    present: int = 4,
    half: float = SURE,
) -> Findings:
    relations = {}
    for number, name in enumerate(TABLE_1[:present]):
        accuracy = estimate(90.0 if number < n_specialised else 50.0, half)
        relations[name] = clark.RelationScore(accuracy, 0.001, from_dependent[number], name)
    return clark.relation_evidence(estimate(overall, half), relations, TABLE_1, 1000)


def coreference_claims(
    match: float, rules: float, nominal: float, pronoun: float = -9.0, half: float = SURE
) -> Findings:
    over_rules = {
        "all": estimate(rules, half),
        "nominal": estimate(nominal, half),
        "pronoun": estimate(pronoun, half),
        "proper": estimate(-9.0, half),
    }
    return clark.coreference_evidence({"all": estimate(match, half)}, over_rules, 1000)


def probe_claims(with_words: float, half: float = SURE) -> Findings:
    baselines = {"distance": estimate(50.0, half), "right": estimate(30.0, half)}
    return clark.probe_evidence(estimate(with_words, half), baselines, 1000)


TRUE, FALSE, OPEN = Outcome.TRUE, Outcome.FALSE, Outcome.OPEN
CLARK: Cases = {
    "previous": {
        AS_PRINTED: position_claims(),
        "number": position_claims(previous=[(0, 0), (0, 2), (3, 0), (4, 0), (5, 0)]),
        "some": position_claims(previous=PREVIOUS_HEADS[:2]),
        DOES_NOT_HOLD: position_claims(previous=[]),
        UNDECIDED: position_claims(previous=PREVIOUS_HEADS[:1], half=0.2),
    },
    "next": {
        AS_PRINTED: position_claims(),
        "number": position_claims(following=[(layer, 1) for layer in range(5)]),
        "some": position_claims(following=NEXT_HEADS[:4]),
        DOES_NOT_HOLD: position_claims(following=[]),
        UNDECIDED: position_claims(following=NEXT_HEADS[:1], half=0.2),
    },
    "earlier": {
        AS_PRINTED: position_claims(),
        "some": position_claims(following=[(layer, 1) for layer in range(6, 12)]),
        DOES_NOT_HOLD: position_claims(previous=[], following=[]),
        UNDECIDED: position_claims(previous=[], following=[], half=0.2),
    },
    "current": {
        AS_PRINTED: position_claims(on_self=0.05),
        DOES_NOT_HOLD: position_claims(on_self=0.15),
        UNDECIDED: position_claims(on_self=0.08, half=0.1),
    },
    "sep-half": {
        AS_PRINTED: type_claims(to_sep=(0.6,) * 5),
        "some-layer": type_claims(to_sep=(0.6, 0.3, 0.3, 0.3, 0.3)),
        DOES_NOT_HOLD: type_claims(to_sep=(0.4,) * 5),
        UNDECIDED: type_claims(to_sep=(0.49,) * 5, half=0.1),
    },
    "sep-self": {
        AS_PRINTED: type_claims(sep_to_sep=0.95),
        "half": type_claims(sep_to_sep=0.7),
        DOES_NOT_HOLD: type_claims(sep_to_sep=0.3),
        UNDECIDED: type_claims(sep_to_sep=0.5, half=0.1),
    },
    "early-cls": {
        AS_PRINTED: type_claims(),
        # The order of the mean layers is the paper's, but [SEP] gets most in the last third.
        "order": deep_types(
            {"cls": (0.4, 0.1, 0.1), "sep": (0.1, 0.2, 0.3), "punct": (0.01, 0.01, 0.4)}
        ),
        DOES_NOT_HOLD: type_claims(peaks=(2, 1, 0)),
        UNDECIDED: type_claims(half=0.3),
    },
    "sep-gradient": {
        AS_PRINTED: gradient_claims(0.05),
        "half": gradient_claims(0.3),
        DOES_NOT_HOLD: gradient_claims(0.6),
        UNDECIDED: gradient_claims(0.5, half=0.2),
    },
    "broad-low": {
        AS_PRINTED: entropy_claims(),
        "broadest": entropy_claims(broad=[(9, 0), (10, 0)], broadest=(0, 0)),
        "some": entropy_claims(broad=[(9, 0), (10, 0)]),
        DOES_NOT_HOLD: entropy_claims(broad=[], broadest=(9, 0), highest=3.5),
        UNDECIDED: entropy_claims(broad=[(9, 0)], half=1.0),
    },
    "broad-tenth": {
        AS_PRINTED: entropy_claims(largest=0.08),
        "some": entropy_with_one_low_weight(),
        DOES_NOT_HOLD: entropy_claims(largest=0.2),
        UNDECIDED: entropy_claims(largest=0.1, half=0.05),
    },
    "cls-last": {
        AS_PRINTED: entropy_claims(from_cls=4.0),
        "higher": entropy_claims(from_cls=3.5),
        DOES_NOT_HOLD: entropy_claims(from_cls=2.5),
        UNDECIDED: entropy_claims(from_cls=3.1, half=0.2),
    },
    "no-single": {
        AS_PRINTED: relation_claims(overall=45),
        DOES_NOT_HOLD: relation_claims(overall=55),
        UNDECIDED: relation_claims(overall=49, half=2),
    },
    "specialise": {
        AS_PRINTED: relation_claims(n_specialised=3),
        "one": relation_claims(n_specialised=2),
        DOES_NOT_HOLD: relation_claims(n_specialised=0),
        UNDECIDED: relation_claims(n_specialised=0, half=30),
    },
    "dependent": {
        AS_PRINTED: relation_claims(),
        # One relation of Table 1 does not occur; pobj does as the others do.
        "present": relation_claims(from_dependent=[TRUE, TRUE, TRUE, TRUE], present=3),
        "most": relation_claims(from_dependent=[TRUE, FALSE, TRUE, FALSE]),
        DOES_NOT_HOLD: relation_claims(from_dependent=[FALSE, FALSE, TRUE, FALSE]),
        UNDECIDED: relation_claims(from_dependent=[OPEN, FALSE, OPEN, TRUE]),
    },
    "close-rules": {
        AS_PRINTED: coreference_claims(11, -4, 0),
        "over-match": coreference_claims(11, -9, 0),
        "above-match": coreference_claims(5, -4, 0),
        DOES_NOT_HOLD: coreference_claims(-1, -4, 0),
        UNDECIDED: coreference_claims(1, -4, 0, half=3),
    },
    "nominal": {
        AS_PRINTED: coreference_claims(11, -4, 0),
        "above-all": coreference_claims(11, -4, 0, pronoun=2),
        DOES_NOT_HOLD: coreference_claims(11, -4, -10),
        UNDECIDED: coreference_claims(11, -4, -3, half=8),
    },
    "words-best": {
        AS_PRINTED: probe_claims(61),
        "above": probe_claims(55),
        DOES_NOT_HOLD: probe_claims(49),
        UNDECIDED: probe_claims(51, half=2),
    },
    "same-layer": {
        AS_PRINTED: clark.distance_evidence(0.2, 0.3, 0.01, 1000),
        DOES_NOT_HOLD: clark.distance_evidence(0.3, 0.3, 0.5, 1000),
        UNDECIDED: clark.distance_evidence(0.2, 0.3, 0.05, 1000),
    },
}


# --- kovaleva2019 ---------------------------------------------------------------------------------

ALL_TASKS = kovaleva.TASKS
SOME_TASKS = ("MRPC", "STS-B", "SST-2", "RTE")


def pattern_claims(
    heterogeneous: Mapping[str, float],
    block: float = 0.1,
    vertical: float = 0.2,
    half: float = SURE,
) -> Findings:
    by_task = {}
    for task, share in heterogeneous.items():
        values = np.array([vertical, 0.2, 0.1, block, share])
        variables = {
            **with_interval("overall", ("pattern",), values, half),
            **with_interval("proportion", (*HEADS, "pattern"), np.ones((1, 1, 5))),
        }
        coords = {"pattern": list(kovaleva.REPEATED_PATTERNS)}
        by_task[task] = xr.Dataset(variables, coords=coords)
    return kovaleva.pattern_evidence(by_task)


def heterogeneous_shares(tasks: Sequence[str], lowest: float = 0.32) -> dict[str, float]:
    shares = dict.fromkeys(tasks, 0.5)
    shares["MRPC"] = lowest
    if "QQP" in shares:
        shares["QQP"] = 0.61
    return shares


def frame_claims(
    n_significant: int, tested: bool = True, sentences: int = 400, p_value: float = 0.01
) -> Findings:
    above = np.zeros((12, 12))
    above[1, :2] = 1
    stands_out = np.zeros((12, 12))
    stands_out[1, :n_significant] = 1
    variables = {
        "above": (HEADS, above),
        "stands_out": (HEADS, stands_out),
        "p_adjusted": (HEADS, np.full((12, 12), p_value if tested else np.nan)),
    }
    return kovaleva.frame_evidence(xr.Dataset(variables, attrs={"sentences": sentences}))


def start_claims(
    tasks: Sequence[str],
    gain: float = 20.0,
    random_loss: float = -10.0,
    random_gain: float = -5.0,
    half: float = SURE,
) -> Findings:
    scores = kovaleva.StartScores(
        estimate(gain, half), estimate(random_loss, half), estimate(random_gain, half), 500
    )
    return kovaleva.start_evidence(dict.fromkeys(tasks, scores))


def random_worse(gains: Mapping[str, float]) -> Findings:
    starts = {}
    for task, gain in gains.items():
        starts[task] = kovaleva.StartScores(estimate(9), estimate(-9), estimate(gain), 500)
    return kovaleva.start_evidence(starts)


def change_claims(lowest_by_task: Mapping[str, Sequence[int]], half: float = SURE) -> Findings:
    """Six layers; these have the lowest cosines, the first of them the very lowest."""
    cosines = {}
    for task, lowest in lowest_by_task.items():
        values = np.ones((6, 2))
        for rank, layer in enumerate(lowest):
            values[layer] = 0.5 + 0.1 * rank
        cosines[task] = estimates(values, half)
    return kovaleva.last_layers_evidence(cosines, 500)


def special_claims(
    cls_layers: Mapping[str, int], sst_to_sep: float = 0.5, half: float = SURE
) -> Findings:
    """Attention to [CLS] lies in one of four layers, that to [SEP] is even over them."""
    by_task = {}
    for task, layer in cls_layers.items():
        values = np.full((4, 2, 2), 0.01)
        values[layer, :, 0] = 0.5
        values[..., 1] = sst_to_sep if task == "SST-2" else 0.3
        variables = with_interval("attention", (*HEADS, "feature"), values, half)
        by_task[task] = xr.Dataset(variables, coords={"feature": ["cls", "sep"]})
    return kovaleva.special_token_evidence(by_task)


def cls_to_sep_claims(to_punct: Mapping[str, float], half: float = SURE) -> Findings:
    """[SEP] gets 0.3 from [CLS], punctuation what is given."""
    by_task = {}
    for task, share in to_punct.items():
        values = np.tile([0.3, share, 0.1], (2, 1))
        variables = with_interval("from_cls", ("head", "feature"), values, half)
        by_task[task] = xr.Dataset(variables, coords={"feature": ["sep", "punct", "cls"]})
    return kovaleva.cls_to_sep_evidence(by_task)


def punctuation(tasks: Sequence[str], exceptions: Sequence[str]) -> dict[str, float]:
    return {task: 0.5 if task in exceptions else 0.1 for task in tasks}


def feature_claims(noun: float, half: float = SURE) -> Findings:
    values = np.tile([0.3, 0.8, noun], (2, 2, 1))
    variables = with_interval("attention", (*HEADS, "feature"), values, half)
    return kovaleva.feature_evidence(
        xr.Dataset(variables, coords={"feature": ["cls", "sep", "noun"]})
    )


def diagonal_claims(*on_neighbour: float) -> Findings:
    best = [(f"L0H{number}", share) for number, share in enumerate(on_neighbour)]
    other = [("L1H0", 0.9)] * 3
    return kovaleva.diagonal_evidence({"verb->subject": other, "noun->pronoun": best}, 500)


def ablation(
    gain: float = 0.02,
    p_value: float = 0.01,
    mean: float = 0.01,
    frame: float = 0.0,
    first_layer: float = 0.04,
    layer_p: float = 0.01,
    half: float = SURE,
) -> xr.Dataset:
    """The ablation of a model of two layers of two heads."""
    difference = np.array([[gain, -0.05], [-0.05, -0.05]])
    by_layer = np.array([first_layer, -0.1])
    variables = {
        **with_interval("difference", HEADS, difference, half),
        "p_adjusted": (HEADS, np.full((2, 2), p_value)),
        **with_interval("layer_difference", ("layer",), by_layer, half),
        "layer_p_adjusted": ("layer", np.full(2, layer_p)),
        **with_interval("set_difference", ("set",), np.array([frame]), half),
    }
    attrs = {
        "examples": 500,
        "improving": int((difference > 0).sum()),
        "improving_significant": int((difference > 0).sum()) * int(p_value < 0.05),
        "mean_difference": mean,
        "mean_difference_low": mean - half,
        "mean_difference_high": mean + half,
    }
    return xr.Dataset(variables, coords={"set": ["frames L0H0"]}, attrs=attrs)


def head_claims(tasks: Sequence[str], **numbers: float) -> Findings:
    return kovaleva.head_evidence({task: ablation(**numbers) for task in tasks})


def layer_claims(tasks: Sequence[str] = ("RTE",), **numbers: float) -> Findings:
    return kovaleva.layer_evidence({task: ablation(**numbers) for task in tasks})


EXCEPTIONS = ("STS-B", "RTE", "QNLI")
LAST_TWO = dict.fromkeys(ALL_TASKS, (5, 4))
KOVALEVA: Cases = {
    "heterogeneous": {
        AS_PRINTED: pattern_claims(heterogeneous_shares(ALL_TASKS)),
        "range": pattern_claims(heterogeneous_shares(SOME_TASKS, lowest=0.4)),
        "varies": pattern_claims(heterogeneous_shares(SOME_TASKS, lowest=0.1)),
        # Two to six per cent differ for sure, and are no range like the paper's.
        DOES_NOT_HOLD: pattern_claims({"MRPC": 0.03, "STS-B": 0.02, "SST-2": 0.06}),
        UNDECIDED: pattern_claims(heterogeneous_shares(SOME_TASKS, lowest=0.4), half=0.3),
    },
    "repeated": {
        AS_PRINTED: pattern_claims(heterogeneous_shares(ALL_TASKS)),
        "run": pattern_claims(heterogeneous_shares(SOME_TASKS)),
        "four": pattern_claims(heterogeneous_shares(SOME_TASKS), block=0.0),
        DOES_NOT_HOLD: pattern_claims(heterogeneous_shares(SOME_TASKS), vertical=0.0),
        UNDECIDED: pattern_claims(heterogeneous_shares(SOME_TASKS), vertical=0.01, half=0.02),
    },
    "two-heads": {
        AS_PRINTED: frame_claims(2),
        "one": frame_claims(1),
        # More than moved links, but no more than heads of random weights.
        "moved": frame_claims(0),
        DOES_NOT_HOLD: frame_claims(0, p_value=0.2),
        UNDECIDED: frame_claims(2, tested=False),
    },
    "better": {
        AS_PRINTED: start_claims(ALL_TASKS),
        "run": start_claims(SOME_TASKS),
        DOES_NOT_HOLD: start_claims(ALL_TASKS, gain=-1),
        UNDECIDED: start_claims(ALL_TASKS, gain=1, half=2),
    },
    "random-lower": {
        AS_PRINTED: start_claims(ALL_TASKS),
        "run": start_claims(SOME_TASKS),
        DOES_NOT_HOLD: start_claims(ALL_TASKS, random_loss=1),
        UNDECIDED: start_claims(ALL_TASKS, random_loss=-1, half=2),
    },
    "random-worse": {
        AS_PRINTED: random_worse({"STS-B": -5, "QNLI": -5}),
        "one": random_worse({"STS-B": -5, "QNLI": 5}),
        DOES_NOT_HOLD: random_worse({"STS-B": 5, "QNLI": 5}),
        UNDECIDED: start_claims(SOME_TASKS, random_gain=-1, half=2),
    },
    "last-two": {
        AS_PRINTED: change_claims(LAST_TWO | {"QQP": (0, 1)}),
        "run": change_claims(dict.fromkeys(SOME_TASKS, (5, 4))),
        "most": change_claims({"MRPC": (5, 4), "RTE": (4, 5), "STS-B": (5, 3)}),
        "last": change_claims({"MRPC": (5, 3), "RTE": (5, 2)}),
        DOES_NOT_HOLD: change_claims({"MRPC": (3, 5), "RTE": (3, 2)}),
        UNDECIDED: change_claims(LAST_TWO, half=WIDE),
    },
    "cls-early": {
        AS_PRINTED: special_claims(dict.fromkeys(ALL_TASKS, 0)),
        "run": special_claims(dict.fromkeys(SOME_TASKS, 0)),
        "most": special_claims(dict.fromkeys(SOME_TASKS, 0) | {"RTE": 3}),
        DOES_NOT_HOLD: special_claims(dict.fromkeys(SOME_TASKS, 3)),
        UNDECIDED: special_claims(dict.fromkeys(SOME_TASKS, 1), half=0.29),
    },
    "sst-sep": {
        AS_PRINTED: special_claims(dict.fromkeys(ALL_TASKS, 0)),
        "run": special_claims(dict.fromkeys(SOME_TASKS, 0)),
        DOES_NOT_HOLD: special_claims(dict.fromkeys(ALL_TASKS, 0), sst_to_sep=0.2),
        UNDECIDED: special_claims(dict.fromkeys(ALL_TASKS, 0), sst_to_sep=0.31, half=0.1),
    },
    "special": {
        AS_PRINTED: feature_claims(0.3),
        "less": feature_claims(0.5),
        DOES_NOT_HOLD: feature_claims(0.9),
        UNDECIDED: feature_claims(0.79, half=0.1),
    },
    "cls-sep": {
        AS_PRINTED: cls_to_sep_claims(punctuation(ALL_TASKS, EXCEPTIONS)),
        "run": cls_to_sep_claims(punctuation(SOME_TASKS, EXCEPTIONS)),
        # STS-B and RTE do the opposite of what the sentence says of them.
        "most": cls_to_sep_claims(punctuation(SOME_TASKS, ())),
        DOES_NOT_HOLD: cls_to_sep_claims(punctuation(SOME_TASKS, SOME_TASKS)),
        UNDECIDED: cls_to_sep_claims(dict.fromkeys(SOME_TASKS, 0.29), half=0.1),
    },
    "diagonal": {
        AS_PRINTED: diagonal_claims(0.9, 0.8, 0.7),
        "best": diagonal_claims(0.9, 0.8, 0.1),
        DOES_NOT_HOLD: diagonal_claims(0.5, 0.8, 0.9),
    },
    "some-gain": {
        AS_PRINTED: head_claims(ALL_TASKS),
        "run": head_claims(SOME_TASKS),
        "some": kovaleva.head_evidence({"RTE": ablation(), "MRPC": ablation(gain=-0.05)}),
        DOES_NOT_HOLD: head_claims(SOME_TASKS, gain=-0.05),
        # Any positive noise is not enough.
        UNDECIDED: head_claims(SOME_TASKS, p_value=0.2),
    },
    "random-head": {
        AS_PRINTED: head_claims(SOME_TASKS),
        "some": kovaleva.head_evidence({"RTE": ablation(), "MRPC": ablation(mean=-0.01)}),
        DOES_NOT_HOLD: head_claims(SOME_TASKS, mean=-0.01),
        UNDECIDED: head_claims(SOME_TASKS, mean=0.01, half=0.02),
    },
    "frames-idle": {
        AS_PRINTED: head_claims(ALL_TASKS),
        "run": head_claims(SOME_TASKS),
        # A sure fall of half a point is a drop, a small one.
        "small": head_claims(SOME_TASKS, frame=-0.005),
        DOES_NOT_HOLD: head_claims(SOME_TASKS, frame=-0.02),
        UNDECIDED: head_claims(SOME_TASKS, frame=-0.005, half=0.02),
    },
    "first-layer": {
        AS_PRINTED: layer_claims(first_layer=0.04),
        "gain": layer_claims(first_layer=0.01),
        DOES_NOT_HOLD: layer_claims(first_layer=-0.01),
        UNDECIDED: layer_claims(first_layer=0.01, half=0.02),
    },
    "layer-gain": {
        AS_PRINTED: layer_claims(("MRPC", "STS-B", "SST-2", "QQP", "RTE")),
        "run": layer_claims(("MRPC", "RTE")),
        # One task of three is not "improves the results".
        "some": kovaleva.layer_evidence(
            {"MRPC": ablation(layer_p=0.2), "STS-B": ablation(), "SST-2": ablation(layer_p=0.2)}
        ),
        DOES_NOT_HOLD: layer_claims(first_layer=-0.1),
        UNDECIDED: layer_claims(layer_p=0.2),
    },
}


# --- pascual2021 ----------------------------------------------------------------------------------


def local_claims(n_pearson: int = 2, n_spearman: int = 4, half: float = SURE) -> Findings:
    """144 heads, some of which have low correlations."""
    pearson = np.full(144, 0.95)
    spearman = np.full(144, 0.97)
    pearson[:n_pearson] = 0.6
    spearman[:n_spearman] = 0.8
    return pascual.local_evidence(
        estimates(pearson.reshape(12, 12), half), estimates(spearman.reshape(12, 12), half), 900
    )


def offset_claims(
    first: Sequence[float] = (-1.0, -1.0), last: float = 1.0, n_negligible: int = 3
) -> Findings:
    centre = np.zeros((LAYERS, 4))
    centre[:3] = np.tile(first, 2)
    centre[8:] = last
    histogram = np.full((LAYERS, 4, 3), 1.0)
    histogram[1, :n_negligible] = [0.99, 0, 0.01]
    return pascual.position_evidence(
        xr.DataArray(centre, dims=HEADS),
        xr.DataArray(histogram, dims=(*HEADS, "offset"), coords={"offset": [-1, 0, 1]}),
        900,
    )


def language_claims(
    first: float = -1.0, last: float = 1.0, missing: Sequence[str] = ()
) -> Findings:
    centres = {"English": np.array([-1.0, 0, 1]), "German": np.array([first, 0, last])}
    return pascual.language_evidence(centres, list(missing), 900)


def uniform_claims(late: float, early: float = 2.0) -> Findings:
    """Attention lies 4 tokens off centre in every layer, input contributions as given."""
    of_input = np.array([early] * 4 + [late] * 8)
    return pascual.uniform_evidence(np.full(12, -4.0), of_input, 900)


def far_claims(
    pearson: Sequence[float] = (0.9, 0.7, 0.6, 0.5, 0.3, 0.25, 0.2, 0.19, 0.18, 0.17, 0.16, 0.15),
    third: float = 0.6,
    last: float = 0.1,
    half: float = SURE,
) -> Findings:
    spearman = np.full((LAYERS, 3), 0.5)
    spearman[2] = third
    spearman[-1] = last
    by_head = np.repeat(np.array(pearson)[:, None], 3, axis=1)
    return pascual.far_evidence(estimates(by_head, half), estimates(spearman, half), 900)


def map_claims(
    in_input: Sequence[float] = (0.05, 0.05, 0.05),
    block: float = 0.2,
    deep_block: float = 0.0,
    half: float = SURE,
) -> Findings:
    """Vertical, diagonal, mixed and block maps, a fifth each in attention."""
    names = [*pascual.FADING_PATTERNS, "block"]
    shares = np.full((2, LAYERS, 4), 0.2)
    shares[1, :, :3] = in_input
    shares[1, :4, 3] = block
    shares[1, 4:, 3] = deep_block
    variables = with_interval("pattern_share", ("source", "layer", "pattern"), shares, half, 100)
    coords = {"source": ["attention", "input"], "pattern": names}
    return pascual.pattern_evidence(xr.Dataset(variables, coords=coords))


SLOW_FALL = tuple(np.linspace(0.9, 0.5, 12))
PASCUAL: Cases = {
    "local-pearson": {
        AS_PRINTED: local_claims(),
        "share": local_claims(n_pearson=3),
        DOES_NOT_HOLD: local_claims(n_pearson=9),
        UNDECIDED: local_claims(half=WIDE),
    },
    "local-spearman": {
        AS_PRINTED: local_claims(),
        "share": local_claims(n_spearman=5),
        DOES_NOT_HOLD: local_claims(n_spearman=9),
        UNDECIDED: local_claims(half=WIDE),
    },
    "past-first": {
        AS_PRINTED: offset_claims(),
        "mean": offset_claims(first=(-9.0, 1.0)),
        DOES_NOT_HOLD: offset_claims(first=(1.0, 1.0)),
    },
    "future-later": {
        AS_PRINTED: offset_claims(),
        DOES_NOT_HOLD: offset_claims(last=-1.0),
    },
    "negligible": {
        AS_PRINTED: offset_claims(n_negligible=3),
        "some": offset_claims(n_negligible=2),
        DOES_NOT_HOLD: offset_claims(n_negligible=0),
    },
    "languages": {
        AS_PRINTED: language_claims(),
        "ahead": language_claims(first=1.0, last=2.0),
        DOES_NOT_HOLD: language_claims(first=1.0, last=0.0),
    },
    "uniform": {
        AS_PRINTED: uniform_claims(1.9),
        # No nearer than in the layers before: not "especially".
        "late": uniform_claims(1.9, early=1.8),
        "nearer": uniform_claims(-2.1),
        DOES_NOT_HOLD: uniform_claims(4.0),
    },
    "decreases": {
        AS_PRINTED: far_claims(),
        "falls": far_claims(pearson=SLOW_FALL),
        DOES_NOT_HOLD: far_claims(pearson=SLOW_FALL[::-1]),
    },
    "after-four": {
        AS_PRINTED: far_claims(),
        DOES_NOT_HOLD: far_claims(pearson=(0.9,) * 12),
        UNDECIDED: far_claims(pearson=(0.49,) * 12, half=0.1),
    },
    "last-four": {
        AS_PRINTED: far_claims(),
        "together": far_claims(pearson=(*(0.9,) * 8, 0.3, 0.1, 0.1, 0.1)),
        DOES_NOT_HOLD: far_claims(pearson=(0.9,) * 12),
        UNDECIDED: far_claims(pearson=(0.24,) * 12, half=0.1),
    },
    "spearman-three": {
        AS_PRINTED: far_claims(),
        "last": far_claims(third=0.8),
        "third": far_claims(last=0.3),
        DOES_NOT_HOLD: far_claims(third=0.8, last=0.3),
        UNDECIDED: far_claims(third=0.69, last=0.24, half=0.1),
    },
    "block-stays": {
        AS_PRINTED: map_claims(deep_block=0.2),
        "together": map_claims(in_input=(0.0, 0.15, 0.0), deep_block=0.2),
        "block": map_claims(in_input=(0.2, 0.2, 0.2), deep_block=0.2),
        DOES_NOT_HOLD: map_claims(block=0.0),
        UNDECIDED: map_claims(half=0.3),
    },
    "no-deep-block": {
        AS_PRINTED: map_claims(),
        "fewer": map_claims(deep_block=0.1),
        DOES_NOT_HOLD: map_claims(deep_block=0.3),
        UNDECIDED: map_claims(block=0.02, deep_block=0.02, half=0.01),
    },
}


# --- pande2021 ------------------------------------------------------------------------------------

ROLES = sorted({*COARSE_ROLES, *FINE_ROLES, "local:prev", "local:next"})
Heads = Sequence[tuple[int, int]]
FOUR = pande.TASKS
TWO = ("MRPC", "SST-2")


def task_roles(
    task: str,
    heads: Mapping[str, Heads],
    unskilled: float = 0.05,
    rank: float = 0.8,
    p: float = 0.01,
) -> TaskRoles:
    """Roles of a model of twelve layers of ten heads; the released ones are the same."""
    has_role = np.zeros((LAYERS, 10, len(ROLES)))
    for role, members in heads.items():
        for layer, head in members:
            has_role[layer, head, ROLES.index(role)] = 1
    variables = {
        "has_role": ((*HEADS, "role"), has_role),
        "bias": ((*HEADS, "role"), has_role),
        "overlap_p_adjusted": (("role", "role_b"), np.full((len(ROLES), len(ROLES)), p)),
    }
    attrs = {"inputs": 500, "unskilled": unskilled, "spearman_local_syntactic": rank}
    roles = xr.Dataset(variables, coords={"role": ROLES, "role_b": ROLES}, attrs=attrs)
    return TaskRoles(task, roles, roles, parsed=True)


def overlap_claims(
    tasks: Sequence[str] = FOUR, heads: Mapping[str, Heads] | None = None, **numbers: float
) -> Findings:
    results = [task_roles(task, heads or {}, **numbers) for task in tasks]
    return pande.overlap_evidence(results, results)


def overlap_of(heads_by_task: Mapping[str, Mapping[str, Heads]]) -> Findings:
    results = [task_roles(task, heads) for task, heads in heads_by_task.items()]
    return pande.overlap_evidence(results, results)


def role_layers(heads_by_task: Mapping[str, Mapping[str, Heads]]) -> Findings:
    results = [task_roles(task, heads) for task, heads in heads_by_task.items()]
    return pande.layer_evidence(results, results, LAYERS)


def on_each(tasks: Sequence[str], heads: Mapping[str, Heads]) -> Findings:
    return role_layers(dict.fromkeys(tasks, heads))


def first_heads(count: int, layer: int = 0) -> list[tuple[int, int]]:
    """So many heads, layer by layer from a layer on."""
    return [(layer + number // 10, number % 10) for number in range(count)]


def direction(n_next: int, n_prev: int) -> dict[str, Heads]:
    """Three nsubj heads, of which some attend ahead; three dobj heads, of which some attend back."""
    nsubj = first_heads(3)
    dobj = first_heads(3, layer=1)
    return {
        "nsubj": nsubj,
        "dobj": dobj,
        "local:next": nsubj[:n_next],
        "local:prev": dobj[:n_prev],
    }


def blocks(n_blocks: int, n_local: int) -> dict[str, Heads]:
    members = first_heads(n_blocks)
    return {"block": members, "local": members[:n_local]}


def changed(
    tasks: Sequence[str] = FOUR,
    delimiter: float = -0.5,
    block: float = 0.5,
    sep: float = -0.8,
    cls: float = 0.1,
    initial: float = 0.1,
    half: float = SURE,
) -> Findings:
    """Changes of the bias: in the final third as given, in the initial third `initial`."""
    roles = [*COARSE_ROLES, "cls", "sep"]
    values = np.full((1, len(roles), 3), 0.5)
    values[..., 0] = initial
    for role, value in (("delimiter", delimiter), ("block", block), ("sep", sep), ("cls", cls)):
        values[0, roles.index(role), 2] = value
    variables = with_interval("bias_third_change", ("model", "role", "third"), values, half)
    coords = {"role": roles, "third": ["initial", "middle", "final"]}
    return pande.change_evidence(dict.fromkeys(tasks, xr.Dataset(variables, coords=coords)), 500)


def mixed_changes(**numbers: float) -> Findings:
    """MRPC as the paper says, SST-2 with other numbers."""
    roles = [*COARSE_ROLES, "cls", "sep"]
    results = {}
    for task in TWO:
        values = np.full((1, len(roles), 3), 0.5)
        values[..., 0] = 0.1
        values[0, roles.index("delimiter"), 2] = -0.5
        if task == "SST-2":
            for role, value in numbers.items():
                values[0, roles.index(role), 2] = value
        variables = with_interval("bias_third_change", ("model", "role", "third"), values)
        coords = {"role": roles, "third": ["initial", "middle", "final"]}
        results[task] = xr.Dataset(variables, coords=coords)
    return pande.change_evidence(results, 500)


def skew(n_skewed: int = 1, n_by_mean: int = 2) -> Findings:
    return pande.score_evidence(pande.SkewCounts(n_skewed, 100, n_by_mean, 500))


def p_values(n_between: int, n_zero: int = 50) -> Findings:
    values = np.ones(100)
    values[:n_zero] = 0.0
    values[n_zero : n_zero + n_between] = 0.5
    return pande.bimodal_evidence(values, 500)


MIDDLE = first_heads(10, layer=6)
LAST = first_heads(20, layer=10)
PANDE: Cases = {
    "skewed": {AS_PRINTED: skew(1), DOES_NOT_HOLD: skew(0)},
    "averages": {
        WEAKER: skew(n_by_mean=2),
        "one": skew(n_by_mean=1),
        DOES_NOT_HOLD: skew(n_by_mean=0),
    },
    "bimodal": {
        AS_PRINTED: p_values(5),
        "tenth": p_values(9),
        DOES_NOT_HOLD: p_values(20),
    },
    "delimiters": {
        AS_PRINTED: overlap_claims(heads={"delimiter": first_heads(61)}),
        "run": overlap_claims(TWO, {"delimiter": first_heads(61)}),
        "mean": overlap_of(
            {"MRPC": {"delimiter": first_heads(100)}, "SST-2": {"delimiter": first_heads(50)}}
        ),
        DOES_NOT_HOLD: overlap_claims(heads={"delimiter": first_heads(60)}),
    },
    "few-unskilled": {
        AS_PRINTED: overlap_claims(unskilled=0.05),
        "run": overlap_claims(TWO, unskilled=0.05),
        "fifth": overlap_claims(unskilled=0.15),
        DOES_NOT_HOLD: overlap_claims(unskilled=0.2),
    },
    "local-syntactic": {
        AS_PRINTED: overlap_claims(heads={"syntactic": first_heads(10), "local": first_heads(6)}),
        "run": overlap_claims(TWO, {"syntactic": first_heads(10), "local": first_heads(6)}),
        DOES_NOT_HOLD: overlap_claims(
            heads={"syntactic": first_heads(10), "local": first_heads(5)}
        ),
        # Three of three heads are no finding.
        UNDECIDED: overlap_claims(heads={"syntactic": first_heads(3), "local": first_heads(3)}),
    },
    "rank": {
        AS_PRINTED: overlap_claims(rank=0.73),
        "run": overlap_claims(TWO, rank=0.73),
        "high": overlap_claims(rank=0.7),
        DOES_NOT_HOLD: overlap_claims(rank=0.4),
    },
    "nsubj-next": {
        AS_PRINTED: overlap_claims(heads=direction(2, 2)),
        "run": overlap_claims(TWO, direction(2, 2)),
        "more": overlap_claims(heads=direction(1, 1)),
        DOES_NOT_HOLD: overlap_claims(heads=direction(0, 2)),
        # No such heads at all: four zero counts.
        UNDECIDED: overlap_claims(heads={}),
    },
    "block-apart": {
        AS_PRINTED: overlap_claims(heads=blocks(20, 1)),
        "run": overlap_claims(TWO, blocks(20, 1)),
        "quarter": overlap_claims(heads=blocks(20, 4)),
        DOES_NOT_HOLD: overlap_claims(heads=blocks(20, 5)),
        # None of one block head is no small overlap.
        UNDECIDED: overlap_claims(heads=blocks(1, 0)),
    },
    "multi-middle": {
        AS_PRINTED: on_each(FOUR, {"cls": MIDDLE, "sep": MIDDLE}),
        "run": on_each(TWO, {"cls": MIDDLE, "sep": MIDDLE}),
        DOES_NOT_HOLD: on_each(FOUR, {"cls": first_heads(9), "sep": first_heads(9)}),
        # A treebank does not contradict a sentence about three tasks.
        UNDECIDED: on_each((TREES,), {"cls": first_heads(9), "sep": first_heads(9)}),
    },
    "first-layer": {
        AS_PRINTED: on_each(FOUR, {"cls": first_heads(1)}),
        "run": on_each(TWO, {"cls": first_heads(1)}),
        "quarter": on_each(FOUR, {"cls": first_heads(2)}),
        DOES_NOT_HOLD: on_each(FOUR, {"cls": first_heads(3)}),
    },
    "only-delimiters": {
        AS_PRINTED: on_each(FOUR, {"cls": LAST, "nsubj": LAST[:9]}),
        "run": on_each(TWO, {"cls": LAST, "nsubj": LAST[:9]}),
        "mean": role_layers({"MRPC": {"cls": LAST}, "SST-2": {"cls": LAST, "nsubj": LAST[:12]}}),
        DOES_NOT_HOLD: on_each(FOUR, {"cls": LAST, "nsubj": LAST[:10]}),
        UNDECIDED: on_each(FOUR, {}),
    },
    "block-zeroth": {
        AS_PRINTED: on_each(FOUR, {"block": first_heads(6)}),
        "run": on_each(("MRPC",), {"block": first_heads(6)}),
        "more": on_each(FOUR, {"block": first_heads(5)}),
        DOES_NOT_HOLD: on_each(FOUR, {"block": first_heads(5, layer=1)}),
        UNDECIDED: on_each(FOUR, {"block": first_heads(1)}),
    },
    "syntactic-middle": {
        AS_PRINTED: on_each(FOUR, {"syntactic": MIDDLE}),
        "run": on_each(TWO, {"syntactic": MIDDLE}),
        DOES_NOT_HOLD: on_each(FOUR, {"syntactic": first_heads(10)}),
        UNDECIDED: on_each(FOUR, {"syntactic": MIDDLE[:9]}),
    },
    "last-two": {
        AS_PRINTED: on_each(FOUR, {"syntactic": LAST[:2]}),
        "run": on_each(TWO, {"syntactic": LAST[:2]}),
        "syntactic": on_each(
            FOUR, {"cls": LAST[:5], "sep": LAST[:5], "syntactic": first_heads(10)}
        ),
        DOES_NOT_HOLD: on_each(FOUR, {"syntactic": [*first_heads(10), *LAST[:3]]}),
        # Of one syntactic head none lies in the last two layers.
        UNDECIDED: on_each(FOUR, {"cls": LAST[:5], "sep": LAST[:5], "syntactic": first_heads(1)}),
    },
    "delimiter-falls": {
        AS_PRINTED: changed(),
        "run": changed(TWO),
        "some": mixed_changes(delimiter=0.5),
        DOES_NOT_HOLD: changed(delimiter=0.5),
        UNDECIDED: changed(delimiter=-0.5, half=WIDE),
    },
    "block-rises": {
        AS_PRINTED: changed(),
        "run": changed(TWO),
        "some": mixed_changes(block=-0.5),
        DOES_NOT_HOLD: changed(block=-0.5),
        UNDECIDED: changed(block=0.5, half=WIDE),
    },
    "sep-not-cls": {
        AS_PRINTED: changed(),
        "run": changed(TWO),
        "more": changed(cls=-0.6),
        DOES_NOT_HOLD: changed(cls=-0.9),
        UNDECIDED: changed(half=WIDE),
    },
    "initial-stays": {
        AS_PRINTED: changed(),
        "run": changed(TWO),
        "most": mixed_changes(delimiter=0.15),
        DOES_NOT_HOLD: changed(initial=0.3),
    },
}


# --- jo2020 ---------------------------------------------------------------------------------------


def by_layer(values: Sequence[float]) -> np.ndarray:
    """Accuracies of four heads a layer, nearly alike."""
    return np.array(values, dtype=float)[:, None] + np.array([-0.2, -0.1, 0.1, 0.2])


def probed_task(values: np.ndarray, half: float = 0.5, learned: bool = True) -> jo.ProbedTask:
    return jo.ProbedTask(estimates(values, half), 50.0, learned, 1000)


FALLING = by_layer((90, 90, 60, 60))
RISING = by_layer((60, 60, 90, 90))
IN_THE_MIDDLE = by_layer((60, 90, 80, 60))
EVEN = by_layer((60, 60, 60, 60))


def probed_layers(
    lower: np.ndarray = FALLING,
    middle: np.ndarray = IN_THE_MIDDLE,
    upper: np.ndarray = RISING,
    both: bool = False,
    half: float = 0.5,
) -> Findings:
    """The second task of each pair has these accuracies, with `both` the first one too."""
    return jo.layer_evidence(
        {
            "sentence_length": probed_task(lower if both else FALLING, half),
            "tree_depth": probed_task(lower, half),
            "subj_number": probed_task(middle if both else IN_THE_MIDDLE, half),
            "coordination_inversion": probed_task(middle, half),
            "bigram_shift": probed_task(upper if both else RISING, half),
            "odd_man_out": probed_task(upper, half),
        }
    )


def few_heads(n_good: int, half: float = 0.5) -> Findings:
    """Of forty heads so many have the best accuracy."""
    values = np.full(40, 55.0)
    values[:n_good] = 90.0
    task = probed_task(values.reshape(4, 10), half)
    return jo.layer_evidence(dict.fromkeys(jo.MIDDLE_TASKS, task))


def pooled(
    n_tasks: int = 10, n_last_better: int = 0, n_top_better: int = 9, half: float = SURE
) -> Findings:
    tasks = {}
    for number, name in enumerate(list(SENTEVAL)[:n_tasks]):
        best = estimate(70.0, half)
        last = estimate(75.0 if number < n_last_better else 65.0, half)
        top = estimate(80.0 if number < n_top_better else 60.0, half)
        tasks[name] = jo.PooledTask(last, best, top, 1000)
    return jo.pooling_evidence(tasks)


def downstream_claims(
    gains: Sequence[float], tasks: Sequence[str] = jo.DOWNSTREAM_TASKS
) -> Findings:
    by_score = {f"{task}-accuracy": np.array(gains) for task in tasks}
    return jo.downstream_evidence(by_score, len(gains))


def amplified_claims(
    gain: float = 2.0,
    tasks: Sequence[str] = jo.DOWNSTREAM_TASKS,
    reverse: bool = False,
    noise: float = 0.0,
) -> Findings:
    before = np.arange(48.0).reshape(12, 4)
    after = before + gain + noise * np.where(np.arange(48) % 2, 1.0, -1.0).reshape(12, 4)
    if reverse:
        after = before[::-1, ::-1] + 50
    accuracies = {task: {"pre-trained": before, "last layer": after} for task in tasks}
    return jo.amplified_evidence(accuracies, 1000)


def upper_claims(best_layers: Sequence[int], rising: bool = True) -> Findings:
    """Twelve layers of ten heads, the best twelve of which lie in these layers."""
    accuracy = np.repeat(5 * np.arange(12.0)[:, None], 10, axis=1)
    if not rising:
        accuracy = accuracy[::-1].copy()
    for number, layer in enumerate(best_layers):
        accuracy[layer, number % 10] = 90.0
    return jo.upper_layer_evidence(accuracy, 800)


def score_claims(noise: float, sign: float = 1.0, semantic_sign: float | None = None) -> Findings:
    random = np.random.default_rng(0)
    depth = np.repeat(np.arange(12.0)[:, None], 12, axis=1)
    syntactic = sign * depth + noise * random.normal(size=(12, 12))
    other_sign = sign if semantic_sign is None else semantic_sign
    semantic = other_sign * depth + noise * random.normal(size=(12, 12))
    return jo.score_evidence(syntactic, semantic, 1000)


JO: Cases = {
    "lower": {
        AS_PRINTED: probed_layers(),
        "one": probed_layers(lower=RISING),
        DOES_NOT_HOLD: probed_layers(lower=RISING, both=True),
        UNDECIDED: probed_layers(lower=EVEN, both=True),
    },
    "middle": {
        AS_PRINTED: probed_layers(),
        "one": probed_layers(middle=FALLING + np.array([[0], [-20], [0], [0]])),
        DOES_NOT_HOLD: probed_layers(middle=by_layer((90, 60, 60, 60)), both=True),
        UNDECIDED: probed_layers(middle=EVEN, both=True),
    },
    "upper": {
        AS_PRINTED: probed_layers(),
        "one": probed_layers(upper=FALLING),
        DOES_NOT_HOLD: probed_layers(upper=FALLING, both=True),
        UNDECIDED: probed_layers(upper=EVEN, both=True),
    },
    "few-heads": {
        AS_PRINTED: few_heads(4),
        "half": few_heads(10),
        DOES_NOT_HOLD: few_heads(30),
        UNDECIDED: few_heads(2, half=25),
    },
    "last-not-best": {
        AS_PRINTED: pooled(),
        "given": pooled(n_tasks=9),
        # Nine of ten are not all.
        "most": pooled(n_last_better=1),
        DOES_NOT_HOLD: pooled(n_last_better=6),
        UNDECIDED: pooled(half=10),
    },
    "top-better": {
        AS_PRINTED: pooled(n_top_better=9),
        "given": pooled(n_tasks=9, n_top_better=9),
        "most": pooled(n_top_better=8),
        DOES_NOT_HOLD: pooled(n_top_better=5),
        UNDECIDED: pooled(half=12),
    },
    "downstream": {
        # The rule leaves out the large model.
        WEAKER: downstream_claims((0.8, 0.9, 1.0, 0.9, 0.8)),
        "gain": downstream_claims((0.3, 0.31, 0.32, 0.33, 0.3)),
        DOES_NOT_HOLD: downstream_claims((-0.8, -0.9, -1.0, -0.9, -0.8)),
        UNDECIDED: downstream_claims((-0.8, 0.9, 1.0, -0.9, 0.8)),
    },
    "sst-upper": {
        AS_PRINTED: upper_claims([9, 10, 11] * 4),
        "third": upper_claims([5] * 7 + [11] * 5),
        DOES_NOT_HOLD: upper_claims([0] * 12, rising=False),
    },
    "amplified": {
        AS_PRINTED: amplified_claims(),
        "run": amplified_claims(tasks=("MRPC",)),
        "rises": amplified_claims(reverse=True),
        DOES_NOT_HOLD: amplified_claims(gain=-2),
        UNDECIDED: amplified_claims(gain=0.1, noise=3),
    },
    "linear": {
        AS_PRINTED: score_claims(0.5),
        "positive": score_claims(4.0),
        DOES_NOT_HOLD: score_claims(0.5, semantic_sign=-1.0),
        UNDECIDED: score_claims(100.0),
    },
    "lower-less": {
        AS_PRINTED: score_claims(0.5),
        "one": score_claims(0.5, semantic_sign=-1.0),
        DOES_NOT_HOLD: score_claims(0.5, sign=-1.0),
        UNDECIDED: score_claims(1000.0),
    },
}
CASES: Mapping[str, Cases] = {
    "clark2019": CLARK,
    "kovaleva2019": KOVALEVA,
    "pascual2021": PASCUAL,
    "pande2021": PANDE,
    "jo2020": JO,
}
RULES: dict[tuple[str, str], Claim] = {}
for paper_key in CASES:
    for each_claim in printed_paper(paper_key).claims:
        RULES[paper_key, each_claim.key] = each_claim
TRIALS = [
    (paper, key, expected)
    for paper, cases in CASES.items()
    for key, by_verdict in cases.items()
    for expected in by_verdict
]


@pytest.mark.parametrize(("paper", "key", "expected"), TRIALS)
def test_the_rule_gives_the_verdict_that_the_numbers_call_for(
    paper: str, key: str, expected: str
) -> None:
    claim = RULES[paper, key]
    evidence = CASES[paper][key][expected][key]
    verdict = judge(claim, evidence)
    supports = {form.key: form.supports for form in claim.weaker}
    if expected in supports:
        assert verdict.verdict == WEAKER, verdict
        assert verdict.why.startswith(supports[expected]), verdict
    else:
        assert verdict.verdict == expected, verdict
    # What was measured is said, unless nothing can be.
    assert verdict.ours or verdict.why


@pytest.mark.parametrize("paper", papers())
def test_every_claim_is_tried_as_printed_in_each_weaker_form_and_against(paper: str) -> None:
    for claim in printed_paper(paper).claims:
        tried = set(CASES[paper][claim.key])
        best = WEAKER if claim.leaves_out else AS_PRINTED
        assert {best, DOES_NOT_HOLD, *(form.key for form in claim.weaker)} <= tried, claim.key
        assert tried <= {best, DOES_NOT_HOLD, UNDECIDED, *(form.key for form in claim.weaker)}


@pytest.mark.parametrize("paper", papers())
def test_a_small_sample_decides_nothing(paper: str) -> None:
    for claim in printed_paper(paper).claims:
        assert claim.minimum, claim.key
        best = WEAKER if claim.leaves_out else AS_PRINTED
        evidence = CASES[paper][claim.key][best][claim.key]
        for name, minimum in claim.minimum.items():
            assert evidence.sample[name] >= minimum
            small = replace(evidence, sample={**evidence.sample, name: minimum - 1})
            verdict = judge(claim, small)
            assert verdict.verdict == UNDECIDED
            assert f"{minimum - 1:,} {name}" in verdict.why


# --- rules and sentences --------------------------------------------------------------------------

# Words that state a number or a quantity.
QUANTITIES = re.compile(
    r"\d[\d.]*%?|\b(?:two|three|four|five|all|any|every|each|most|mostly|some|only|none|no|few|half"
    r"|consistently|typically|almost|nearly|very|quickly|negligible|largest|predominantly"
    r"|significant|significantly|substantially|particularly|mainly|much|often|prevalent|higher"
    r"|greater|increase|decrease|tendency|tend)\b"
)
# Such words that state nothing of the claim itself.
NOT_OF_THE_CLAIM = {
    ("clark2019", "broad-tenth"): {"any"},
    ("kovaleva2019", "heterogeneous"): {"all"},
    ("kovaleva2019", "random-worse"): {"some"},
    ("kovaleva2019", "some-gain"): {"increase"},
    ("kovaleva2019", "random-head"): {"increase"},
    ("kovaleva2019", "frames-idle"): {"no"},
    ("kovaleva2019", "layer-gain"): {"all", "12"},
    ("jo2020", "downstream"): {"1.04%"},  # left out, and said so
    ("pande2021", "averages"): {"significant"},
}


@pytest.mark.parametrize(("paper", "key"), list(RULES))
def test_the_rule_keeps_every_quantity_of_its_sentence(paper: str, key: str) -> None:
    """A rule that drops a number or a quantifier of its sentence could not be "as printed"."""
    claim = RULES[paper, key]
    for words in claim.covers:
        assert words in claim.quote, words
    exempt = NOT_OF_THE_CLAIM.get((paper, key), set())
    covered = []
    for words in claim.covers:
        for place in re.finditer(re.escape(words), claim.quote):
            covered.append(range(place.start(), place.end()))
    for match in QUANTITIES.finditer(claim.quote):
        is_covered = any(match.start() in place for place in covered)
        assert is_covered or match[0] in exempt, (match[0], claim.quote)


def test_a_rule_that_leaves_something_out_is_a_weaker_form_at_best() -> None:
    claim = replace(RULES["clark2019", "no-single"], leaves_out="the baseline")
    evidence = CLARK["no-single"][AS_PRINTED]["no-single"]
    assert judge(RULES["clark2019", "no-single"], evidence).verdict == AS_PRINTED
    assert judge(claim, evidence) == Verdict(
        WEAKER, evidence.ours, "all but the baseline, which was not tried"
    )


def test_a_weaker_form_says_that_the_sentence_itself_is_open() -> None:
    claim = RULES["clark2019", "close-rules"]
    verdict = judge(claim, coreference_claims(12, -4, 0, half=3)["close-rules"])
    assert verdict.verdict == WEAKER
    assert verdict.why.endswith("as printed it is undecided: the interval spans the bound")


def test_one_fall_among_several_heads_and_tasks_is_no_sure_drop() -> None:
    claim = RULES["kovaleva2019", "frames-idle"]
    # Each interval alone, of -0.19 to -0.01 points, excludes 0.
    alone = judge(claim, head_claims(("MRPC",), frame=-0.001, half=0.0009)["frames-idle"])
    together = judge(claim, head_claims(SOME_TASKS, frame=-0.001, half=0.0009)["frames-idle"])
    assert alone.why.startswith("disabling either one costs less than a point")
    assert together.why.startswith("it is so on every task that was run")


def test_evidence_on_other_forms_than_the_claim_has_is_an_error() -> None:
    claim = RULES["clark2019", "close-rules"]
    with pytest.raises(ValueError, match="weaker forms"):
        judge(claim, Evidence("", TRUE, {}, {"mentions": 1000}))
    forms = {"over-match": TRUE, "above-match": TRUE}
    with pytest.raises(ValueError, match="no count of"):
        judge(claim, Evidence("", TRUE, forms, {}))


# --- what cannot be tried -------------------------------------------------------------------------


def _causal_position() -> Findings:
    values = np.full((2, 2, 3), 0.2)
    values[..., 2] = np.nan
    dataset = xr.Dataset(
        with_interval("position", (*HEADS, "offset"), values), coords={"offset": [-1, 0, 1]}
    )
    return clark.neighbour_evidence(dataset)


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (_causal_position()["next"], "a causal model sees no next token"),
        (start_claims(("RTE",))["random-worse"], "neither STS-B nor QNLI was run"),
        (kovaleva.layer_evidence({"MRPC": ablation()})["first-layer"], "RTE was not run"),
        (special_claims({"MRPC": 0})["sst-sep"], "SST-2 and a task of pairs are needed"),
        (change_claims({"QQP": (5, 4)})["last-two"], "no task but QQP"),
        (language_claims(missing=["German"])["languages"], "no model of its own for German"),
        (pande.overlap_evidence([task_roles("MRPC", {})], [])["rank"], "no inputs have trees"),
        (jo.layer_evidence({})["middle"], "a task was not given"),
        (jo.upper_layer_evidence(np.ones((3, 2)), 800)["sst-upper"], "fewer than four layers"),
    ],
)
def test_a_claim_that_cannot_be_tried_says_why(evidence: Evidence, why: str) -> None:
    verdict = judge(RULES["clark2019", "previous"], evidence)
    assert verdict.verdict == CANNOT
    assert why in verdict.why


def test_a_task_of_which_nothing_was_learned_is_not_judged() -> None:
    task = probed_task(FALLING, learned=False)
    evidence = jo.layer_evidence(dict.fromkeys(jo.LOWER_TASKS, task))["lower"]
    assert evidence.undecided.startswith("nothing learned on Length, Depth")
    assert jo.pooling_evidence({})["top-better"].undecided
