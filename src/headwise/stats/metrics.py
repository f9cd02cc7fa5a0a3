"""Scores of predictions as GLUE defines them, on arrays; each lies between 0 and 1 (correlations between −1 and 1)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats as scipy_stats


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The share of examples whose predicted class is the true one."""
    return float(np.mean(np.asarray(truth) == np.asarray(predicted)))


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """`2 tp / (2 tp + fp + fn)` of class 1; 0 where there is neither a prediction nor an example of it."""
    truth, predicted = np.asarray(truth) == 1, np.asarray(predicted) == 1
    hits = float(np.sum(truth & predicted))
    total = float(np.sum(truth) + np.sum(predicted))
    return 2 * hits / total if total else 0.0


def matthews(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews' correlation of two classes, `(tp·tn − fp·fn) / sqrt((tp+fp)(tp+fn)(tn+fp)(tn+fn))`; 0 where one side does not vary."""
    truth, predicted = np.asarray(truth, dtype=float), np.asarray(predicted, dtype=float)
    return _correlate(truth, predicted, lambda x, y: float(np.corrcoef(x, y)[0, 1]))


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson's correlation; 0 where one side does not vary."""
    return _correlate(truth, predicted, lambda x, y: float(np.corrcoef(x, y)[0, 1]))


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Spearman's correlation; 0 where one side does not vary."""
    return _correlate(truth, predicted, lambda x, y: float(scipy_stats.spearmanr(x, y).statistic))


def _correlate(truth: np.ndarray, predicted: np.ndarray, how: Callable[[np.ndarray, np.ndarray], float]) -> float:
    truth, predicted = np.asarray(truth, dtype=float), np.asarray(predicted, dtype=float)
    if np.ptp(truth) == 0 or np.ptp(predicted) == 0:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = how(truth, predicted)
    return found if np.isfinite(found) else 0.0


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def score(metrics: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Several metrics of the same predictions: class numbers, or values for a regression."""
    return {name: METRICS[name](truth, predicted) for name in metrics}
