"""From scores of heads on inputs to roles: τ, tests, corrections, the sweep over τ, overlaps, roles by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from headwise.stats.accumulators import Moments
from headwise.stats.bootstrap import FEW, bootstrap_family_test
from headwise.stats.corrections import benjamini_hochberg, correct, holm
from headwise.stats.correlation import correlation
from headwise.stats.overlap import jaccard, overlap_counts, overlap_test, stratified_overlap_test
from headwise.stats.tests import z_test

if TYPE_CHECKING:
    from headwise.analyses.roles.analysis import Roles

COARSE = ("local", "syntactic", "block", "delimiter")
FINE = ("nsubj", "dobj", "amod", "advmod", "cls", "sep", "block", "local:prev", "local:next")  # the nine of Fig 5
THRESHOLDS = np.arange(1.0, 10.01, 0.5)
EDGES = np.concatenate([[0.0], 2.0 ** (np.arange(-16, 33) / 4), [np.inf]])
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
    moments: Moments, scores: np.ndarray, roles: Sequence[str], asked: Roles
) -> tuple[Variables, dict[str, Any]]:
    """All variables and attributes that come of the scores `[example, layer, head, role]` and their moments."""
    alpha, correction = asked.alpha, asked.correction
    count = moments.count.numpy()
    mean = np.where(count > 0, moments.mean.numpy(), np.nan)
    tau_mean = pooled_mean(mean, count, roles)
    tau = float(np.floor(tau_mean) + 1 if asked.tau is None else asked.tau)
    rule = f"floor(mean of all scores of {', '.join(r for r in COARSE if r in roles)}) + 1"
    mean, variance = without_rounding(mean, moments.variance(), tau)
    p_value = z_test(mean, variance, count, tau).p_value
    p_adjusted, has_role = correct(p_value, correction), p_value < alpha
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = np.where(variance > 0, (mean - tau) / np.sqrt(variance), np.nan)
    spread = "standard deviation of the scores over inputs (ddof 1)"
    made = {
        "spread": (np.sqrt(variance).astype(np.float32), spread),
        "effect": (effect.astype(np.float32), "(bias − τ) / spread"),
        "p_value": (p_value, "one-tailed z-test of mean ≤ τ"),
        "p_adjusted": (p_adjusted, f"p_value corrected over heads and roles ({correction})"),
        "p_holm": (holm(p_value), "p_value corrected by Holm (family-wise error)"),
        "p_fdr": (benjamini_hochberg(p_value), "p_value corrected by Benjamini and Hochberg (false discoveries)"),
        "has_role": (has_role, f"p_value < {alpha}"),
        "has_role_adjusted": (p_adjusted < alpha, f"p_adjusted < {alpha}"),
    }
    if asked.bootstrap:
        # Scores whose spread is rounding only count as equal.
        flat = np.where((variance == 0) & ~np.isnan(scores), mean, scores) if (variance == 0).any() else scores
        p, family = bootstrap_family_test(flat, tau, asked.bootstrap, asked.seed or 0)
        by_family = correction == "holm"
        how = "largest t of each resample over heads and roles" if by_family else correction
        made["bootstrap_p_value"] = (p, "studentized bootstrap of mean ≤ τ")
        made["bootstrap_p_adjusted"] = (
            family if by_family else correct(p, correction),
            f"bootstrap_p_value corrected over heads and roles ({how})",
        )
    few = count.reshape(-1, len(roles)).max(0) < FEW
    variables = (
        _labelled(DIMS, made)
        | _labelled(("role",), {"few": (few, f"fewer than {FEW} inputs")})
        | _labelled((*DIMS, "bin"), {"histogram": (histogram(scores), "inputs by score")})
        | sweep(mean, variance, count, roles, alpha)
        | overlaps(has_role, mean)
        | by_layer(has_role, roles)
    )
    attrs: dict[str, Any] = {
        "tau": tau,
        "tau_mean": float(tau_mean),
        "tau_rule": rule if asked.tau is None else "given",
        "alpha": alpha,
        "undecided": undecided(p_value),
        "unskilled": float((variables["coarse_skills"].values == 0).mean()),
        "inputs": len(scores),
    }
    if {"local", "syntactic"} <= set(roles):
        ranks = variables["spearman"].values
        attrs["spearman_local_syntactic"] = float(ranks[roles.index("local"), roles.index("syntactic")])
    return variables, attrs


def _labelled(dims: tuple[str, ...], made: Mapping[str, tuple[np.ndarray, str]]) -> Variables:
    """Variables of these dims from values and what they are."""
    return {name: xr.Variable(dims, values, {"long_name": about}) for name, (values, about) in made.items()}


def _places(roles: Sequence[str], among: Sequence[str]) -> list[int]:
    return [place for place, role in enumerate(roles) if role in among]


def pooled_mean(mean: np.ndarray, count: np.ndarray, roles: Sequence[str]) -> float:
    """The mean of all scores of the four coarse roles, over inputs and heads; NaN where there is none."""
    chosen = _places(roles, COARSE)
    weight = count[..., chosen]
    total = np.where(weight > 0, mean[..., chosen] * weight, 0.0).sum()
    return float(total / weight.sum()) if weight.sum() else float("nan")


def without_rounding(mean: np.ndarray, variance: np.ndarray, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances in which rounding plays no part: a uniform head has a bias of 1 on every input, and must not
    be significantly above 1."""
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


