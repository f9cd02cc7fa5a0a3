"""Shares of classes corrected for a classifier's confusion: those that, so confused, come nearest to the counted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from headwise.analyses.patterns.errors import ErrorModel
from headwise.stats.bootstrap import percentile_interval, resamples

REPEATS = 400
# Half a map is added to each row of the confusion counts: a mistake not seen in dozens of maps is rare, not impossible.
PSEUDO = 0.5


def said_given_true(counts: np.ndarray) -> np.ndarray:
    """`P(said d | true c)` from confusion counts `[..., true, said]`."""
    smoothed = counts + PSEUDO / counts.shape[-1]
    return np.asarray(smoothed / smoothed.sum(-1, keepdims=True))


def corrected_shares(said: np.ndarray, mistakes: np.ndarray) -> np.ndarray:
    """`argmin_p ‖Cᵀ p − q‖²` over the simplex (p ≥ 0, Σ p = 1), with q the shares said `[..., class]`.

    `C[true, said]` are the probabilities of `said_given_true`: one table for all shares, or one for each. Exact: the
    least-squares solution with Σ p = 1 is taken on every subset of classes, and the best one that is nowhere negative
    is kept. NaN shares stay NaN.

    Examples
    --------
    >>> corrected_shares(np.array([0.5, 0.5]), np.array([[1.0, 0.0], [0.5, 0.5]])).round(3).tolist()
    [0.0, 1.0]
    """
    classes = said.shape[-1]
    shares = said.reshape(-1, classes)
    tables = mistakes.reshape(-1, classes, classes)
    best = np.full(shares.shape, np.nan)
    least = np.full(len(shares), np.inf)
    for index in (list(own) for size in range(1, classes + 1) for own in combinations(range(classes), size)):
        part = tables[:, index]  # said given these true classes
        size = len(index)
        # minimise ‖partᵀ p − q‖² with Σ p = 1, by Lagrange: [part partᵀ, 1; 1ᵀ, 0] [p; λ] = [part q; 1]
        system = np.zeros((len(tables), size + 1, size + 1))
        system[:, :size, :size] = part @ part.swapaxes(-1, -2)
        system[:, :size, size] = system[:, size, :size] = 1
        right = np.concatenate([(part @ shares[:, :, None])[..., 0], np.ones((len(shares), 1))], axis=1)
        found = (np.linalg.pinv(system, hermitian=True) @ right[:, :, None])[:, :size, 0]
        residual = (((found[:, None] @ part)[:, 0] - shares) ** 2).sum(-1)
        better = (found >= -1e-9).all(-1) & (residual < least - 1e-15)
        least = np.where(better, residual, least)
        row = np.zeros((len(shares), classes))
        row[:, index] = np.clip(found, 0, None)
        best = np.where(better[:, None], row, best)
    return np.asarray(best / best.sum(-1, keepdims=True)).reshape(said.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """Corrected shares `[class]` with a 95 % interval, and whether they are likely nearer the truth than those
    counted."""

    shares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    helps: bool


@lru_cache(maxsize=8)
def carries_over(errors: ErrorModel, repeats: int = REPEATS, seed: int = 0) -> bool:
    """Whether the mistakes on some heads (or models) mend the shares of others.

    Half of the labelled units give the confusion, by which the shares said of the other half are corrected; their
    labels say whether that is nearer the truth. It is, where the squared distance is less in the mean over such halves.
    """
    known, others = errors.halves(repeats, np.random.default_rng(seed))
    enough = (known.sum((-2, -1)) > 0) & (others.sum((-2, -1)) > 0)
    if not enough.any():
        return False
    known, others = known[enough], others[enough]
    total = others.sum((-2, -1))[:, None]
    truth, said = others.sum(-1) / total, others.sum(-2) / total
    mended = corrected_shares(said, said_given_true(known))
    return bool(((mended - truth) ** 2).sum(-1).mean() < ((said - truth) ** 2).sum(-1).mean())


def corrected_with_interval(
    per_example: np.ndarray, errors: ErrorModel, repeats: int = REPEATS, seed: int = 0
) -> Corrected:
    """Correct the shares said in each example, `per_example[example, class]`.

    Both sources of doubt are in the interval: examples are resampled, and so are the labelled heads behind the error
    model. The correction helps where two things hold: the mistakes carry over (`carries_over`), and what it takes away
    (the squared bias of the counted shares, less what chance alone would show of it, and their variance) is more than
    the variance it brings in.
    """
    seen = per_example[~np.isnan(per_example).any(-1)]
    classes = per_example.shape[-1]
    nothing = np.full(classes, np.nan)
    if not len(seen):
        return Corrected(nothing, nothing, nothing, False)
    counted = seen.mean(0)
    point = corrected_shares(counted, said_given_true(errors.counts))
    rng = np.random.default_rng(seed)
    resampled = (resamples(len(seen), repeats, rng) / len(seen)) @ seen
    redrawn = corrected_shares(resampled, said_given_true(errors.redrawn(repeats, rng)))

    def spread(values: np.ndarray) -> float:
        return float(values.var(0, ddof=1).sum())

    bias = max(float(((counted - point) ** 2).sum()) - spread(redrawn - resampled), 0.0)
    helps = bias + spread(resampled) > spread(redrawn) and carries_over(errors, repeats, seed)
    if len(seen) < 2:
        return Corrected(point, nothing, nothing, helps)
    low, high = percentile_interval(redrawn)
    return Corrected(point, np.minimum(low, point), np.maximum(high, point), helps)
