"""Feature arrays of many heads: views on stored vectors that load only the heads and examples
requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import InputError, ParameterError


class ProbeFeatures(Protocol):
    """Vectors of several units (heads, layers, sets of heads), all of one size."""

    units: int
    examples: int
    size: int

    def block(self, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        """Return float32 `[unit, row, size]` of the units `start` to `stop - 1`."""


class ArrayFeatures:
    """Vectors in one array `[unit..., example, size]`, in memory or memory-mapped.

    Units are numbered over all leading axes, the last of them fastest.

    Parameters
    ----------
    array : array
        float16 or float32.
    """

    def __init__(self, array: Any) -> None:
        if array.ndim < 2:
            raise ParameterError(
                "Features need the axes [unit, example, size]; they have the shape "
                f"{tuple(array.shape)}."
            )
        self.array = array
        self.units = int(np.prod(array.shape[:-2]))
        self.examples = array.shape[-2]
        self.size = array.shape[-1]

    def block(self, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        # Unit by unit: a reshape would copy a whole slice of a memory-mapped file.
        values = np.empty((stop - start, len(rows), self.size), dtype=np.float32)
        for unit in range(start, stop):
            position = np.unravel_index(unit, self.array.shape[:-2])
            values[unit - start] = self.array[position][rows]
        return values


class PairFeatures:
    """`[u; v; |u−v|; u*v]` of the vectors of two sentences, unit by unit (SentEval's features for a
    pair)."""

    def __init__(self, first: ProbeFeatures, second: ProbeFeatures) -> None:
        first_shape = (first.units, first.examples, first.size)
        second_shape = (second.units, second.examples, second.size)
        if first_shape != second_shape:
            raise ParameterError(
                "The vectors of both sentences of a pair must have the same shape; they have "
                f"{first_shape} and {second_shape}."
            )
        self.first = first
        self.second = second
        self.units = first.units
        self.examples = first.examples
        self.size = 4 * first.size

    def block(self, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        u = self.first.block(start, stop, rows)
        v = self.second.block(start, stop, rows)
        return np.concatenate([u, v, np.abs(u - v), u * v], axis=-1)


class JoinedFeatures:
    """Several units concatenated into one vector."""

    def __init__(self, base: ProbeFeatures, chosen: Sequence[int]) -> None:
        distinct = len(set(chosen)) == len(chosen)
        exist = all(0 <= unit < base.units for unit in chosen)
        if not chosen or not distinct or not exist:
            raise ParameterError(
                f"Heads to join must be different numbers from 0 to {base.units - 1}; they are "
                f"{list(chosen)}."
            )
        self.base = base
        self.chosen = tuple(int(unit) for unit in chosen)
        self.units = 1
        self.examples = base.examples
        self.size = base.size * len(self.chosen)

    def block(self, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        parts = [self.base.block(unit, unit + 1, rows) for unit in self.chosen]
        return np.concatenate(parts, axis=-1)[start:stop]


class Scaler:
    """Standardisation learned on the training part: minus mean, divided by standard deviation.

    A constant feature becomes zero.

    Parameters
    ----------
    train : Tensor
        `[unit, example, size]`.
    standardize : bool
        False: values stay as they are.
    """

    def __init__(self, train: Tensor, standardize: bool) -> None:
        self.mean = torch.zeros((), device=train.device)
        self.scale = torch.ones((), device=train.device)
        if not standardize:
            return
        self.mean = train.mean(1, keepdim=True)
        deviation = (train - self.mean).std(1, keepdim=True, unbiased=False)
        # Rounding leaves a constant feature a deviation of some 1e-7 of its size: dividing by that
        # would turn rounding errors into a feature.
        constant = (deviation <= 1e-6 * self.mean.abs()) | (deviation == 0)
        inverse = 1 / deviation.clamp(min=1e-30)
        self.scale = torch.where(constant, torch.zeros_like(deviation), inverse)

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.mean) * self.scale


def load_features(
    features: ProbeFeatures,
    start: int,
    stop: int,
    rows: np.ndarray,
    device: str,
    task: str = "task",
) -> Tensor:
    """Load the vectors of some units onto a device; raise if any is NaN or infinite.

    Parameters
    ----------
    features : ProbeFeatures
        All vectors.
    start, stop : int
        The first unit, and the one after the last.
    rows : ndarray
        Indices of examples.
    device : str
        Where the vectors go.
    task : str, default "task"
        Named in the error.
    """
    values = torch.from_numpy(features.block(start, stop, rows)).to(device)
    not_finite = ~torch.isfinite(values).all(-1)
    if not_finite.any():
        unit = int(not_finite.any(1).nonzero()[0, 0])
        raise InputError(
            f"{task}: the vectors of unit {start + unit} are NaN or infinite in "
            f"{int(not_finite[unit].sum())} of {len(rows)} examples; collect them in float32 or "
            "check the model's weights."
        )
    return values


def with_ones(values: Tensor) -> Tensor:
    """Append a column of ones, whose weight is the bias."""
    return torch.cat([values, torch.ones_like(values[..., :1])], -1)


def gram_matrix(values: Tensor) -> Tensor:
    """Return `X'X` of each unit, `[unit, size, size]`, in float64.

    In float32 nearly dependent features would make it indefinite.
    """
    grams = []
    for unit in values:
        # One unit at a time, so that only one copy in float64 is alive.
        precise = unit.double()
        grams.append(precise.T @ precise)
    return torch.stack(grams)
