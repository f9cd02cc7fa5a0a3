"""Attention and its statistics in one pass on a GPU, with Triton: no n × n matrix, statistics in
float32.

Only imported where there is a GPU. Scores are kept in base 2 inside, since `exp2` is what the
hardware has."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _capped(s, cap, CAPPED: tl.constexpr):
    """cap · tanh(s / cap), of scores in base 2; tanh by exp2 of a number that is never positive."""
    if CAPPED:
        x = s * 0.6931471805599453 / cap
        e = tl.exp2(-2.8853900817779268 * tl.abs(x))
        t = (1 - e) / (1 + e)
        s = tl.where(x < 0, -t, t) * cap * 1.4426950408889634
    return s


@triton.jit
def _tile(
    q, k, rows, cols, length, scale, cap,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, IEEE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Scores of a tile in base 2. A hidden key has −1e30, so that its weight is 0 and weight ·
    score is 0 too."""
    s = _capped(tl.dot(q, k, input_precision="ieee" if IEEE else "tf32") * scale, cap, CAPPED)
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
def attend(
    Q, K, V, C, QL, KL, SINK, LENGTH,
    O, LSE, MAXW, ENT, REST, MASS, SAME, OFFSET, DIST,  # noqa: E741
    sqb, sqh, sqn, skb, skh, skn, svb, svh, svn, n, keys, scale, cap,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    MASSES: tl.constexpr, KINDS: tl.constexpr, LABELS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr, DISTANCE: tl.constexpr,
    OUTPUT: tl.constexpr, IEEE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    # Accumulators, one value per row; p = 2^(score − m), m the largest score so far:
    #   m, top   largest score (base 2) of all keys, and of all keys but the first
    #   l        Σ p over all keys but the first; `others` is the same without zeros, a divisor
    #   es       Σ p · score, at first over all keys but the first, at the end over all keys
    #   whole    Σ p over all keys; `token` is the same without zeros, a divisor
    #   total    `token` plus the learned sink, if the model has one: what weights are divided by
    # Outputs, one value per row:
    #   ENT      entropy in nats over all tokens (without the learned sink, scaled to sum to one):
    #            ln 2 · (m + log2(token) − es / token)
    #   REST     excluding the first token: mass, entropy and largest weight, three arrays in turn;
    #            the latter two of weights scaled to sum to one
    #   LSE      natural log of the sum of exp(score), the learned sink included
    # Long rows first: with a causal mask the last blocks have the most to do.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // H
    h = bh % H
    hk = h // (H // HK)
    length = tl.load(LENGTH + b)
    rows = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DP)
    f = tl.arange(0, KINDS)
    real = rows < n
    q = tl.load(
        Q + b * sqb + h * sqh + rows[:, None] * sqn + d[None],
        mask=real[:, None] & (d[None] < D),
        other=0.0,
    )
    # Key 0, the attention sink of many heads, is kept apart: sums over all other keys lose no
    # precision to it.
    k0 = tl.load(K + b * skb + hk * skh + d, mask=d < D, other=0.0)
    s0 = tl.sum(q.to(tl.float32) * k0.to(tl.float32)[None], 1) * scale
    s0 = _capped(s0, cap, CAPPED)
    if WINDOW > 0:
        s0 = tl.where(rows < WINDOW, s0, -1e30)
    m = s0
    top = tl.full([BM], -1e30, tl.float32)  # the largest score but that of key 0
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
    # Tiles that every row of the block sees whole need no mask: [low, inner) and [outer, high) are
    # the edges.
    low = 0
    high = length
    inner = 0
    outer = length // BN * BN
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
    kbase = K + b * skb + hk * skh
    vbase = V + b * svb + hk * svh
    for phase in tl.static_range(3):
        if phase == 0:
            begin = low
            end = inner
        elif phase == 1:
            begin = inner
            end = outer
        else:
            begin = outer
            end = high
        for start in range(begin, end, BN):
            cols = start + tl.arange(0, BN)
            inside = cols < keys
            k = tl.load(
                kbase + cols[None] * skn + d[:, None],
                mask=inside[None] & (d[:, None] < D),
                other=0.0,
            )
            s = _tile(
                q, k, rows, cols, length, scale, cap, CAUSAL, WINDOW, CAPPED, IEEE, phase != 1
            )
            if start == 0:
                s = tl.where(cols[None] > 0, s, -1e30)
            top = tl.maximum(top, tl.max(s, 1))
            m_new = tl.maximum(m, top)
            alpha = tl.exp2(m - m_new)
            p = tl.exp2(s - m_new[:, None])
            here = tl.sum(p, 1)
            l = l * alpha + here  # noqa: E741
            es = es * alpha + tl.sum(p * s, 1)
            if OUTPUT:
                v = tl.load(
                    vbase + cols[:, None] * svn + d[None],
                    mask=inside[:, None] & (d[None] < D),
                    other=0.0,
                )
                acc = acc * alpha[:, None] + tl.dot(
                    p.to(v.dtype), v, input_precision="ieee" if IEEE else "tf32"
                )
            if MASSES:
                # 0 and 1 are exact in bf16, and a weight is the sum of two bf16 numbers to 4e-6 of
                # itself.
                kinds = tl.load(
                    C + (b * keys + cols[:, None]) * KINDS + f[None],
                    mask=inside[:, None],
                    other=0.0,
                )
                upper = p.to(tl.bfloat16)
                lower = (p - upper.to(tl.float32)).to(tl.bfloat16)
                mass = mass * alpha[:, None] + tl.dot(upper, kinds) + tl.dot(lower, kinds)
            if DISTANCE:
                # The place within a tile, and that of the tile for all of it.
                place = tl.sum(p * tl.arange(0, BN)[None].to(tl.float32), 1)
                away = away * alpha + place - (rows - start).to(tl.float32) * here
                if not CAUSAL:
                    far = far * alpha + tl.sum(
                        p * tl.abs(rows[:, None] - cols[None]).to(tl.float32), 1
                    )
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
    p0 = tl.exp2(s0 - m)
    # Add key 0, row by row.
    if OUTPUT:
        v0 = tl.load(vbase + d, mask=d < D, other=0.0)
        acc += p0[:, None] * v0.to(tl.float32)[None]
    if MASSES:
        kinds0 = tl.load(C + b * keys * KINDS + f)
        mass += p0[:, None] * kinds0.to(tl.float32)[None]
    if DISTANCE:
        away -= p0 * rows.to(tl.float32)
        if not CAUSAL:
            far += p0 * rows.to(tl.float32)
    key_label = KL + b * LABELS * keys
    if LABELS > 0:
        same0 += tl.where(ql0 == tl.load(key_label), p0, 0.0)
    if LABELS > 1:
        same1 += tl.where(ql1 == tl.load(key_label + keys), p0, 0.0)
    if LABELS > 2:
        same2 += tl.where(ql2 == tl.load(key_label + 2 * keys), p0, 0.0)
    if LABELS > 3:
        same3 += tl.where(ql3 == tl.load(key_label + 3 * keys), p0, 0.0)
    others = tl.where(l > 0, l, 1.0)
    rest_entropy = tl.where(l > 0, (m + tl.log2(others) - es / others) * 0.6931471805599453, 0.0)
    es += p0 * s0
    whole = l + p0
    token = tl.where(whole > 0, whole, 1.0)  # what the tokens get, without the learned sink
    total = token
    if SINKS:
        total = token + tl.exp2(tl.load(SINK + h) * 1.4426950408889634 - m)
    shown = real & (rows < length)
    out = bh * n + rows
    if OUTPUT:
        result = (acc / total[:, None]).to(O.dtype.element_ty)
        tl.store(
            O + (bh * n + rows[:, None]) * D + d[None], result, mask=real[:, None] & (d[None] < D)
        )
    tl.store(
        LSE + out,
        tl.where(shown, (m + tl.log2(total)) * 0.6931471805599453, float("inf")),
        mask=real,
    )
    tl.store(MAXW + out, tl.where(shown, tl.exp2(tl.maximum(top, s0) - m) / total, 0.0), mask=real)
    size = tl.num_programs(1) * n  # mass, entropy and largest weight lie one after the other
    tl.store(REST + out, tl.where(shown, l / total, 0.0), mask=real)
    tl.store(REST + size + out, tl.where(shown, tl.maximum(rest_entropy, 0.0), 0.0), mask=real)
    tl.store(
        REST + 2 * size + out, tl.where(shown & (l > 0), tl.exp2(top - m) / others, 0.0), mask=real
    )
    tl.store(
        ENT + out,
        tl.where(shown, (m + tl.log2(token) - es / token) * 0.6931471805599453, 0.0),
        mask=real,
    )
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
def band(
    Q, K, LSE, LENGTH, OUT,
    sqb, sqh, sqn, skb, skh, skn, n, scale, cap, reach, first, each,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, IEEE: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Sums of weights along diagonals: tiles equally far from the diagonal hold the same offsets at
    the same places, so they add up as they are, and only their sum is taken apart."""
    apart = first + tl.program_id(0)  # blocks of keys after the block of rows
    part = tl.program_id(1)
    bh = tl.program_id(2)
    b = bh // H
    h = bh % H
    hk = h // (H // HK)
    length = tl.load(LENGTH + b)
    here = tl.arange(0, T)
    d = tl.arange(0, DP)
    total = tl.zeros([T, T], tl.float32)
    for block in range(part * each, (part + 1) * each):
        rows = block * T + here
        cols = (block + apart) * T + here
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
            lse = (
                tl.load(LSE + bh * n + rows, mask=rows < n, other=float("inf")) * 1.4426950408889634
            )
            total += tl.exp2(s - lse[:, None])
    offset = apart * T + here[None] - here[:, None]
    near = (offset >= -reach) & (offset <= reach)
    tl.atomic_add(OUT + bh * (2 * reach + 1) + offset + reach, total, mask=near & (total != 0))


@triton.jit
def at_offsets(
    Q, K, LSE, LENGTH, WANTED, OUT,
    sqb, sqh, sqn, skb, skh, skn, n, scale, cap,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, COUNT: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Compute single weights `A[i, i + o]` of every row for a few offsets."""
    block = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // H
    h = bh % H
    hk = h // (H // HK)
    length = tl.load(LENGTH + b)
    rows = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DP)
    q = tl.load(
        Q + b * sqb + h * sqh + rows[:, None] * sqn + d[None],
        mask=(rows[:, None] < n) & (d[None] < D),
        other=0.0,
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
            K + b * skb + hk * skh + cols[:, None] * skn + d[None],
            mask=seen[:, None] & (d[None] < D),
            other=0.0,
        )
        s = _capped(tl.sum(q * k.to(tl.float32), 1) * scale, cap, CAPPED)
        weight = tl.where(seen, tl.exp2(s - lse * 1.4426950408889634), 0.0)
        tl.store(OUT + (bh * n + rows) * COUNT + place, weight, mask=rows < n)


