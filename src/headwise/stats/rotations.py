"""What matrices would come to if one of them were turned at random: the null of overlaps between
spaces of weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy import stats as scipy_stats


@dataclass(frozen=True, slots=True)
class Turned:
    """`‖A B‖_F / (‖A‖_F ‖B‖_F)`, its mean over random turns of the space between, and the p-value
    of being larger."""

    ratio: np.ndarray
    expected: np.ndarray
    p_value: np.ndarray


def turned_overlap(
    squared: np.ndarray, first: np.ndarray, second: np.ndarray, width: int
) -> Turned:
    """Whether two matrices share directions of the space between them, against random turns of that
    space.

    Turned by a random rotation Q of the `width` dimensions, `‖A Q B‖_F² / (‖A‖_F² ‖B‖_F²)` is a sum
    of squared entries of Q, weighted by the shares of the squared singular values. Its mean is
    `1/width`; its variance follows from the fourth moments of Q. A beta distribution with these
    moments stands for it, which is exact for matrices of rank one.

    Parameters
    ----------
    squared : ndarray
        `‖A B‖_F² / (‖A‖_F² ‖B‖_F²)`.
    first, second : ndarray
        For A and B, the sum of the squared shares of their squared singular values, `‖AᵀA‖_F² /
        ‖A‖_F⁴`: one for rank one, `1/rank` where all are alike.
    width : int
        Dimensions of the space between.
    """
    d = float(width)
    same, line, apart = (
        2 * (d - 1) / (d**2 * (d + 2)),
        -2 / (d**2 * (d + 2)),
        2 / (d**2 * (d - 1) * (d + 2)),
    )
    variance = first * second * same + (first * (1 - second) + (1 - first) * second) * line
    variance = np.maximum(variance + (1 - first) * (1 - second) * apart, 1e-30)
    mean = 1 / d
    total = mean * (1 - mean) / variance - 1
    a, b = mean * total, (1 - mean) * total
    with np.errstate(invalid="ignore"):
        p = scipy_stats.beta.sf(squared, a, b)
        expected = np.exp(
            special.gammaln(a + 0.5)
            + special.gammaln(a + b)
            - special.gammaln(a)
            - special.gammaln(a + b + 0.5)
        )
        return Turned(np.sqrt(squared), expected, np.where(np.isnan(squared), np.nan, p))


def turned_trace(trace: np.ndarray, norm: np.ndarray, width: int) -> np.ndarray:
    """Two-sided p-values of the trace of a matrix of Frobenius norm `norm`, against its product
    with random rotations.

    Their traces have mean 0 and variance `norm² / width`, and are normal to within what can be seen
    from four dimensions on.

    >>> float(turned_trace(np.array(0.0), np.array(1.0), 16))
    1.0
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(2 * scipy_stats.norm.sf(np.abs(trace) / (norm / np.sqrt(width))))
