"""Attention on a processor: weights are formed a few heads at a time, and everything that is wanted
of them is taken while they are in its cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.models.masks import rows_of
from headwise.models.statistics.reducer import ALL, AT_ONCE, StatsReducer, WeightBlock
from headwise.models.tap import Call, differentiated


def serves(call: Call) -> bool:
    """Whether the weights of a call are formed here: on a processor, for nobody who needs their
    gradients, and without learned sinks."""
    plain = type(call) is Call and call.sinks is None
    return plain and call.query.device.type == "cpu" and not differentiated()


@dataclass(frozen=True, slots=True, eq=False)
class CpuAttention:
    """One layer's attention.

    `key` and `value` have groups repeated; `output[example, row, head, d]` is where the outputs go;
    rows from `lengths[example]` on are padding where `padded` is set, and count for nothing."""

    call: Call
    key: Tensor
    value: Tensor
    output: Tensor
    lengths: Sequence[int]
    padded: bool
    room: ScratchBuffer

    def rows(
        self, start: int, stop: int, whole: Tensor | None, gathered: StatsReducer | None
    ) -> None:
        """Attend from these rows; their weights stay in `whole`, where it is given, and are reduced
        by `gathered`."""
        call, key = self.call, self.key
        examples, heads, _, keys = call.sizes[:4]
        exact = torch.promote_types(call.query.dtype, torch.float32)
        mask = call.rows_mask(start, stop)
        if mask is not None:
            mask = mask.to(exact).clamp(min=torch.finfo(exact).min)  # 0 · −∞ would be no number
        bias = rows_of(call.bias, start, stop, keys)
        for here in _blocks(examples, heads, slice(start, stop), keys, split=whole is None):
            own, many, rows = here
            within = slice(rows.start - start, rows.stop - start)
            query = call.query[own, many, rows].to(exact)
            shape = (*query.shape[:3], keys)
            scores, weights = self.room.take(shape, exact)
            if whole is not None:
                weights = whole[own, many]
            folded = scores.flatten(0, 1)
            sides = query.flatten(0, 1), key[own, many].to(exact).flatten(0, 1).transpose(1, 2)
            torch.baddbmm(folded, *sides, beta=0, alpha=call.scaling, out=folded)
            if call.softcap is not None:
                scores.div_(call.softcap).tanh_().mul_(call.softcap)
            for added in (bias, mask):
                if added is not None:
                    scores.add_(_part(added, own, many, within))
            torch.softmax(scores, -1, out=weights)
            value = self.value[own, many].flatten(0, 1)
            output = torch.bmm(weights.flatten(0, 1).to(value.dtype), value)
            self.output[own, rows, many] = output.view(*shape[:3], -1).transpose(1, 2)
            if self.padded:
                for place, length in enumerate(self.lengths[own]):
                    if length < rows.stop:
                        weights[place, :, max(0, length - rows.start) :] = 0
            if gathered is not None:
                gathered.add(WeightBlock(weights, rows, own, many, scores=scores))


class ScratchBuffer:
    """Memory for the scores and the weights of one block, used again and again: it stays in the
    cache."""

    def __init__(self) -> None:
        self._flat: dict[torch.dtype, Tensor] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        size = torch.Size(shape).numel()
        if dtype not in self._flat or self._flat[dtype].shape[1] < size:
            self._flat[dtype] = torch.empty(2, size, dtype=dtype)
        scores, weights = self._flat[dtype][:, :size]
        return scores.view(shape), weights.view(shape)


def _blocks(
    examples: int, heads: int, rows: slice, keys: int, *, split: bool
) -> Iterator[tuple[slice, slice, slice]]:
    """Pieces that fit the cache: several examples, or some heads of one, or (with `split`) some
    rows of one head."""
    height = rows.stop - rows.start
    of_head = max(1, height * keys)
    several, many = AT_ONCE // (of_head * heads), AT_ONCE // of_head
    if several:
        for first in range(0, examples, several):
            yield slice(first, min(first + several, examples)), ALL, rows
        return
    tall = max(1, AT_ONCE // keys) if split and not many else height
    for example in range(examples):
        for head in range(0, heads, max(1, many)):
            for row in range(rows.start, rows.stop, tall):
                stop = min(row + tall, rows.stop)
                yield (
                    slice(example, example + 1),
                    slice(head, min(head + max(1, many), heads)),
                    slice(row, stop),
                )


def _part(added: Tensor, examples: slice, heads: slice, rows: slice) -> Tensor:
    """What of a mask or bias belongs to a block: it may have one example, head or row for all."""
    for dim, where in enumerate((examples, heads, rows)):
        if added.shape[dim] > 1:
            added = added[(ALL,) * dim + (where,)]
    return added