@triton.jit
def column_sums(
    Q, K, LSE, LENGTH, OUT,
    sqb, sqh, sqn, skb, skh, skn, n, scale, cap,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, IEEE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Sum the attention that the keys of a block receive from all rows."""
    block = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // H
    h = bh % H
    hk = h // (H // HK)
    length = tl.load(LENGTH + b)
    cols = block * BN + tl.arange(0, BN)
    d = tl.arange(0, DP)
    k = tl.load(
        K + b * skb + hk * skh + cols[None] * skn + d[:, None],
        mask=(cols[None] < n) & (d[:, None] < D),
        other=0.0,
    )
    begin = 0
    end = length
    if CAUSAL:
        begin = block * BN // BM * BM
    if WINDOW > 0:
        end = tl.minimum(length, (block + 1) * BN + WINDOW)
        if not CAUSAL:
            begin = tl.maximum(block * BN - WINDOW + 1, 0) // BM * BM
    total = tl.zeros([BN], tl.float32)
    for start in range(begin, end, BM):
        rows = start + tl.arange(0, BM)
        q = tl.load(
            Q + b * sqb + h * sqh + rows[:, None] * sqn + d[None],
            mask=(rows[:, None] < n) & (d[None] < D),
            other=0.0,
        )
        s = _tile(q, k, rows, cols, length, scale, cap, CAUSAL, WINDOW, CAPPED, IEEE, True)
        lse = tl.load(LSE + bh * n + rows, mask=rows < n, other=float("inf")) * 1.4426950408889634
        total += tl.sum(tl.exp2(s - lse[:, None]), 0)
    tl.store(OUT + bh * n + cols, total, mask=cols < n)
