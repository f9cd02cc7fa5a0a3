"""The unit of sampling: examples of one document are not independent, so sums are kept by document,
and ratios of sums get their spread over documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from scipy import stats as scipy_stats
from torch import Tensor

from headwise.stats.intervals import LEVEL, mean_interval, wilson_interval

MOST, LEAST = 2000, 100  # units kept apart at most, and at least where each has many numbers
CELLS = 1 << 24  # numbers kept in all, which decides how many units are kept apart between the two


def unit_key(document: str | None, index: int) -> int:
    """A number for the unit of an example: below zero for a document, by its name; else the
    example's own place.

    >>> unit_key(None, 7), unit_key("a", 0) == unit_key("a", 5) < 0
    (7, True)
    """
    if document is None:
        return index
    return -1 - (int.from_bytes(blake2b(document.encode(), digest_size=8).digest()) >> 2)


class Accumulator:
    """What a state is made of. `batch_units` are those of the examples about to be added, in their
    order, where every example belongs to a document (see `State.of`)."""

    batch_units: Sequence[int] | None = None

    def _units_of(self, values: Tensor) -> Sequence[int] | None:
        """The units of these values; None where an analysis hands in other examples than those of
        the batch."""
        return (
            self.batch_units
            if self.batch_units is not None and len(self.batch_units) == len(values)
            else None
        )


def most_units(*shape: int) -> int:
    """How many units of so many numbers are kept apart."""
    return int(np.clip(CELLS // max(int(np.prod(shape)), 1), LEAST, MOST))


class UnitSums(Accumulator):
    """Sums for each unit of sampling, elementwise; they merge, whatever the cuts.

    Where there are more units than can be kept apart, units are put together by chance (by the
    remainder of their number): sums of independent units are independent too, so tests and
    intervals stay right.

    Parameters
    ----------
    *shape : int
        Of what is summed for a unit.
    dtype : torch.dtype, default torch.float32
        Of the sums; whole numbers are saved as small as they are.
    most : int, optional
        Units kept apart; by default as many as memory allows.
    """

    def __init__(
        self, *shape: int, dtype: torch.dtype = torch.float32, most: int | None = None
    ) -> None:
        self.shape = shape
        self.most = most or most_units(*shape)
        self._places: dict[int, int] = {}
        self._held = torch.zeros(0, *shape, dtype=dtype)
        self._folded = False

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
        places = self._take(units)
        target = self._held[(slice(None), *where)]
        rows = values.detach().to("cpu", self._held.dtype)
        # index_add_ does not broadcast by itself.
        rows = rows.expand(len(rows), *target.shape[1:])
        target.index_add_(0, places, rows)

    def merge(self, other: UnitSums) -> None:
        if other._folded:
            self._fold()
        places = self._take(list(other._places))
        self._held.index_add_(0, places, other._held[: len(places)])

    def _take(self, units: Sequence[int]) -> Tensor:
        """Where the sums of these units are; new ones get a place."""
        keys = [unit % self.most if self._folded else unit for unit in units]
        new = set(keys) - self._places.keys()
        if not self._folded and len(self._places) + len(new) > self.most:
            self._fold()
            return self._take(units)
        for key in keys:
            self._places.setdefault(key, len(self._places))
        short = len(self._places) - len(self._held)
        if short > 0:
            more = max(short, min(len(self._held), self.most - len(self._held)))
            self._held = torch.cat([self._held, self._held.new_zeros(more, *self.shape)])
        return torch.tensor([self._places[key] for key in keys], dtype=torch.int64)

    def _fold(self) -> None:
        if self._folded:
            return
        keys, held = list(self._places), self._held[: len(self._places)]
        self._places, self._held, self._folded = {}, held.new_zeros(0, *self.shape), True
        places = self._take(keys)
        self._held.index_add_(0, places, held)

    def arrays(self) -> dict[str, np.ndarray]:
        totals = self.totals
        if not self._held.is_floating_point():
            totals = totals.astype(np.min_scalar_type(int(totals.max(initial=0))))
        return {"units": self.units, "folded": np.array([self._folded]), "totals": totals}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._places = {int(key): place for place, key in enumerate(arrays["units"])}
        self._folded = bool(arrays["folded"][0])
        self._held = torch.from_numpy(np.array(arrays["totals"]).astype(self._held.numpy().dtype))

    @property
    def units(self) -> np.ndarray:
        """The numbers of the units, sorted."""
        return np.array(sorted(self._places), dtype=np.int64)

    @property
    def totals(self) -> np.ndarray:
        """The sums `[unit, ...]`, in the order of `units`: the same whatever came first."""
        places = [self._places[key] for key in sorted(self._places)]
        return self._held[torch.tensor(places, dtype=torch.int64)].numpy()

    @property
    def unit_name(self) -> str:
        """What the units are: `documents`, `examples`, or `groups` of either where there were too
        many to keep."""
        return (
            "groups"
            if self._folded
            else "documents"
            if any(key < 0 for key in self._places)
            else "examples"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """`Σy / Σw` with the variance of that ratio and the number of units behind it, elementwise."""

    value: np.ndarray
    variance: np.ndarray
    units: np.ndarray

    def interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """By Student's t with one degree of freedom less than there are units; NaN below two."""
        return mean_interval(self.value, self.variance * self.units, self.units, level)


