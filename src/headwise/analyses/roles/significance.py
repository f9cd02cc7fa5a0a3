"""From scores of heads on inputs to roles: τ, tests, corrections, the sweep over τ, overlaps of roles, roles by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import xarray as xr

from headwise.stats.accumulators import Moments
from headwise.stats.bootstrap import bootstrap_family_test
from headwise.stats.corrections import benjamini_hochberg, correct, holm
from headwise.stats.correlation import correlation
from headwise.stats.overlap import jaccard, overlap_counts, overlap_test, stratified_overlap_test
from headwise.stats.tests import FEW, z_test

COARSE = ("local", "syntactic", "block", "delimiter")
FINE = ("nsubj", "dobj", "amod", "advmod", "cls", "sep", "block", "local:prev", "local:next")  # the nine of Fig 5
THRESHOLDS = np.arange(1.0, 10.01, 0.5)
EDGES = np.concatenate([[0.0], 2.0 ** (np.arange(-16, 33) / 4), [np.inf]])
ROUNDING = 1e-5  # scores that differ by less, relatively, differ by rounding only
DIMS = ("layer", "head", "role")
PAIR = ("role", "role_b")

Variables = dict[str, xr.Variable]


class Settings(Protocol):
    """What of the analysis's parameters is needed here."""

    @property
    def tau(self) -> float | None: ...
    @property
    def alpha(self) -> float: ...
    @property
    def correction(self) -> str: ...
    @property
    def bootstrap(self) -> int: ...
    @property
    def seed(self) -> int: ...


def coordinates(roles: Sequence[str]) -> dict[str, Any]:
    return {
        "role": np.array(roles),
        "role_b": np.array(roles),
        "threshold": THRESHOLDS,
        "bin": np.arange(len(EDGES) - 1),
        "bin_low": ("bin", EDGES[:-1]),
    }


def tested(
    moments: Moments, scores: np.ndarray, roles: Sequence[str], settings: Settings
) -> tuple[Variables, dict[str, Any]]:
    """All variables and attributes that come of the scores `[example, layer, head, role]` and their moments."""
    count = moments.count.numpy()
    mean = np.where(count > 0, moments.mean.numpy(), np.nan)
    variance = moments.variance()
    tau_mean = pooled_mean(mean, count, roles)
    tau = (
        float(settings.tau)
        if settings.tau is not None
        else float(np.floor(tau_mean) + 1)
        if np.isfinite(tau_mean)
        else np.nan
    )
    mean, variance = without_rounding(mean, variance, tau)
    p_value = z_test(mean, variance, count, tau).p_value
    has_role = p_value < settings.alpha
    p_adjusted = correct(p_value, settings.correction)
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = np.where(variance > 0, (mean - tau) / np.sqrt(variance), np.nan)
    variables: Variables = {
        "spread": xr.Variable(
            DIMS,
            np.sqrt(variance).astype(np.float32),
            {"long_name": "standard deviation of the scores over inputs (ddof 1)"},
        ),
        "effect": xr.Variable(DIMS, effect.astype(np.float32), {"long_name": "(bias − τ) / spread"}),
        "p_value": xr.Variable(DIMS, p_value, {"long_name": "one-tailed z-test of mean ≤ τ"}),
        "p_adjusted": xr.Variable(
            DIMS, p_adjusted, {"long_name": f"p_value corrected over heads and roles ({settings.correction})"}
        ),
        "p_holm": xr.Variable(DIMS, holm(p_value), {"long_name": "p_value corrected by Holm (family-wise error)"}),
        "p_fdr": xr.Variable(
            DIMS,
            benjamini_hochberg(p_value),
            {"long_name": "p_value corrected by Benjamini and Hochberg (false discoveries)"},
        ),
        "has_role": xr.Variable(DIMS, has_role, {"long_name": f"p_value < {settings.alpha}"}),
        "has_role_adjusted": xr.Variable(
            DIMS, p_adjusted < settings.alpha, {"long_name": f"p_adjusted < {settings.alpha}"}
        ),
        "few": xr.Variable(
            ("role",), (count.reshape(-1, len(roles)).max(0) < FEW), {"long_name": f"fewer than {FEW} inputs"}
        ),
        "histogram": xr.Variable((*DIMS, "bin"), histogram(scores), {"long_name": "inputs by score"}),
    }
    if settings.bootstrap:
        p, family = bootstrap_family_test(
            _flattened(scores, mean, variance, tau), tau, settings.bootstrap, settings.seed
        )
        how = (
            "largest t of each resample over heads and roles" if settings.correction == "holm" else settings.correction
        )
        variables["bootstrap_p_value"] = xr.Variable(DIMS, p, {"long_name": "studentized bootstrap of mean ≤ τ"})
        variables["bootstrap_p_adjusted"] = xr.Variable(
            DIMS,
            family if settings.correction == "holm" else correct(p, settings.correction),
            {"long_name": f"bootstrap_p_value corrected over heads and roles ({how})"},
        )
    variables |= (
        sweep(mean, variance, count, roles, settings.alpha) | overlaps(has_role, mean) | by_layer(has_role, roles)
    )
    attrs: dict[str, Any] = {
        "tau": tau,
        "tau_mean": float(tau_mean),
        "tau_rule": "given"
        if settings.tau is not None
        else f"floor(mean of all scores of {', '.join(r for r in COARSE if r in roles)}) + 1",
        "alpha": settings.alpha,
        "undecided": undecided(p_value),
        "unskilled": float((variables["coarse_skills"].values == 0).mean()),
        "inputs": len(scores),
    }
    if {"local", "syntactic"} <= set(roles):
        attrs["spearman_local_syntactic"] = float(
            variables["spearman"].values[roles.index("local"), roles.index("syntactic")]
        )
    return variables, attrs


