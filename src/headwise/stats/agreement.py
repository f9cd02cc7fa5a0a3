"""Agreement of two labellers: Cohen's kappa with an interval."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from headwise.core.errors import ParameterError
from headwise.stats.bootstrap import REPEATS, percentile_interval, resamples
from headwise.stats.intervals import share


@dataclass(frozen=True, slots=True)
class Kappa:
    """Cohen's kappa with its bootstrap interval, the share of equal labels, and the share expected
    by chance.

    NaN where it is not defined: nothing labelled twice, or both labellers gave one and the same
    label throughout."""

    kappa: float
    low: float
    high: float
    n: int
    observed: float
    expected: float

    def __str__(self) -> str:
        if not self.n:
            return "no map was labelled by both"
        if np.isnan(self.kappa):
            return f"n = {self.n}, equal labels {self.observed:.0%}; kappa is not defined for a single label"
        interval = f"95 % interval {self.low:.3f} to {self.high:.3f}"
        return f"Cohen's kappa {self.kappa:.3f} ({interval}), n = {self.n}, equal labels {self.observed:.0%}"


def cohen_kappa(
    first: Sequence[Hashable], second: Sequence[Hashable], repeats: int = REPEATS, seed: int = 0
) -> Kappa:
    """Cohen's kappa of two labellers, with the percentile bootstrap over what they labelled.

    `(p_o − p_e) / (1 − p_e)` with p_o the share of equal labels and p_e that expected from both
    labellers' label shares (Cohen 1960). Written out, since scikit-learn's takes one table at a
    time and there are 2000 resamples.

    >>> cohen_kappa("aabb", "aaba").kappa
    0.5
    """
    if len(first) != len(second):
        raise ParameterError(
            f"Both labellers must have labelled the same maps; {len(first)} and {len(second)} labels came."
        )
    if not len(first):
        return Kappa(np.nan, np.nan, np.nan, 0, np.nan, np.nan)
    count = len(first)
    labels = sorted({*first, *second}, key=str)
    index = {label: number for number, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)))
    rows = [index[label] for label in first]
    columns = [index[label] for label in second]
    np.add.at(table, (rows, columns), 1)
    kappa, observed, expected = _kappa(table)
    resampled_tables = resamples(count, repeats, seed, table.ravel() / count)
    resampled_kappas, _, _ = _kappa(resampled_tables.reshape(repeats, *table.shape))
    low, high = percentile_interval(resampled_kappas)
    return Kappa(float(kappa), float(low), float(high), count, float(observed), float(expected))


def _kappa(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kappa, observed and expected agreement of tables `[..., first, second]` of counts."""
    total = table.sum((-2, -1))
    observed = np.trace(table, axis1=-2, axis2=-1) / total
    expected = (table.sum(-1) * table.sum(-2)).sum(-1) / total**2
    return share(observed - expected, 1 - expected), observed, expected
