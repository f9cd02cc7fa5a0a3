"""Attention and its statistics in one pass on a GPU, with Triton: no n × n matrix, statistics in float32.

Only imported where there is a GPU. Scores are kept in base 2 inside, since `exp2` is what the hardware has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
SPLIT = 16  # columns are padded to what a matrix product takes at least


@triton.jit
def _tile(
    q, k, rows, cols, length, scale, cap,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, IEEE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Scores of a tile in base 2. A hidden key has −1e30, so that its weight is 0 and weight · score is 0 too."""
    s = tl.dot(q, k, input_precision="ieee" if IEEE else "tf32") * scale
    if CAPPED:  # cap · tanh(s / cap), of scores in base e; tanh by exp2 of a number that is never positive
        x = s * 0.6931471805599453 / cap
        e = tl.exp2(-2.8853900817779268 * tl.abs(x))
        t = (1 - e) / (1 + e)
        s = tl.where(x < 0, -t, t) * cap * 1.4426950408889634
    if MASKED:
        seen = cols[None] < length
        if CAUSAL:
            seen = seen & (cols[None] <= rows[:, None])
        if WINDOW > 0:
            seen = seen & (rows[:, None] - cols[None] < WINDOW)
            if not CAUSAL:
                seen = seen & (cols[None] - rows[:, None] < WINDOW)
        s = tl.where(seen, s, -1e30)
    return s