def pooled_mean(mean: np.ndarray, count: np.ndarray, roles: Sequence[str]) -> float:
    """The mean of all scores of the four coarse roles, over inputs and heads; NaN where there is none."""
    chosen = [place for place, role in enumerate(roles) if role in COARSE]
    weight = count[..., chosen]
    return (
        float(np.where(weight > 0, mean[..., chosen] * weight, 0.0).sum() / weight.sum())
        if weight.sum()
        else float("nan")
    )


def without_rounding(mean: np.ndarray, variance: np.ndarray, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances in which rounding plays no part: a uniform head has a bias of 1 on every input, and must not be significantly above 1."""
    scale = np.maximum(np.abs(mean), 1.0)
    variance = np.where(np.sqrt(variance) <= ROUNDING * scale, 0.0, variance)
    return np.where((variance == 0) & (np.abs(mean - tau) <= ROUNDING * scale), tau, mean), np.where(
        np.isnan(mean), np.nan, variance
    )


def _flattened(scores: np.ndarray, mean: np.ndarray, variance: np.ndarray, tau: float) -> np.ndarray:
    """Scores whose spread is rounding only, made equal."""
    return np.where((variance == 0) & ~np.isnan(scores), mean, scores) if (variance == 0).any() else scores


def histogram(scores: np.ndarray) -> np.ndarray:
    """How many inputs have a score in each bin, `[layer, head, role, bin]`."""
    shape = scores.shape[1:]
    out = np.zeros((int(np.prod(shape)), len(EDGES) - 1), dtype=np.int32)
    flat = scores.reshape(len(scores), out.shape[0])
    columns = np.arange(out.shape[0])
    for row in flat:
        seen = ~np.isnan(row)
        out[columns[seen], np.searchsorted(EDGES, row[seen], side="right") - 1] += 1
    return out.reshape(*shape, -1)


def undecided(p_value: np.ndarray) -> float:
    """The share of p-values strictly between 0.05 and 0.95 (the paper has 1.8 %)."""
    known = p_value[~np.isnan(p_value)]
    return float(((known > 0.05) & (known < 0.95)).mean()) if known.size else float("nan")


def sweep(mean: np.ndarray, variance: np.ndarray, count: np.ndarray, roles: Sequence[str], alpha: float) -> Variables:
    """What other values of τ would have given."""
    heads = np.zeros((len(THRESHOLDS), len(roles)), dtype=np.int64)
    unskilled, unclear = np.zeros(len(THRESHOLDS)), np.zeros(len(THRESHOLDS))
    coarse = [place for place, role in enumerate(roles) if role in COARSE]
    for place, tau in enumerate(THRESHOLDS):
        p = z_test(*without_rounding(mean, variance, tau), count, tau).p_value
        heads[place] = (p < alpha).sum((0, 1))
        unskilled[place] = (~(p[..., coarse] < alpha).any(-1)).mean()
        unclear[place] = undecided(p)
    return {
        "sweep": xr.Variable(("threshold", "role"), heads, {"long_name": "heads with the role at this τ"}),
        "sweep_unskilled": xr.Variable(
            ("threshold",), unskilled, {"long_name": "share of heads with none of the four roles at this τ"}
        ),
        "sweep_undecided": xr.Variable(
            ("threshold",), unclear, {"long_name": "share of p-values in (0.05, 0.95) at this τ"}
        ),
    }


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
    return {name: xr.Variable(PAIR, values, {"long_name": about}) for name, (values, about) in variables.items()}


def _adjust_pairs(p: np.ndarray) -> np.ndarray:
    """Holm over pairs, each counted once."""
    upper = np.where(np.triu(np.ones(p.shape, dtype=bool), 1), p, np.nan)
    adjusted = holm(upper)
    return np.where(np.isnan(adjusted), adjusted.T, adjusted)


def by_layer(has_role: np.ndarray, roles: Sequence[str]) -> Variables:
    """How many heads of each layer have which roles, and how many roles each head has."""
    fine = [place for place, role in enumerate(roles) if role in FINE]
    coarse = [place for place, role in enumerate(roles) if role in COARSE]
    skills = has_role[..., fine].sum(-1)
    return {
        "per_layer": xr.Variable(("layer", "role"), has_role.sum(1), {"long_name": "heads with the role"}),
        "skills": xr.Variable(
            ("layer", "head"), skills, {"long_name": "how many of the nine roles of Fig 5 the head has"}
        ),
        "coarse_skills": xr.Variable(
            ("layer", "head"),
            has_role[..., coarse].sum(-1),
            {"long_name": f"how many of {', '.join(COARSE)} the head has"},
        ),
        "multi_skilled": xr.Variable(
            ("layer",), (skills > 1).sum(1), {"long_name": "heads with two or more of the nine roles"}
        ),
    }
