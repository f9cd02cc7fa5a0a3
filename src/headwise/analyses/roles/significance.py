"""From scores of heads on inputs to roles: τ, tests, corrections, the sweep over τ, overlaps, roles
by layer; and the same of heads that rest on the first token, with it left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from headwise.analyses.released import RELEASED
from headwise.stats.accumulators import Moments
from headwise.stats.bootstrap import FEW, bootstrap_family_test
from headwise.stats.corrections import benjamini_hochberg, correct, holm
from headwise.stats.correlation import correlation
from headwise.stats.intervals import share
from headwise.stats.records import Records
from headwise.stats.tests import (
    jaccard,
    overlap_counts,
    overlap_test,
    stratified_overlap_test,
    z_test,
)

if TYPE_CHECKING:
    from headwise.analyses.roles.analysis import Roles

COARSE_ROLES = ("local", "syntactic", "block", "delimiter")
THRESHOLD_ROLES = ("local", "syntactic", "block")  # what τ comes from: any tokenizer has these
PAPER_RULE = "paper"
CEILING_SHARE = 0.6  # of the way from uniform to the ceiling: a head that goes so far has the role, whatever random heads do
FINE_ROLES = (
    "nsubj",
    "dobj",
    "amod",
    "advmod",
    "cls",
    "sep",
    "block",
    "local:prev",
    "local:next",
)  # the nine of Fig 5
THRESHOLDS = np.arange(1.0, 10.01, 0.5)
EDGES = np.concatenate([[0.0], 2.0 ** (np.arange(-16, 33) / 4), [np.inf]])
SINK_SHARE = 0.5  # of its attention on the first token
ROUNDING = 1e-5  # scores that differ by less, relatively, differ by rounding only
DIMS = ("layer", "head", "role")
PAIR = ("role", "role_b")

Variables = dict[str, xr.Variable]


def coordinates(roles: Sequence[str]) -> dict[str, Any]:
    """Labels of all dims but layer and head."""
    return {
        "role": np.array(roles),
        "role_b": np.array(roles),
        "threshold": THRESHOLDS,
        "bin": np.arange(len(EDGES) - 1),
        "bin_low": ("bin", EDGES[:-1]),
    }


def tested(
    moments: Moments, records: Records, roles: Sequence[str], asked: Roles
) -> tuple[Variables, dict[str, Any]]:
    """All variables and attributes that come of the scores `[example, layer, head, role]` and their
    moments."""
    alpha, correction, scores = asked.alpha, asked.correction, records.values
    count = moments.count.numpy()
    mean = np.where(count > 0, moments.mean.numpy(), np.nan)
    tau, about_tau = threshold(mean, count, roles, asked)
    released = asked.reading == RELEASED
    ddof_0 = (
        (count - 1) / np.maximum(count, 1) if released else 1.0
    )  # the released code divides by the count
    mean, variance = without_rounding(mean, moments.variance() * ddof_0, tau)
    p_value = z_test(mean, variance, count, tau, student=released).p_value
    p_adjusted = correct(p_value, correction)
    effect = share(mean - tau, np.sqrt(variance))
    spread = f"standard deviation of the scores over inputs (ddof {0 if released else 1})"
    test = "Student's t-test" if released else "z-test"
    made = {
        "spread": (np.sqrt(variance).astype(np.float32), spread),
        "effect": (effect.astype(np.float32), "(bias − τ) / spread"),
        "p_value": (p_value, f"one-tailed {test} of mean ≤ τ"),
        "p_adjusted": (p_adjusted, f"p_value corrected over heads and roles ({correction})"),
        "p_holm": (holm(p_value), "p_value corrected by Holm (family-wise error)"),
        "p_fdr": (
            benjamini_hochberg(p_value),
            "p_value corrected by Benjamini and Hochberg (false discoveries)",
        ),
    }
    if asked.bootstrap:
        # Scores whose spread is rounding only count as equal.
        flat = (
            np.where((variance == 0) & ~np.isnan(scores), mean, scores)
            if (variance == 0).any()
            else scores
        )
        p, family = bootstrap_family_test(
            flat, tau, asked.bootstrap, asked.seed or 0, records.units
        )
        by_family = correction == "holm"
        how = "largest t of each resample over heads and roles" if by_family else correction
        made["bootstrap_p_value"] = (p, "studentized bootstrap of mean ≤ τ")
        made["bootstrap_p_adjusted"] = (
            family if by_family else correct(p, correction),
            f"bootstrap_p_value corrected over heads and roles ({how})",
        )
    few = count.reshape(-1, len(roles)).max(0) < FEW
    variables = (
        labelled(DIMS, made)
        | labelled(("role",), {"few": (few, f"fewer than {FEW} inputs")})
        | roles_by_mean(mean, count, p_value, tau, alpha)
        | labelled((*DIMS, "bin"), {"histogram": (histogram(scores), "inputs by score")})
    )
    known = {"bias": xr.Variable(DIMS, mean), "bias_n": xr.Variable(DIMS, count)}
    dataset = xr.Dataset(variables | known, coords={"role": np.array(roles)}, attrs={"tau": tau})
    found, attrs = decided(dataset, asked, np.full(len(roles), np.nan))
    attrs = {
        "tau": tau,
        **about_tau,
        "alpha": alpha,
        "undecided": undecided_share(p_value),
        "inputs": len(scores),
        "random_models": 0,
    } | attrs
    variables |= found
    if {"local", "syntactic"} <= set(roles):
        ranks = variables["spearman"].values
        attrs["spearman_local_syntactic"] = float(
            ranks[roles.index("local"), roles.index("syntactic")]
        )
    return variables, attrs


def threshold(
    mean: np.ndarray, count: np.ndarray, roles: Sequence[str], asked: Roles
) -> tuple[float, dict[str, Any]]:
    """τ, and what a result says of it."""
    of_paper, pooled = (
        pooled_mean(mean, count, roles, COARSE_ROLES),
        pooled_mean(mean, count, roles, THRESHOLD_ROLES),
    )
    rule = "floor(mean of all scores of {}) + 1"
    about: dict[str, Any] = {
        "tau_mean": pooled,
        "tau_mean_paper": of_paper,
        "tau_paper": float(np.floor(of_paper) + 1),
    }
    if asked.tau == PAPER_RULE:
        said = rule.format(", ".join(r for r in COARSE_ROLES if r in roles))
        return about["tau_paper"], about | {"tau_rule": said}
    if asked.tau is not None:
        return float(asked.tau), about | {"tau_rule": "given"}
    said = rule.format(", ".join(r for r in THRESHOLD_ROLES if r in roles))
    return float(np.fmax(np.floor(pooled) + 1, asked.tau_floor)), about | {
        "tau_rule": f"{said}, at least {asked.tau_floor:g}"
    }


def decided(
    dataset: xr.Dataset, asked: Roles, bound: np.ndarray
) -> tuple[Variables, dict[str, Any]]:
    """Who has which role, and what comes of that, from tests, effects, counts, and what random
    heads reach.

    `bound[role]` is NaN where that is not known."""
    alpha, tau, roles = (
        asked.alpha,
        float(dataset.attrs["tau"]),
        [str(role) for role in dataset["role"].values],
    )
    mean, count = (dataset[name].transpose(*DIMS).values for name in ("bias", "bias_n"))
    variance = np.square(dataset["spread"].transpose(*DIMS).values.astype(float))
    may = strong(tau, mean, variance, count, asked, bound)
    has_role = may & (dataset["p_value"].values < alpha)
    more = (
        ""
        if asked.tau == PAPER_RULE
        else f", an effect of {asked.min_effect:g} or more, above random heads"
    )
    adjusted = may & (dataset["p_adjusted"].values < alpha)
    made = {
        "has_role": (has_role, f"p_value < {alpha}, {FEW} inputs or more{more}"),
        "has_role_adjusted": (adjusted, f"p_adjusted < {alpha}, {FEW} inputs or more{more}"),
    }
    found = labelled(DIMS, made) | overlaps(has_role, mean) | by_layer(has_role, roles)
    at = partial(
        roles_at_threshold, mean=mean, variance=variance, count=count, asked=asked, bound=bound
    )
    found |= sweep(at, roles)
    return found, {"unskilled": float((found["coarse_skills"].values == 0).mean())}


def strong(
    tau: float,
    mean: np.ndarray,
    variance: np.ndarray,
    count: np.ndarray,
    asked: Roles,
    bound: np.ndarray | float,
) -> np.ndarray:
    """Which heads could have a role at this τ, but for the test: 30 inputs, and unless the bare
    rule of the paper is asked for an effect of some size, above random heads."""
    may = count >= FEW
    if asked.tau == PAPER_RULE:
        return may
    return np.asarray(may & ~(mean <= bound) & (mean - tau >= asked.min_effect * np.sqrt(variance)))


def roles_at_threshold(
    tau: float,
    mean: np.ndarray,
    variance: np.ndarray,
    count: np.ndarray,
    asked: Roles,
    bound: np.ndarray | float = np.nan,
) -> tuple[np.ndarray, np.ndarray]:
    """p-values at this τ, and who has which role by them."""
    p = z_test(
        *without_rounding(mean, variance, tau), count, tau, student=asked.reading == RELEASED
    ).p_value
    return p, strong(tau, mean, variance, count, asked, bound) & (p < asked.alpha)


def tested_rest(moments: Moments, resting: Moments, tau: float, asked: Roles) -> Variables:
    """Tests of `bias_rest[layer, head, role]` of the heads that rest; NaN for the others."""
    count = moments.count.numpy()
    mean = np.where(count > 0, moments.mean.numpy(), np.nan)
    mean, variance = without_rounding(mean, moments.variance(), tau)
    rests = (resting.mean.numpy() > SINK_SHARE)[..., None]
    p_value = np.where(rests, z_test(mean, variance, count, tau).p_value, np.nan)
    made = {
        "bias_rest_spread": (
            np.sqrt(variance).astype(np.float32),
            "standard deviation of the scores behind bias_rest",
        ),
        "bias_rest_p": (
            p_value,
            "one-tailed z-test of mean ≤ τ, the first token left out; heads that rest",
        ),
        "bias_rest_p_adjusted": (
            correct(p_value, asked.correction),
            f"bias_rest_p corrected over heads that rest and roles ({asked.correction})",
        ),
    }
    found = labelled(DIMS, made)
    known = {"bias_rest": xr.Variable(DIMS, mean), "bias_rest_n": xr.Variable(DIMS, count)}
    dataset = xr.Dataset(found | known, attrs={"tau": tau})
    return found | {"has_role_rest": decided_rest(dataset, asked, np.full(mean.shape[-1], np.nan))}


def decided_rest(dataset: xr.Dataset, asked: Roles, bound: np.ndarray) -> xr.Variable:
    """Who has which role once the first token is left out, by the rule for all heads; `bound[role]`
    is NaN where what random heads reach is not known."""
    mean, count, spread, p = (
        dataset[f"bias_rest{suffix}"].transpose(*DIMS).values
        for suffix in ("", "_n", "_spread", "_p_adjusted")
    )
    able = strong(
        float(dataset.attrs["tau"]), mean, np.square(spread.astype(float)), count, asked, bound
    )
    has = able & (p < asked.alpha)
    about = f"as has_role_adjusted, of heads that rest, the first token left out: bias_rest_p_adjusted < {asked.alpha}"
    return xr.Variable(DIMS, has, {"long_name": about})


def roles_by_mean(
    mean: np.ndarray, count: np.ndarray, p_value: np.ndarray, tau: float, alpha: float
) -> Variables:
    """Roles by a mean over τ alone, and the heads that have one by it but not by the test: the
    averages that the paper warns of."""
    enough = count >= FEW
    called, tested = enough & (mean > tau), enough & (p_value < alpha)
    heads = {
        "role_by_mean": (called, f"mean bias over τ, {FEW} inputs or more"),
        "role_by_test": (tested, f"p_value < {alpha}, {FEW} inputs or more, whatever the effect"),
    }
    only = (
        (called & ~tested).sum((0, 1)),
        "heads that have the role by their mean but not by the test",
    )
    return labelled(DIMS, heads) | labelled(("role",), {"mean_only": only})


def labelled(dims: tuple[str, ...], made: Mapping[str, tuple[np.ndarray, str]]) -> Variables:
    """Variables of these dims from values and what they are."""
    return {
        name: xr.Variable(dims, values, {"long_name": about})
        for name, (values, about) in made.items()
    }


def _places(roles: Sequence[str], among: Sequence[str]) -> list[int]:
    return [place for place, role in enumerate(roles) if role in among]


def pooled_mean(
    mean: np.ndarray, count: np.ndarray, roles: Sequence[str], among: Sequence[str]
) -> float:
    """The mean of all scores of these roles, over inputs and heads; NaN where there is none."""
    chosen = _places(roles, among)
    weight = count[..., chosen]
    total = np.where(weight > 0, mean[..., chosen] * weight, 0.0).sum()
    return float(total / weight.sum()) if weight.sum() else float("nan")


def without_rounding(
    mean: np.ndarray, variance: np.ndarray, tau: float
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances in which rounding plays no part: a uniform head has a bias of 1 on every
    input, and must not be significantly above 1."""
    scale = np.maximum(np.abs(mean), 1.0)
    variance = np.where(np.sqrt(variance) <= ROUNDING * scale, 0.0, variance)
    at_tau = (variance == 0) & (np.abs(mean - tau) <= ROUNDING * scale)
    return np.where(at_tau, tau, mean), np.where(np.isnan(mean), np.nan, variance)


