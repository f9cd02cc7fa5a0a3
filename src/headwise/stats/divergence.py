"""Jensen-Shannon divergences between all pairs of heads on one example, in blocks that stay in
cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch import Tensor

from headwise.stats.gpu import has_kernels

TINY = 1e-30  # stands for zero weights: 0 · log 0 becomes 1e-30 · log 1e-30, far below rounding, with no branch
COLUMNS = 8192  # columns of a block; with ROWS heads two float32 buffers of half a megabyte
ROWS = 16
DEVICE_ELEMENTS = 1 << 26  # elements of a block on an accelerator
AT_ONCE = 1 << 15  # entries of all heads that are turned round for the kernel


def smooth(maps: Tensor, visible: Tensor, amount: float) -> Tensor:
    """Mix each row with the uniform row: `(1 − amount) · A[i, j] + amount / |V(i)|` on V(i), zero
    elsewhere.

    The amount is 0.001 in Clark et al.'s code.

    Parameters
    ----------
    maps : Tensor
        `[..., query, key]`
    visible : Tensor
        V(i) as bool, broadcastable to `maps`.
    """
    if amount == 0:
        return maps
    size = visible.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(visible, maps * (1 - amount) + amount / size, 0.0)


def pairwise_js(maps: Tensor, threads: int | None = None) -> Tensor:
    """Jensen-Shannon divergence in nats between all pairs of heads, summed over rows.

    `JS = H(m) − (H(p) + H(q)) / 2` with `m = (p + q) / 2`.

    Divergences are summed over rows, so rows need not be told apart: every head is one long vector,
    and entries that are zero for all heads (keys no row may see) are dropped before any work: a
    causal map costs half.

    Parameters
    ----------
    maps : Tensor
        `[head, query, key]` (or `[head, anything]`), every row a distribution over its keys, zero
        outside V(i) and on padding.
    threads : int, optional
        How many threads share the pairs on a CPU (torch's number where None). The result does not
        depend on it.

    Returns
    -------
    Tensor
        float64 `[head, head]`, symmetric, zero on the diagonal, never negative. Logarithms float32,
        sums of blocks float64.
    """
    if maps.shape[0] == 0 or maps[0].numel() == 0:
        return torch.zeros(maps.shape[0], maps.shape[0], dtype=torch.float64)
    flat = maps.detach().reshape(maps.shape[0], -1).float()
    if flat.device.type == "cpu":
        upper = torch.from_numpy(
            _products_cpu(_halved(flat).numpy(), threads or torch.get_num_threads())
        )
    else:
        products = _products_kernel if flat.is_cuda and has_kernels() else _products_device
        heads = len(flat)
        total = torch.zeros(heads, heads, dtype=torch.float64, device=flat.device)
        for start in range(0, flat.shape[1], AT_ONCE):  # bounded, whatever the maps take themselves
            products(_halved(flat[:, start : start + AT_ONCE]), total)
        upper = total.triu()
    own = upper.diagonal()
    # `upper` holds Σ m log2 m; identical heads go through identical operations, so their difference
    # is exactly zero.
    js = ((own[:, None] + own[None, :]) / 2 - upper).triu(1).mul_(float(np.log(2))).clamp_(min=0.0)
    return js + js.T


def _products_cpu(half: np.ndarray, threads: int) -> np.ndarray:
    """`Σ m log2 m` of all pairs i ≤ j.

    Heads are dealt out to threads so that each pair is summed by one thread in one order.
    """
    heads = len(half)
    out = np.zeros((heads, heads))

    def work(mine: range) -> None:
        rows = min(ROWS, heads)
        middle, logs = np.empty((2, rows, min(COLUMNS, half.shape[1])), dtype=np.float32)
        for start in range(0, half.shape[1], COLUMNS):
            block = half[:, start : start + COLUMNS]
            width = block.shape[1]
            for i in mine:
                for j in range(i, heads, rows):
                    count = min(rows, heads - j)
                    # Buffers keep their stride in a last, narrower block: the operations do not
                    # care.
                    m, log = middle[:count, :width], logs[:count, :width]
                    np.add(block[j : j + count], block[i], out=m)
                    _log2(m, log)
                    out[i, j : j + count] += _dot(m, log)

    if threads <= 1:
        work(range(heads))
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, (range(k, heads, threads) for k in range(threads))))
    return out


def _halved(flat: Tensor) -> Tensor:
    """Half of every weight that some head has; zeros as something that has a logarithm."""
    used = (flat > 0).any(0)
    if not used.all():
        flat = flat[:, used]
    return torch.add(torch.full((), TINY, device=flat.device), flat, alpha=0.5)


def _products_device(half: Tensor, total: Tensor) -> None:
    """The same by blocks of heads and columns with torch, on whatever device the maps are; added to
    `total`."""
    heads, columns = half.shape
    step = max(1, DEVICE_ELEMENTS // (heads * max(columns, 1)))
    for i in range(0, heads, step):
        m = half[i : i + step, None] + half[None, i:]
        total[i : i + step, i:] += (m * m.log2()).sum(-1).double()


def _products_kernel(half: Tensor, total: Tensor) -> None:
    from headwise.stats.divergence_kernel import pair_products  # Triton is there only beside a GPU

    total += pair_products(half.T.contiguous())


@cache
def _numpy_log2_is_fast() -> bool:
    """Whether numpy's float32 log2 is vectorised for this processor: with AVX-512 it is four times
    as fast as torch's.

    Told by numpy, not by timing, so that the same machine always takes the same way and runs repeat
    to the last bit."""
    try:
        from numpy.lib.introspect import opt_func_info

        found = opt_func_info(func_name="^log2$", signature="float32")
    except ImportError:  # numpy before 2.0
        return False
    return any(
        ("AVX512" in str(details.get("current")) or "X86_V4" in str(details.get("current")))
        for kinds in found.values()
        for details in kinds.values()
    )


def _log2(values: np.ndarray, out: np.ndarray) -> None:
    if _numpy_log2_is_fast():
        np.log2(values, out=out)
    else:
        torch.log2(torch.from_numpy(values), out=torch.from_numpy(out))


def _dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Row by row dot products."""
    if hasattr(np, "vecdot"):
        return np.asarray(np.vecdot(first, second))
    return np.asarray(np.einsum("rc,rc->r", first, second))
