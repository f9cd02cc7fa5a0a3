"""Launch the GPU's attention kernels. Imported only where there is a GPU (it needs Triton)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from headwise.models.statistics.kernels import at_offsets, attend, band, column_sums
from headwise.models.statistics.request import WithoutFirst

LOG2E = 1.4426950408889634
COLUMN_MULTIPLE = 16  # columns are padded to a multiple of what a matrix product takes at least
LABELS_AT_ONCE = 4  # labels that one launch compares


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What decides the weights: queries `[example, head, token, d]`, keys (before group
    repetition), and which keys are visible."""

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

    def mask_flags(self) -> dict[str, Any]:
        return {"CAUSAL": self.causal, "WINDOW": self.window, "CAPPED": self.softcap > 0}

    @property
    def ieee(self) -> bool:
        return self.query.dtype == torch.float32


@dataclass(frozen=True, slots=True, eq=False)
class RowStatistics:
    """Statistics of every row, `[example, head, token, ...]` in float32; rows of padding hold zeros
    (`logsumexp`: infinity)."""

    output: Tensor | None
    logsumexp: Tensor
    max_weight: Tensor
    entropy: Tensor
    without_first: WithoutFirst
    mass: Tensor | None  # [..., column]
    equal_label_mass: Tensor | None  # [..., label]
    offset: Tensor | None
    distance: Tensor | None


