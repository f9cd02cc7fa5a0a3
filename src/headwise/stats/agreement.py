"""Agreement of two labellers: Cohen's kappa with an interval."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from headwise.core.errors import ParameterError

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Kappa:
    """Cohen's kappa with its percentile-bootstrap interval, the share of equal labels, and the share expected by chance.

    NaN where it is not defined: nothing labelled twice, or both labellers gave one and the same label throughout.
    """

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
        return f"Cohen's kappa {self.kappa:.3f} (95 % interval {self.low:.3f} to {self.high:.3f}), n = {self.n}, equal labels {self.observed:.0%}"


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable], repeats: int = 2000, seed: int = 0) -> Kappa:
    """`(p_o − p_e) / (1 − p_e)` with p_o the share of equal labels and p_e that expected from both labellers' label shares (Cohen 1960).

    The interval is the percentile bootstrap over maps.
    """
    if len(first) != len(second):
        raise ParameterError(
            f"Both labellers must have labelled the same maps; {len(first)} and {len(second)} labels came."
        )
    names = sorted({*first, *second}, key=str)
    place = {name: k for k, name in enumerate(names)}
    table = np.zeros((len(names), len(names)))
    for a, b in zip(first, second, strict=True):
        table[place[a], place[b]] += 1
    n = len(first)
    if n == 0:
        return Kappa(np.nan, np.nan, np.nan, 0, np.nan, np.nan)
    kappa, observed, expected = _kappa(table)
    draws = (
        np.random.default_rng(seed)
        .multinomial(n, table.ravel() / n, size=repeats)
        .reshape(repeats, *table.shape)
        .astype(float)
    )
    resampled = _kappa(draws)[0]
    defined = resampled[~np.isnan(resampled)]
    low, high = np.percentile(defined, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]) if len(defined) else (np.nan, np.nan)
    return Kappa(float(kappa), float(low), float(high), n, float(observed), float(expected))


def _kappa(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kappa, observed and expected agreement of tables `[..., first, second]` of counts."""
    total = table.sum((-2, -1))
    observed = np.trace(table, axis1=-2, axis2=-1) / total
    expected = (table.sum(-1) * table.sum(-2)).sum(-1) / total**2
    with np.errstate(divide="ignore", invalid="ignore"):
        kappa = np.where(expected < 1, (observed - expected) / (1 - expected), np.nan)
    return kappa, observed, expected
