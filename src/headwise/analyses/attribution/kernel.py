"""Tangents of attention in one Triton kernel: no intermediate result goes through memory.

Only imported where there is a GPU. Products are in tf32, or of half precision with sums in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tokens (and sizes of heads) whose square matrices one program can hold, by type of the tangents.
LONGEST = {torch.float16: 128, torch.float32: 64}


@triton.jit
def _attention_tangent_kernel(
    Q, K, V, A, DQ, DK, DV, OUT,
    sqe, sqh, sqn, ske, skh, skn, sve, svh, svn,
    tqt, tqe, tqh, tqn, tkt, tke, tkh, tkn, tvt, tve, tvh, tvn,
    n, scale,
    H: tl.constexpr, HK: tl.constexpr, E: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One tangent of one head of one example: `dA V + A dV`, with `dA = A · (dS − Σ A dS)`."""
    t = tl.program_id(0).to(tl.int64)
    eh = tl.program_id(1)
    e, h = eh // H, eh % H
    g = h // (H // HK)
    row = tl.arange(0, BN)
    d = tl.arange(0, DP)
    inside = (row[:, None] < n) & (d[None] < D)
    q = tl.load(Q + e * sqe + h * sqh + row[:, None] * sqn + d[None], mask=inside, other=0.0)
    k = tl.load(K + e * ske + g * skh + row[:, None] * skn + d[None], mask=inside, other=0.0)
    dq = tl.load(
        DQ + t * tqt + e * tqe + h * tqh + row[:, None] * tqn + d[None], mask=inside, other=0.0
    )
    dk = tl.load(
        DK + t * tkt + e * tke + g * tkh + row[:, None] * tkn + d[None], mask=inside, other=0.0
    )
    score = tl.dot(dq, tl.trans(k), input_precision="tf32")
    score += tl.dot(q, tl.trans(dk), input_precision="tf32")
    pairs = (row[:, None] < n) & (row[None] < n)
    weight = tl.load(A + (eh * n + row[:, None]) * n + row[None], mask=pairs, other=0.0)
    share = weight * score * scale
    share -= weight * tl.sum(share, 1)[:, None]
    v = tl.load(V + e * sve + g * svh + row[:, None] * svn + d[None], mask=inside, other=0.0)
    dv = tl.load(
        DV + t * tvt + e * tve + g * tvh + row[:, None] * tvn + d[None], mask=inside, other=0.0
    )
    out = tl.dot(share.to(v.dtype), v, input_precision="tf32")
    out += tl.dot(weight.to(dv.dtype), dv, input_precision="tf32")
    # Token by token, [tangent, example, token, head, d], as the output projection wants it.
    place = OUT + (((t * E + e) * n + row[:, None]) * H + h) * D + d[None]
    tl.store(place, out.to(OUT.dtype.element_ty), mask=inside)


def attention_tangents(
    primal: tuple[Tensor, Tensor, Tensor],
    tangent: tuple[Tensor, Tensor, Tensor],
    weights: Tensor,
    scaling: float,
) -> Tensor:
    """Return the tangents of head outputs, `[tangent, example, head, token, d]`, in the type of the
    tangents.

    Parameters
    ----------
    primal, tangent : (Tensor, Tensor, Tensor)
        Query, key and value, `[example, head, token, d]` (key and value before group repetition),
        and their tangents, `[tangent, example, head, token, d]`.
    weights : Tensor
        Attention weights, float32 `[example, head, token, token]`.
    scaling : float
        The factor of scores.
    """
    n_examples, n_heads, n_tokens, size = primal[0].shape
    n_tangents = len(tangent[0])
    dtype = tangent[0].dtype
    # The kernel reads the last dimension as contiguous.
    primals = [_last_contiguous(tensor.to(dtype)) for tensor in primal]
    tangents = [_last_contiguous(tensor) for tensor in tangent]
    strides: list[int] = []
    for tensor in primals:
        strides += tensor.stride()[:3]
    for tensor in tangents:
        strides += tensor.stride()[:4]
    out = torch.empty(
        n_tangents, n_examples, n_tokens, n_heads, size, dtype=dtype, device=weights.device
    )
    block = max(16, triton.next_power_of_2(n_tokens))
    _attention_tangent_kernel[(n_tangents, n_examples * n_heads)](
        *primals, weights.contiguous(), *tangents, out, *strides, n_tokens, scaling,
        H=n_heads, HK=primal[1].shape[1], E=n_examples, D=size,
        DP=max(16, triton.next_power_of_2(size)), BN=block,
        num_warps=4 if block <= 64 else 8, num_stages=1,
    )  # fmt: skip
    return out.transpose(2, 3)


def _last_contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
