"""Feature arrays of many heads at once: views on stored vectors that load only the heads and
examples asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import InputError, ParameterError


class Features(Protocol):
    """Vectors of several units (heads, layers, sets of heads), all of one size."""

    units: int
    examples: int
    size: int

    def block(self, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        """float32 [unit, row, size] of the units `start..stop`."""


class ArrayFeatures:
    """Vectors in one array `[unit..., example, size]` (in memory or memory-mapped, float16 or
    float32).

    Leading axes are run through in order.
    """

    def __init__(self, array: Any) -> None:
        if array.ndim < 2:
            raise ParameterError(
                f"Features need the axes [unit, example, size]; they have shape {tuple(array.shape)}."
            )
        self.array = array
        self.units, self.examples, self.size = (
            int(np.prod(array.shape[:-2])),
            array.shape[-2],
            array.shape[-1],
        )

    def block(self, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        # Unit by unit: a reshape would copy a slice of a memory-mapped file as a whole.
        out = np.empty((stop - start, len(rows), self.size), dtype=np.float32)
        for i in range(start, stop):
            out[i - start] = self.array[np.unravel_index(i, self.array.shape[:-2])][rows]
        return out


class PairFeatures:
    """`[u; v; |u−v|; u*v]` of the vectors of two sentences, unit by unit (SentEval's features for a
    pair)."""

    def __init__(self, first: Features, second: Features) -> None:
        if (first.units, first.examples, first.size) != (
            second.units,
            second.examples,
            second.size,
        ):
            raise ParameterError(
                "The vectors of both sentences of a pair must have the same shape."
            )
        self.first, self.second = first, second
        self.units, self.examples, self.size = first.units, first.examples, 4 * first.size

    def block(self, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        u, v = self.first.block(start, stop, rows), self.second.block(start, stop, rows)
        return np.concatenate([u, v, np.abs(u - v), u * v], axis=-1)


class JoinedFeatures:
    """Several units laid end to end as one vector: the concatenation of chosen heads."""

    def __init__(self, base: Features, chosen: Sequence[int]) -> None:
        if (
            not chosen
            or len(set(chosen)) != len(chosen)
            or not all(0 <= unit < base.units for unit in chosen)
        ):
            raise ParameterError(
                f"Heads to join must be different numbers from 0 to {base.units - 1}; they are {list(chosen)}."
            )
        self.base, self.chosen = base, tuple(int(unit) for unit in chosen)
        self.units, self.examples, self.size = 1, base.examples, base.size * len(self.chosen)

    def block(self, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        parts = [self.base.block(unit, unit + 1, rows) for unit in self.chosen]
        return np.concatenate(parts, axis=-1)[start:stop]


class Scaler:
    """Standardisation learnt on the training part: minus mean, divided by standard deviation.

    A constant feature becomes zero.
    """

    def __init__(self, train: Tensor, standardize: bool) -> None:
        self.mean, self.scale = (
            torch.zeros((), device=train.device),
            torch.ones((), device=train.device),
        )
        if standardize:
            self.mean = train.mean(1, keepdim=True)
            deviation = (train - self.mean).std(1, keepdim=True, unbiased=False)
            # Rounding leaves a constant feature a deviation of some 1e-7 of its size: that is no
            # information to blow up.
            constant = deviation <= 1e-6 * self.mean.abs()
            self.scale = torch.where(
                constant | (deviation == 0),
                torch.zeros_like(deviation),
                1 / deviation.clamp(min=1e-30),
            )

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.mean) * self.scale


def load_features(
    features: Features, start: int, stop: int, rows: np.ndarray, device: str, task: str = "task"
) -> Tensor:
    """The vectors of a block of units on the device; refuses NaN and infinity by unit."""
    values = torch.from_numpy(features.block(start, stop, rows)).to(device)
    bad = ~torch.isfinite(values).all(-1)
    if bad.any():
        unit = int(bad.any(1).nonzero()[0, 0])
        raise InputError(
            f"{task}: the vectors of unit {start + unit} are NaN or infinite in {int(bad[unit].sum())} of {len(rows)} "
            "examples; collect them in float32 or check the model's weights."
        )
    return values


def with_ones(values: Tensor) -> Tensor:
    """A last column of ones, whose weight is the bias."""
    return torch.cat([values, torch.ones_like(values[..., :1])], -1)


def gram_matrix(values: Tensor) -> Tensor:
    """`X'X` of each unit [unit, size, size], in float64: in float32 nearly dependent features make
    it indefinite."""
    return torch.stack([one.T @ one for one in (unit.double() for unit in values)])
