"""Tests of hypotheses, as pure functions on arrays: z, McNemar's exact one, groups among distances,
overlaps of sets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from headwise.core.checks import one_of
from headwise.stats.bootstrap import FEW
from headwise.stats.intervals import share


@dataclass(frozen=True, slots=True)
class ZTest:
    """One-tailed z-tests, elementwise: the statistic, its p-value, and whether fewer than 30 values
    stand behind it."""

    z: np.ndarray
    p_value: np.ndarray
    few: np.ndarray


def z_test(
    mean: np.ndarray,
    variance: np.ndarray,
    count: np.ndarray,
    threshold: np.ndarray | float,
    *,
    student: bool = False,
) -> ZTest:
    """Test `H0: mean ≤ threshold` against `mean > threshold` with `z = (mean − threshold) /
    sqrt(variance / count)`.

    Parameters
    ----------
    mean, variance, count : ndarray
        Of the values, elementwise; the variance with ddof 1.
    threshold : ndarray or float
        The largest mean the null hypothesis allows.
    student : bool, default False
        The p-value from Student's distribution with `count − 1` degrees of freedom instead of the
        normal one.

    Returns
    -------
    ZTest
        Zero variance gives p = 0 above the threshold and p = 1 at or below it; fewer than two
        values give NaN.
    """
    mean, variance, count, threshold = np.broadcast_arrays(
        *(np.asarray(x, dtype=float) for x in (mean, variance, count, threshold))
    )
    distance = mean - threshold
    with np.errstate(divide="ignore", invalid="ignore"):
        z = distance / np.sqrt(variance / count)
    z = np.where(variance == 0, np.where(distance > 0, np.inf, -np.inf), z)
    z = np.where((count < 2) | np.isnan(distance), np.nan, z)
    p_value = scipy_stats.t.sf(z, np.maximum(count - 1, 1)) if student else scipy_stats.norm.sf(z)
    return ZTest(z, p_value, count < FEW)


def mean_above(values: np.ndarray, threshold: np.ndarray | float = 0.0) -> np.ndarray:
    """p-values of `H0: mean ≤ threshold` over axis 0, by Student's t; p = 0 or 1 where the values
    do not vary.

    >>> mean_above(np.array([[1.0, 0.5], [1.0, -0.5], [1.0, 0.3]])).round(3).tolist()
    [0.0, 0.387]
    """
    values = np.asarray(values, dtype=float) - threshold
    count = len(values)
    if count < 2:
        return np.full(values.shape[1:], np.nan)
    mean = values.mean(0)
    spread = values.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = scipy_stats.t.sf(mean / (spread / np.sqrt(count)), count - 1)
    rounding = 1e-7 * np.maximum(np.abs(mean), 1e-9)  # float32 scores that are equal differ by that
    return np.where(spread > rounding, p, np.where(mean > 0, 0.0, 1.0))


def outlying(value: np.ndarray, others: np.ndarray) -> np.ndarray:
    """p-values of `H0: the value is one of the others`, against being larger: Student's prediction
    interval, the others on axis 0.

    >>> float(outlying(np.array(5.0), np.array([1.0, 2.0, 3.0, 2.0])).round(3))
    0.023
    """
    value = np.asarray(value, dtype=float)
    others = np.asarray(others, dtype=float)
    count = len(others)
    if count < 2:
        return np.full(value.shape, np.nan)
    distance = value - others.mean(0)
    spread = others.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = scipy_stats.t.sf(distance / (spread * np.sqrt(1 + 1 / count)), count - 1)
    return np.where(spread > 0, p, np.where(distance > 0, 0.0, 1.0))


def mcnemar_exact(
    only_first: np.ndarray, only_second: np.ndarray, alternative: str = "greater"
) -> np.ndarray:
    """McNemar's exact test of two predictors on the same items, from the items that only one of
    them gets right.

    Under the null hypothesis each such item is as likely to be the first's as the second's:
    binomial with chance 1/2. `greater` is the chance that the first gets so many or more, `less` so
    many or fewer, `two-sided` twice the smaller of both, at most 1. Where the two never differ
    there is nothing to tell them apart: p = 1.

    >>> mcnemar_exact(np.array([10, 0]), np.array([0, 0])).tolist()
    [0.0009765625, 1.0]
    """
    one_of("alternative", alternative, ("greater", "less", "two-sided"))
    first = np.asarray(only_first, dtype=float)
    second = np.asarray(only_second, dtype=float)
    upper = scipy_stats.binom.sf(first - 1, first + second, 0.5)
    lower = scipy_stats.binom.cdf(first, first + second, 0.5)
    if alternative == "greater":
        return np.asarray(upper)
    if alternative == "less":
        return np.asarray(lower)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(upper, lower)))


@dataclass(frozen=True, slots=True)
class Grouping:
    """Mean distance of pairs within and between groups, their difference (between − within) and its
    p-value."""

    within: float
    between: float
    difference: float
    p_value: float


def group_distance_test(
    distance: np.ndarray, groups: np.ndarray, repeats: int = 1999, seed: int = 0
) -> Grouping:
    """Whether members of a group are nearer to each other than to others: a permutation test on
    symmetric distances.

    The statistic is the mean distance between groups minus the mean within; the null distribution
    comes from handing the group labels round at random among the items (pairs are not independent,
    items are exchangeable). One-tailed: small p, groups hold together."""
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
        return np.asarray(np.einsum("rig,rig->r", np.matmul(off, members), members) / 2)

    def difference(sums: np.ndarray) -> np.ndarray:
        return np.asarray((total - sums) / between_pairs - sums / within_pairs)

    observed_sum = within_sums(labels[None])
    generator = np.random.default_rng(seed)
    # One-hot labels of this many permutations fit the caches.
    chunk = max(1, 2_000_000 // (n * len(sizes)))
    chunk_sums = []
    for start in range(0, repeats, chunk):
        n_permutations = min(chunk, repeats - start)
        permuted = [generator.permutation(labels) for _ in range(n_permutations)]
        chunk_sums.append(within_sums(np.stack(permuted)))
    sums = np.concatenate(chunk_sums)
    observed = float(difference(observed_sum)[0])
    drawn = difference(sums)
    slack = 1e-12 * max(abs(observed), np.abs(drawn).max(initial=0.0))
    # The given labels count as a draw.
    p = float(1 + (drawn >= observed - slack).sum()) / (1 + repeats)
    within = float(observed_sum[0]) / within_pairs
    between = (total - float(observed_sum[0])) / between_pairs
    return Grouping(within, between, between - within, p)


# --- overlaps of sets of heads: exact, over all heads or within each layer ------------------------


def overlap_counts(members: np.ndarray) -> np.ndarray:
    """How many items each two sets share, `[set, set]`, from `members[..., set]` (bool).

    The diagonal holds the sizes.
    """
    flat = np.asarray(members, dtype=bool).reshape(-1, members.shape[-1]).astype(np.int64)
    return flat.T @ flat


def jaccard(counts: np.ndarray) -> np.ndarray:
    """`|A ∩ B| / |A ∪ B|` from the shared counts; NaN where both sets are empty."""
    size = np.diag(counts)
    return share(counts, size[:, None] + size[None] - counts)


def overlap_test(members: np.ndarray) -> np.ndarray:
    """`P(overlap ≥ the one found)` for each two sets drawn at random with their sizes: the
    hypergeometric tail.

    `members[..., set]` is bool. The diagonal and pairs with an empty set are NaN: there is nothing
    to test."""
    flat = np.asarray(members, dtype=bool).reshape(1, -1, members.shape[-1])
    return stratified_overlap_test(flat)


def stratified_overlap_test(members: np.ndarray) -> np.ndarray:
    """The same with each stratum's (layer's) sizes kept, `members[stratum, item, set]`.

    Sets that merely share layers do not count as overlapping.

    The overlap is then a sum of independent hypergeometric counts, one for each stratum; its
    distribution is their convolution, so the test is exact."""
    members = np.asarray(members, dtype=bool)
    strata, items, sets = members.shape
    sizes = members.sum(1)
    counts = overlap_counts(members)
    out = np.full((sets, sets), np.nan)
    for a in range(sets):
        for b in range(a + 1, sets):
            if not counts[a, a] or not counts[b, b]:
                continue
            chances = np.ones(1)
            for stratum in range(strata):
                most = int(min(sizes[stratum, a], sizes[stratum, b]))
                here = scipy_stats.hypergeom.pmf(
                    np.arange(most + 1), items, sizes[stratum, a], sizes[stratum, b]
                )
                chances = np.convolve(chances, here)
            out[a, b] = out[b, a] = min(1.0, float(chances[counts[a, b] :].sum()))
    return out