def histogram(scores: np.ndarray) -> np.ndarray:
    """How many inputs have a score in each bin, `[layer, head, role, bin]`."""
    shape = scores.shape[1:]
    out = np.zeros((int(np.prod(shape)), len(EDGES) - 1), dtype=np.int32)
    for row in scores.reshape(len(scores), len(out)):
        seen = np.flatnonzero(~np.isnan(row))
        out[seen, np.searchsorted(EDGES, row[seen], side="right") - 1] += 1
    return out.reshape(*shape, -1)


def undecided_share(p_value: np.ndarray) -> float:
    """The share of p-values strictly between 0.05 and 0.95 (the paper has 1.8 %)."""
    known = p_value[~np.isnan(p_value)]
    return float(((known > 0.05) & (known < 0.95)).mean()) if known.size else float("nan")


def sweep(at: Callable[[float], tuple[np.ndarray, np.ndarray]], roles: Sequence[str]) -> Variables:
    """What other values of τ would have given: `at(τ)` is p-values and who has which role."""
    coarse = _places(roles, COARSE_ROLES)
    heads, unskilled, unclear = [], [], []
    for tau in THRESHOLDS:
        p, has = at(float(tau))
        heads.append(has.sum((0, 1)))
        unskilled.append((~has[..., coarse].any(-1)).mean())
        unclear.append(undecided_share(p))
    shares = {
        "sweep_unskilled": (
            np.array(unskilled),
            "share of heads with none of the four roles at this τ",
        ),
        "sweep_undecided": (np.array(unclear), "share of p-values in (0.05, 0.95) at this τ"),
    }
    found = {"sweep": (np.array(heads), "heads with the role at this τ")}
    return labelled(("threshold", "role"), found) | labelled(("threshold",), shares)


