"""Numbers with their intervals, and conditions on them that are true, false or open.

A condition is true where the whole 95 % interval meets it, false where no part of the interval
does, and open where the bound lies inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import xarray as xr
from scipy import stats as scipy_stats

from headwise.stats.correlation import fisher_interval
from headwise.stats.intervals import LEVEL, sample_interval


class Outcome(Enum):
    """Whether a condition holds: true, false, or open (the data do not decide)."""

    TRUE = "true"
    FALSE = "false"
    OPEN = "open"


def outcome_of(is_met: bool) -> Outcome:
    """Return the outcome of a condition on counts, which have no interval."""
    return Outcome.TRUE if is_met else Outcome.FALSE


def all_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Return whether all conditions hold; open where there is none.

    >>> all_of([Outcome.TRUE, Outcome.OPEN]), all_of([Outcome.FALSE, Outcome.OPEN])
    (<Outcome.OPEN: 'open'>, <Outcome.FALSE: 'false'>)
    """
    present = list(outcomes)
    if Outcome.FALSE in present:
        return Outcome.FALSE
    if Outcome.OPEN in present or not present:
        return Outcome.OPEN
    return Outcome.TRUE


def any_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Return whether at least one condition holds; open where there is none."""
    present = list(outcomes)
    if Outcome.TRUE in present:
        return Outcome.TRUE
    if Outcome.OPEN in present or not present:
        return Outcome.OPEN
    return Outcome.FALSE


def more_than_half(outcomes: Iterable[Outcome]) -> Outcome:
    """Return whether more than half of the conditions hold; open where that is not decided."""
    present = list(outcomes)
    n_true = present.count(Outcome.TRUE)
    n_possible = n_true + present.count(Outcome.OPEN)
    return Estimate(n_true, n_true, n_possible).above(len(present) / 2)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with the ends of its 95 % interval.

    Examples
    --------
    >>> share = Estimate(0.55, 0.52, 0.58)
    >>> share.above(0.5), share.above(0.55), share.above(0.6)
    (<Outcome.TRUE: 'true'>, <Outcome.OPEN: 'open'>, <Outcome.FALSE: 'false'>)
    >>> share.text()
    '0.55 (0.52 to 0.58)'
    """

    value: float
    low: float
    high: float

    # A missing end (NaN) compares as false on both sides, so that such a number decides nothing.

    def above(self, bound: float) -> Outcome:
        """Return whether the number is above a bound."""
        return _decided(self.low > bound, self.high <= bound)

    def at_least(self, bound: float) -> Outcome:
        """Return whether the number is at or above a bound."""
        return _decided(self.low >= bound, self.high < bound)

    def below(self, bound: float) -> Outcome:
        """Return whether the number is below a bound."""
        return _decided(self.high < bound, self.low >= bound)

    def at_most(self, bound: float) -> Outcome:
        """Return whether the number is at or below a bound."""
        return _decided(self.high <= bound, self.low > bound)

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference, with Newcombe's square-and-add interval.

        It takes the two numbers as independent. Numbers of the same texts go together, which makes
        their difference surer than that: the interval is rather too wide than too narrow.
        """
        value = self.value - other.value
        below = np.hypot(self.value - self.low, other.high - other.value)
        above = np.hypot(self.high - self.value, other.value - other.low)
        return Estimate(value, value - float(below), value + float(above))

    def size(self) -> Estimate:
        """Return the number without its sign."""
        ends = sorted([abs(self.low), abs(self.high)])
        smallest = 0.0 if self.low <= 0 <= self.high else ends[0]
        return Estimate(abs(self.value), smallest, ends[1])

    def times(self, factor: float) -> Estimate:
        """Return the number times a positive factor."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def text(self, spec: str = ".2f", unit: str = "") -> str:
        """Return the number and its interval as text."""
        number = f"{self.value:{spec}}{unit}"
        if not np.isfinite(self.low) or not np.isfinite(self.high):
            return f"{number} (no interval)"
        return f"{number} ({self.low:{spec}} to {self.high:{spec}})"


