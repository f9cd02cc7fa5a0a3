"""How concentrated something is: the effective number of its places, and an index from 0 (even) to
1 (one place)."""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from headwise.stats.intervals import share


def effective_number(weights: np.ndarray, axis: int = -1) -> np.ndarray:
    """`exp` of the entropy of weights of at least 0 made to sum to one: how many places of equal
    weight would be as even. NaN where all are 0.

    >>> effective_number(np.array([[1.0, 1.0, 0.0], [3.0, 0.0, 0.0]])).round(6).tolist()
    [2.0, 1.0]
    """
    weights = np.asarray(weights, dtype=float)
    total = weights.sum(axis, keepdims=True)
    found: np.ndarray = np.exp(entr(share(weights, total)).sum(axis))
    return found


def localisation(weights: np.ndarray) -> np.ndarray:
    """Along the last axis, `1 − (effective number − 1) / (places − 1)`: 0 where all places weigh alike, 1 where one
    holds everything.

    >>> localisation(np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 0.0]])).round(6).tolist()
    [0.0, 1.0]
    """
    places = np.asarray(weights).shape[-1]
    return np.asarray(1 - (effective_number(weights) - 1) / max(places - 1, 1))
