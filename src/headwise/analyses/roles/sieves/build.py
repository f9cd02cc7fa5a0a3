"""From sieves and a batch to boolean matrices, checked for shape and kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.roles.sieves.registry import Sieve
from headwise.analyses.roles.sieves.tokens import Tokens, both_sides
from headwise.core.errors import HeadwiseError, ParameterError
from headwise.text.encode import Batch, Encoded


def sieve_matrix(sieve: Sieve, row: Encoded, start: int = 0, stop: int | None = None) -> np.ndarray:
    """The matrix of a sieve on one input: bool `[rows, tokens]`, for the looking tokens `start..stop` (all if None)."""
    return _checked(sieve, *both_sides(row, start, stop))


def _checked(sieve: Sieve, i: Tokens, j: Tokens) -> np.ndarray:
    try:
        found = np.asarray(sieve.function(i, j))
    except HeadwiseError:
        raise
    except Exception as error:  # a user's function may fail in any way
        raise ParameterError(
            f"The sieve '{sieve.name}' fails on {i.row.example.where} ({type(error).__name__}: {error}); "
            "mend its function."
        ) from error
    shape = (i.position.size, j.position.size)
    if found.shape not in (shape, (1, shape[1]), (shape[0], 1)):  # a single row or column stands for all
        raise ParameterError(
            f"The sieve '{sieve.name}' gives a matrix of shape {found.shape} for {shape[0]} looking tokens and "
            f"{shape[1]} tokens; it must be {shape}."
        )
    if found.dtype != bool:
        raise ParameterError(
            f"The sieve '{sieve.name}' gives {found.dtype}; it must give True or False for each pair of tokens."
        )
    return np.broadcast_to(found, shape)


def sieve_matrices(sieves: Sequence[Sieve], batch: Batch, start: int = 0, stop: int | None = None) -> Tensor:
    """All sieves on all inputs of a batch: bool `[example, sieve, row, token]` on its device; False on padding."""
    width = batch.ids.shape[1]
    stop = width if stop is None else stop
    out = np.zeros((len(batch), len(sieves), stop - start, width), dtype=bool)
    for number, row in enumerate(batch.rows):
        i, j = both_sides(row, start, stop)
        for place, sieve in enumerate(sieves if i.position.size else ()):
            out[number, place, : i.position.size, : len(row)] = _checked(sieve, i, j)
    return torch.from_numpy(out).to(batch.device)
