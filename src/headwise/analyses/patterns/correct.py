"""The known errors of the classifier, and shares of classes corrected for them.

The corrected shares are those that, confused in the same way, come nearest to the counted ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from itertools import combinations
from typing import Any

import numpy as np

from headwise.stats.bootstrap import percentile_interval, resamples
from headwise.stats.units import sum_by_unit

ERRORS = "errors.json"
REPEATS = 400
# Half a map is added to each row of the confusion counts: an error not seen in dozens of maps is
# rare, not impossible.
PSEUDO_COUNT = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class ErrorModel:
    """Labelled maps by true and by predicted pattern, `tables[head, true, predicted]`.

    Maps of one head resemble each other, so the uncertainty of the errors is estimated by
    resampling heads. `unit[head]` is what the errors must carry over to: other heads (each its own
    unit, the default), or other models."""

    tables: np.ndarray
    origin: str = ""
    unit: np.ndarray | None = None

    @property
    def counts(self) -> np.ndarray:
        """Sums over all heads, `[true, predicted]`."""
        return np.asarray(self.tables.sum(0))

    def redrawn(self, repeats: int, generator: np.random.Generator) -> np.ndarray:
        """Return the counts with the labelled heads resampled, `[repeat, true, predicted]`."""
        weights = resamples(len(self.tables), repeats, generator)
        return np.asarray(np.einsum("rh,htd->rtd", weights, self.tables))

    def halves(self, repeats: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the counts of one half of the units and of the other, for random splits, `[repeat,
        true, predicted]` each.

        No split if there is only one unit.
        """
        unit_names = np.arange(len(self.tables)) if self.unit is None else self.unit
        _, unit_of_head = np.unique(unit_names, return_inverse=True)
        n_units = int(unit_of_head.max()) + 1
        n_splits = repeats if n_units > 1 else 0
        order = np.argsort(generator.random((n_splits, n_units)), axis=1)
        in_first_half = (order < n_units // 2)[:, unit_of_head].astype(float)
        first_half = np.einsum("rh,htd->rtd", in_first_half, self.tables)
        return first_half, self.counts - first_half


@cache
def _shipped_errors() -> dict[str, Any]:
    text = (resources.files("headwise.analyses.patterns") / ERRORS).read_text("utf-8")
    errors: dict[str, Any] = json.loads(text)
    return errors


def seen_in_training(name: str, layers: int, heads: int) -> bool:
    """Return whether maps of this model were among those the shipped classifier was trained on.

    >>> seen_in_training("wiki-bert", 12, 12), seen_in_training("bert-base-uncased", 12, 12)
    (True, False)
    """
    model_name = name.rstrip("/").rpartition("/")[2]
    size = _shipped_errors()["trained_on"].get(model_name)
    return bool(size == [layers, heads])


def shipped_errors(seen: bool, causal: bool) -> ErrorModel:
    """Return the errors of the shipped classifier on such a model."""
    errors = _shipped_errors()["seen" if seen else "unseen"]["causal" if causal else "encoder"]
    unit = np.array(errors["unit"]) if "unit" in errors else None
    return ErrorModel(np.array(errors["tables"]), errors["origin"], unit)


def said_given_true(counts: np.ndarray) -> np.ndarray:
    """Return `P(predicted d | true c)` from confusion counts `[..., true, predicted]`."""
    smoothed = counts + PSEUDO_COUNT / counts.shape[-1]
    return np.asarray(smoothed / smoothed.sum(-1, keepdims=True))


def corrected_shares(said: np.ndarray, mistakes: np.ndarray) -> np.ndarray:
    """Return `argmin_p ‖Cᵀ p − q‖²` over the simplex (p ≥ 0, Σ p = 1).

    Parameters
    ----------
    said : ndarray
        q, the predicted shares `[..., class]`. NaN shares stay NaN.
    mistakes : ndarray
        `C[true, predicted]`, the probabilities of `said_given_true`: one table for all shares, or
        one for each.

    Examples
    --------
    >>> corrected_shares(np.array([0.5, 0.5]), np.array([[1.0, 0.0], [0.5, 0.5]])).round(3).tolist()
    [0.0, 1.0]
    """
    n_classes = said.shape[-1]
    shares = said.reshape(-1, n_classes)
    tables = mistakes.reshape(-1, n_classes, n_classes)
    best = np.full(shares.shape, np.nan)
    best_residual = np.full(len(shares), np.inf)
    # Exact: the least-squares solution with Σ p = 1 is computed on every subset of classes, and the
    # best one that is nowhere negative is kept.
    for size in range(1, n_classes + 1):
        for subset in combinations(range(n_classes), size):
            classes = list(subset)
            solution, residual = _solve_on_subset(shares, tables[:, classes])
            is_better = (solution >= -1e-9).all(-1) & (residual < best_residual - 1e-15)
            best_residual = np.where(is_better, residual, best_residual)
            filled = np.zeros((len(shares), n_classes))
            filled[:, classes] = np.clip(solution, 0, None)
            best = np.where(is_better[:, None], filled, best)
    return np.asarray(best / best.sum(-1, keepdims=True)).reshape(said.shape)


def _solve_on_subset(shares: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minimise `‖partᵀ p − q‖²` with Σ p = 1, `part[..., true class of the subset, predicted]`.

    Returns p and the squared residual.
    """
    size = part.shape[-2]
    # By Lagrange: [part partᵀ, 1; 1ᵀ, 0] [p; λ] = [part q; 1]
    system = np.zeros((len(part), size + 1, size + 1))
    system[:, :size, :size] = part @ part.swapaxes(-1, -2)
    system[:, :size, size] = 1
    system[:, size, :size] = 1
    projected = (part @ shares[:, :, None])[..., 0]
    right_side = np.concatenate([projected, np.ones((len(shares), 1))], axis=1)
    inverse = np.linalg.pinv(system, hermitian=True)
    solution = (inverse @ right_side[:, :, None])[:, :size, 0]
    predicted = (solution[:, None] @ part)[:, 0]
    return solution, ((predicted - shares) ** 2).sum(-1)


@dataclass(frozen=True, slots=True, eq=False)
class CorrectedShares:
    """Corrected shares `[class]` with a 95 % interval, and whether they are likely nearer the truth
    than the counted ones."""

    shares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    helps: bool


@lru_cache(maxsize=8)
def carries_over(errors: ErrorModel, repeats: int = REPEATS, seed: int = 0) -> bool:
    """Return whether the errors on some heads (or models) correct the shares of others.

    Half of the labelled units give the confusion by which the predicted shares of the other half
    are corrected; their labels say whether that is nearer the truth. It is, if the squared distance
    is smaller in the mean over such halves."""
    known, others = errors.halves(repeats, np.random.default_rng(seed))
    has_maps = (known.sum((-2, -1)) > 0) & (others.sum((-2, -1)) > 0)
    if not has_maps.any():
        return False
    known = known[has_maps]
    others = others[has_maps]
    total = others.sum((-2, -1))[:, None]
    truth = others.sum(-1) / total
    predicted = others.sum(-2) / total
    corrected = corrected_shares(predicted, said_given_true(known))
    distance_corrected = ((corrected - truth) ** 2).sum(-1).mean()
    distance_predicted = ((predicted - truth) ** 2).sum(-1).mean()
    return bool(distance_corrected < distance_predicted)


def corrected_with_interval(
    per_example: np.ndarray,
    errors: ErrorModel,
    repeats: int = REPEATS,
    seed: int = 0,
    units: np.ndarray | None = None,
) -> CorrectedShares:
    """Correct the predicted shares of each example, `per_example[example, class]`.

    The interval contains both sources of uncertainty: examples are resampled (whole documents,
    where `units` has the document of each), and so are the
    labelled heads behind the error model. The correction helps if two things hold: the errors carry
    over (`carries_over`), and what it removes (the squared bias of the counted shares, less what
    chance alone would show of it, and their variance) is more than the variance it adds."""
    is_known = ~np.isnan(per_example).any(-1)
    known = per_example[is_known]
    unknown = np.full(per_example.shape[-1], np.nan)
    if not len(known):
        return CorrectedShares(unknown, unknown, unknown, False)
    counted = known.mean(0)
    corrected = corrected_shares(counted, said_given_true(errors.counts))
    rng = np.random.default_rng(seed)
    keys = np.arange(len(known)) if units is None else units[is_known]
    _, unit_of_example = np.unique(keys, return_inverse=True)
    sums = sum_by_unit(known, unit_of_example)
    sizes = np.bincount(unit_of_example)
    times_drawn = resamples(len(sizes), repeats, rng)
    resampled = times_drawn @ sums / (times_drawn @ sizes)[:, None]
    redrawn_errors = said_given_true(errors.redrawn(repeats, rng))
    resampled_corrected = corrected_shares(resampled, redrawn_errors)

    chance = _total_variance(resampled_corrected - resampled)
    squared_bias = max(float(((counted - corrected) ** 2).sum()) - chance, 0.0)
    removed = squared_bias + _total_variance(resampled)
    added = _total_variance(resampled_corrected)
    helps = removed > added and carries_over(errors, repeats, seed)
    if len(sizes) < 2:
        return CorrectedShares(corrected, unknown, unknown, helps)
    low, high = percentile_interval(resampled_corrected)
    return CorrectedShares(
        corrected, np.minimum(low, corrected), np.maximum(high, corrected), helps
    )


def _total_variance(values: np.ndarray) -> float:
    """Return the variance over resamples, summed over classes."""
    return float(values.var(0, ddof=1).sum())
