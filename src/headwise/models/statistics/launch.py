"""Calling the GPU's attention kernels: what they get, what they give. Only imported where there is
a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from headwise.models.statistics.kernels import at_offsets, attend, band, column_sums
from headwise.models.statistics.request import WithoutSink

LOG2E = 1.4426950408889634
SPLIT = 16  # columns are padded to what a matrix product takes at least
AT_ONCE = 4  # labels that one launch compares


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What decides the weights: query `[example, head, token, d]`, key (before group repetition),
    and who sees whom."""

    query: Tensor
    key: Tensor
    lengths: Tensor  # int32 [example]: tokens from there on are padding
    scaling: float
    causal: bool = False
    window: int = 0  # keys at this distance and further are hidden; 0: none
    softcap: float = 0.0
    sinks: Tensor | None = None  # [head]

    def strides(self) -> list[int]:
        return [*self.query.stride()[:3], *self.key.stride()[:3]]

    def shape_flags(self) -> dict[str, Any]:
        size = self.query.shape[-1]
        return {
            "H": self.query.shape[1],
            "HK": self.key.shape[1],
            "D": size,
            "DP": max(16, triton.next_power_of_2(size)),
        }

    def sight_flags(self) -> dict[str, Any]:
        return {"CAUSAL": self.causal, "WINDOW": self.window, "CAPPED": self.softcap > 0}

    @property
    def ieee(self) -> bool:
        return self.query.dtype == torch.float32


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Of every row, `[example, head, token, ...]` in float32; rows of padding hold zeros
    (`logsumexp`: infinity)."""

    output: Tensor | None
    logsumexp: Tensor
    largest: Tensor
    entropy: Tensor
    rest: WithoutSink
    mass: Tensor | None  # [..., column]
    same: Tensor | None  # [..., label]
    offset: Tensor | None
    distance: Tensor | None


def column_table(columns: Sequence[Tensor]) -> Tensor | None:
    """Sets of keys, bool `[example, key]` each, as one table of a width that matrix products
    take."""
    if not columns:
        return None
    kinds = -(-len(columns) // SPLIT) * SPLIT
    table = columns[0].new_zeros(*columns[0].shape, kinds, dtype=torch.bfloat16)
    table[..., : len(columns)] = torch.stack(list(columns), dim=-1)
    return table


def statistics(
    scores: Scores,
    value: Tensor | None,
    columns: Tensor | None = None,
    labels: tuple[Tensor, Tensor] | None = None,
    distance: bool = False,
) -> Statistics:
    """Attention output (where `value` is given) and statistics of every row.

    Parameters
    ----------
    scores : Scores
        Queries, keys, and who sees whom.
    value : Tensor, optional
        Values before group repetition; without them no output is computed.
    columns : Tensor, optional
        As `column_table` gives them: the mass of each row on every set of keys, and zeros.
    labels : (Tensor, Tensor), optional
        Of queries and of keys, int32 `[example, label, token]`, at most four kinds: the mass of
        each row on keys of its own label; −1 is equal to nothing.
    distance : bool, default False
        The mean offset of a row's keys, and their mean distance.
    """
    query, key = scores.query, scores.key
    batch, heads, n, size = query.shape
    keys, device = key.shape[2], query.device
    kinds = 0 if columns is None else columns.shape[-1]
    table = query if columns is None else columns
    asked = (query, query) if labels is None else labels
    count = 0 if labels is None else labels[0].shape[1]
    if count > AT_ONCE:
        raise ValueError(f"at most {AT_ONCE} labels at once")
    new = partial(torch.empty, device=device, dtype=torch.float32)
    shape = (batch, heads, n)
    output = None if value is None else torch.empty(*shape, size, device=device, dtype=query.dtype)
    lse, largest, entropy, rest = new(shape), new(shape), new(shape), new(3, *shape)
    mass = new(*shape, kinds) if kinds else lse
    same = new(*shape, count) if count else lse
    away = new(shape) if distance else lse
    far = new(shape) if distance and not scores.causal else lse
    values = key if value is None else value
    tile = _tile_sizes(size, scores.ieee)
    attend[(triton.cdiv(n, tile["BM"]), batch * heads)](
        query, key, values, table, *asked, lse if scores.sinks is None else scores.sinks.float(), scores.lengths,
        query if output is None else output, lse, largest, entropy, rest, mass, same, away, far,
        *scores.strides(), *values.stride()[:3], n, keys, scores.scaling * LOG2E, scores.softcap,
        **scores.shape_flags(), MASSES=kinds > 0, KINDS=max(kinds, SPLIT), LABELS=count, **scores.sight_flags(),
        SINKS=scores.sinks is not None, DISTANCE=distance, OUTPUT=value is not None, IEEE=scores.ieee, **tile,
    )  # fmt: skip
    masses = None if columns is None else mass
    moved = (away, -away if scores.causal else far) if distance else (None, None)
    return Statistics(
        output,
        lse,
        largest,
        entropy,
        WithoutSink(*rest.unbind()),
        masses,
        same if count else None,
        *moved,
    )


def _tile_sizes(size: int, ieee: bool) -> dict[str, int]:
    """Found by trial on an H200."""
    small = {"BM": 64, "BN": 32, "num_warps": 4}
    return small | {"num_stages": 2 if ieee or size > 128 else 3}


def band_sums(scores: Scores, lse: Tensor, reach: int) -> Tensor:
    """Sums of the weights along diagonals, `[example, head, 2·reach + 1]`, from −reach to reach."""
    batch, heads, n, _ = scores.query.shape
    out = torch.zeros(batch, heads, 2 * reach + 1, device=lse.device, dtype=torch.float32)
    tile = 32 if scores.ieee or scores.query.shape[-1] > 128 else 64
    furthest = -(-reach // tile)
    blocks = triton.cdiv(n, tile)
    furthest = min(furthest, blocks - 1)
    each = max(1, min(blocks, 32))
    apart = furthest + 1 if scores.causal else 2 * furthest + 1
    band[(apart, triton.cdiv(blocks, each), batch * heads)](
        scores.query, scores.key, lse, scores.lengths, out, *scores.strides(), n, scores.scaling * LOG2E,
        scores.softcap, reach, -furthest, each, **scores.shape_flags(), **scores.sight_flags(), IEEE=scores.ieee,
        T=tile, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def weights_at(scores: Scores, lse: Tensor, wanted: Tensor) -> Tensor:
    """The weights `A[i, i + o]` at these offsets (int32), `[example, head, token, offset]`; 0 where
    there is no key."""
    batch, heads, n, _ = scores.query.shape
    out = torch.empty(batch, heads, n, len(wanted), device=lse.device, dtype=torch.float32)
    at_offsets[(triton.cdiv(n, 64), batch * heads)](
        scores.query, scores.key, lse, scores.lengths, wanted, out, *scores.strides(), n, scores.scaling * LOG2E,
        scores.softcap, **scores.shape_flags(), COUNT=len(wanted), **scores.sight_flags(), BM=64, num_warps=4,
    )  # fmt: skip
    return out


def received(scores: Scores, lse: Tensor) -> Tensor:
    """What each key receives over all rows, `[example, head, key]`."""
    batch, heads, n, _ = scores.query.shape
    out = torch.empty(batch, heads, n, device=lse.device, dtype=torch.float32)
    tile = 32 if scores.ieee or scores.query.shape[-1] > 128 else 64
    column_sums[(triton.cdiv(n, tile), batch * heads)](
        scores.query, scores.key, lse, scores.lengths, out, *scores.strides(), n, scores.scaling * LOG2E,
        scores.softcap, **scores.shape_flags(), **scores.sight_flags(), IEEE=scores.ieee, BM=tile, BN=tile,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out
