"""The mask function beside the tap: eager masks for short inputs, masks built by blocks of rows for long ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers.masking_utils import eager_mask


class RowMask(Tensor):
    """An additive mask `[example, 1, query, key]` that is only ever built for a block of query rows.

    It has the shape, type and device of the whole mask but no storage. Model code that computes with it (few
    architectures do) gets the whole mask, built for that one operation: the numbers never differ, only the memory.
    """

    build: Callable[[int, int], Tensor]

    @staticmethod
    def __new__(
        cls, build: Callable[[int, int], Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> RowMask:
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        self.build = build
        return self

    def rows(self, start: int, stop: int) -> Tensor:
        """The rows `start..stop` of the mask, as a plain tensor."""
        return self.build(start, stop)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"RowMask({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        def whole(x: Any) -> Any:
            return x.rows(0, x.shape[-2]) if isinstance(x, RowMask) else x

        return func(*tree_map(whole, args), **tree_map(whole, kwargs or {}))


def row_mask(**arguments: Any) -> Tensor | None:
    """A `RowMask` from the arguments transformers hands to a mask function; None where there is nothing to mask."""
    attention_mask = arguments.get("attention_mask")
    if (
        arguments.pop("allow_is_bidirectional_skip", False)
        and arguments.get("local_size") is None
        and (attention_mask is None or bool(attention_mask.all()))
    ):
        return None
    length, offset = arguments.pop("q_length"), arguments.pop("q_offset", 0)

    def build(start: int, stop: int) -> Tensor:
        return eager_mask(q_length=stop - start, q_offset=offset + start, **arguments)

    shape = (arguments["batch_size"], 1, length, arguments["kv_length"])
    return RowMask(build, shape, arguments.get("dtype", torch.float32), torch.device(arguments.get("device", "cpu")))


def rows_of(mask: Tensor | None, start: int, stop: int, keys: int) -> Tensor | None:
    """A block of rows of a mask or bias `[1 or example, 1 or head, 1 or query, key]`, cut to the keys there are (static
    caches are longer)."""
    if mask is None:
        return None
    if isinstance(mask, RowMask):
        return mask.rows(start, stop)[..., :keys]
    block = mask if mask.shape[-2] == 1 else mask[..., start:stop, :]
    return block if block.shape[-1] in (1, keys) else block[..., :keys]


def is_open(mask: Tensor) -> Tensor:
    """Which entries of a mask let a key through; additive masks hold the lowest number of their type (or -inf) where
    they do not."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
