"""The unit of sampling: examples of one document are not independent, so sums are kept by document,
and ratios of sums get their spread over documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import torch
from scipy import stats as scipy_stats
from torch import Tensor

from headwise.stats.intervals import LEVEL, mean_interval, sample_skewness, wilson_interval

# Bounds on the number of units that are stored separately; between them, the total number of
# stored values decides.
MAX_UNITS = 2000
MIN_UNITS = 100
MAX_NUMBERS = 1 << 24


def unit_key(document: str | None, index: int) -> int:
    """Return a number for the unit of an example: below zero for a document, by its name; else
    the example's own index.

    >>> unit_key(None, 7), unit_key("a", 0) == unit_key("a", 5) < 0
    (7, True)
    """
    if document is None:
        return index
    return -1 - (int.from_bytes(blake2b(document.encode(), digest_size=8).digest()) >> 2)


class Accumulator:
    """A part of a state. `batch_units` are the units of the examples about to be added, in their
    order, where every example belongs to a document (see `State.of`)."""

    batch_units: Sequence[int] | None = None

    def _units_of(self, values: Tensor) -> Sequence[int] | None:
        """Return the units of these values; None where an analysis adds other examples than those
        of the batch."""
        units = self.batch_units
        if units is None or len(units) != len(values):
            return None
        return units


def default_max_units(*shape: int) -> int:
    """Return how many units are stored separately where each has an array of this shape."""
    numbers_per_unit = max(int(np.prod(shape)), 1)
    return int(np.clip(MAX_NUMBERS // numbers_per_unit, MIN_UNITS, MAX_UNITS))


class UnitSums(Accumulator):
    """Sums for each unit of sampling, elementwise; merging gives the same sums for any split.

    Where there are more units than can be stored separately, they are pooled into random groups (by
    the remainder of their number). Sums of independent units are independent too, so tests and
    intervals remain valid.

    Parameters
    ----------
    *shape : int
        The shape of the array that is summed for each unit.
    dtype : torch.dtype, default torch.float32
        The dtype of the sums; integers are saved in the smallest dtype that holds them.
    max_units : int, optional
        The most units that are stored separately; default: `default_max_units(*shape)`.
    """

    def __init__(
        self, *shape: int, dtype: torch.dtype = torch.float32, max_units: int | None = None
    ) -> None:
        self.shape = shape
        self.max_units = max_units or default_max_units(*shape)
        self._rows: dict[int, int] = {}  # the row of each unit in `_sums`
        self._sums = torch.zeros(0, *shape, dtype=dtype)
        self._pooled = False  # whether units are pooled into groups

    def add(
        self, units: Sequence[int], values: Tensor, where: tuple[int | slice, ...] = ()
    ) -> None:
        """Add `values[example, ...]` to the sums of each example's unit.

        Parameters
        ----------
        units : sequence of int
            The unit of each example (see `unit_key`).
        values : Tensor
            One row for each example. A dimension of size 1 is broadcast: one weight may stand for
            all heads of a layer.
        where : tuple of int and slice, default ()
            The part of the shape that the values belong to; all of it by default.
        """
        rows = self._rows_of(units)
        target = self._sums[(slice(None), *where)]
        addends = values.detach().to("cpu", self._sums.dtype)
        # index_add_ does not broadcast by itself.
        addends = addends.expand(len(addends), *target.shape[1:])
        target.index_add_(0, rows, addends)

    def merge(self, other: UnitSums) -> None:
        if other._pooled:
            self._pool()
        rows = self._rows_of(list(other._rows))
        self._sums.index_add_(0, rows, other._sums[: len(rows)])

    def _rows_of(self, units: Sequence[int]) -> Tensor:
        """Return the rows of these units; new ones get a row."""
        keys = [unit % self.max_units if self._pooled else unit for unit in units]
        n_new = len(set(keys) - self._rows.keys())
        if not self._pooled and len(self._rows) + n_new > self.max_units:
            self._pool()
            return self._rows_of(units)
        for key in keys:
            self._rows.setdefault(key, len(self._rows))
        n_missing = len(self._rows) - len(self._sums)
        if n_missing > 0:
            # Doubled each time, so that units added one by one are not copied once each.
            n_spare = min(len(self._sums), self.max_units - len(self._sums))
            new_rows = self._sums.new_zeros(max(n_missing, n_spare), *self.shape)
            self._sums = torch.cat([self._sums, new_rows])
        return torch.tensor([self._rows[key] for key in keys], dtype=torch.int64)

    def _pool(self) -> None:
        """Pool units into groups by the remainder of their number."""
        if self._pooled:
            return
        keys = list(self._rows)
        sums = self._sums[: len(keys)]
        self._rows = {}
        self._sums = sums.new_zeros(0, *self.shape)
        self._pooled = True
        rows = self._rows_of(keys)
        self._sums.index_add_(0, rows, sums)

    def arrays(self) -> dict[str, np.ndarray]:
        totals = self.totals
        if not self._sums.is_floating_point():
            totals = totals.astype(np.min_scalar_type(int(totals.max(initial=0))))
        return {"units": self.units, "folded": np.array([self._pooled]), "totals": totals}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._rows = {int(key): row for row, key in enumerate(arrays["units"])}
        self._pooled = bool(arrays["folded"][0])
        dtype = self._sums.numpy().dtype
        self._sums = torch.from_numpy(np.array(arrays["totals"]).astype(dtype))

    @property
    def units(self) -> np.ndarray:
        """The numbers of the units, sorted."""
        return np.array(sorted(self._rows), dtype=np.int64)

    @property
    def totals(self) -> np.ndarray:
        """The sums `[unit, ...]`, in the order of `units`: the same whatever came first."""
        rows = [self._rows[key] for key in sorted(self._rows)]
        return self._sums[torch.tensor(rows, dtype=torch.int64)].numpy()

    @property
    def unit_name(self) -> str:
        """What the units are: `documents`, `examples`, or `groups` of either where there were too
        many to store separately."""
        if self._pooled:
            return "groups"
        if any(key < 0 for key in self._rows):
            return "documents"
        return "examples"


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """The estimate `Σy / Σw`, its variance, the number of units it is based on, the number of
    equally large units that these are worth, and the skewness of one of those, elementwise."""

    value: np.ndarray
    variance: np.ndarray
    n_units: np.ndarray
    effective_units: np.ndarray
    skewness: np.ndarray

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the confidence interval by Student's t with `effective_units − 1` degrees of
        freedom, corrected for skewness.

        It is NaN for fewer than two units."""
        one_unit = self.variance * self.effective_units
        return mean_interval(self.value, one_unit, self.effective_units, self.skewness)

    def p_above(self) -> np.ndarray:
        """Return p-values of `H0: value ≤ 0` by Student's t with as many degrees of freedom; 0 or 1
        where the units do not vary, NaN for fewer than two."""
        error = np.sqrt(self.variance)
        # Sums of float32 scores that are equal differ by rounding.
        rounding = 1e-7 * np.maximum(np.abs(self.value), 1e-9)
        with np.errstate(divide="ignore", invalid="ignore"):
            p = scipy_stats.t.sf(self.value / error, np.maximum(self.effective_units - 1, 1))
        p = np.where(error > rounding, p, np.where(self.value > 0, 0.0, 1.0))
        return np.where(self.n_units > 1, p, np.nan)


