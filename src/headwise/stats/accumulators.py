"""States that merge, in any order up to rounding: moments, ratios, sums, saved as named arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor

from headwise.stats.intervals import mean_interval, sample_skewness, share, wilson_interval
from headwise.stats.records import Records
from headwise.stats.tests import z_test
from headwise.stats.units import (
    Accumulator,
    Ratio,
    UnitSums,
    default_max_units,
    share_interval,
    unit_ratio,
)

# The sums of a ratio that only the correction for skewness needs.
THIRD_MOMENTS = ("yyy", "yyw", "yww", "www", "wwww")


class Parts(Accumulator):
    """Named tensors in float64, and where every example belongs to a document, sums for each
    document beside them.

    What a GPU gives stays there until it is read: waiting for every number of every batch would
    halve its speed."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self._parts: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            self._parts[name] = torch.zeros(shape, dtype=torch.float64)
        self._units: dict[str, UnitSums] = {}

    @property
    def parts(self) -> dict[str, Tensor]:
        """The tensors, on the CPU."""
        for name, part in self._parts.items():
            self._parts[name] = part.cpu()
        return self._parts

    def _add(self, name: str, values: Tensor, where: tuple[int | slice, ...]) -> None:
        part = self._parts[name].to(values.device)
        part[where] += values
        self._parts[name] = part

    def _unit_sums(self) -> dict[str, UnitSums]:
        """Empty sums for each document, by the names they are saved under."""
        return {}

    def merge(self, other: Self) -> None:
        for name, part in self.parts.items():
            part += other.parts[name]
        self._merge_units(other)

    def _merge_units(self, other: Self) -> None:
        for name, theirs in other._units.items():
            if name in self._units:
                self._units[name].merge(theirs)
            else:
                self._units[name] = theirs

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {}
        for name, part in self.parts.items():
            arrays[name] = part.numpy()
        for name, sums in self._units.items():
            for part_name, array in sums.arrays().items():
                arrays[f"{name}.{part_name}"] = array
        return arrays

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name in self._parts:
            self._parts[name] = torch.from_numpy(np.array(arrays[name]))
        self._units = {}
        for name, sums in self._unit_sums().items():
            if f"{name}.units" in arrays:
                sums.load({part: arrays[f"{name}.{part}"] for part in sums.arrays()})
                self._units[name] = sums


