"""p-values corrected for many tests at once, over arrays of any shape; NaN means no test and does
not count as one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import false_discovery_control

from headwise.core.checks import one_of


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment (family-wise error): `p_(k) · (m − k)` for k = 0.., made monotone
    and cut at 1.

    >>> holm(np.array([0.01, np.nan, 0.04]))
    array([0.02,  nan, 0.04])
    """
    return _over_present(p, _holm)


def _holm(present: np.ndarray) -> np.ndarray:
    # Not statsmodels' multipletests, whose every call collects garbage for half a second; tests
    # hold it to that.
    order = np.argsort(present, kind="stable")
    stepped = np.maximum.accumulate(present[order] * np.arange(len(order), 0, -1))
    adjusted = np.empty_like(present)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Benjamini and Hochberg's adjustment (false discovery rate): `p_(k) · m / (k + 1)`, made
    monotone and cut at 1."""
    return _over_present(p, false_discovery_control)


CORRECTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "holm": holm,
    "benjamini_hochberg": benjamini_hochberg,
    "none": lambda p: np.array(p, dtype=float),
}


def correct(p: np.ndarray, method: str = "holm") -> np.ndarray:
    """Adjusted p-values by the name of the method: `holm`, `benjamini_hochberg` or `none`."""
    one_of("correction", method, CORRECTIONS)
    return CORRECTIONS[method](p)


def _over_present(p: np.ndarray, adjust: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    out = np.array(p, dtype=float)
    present = ~np.isnan(out)
    if np.any((out[present] < 0) | (out[present] > 1)):
        raise ValueError("p-values lie between 0 and 1")
    if present.any():
        out[present] = adjust(out[present])
    return out


def correct_families(p: np.ndarray, method: str = "holm") -> np.ndarray:
    """p-values that are corrected within families already, `[..., family]`, corrected over the
    families too.

    The smallest of each family is corrected over the families by `method`: whether anything in the
    family is. All others are multiplied by the number of families, which is right whatever is true
    of the smallest ones.

    >>> correct_families(np.array([[0.01, 0.03], [0.02, 0.5]]))
    array([[0.02, 0.03],
           [0.04, 1.  ]])
    """
    one_of("correction", method, CORRECTIONS)
    p = np.asarray(p, dtype=float)
    flat = p.reshape(-1, p.shape[-1])
    known = ~np.isnan(flat)
    smallest = np.where(known.any(0), np.where(known, flat, np.inf).min(0, initial=np.inf), np.nan)
    if method == "none":
        return p.copy()
    others = np.minimum(1.0, flat * known.any(0).sum())
    return np.where(flat == smallest, correct(smallest, method), others).reshape(p.shape)