def unit_ratio(y: np.ndarray, w: np.ndarray) -> Ratio:
    """Return a ratio of sums over units, `Σy / Σw`, with the units as the sample.

    The variance is the jackknife's over units, `(G−1)/G · Σ((y − R·w) / (Σw − w))²`, where R is the
    ratio and G the number of units with a weight above zero. For units of equal weight it is that
    of a mean; where few units have most of the weight, the delta method's would be too small. For
    the mean over examples, y is the sum of a unit's values and w their number.

    The degrees of freedom are those of equally large units. If the values of a unit are
    independent, units of weights w are worth `(Σw)² / Σw²`; if they are all alike,
    `(Σw²)² / Σw⁴`. The truth lies between: the geometric mean of both is taken.

    Parameters
    ----------
    y, w : ndarray
        `[unit, ...]`: totals and weights of each unit.

    Examples
    --------
    >>> ratio = unit_ratio(np.array([1.0, 2.0, 3.0]), np.ones(3))  # the mean and its standard error
    >>> float(ratio.value), round(float(ratio.variance), 6), float(ratio.effective_units)
    (2.0, 0.333333, 3.0)
    """
    y = np.asarray(y, dtype=float)
    w = np.asarray(w, dtype=float)
    total_weight = w.sum(0)
    n_units = (w > 0).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = y.sum(0) / total_weight
        residual = y - np.nan_to_num(ratio) * w
        influence = np.where(w > 0, residual / (total_weight - w), 0.0)
        squares = (influence**2).sum(0)
        cubes = (influence**3).sum(0)
        variance = (n_units - 1) / n_units * squares
        variance = np.where(n_units > 1, variance, np.nan)
        squared_weight = (w**2).sum(0)
        worth_if_independent = total_weight**2 / squared_weight
        worth_if_alike = squared_weight**2 / (w**4).sum(0)
    effective_units = np.sqrt(worth_if_independent * worth_if_alike)
    # Two units at least: Student's t needs one degree of freedom.
    effective_units = np.where(n_units > 1, np.clip(effective_units, 2.0, n_units), n_units)
    n_units, effective_units, variance, ratio = np.broadcast_arrays(
        n_units, effective_units, variance, ratio
    )
    skewness = sample_skewness(effective_units, squares, cubes)
    return Ratio(ratio, variance, n_units, effective_units, skewness)