def undecided(p_value: np.ndarray) -> float:
    """The share of p-values strictly between 0.05 and 0.95 (the paper has 1.8 %)."""
    known = p_value[~np.isnan(p_value)]
    return float(((known > 0.05) & (known < 0.95)).mean()) if known.size else float("nan")


def sweep(mean: np.ndarray, variance: np.ndarray, count: np.ndarray, roles: Sequence[str], alpha: float) -> Variables:
    """What other values of τ would have given."""
    coarse = _places(roles, COARSE)
    heads, unskilled, unclear = [], [], []
    for tau in THRESHOLDS:
        p = z_test(*without_rounding(mean, variance, tau), count, tau).p_value
        heads.append((p < alpha).sum((0, 1)))
        unskilled.append((~(p[..., coarse] < alpha).any(-1)).mean())
        unclear.append(undecided(p))
    shares = {
        "sweep_unskilled": (np.array(unskilled), "share of heads with none of the four roles at this τ"),
        "sweep_undecided": (np.array(unclear), "share of p-values in (0.05, 0.95) at this τ"),
    }
    found = {"sweep": (np.array(heads), "heads with the role at this τ")}
    return _labelled(("threshold", "role"), found) | _labelled(("threshold",), shares)


def overlaps(has_role: np.ndarray, mean: np.ndarray) -> Variables:
    """How roles go together on the same heads."""
    counts = overlap_counts(has_role)
    size = np.diag(counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(size[:, None] > 0, counts / size[:, None], np.nan)
    chance, in_layer = overlap_test(has_role), stratified_overlap_test(has_role)
    columns = mean.reshape(-1, mean.shape[-1]).T
    ranks = correlation(columns[:, None], columns[None], "spearman")
    off = ~np.eye(len(size), dtype=bool)
    rank_p = np.where(off, ranks.p_value, np.nan)
    variables = {
        "overlap": (counts, "heads with both roles"),
        "jaccard": (jaccard(counts), "heads with both roles over heads with either"),
        "share": (share, "share of the heads of `role` that also have `role_b`"),
        "overlap_p_value": (chance, "P(overlap at least this large) for random sets of these sizes"),
        "overlap_p_adjusted": (_adjust_pairs(chance), "corrected over pairs of roles (holm)"),
        "overlap_in_layer_p_value": (in_layer, "the same with the number of heads of each role in each layer kept"),
        "overlap_in_layer_p_adjusted": (_adjust_pairs(in_layer), "corrected over pairs of roles (holm)"),
        "spearman": (ranks.r, "rank correlation of the mean scores across heads"),
        "spearman_p_value": (rank_p, "two-sided"),
        "spearman_p_adjusted": (_adjust_pairs(rank_p), "corrected over pairs of roles (holm)"),
    }
    return _labelled(PAIR, variables)


def _adjust_pairs(p: np.ndarray) -> np.ndarray:
    """Holm over pairs, each counted once."""
    upper = np.where(np.triu(np.ones(p.shape, dtype=bool), 1), p, np.nan)
    adjusted = holm(upper)
    return np.where(np.isnan(adjusted), adjusted.T, adjusted)


def by_layer(has_role: np.ndarray, roles: Sequence[str]) -> Variables:
    """How many heads of each layer have which roles, and how many roles each head has."""
    skills, coarse = (has_role[..., _places(roles, among)].sum(-1) for among in (FINE, COARSE))
    heads = {
        "skills": (skills, "how many of the nine roles of Fig 5 the head has"),
        "coarse_skills": (coarse, f"how many of {', '.join(COARSE)} the head has"),
    }
    several = (skills > 1).sum(1), "heads with two or more of the nine roles"
    return (
        _labelled(("layer", "role"), {"per_layer": (has_role.sum(1), "heads with the role")})
        | _labelled(("layer", "head"), heads)
        | _labelled(("layer",), {"multi_skilled": several})
    )
