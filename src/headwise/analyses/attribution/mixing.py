"""Other readings of mixing: rollout (Abnar & Zuidema 2020) and norm-weighted attention (Kobayashi et al. 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import headwise.analyses.attribution.rules  # noqa: F401  (registers the rules)
from headwise.analyses.attribution.bundle import Bundle, NotServed
from headwise.analyses.attribution.passage import Finished, Passage, check_served, real_pairs
from headwise.analyses.attribution.sketch import normalised
from headwise.models import HeadModel
from headwise.models.tap import Call
from headwise.text.encode import Batch


def rollout(attention: Tensor, real: Tensor) -> Tensor:
    """Attention traced back to the input: `[example, layer, head, receiving, source]` from weights of the same shape.

    Abnar & Zuidema's rollout of the layers below, `R[l] = Â[l-1] ⋯ Â[0]` with `Â = (mean over heads of A + I) / 2`, as
    the head sees it: `A[l,h] · R[l]`. In the first layer that is attention.
    """
    weights = attention.double()
    eye = torch.eye(weights.shape[-1], dtype=torch.float64, device=weights.device)
    so_far = eye.expand(len(weights), -1, -1)
    found = []
    for layer in weights.unbind(1):
        found.append(layer @ so_far[:, None])
        mixed = layer.mean(1) / 2 + eye / 2
        so_far = mixed / mixed.sum(-1, keepdim=True).clamp(min=1e-300) @ so_far
    pairs = real[:, :, None] & real[:, None, :]
    return normalised(torch.stack(found, dim=1) * pairs[:, None, None])


def norm_weighted(model: HeadModel, batch: Batch, attention: Tensor) -> tuple[Tensor, bool]:
    """`‖α_ji f(x_i)‖` of each head, rows divided by their sum, and whether the output projection is in `f`.

    The first is `[example, layer, head, receiving, source]`, with
    `f(x) = (x W_V + b_V) W_O`, the head's own part of the output projection. That matrix is found by what the model
    does with the values of each head: the first linear map their tangents go through after the attention. Where a model
    has none (or its code takes no tangents), f is the value alone, and the second result is False.
    """
    check_served(model)
    reading: _Projected | _Values = _Projected(model)
    with torch.no_grad():
        try:
            reading.run(batch)
        except (NotServed, StopIteration):
            reading = _Values(model)
            reading.run(batch)
    norms, projected = torch.stack(reading.norms, dim=1), isinstance(reading, _Projected)
    return normalised(attention.double() * norms[:, :, :, None, :] * real_pairs(batch)[:, None, None]), projected


class _Values(Passage):
    """Norms of the values of each head and token, `[example, head, token]`, layer by layer."""

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)
        self.norms: list[Tensor] = []

    def attends(self, layer: int, call: Call, output: Tensor) -> None:
        self.norms.append(call.repeated()[1].double().norm(dim=-1))


class _Projected(Passage):
    """Norms of the values after each head's part of the output projection.

    The head outputs go on as bundles whose tangent h is the values of head h alone. The first linear map they meet is
    the output projection; there the norms are taken, and the bundle ends.
    """

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)
        self.norms: list[Tensor] = []
        self.waiting = False

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        if self.waiting:
            raise NotServed("no linear map followed the attention")
        _, value = call.repeated()
        output, weights = super().attend_layer(layer, call)
        examples, heads, tokens, size = value.shape
        tangents = value.new_zeros(heads, examples, tokens, heads, size)
        own = torch.arange(heads, device=value.device)
        tangents[own, :, :, own] = value.transpose(0, 1)
        self.waiting = True
        return _Probe(output, tangents, self), weights

    def run(self, batch: Batch) -> None:
        self.examples = len(batch)
        super().run(batch)

    def seen(self, result: Bundle) -> Tensor:
        """The projection's result: its tangents give the norms, its value goes on."""
        norms = result.tangent.double().norm(dim=-1)  # head, example, token; or as the model lays them out
        if norms.ndim == 2:  # GPT-2 flattens examples and tokens
            norms = norms.unflatten(1, (self.examples, -1))
        elif self.sites.tokens_first:
            norms = norms.transpose(1, 2)
        self.norms.append(norms.transpose(0, 1))
        self.waiting = False
        if len(self.norms) == self.sites.layers:
            raise Finished
        return result.primal


class _Probe(Bundle):
    """A bundle that reports the first linear map it goes through."""

    passage: _Projected

    @staticmethod
    def __new__(cls, primal: Tensor, tangent: Tensor, passage: _Projected) -> _Probe:
        out = Bundle.__new__(cls, primal, tangent)
        assert isinstance(out, _Probe)
        out.passage = passage
        return out

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = [a for a in tree_leaves((args, kwargs or {})) if isinstance(a, _Probe)]
        result = Bundle.__torch_function__(func, types, args, kwargs)
        if not found or not isinstance(result, Bundle):
            return result
        passage = found[0].passage
        if getattr(func, "__name__", "") in ("linear", "addmm", "matmul", "__matmul__", "einsum"):
            return passage.seen(result)
        return _Probe(result.primal, result.tangent, passage)