def _decided(is_true: bool, is_false: bool) -> Outcome:
    if is_true:
        return Outcome.TRUE
    return Outcome.FALSE if is_false else Outcome.OPEN


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Numbers with their 95 % intervals, one for each head (or layer, or task).

    Parameters
    ----------
    value, low, high : np.ndarray
        Arrays of one shape; NaN where there is no number.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, dataset: xr.Dataset, name: str, **selection: Any) -> Estimates:
        """Read the variable `name` with `name_low` and `name_high` as `[layer, head]`."""
        arrays = []
        for suffix in ("", "_low", "_high"):
            array = dataset[f"{name}{suffix}"].sel(selection)
            dims = [dim for dim in ("layer", "head") if dim in array.dims]
            arrays.append(array.transpose(*dims, ...).values.astype(float))
        return cls(*arrays)

    @classmethod
    def exact(cls, values: np.ndarray) -> Estimates:
        """Take numbers that have no sampling error."""
        array = np.asarray(values, dtype=float)
        return cls(array, array, array)

    def at(self, index: Any) -> Estimates:
        """Return a part, by any index of numpy."""
        return Estimates(self.value[index], self.low[index], self.high[index])

    def one(self, index: Any) -> Estimate:
        """Return a single number."""
        return Estimate(float(self.value[index]), float(self.low[index]), float(self.high[index]))

    def for_all(self) -> Estimates:
        """Widen the intervals so that all of them together hold with 95 % (Bonferroni).

        Whoever asks which of 144 heads exceed a bound has 144 chances to be wrong.
        """
        count = max(1, int(np.isfinite(self.value).sum()))
        tail = (1 - LEVEL) / 2
        factor = scipy_stats.norm.ppf(1 - tail / count) / scipy_stats.norm.ppf(1 - tail)
        low = self.value - factor * (self.value - self.low)
        high = self.value + factor * (self.high - self.value)
        return Estimates(self.value, low, high)

    def reduce(self, function: Callable[[np.ndarray], Any]) -> Estimate:
        """Return a summary that rises with each number (mean, median, largest).

        Its value at all lower ends and at all upper ends encloses it. For a mean over heads of the
        same texts that is wider than need be: errors that differ between heads cancel in part.
        """
        return Estimate(
            float(function(self.value)), float(function(self.low)), float(function(self.high))
        )

    def mean(self) -> Estimate:
        """Return the mean over all numbers that are there."""
        return self.reduce(np.nanmean)

    def median(self) -> Estimate:
        """Return the median over all numbers that are there."""
        return self.reduce(np.nanmedian)

    def count_above(self, bound: float) -> Estimate:
        """Count the numbers above a bound: those surely above, and those that may be."""
        is_known = np.isfinite(self.value)
        value = int((self.value > bound).sum())
        surely = int((self.low > bound).sum())
        possibly = int((is_known & ~(self.high <= bound)).sum())
        return Estimate(value, surely, possibly)

    def count_below(self, bound: float) -> Estimate:
        """Count the numbers below a bound: those surely below, and those that may be."""
        return self.negated().count_above(-bound)

    def negated(self) -> Estimates:
        """Return the numbers with the other sign."""
        return Estimates(-self.value, -self.high, -self.low)

    @property
    def n_known(self) -> int:
        """How many numbers are there."""
        return int(np.isfinite(self.value).sum())


def count_text(count: Estimate, total: int | None = None) -> str:
    """Return a count of heads as text, with its range where some heads are not decided.

    >>> count_text(Estimate(11, 11, 11), 13), count_text(Estimate(11, 9, 12), 13)
    ('11 of 13', '11 of 13 (9 to 12)')
    """
    text = f"{count.value:.0f}" if total is None else f"{count.value:.0f} of {total}"
    if count.low != count.high:
        text += f" ({count.low:.0f} to {count.high:.0f})"
    return text


def mean_over_units(values: np.ndarray) -> Estimate:
    """Return the mean of independent numbers (seeds, or heads where the claim is about heads in
    general), with its interval; NaN ends for a single one."""
    present = np.asarray(values, dtype=float)
    present = present[np.isfinite(present)]
    if not len(present):
        return Estimate(np.nan, np.nan, np.nan)
    mean, low, high = sample_interval(present)
    return Estimate(float(mean), float(low), float(high))


def mean_difference(first: np.ndarray, second: np.ndarray) -> Estimate:
    """Return the difference of two means over heads, with Welch's interval."""
    first_known = np.asarray(first, dtype=float).ravel()
    second_known = np.asarray(second, dtype=float).ravel()
    first_known = first_known[np.isfinite(first_known)]
    second_known = second_known[np.isfinite(second_known)]
    value = float(first_known.mean() - second_known.mean())
    if len(first_known) < 2 or len(second_known) < 2:
        return Estimate(value, np.nan, np.nan)
    if first_known.std() == 0 and second_known.std() == 0:
        return Estimate(value, value, value)
    test = scipy_stats.ttest_ind(first_known, second_known, equal_var=False)
    interval = test.confidence_interval(LEVEL)
    return Estimate(value, float(interval.low), float(interval.high))


def correlation_estimate(correlation: float, count: int, method: str = "pearson") -> Estimate:
    """Return a correlation over `count` heads with Fisher's interval."""
    low, high = fisher_interval(np.array(correlation), count, method)
    return Estimate(correlation, float(low), float(high))


def on_tasks(
    outcomes: Mapping[str, Outcome], paper_tasks: Iterable[str]
) -> tuple[Outcome, Outcome]:
    """Return whether a condition holds on all of the paper's tasks, and on all that were run.

    The first stays open where a task of the paper was not run and none speaks against it.
    """
    on_run = all_of(outcomes.values())
    missing = [task for task in paper_tasks if task not in outcomes]
    if missing and on_run is Outcome.TRUE:
        return Outcome.OPEN, on_run
    return on_run, on_run


def weighted_layer(attention: Estimates) -> Estimate:
    """Return the mean layer, weighted by attention `[layer, head]`, with an interval."""
    value = np.nanmean(attention.value, 1)
    low = np.nanmean(attention.low, 1)
    high = np.nanmean(attention.high, 1)
    layers = np.arange(len(value))

    def centre(weights: np.ndarray) -> float:
        return float((weights * layers).sum() / weights.sum())

    # The centre is deepest with upper ends behind some layer and lower ends before it.
    lowest = []
    highest = []
    for cut in range(len(layers) + 1):
        highest.append(centre(np.concatenate([low[:cut], high[cut:]])))
        lowest.append(centre(np.concatenate([high[:cut], low[cut:]])))
    return Estimate(centre(value), min(lowest), max(highest))
