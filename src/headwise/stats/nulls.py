"""What heads of random-weights models reach by chance: a bound that none of many new ones passes, at a stated level."""

from __future__ import annotations

import numpy as np
from scipy import stats as scipy_stats

LEAST = 12  # values below which no bound is drawn


def chance_bound(values: np.ndarray, tests: int, level: float = 0.05) -> np.ndarray:
    """The value that, at this level, none of `tests` further values of each column passes.

    The upper half of `values[head, ...]` is taken for the upper half of a normal distribution around their median m,
    with `s² = mean (x − m)²` over the k values above m. A further value is then t-distributed with k − 1 degrees of
    freedom: the bound is `m + s · t`, at `level / tests` (Bonferroni over the tests, which are all heads and items).
    NaN is left out; a column of fewer than twelve values has no bound (NaN). How well this holds on random-weights
    models is measured in `docs/levels.md`.

    >>> rng = np.random.default_rng(0)
    >>> bound = chance_bound(rng.normal(size=(288, 1)), tests=144)
    >>> bool(3 < bound[0] < 4.5)
    True
    """
    values = np.asarray(values, dtype=float)
    flat = values.reshape(len(values), -1)
    out = np.full(flat.shape[1], np.nan)
    for column, given in enumerate(flat.T):
        known = given[~np.isnan(given)]
        if len(known) >= LEAST:
            middle = np.median(known)
            above = known[known > middle] - middle
            spread = np.sqrt((above**2).mean()) if len(above) else 0.0
            out[column] = middle + spread * scipy_stats.t.isf(level / max(tests, 1), max(len(above) - 1, 1))
    return out.reshape(values.shape[1:])