def mean_over_units(values: np.ndarray, units: Sequence[int] | np.ndarray | None = None) -> Ratio:
    """Return the mean over examples, with the units of the examples as the sample.

    Parameters
    ----------
    values : ndarray
        `[example, ...]`; NaN entries are left out.
    units : sequence of int, optional
        The unit (document) of each example; default: each example is one.

    Examples
    --------
    Two documents, whose examples are all alike, are two values:

    >>> values = np.array([1.0, 1.0, 1.0, 3.0, 3.0, 3.0])
    >>> mean = mean_over_units(values, [5, 5, 5, 7, 7, 7])
    >>> float(mean.value), int(mean.n_units), [float(end.round(1)) for end in mean.interval()]
    (2.0, 2, [-10.7, 14.7])
    """
    values = np.asarray(values, dtype=float)
    keys = np.arange(len(values)) if units is None else np.asarray(units)
    _, unit_of_example = np.unique(keys, return_inverse=True)
    is_present = ~np.isnan(values)
    total = np.where(is_present, values, 0.0).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / is_present.sum(0)
    # Sums about the mean: rounding must not pass for a spread.
    deviations = np.where(is_present, values - mean, 0.0)
    number = sum_by_unit(is_present.astype(float), unit_of_example)
    about_mean = unit_ratio(sum_by_unit(deviations, unit_of_example), number)
    return replace(about_mean, value=mean)


def ratio_parts(y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return values whose mean is the ratio of totals `Σy / Σw`, and whose spread is that of the
    ratio (linearised): `R + (y − R w) / mean(w)`.

    Unlike the weights of `unit_ratio`, those here may be below zero: a difference of logits that
    goes the wrong way in some pairs.

    Parameters
    ----------
    y, w : ndarray
        `[example, ...]`; `w` is broadcast over `y`. Entries that are NaN in `y` stay NaN.

    >>> ratio_parts(np.array([1.0, 3.0]), np.array([1.0, 7.0])).tolist()
    [0.625, 0.375]
    """
    y = np.asarray(y, dtype=float)
    is_present = ~np.isnan(y)
    w = np.where(is_present, np.asarray(w, dtype=float), np.nan)
    count = is_present.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_weight = np.nansum(w, 0) / count
        ratio = np.nansum(y, 0) / np.nansum(w, 0)
        return np.asarray(ratio + (y - ratio * w) / mean_weight)


def effective_count(
    ratio: Ratio, independent_variance: np.ndarray, count: np.ndarray
) -> np.ndarray:
    """Return the effective sample size of a proportion whose tries come in units.

    It is `count / design effect` (Korn and Graubard 1998). The design effect is the variance of the
    proportion over units divided by its variance if all tries were independent, and at least 1.
    Where both variances are 0 (all tries alike), the effective sample size is the number of units.

    Score intervals use the normal quantile z. The size is divided by (t / z)², with t the quantile
    of Student's distribution for the number of units, which gives the interval with t instead.

    Parameters
    ----------
    ratio : Ratio
        The proportion over units.
    independent_variance : ndarray
        Its variance if all tries were independent.
    count : ndarray
        Tries.
    """
    upper_tail = 0.5 + LEVEL / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        design_effect = np.where(
            independent_variance > 0, ratio.variance / independent_variance, count / ratio.n_units
        )
        design_effect = np.maximum(np.where(ratio.n_units > 1, design_effect, count), 1.0)
        degrees_of_freedom = np.maximum(ratio.effective_units - 1, 1)
        t_quantile = scipy_stats.t.ppf(upper_tail, degrees_of_freedom)
        widening = (t_quantile / scipy_stats.norm.ppf(upper_tail)) ** 2
        return np.asarray(count / design_effect / widening)


def share_interval(hits: np.ndarray, tries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence interval of a proportion, `hits / tries`, with the units as the sample:
    Wilson's interval with the effective sample size (`effective_count`).

    NaN where nothing was tried.

    Parameters
    ----------
    hits, tries : ndarray
        `[unit, ...]`: successes and trials of each unit.

    >>> [float(end.round(2)) for end in share_interval(np.array([1, 0, 1, 1]), np.ones(4))]
    [0.13, 0.98]
    """
    hits = np.asarray(hits, dtype=float)
    tries = np.asarray(tries, dtype=float)
    ratio = unit_ratio(hits, tries)
    count = tries.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        independent_variance = ratio.value * (1 - ratio.value) / count
    n = effective_count(ratio, independent_variance, count)
    return wilson_interval(np.nan_to_num(ratio.value) * n, n)


def sum_by_unit(values: np.ndarray, unit_of_example: np.ndarray) -> np.ndarray:
    """Return sums `[unit, ...]` of `values[example, ...]`.

    `unit_of_example` numbers the units from 0.

    >>> sum_by_unit(np.array([[1.0], [2.0], [5.0]]), np.array([0, 0, 1])).tolist()
    [[3.0], [5.0]]
    """
    n_units = int(unit_of_example.max(initial=-1)) + 1
    if n_units == len(values):
        # Each example is a unit: its row moves to the place of the unit.
        sums = np.empty(values.shape)
        sums[unit_of_example] = values
        return sums
    sums = np.zeros((n_units, *values.shape[1:]))
    np.add.at(sums, unit_of_example, values)
    return sums