class Moments(Parts):
    """Count, mean, and sums of squared and cubed deviations over examples, elementwise.

    Chan et al.'s pairwise update: equal values keep a variance of exactly zero. The cubes are for
    intervals of means of skewed values. Where every example
    belongs to a document, the sum and the number of each document's values are kept too, and the
    variance is that over documents."""

    def __init__(self, *shape: int) -> None:
        super().__init__(count=shape, mean=shape, squares=shape, cubes=shape)

    def _unit_sums(self) -> dict[str, UnitSums]:
        return {"unit": UnitSums(2, *self.shape)}  # [sum or number, ...]

    @property
    def shape(self) -> torch.Size:
        return self._parts["count"].shape

    @property
    def count(self) -> Tensor:
        """How many examples had each value."""
        return self.parts["count"]

    @property
    def mean(self) -> Tensor:
        """Of those, 0 where there are none."""
        return self.parts["mean"]

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        # States of earlier versions have no cubes: their intervals are Student's t.
        super().load({"cubes": np.zeros(self.shape), **arrays})

    def add(self, values: Tensor, where: tuple[int | slice, ...] = ()) -> None:
        """Take in `values[example, ...]`; NaN means: this example has no such value and is left
        out.

        `where` selects the part of the shape the values are for.
        """
        values = values.detach().to(torch.float64)  # reduced where they are: a GPU has many of them
        present = ~values.isnan()
        count = present.sum(0).double()
        clean = torch.where(present, values, 0.0)
        # The first present value is the pivot: sums of deviations from it are exactly zero when all
        # values are equal.
        first = present.double().argmax(0, keepdim=True)
        pivot = clean.gather(0, first)
        deviations = torch.where(present, clean - pivot, 0.0)
        shift = deviations.sum(0) / count.clamp(min=1)
        mean = pivot[0] + shift
        centred = torch.where(present, deviations - shift, 0.0)
        squared = centred**2
        self._combine(where, count, mean, squared.sum(0), (squared * centred).sum(0))
        units = self._units_of(values)
        if units is not None:
            self._units = self._units or self._unit_sums()
            self._units["unit"].add(units, clean.cpu(), (0, *where))
            self._units["unit"].add(units, present.cpu(), (1, *where))

    def add_sums(
        self, numerator: Tensor, denominator: Tensor, where: tuple[int | slice, ...] = ()
    ) -> None:
        """Take in per-example means given as totals and counts; examples whose count is zero are
        left out."""
        self.add(torch.where(denominator > 0, numerator / denominator, torch.nan), where)

    def merge(self, other: Self) -> None:
        self._combine((), **other.parts)
        self._merge_units(other)

    def _combine(
        self,
        where: tuple[int | slice, ...],
        count: Tensor,
        mean: Tensor,
        squares: Tensor,
        cubes: Tensor,
    ) -> None:
        for name, part in self._parts.items():
            self._parts[name] = part.to(count.device)
        own_count = self._parts["count"][where]
        own_mean = self._parts["mean"][where]
        own_squares = self._parts["squares"][where]
        own_cubes = self._parts["cubes"][where]
        total = own_count + count
        safe = total.clamp(min=1)
        delta = torch.where(own_count > 0, mean - own_mean, mean)
        delta = torch.where(count > 0, delta, 0.0)
        first_mean = torch.where(count > 0, mean, 0.0)
        new_mean = torch.where(own_count > 0, own_mean + delta * (count / safe), first_mean)
        both_present = (own_count > 0) & (count > 0)
        between = torch.where(both_present, delta**2 * own_count * count / safe, 0.0)
        new_squares = own_squares + squares + between
        # Pébay's (2008) update of the third moment; `between` holds its first factors.
        cubes_between = between * delta * (own_count - count) / safe
        mixed = 3 * delta * (own_count * squares - count * own_squares) / safe
        mixed = torch.where(both_present, mixed, 0.0)
        new_cubes = own_cubes + cubes + cubes_between + mixed
        self._parts["count"][where] = total
        self._parts["mean"][where] = new_mean
        self._parts["squares"][where] = new_squares
        self._parts["cubes"][where] = new_cubes

    def over_units(self) -> Ratio | None:
        """The mean with its variance over documents; None where some example belongs to none."""
        if not self._units:
            return None
        total, number = self._units["unit"].totals.astype(np.float64).swapaxes(0, 1)
        if not np.array_equal(number.sum(0), self.count.numpy()):
            return None
        mean = np.where(self.count.numpy() > 0, self.mean.numpy(), 0.0)
        # Sums about the mean: rounding must not pass for a spread.
        return unit_ratio(total - mean * number, number)

    def variance(self) -> np.ndarray:
        """Variance with ddof 1; NaN below two examples. Over documents where there are any: the
        number of examples times the variance of their mean, so that whoever divides by that number
        gets the right one."""
        count = self.count.numpy()
        clustered = self.over_units()
        if clustered is not None:
            return np.asarray(clustered.variance * count)
        return share(self.parts["squares"].numpy(), count - 1)

    def summary(self) -> dict[str, np.ndarray]:
        """`mean`, `n`, `units` (documents, or examples), `low`, `high` (95 %, Student's t over
        units, corrected for skewness).

        NaN where nothing was seen, the interval below two units too.
        """
        count = self.count.numpy()
        clustered = self.over_units()
        mean, variance, units = self._of_units(clustered)
        if clustered is None:
            n_units = count
            squares = self.parts["squares"].numpy()
            skewness = sample_skewness(count, squares, self.parts["cubes"].numpy())
        else:
            n_units = clustered.n_units
            skewness = clustered.skewness
        low, high = mean_interval(mean, variance, units, skewness=skewness)
        return _summary(mean, count, n_units, low, high)

    def share_interval(self) -> tuple[np.ndarray, np.ndarray]:
        """The interval of a mean of zeros and ones: Wilson's, over documents where there are any
        (`units.share_interval`)."""
        if self.over_units() is None:
            return wilson_interval(self.mean.numpy() * self.count.numpy(), self.count.numpy())
        hits, tries = self._units["unit"].totals.astype(np.float64).swapaxes(0, 1)
        return share_interval(hits, tries)

    def p_above(self, threshold: float = 0.0) -> np.ndarray:
        """p-values of `H0: mean ≤ threshold`, by Student's t over units; 0 or 1 where the values do
        not vary."""
        return z_test(*self._of_units(self.over_units()), threshold, student=True).p_value

    def _of_units(self, clustered: Ratio | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mean, the variance of one unit (document, or example), and how many equally large
        units there are; `clustered` is what `over_units` says."""
        count = self.count.numpy()
        mean = np.where(count > 0, self.mean.numpy(), np.nan)
        if clustered is None:
            return mean, share(self.parts["squares"].numpy(), count - 1), count
        units = clustered.effective_units
        return mean, clustered.variance * units, units


class Ratios(Parts):
    """A ratio of totals over examples, Σy/Σw, with the interval of a ratio estimator.

    Every token (or pair) weighs alike, examples are the sampling unit.

    The variance is the delta method's `n/(n−1) · Σ(y − R·w)² / (Σw)²`, which needs sums only, so
    states merge by addition. `w` may be broadcast over `y`.

    Parameters
    ----------
    *shape : int
        The shape of the ratios.
    weight_shape : tuple of int, optional
        The shape of the weights; default: that of the ratios.
    third_moments : bool, default False
        Keep the sums from which the skewness of y − R·w follows, and how many examples of equal
        weight these examples are worth: the interval needs them where values are skewed and
        examples few. They take as much memory again."""

    def __init__(
        self,
        *shape: int,
        weight_shape: tuple[int, ...] | None = None,
        third_moments: bool = False,
    ) -> None:
        of = shape if weight_shape is None else weight_shape
        shapes = {"y": shape, "yy": shape, "yw": shape, "w": of, "ww": of, "count": of}
        if third_moments:
            shapes |= {"yyy": shape, "yyw": shape, "yww": shape, "www": of, "wwww": of}
        super().__init__(**shapes)

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        # States of earlier versions have no third moments: their intervals are Student's t.
        if "yyy" not in arrays:
            self._drop_third_moments()
        super().load(arrays)

    def merge(self, other: Self) -> None:
        # Sums over a part of the examples say nothing about all of them.
        if "yyy" not in other._parts:
            self._drop_third_moments()
        super().merge(other)

    def _drop_third_moments(self) -> None:
        for name in THIRD_MOMENTS:
            self._parts.pop(name, None)

    def _unit_sums(self) -> dict[str, UnitSums]:
        """As many units for the weights as for the totals, which have more numbers."""
        max_units = default_max_units(*self.shape)
        units = {}
        for name in ("y", "w"):
            units[f"unit_{name}"] = UnitSums(*self._parts[name].shape, max_units=max_units)
        return units

    @property
    def shape(self) -> torch.Size:
        return self._parts["y"].shape

    def add_sums(
        self, numerator: Tensor, denominator: Tensor, where: tuple[int | slice, ...] = ()
    ) -> None:
        """Take in per-example totals `y[example, ...]` and weights `w[example, ...]`.

        Examples of weight zero are left out.
        """
        y = numerator.detach().to(torch.float64)
        w = denominator.detach().to(torch.float64)
        y = torch.where(w > 0, y, 0.0)
        added = {"y": y, "yy": y * y, "yw": y * w, "w": w, "ww": w * w, "count": (w > 0).double()}
        if "yyy" in self._parts:
            added |= {"yyy": y**3, "yyw": y * y * w, "yww": y * w * w, "www": w**3, "wwww": w**4}
        for name, value in added.items():
            self._add(name, value.sum(0), where)
        units = self._units_of(y)
        if units is not None:
            self._units = self._units or self._unit_sums()
            self._units["unit_y"].add(units, y.cpu(), where)
            self._units["unit_w"].add(units, w.cpu(), where)

    def over_units(self) -> Ratio | None:
        """The ratio with its variance over documents; None where some example belongs to none."""
        if not self._units:
            return None
        y = self._units["unit_y"].totals
        w = self._units["unit_w"].totals
        # Other weights in all: some example came without a document.
        if not np.allclose(w.sum(0), self.parts["w"].numpy(), rtol=1e-4):
            return None
        return unit_ratio(y, w)

    def summary(self) -> dict[str, np.ndarray]:
        """`mean` (the ratio), `n`, `units` (documents, or examples), `low`, `high`."""
        sums = {name: part.numpy() for name, part in self.parts.items()}
        n_examples = sums["count"]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = sums["y"] / sums["w"]
        count = np.broadcast_to(n_examples, ratio.shape)
        clustered = self.over_units()
        if clustered is not None:
            return _summary(ratio, count, clustered.n_units, *clustered.interval())
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = sums["yy"] - 2 * ratio * sums["yw"] + ratio**2 * sums["ww"]
            squares = np.maximum(squares, 0)
            variance = n_examples / (n_examples - 1) * squares / sums["w"] ** 2
            variance = np.where(count > 1, variance, np.nan)
            effective = n_examples
            skewness: np.ndarray | float = 0.0
            if "yyy" in sums:
                worth_if_independent = sums["w"] ** 2 / sums["ww"]
                worth_if_alike = sums["ww"] ** 2 / sums["wwww"]
                effective = np.sqrt(worth_if_independent * worth_if_alike)
                effective = np.where(n_examples > 1, np.maximum(effective, 2.0), n_examples)
                cubes = sums["yyy"] - 3 * ratio * sums["yyw"] + 3 * ratio**2 * sums["yww"]
                cubes -= ratio**3 * sums["www"]
                skewness = sample_skewness(effective, squares, cubes)
            low, high = mean_interval(ratio, variance * effective, effective, skewness)
        return _summary(ratio, count, count, low, high)


def _summary(
    mean: np.ndarray, count: np.ndarray, units: np.ndarray, low: np.ndarray, high: np.ndarray
) -> dict[str, np.ndarray]:
    return {
        "mean": mean,
        "n": count.astype(np.int64),
        "units": units.astype(np.int64),
        "low": low,
        "high": high,
    }


class Sums(Parts):
    """Plain sums in float64."""

    def __init__(self, *shape: int) -> None:
        super().__init__(total=shape)

    @property
    def total(self) -> Tensor:
        """The sums, on the CPU."""
        return self.parts["total"]

    def add(self, values: Tensor, where: tuple[int | slice, ...] = ()) -> None:
        self._add("total", values.detach().to(torch.float64), where)


class SparseSums(Sums):
    """Plain sums whose saved form holds only the cells that are not zero."""

    def arrays(self) -> dict[str, np.ndarray]:
        flat = self.total.numpy().ravel()
        place = np.flatnonzero(flat)
        return {
            "place": place.astype(np.int32 if flat.size < 2**31 else np.int64),
            "value": flat[place],
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        flat = np.zeros(self.total.numel())
        flat[arrays["place"]] = arrays["value"]
        super().load({"total": flat.reshape(self.total.shape)})


def means(weighting: str, *shape: int) -> Moments | Ratios:
    """What averages over examples: each example alike (`examples`), or each token alike
    (`tokens`)."""
    return Ratios(*shape, third_moments=True) if weighting == "tokens" else Moments(*shape)


class State(dict[str, "Moments | Ratios | Sums | Records | UnitSums"]):
    """What an analysis knows so far: named accumulators. Merging merges each; saving gives
    `name/part` arrays."""

    def of(self, units: Sequence[int] | None) -> None:
        """Say which units (documents) the examples belong to that are about to be added; None where
        one has none."""
        for accumulator in self.values():
            accumulator.batch_units = units

    def merge(self, other: State) -> None:
        if self.keys() != other.keys():
            raise ValueError(
                f"states of different analyses cannot merge: {sorted(self)} and {sorted(other)}"
            )
        for name, accumulator in self.items():
            accumulator.merge(other[name])  # type: ignore[arg-type]

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {}
        for name, accumulator in self.items():
            for part, array in accumulator.arrays().items():
                arrays[f"{name}/{part}"] = array
        return arrays

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, accumulator in self.items():
            accumulator_arrays = {}
            for key, array in arrays.items():
                owner, _, part = key.partition("/")
                if owner == name:
                    accumulator_arrays[part] = array
            accumulator.load(accumulator_arrays)

    def moments(self, name: str) -> Moments:
        return cast(Moments, self[name])

    def means(self, name: str) -> Moments | Ratios:
        return cast(Moments | Ratios, self[name])

    def by_unit(self, name: str) -> UnitSums:
        return cast(UnitSums, self[name])

    def sums(self, name: str) -> Sums:
        return cast(Sums, self[name])

    def records(self, name: str) -> Records:
        return cast(Records, self[name])
