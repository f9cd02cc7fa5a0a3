"""The mask function beside the tap: eager masks for short inputs, masks built by blocks of rows for
long ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils._pytree import tree_map


@dataclass(frozen=True, slots=True)
class Sight:
    """A mask in two numbers: whether later keys are hidden, and from which distance on keys are (0:
    none)."""

    causal: bool
    window: int = 0


class RowMask(Tensor):
    """An additive mask `[example, 1, query, key]` that is only ever built for a block of query
    rows.

    It has the shape, type and device of the whole mask but no storage. Model code that computes
    with it (few architectures do) gets the whole mask, built for that one operation: the numbers
    never differ, only the memory."""

    build: Callable[[int, int], Tensor]
    sight: Sight | None  # where the mask, padding on the right apart, is no more than that

    @staticmethod
    def __new__(
        cls,
        build: Callable[[int, int], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> RowMask:
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        self.build, self.sight = build, None
        return self

    def rows(self, start: int, stop: int) -> Tensor:
        """The rows `start..stop` of the mask, as a plain tensor."""
        return self.build(start, stop)

    def moved(self, device: torch.device) -> RowMask:
        """The same mask for a layer on another device: its rows go there when they are built."""
        build = self.build
        made = RowMask(
            lambda start, stop: build(start, stop).to(device), tuple(self.shape), self.dtype, device
        )
        made.sight = self.sight
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"RowMask({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") in (
            None,
            args[0].dtype,
        ):
            return args[0].moved(torch.device(kwargs.get("device") or args[0].device))

        def whole(x: Any) -> Any:
            return x.rows(0, x.shape[-2]) if isinstance(x, RowMask) else x

        return func(*tree_map(whole, args), **tree_map(whole, kwargs or {}))


def row_mask(**arguments: Any) -> Tensor | None:
    """A `RowMask` from the arguments transformers hands to a mask function; None where there is
    nothing to mask."""
    attention_mask = arguments.get("attention_mask")
    if (
        arguments.pop("allow_is_bidirectional_skip", False)
        and arguments.get("local_size") is None
        and (attention_mask is None or bool(attention_mask.all()))
    ):
        return None
    length, offset = arguments.pop("q_length"), arguments.pop("q_offset", 0)

    def build(start: int, stop: int) -> Tensor:
        rows: Tensor = transformers.masking_utils.eager_mask(
            q_length=stop - start, q_offset=offset + start, **arguments
        )
        return rows

    shape = (arguments["batch_size"], 1, length, arguments["kv_length"])
    made = RowMask(
        build,
        shape,
        arguments.get("dtype", torch.float32),
        torch.device(arguments.get("device", "cpu")),
    )
    if length == arguments["kv_length"] and offset == 0:
        made.sight = _sight(made, attention_mask)
    return made


def _sight(mask: RowMask, attention_mask: Tensor | None) -> Sight | None:
    """What a mask comes to, believed only if some rows of it, built as the model would have them,
    are just that."""
    n = mask.shape[-1]  # `built` is [example, row, key]
    rows = sorted(
        {*range(min(3, n)), *(n * part // 7 for part in range(1, 7)), max(0, n - 2), n - 1}
    )
    blocks = [
        (0, min(3, n)),
        *((row, row + 1) for row in rows if 2 < row < n - 2),
        (max(3, n - 2), n),
    ]
    built = torch.cat(
        [is_open(mask.rows(*block)[:, 0]) for block in blocks if block[0] < block[1]], dim=1
    )
    place = torch.arange(n, device=built.device)
    row = torch.tensor(rows, device=built.device)
    lengths = (
        torch.full((len(built),), n, device=built.device)
        if attention_mask is None
        else attention_mask.sum(-1).to(built.device)
    )
    inside = place < lengths[:, None]
    if attention_mask is not None and not torch.equal(
        inside, attention_mask.to(built.device).bool()
    ):
        return None
    counted = (row < lengths[:, None])[..., None]  # rows of padding do not matter
    apart = row[:, None] - place
    first = built.int().argmax(
        -1
    )  # the first key that is seen: where it is not key 0, it tells the window
    windows = torch.where(counted[..., 0] & (first > 0), row - first + 1, 0).max().item()
    for causal in (True, False):
        for window in {0, int(windows)}:
            seen = inside[:, None] & (apart >= 0 if causal else apart == apart)
            if window:
                seen = seen & (apart.abs() < window)
            if not ((seen != built) & counted).any():
                return Sight(causal, window)
    return None


def rows_of(mask: Tensor | None, start: int, stop: int, keys: int) -> Tensor | None:
    """A block of rows of a mask or bias `[1 or example, 1 or head, 1 or query, key]`, cut to the
    keys there are (static caches are longer)."""
    if mask is None:
        return None
    if isinstance(mask, RowMask):
        return mask.rows(start, stop)[..., :keys]
    block = mask if mask.shape[-2] == 1 else mask[..., start:stop, :]
    return block if block.shape[-1] in (1, keys) else block[..., :keys]


def is_open(mask: Tensor) -> Tensor:
    """Which entries of a mask let a key through; additive masks hold the lowest number of their
    type (or -inf) where they do not."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
