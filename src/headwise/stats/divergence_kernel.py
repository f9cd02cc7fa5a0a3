"""Sums of `m log2 m` over the middles of all pairs of heads, with Triton. Only imported where there
is a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # heads of one side of a tile of pairs
PARTS = 16  # columns are dealt to so many programs, each of which adds up in float32


@triton.jit
def _products(
    X, FIRST, SECOND, OUT, columns, heads, each,
    T: tl.constexpr,
):  # fmt: skip
    """`OUT[part, i, j] = Σ m log2 m` with `m = x_i + x_j`, over the columns of a part, for one tile
    of pairs."""
    tile, part = tl.program_id(0), tl.program_id(1)
    i = tl.load(FIRST + tile) * T + tl.arange(0, T)
    j = tl.load(SECOND + tile) * T + tl.arange(0, T)
    total = tl.zeros([T, T], tl.float32)
    begin = part * each
    end = tl.minimum(begin + each, columns)
    for column in range(begin, end):
        base = X + tl.cast(column, tl.int64) * heads
        one = tl.load(base + i, mask=i < heads, other=0.5)
        other = tl.load(base + j, mask=j < heads, other=0.5)
        m = one[:, None] + other[None]
        # The hardware's own logarithm: right to 2^-22, several times as fast as the library's.
        log = tl.inline_asm_elementwise(
            "lg2.approx.f32 $0, $1;", "=f,f", [m], dtype=tl.float32, is_pure=True, pack=1
        )
        total += m * log
    place = part.to(tl.int64) * heads * heads + i[:, None].to(tl.int64) * heads + j[None]
    tl.store(OUT + place, total, mask=(i[:, None] < heads) & (j[None] < heads))


def pair_products(half: Tensor) -> Tensor:
    """`Σ m log2 m` over columns, float64 `[head, head]`, for pairs i ≤ j (others hold anything).

    Parameters
    ----------
    half : Tensor
        Half of the weights, `[column, head]`, contiguous, positive.
    """
    columns, heads = half.shape
    tiles = triton.cdiv(heads, TILE)
    first, second = torch.triu_indices(tiles, tiles, device=half.device, dtype=torch.int32)
    parts = max(1, min(PARTS, triton.cdiv(columns, 256)))
    out = torch.zeros(parts, heads, heads, dtype=torch.float32, device=half.device)
    _products[(len(first), parts)](
        half,
        first,
        second,
        out,
        columns,
        heads,
        triton.cdiv(max(columns, 1), parts),
        T=TILE,
        num_warps=4,
    )
    # Part after part in float64: the same sum at every run.
    return out.sum(0, dtype=torch.float64)
