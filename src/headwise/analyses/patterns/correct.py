"""What is known of the classifier's mistakes, and shares of classes corrected for them: those that,
so confused, come nearest to the counted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from itertools import combinations
from typing import Any

import numpy as np

from headwise.stats.bootstrap import percentile_interval, resamples

ERRORS = "errors.json"


@dataclass(frozen=True, slots=True, eq=False)
class ErrorModel:
    """Labelled maps by true and by said pattern, `tables[head, true, said]`.

    Maps of one head resemble each other, so doubt about the mistakes is drawn by head. `unit[head]`
    is what the mistakes must carry over to: other heads (each its own unit, the default), or other
    models."""

    tables: np.ndarray
    origin: str = ""
    unit: np.ndarray | None = None

    @property
    def counts(self) -> np.ndarray:
        """Over all heads, `[true, said]`."""
        return np.asarray(self.tables.sum(0))

    def redrawn(self, repeats: int, generator: np.random.Generator) -> np.ndarray:
        """The counts as other labelled heads would have given them, `[repeat, true, said]`."""
        drawn_heads = resamples(len(self.tables), repeats, generator)
        return np.asarray(np.einsum("rh,htd->rtd", drawn_heads, self.tables))

    def halves(self, repeats: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The counts of one half of the units and of the other, drawn again and again, `[repeat,
        true, said]` each.

        None where there is one unit only.
        """
        names = np.arange(len(self.tables)) if self.unit is None else self.unit
        _, place = np.unique(names, return_inverse=True)
        units = int(place.max()) + 1
        order = np.argsort(generator.random((repeats if units > 1 else 0, units)), axis=1)
        first = (order < units // 2)[:, place].astype(float)
        one = np.einsum("rh,htd->rtd", first, self.tables)
        return one, self.counts - one


@cache
def _shipped() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (resources.files("headwise.analyses.patterns") / ERRORS).read_text("utf-8")
    )
    return found


def seen_in_training(name: str, layers: int, heads: int) -> bool:
    """Whether maps of this model were among those the shipped classifier was trained on.

    >>> seen_in_training("wiki-bert", 12, 12), seen_in_training("bert-base-uncased", 12, 12)
    (True, False)
    """
    size = _shipped()["trained_on"].get(name.rstrip("/").rpartition("/")[2])
    return bool(size == [layers, heads])


def shipped_errors(seen: bool, causal: bool) -> ErrorModel:
    """The mistakes of the shipped classifier on such a model."""
    found = _shipped()["seen" if seen else "unseen"]["causal" if causal else "encoder"]
    return ErrorModel(
        np.array(found["tables"]),
        found["origin"],
        np.array(found["unit"]) if "unit" in found else None,
    )


REPEATS = 400
# Half a map is added to each row of the confusion counts: a mistake not seen in dozens of maps is
# rare, not impossible.
PSEUDO = 0.5


def said_given_true(counts: np.ndarray) -> np.ndarray:
    """`P(said d | true c)` from confusion counts `[..., true, said]`."""
    smoothed = counts + PSEUDO / counts.shape[-1]
    return np.asarray(smoothed / smoothed.sum(-1, keepdims=True))


def corrected_shares(said: np.ndarray, mistakes: np.ndarray) -> np.ndarray:
    """`argmin_p ‖Cᵀ p − q‖²` over the simplex (p ≥ 0, Σ p = 1), with q the shares said `[...,
    class]`.

    `C[true, said]` are the probabilities of `said_given_true`: one table for all shares, or one for
    each. Exact: the least-squares solution with Σ p = 1 is taken on every subset of classes, and
    the best one that is nowhere negative is kept. NaN shares stay NaN.

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
    for index in (
        list(own) for size in range(1, classes + 1) for own in combinations(range(classes), size)
    ):
        part = tables[:, index]  # said given these true classes
        size = len(index)
        # minimise ‖partᵀ p − q‖² with Σ p = 1, by Lagrange: [part partᵀ, 1; 1ᵀ, 0] [p; λ] = [part
        # q; 1]
        system = np.zeros((len(tables), size + 1, size + 1))
        system[:, :size, :size] = part @ part.swapaxes(-1, -2)
        system[:, :size, size] = system[:, size, :size] = 1
        right = np.concatenate(
            [(part @ shares[:, :, None])[..., 0], np.ones((len(shares), 1))], axis=1
        )
        found = (np.linalg.pinv(system, hermitian=True) @ right[:, :, None])[:, :size, 0]
        residual = (((found[:, None] @ part)[:, 0] - shares) ** 2).sum(-1)
        better = (found >= -1e-9).all(-1) & (residual < least - 1e-15)
        least = np.where(better, residual, least)
        row = np.zeros((len(shares), classes))
        row[:, index] = np.clip(found, 0, None)
        best = np.where(better[:, None], row, best)
    return np.asarray(best / best.sum(-1, keepdims=True)).reshape(said.shape)


@dataclass(frozen=True, slots=True, eq=False)
class CorrectedShares:
    """CorrectedShares shares `[class]` with a 95 % interval, and whether they are likely nearer the truth
    than those counted."""

    shares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    helps: bool


@lru_cache(maxsize=8)
def carries_over(errors: ErrorModel, repeats: int = REPEATS, seed: int = 0) -> bool:
    """Whether the mistakes on some heads (or models) mend the shares of others.

    Half of the labelled units give the confusion, by which the shares said of the other half are
    corrected; their labels say whether that is nearer the truth. It is, where the squared distance
    is less in the mean over such halves."""
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
) -> CorrectedShares:
    """Correct the shares said in each example, `per_example[example, class]`.

    Both sources of doubt are in the interval: examples are resampled, and so are the labelled heads
    behind the error model. The correction helps where two things hold: the mistakes carry over
    (`carries_over`), and what it takes away (the squared bias of the counted shares, less what
    chance alone would show of it, and their variance) is more than the variance it brings in."""
    seen = per_example[~np.isnan(per_example).any(-1)]
    classes = per_example.shape[-1]
    nothing = np.full(classes, np.nan)
    if not len(seen):
        return CorrectedShares(nothing, nothing, nothing, False)
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
        return CorrectedShares(point, nothing, nothing, helps)
    low, high = percentile_interval(redrawn)
    return CorrectedShares(point, np.minimum(low, point), np.maximum(high, point), helps)