def unit_ratio(y: np.ndarray, w: np.ndarray) -> Ratio:
    """A ratio of sums over units, `Σy / Σw`, with units as what was sampled.

    The variance is the delta method's `G/(G−1) · Σ(y − R·w)² / (Σw)²` over the G units of weight
    above zero: the cluster-robust one. Of means over examples y is the sum and w the number of a
    unit's values.

    Parameters
    ----------
    y, w : ndarray
        `[unit, ...]`: totals and weights of each unit.

    Examples
    --------
    >>> found = unit_ratio(np.array([1.0, 2.0, 3.0]), np.ones(3))  # units of one: the mean and its standard error
    >>> float(found.value), float(found.variance)
    (2.0, 0.3333333333333333)
    """
    y, w = np.broadcast_arrays(np.asarray(y, dtype=float), np.asarray(w, dtype=float))
    total, units = w.sum(0), (w > 0).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = y.sum(0) / total
        left = ((y - np.nan_to_num(ratio) * w) ** 2).sum(0)
        variance = np.where(units > 1, units / (units - 1) * left / total**2, np.nan)
    return Ratio(ratio, variance, units)


def share_interval(
    hits: np.ndarray, tries: np.ndarray, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a share of `tries[unit, ...]`, of which `hits` are right, with units as what
    was sampled.

    Wilson's with the effective number of tries, `n / design effect`, where the design effect is the
    variance over units against that of independent tries (at least 1; the number of units where all
    or none are right), and with the quantile of Student's t for the number of units (Korn and
    Graubard 1998). NaN where nothing was tried.

    >>> [float(end.round(2)) for end in share_interval(np.array([1, 0, 1, 1]), np.ones(4))]
    [0.13, 0.98]
    """
    hits, tries = np.asarray(hits, dtype=float), np.asarray(tries, dtype=float)
    found = unit_ratio(hits, tries)
    count = tries.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        independent = found.value * (1 - found.value) / count
        effect = np.where(independent > 0, found.variance / independent, count / found.units)
        effect = np.maximum(np.where(found.units > 1, effect, count), 1.0)
        # t in place of the normal quantile: as many fewer tries as its square is larger.
        freedom = np.maximum(found.units - 1, 1)
        wider = (
            scipy_stats.t.ppf(0.5 + level / 2, freedom) / scipy_stats.norm.ppf(0.5 + level / 2)
        ) ** 2
        effective = count / effect / wider
    return wilson_interval(np.nan_to_num(found.value) * effective, effective, level)