def overlaps(has_role: np.ndarray, mean: np.ndarray) -> Variables:
    """How roles go together on the same heads."""
    counts = overlap_counts(has_role)
    size = np.diag(counts)
    chance, in_layer = overlap_test(has_role), stratified_overlap_test(has_role)
    columns = mean.reshape(-1, mean.shape[-1]).T
    ranks = correlation(columns[:, None], columns[None], "spearman")
    off = ~np.eye(len(size), dtype=bool)
    rank_p = np.where(off, ranks.p_value, np.nan)
    variables = {
        "overlap": (counts, "heads with both roles"),
        "jaccard": (jaccard(counts), "heads with both roles over heads with either"),
        "share": (
            share(counts, size[:, None]),
            "share of the heads of `role` that also have `role_b`",
        ),
        "overlap_p_value": (
            chance,
            "P(overlap at least this large) for random sets of these sizes",
        ),
        "overlap_p_adjusted": (_adjust_pairs(chance), "corrected over pairs of roles (holm)"),
        "overlap_in_layer_p_value": (
            in_layer,
            "the same with the number of heads of each role in each layer kept",
        ),
        "overlap_in_layer_p_adjusted": (
            _adjust_pairs(in_layer),
            "corrected over pairs of roles (holm)",
        ),
        "spearman": (ranks.r, "rank correlation of the mean scores across heads"),
        "spearman_p_value": (rank_p, "two-sided"),
        "spearman_p_adjusted": (_adjust_pairs(rank_p), "corrected over pairs of roles (holm)"),
    }
    return labelled(PAIR, variables)


def _adjust_pairs(p: np.ndarray) -> np.ndarray:
    """Holm over pairs, each counted once."""
    upper = np.where(np.triu(np.ones(p.shape, dtype=bool), 1), p, np.nan)
    adjusted = holm(upper)
    return np.where(np.isnan(adjusted), adjusted.T, adjusted)


def by_layer(has_role: np.ndarray, roles: Sequence[str]) -> Variables:
    """How many heads of each layer have which roles, and how many roles each head has."""
    skills, coarse = (
        has_role[..., _places(roles, among)].sum(-1) for among in (FINE_ROLES, COARSE_ROLES)
    )
    heads = {
        "skills": (skills, "how many of the nine roles of Fig 5 the head has"),
        "coarse_skills": (coarse, f"how many of {', '.join(COARSE_ROLES)} the head has"),
    }
    several = (skills > 1).sum(1), "heads with two or more of the nine roles"
    return (
        labelled(("layer", "role"), {"per_layer": (has_role.sum(1), "heads with the role")})
        | labelled(("layer", "head"), heads)
        | labelled(("layer",), {"multi_skilled": several})
    )
