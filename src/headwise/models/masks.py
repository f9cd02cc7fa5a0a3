"""Attention masks: whole ones for short inputs, built in blocks of rows for long ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils._pytree import tree_map


@dataclass(frozen=True, slots=True)
class MaskPattern:
    """A mask described by two numbers, padding on the right apart.

    `causal`: later keys are hidden. `window`: keys at this distance and further are hidden (0:
    none are)."""

    causal: bool
    window: int = 0


class RowMask(Tensor):
    """An additive mask `[example, 1, query, key]` that is only built for a block of query rows.

    It has the shape, dtype and device of the whole mask but no storage. Model code that computes
    with it (few architectures do) gets the whole mask, built for that one operation: the numbers
    never differ, only the memory. `pattern` describes the mask if two numbers can, else None."""

    build: Callable[[int, int], Tensor]
    pattern: MaskPattern | None

    @staticmethod
    def __new__(
        cls,
        build: Callable[[int, int], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> RowMask:
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        mask.build = build
        mask.pattern = None
        return mask

    def rows(self, start: int, stop: int) -> Tensor:
        """Build the rows `start..stop` of the mask, as a plain tensor."""
        return self.build(start, stop)

    def on_device(self, device: torch.device) -> RowMask:
        """Return the same mask for a layer on another device."""
        build = self.build

        def build_there(start: int, stop: int) -> Tensor:
            return build(start, stop).to(device)

        mask = RowMask(build_there, tuple(self.shape), self.dtype, device)
        mask.pattern = self.pattern
        return mask

    def __repr__(self) -> str:  # type: ignore[override]
        return f"RowMask({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            keeps_dtype = kwargs.get("dtype") in (None, args[0].dtype)
            if keeps_dtype:
                return args[0].on_device(torch.device(kwargs.get("device") or args[0].device))
        return func(*tree_map(_build_whole, args), **tree_map(_build_whole, kwargs))


def _build_whole(value: Any) -> Any:
    if isinstance(value, RowMask):
        return value.rows(0, value.shape[-2])
    return value


def row_mask(**arguments: Any) -> RowMask | None:
    """Return a `RowMask` from the arguments transformers passes to a mask function; None if nothing
    is masked."""
    attention_mask = arguments.get("attention_mask")
    may_skip = arguments.pop("allow_is_bidirectional_skip", False)
    may_skip = may_skip and arguments.get("local_size") is None
    if may_skip and (attention_mask is None or bool(attention_mask.all())):
        return None
    n_queries = arguments.pop("q_length")
    offset = arguments.pop("q_offset", 0)
    n_keys = arguments["kv_length"]

    def build(start: int, stop: int) -> Tensor:
        rows: Tensor = transformers.masking_utils.eager_mask(
            q_length=stop - start, q_offset=offset + start, **arguments
        )
        return rows

    mask = RowMask(
        build,
        (arguments["batch_size"], 1, n_queries, n_keys),
        arguments.get("dtype", torch.float32),
        torch.device(arguments.get("device", "cpu")),
    )
    if n_queries == n_keys and offset == 0:
        mask.pattern = _find_pattern(mask, attention_mask)
    return mask


def _find_pattern(mask: RowMask, attention_mask: Tensor | None) -> MaskPattern | None:
    """Return the pattern of a mask, or None if it has none.

    A pattern is only trusted if some rows of the mask, built as the model would, follow it."""
    n = mask.shape[-1]
    row_numbers = set(range(min(3, n)))
    row_numbers.update(n * part // 7 for part in range(1, 7))
    row_numbers.update((max(0, n - 2), n - 1))
    # The first three and the last two rows are built as one block each, the others one by one.
    middle = [row for row in sorted(row_numbers) if 2 < row < n - 2]
    blocks = [(0, min(3, n)), *((row, row + 1) for row in middle), (max(3, n - 2), n)]
    built = []
    for start, stop in blocks:
        if start < stop:
            built.append(is_open(mask.rows(start, stop)[:, 0]))
    actual = torch.cat(built, dim=1)  # bool [example, row, key]

    device = actual.device
    row = torch.tensor(sorted(row_numbers), device=device)
    key = torch.arange(n, device=device)
    lengths = torch.full((len(actual),), n, device=device)
    if attention_mask is not None:
        lengths = attention_mask.sum(-1).to(device)
    is_token = key < lengths[:, None]
    if attention_mask is not None:
        padding_is_on_the_right = torch.equal(is_token, attention_mask.to(device).bool())
        if not padding_is_on_the_right:
            return None
    row_counts = (row < lengths[:, None])[..., None]  # rows of padding do not matter
    distance = row[:, None] - key
    # Where the first visible key is not key 0, its distance tells the window.
    first_visible = actual.int().argmax(-1)
    has_window = row_counts[..., 0] & (first_visible > 0)
    largest_window = int(torch.where(has_window, row - first_visible + 1, 0).max().item())
    for causal in (True, False):
        for window in {0, largest_window}:
            expected = is_token[:, None].expand(-1, len(row), -1)
            if causal:
                expected = expected & (distance >= 0)
            if window:
                expected = expected & (distance.abs() < window)
            if not ((expected != actual) & row_counts).any():
                return MaskPattern(causal, window)
    return None


def rows_of(mask: Tensor | None, start: int, stop: int, n_keys: int) -> Tensor | None:
    """Return a block of rows of a mask or bias `[1 or example, 1 or head, 1 or query, key]`, cut to
    the keys there are (static caches are longer)."""
    if mask is None:
        return None
    if isinstance(mask, RowMask):
        return mask.rows(start, stop)[..., :n_keys]
    block = mask if mask.shape[-2] == 1 else mask[..., start:stop, :]
    if block.shape[-1] in (1, n_keys):
        return block
    return block[..., :n_keys]


def is_open(mask: Tensor) -> Tensor:
    """Return which entries of a mask let a key through.

    Additive masks hold the lowest number of their dtype (or −inf) where they do not."""
    if mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2
