"""The best of many: estimates and intervals of what was picked because it was highest.

Of a hundred equally good heads one is highest by chance, and its plain interval misses the truth
nearly always. Where sums by unit are kept, the best is picked on one half of the units and scored
on the other (`cross_fit`). Where only means and intervals are kept, the intervals of all candidates
hold at once (`simultaneous_interval`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from headwise.stats.intervals import LEVEL, share

MIN_UNITS = 4  # two in each half


@dataclass(frozen=True, slots=True, eq=False)
class CrossFit:
    """For each item the best of many candidates, scored on units that it was not picked on.

    Attributes
    ----------
    half : ndarray
        `[unit]`: 0 or 1.
    places : tuple of tuple of ndarray
        For the units of each half, where the candidate stands that scores them: the best of the
        *other* half, as indices `[item]` into each axis of the candidates.
    scored : ndarray
        Bool `[item]`: whether both halves had a candidate.
    """

    half: np.ndarray
    places: tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]
    scored: np.ndarray

    @property
    def same(self) -> np.ndarray:
        """Bool `[item]`: whether both halves pick the same candidate."""
        same = self.scored.copy()
        for first, second in zip(*self.places, strict=True):
            same &= first == second
        return same

    def take(self, values: np.ndarray) -> np.ndarray:
        """Return `[unit, item]`: of `values[unit, candidate..., item]` those of the candidate that
        scores each unit; 0 for items that are not scored.

        There are as many axes of candidates as were given to `cross_fit`."""
        n_items = len(self.scored)
        taken = np.zeros((len(self.half), n_items))
        items = np.arange(n_items)
        for number, place in enumerate(self.places):
            units = np.flatnonzero(self.half == number)
            taken[units] = values[(units[:, None], *place, items)]
        return np.where(self.scored, taken, 0.0)


def cross_fit(
    hits: np.ndarray, tries: np.ndarray, allowed: np.ndarray | bool = True, min_tries: int = 1
) -> CrossFit:
    """Pick the candidate with the highest share of hits on one half of the units, to score it on
    the other, and the reverse.

    The estimate from both halves is free of the luck of picking, and its interval over units
    (`share_interval` of what `take` returns) holds the accuracy of the head picked in this way.
    More parts than two would let the parts share the data they pick on: the same interval then
    holds it too rarely (10 parts: 80 % in simulations).

    The halves are drawn once for a number of units: the same units give the same halves.

    Parameters
    ----------
    hits, tries : ndarray
        `[unit, candidate..., item]`
    allowed : ndarray or bool, default True
        `[candidate..., item]`: which candidates may be picked.
    min_tries : int, default 1
        Candidates with fewer tries in a half are picked only where none has more.

    Examples
    --------
    >>> hits = np.tile([[9.0, 5.0]], (8, 1))[..., None]  # two candidates, one item
    >>> fit = cross_fit(hits, np.full_like(hits, 10))
    >>> fit.places[0][0].tolist(), fit.same.tolist(), float(fit.take(hits).sum())
    ([0], [True], 72.0)
    """
    n_units = len(hits)
    *candidate_shape, n_items = hits.shape[1:]
    half = np.random.default_rng(0).permutation(n_units) % 2
    places = []
    scored = np.full(n_items, n_units >= MIN_UNITS)
    for number in (0, 1):
        others = half != number
        half_tries = tries[others].sum(0)
        accuracy = share(hits[others].sum(0), half_tries)
        allowed_tries = np.where(allowed, half_tries, 0)
        most_tries = allowed_tries.reshape(-1, n_items).max(0, initial=0)
        has_enough = allowed_tries >= np.clip(most_tries, 1, min_tries)
        is_candidate = ~np.isnan(accuracy) & has_enough
        flat = np.where(is_candidate, accuracy, -1.0).reshape(-1, n_items)
        scored &= flat.max(0, initial=-1.0) >= 0
        places.append(tuple(np.unravel_index(flat.argmax(0), candidate_shape)))
    return CrossFit(half, (places[0], places[1]), scored)


def simultaneous_interval(
    value: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    n_units: np.ndarray | int,
    n_candidates: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return wider ends for an interval by Student's t, so that the intervals of all candidates
    hold at once, and that of the one that was picked too, however it was picked (Bonferroni).

    Parameters
    ----------
    value, low, high : ndarray
        Estimates with their own intervals, one at a time.
    n_units : ndarray or int
        Units behind them.
    n_candidates : int
        How many were picked from.

    Examples
    --------
    >>> low, high = simultaneous_interval(np.array(0.5), np.array(0.4), np.array(0.6), 200, 144)
    >>> round(float(low), 2), round(float(high), 2)
    (0.32, 0.68)
    """
    degrees_of_freedom = np.maximum(np.asarray(n_units, dtype=float) - 1, 1)
    tail = (1 - LEVEL) / 2
    own_quantile = scipy_stats.t.isf(tail, degrees_of_freedom)
    family_quantile = scipy_stats.t.isf(tail / max(n_candidates, 1), degrees_of_freedom)
    widening = family_quantile / own_quantile
    return value - widening * (value - low), value + widening * (high - value)
