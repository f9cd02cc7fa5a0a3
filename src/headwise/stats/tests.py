"""Tests of hypotheses, as pure functions on arrays: z, exact binomial and McNemar, paired bootstrap, permutations, correlations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from headwise.stats.intervals import LEVEL

FEW = 30  # below this many values a normal approximation is flagged


@dataclass(frozen=True, slots=True)
class ZTest:
    """One-tailed z-tests, elementwise: the statistic, its p-value, and whether fewer than 30 values stand behind it."""

    z: np.ndarray
    p_value: np.ndarray
    few: np.ndarray


def z_test(mean: np.ndarray, variance: np.ndarray, count: np.ndarray, threshold: np.ndarray | float) -> ZTest:
    """Test `H0: mean ≤ threshold` against `mean > threshold` with `z = (mean − threshold) / sqrt(variance / count)`.

    Parameters
    ----------
    mean, variance, count
        Of the values, elementwise; the variance with ddof 1.
    threshold
        The largest mean the null hypothesis allows.

    Returns
    -------
    ZTest
        Zero variance gives p = 0 above the threshold and p = 1 at or below it; fewer than two values give NaN.
    """
    mean, variance, count, threshold = np.broadcast_arrays(
        *(np.asarray(x, dtype=float) for x in (mean, variance, count, threshold))
    )
    distance = mean - threshold
    with np.errstate(divide="ignore", invalid="ignore"):
        z = distance / np.sqrt(variance / count)
    z = np.where(variance == 0, np.where(distance > 0, np.inf, -np.inf), z)
    z = np.where((count < 2) | np.isnan(distance), np.nan, z)
    return ZTest(z, scipy_stats.norm.sf(z), count < FEW)


def binomial_test(
    successes: np.ndarray, count: np.ndarray, chance: np.ndarray | float = 0.5, alternative: str = "greater"
) -> np.ndarray:
    """Exact binomial p-values, elementwise; NaN where nothing was counted.

    `greater` is `P(X ≥ successes)`, `less` is `P(X ≤ successes)`, `two-sided` twice the smaller tail, at most 1.
    """
    successes, count = np.asarray(successes, dtype=float), np.asarray(count, dtype=float)
    upper = scipy_stats.binom.sf(successes - 1, count, chance)
    lower = scipy_stats.binom.cdf(successes, count, chance)
    p = {"greater": upper, "less": lower, "two-sided": np.minimum(1.0, 2 * np.minimum(upper, lower))}[alternative]
    return np.where(count > 0, p, np.nan)


def mcnemar_exact(only_first: np.ndarray, only_second: np.ndarray, alternative: str = "greater") -> np.ndarray:
    """McNemar's exact test of two predictors on the same items, from the items that only one of them gets right.

    Under the null hypothesis each such item is as likely to be the first's as the second's: a binomial test with chance 1/2.
    Where the two never differ there is nothing to tell them apart: p = 1.
    """
    only_first, only_second = np.broadcast_arrays(
        np.asarray(only_first, dtype=float), np.asarray(only_second, dtype=float)
    )
    p = binomial_test(only_first, only_first + only_second, 0.5, alternative)
    return np.where(only_first + only_second == 0, 1.0, p)


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference with its percentile interval and p-value, elementwise over columns."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    count: np.ndarray


def paired_bootstrap(
    first: np.ndarray, second: np.ndarray, repeats: int = 2000, level: float = LEVEL, seed: int = 0
) -> Difference:
    """The mean of `first − second` over axis 0 (examples), with a percentile interval; the same resamples serve every column.

    The p-value is two-sided, `2 · min(share ≤ 0, share ≥ 0)` over resamples, one added to each count, at most 1. NaN pairs are left out.
    """
    difference = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    shape, n = difference.shape[1:], len(difference)
    flat = difference.reshape(n, -1)
    present = ~np.isnan(flat)
    filled = np.where(present, flat, 0.0)
    count = present.sum(0)
    if n == 0:
        nothing = np.full(shape, np.nan)
        return Difference(nothing, nothing, nothing, nothing, np.zeros(shape, dtype=int))
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=repeats).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = filled.sum(0) / count
        means = (draws @ filled) / (draws @ present)
    valid = ~np.isnan(means)
    p = 2 * (1 + np.minimum((means <= 0).sum(0), (means >= 0).sum(0))) / (1 + valid.sum(0))
    low, high = np.full((2, flat.shape[1]), np.nan)
    some = count > 0
    if some.any():
        low[some], high[some] = np.nanpercentile(means[:, some], [50 * (1 - level), 50 * (1 + level)], axis=0)
    p = np.where(some, np.minimum(p, 1.0), np.nan)
    return Difference(
        mean.reshape(shape), low.reshape(shape), high.reshape(shape), p.reshape(shape), count.reshape(shape)
    )


def sign_flip_test(
    difference: np.ndarray, repeats: int = 9999, alternative: str = "two-sided", seed: int = 0
) -> np.ndarray:
    """Permutation test of paired differences over axis 0: under the null hypothesis each may have either sign.

    All `2^n` sign patterns are tried where there are no more than `repeats` of them (the test is exact then), else `repeats` random ones
    and the given one. NaN entries are left out; p is NaN for a column with no entry.
    """
    difference = np.asarray(difference, dtype=float)
    n, shape = len(difference), difference.shape[1:]
    flat = difference.reshape(n, -1)
    filled = np.where(np.isnan(flat), 0.0, flat)
    exact = n < 60 and 2**n <= repeats
    flips = (
        (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        if exact
        else np.random.default_rng(seed).integers(0, 2, size=(repeats, n))
    )
    signs = 1.0 - 2.0 * flips
    p = _tail(filled.sum(0), signs @ filled, alternative, exact)
    return np.where(np.isnan(flat).all(0), np.nan, p).reshape(shape)


def permutation_test(
    first: np.ndarray, second: np.ndarray, repeats: int = 9999, alternative: str = "two-sided", seed: int = 0
) -> tuple[float, float]:
    """The difference of the means of two independent samples, and its p-value over random exchanges between them (NaN entries left out)."""
    first, second = (np.asarray(x, dtype=float).ravel() for x in (first, second))
    first, second = first[~np.isnan(first)], second[~np.isnan(second)]
    if not len(first) or not len(second):
        return float("nan"), float("nan")
    pooled = np.concatenate([first, second])
    generator = np.random.default_rng(seed)
    total = pooled.sum()

    def difference(own_sum: np.ndarray) -> np.ndarray:
        return own_sum / len(first) - (total - own_sum) / len(second)

    sums = np.array([generator.permutation(pooled)[: len(first)].sum() for _ in range(repeats)])
    observed = difference(first.sum())
    return float(observed), float(_tail(observed, difference(sums), alternative, exact=False))


@dataclass(frozen=True, slots=True)
class Grouping:
    """Mean distance of pairs within and between groups, their difference (between − within) and its p-value."""

    within: float
    between: float
    difference: float
    p_value: float


def group_distance_test(distance: np.ndarray, groups: np.ndarray, repeats: int = 1999, seed: int = 0) -> Grouping:
    """Whether members of a group are nearer to each other than to others: a permutation test on a symmetric matrix of distances.

    The statistic is the mean distance between groups minus the mean within; the null distribution comes from handing the group labels
    round at random among the items (pairs are not independent, items are exchangeable). One-tailed: small p, groups hold together.
    """
    distance = np.asarray(distance, dtype=float)
    labels = np.unique(np.asarray(groups), return_inverse=True)[1]
    n = len(labels)
    sizes = np.bincount(labels)
    within_pairs = float((sizes * (sizes - 1) / 2).sum())
    between_pairs = n * (n - 1) / 2 - within_pairs
    if not within_pairs or not between_pairs:
        return Grouping(float("nan"), float("nan"), float("nan"), float("nan"))
    off = distance - np.diag(np.diag(distance))
    total = off.sum() / 2
    one_hot = np.eye(len(sizes))

    def within_sums(assigned: np.ndarray) -> np.ndarray:
        members = one_hot[assigned]  # [repeat, item, group]
        return np.einsum("rig,rig->r", np.matmul(off, members), members) / 2

    def difference(sums: np.ndarray) -> np.ndarray:
        return (total - sums) / between_pairs - sums / within_pairs

    observed_sum = within_sums(labels[None])
    generator = np.random.default_rng(seed)
    chunk = max(1, 2_000_000 // (n * len(sizes)))  # one-hot labels of so many permutations fit a few caches
    sums = np.concatenate(
        [
            within_sums(np.stack([generator.permutation(labels) for _ in range(min(chunk, repeats - start))]))
            for start in range(0, repeats, chunk)
        ]
    )
    observed = difference(observed_sum)
    p = float(_tail(observed, difference(sums)[:, None], "greater", exact=False)[0])
    within = float(observed_sum[0]) / within_pairs
    between = (total - float(observed_sum[0])) / between_pairs
    return Grouping(within, between, between - within, p)


@dataclass(frozen=True, slots=True)
class Correlation:
    """Correlations with intervals (Fisher's z), two-sided p-values and the number of pairs, elementwise."""

    r: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    count: np.ndarray


def correlation(first: np.ndarray, second: np.ndarray, method: str = "pearson", level: float = LEVEL) -> Correlation:
    """Pearson's or Spearman's correlation along the last axis; a pair with a NaN is left out.

    The interval is `tanh(atanh r ± z · se)` with `se = 1/sqrt(n − 3)`, for Spearman with Bonett and Wright's `sqrt((1 + r²/2)/(n − 3))`;
    NaN below four pairs, and everything is NaN where one side does not vary.
    """
    if method not in ("pearson", "spearman"):
        raise ValueError(f"method is pearson or spearman, not {method!r}")
    first, second = np.broadcast_arrays(np.asarray(first, dtype=float), np.asarray(second, dtype=float))
    present = ~(np.isnan(first) | np.isnan(second))
    x, y = np.where(present, first, np.nan), np.where(present, second, np.nan)
    if method == "spearman":
        x, y = scipy_stats.rankdata(x, axis=-1, nan_policy="omit"), scipy_stats.rankdata(y, axis=-1, nan_policy="omit")
    n = present.sum(-1)
    safe = np.maximum(n, 1)
    dx, dy = (np.where(present, v - (np.where(present, v, 0.0).sum(-1) / safe)[..., None], 0.0) for v in (x, y))
    scale = np.sqrt((dx**2).sum(-1) * (dy**2).sum(-1))
    flat = (dx**2).sum(-1) <= 1e-30 * safe * np.maximum(
        1.0, np.where(present, np.abs(x), 0.0).max(-1, initial=0.0) ** 2
    )
    flat |= (dy**2).sum(-1) <= 1e-30 * safe * np.maximum(
        1.0, np.where(present, np.abs(y), 0.0).max(-1, initial=0.0) ** 2
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.where((n > 1) & ~flat, np.clip((dx * dy).sum(-1) / scale, -1.0, 1.0), np.nan)
        t = r * np.sqrt((n - 2) / (1 - r**2))
        p = np.where(n > 2, 2 * scipy_stats.t.sf(np.abs(t), np.maximum(n - 2, 1)), np.nan)
        error = np.sqrt((1 + r**2 / 2 if method == "spearman" else 1.0) / np.where(n > 3, n - 3, np.nan))
        half = scipy_stats.norm.ppf(0.5 + level / 2) * error
        low, high = np.tanh(np.arctanh(r) - half), np.tanh(np.arctanh(r) + half)
    return Correlation(r, low, high, np.where(np.isnan(r), np.nan, p), n)


def _tail(observed: np.ndarray | float, drawn: np.ndarray, alternative: str, exact: bool) -> np.ndarray:
    """The share of drawn statistics at least as extreme as the observed one, which counts as a draw unless all were tried."""
    slack = 1e-12 * np.maximum(np.abs(observed), np.abs(drawn).max(0, initial=0.0))
    beyond: dict[str, Callable[[], np.ndarray]] = {
        "greater": lambda: drawn >= observed - slack,
        "less": lambda: drawn <= observed + slack,
        "two-sided": lambda: np.abs(drawn) >= np.abs(observed) - slack,
    }
    hits = beyond[alternative]().sum(0)
    return hits / len(drawn) if exact else (1 + hits) / (1 + len(drawn))
