"""States that merge (associative and commutative up to rounding): moments, sums, records, saved as named arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from headwise.stats.intervals import mean_interval


class Moments:
    """Count, mean and sum of squared deviations over examples, elementwise.

    Chan et al.'s pairwise update: equal values keep a variance of exactly zero.
    """

    def __init__(self, *shape: int) -> None:
        self.count = torch.zeros(shape, dtype=torch.float64)
        self.mean = torch.zeros(shape, dtype=torch.float64)
        self.squares = torch.zeros(shape, dtype=torch.float64)

    def add(self, values: Tensor, where: tuple[int | slice, ...] = ()) -> None:
        """Take in `values[example, ...]`; NaN means: this example has no such value and is left out.

        `where` selects the part of the shape the values are for.
        """
        values = values.detach().to("cpu", torch.float64)
        present = ~values.isnan()
        count = present.sum(0).double()
        clean = torch.where(present, values, 0.0)
        # The first present value is the pivot: sums of deviations from it are exactly zero when all values are equal.
        first = present.double().argmax(0, keepdim=True)
        pivot = clean.gather(0, first)
        deviations = torch.where(present, clean - pivot, 0.0)
        shift = deviations.sum(0) / count.clamp(min=1)
        mean = pivot[0] + shift
        squares = (torch.where(present, deviations - shift, 0.0) ** 2).sum(0)
        self._combine(where, count, mean, squares)

    def add_sums(self, numerator: Tensor, denominator: Tensor, where: tuple[int | slice, ...] = ()) -> None:
        """Take in per-example means given as totals and counts; examples whose count is zero are left out."""
        self.add(torch.where(denominator > 0, numerator / denominator, torch.nan), where)

    def merge(self, other: Moments) -> None:
        self._combine((), other.count, other.mean, other.squares)

    def _combine(self, where: tuple[int | slice, ...], count: Tensor, mean: Tensor, squares: Tensor) -> None:
        own_count, own_mean, own_squares = (x[where] for x in (self.count, self.mean, self.squares))
        total = own_count + count
        safe = total.clamp(min=1)
        delta = torch.where(own_count > 0, mean - own_mean, mean)
        delta = torch.where(count > 0, delta, 0.0)
        own_mean = torch.where(own_count > 0, own_mean + delta * (count / safe), torch.where(count > 0, mean, 0.0))
        own_squares = (
            own_squares
            + squares
            + torch.where((self.count[where] > 0) & (count > 0), delta**2 * self.count[where] * count / safe, 0.0)
        )
        self.count[where], self.mean[where], self.squares[where] = total, own_mean, own_squares

    def arrays(self) -> dict[str, np.ndarray]:
        return {"count": self.count.numpy(), "mean": self.mean.numpy(), "squares": self.squares.numpy()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.count, self.mean, self.squares = (
            torch.from_numpy(np.array(arrays[name])) for name in ("count", "mean", "squares")
        )

    def variance(self) -> np.ndarray:
        """Variance with ddof 1; NaN below two examples."""
        count = self.count.numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(count > 1, self.squares.numpy() / (count - 1), np.nan)

    def summary(self) -> dict[str, np.ndarray]:
        """`mean`, `n`, `low`, `high` (95 %, Student's t); NaN where nothing was seen, the interval below two too."""
        count = self.count.numpy()
        mean = np.where(count > 0, self.mean.numpy(), np.nan)
        low, high = mean_interval(mean, self.variance(), count)
        return {"mean": mean, "n": count.astype(np.int64), "low": low, "high": high}


class Ratios:
    """A ratio of totals over examples, Σy/Σw, with the interval of a ratio estimator.

    Every token (or pair) weighs alike, examples are the sampling unit.

    The variance is the delta method's `n/(n−1) · Σ(y − R·w)² / (Σw)²`, which needs sums only, so states merge by
    addition. `w` may be broadcast over `y`."""

    def __init__(self, *shape: int, weight_shape: tuple[int, ...] | None = None) -> None:
        weight_shape = shape if weight_shape is None else weight_shape
        self.parts = {name: torch.zeros(shape, dtype=torch.float64) for name in ("y", "yy", "yw")}
        self.parts |= {name: torch.zeros(weight_shape, dtype=torch.float64) for name in ("w", "ww", "count")}

    def add_sums(self, numerator: Tensor, denominator: Tensor, where: tuple[int | slice, ...] = ()) -> None:
        """Take in per-example totals `y[example, ...]` and weights `w[example, ...]`.

        Examples of weight zero are left out.
        """
        y, w = (x.detach().to("cpu", torch.float64) for x in (numerator, denominator))
        y = torch.where(w > 0, y, 0.0)
        for name, value in (
            ("y", y),
            ("yy", y * y),
            ("yw", y * w),
            ("w", w),
            ("ww", w * w),
            ("count", (w > 0).double()),
        ):
            self.parts[name][where] += value.sum(0)

    def merge(self, other: Ratios) -> None:
        for name, part in self.parts.items():
            part += other.parts[name]

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: part.numpy() for name, part in self.parts.items()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.parts = {name: torch.from_numpy(np.array(arrays[name])) for name in self.parts}

    def summary(self) -> dict[str, np.ndarray]:
        """`mean` (the ratio), `n`, `low`, `high`."""
        p = {name: part.numpy() for name, part in self.parts.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = p["y"] / p["w"]
            residual = np.maximum(p["yy"] - 2 * ratio * p["yw"] + ratio**2 * p["ww"], 0)
            # mean_interval divides by the count once more, hence the factor that makes this the variance of one
            # "effective" example.
            variance = residual / (p["count"] - 1) / (p["w"] / p["count"]) ** 2
        count = np.broadcast_to(p["count"], ratio.shape)
        low, high = mean_interval(ratio, np.where(count > 1, variance, np.nan), count)
        return {"mean": ratio, "n": count.astype(np.int64), "low": low, "high": high}


class Sums:
    """Plain sums in float64."""

    def __init__(self, *shape: int) -> None:
        self.total = torch.zeros(shape, dtype=torch.float64)

    def add(self, values: Tensor, where: tuple[int | slice, ...] = ()) -> None:
        self.total[where] += values.detach().to("cpu", torch.float64)

    def merge(self, other: Sums) -> None:
        self.total += other.total

    def arrays(self) -> dict[str, np.ndarray]:
        return {"total": self.total.numpy()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.total = torch.from_numpy(np.array(arrays["total"]))


class SparseSums(Sums):
    """Plain sums whose saved form holds only the cells that are not zero."""

    def arrays(self) -> dict[str, np.ndarray]:
        flat = self.total.numpy().ravel()
        place = np.flatnonzero(flat)
        return {"place": place.astype(np.int32 if flat.size < 2**31 else np.int64), "value": flat[place]}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        flat = np.zeros(self.total.numel())
        flat[arrays["place"]] = arrays["value"]
        self.total = torch.from_numpy(flat).reshape(self.total.shape)


class Records:
    """One row of scores for each example, for paired tests, bootstrap and distributions.

    Kept in the shard's file and sorted by example at the end.

    Rows are filled layer by layer: `add(indices, values, where)` sets `values[example, ...]` in the part `where` of the
    rows of these examples."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        self.shape = shape
        self.dtype = dtype
        self._rows: dict[int, Tensor] = {}

    def add(self, indices: Sequence[int], values: Tensor, where: tuple[int | slice, ...] = ()) -> None:
        values = values.detach().to("cpu", self.dtype)
        for index, value in zip(indices, values, strict=True):
            row = self._rows.get(index)
            if row is None:
                row = self._rows[index] = torch.full(self.shape, torch.nan, dtype=self.dtype)
            row[where] = value

    def merge(self, other: Records) -> None:
        for index, row in other._rows.items():
            own = self._rows.get(index)
            self._rows[index] = row if own is None else torch.where(own.isnan(), row, own)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"index": self.index, "values": self.values}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._rows = {
            int(i): torch.from_numpy(np.array(row)) for i, row in zip(arrays["index"], arrays["values"], strict=True)
        }

    @property
    def index(self) -> np.ndarray:
        """The examples that have a row, in corpus order."""
        return np.array(sorted(self._rows), dtype=np.int64)

    @property
    def values(self) -> np.ndarray:
        """The rows [example, ...], in corpus order."""
        if not self._rows:
            return np.zeros((0, *self.shape), dtype=np.float32)
        return torch.stack([self._rows[i] for i in sorted(self._rows)]).numpy()


def means(weighting: str, *shape: int) -> Moments | Ratios:
    """What averages over examples: each example alike (`examples`), or each token alike (`tokens`)."""
    return Ratios(*shape) if weighting == "tokens" else Moments(*shape)


class State(dict[str, "Moments | Ratios | Sums | Records"]):
    """What an analysis knows so far: named accumulators. Merging merges each; saving gives `name/part` arrays."""

    def merge(self, other: State) -> None:
        if self.keys() != other.keys():
            raise ValueError(f"states of different analyses cannot merge: {sorted(self)} and {sorted(other)}")
        for name, accumulator in self.items():
            accumulator.merge(other[name])  # type: ignore[arg-type]

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            f"{name}/{part}": array
            for name, accumulator in self.items()
            for part, array in accumulator.arrays().items()
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, accumulator in self.items():
            accumulator.load(
                {key.split("/", 1)[1]: array for key, array in arrays.items() if key.split("/", 1)[0] == name}
            )

    def moments(self, name: str) -> Moments:
        return cast(Moments, self[name])

    def means(self, name: str) -> Moments | Ratios:
        return cast(Moments | Ratios, self[name])

    def sums(self, name: str) -> Sums:
        return cast(Sums, self[name])

    def records(self, name: str) -> Records:
        return cast(Records, self[name])