def column_table(columns: Sequence[Tensor]) -> Tensor | None:
    """Return sets of keys, bool `[example, key]` each, as one table `[example, key, set]`, padded
    to a width that matrix products take."""
    if not columns:
        return None
    n_columns = -(-len(columns) // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    table = columns[0].new_zeros(*columns[0].shape, n_columns, dtype=torch.bfloat16)
    table[..., : len(columns)] = torch.stack(list(columns), dim=-1)
    return table


def row_statistics(
    scores: Scores,
    value: Tensor | None,
    columns: Tensor | None = None,
    labels: tuple[Tensor, Tensor] | None = None,
    distance: bool = False,
) -> RowStatistics:
    """Compute the attention output (if `value` is given) and the statistics of every row.

    Parameters
    ----------
    scores : Scores
        Queries, keys, and which keys are visible.
    value : Tensor, optional
        Values before group repetition; without them no output is computed.
    columns : Tensor, optional
        A `column_table`: compute the mass of each row on every set of keys (0 for padding sets).
    labels : (Tensor, Tensor), optional
        Of queries and of keys, int32 `[example, label, token]`, at most four: compute the mass of
        each row on keys of its own label. Keys without a label have −2, queries −1.
    distance : bool, default False
        Compute the mean offset of a row's keys, and their mean distance.
    """
    query = scores.query
    key = scores.key
    n_examples, n_heads, n_tokens, size = query.shape
    n_columns = 0 if columns is None else columns.shape[-1]
    n_labels = 0 if labels is None else labels[0].shape[1]
    if n_labels > LABELS_AT_ONCE:
        raise ValueError(f"at most {LABELS_AT_ONCE} labels at once")
    new = partial(torch.empty, device=query.device, dtype=torch.float32)
    shape = (n_examples, n_heads, n_tokens)
    output = None
    if value is not None:
        output = torch.empty(*shape, size, device=query.device, dtype=query.dtype)
    logsumexp = new(shape)
    max_weight = new(shape)
    entropy = new(shape)
    without_first = new(3, *shape)
    # A kernel takes a tensor for every argument: unused ones get any tensor that is there.
    mass = new(*shape, n_columns) if n_columns else logsumexp
    equal_label_mass = new(*shape, n_labels) if n_labels else logsumexp
    offset = new(shape) if distance else logsumexp
    distances = new(shape) if distance and not scores.causal else logsumexp
    values = key if value is None else value
    query_labels, key_labels = (query, query) if labels is None else labels
    tile = _tile_sizes(size, scores.ieee)
    attend[(triton.cdiv(n_tokens, tile["BM"]), n_examples * n_heads)](
        query,
        key,
        values,
        query if columns is None else columns,
        query_labels,
        key_labels,
        logsumexp if scores.sinks is None else scores.sinks.float(),
        scores.lengths,
        query if output is None else output,
        logsumexp,
        max_weight,
        entropy,
        without_first,
        mass,
        equal_label_mass,
        offset,
        distances,
        *scores.strides(),
        *values.stride()[:3],
        n_tokens,
        key.shape[2],
        scores.scaling * LOG2E,
        scores.softcap,
        **scores.shape_flags(),
        MASSES=n_columns > 0,
        KINDS=max(n_columns, COLUMN_MULTIPLE),
        LABELS=n_labels,
        **scores.mask_flags(),
        SINKS=scores.sinks is not None,
        DISTANCE=distance,
        OUTPUT=value is not None,
        IEEE=scores.ieee,
        **tile,
    )
    if distance and scores.causal:
        distances = -offset  # all visible keys are at or before the query
    return RowStatistics(
        output=output,
        logsumexp=logsumexp,
        max_weight=max_weight,
        entropy=entropy,
        without_first=WithoutFirst(*without_first.unbind()),
        mass=mass if n_columns else None,
        equal_label_mass=equal_label_mass if n_labels else None,
        offset=offset if distance else None,
        distance=distances if distance else None,
    )


def _tile_sizes(size: int, ieee: bool) -> dict[str, int]:
    """Found by trial on an H200."""
    num_stages = 2 if ieee or size > 128 else 3
    return {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": num_stages}


def _square_tile(scores: Scores) -> int:
    return 32 if scores.ieee or scores.query.shape[-1] > 128 else 64


def diagonal_sums(scores: Scores, logsumexp: Tensor, max_offset: int) -> Tensor:
    """Return the sums of the weights along diagonals, `[example, head, 2·max_offset + 1]`."""
    n_examples, n_heads, n_tokens, _ = scores.query.shape
    sums = torch.zeros(
        n_examples, n_heads, 2 * max_offset + 1, device=logsumexp.device, dtype=torch.float32
    )
    tile = _square_tile(scores)
    n_blocks = triton.cdiv(n_tokens, tile)
    max_distance = min(triton.cdiv(max_offset, tile), n_blocks - 1)  # in blocks
    n_distances = max_distance + 1 if scores.causal else 2 * max_distance + 1
    blocks_at_once = max(1, min(n_blocks, 32))
    band[(n_distances, triton.cdiv(n_blocks, blocks_at_once), n_examples * n_heads)](
        scores.query,
        scores.key,
        logsumexp,
        scores.lengths,
        sums,
        *scores.strides(),
        n_tokens,
        scores.scaling * LOG2E,
        scores.softcap,
        max_offset,
        -max_distance,
        blocks_at_once,
        **scores.shape_flags(),
        **scores.mask_flags(),
        IEEE=scores.ieee,
        T=tile,
        num_warps=4,
        num_stages=2,
    )
    return sums


def weights_at_offsets(scores: Scores, logsumexp: Tensor, offsets: Tensor) -> Tensor:
    """Return the weights `A[i, i + o]` at these offsets (int32), `[example, head, token, offset]`;
    0 where there is no key."""
    n_examples, n_heads, n_tokens, _ = scores.query.shape
    weights = torch.empty(
        n_examples, n_heads, n_tokens, len(offsets), device=logsumexp.device, dtype=torch.float32
    )
    at_offsets[(triton.cdiv(n_tokens, 64), n_examples * n_heads)](
        scores.query,
        scores.key,
        logsumexp,
        scores.lengths,
        offsets,
        weights,
        *scores.strides(),
        n_tokens,
        scores.scaling * LOG2E,
        scores.softcap,
        **scores.shape_flags(),
        COUNT=len(offsets),
        **scores.mask_flags(),
        BM=64,
        num_warps=4,
    )
    return weights


def received(scores: Scores, logsumexp: Tensor) -> Tensor:
    """Return the attention each key receives from all rows, `[example, head, key]`."""
    n_examples, n_heads, n_tokens, _ = scores.query.shape
    sums = torch.empty(n_examples, n_heads, n_tokens, device=logsumexp.device, dtype=torch.float32)
    tile = _square_tile(scores)
    column_sums[(triton.cdiv(n_tokens, tile), n_examples * n_heads)](
        scores.query,
        scores.key,
        logsumexp,
        scores.lengths,
        sums,
        *scores.strides(),
        n_tokens,
        scores.scaling * LOG2E,
        scores.softcap,
        **scores.shape_flags(),
        **scores.mask_flags(),
        IEEE=scores.ieee,
        BM=tile,
        BN=tile,
        num_warps=4,
        num_stages=2,
    )
    return sums
