"""Attention on a CPU: weights are formed a few heads at a time and reduced while in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.models.masks import rows_of
from headwise.models.statistics.reducer import ALL, BLOCK_WEIGHTS, StatsReducer, WeightBlock
from headwise.models.tap import Call, differentiated


def can_attend_on_cpu(call: Call) -> bool:
    """Return whether `CpuAttention` can compute a call.

    It needs a plain call on a CPU without learned sinks, outside of any differentiation."""
    is_plain = type(call) is Call and call.sinks is None
    return is_plain and call.query.device.type == "cpu" and not differentiated()


@dataclass(slots=True, eq=False)
class ScratchBuffer:
    """Memory for the scores and weights of one block, reused for all: it stays in the cache."""

    _flat: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def get(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return two tensors of this shape, with any content."""
        size = torch.Size(shape).numel()
        if dtype not in self._flat or self._flat[dtype].shape[1] < size:
            self._flat[dtype] = torch.empty(2, size, dtype=dtype)
        scores, weights = self._flat[dtype][:, :size]
        return scores.view(shape), weights.view(shape)


@dataclass(frozen=True, slots=True, eq=False)
class CpuAttention:
    """The attention of one layer.

    Attributes
    ----------
    call
        What the model computes.
    key, value
        Keys and values with groups repeated.
    output
        Receives the heads' outputs, `[example, row, head, d]`.
    lengths, padded
        With `padded`, rows from `lengths[example]` on are padding and get no weights.
    scratch
        Memory for the blocks.
    """

    call: Call
    key: Tensor
    value: Tensor
    output: Tensor
    lengths: Sequence[int]
    padded: bool
    scratch: ScratchBuffer

    def attend(
        self, start: int, stop: int, weights_out: Tensor | None, reducer: StatsReducer | None
    ) -> None:
        """Compute the rows `start..stop`.

        Parameters
        ----------
        start, stop : int
            The rows.
        weights_out : Tensor, optional
            Receives the weights, `[example, head, row, key]`.
        reducer : StatsReducer, optional
            Gets each block of weights.
        """
        call = self.call
        n_examples, n_heads, _, n_keys = call.sizes[:4]
        dtype = torch.promote_types(call.query.dtype, torch.float32)
        bias = rows_of(call.bias, start, stop, n_keys)
        mask = call.rows_mask(start, stop)
        if mask is not None:
            # The reducer multiplies weights with scores: 0 · −∞ would be no number.
            mask = mask.to(dtype).clamp(min=torch.finfo(dtype).min)
        can_split_rows = weights_out is None
        blocks = _cache_blocks(n_examples, n_heads, slice(start, stop), n_keys, can_split_rows)
        for examples, heads, rows in blocks:
            query = call.query[examples, heads, rows].to(dtype)
            key = self.key[examples, heads].to(dtype)
            shape = (*query.shape[:3], n_keys)
            scores, weights = self.scratch.get(shape, dtype)
            if weights_out is not None:
                weights = weights_out[examples, heads]
            flat_scores = scores.flatten(0, 1)
            torch.baddbmm(
                flat_scores,
                query.flatten(0, 1),
                key.flatten(0, 1).transpose(1, 2),
                beta=0,
                alpha=call.scaling,
                out=flat_scores,
            )
            if call.softcap is not None:
                scores.div_(call.softcap).tanh_().mul_(call.softcap)
            rows_in_mask = slice(rows.start - start, rows.stop - start)
            for added in (bias, mask):
                if added is not None:
                    scores.add_(_select_block(added, examples, heads, rows_in_mask))
            torch.softmax(scores, -1, out=weights)
            value = self.value[examples, heads].flatten(0, 1)
            output = torch.bmm(weights.flatten(0, 1).to(value.dtype), value)
            self.output[examples, rows, heads] = output.view(*shape[:3], -1).transpose(1, 2)
            if self.padded:
                for example, length in enumerate(self.lengths[examples]):
                    if length < rows.stop:
                        weights[example, :, max(0, length - rows.start) :] = 0
            if reducer is not None:
                reducer.add(WeightBlock(weights, rows, examples, heads, scores=scores))


def _cache_blocks(
    n_examples: int, n_heads: int, rows: slice, n_keys: int, can_split_rows: bool
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield blocks (examples, heads, rows) that fit the cache: several examples, some heads of one
    example, or (if rows may be split) some rows of one head."""
    n_rows = rows.stop - rows.start
    map_size = max(1, n_rows * n_keys)
    examples_at_once = BLOCK_WEIGHTS // (map_size * n_heads)
    if examples_at_once:
        for first in range(0, n_examples, examples_at_once):
            yield slice(first, min(first + examples_at_once, n_examples)), ALL, rows
        return
    heads_at_once = BLOCK_WEIGHTS // map_size
    rows_at_once = n_rows
    if can_split_rows and not heads_at_once:
        rows_at_once = max(1, BLOCK_WEIGHTS // n_keys)
    heads_at_once = max(1, heads_at_once)
    for example in range(n_examples):
        for head in range(0, n_heads, heads_at_once):
            heads = slice(head, min(head + heads_at_once, n_heads))
            for row in range(rows.start, rows.stop, rows_at_once):
                row_stop = min(row + rows_at_once, rows.stop)
                yield slice(example, example + 1), heads, slice(row, row_stop)


def _select_block(added: Tensor, examples: slice, heads: slice, rows: slice) -> Tensor:
    """Select the part of a mask or bias that belongs to a block. A dim of size 1 serves all."""
    for dim, where in enumerate((examples, heads, rows)):
        if added.shape[dim] > 1:
            added = added[(ALL,) * dim + (where,)]
    return added
