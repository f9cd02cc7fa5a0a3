"""Seeing the attention weights of a module that computes them inside one long method: its softmax and the product after
it are intercepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.models.tap import SESSION, FormedCall, Running

SOFTMAX = {nn.functional.softmax, torch.softmax, Tensor.softmax}
PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}


def intercepted_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The module's own forward, with its attention led through the session of the current context, where there is
    one."""
    session = SESSION.get()
    if session is None:
        return type(self).forward(self, *args, **kwargs)
    with Interception(self, session):
        return type(self).forward(self, *args, **kwargs)


class Interception(TorchFunctionMode):
    """Follows the result of a softmax over keys until it multiplies the values, and lets the session compute that
    product.

    The mode belongs to the thread that entered it and ends with the module's forward.
    """

    def __init__(self, module: nn.Module, session: Running) -> None:
        super().__init__()
        self.module, self.session = module, session
        self.weights: Tensor | None = None  # as they came from the softmax
        self.open: Tensor | None = None
        self.followed: list[Tensor] = []  # the same numbers in other shapes or types

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in SOFTMAX:
            scores = args[0]
            # Masks in these modules are the lowest number of the type, -1e30 (XLNet) or -inf.
            low = torch.finfo(scores.dtype).min
            self.weights, self.open = func(*args, **kwargs), scores > max(low / 2, -1e28)
            self.followed = [self.weights]
            return self.weights
        if self.followed and func in PRODUCTS and self._follows(args[0]):
            return self._product(args[0], args[1])
        if self.followed and func is torch.einsum and any(self._follows(x) for x in args[1:]):
            return self._einsum(args[0], *args[1:])
        result = func(*args, **kwargs)
        if (
            self.followed
            and args
            and self._follows(args[0])
            and isinstance(result, Tensor)
            and result.numel() == args[0].numel()
        ):
            self.followed.append(result)
        return result

    def _follows(self, value: Any) -> bool:
        return any(value is x for x in self.followed)

    def _product(self, weights: Tensor, value: Tensor) -> Tensor:
        """`weights @ value` for `[example, head, ...]` or `[example * head, ...]`."""
        assert self.weights is not None
        assert self.open is not None
        formed, seen = weights, self.open
        if weights.ndim == 3:
            shape = self.weights.shape
            if self.weights.ndim != 4:
                shape = torch.Size((-1, int(self.module.num_heads), *weights.shape[1:]))  # type: ignore[arg-type]
            formed, seen = weights.view(shape), seen.view(shape)
            value = value.view(*formed.shape[:2], *value.shape[1:])
        output = self._attend(formed, value, seen)
        return output.reshape(*weights.shape[:-1], output.shape[-1])

    def _einsum(self, equation: str, *operands: Tensor) -> Tensor:
        """XLNet's `bnij,jbnd->ibnd`."""
        if equation.replace(" ", "") != "bnij,jbnd->ibnd" or not self._follows(operands[0]) or self.open is None:
            return torch.einsum(equation, *operands)
        return self._attend(operands[0], operands[1].permute(1, 2, 0, 3), self.open).permute(2, 0, 1, 3)

    def _attend(self, formed: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        output, _ = self.session.attend(FormedCall(self.module, formed, value, seen))
        self.followed = []
        return output.transpose(1, 2)