@triton.jit
def _statistics(
    Q, K, V, C, QL, KL, SINK, LENGTH,
    O, LSE, MAXW, ENT, MASS, SAME, OFFSET, DIST,  # noqa: E741
    sqb, sqh, sqn, skb, skh, skn, svb, svh, svn, n, keys, scale, cap,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    MASSES: tl.constexpr, KINDS: tl.constexpr, LABELS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr, DISTANCE: tl.constexpr,
    OUTPUT: tl.constexpr, IEEE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    # Long rows first: with a causal mask the last blocks have the most to do.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b, h = bh // H, bh % H
    hk = h // (H // HK)
    length = tl.load(LENGTH + b)
    rows = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DP)
    f = tl.arange(0, KINDS)
    real = rows < n
    q = tl.load(Q + b * sqb + h * sqh + rows[:, None] * sqn + d[None], mask=real[:, None] & (d[None] < D), other=0.0)
    m = tl.full([BM], -1e30, tl.float32)
    l = tl.zeros([BM], tl.float32)  # noqa: E741
    es = tl.zeros([BM], tl.float32)
    away = tl.zeros([BM], tl.float32)  # Σ p · (key − row), and the same of its size
    far = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DP], tl.float32)
    mass = tl.zeros([BM, KINDS], tl.float32)
    # One by one: Triton keeps no list of accumulators across a loop.
    same0 = tl.zeros([BM], tl.float32)
    same1 = tl.zeros([BM], tl.float32)
    same2 = tl.zeros([BM], tl.float32)
    same3 = tl.zeros([BM], tl.float32)
    label_q = QL + b * LABELS * n + rows
    if LABELS > 0:
        ql0 = tl.load(label_q, mask=real, other=-1)
    if LABELS > 1:
        ql1 = tl.load(label_q + n, mask=real, other=-1)
    if LABELS > 2:
        ql2 = tl.load(label_q + 2 * n, mask=real, other=-1)
    if LABELS > 3:
        ql3 = tl.load(label_q + 3 * n, mask=real, other=-1)
    # Tiles that every row of the block sees whole need no mask: [low, inner) and [outer, high) are the edges.
    low, high = 0, length
    inner, outer = 0, length // BN * BN
    if CAUSAL:
        high = tl.minimum((block + 1) * BM, length)
        outer = tl.minimum(outer, block * BM // BN * BN)
    if WINDOW > 0:
        low = tl.maximum(block * BM - WINDOW + 1, 0) // BN * BN
        inner = tl.maximum(block * BM + BM - WINDOW + BN - 1, 0) // BN * BN
        if not CAUSAL:
            high = tl.minimum((block + 1) * BM + WINDOW, length)
            outer = tl.minimum(outer, (block * BM + WINDOW) // BN * BN)
    inner = tl.minimum(tl.maximum(inner, low), (high + BN - 1) // BN * BN)
    outer = tl.maximum(outer, inner)
    kbase, vbase = K + b * skb + hk * skh, V + b * svb + hk * svh
    for phase in tl.static_range(3):
        if phase == 0:
            begin, end = low, inner
        elif phase == 1:
            begin, end = inner, outer
        else:
            begin, end = outer, high
        for start in range(begin, end, BN):
            cols = start + tl.arange(0, BN)
            inside = cols < keys
            k = tl.load(kbase + cols[None] * skn + d[:, None], mask=inside[None] & (d[:, None] < D), other=0.0)
            s = _tile(q, k, rows, cols, length, scale, cap, CAUSAL, WINDOW, CAPPED, IEEE, phase != 1)
            m_new = tl.maximum(m, tl.max(s, 1))
            alpha = tl.exp2(m - m_new)
            p = tl.exp2(s - m_new[:, None])
            here = tl.sum(p, 1)
            l = l * alpha + here  # noqa: E741
            es = es * alpha + tl.sum(p * s, 1)
            if OUTPUT:
                v = tl.load(vbase + cols[:, None] * svn + d[None], mask=inside[:, None] & (d[None] < D), other=0.0)
                acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee" if IEEE else "tf32")
            if MASSES:
                # 0 and 1 are exact in bf16, and a weight is the sum of two bf16 numbers to 4e-6 of itself.
                kinds = tl.load(C + (b * keys + cols[:, None]) * KINDS + f[None], mask=inside[:, None], other=0.0)
                upper = p.to(tl.bfloat16)
                lower = (p - upper.to(tl.float32)).to(tl.bfloat16)
                mass = mass * alpha[:, None] + tl.dot(upper, kinds) + tl.dot(lower, kinds)
            if DISTANCE:
                # The place within a tile, and that of the tile for all of it.
                place = tl.sum(p * tl.arange(0, BN)[None].to(tl.float32), 1)
                away = away * alpha + place - (rows - start).to(tl.float32) * here
                if not CAUSAL:
                    far = far * alpha + tl.sum(p * tl.abs(rows[:, None] - cols[None]).to(tl.float32), 1)
            label_k = KL + b * LABELS * keys + cols
            if LABELS > 0:
                kl0 = tl.load(label_k, mask=inside, other=-2)
                same0 = same0 * alpha + tl.sum(tl.where(ql0[:, None] == kl0[None], p, 0.0), 1)
            if LABELS > 1:
                kl1 = tl.load(label_k + keys, mask=inside, other=-2)
                same1 = same1 * alpha + tl.sum(tl.where(ql1[:, None] == kl1[None], p, 0.0), 1)
            if LABELS > 2:
                kl2 = tl.load(label_k + 2 * keys, mask=inside, other=-2)
                same2 = same2 * alpha + tl.sum(tl.where(ql2[:, None] == kl2[None], p, 0.0), 1)
            if LABELS > 3:
                kl3 = tl.load(label_k + 3 * keys, mask=inside, other=-2)
                same3 = same3 * alpha + tl.sum(tl.where(ql3[:, None] == kl3[None], p, 0.0), 1)
            m = m_new
    token = tl.where(l > 0, l, 1.0)  # what the tokens get, without the sink
    total = token
    if SINKS:
        total = token + tl.exp2(tl.load(SINK + h) * 1.4426950408889634 - m)
    shown = real & (rows < length)
    out = bh * n + rows
    if OUTPUT:
        result = (acc / total[:, None]).to(O.dtype.element_ty)
        tl.store(O + (bh * n + rows[:, None]) * D + d[None], result, mask=real[:, None] & (d[None] < D))
    tl.store(LSE + out, tl.where(shown, (m + tl.log2(total)) * 0.6931471805599453, float("inf")), mask=real)
    tl.store(MAXW + out, tl.where(shown, 1 / total, 0.0), mask=real)
    tl.store(ENT + out, tl.where(shown, (m + tl.log2(token) - es / token) * 0.6931471805599453, 0.0), mask=real)
    keep = tl.where(shown, 1 / total, 0.0)
    if MASSES:
        tl.store(MASS + out[:, None] * KINDS + f[None], mass * keep[:, None], mask=real[:, None])
    if DISTANCE:
        tl.store(OFFSET + out, away * keep, mask=real)
        if not CAUSAL:
            tl.store(DIST + out, far * keep, mask=real)
    if LABELS > 0:
        tl.store(SAME + out * LABELS, same0 * keep, mask=real)
    if LABELS > 1:
        tl.store(SAME + out * LABELS + 1, same1 * keep, mask=real)
    if LABELS > 2:
        tl.store(SAME + out * LABELS + 2, same2 * keep, mask=real)
    if LABELS > 3:
        tl.store(SAME + out * LABELS + 3, same3 * keep, mask=real)


@triton.jit
def _band(
    Q, K, LSE, LENGTH, OUT,
    sqb, sqh, sqn, skb, skh, skn, n, scale, cap, reach, first, each,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, IEEE: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Sums of weights along diagonals: tiles equally far from the diagonal hold the same offsets at the same places, so
    they add up as they are, and only their sum is taken apart."""
    apart = first + tl.program_id(0)  # blocks of keys after the block of rows
    part, bh = tl.program_id(1), tl.program_id(2)
    b, h = bh // H, bh % H
    hk = h // (H // HK)
    length = tl.load(LENGTH + b)
    here = tl.arange(0, T)
    d = tl.arange(0, DP)
    total = tl.zeros([T, T], tl.float32)
    for block in range(part * each, (part + 1) * each):
        rows, cols = block * T + here, (block + apart) * T + here
        if (block * T < length) & ((block + apart) * T < length) & (block + apart >= 0):
            q = tl.load(
                Q + b * sqb + h * sqh + rows[:, None] * sqn + d[None],
                mask=(rows[:, None] < n) & (d[None] < D),
                other=0.0,
            )
            k = tl.load(
                K + b * skb + hk * skh + cols[None] * skn + d[:, None],
                mask=(cols[None] < n) & (d[:, None] < D),
                other=0.0,
            )
            s = _tile(q, k, rows, cols, length, scale, cap, CAUSAL, WINDOW, CAPPED, IEEE, True)
            lse = tl.load(LSE + bh * n + rows, mask=rows < n, other=float("inf")) * 1.4426950408889634
            total += tl.exp2(s - lse[:, None])
    offset = apart * T + here[None] - here[:, None]
    near = (offset >= -reach) & (offset <= reach)
    tl.atomic_add(OUT + bh * (2 * reach + 1) + offset + reach, total, mask=near & (total != 0))


@triton.jit
def _offsets(
    Q, K, LSE, LENGTH, WANTED, OUT,
    sqb, sqh, sqn, skb, skh, skn, n, scale, cap,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, COUNT: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Single weights `A[i, i + o]` of every row for a few offsets."""
    block, bh = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    hk = h // (H // HK)
    length = tl.load(LENGTH + b)
    rows = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DP)
    q = tl.load(
        Q + b * sqb + h * sqh + rows[:, None] * sqn + d[None], mask=(rows[:, None] < n) & (d[None] < D), other=0.0
    ).to(tl.float32)
    lse = tl.load(LSE + bh * n + rows, mask=rows < n, other=float("inf"))
    for place in tl.static_range(COUNT):
        offset = tl.load(WANTED + place)
        cols = rows + offset
        seen = (rows < length) & (cols >= 0) & (cols < length)
        if CAUSAL:
            seen = seen & (offset <= 0)
        if WINDOW > 0:
            seen = seen & (tl.abs(offset) < WINDOW)
        k = tl.load(
            K + b * skb + hk * skh + cols[:, None] * skn + d[None], mask=seen[:, None] & (d[None] < D), other=0.0
        )
        s = tl.sum(q * k.to(tl.float32), 1) * scale * 0.6931471805599453
        if CAPPED:
            x = s / cap
            e = tl.exp2(-2.8853900817779268 * tl.abs(x))
            t = (1 - e) / (1 + e)
            s = tl.where(x < 0, -t, t) * cap
        weight = tl.where(seen, tl.exp2((s - lse) * 1.4426950408889634), 0.0)
        tl.store(OUT + (bh * n + rows) * COUNT + place, weight, mask=rows < n)


# --- calling them -----------------------------------------------------------------------------------------------------

AT_ONCE = 4  # labels that one launch compares


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What decides the weights: query `[example, head, token, d]`, key (before group repetition), and who sees whom."""

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
    """Of every row, `[example, head, token, ...]` in float32; rows of padding hold zeros (`logsumexp`: infinity)."""

    output: Tensor | None
    logsumexp: Tensor
    largest: Tensor
    entropy: Tensor
    mass: Tensor | None  # [..., column]
    same: Tensor | None  # [..., label]
    offset: Tensor | None
    distance: Tensor | None


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
        Bool `[example, key, column]`: the mass of each row on every set of keys.
    labels : (Tensor, Tensor), optional
        Of queries and of keys, integers `[example, label, token]`, at most four kinds: the mass of each row on keys of
        its own label; −1 is equal to nothing.
    distance : bool, default False
        The mean offset of a row's keys, and their mean distance.
    """
    query, key = scores.query, scores.key
    batch, heads, n, size = query.shape
    keys, device = key.shape[2], query.device
    kinds = 0 if columns is None else -(-columns.shape[-1] // SPLIT) * SPLIT
    table = query.new_zeros(batch, keys, max(kinds, SPLIT), dtype=torch.bfloat16) if columns is not None else query
    if columns is not None:
        table[..., : columns.shape[-1]] = columns
    asked = (query, query) if labels is None else tuple(side.to(torch.int32).contiguous() for side in labels)
    count = 0 if labels is None else labels[0].shape[1]
    if count > AT_ONCE:
        raise ValueError(f"at most {AT_ONCE} labels at once")
    new = partial(torch.empty, device=device, dtype=torch.float32)
    shape = (batch, heads, n)
    output = None if value is None else torch.empty(*shape, size, device=device, dtype=query.dtype)
    lse, largest, entropy = new(shape), new(shape), new(shape)
    mass = new(*shape, kinds) if kinds else lse
    same = new(*shape, count) if count else lse
    away = new(shape) if distance else lse
    far = new(shape) if distance and not scores.causal else lse
    values = key if value is None else value
    tile = _tile_sizes(size, scores.ieee)
    _statistics[(triton.cdiv(n, tile["BM"]), batch * heads)](
        query, key, values, table, *asked, lse if scores.sinks is None else scores.sinks.float(), scores.lengths,
        query if output is None else output, lse, largest, entropy, mass, same, away, far,
        *scores.strides(), *values.stride()[:3], n, keys, scores.scaling * LOG2E, scores.softcap,
        **scores.shape_flags(), MASSES=kinds > 0, KINDS=max(kinds, SPLIT), LABELS=count, **scores.sight_flags(),
        SINKS=scores.sinks is not None, DISTANCE=distance, OUTPUT=value is not None, IEEE=scores.ieee, **tile,
    )  # fmt: skip
    masses = None if columns is None else mass[..., : columns.shape[-1]]
    moved = (away, -away if scores.causal else far) if distance else (None, None)
    return Statistics(output, lse, largest, entropy, masses, same if count else None, *moved)


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
    _band[(apart, triton.cdiv(blocks, each), batch * heads)](
        scores.query, scores.key, lse, scores.lengths, out, *scores.strides(), n, scores.scaling * LOG2E,
        scores.softcap, reach, -furthest, each, **scores.shape_flags(), **scores.sight_flags(), IEEE=scores.ieee,
        T=tile, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def weights_at(scores: Scores, lse: Tensor, offsets: Sequence[int]) -> Tensor:
    """The weights `A[i, i + o]`, `[example, head, token, offset]`; 0 where there is no such key."""
    batch, heads, n, _ = scores.query.shape
    wanted = torch.tensor(list(offsets), device=lse.device, dtype=torch.int32)
    out = torch.empty(batch, heads, n, len(wanted), device=lse.device, dtype=torch.float32)
    _offsets[(triton.cdiv(n, 64), batch * heads)](
        scores.query, scores.key, lse, scores.lengths, wanted, out, *scores.strides(), n, scores.scaling * LOG2E,
        scores.softcap, **scores.shape_flags(), COUNT=len(wanted), **scores.sight_flags(), BM=64, num_warps=4,
    )  # fmt: skip
    return out
