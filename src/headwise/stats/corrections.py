"""p-values corrected for many tests at once, over arrays of any shape; NaN means: no test, and does not count as one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headwise.core.errors import ParameterError


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment (family-wise error): `p_(k) · (m − k)` for k = 0.., made monotone and cut at 1."""

    def adjust(ordered: np.ndarray) -> np.ndarray:
        return np.maximum.accumulate(ordered * np.arange(len(ordered), 0, -1))

    return _over_present(p, adjust)


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Benjamini and Hochberg's adjustment (false discovery rate): `p_(k) · m / (k + 1)` for k = 0.., monotone from above, cut at 1."""

    def adjust(ordered: np.ndarray) -> np.ndarray:
        scaled = ordered * len(ordered) / np.arange(1, len(ordered) + 1)
        return np.minimum.accumulate(scaled[::-1])[::-1]

    return _over_present(p, adjust)


CORRECTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "holm": holm,
    "benjamini_hochberg": benjamini_hochberg,
    "none": lambda p: np.array(p, dtype=float),
}


def correct(p: np.ndarray, method: str = "holm") -> np.ndarray:
    """Adjusted p-values by the name of the method: `holm`, `benjamini_hochberg` or `none`."""
    if method not in CORRECTIONS:
        raise ParameterError(f"`correction` must be one of {', '.join(CORRECTIONS)}; it is {method!r}.")
    return CORRECTIONS[method](p)


def _over_present(p: np.ndarray, adjust: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    p = np.asarray(p, dtype=float)
    flat = p.ravel()
    present = np.flatnonzero(~np.isnan(flat))
    if np.any((flat[present] < 0) | (flat[present] > 1)):
        raise ValueError("p-values lie between 0 and 1")
    order = present[np.argsort(flat[present], kind="stable")]
    out = np.full(flat.shape, np.nan)
    out[order] = np.minimum(adjust(flat[order]), 1.0)
    return out.reshape(p.shape)
