"""The LAMB optimizer (You et al. 2020): Adam whose step in each weight is scaled to the size of
that weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """`w ← w − lr · φ(‖w‖) / ‖r‖ · r` with `r = m̂ / (√v̂ + eps) + λ w`, moments corrected for
    bias; `φ` cuts at `largest`, and the ratio is 1 where a norm is 0.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay
        As for Adam.
    largest
        The largest norm of a weight that counts.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        largest: float = 10.0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "largest": largest,
            },
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)
        return loss

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = 0
            state["first"] = torch.zeros_like(weight)
            state["second"] = torch.zeros_like(weight)
        state["step"] += 1
        fast, slow = group["betas"]
        first = state["first"].mul_(fast).add_(gradient, alpha=1 - fast)
        second = state["second"].mul_(slow).addcmul_(gradient, gradient, value=1 - slow)
        mean = first / (1 - fast ** state["step"])
        variance = second / (1 - slow ** state["step"])
        step = mean / (variance.sqrt() + group["eps"]) + group["weight_decay"] * weight
        weight_norm = weight.norm().clamp(max=group["largest"])
        step_norm = step.norm()
        tiny = torch.finfo(step_norm.dtype).tiny
        ratio = torch.where(
            (weight_norm > 0) & (step_norm > 0),
            weight_norm / step_norm.clamp(min=tiny),
            torch.ones_like(step_norm),
        )
        weight.sub_(group["lr"] * ratio * step)
