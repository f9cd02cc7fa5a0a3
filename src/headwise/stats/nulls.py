"""What heads of random-weights models reach by chance: a bound that none of many new ones passes,
at a stated level."""

from __future__ import annotations

import numpy as np
from scipy import stats as scipy_stats

from headwise.core.checks import one_of

LEAST = 12  # values below which no bound is drawn
TAIL = 0.1  # the share of the largest values that an exponential tail is drawn from
TAIL_LEAST = 10  # but never fewer than so many


def chance_bound(
    values: np.ndarray, tests: int, level: float = 0.05, tail: str = "exponential"
) -> np.ndarray:
    """The value that, at this level, none of `tests` further values of each column passes.

    Both tails allow for the error of their estimate, and both are taken at `level / tests`
    (Bonferroni over the tests, which are all heads and items). NaN is left out; a column of fewer
    than twelve values has no bound (NaN). How well this holds on random-weights models is measured
    in `docs/random-weights.md`.

    Parameters
    ----------
    values : ndarray
        `[head, ...]`: what random heads have.
    tests : int
        Further values in all, over all columns.
    level : float, default 0.05
        The chance that any of them passes.
    tail : str, default "exponential"
        `normal`: the upper half of a column is that of a normal distribution around the median m,
        with `s² = mean (x − m)²` over the k values above m: a further value is `m + s t`, t with k
        − 1 degrees of freedom. `exponential`: beyond the threshold u over which the largest tenth
        lies (ten values at least), with k excesses of mean b, `P(x > u + y) = share · (1 + y / (k
        b))^(−k)`. It is heavier: for what tokens receive, which one may have most of.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> bound = chance_bound(rng.normal(size=(288, 1)), tests=144, tail="normal")
    >>> bool(3 < bound[0] < 4.5)
    True
    """
    one_of("tail", tail, ("normal", "exponential"))
    values = np.asarray(values, dtype=float)
    flat = values.reshape(len(values), -1)
    out = np.full(flat.shape[1], np.nan)
    of_column = _normal if tail == "normal" else _exponential
    for column, given in enumerate(flat.T):
        known = np.sort(given[~np.isnan(given)])
        if len(known) >= LEAST:
            out[column] = of_column(known, level / max(tests, 1))
    return out.reshape(values.shape[1:])


def _normal(known: np.ndarray, chance: float) -> float:
    middle = float(np.median(known))
    above = known[known > middle] - middle
    spread = float(np.sqrt((above**2).mean())) if len(above) else 0.0
    return middle + spread * float(scipy_stats.t.isf(chance, max(len(above) - 1, 1)))


def _exponential(known: np.ndarray, chance: float) -> float:
    k = max(TAIL_LEAST, int(TAIL * len(known)))
    threshold = float(known[-k - 1])
    excess = float((known[-k:] - threshold).mean())
    further = max(1.0, k / len(known) / chance)
    return threshold + k * excess * float(further ** (1 / k) - 1)
