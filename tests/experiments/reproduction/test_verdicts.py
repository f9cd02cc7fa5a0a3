"""Every claim's rule, with numbers for it and against it, and where it cannot be tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import xarray as xr

from headwise.analyses.roles.significance import COARSE_ROLES, FINE_ROLES
from headwise.experiments.reproduction import ReportRow, Verdict, papers
from headwise.experiments.reproduction import pascual2021 as pascual
from headwise.experiments.reproduction.clark2019 import surface, syntax
from headwise.experiments.reproduction.jo2020 import downstream, probing
from headwise.experiments.reproduction.kovaleva2019 import disabling, frames, maps
from headwise.experiments.reproduction.pande2021 import change, labels, scores
from headwise.experiments.reproduction.pande2021.tasks import TaskRoles
from headwise.experiments.reproduction.printed import printed_paper

HEADS = ("layer", "head")
Verdicts = Mapping[str, Verdict]


# --- clark2019 ------------------------------------------------------------------------------------


def position(on_previous: float, on_next: float, on_self: float, layer: int = 0) -> xr.DataArray:
    """Attention of four layers of two heads, with one head that attends to neighbours."""
    values = np.full((4, 2, 3), 0.2)
    values[..., 1] = on_self
    values[layer, 0, 0] = on_previous
    values[layer, 1, 2] = on_next
    return xr.DataArray(values, dims=(*HEADS, "offset"), coords={"offset": [-1, 0, 1]})


def position_verdicts(*arguments: float, **options: int) -> Verdicts:
    return surface.neighbour_heads(position(*arguments, **options))[1]


def token_type_verdicts(
    to_sep: float, sep_to_sep: float, order: Sequence[str] = ("cls", "sep", "punct")
) -> Verdicts:
    """Twelve layers; the mass of each token type of `order` lies deeper than that of the last."""
    types = ["cls", "sep", "punct"]
    coords = {"token_type": types}
    depth_order = xr.DataArray(np.zeros((12, 3)), dims=("layer", "token_type"), coords=coords)
    for number, name in enumerate(order):
        depth_order.loc[{"token_type": name}] = 0.01
        depth_order[{"layer": 3 * number, "token_type": types.index(name)}] = 0.9
    by_layer = depth_order.copy()
    by_layer.loc[{"token_type": "sep"}] = depth_order.sel(token_type="sep")
    half = surface.token_type_verdicts(
        xr.full_like(by_layer, to_sep), xr.full_like(by_layer, sep_to_sep), ["sep"]
    )
    depth = surface.token_type_verdicts(by_layer, by_layer, types)
    return {**depth, **half}


def gradient_verdicts(late: float) -> Verdicts:
    return surface.gradient_verdicts(np.array([1.0] * 4 + [late] * 8))


def entropy_verdicts(broad_layer: int, max_weight: float, from_cls: float) -> Verdicts:
    entropy = np.full((4, 5), 1.0)
    entropy[broad_layer, 2] = 3.0
    verdicts = surface.broad_head_verdicts(entropy, np.full((4, 5), max_weight))
    cls_entropy = np.full((4, 5), from_cls)
    return {**verdicts, "cls-last": surface.cls_entropy_verdict(cls_entropy, entropy)}


def relation_verdicts(overall: float, n_specialised: int, n_backward: int) -> Verdicts:
    directions = ["dependent_to_head"] * n_backward
    directions += ["head_to_dependent"] * (4 - n_backward)
    return syntax.relation_verdicts(overall, ["det 90 % at L0H0"] * n_specialised, directions)


def coreference_verdicts(head_match: float, rules: float, nominal: float) -> Verdicts:
    return syntax.coreference_verdicts({"all": head_match}, {"all": rules, "nominal": nominal})


def probe_verdicts(low: float) -> Verdicts:
    intervals = dict.fromkeys(syntax.PROBES, (0.5, 0.6))
    intervals["attention_words"] = (low, 0.9)
    return {"words-best": syntax.probe_verdict(75.0, intervals)}


def distance_verdicts(within: float, p_value: float) -> Verdicts:
    return {"same-layer": syntax.same_layer_verdict(within, 0.3, p_value)}


CLARK = {
    "previous": (position_verdicts(0.6, 0.2, 0.05), position_verdicts(0.5, 0.2, 0.05)),
    "next": (position_verdicts(0.2, 0.6, 0.05), position_verdicts(0.2, 0.5, 0.05)),
    "earlier": (position_verdicts(0.6, 0.6, 0.05), position_verdicts(0.6, 0.6, 0.05, layer=2)),
    "current": (position_verdicts(0.6, 0.6, 0.05), position_verdicts(0.6, 0.6, 0.1)),
    "sep-half": (token_type_verdicts(0.51, 0.95), token_type_verdicts(0.5, 0.95)),
    "sep-self": (token_type_verdicts(0.51, 0.95), token_type_verdicts(0.51, 0.9)),
    "early-cls": (
        token_type_verdicts(0.6, 0.95),
        token_type_verdicts(0.6, 0.95, ("sep", "cls", "punct")),
    ),
    "sep-gradient": (gradient_verdicts(0.4), gradient_verdicts(0.5)),
    "broad-low": (entropy_verdicts(1, 0.1, 2.0), entropy_verdicts(2, 0.1, 2.0)),
    "broad-tenth": (entropy_verdicts(1, 0.1, 2.0), entropy_verdicts(1, 0.11, 2.0)),
    "cls-last": (entropy_verdicts(1, 0.1, 1.1), entropy_verdicts(1, 0.1, 1.0)),
    "no-single": (relation_verdicts(49.9, 3, 3), relation_verdicts(50.0, 3, 3)),
    "specialise": (relation_verdicts(40, 3, 3), relation_verdicts(40, 2, 3)),
    "dependent": (relation_verdicts(40, 3, 3), relation_verdicts(40, 3, 2)),
    "close-rules": (coreference_verdicts(11, -9, 0), coreference_verdicts(11, -11, 0)),
    "nominal": (coreference_verdicts(11, -9, 0), coreference_verdicts(11, -9, -9)),
    "words-best": (probe_verdicts(0.61), probe_verdicts(0.6)),
    "same-layer": (distance_verdicts(0.2, 0.01), distance_verdicts(0.2, 0.05)),
}


# --- kovaleva2019 ---------------------------------------------------------------------------------


def pattern_verdicts(heterogeneous: float, diagonal: float) -> Verdicts:
    share = {"vertical": 0.2, "diagonal": diagonal, "vertical+diagonal": 0.1}
    middle = {**share, "heterogeneous": 0.5}
    return maps.pattern_verdicts({"RTE": middle, "MRPC": {**share, "heterogeneous": heterogeneous}})


def frame_verdicts(stands_out: bool, tested: bool = True) -> Verdicts:
    above = np.zeros((2, 2))
    above[1, 0] = 1
    variables = {
        "above": (HEADS, above),
        "stands_out": (HEADS, above * stands_out),
        "p_adjusted": (HEADS, np.full((2, 2), 0.01 if tested else np.nan)),
    }
    return {"two-heads": frames.two_heads_verdict(xr.Dataset(variables))}


def start_verdicts(none: float, random: float, pretrained: float) -> Verdicts:
    by_start = {"none": none, "random": random, "pretrained": pretrained}
    good = {"none": 50.0, "random": 60.0, "pretrained": 80.0}
    return disabling.start_verdicts({"STS-B": by_start, "RTE": good})


def last_layers_verdicts(lowest: Sequence[int]) -> Verdicts:
    cosine = np.ones(6)
    cosine[list(lowest)] = 0.5
    # QQP is the paper's exception.
    return maps.last_layers_verdicts({"RTE": cosine, "QQP": np.linspace(0, 1, 6)})


def special_verdicts(cls_layer: int, sst_to_sep: float) -> Verdicts:
    def mean(layer: int, to_sep: float) -> dict[str, np.ndarray]:
        cls = np.full(4, 0.01)
        cls[layer] = 0.5
        return {"cls": cls, "sep": np.full(4, to_sep)}

    return maps.special_token_verdicts({"SST-2": mean(0, sst_to_sep), "RTE": mean(cls_layer, 0.3)})


def cls_to_sep_verdicts(n_as_claimed: int) -> Verdicts:
    means = {}
    for number in range(4):
        means[f"task {number}"] = {"sep": 0.2, "punct": 0.1 if number < n_as_claimed else 0.2}
    return {"cls-sep": maps.cls_to_sep_verdict(means)}


def feature_verdicts(noun: float) -> Verdicts:
    return maps.feature_verdicts({"cls": 0.3, "sep": 0.8, "punct": 0.9, "noun": noun})


def diagonal_verdicts(on_neighbour: float) -> Verdicts:
    first = ["verb->subject", 0.4, "L0H0", 0.9]
    return maps.diagonal_verdicts([first, ["noun->pronoun", 0.3, "L0H1", on_neighbour]])


def ablation(
    improving: int = 1,
    low: float = 0.01,
    frame_p: float = 0.5,
    first_layer_low: float = 0.01,
    layer_gain: float = 0.02,
) -> dict[str, xr.Dataset]:
    """The ablation of a model of two layers on RTE."""
    variables = {
        "layer_difference": ("layer", [0.02, -0.1]),
        "layer_difference_low": ("layer", [first_layer_low, -0.2]),
        "layer_difference_high": ("layer", [0.05, 0.0]),
        "set_difference": ("set", [-0.03]),
        "set_p_adjusted": ("set", [frame_p]),
    }
    result = xr.Dataset(variables, coords={"set": ["frames L0H0"]})
    result["layer_difference"] = ("layer", [layer_gain, -0.1])
    result.attrs = {
        "improving": improving,
        "mean_difference": 0.02,
        "mean_difference_low": low,
        "mean_difference_high": 0.03,
    }
    return {"RTE": result}


def head_verdicts(**numbers: float) -> Verdicts:
    return disabling.head_verdicts(ablation(**numbers))  # type: ignore[arg-type]


def layer_verdicts(**numbers: float) -> Verdicts:
    return disabling.layer_verdicts(ablation(**numbers))  # type: ignore[arg-type]


KOVALEVA = {
    "heterogeneous": (pattern_verdicts(0.32, 0.2), pattern_verdicts(0.62, 0.2)),
    "repeated": (pattern_verdicts(0.4, 0.01), pattern_verdicts(0.4, 0.009)),
    "two-heads": (frame_verdicts(True), frame_verdicts(False)),
    "better": (start_verdicts(50, 40, 80), start_verdicts(80, 40, 80)),
    "random-lower": (start_verdicts(50, 40, 80), start_verdicts(50, 80, 80)),
    "random-worse": (start_verdicts(50, 40, 80), start_verdicts(50, 50, 80)),
    "last-two": (last_layers_verdicts([4, 5]), last_layers_verdicts([3, 5])),
    "cls-early": (special_verdicts(0, 0.4), special_verdicts(3, 0.4)),
    "sst-sep": (special_verdicts(0, 0.4), special_verdicts(0, 0.2)),
    "special": (feature_verdicts(0.39), feature_verdicts(0.4)),
    "cls-sep": (cls_to_sep_verdicts(3), cls_to_sep_verdicts(2)),
    "diagonal": (diagonal_verdicts(0.51), diagonal_verdicts(0.5)),
    "some-gain": (head_verdicts(), head_verdicts(improving=0)),
    "random-head": (head_verdicts(), head_verdicts(low=0.0)),
    "frames-idle": (head_verdicts(), head_verdicts(frame_p=0.04)),
    "first-layer": (layer_verdicts(), layer_verdicts(first_layer_low=0.0)),
    "layer-gain": (layer_verdicts(), layer_verdicts(layer_gain=0.0)),
}


# --- pascual2021 ----------------------------------------------------------------------------------


def local_verdicts(pearson: float, spearman: float) -> Verdicts:
    """Twenty heads, two of which have these correlations."""
    pearson_values = np.full((2, 10), 0.9)
    spearman_values = np.full((2, 10), 0.96)
    pearson_values[0, :2] = pearson
    spearman_values[0, :2] = spearman
    return pascual.local_verdicts(pearson_values, spearman_values)


def far_verdicts(
    trend: float = -0.07, late: float = 0.2, spearman_third: float = 0.6, last: float = 0.1
) -> Verdicts:
    layers = np.arange(12)
    pearson = np.repeat((0.9 + trend * layers)[:, None], 2, axis=1)
    judged_late = np.repeat(np.where(layers < 4, 0.9, late)[:, None], 2, axis=1)
    spearman = np.full((12, 2), 0.5)
    spearman[2] = spearman_third
    spearman[-1] = last
    verdicts = pascual.far_verdicts(judged_late, spearman)
    return {**verdicts, "decreases": pascual.far_verdicts(pearson, spearman)["decreases"]}


def offset_verdicts(first: float, last: float, ahead: float) -> Verdicts:
    centre = np.full((12, 2), first)
    centre[8:] = last
    histogram = np.full((12, 2, 3), 1.0)
    histogram[1, 0] = [1 - ahead, 0, ahead]
    return pascual.position_verdicts(
        xr.DataArray(centre, dims=HEADS),
        xr.DataArray(histogram, dims=(*HEADS, "offset"), coords={"offset": [-1, 0, 1]}),
    )


def language_verdicts(last: float, missing: Sequence[str] = ()) -> Verdicts:
    centres = {"English": np.array([-1.0, 0, 1]), "German": np.array([-1.0, 0, last])}
    return {"languages": pascual.language_verdict(centres, list(missing))}


def uniform_verdicts(of_input: float) -> Verdicts:
    return {"uniform": pascual.uniform_verdict(np.full(12, -4.0), np.full(12, of_input))}


def persistence_verdicts(block: float, deep_block: float = 0.0) -> Verdicts:
    names = ["vertical", "diagonal", "vertical+diagonal", "block"]
    share = xr.DataArray(
        np.full((2, 12, 4), 0.2),
        dims=("source", "layer", "pattern"),
        coords={"source": ["attention", "input"], "pattern": names},
    )
    share.loc[{"source": "input"}] = 0.1
    share[{"source": 1, "layer": slice(0, 4), "pattern": 3}] = block
    share[{"source": 1, "layer": slice(4, 12), "pattern": 3}] = deep_block
    return pascual.pattern_verdicts(share)


PASCUAL = {
    "local-pearson": (local_verdicts(0.71, 0.9), local_verdicts(0.7, 0.9)),
    "local-spearman": (local_verdicts(0.71, 0.9), local_verdicts(0.71, 0.89)),
    "past-first": (offset_verdicts(-1, 1, 0.01), offset_verdicts(0, 1, 0.01)),
    "future-later": (offset_verdicts(-1, 1, 0.01), offset_verdicts(-1, 0, 0.01)),
    "negligible": (offset_verdicts(-1, 1, 0.04), offset_verdicts(-1, 1, 0.05)),
    "languages": (language_verdicts(1), language_verdicts(-2)),
    "uniform": (uniform_verdicts(1.9), uniform_verdicts(-2.0)),
    "decreases": (far_verdicts(), far_verdicts(trend=0.0001)),
    "after-four": (far_verdicts(late=0.2), far_verdicts(late=0.5)),
    "last-four": (far_verdicts(late=0.24), far_verdicts(late=0.25)),
    "spearman-three": (far_verdicts(), far_verdicts(last=0.25)),
    "block-stays": (persistence_verdicts(0.4, 0.02), persistence_verdicts(0.1, 0.02)),
    "no-deep-block": (persistence_verdicts(0.4, 0.02), persistence_verdicts(0.4, 0.03)),
}


# --- pande2021 ------------------------------------------------------------------------------------


def task_roles(heads: Mapping[str, Sequence[tuple[int, int]]], n_layers: int = 12) -> TaskRoles:
    """Roles of a model with four heads a layer; the released ones are the same."""
    names = sorted({*COARSE_ROLES, *FINE_ROLES, "local:prev", "local:next", "nsubj", "dobj"})
    has_role = np.zeros((n_layers, 4, len(names)))
    for role, members in heads.items():
        for layer, head in members:
            has_role[layer, head, names.index(role)] = 1
    variables = {
        "has_role": ((*HEADS, "role"), has_role),
        "bias": ((*HEADS, "role"), has_role),
    }
    roles = xr.Dataset(variables, coords={"role": names})
    return TaskRoles("MRPC", roles, roles, parsed=True)


def role_share_verdicts(
    delimiter: float = 0.6, unskilled: float = 0.1, local: float = 0.6, rank: float = 0.8
) -> Verdicts:
    return labels.share_verdicts(
        {"MRPC": delimiter}, {"MRPC": unskilled}, {"MRPC": local}, {"MRPC": rank}
    )


def direction_verdicts(side: str) -> Verdicts:
    heads = {"nsubj": [(0, 0)], "local:next": [(0, 0)], "dobj": [(1, 1)], f"local:{side}": [(1, 1)]}
    if side == "next":
        heads["local:next"] = [(0, 0), (1, 1)]
    return {"nsubj-next": labels.direction_verdict([task_roles(heads)])}


def block_verdicts(n_local: int) -> Verdicts:
    blocks = [(0, head) for head in range(4)] + [(1, 0)]
    roles = task_roles({"block": blocks, "local": blocks[:n_local]})
    return {"block-apart": labels.block_verdict([roles], [])}


def role_layer_verdicts(heads: Mapping[str, Sequence[tuple[int, int]]]) -> Verdicts:
    roles = task_roles(heads)
    return labels.layer_verdicts([roles], [roles], 12)


def skew_verdicts(n_skewed: int, n_by_mean: int) -> Verdicts:
    return scores.score_verdicts(n_skewed, 10, n_by_mean)


def bimodal_verdicts(share: float) -> Verdicts:
    return {"bimodal": scores.bimodal_verdict(share)}


def changed_verdicts(
    delimiter_high: float = -0.1, block_low: float = 0.1, cls: float = 0.1, initial: float = 0.1
) -> Verdicts:
    """The change of bias by fine-tuning on one task."""
    roles = [*COARSE_ROLES, "cls", "sep"]
    thirds = ["initial", "middle", "final"]
    value = np.full((1, len(roles), 3), 0.5)
    value[..., 0] = initial
    low = np.full_like(value, 0.1)
    high = np.full_like(value, 0.9)
    delimiter = roles.index("delimiter")
    value[0, delimiter, 2] = -0.5
    low[0, delimiter, 2] = -0.9
    high[0, delimiter, 2] = delimiter_high
    low[0, roles.index("block"), 2] = block_low
    value[0, roles.index("sep"), 2] = -0.3
    value[0, roles.index("cls"), 2] = cls
    dims = ("model", "role", "third")
    variables = {
        "bias_third_change": (dims, value),
        "bias_third_change_low": (dims, low),
        "bias_third_change_high": (dims, high),
    }
    result = xr.Dataset(variables, coords={"role": roles, "third": thirds})
    return change.change_verdicts({"MRPC": result})


FIRST_LAYER = [(0, head) for head in range(4)]
LAST_LAYERS = [(layer, head) for layer in (10, 11) for head in range(4)]
PANDE = {
    "skewed": (skew_verdicts(6, 1), skew_verdicts(5, 1)),
    "averages": (skew_verdicts(6, 1), skew_verdicts(6, 0)),
    "bimodal": (bimodal_verdicts(0.05), bimodal_verdicts(0.051)),
    "delimiters": (role_share_verdicts(), role_share_verdicts(delimiter=0.5)),
    "few-unskilled": (role_share_verdicts(), role_share_verdicts(unskilled=0.2)),
    "local-syntactic": (role_share_verdicts(), role_share_verdicts(local=0.5)),
    "rank": (role_share_verdicts(), role_share_verdicts(rank=0.7)),
    "nsubj-next": (direction_verdicts("prev"), direction_verdicts("next")),
    "block-apart": (block_verdicts(1), block_verdicts(2)),
    "multi-middle": (
        role_layer_verdicts({"cls": [(6, 0)], "sep": [(6, 0)]}),
        role_layer_verdicts({"cls": [(0, 0)], "sep": [(0, 0)]}),
    ),
    "first-layer": (
        role_layer_verdicts({"cls": [(1, 0)]}),
        role_layer_verdicts({"cls": [(0, 0)]}),
    ),
    "only-delimiters": (
        role_layer_verdicts({"cls": [(11, 0), (11, 1)], "nsubj": [(11, 1), (0, 0)]})
        | role_layer_verdicts({"cls": [(11, 0)]}),
        role_layer_verdicts({"cls": [(11, 0), (11, 1)], "nsubj": [(11, 1)]}),
    ),
    "block-zeroth": (
        role_layer_verdicts({"block": FIRST_LAYER[:3]}),
        role_layer_verdicts({"block": FIRST_LAYER[:2]}),
    ),
    "syntactic-middle": (
        role_layer_verdicts({"syntactic": [(7, 0)]}),
        role_layer_verdicts({"syntactic": [(7, 0), *FIRST_LAYER]}),
    ),
    "last-two": (
        role_layer_verdicts({"syntactic": LAST_LAYERS[:1]}),
        role_layer_verdicts({"syntactic": LAST_LAYERS[:2]}),
    ),
    "delimiter-falls": (changed_verdicts(), changed_verdicts(delimiter_high=0.0)),
    "block-rises": (changed_verdicts(), changed_verdicts(block_low=0.0)),
    "sep-not-cls": (changed_verdicts(), changed_verdicts(cls=-0.3)),
    "initial-stays": (changed_verdicts(), changed_verdicts(initial=0.25)),
}


# --- jo2020 ---------------------------------------------------------------------------------------


def by_layer(values: Sequence[float]) -> np.ndarray:
    """Accuracies of three heads a layer, all alike."""
    return np.repeat(np.array(values, dtype=float)[:, None], 3, axis=1)


def layer_claims(
    lower: Sequence[float] = (90, 90, 60, 60),
    middle: Sequence[float] = (50, 90, 80, 50),
    upper: Sequence[float] = (60, 60, 90, 90),
) -> Verdicts:
    falling = by_layer((90, 90, 60, 60))
    rising = by_layer((60, 60, 90, 90))
    return probing.layer_verdicts(
        {
            "sentence_length": falling,
            "tree_depth": by_layer(lower),
            "subj_number": by_layer((50, 90, 80, 50)),
            "coordination_inversion": by_layer(middle),
            "bigram_shift": rising,
            "odd_man_out": by_layer(upper),
        }
    )


def few_heads_verdicts(low: float) -> Verdicts:
    tasks = ["subj_number", "coordination_inversion"]
    result = xr.Dataset({"localisation_low": ("task", [0.5, low])}, coords={"task": tasks})
    return {"few-heads": probing.few_heads_verdict(result)}


def pooling_verdicts(n_best: int, n_top: int) -> Verdicts:
    last = np.full(10, 50.0)
    best = np.where(np.arange(10) < n_best, 60.0, 40.0)
    top = best + np.where(np.arange(10) < n_top, 1.0, 0.0)
    return probing.pooling_verdicts(last, best, top)


def score_claims(noise: float, sign: float = 1.0) -> Verdicts:
    random = np.random.default_rng(0)
    depth = sign * np.repeat(np.arange(6.0)[:, None], 4, axis=1)
    syntactic = depth + noise * random.normal(size=(6, 4))
    semantic = depth + noise * random.normal(size=(6, 4))
    return probing.score_verdicts(syntactic, semantic)


def downstream_verdicts(top: float) -> Verdicts:
    rows = [ReportRow("MRPC-f1-last", 80.0), ReportRow("MRPC-f1-best", 81.0)]
    rows.append(ReportRow("MRPC-f1-top", top))
    return {"downstream": downstream.downstream_verdict(rows)}


def amplified_verdicts(gain: float, reverse: bool = False) -> Verdicts:
    before = np.arange(12.0).reshape(6, 2)
    after = before + gain
    if reverse:
        after = after[::-1] + 1
    accuracies = {"MRPC": {"pre-trained": before, "last layer": after}}
    return {"amplified": downstream.amplified_verdict(accuracies)}


def third_verdicts(values: Sequence[float]) -> Verdicts:
    return {"sst-upper": downstream.upper_third_verdict(by_layer(values))}


JO = {
    "lower": (layer_claims(), layer_claims(lower=(60, 60, 60, 60))),
    "middle": (layer_claims(), layer_claims(middle=(90, 50, 50, 50))),
    "upper": (layer_claims(), layer_claims(upper=(90, 90, 60, 60))),
    "few-heads": (few_heads_verdicts(0.21), few_heads_verdicts(0.2)),
    "last-not-best": (pooling_verdicts(9, 8), pooling_verdicts(8, 8)),
    "top-better": (pooling_verdicts(9, 8), pooling_verdicts(9, 7)),
    "linear": (score_claims(0.1), score_claims(100.0)),
    "lower-less": (score_claims(0.1), score_claims(0.1, sign=-1.0)),
    "downstream": (downstream_verdicts(80.1), downstream_verdicts(80.0)),
    "amplified": (amplified_verdicts(2), amplified_verdicts(2, reverse=True)),
    "sst-upper": (third_verdicts((1, 2, 3)), third_verdicts((1, 3, 2))),
}
CASES = {
    "clark2019": CLARK,
    "kovaleva2019": KOVALEVA,
    "pascual2021": PASCUAL,
    "pande2021": PANDE,
    "jo2020": JO,
}
CLAIMS = [(paper, key) for paper, cases in CASES.items() for key in cases]


@pytest.mark.parametrize(("paper", "key"), CLAIMS)
def test_a_claim_holds_by_its_rule_and_fails_against_it(paper: str, key: str) -> None:
    for_it, against_it = CASES[paper][key]
    assert for_it[key].holds is not None, for_it[key]
    assert bool(for_it[key].holds) is True, for_it[key]
    assert against_it[key].holds is not None, against_it[key]
    assert bool(against_it[key].holds) is False, against_it[key]
    # What was measured is said either way, and is not the same.
    assert for_it[key].ours
    assert against_it[key].ours


@pytest.mark.parametrize("paper", papers())
def test_every_printed_claim_is_tested_here(paper: str) -> None:
    assert set(CASES[paper]) == {claim.key for claim in printed_paper(paper).claims}


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (position_verdicts(0.2, 0.2, 0.05)["earlier"], "no head puts over half on a neighbour"),
        (frame_verdicts(True, tested=False)["two-heads"], "fewer than 30 sentences"),
        (disabling.start_verdicts({})["random-worse"], "neither STS-B nor QNLI was run"),
        (disabling.layer_verdicts({})["first-layer"], "RTE was not run"),
        (maps.special_token_verdicts({})["sst-sep"], "SST-2 and a task of pairs are needed"),
        (language_verdicts(1, ["German"])["languages"], "no model of its own for German"),
        (labels.direction_verdict([]), "no trees"),
        (labels.block_verdict([task_roles({})], []), "no head is a block head"),
        (role_layer_verdicts({})["only-delimiters"], "has a role"),
        (few_heads_verdicts(np.nan)["few-heads"], "significantly better"),
        (probing.layer_verdicts({})["middle"], "a task was not given"),
        (third_verdicts((1, 2))["sst-upper"], "fewer than three layers"),
        (surface.cls_entropy_verdict(np.full((2, 2), np.nan), np.ones((2, 2))), r"no \[CLS\]"),
        (pascual.far_verdicts(np.ones((2, 2)), np.ones((2, 2)))["decreases"], "two layers"),
    ],
)
def test_a_claim_that_cannot_be_tried_says_why(verdict: Verdict, why: str) -> None:
    import re

    assert verdict.holds is None
    assert re.search(why, verdict.why)


def test_a_causal_model_is_not_judged_by_its_next_token() -> None:
    array = position(0.6, 0.6, 0.05)
    array.loc[{"offset": 1}] = np.nan
    rows, verdicts = surface.neighbour_heads(array)
    assert [row.key for row in rows] == ["previous"]
    assert verdicts["next"].why == "a causal model sees no next token"


def test_three_layers_are_too_few_for_the_last_two() -> None:
    assert maps.last_layers_verdicts({"RTE": np.array([1.0, 0.5, 0.5])}) == {}
    assert maps.last_layers_verdicts({"QQP": np.ones(6)}) == {}


def test_macro_f1_leaves_out_patterns_that_do_not_occur() -> None:
    confusion = np.array([[3, 1, 0], [0, 4, 0], [0, 0, 0]])
    assert maps.macro_f1(confusion) == pytest.approx((6 / 7 + 8 / 9) / 2)
