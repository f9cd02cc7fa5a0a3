"""Scores of predictions as GLUE defines them, on arrays; each lies between 0 and 1 (correlations
between −1 and 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headwise.stats.correlation import correlation


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The share of examples whose predicted class is the true one."""
    return float(np.mean(np.asarray(truth) == np.asarray(predicted)))


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of class 1; 0 where there is neither a prediction nor an example of it."""
    from sklearn.metrics import f1_score

    return float(f1_score(np.asarray(truth) == 1, np.asarray(predicted) == 1, zero_division=0.0))


def matthews(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews' correlation of two classes; 0 where one side does not vary."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(np.asarray(truth), np.asarray(predicted)))


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson's correlation; 0 where one side does not vary."""
    return float(np.nan_to_num(correlation(truth, predicted).r))


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Spearman's correlation; 0 where one side does not vary."""
    return float(np.nan_to_num(correlation(truth, predicted, "spearman").r))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def score(metrics: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Several metrics of the same predictions: class numbers, or values for a regression.

    >>> score(("accuracy", "f1"), np.array([0, 1, 1, 1]), np.array([0, 1, 1, 0]))
    {'accuracy': 0.75, 'f1': 0.8}
    """
    return {name: METRICS[name](truth, predicted) for name in metrics}
