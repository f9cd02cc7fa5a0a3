"""Whether kernels of our own can run on this machine's GPU."""

from __future__ import annotations

from functools import cache

import torch


@cache
def has_kernels() -> bool:
    """Whether there is a GPU that the kernels run on, and Triton to make them."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.get_device_capability()[0] >= 8
