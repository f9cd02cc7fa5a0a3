"""Contributions of the previous layer, exactly, at the cost of about one layer: a head's Jacobian
has a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from transformers import Cache

import headwise.analyses.attribution.tangent_rules  # noqa: F401  (registers the rules)
from headwise.analyses.attribution.forward import (
    DEFAULT_MEMORY,
    MIB,
    for_each_chunk,
    squared_norm,
    tangents_per_chunk,
)
from headwise.analyses.attribution.hooked_pass import HookedPass, StopPass, token_pair_mask
from headwise.analyses.attribution.pushforward import forward_mode, make_dual, tangent_of
from headwise.analyses.attribution.tangent_tensor import NoForwardDerivative, TangentTensor
from headwise.models import HeadModel
from headwise.models.sites import replaced
from headwise.models.tap import Call, FormedCall
from headwise.text.encode import Batch

# A layer, how it was called, and E[l] among its arguments.
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any], Tensor]
GRAMS = 8  # float64 matrices of size × size alive at once for each token and head


class _Calls(HookedPass):
    """A plain pass that keeps how each layer was called."""

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)
        self.made: list[Made] = []
        self._last: tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None = None

    def on_layer_call(
        self, layer: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._last = module, args, dict(kwargs)

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        assert self._last is not None
        self.made.append((*self._last, hidden))
        return None

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        if layer == self.sites.layers - 1:
            raise StopPass


class _Replay(HookedPass):
    """One layer called again with other hidden states, as far as its attention."""

    def __init__(self, model: HeadModel, form: bool) -> None:
        super().__init__(model)
        self.form = form
        self.call: Call | None = None
        self.output: Tensor | None = None

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        self.call = call
        if self.form:
            super().attend_layer(layer, call)
        raise StopPass

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        self.output = output

    def replay(self, made: Made, hidden: Tensor) -> _Replay:
        module, args, kwargs, before = made
        old = before.transpose(0, 1) if self.sites.tokens_first else before
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        given = next(
            a
            for a in tensors
            if a is before or (a.data_ptr() == old.data_ptr() and a.shape == old.shape)
        )
        new_args, new_kwargs = replaced(args, kwargs, given, self._turned(hidden))
        # A cache was filled by the first call; a second one would see its keys twice.
        new_args = tuple(None if isinstance(a, Cache) else a for a in new_args)
        new_kwargs = {
            key: None if isinstance(value, Cache) else value for key, value in new_kwargs.items()
        }
        with self.running():
            module(*new_args, **new_kwargs)
        return self


def previous_layer_squared_norms(
    model: HeadModel, batch: Batch, *, memory: float = DEFAULT_MEMORY
) -> Tensor:
    """`‖∂O[l,h,j] / ∂E[l,i]‖²` as `[example, layer, head, receiving, source]` (Pascual et al. 2021,
    §4).

    Where query, key and value of a token depend on that token alone (true of every usual layer, and
    looked at), with P the weights, s the scale and y the head's output,

    `∂y_j/∂x_i = P_ji (V'_i + s (v_i − y_j) (q_jᵀ K'_i)) + [i = j] s Σ_k P_jk (v_k − y_j) (k_kᵀ
    Q'_j)`,

    so all blocks follow from the d_head × width Jacobians of query, key and value of each token,
    which `width` tangents give for all tokens at once. Soft-capped scores bring their own slope in.
    Layers of another kind get their tangents pushed through one by one."""
    with torch.no_grad():
        calls = _Calls(model)
        calls.run(batch)
        layers = [_layer_squares(model, batch, made, memory) for made in calls.made]
    return torch.stack(layers, dim=1) * token_pair_mask(batch).double()[:, None, None]


def _layer_squares(model: HeadModel, batch: Batch, made: Made, memory: float) -> Tensor:
    found = None
    if forward_mode(model, batch) == "tangent_tensor":
        with suppress(NoForwardDerivative):
            found = _closed_form(model, batch, made, memory)
    return _pushed(model, batch, made, memory) if found is None else found


def _closed_form(model: HeadModel, batch: Batch, made: Made, memory: float) -> Tensor | None:
    """All blocks of a layer from the Jacobians of each token's query, key and value; None where
    tokens mix in those."""
    hidden = made[3]
    _, n, width = hidden.shape
    call = _Replay(model, form=False).replay(made, hidden).call
    if (
        call is None
        or isinstance(call, FormedCall)
        or call.query.shape[2] != n
        or call.key.shape[2] != n
    ):
        return None
    # Two tangents that move one token alone, the first and the last: nothing else may move with it.
    alone = torch.zeros(2, *hidden.shape, dtype=hidden.dtype, device=hidden.device)
    alone[0, :, 0] = alone[1, :, -1] = torch.linspace(
        -1, 1, width, dtype=hidden.dtype, device=hidden.device
    )
    moved = _moved(model, made, hidden, alone)
    if moved is None or any(m[0, :, :, 1:].any() or m[1, :, :, :-1].any() for m in moved):
        return None
    # Where no norm and no position comes before query, key and value, every token has the same
    # Jacobian: that of one token will do.
    same = n > 1 and all(
        torch.allclose(m[0, :, :, 0], m[1, :, :, -1], rtol=1e-5, atol=1e-6 * float(m.abs().max()))
        for m in moved
    )
    shown = hidden[:1, :1] if same else hidden
    parts = []
    for heads in _head_groups(call, memory):
        grams = _Grams(call, heads)

        def some(start: int, stop: int, grams: _Grams = grams) -> None:
            # All tokens move at once along each dimension: they do not mix here.
            tangents = torch.zeros(
                stop - start, *shown.shape, dtype=hidden.dtype, device=hidden.device
            )
            tangents[torch.arange(stop - start), :, :, torch.arange(start, stop)] = 1
            found = _moved(model, made, shown, tangents)
            assert found is not None
            grams.add(*(x.double() if same else x for x in found))

        for_each_chunk(some, width, tangents_per_chunk(model, batch, memory), model)
        parts.append(grams.squares())
    return torch.cat(parts, dim=1)


def _head_groups(call: Call, memory: float) -> list[slice]:
    """Key/value heads whose products of Jacobians fit into `memory` MiB together; one at a time
    where two do not."""
    examples, heads, tokens, _, kv_heads, size = call.sizes
    each = (
        GRAMS * 8 * examples * tokens * (heads // kv_heads) * max(size, call.query.shape[-1]) ** 2
    )
    at_once = max(1, int(memory * MIB / each))
    return [slice(start, min(start + at_once, kv_heads)) for start in range(0, kv_heads, at_once)]


def _moved(
    model: HeadModel, made: Made, hidden: Tensor, tangents: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Tangents of query, key and value, `[tangent, example, head, token, size]`; None where
    anything else moves."""
    call = _Replay(model, form=False).replay(made, TangentTensor(hidden, tangents)).call
    if call is None or any(
        isinstance(x, TangentTensor) for x in (call.bias, call.mask, call.sinks)
    ):
        return None
    query, key, value = (
        x.tangent if isinstance(x, TangentTensor) else x.new_zeros(len(tangents), *x.shape)
        for x in (call.query, call.key, call.value)
    )
    return query, key, value


class _Grams:
    """Squared norms of a layer's blocks from products of the Jacobians of single tokens, summed
    over input dimensions.

    The block is `P_ji (V'_i + (v_i − y_j) aᵀ)` with `a = s_ji K'_iᵀ q_j`, and for i = j `F_j Q'_j`
    besides, with `F_j = Σ_k P_jk s_jk (v_k − y_j) k_kᵀ`. Its square needs only the products
    `V'V'ᵀ`, `V'K'ᵀ`, `K'K'ᵀ`, ... of each token, `[example, head, token, size, size]`, which
    broadcast where all tokens share them. All in float64, since terms may cancel."""

    def __init__(self, call: Call, heads: slice) -> None:
        """For some of the key/value heads, and the query heads that share them."""
        self.kv, self.groups = heads, call.query.shape[1] // call.key.shape[1]
        self.heads = slice(heads.start * self.groups, heads.stop * self.groups)
        key, value = call.repeated()
        weights, _ = call.weights(key, 0, call.query.shape[2])
        self.query, self.key, self.value, self.weights = (
            x[:, self.heads].double() for x in (call.query, key, value, weights)
        )
        self.slope = torch.full_like(self.weights, call.scaling)
        if call.softcap is not None:
            scores = self.query @ self.key.transpose(2, 3) * call.scaling
            self.slope = self.slope * (1 - torch.tanh(scores / call.softcap) ** 2)
        self.sums: dict[str, Tensor] = {}

    def add(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """TangentCallback in the tangents along some dimensions, `[dimension, example, head, token, size]`."""
        own = query[:, :, self.heads], key[:, :, self.kv], value[:, :, self.kv]
        q, k, v = (
            x.permute(1, 2, 3, 0, 4).contiguous() for x in own
        )  # example, head, token, dimension, size
        found = {
            name: _product(a, b)
            for name, (a, b) in {"kk": (k, k), "vk": (v, k), "qq": (q, q)}.items()
        }
        found["vv"] = v.square().sum((-1, -2)).double()
        if self.groups > 1:  # what query heads share is multiplied once, and then said of each
            k, v = (x.repeat_interleave(self.groups, dim=1) for x in (k, v))
            found |= {x: found[x].repeat_interleave(self.groups, dim=1) for x in ("kk", "vk", "vv")}
        found |= {"qk": _product(q, k), "vq": _product(v, q)}
        # Added only now, so that a chunk that runs out of memory on its way leaves nothing behind.
        for name, value in found.items():
            self.sums[name] = self.sums[name].add_(value) if name in self.sums else value

    def squares(self) -> Tensor:
        query, value, weights, slope = self.query, self.value, self.weights, self.slope
        output = weights @ value
        kk, vk, vv = self.sums["kk"], self.sums["vk"], self.sums["vv"]
        length = slope**2 * (_outer(query, query) @ kk.flatten(-2).transpose(-1, -2))  # ‖a‖²
        along = query @ (value[..., None, :] @ vk)[..., 0, :].transpose(-1, -2)
        cross = slope * (along - _outer(output, query) @ vk.flatten(-2).transpose(-1, -2))
        lengths = value.square().sum(-1)[..., None, :] + output.square().sum(-1)[..., :, None]
        apart = lengths - 2 * output @ value.transpose(-1, -2)  # ‖v_i − y_j‖²
        blocks = weights**2 * (vv[..., None, :] + 2 * cross + apart.clamp(min=0) * length)
        own = blocks.diagonal(dim1=-2, dim2=-1)
        own += self._through_query(output)
        return blocks.clamp(min=0)

    def _through_query(self, output: Tensor) -> Tensor:
        """What the own token adds to its block through its query: `‖F Q'‖² + 2 ⟨P (V' + (v−y) aᵀ),
        F Q'⟩`."""
        mass = self.weights * self.slope
        size = self.value.shape[-1], self.key.shape[-1]
        outer = (mass @ _outer(self.value, self.key)).view(*output.shape[:-1], *size)
        follows = outer - output[..., :, None] * (mass @ self.key)[..., None, :]  # F
        p, s = (x.diagonal(dim1=-2, dim2=-1) for x in (self.weights, self.slope))
        moved = (self.sums["qk"] @ self.query[..., None])[..., 0]  # Q' K'ᵀ q
        turned = (follows @ moved[..., None])[..., 0]
        both = (self.sums["vq"] * follows).sum((-1, -2)) + s * ((self.value - output) * turned).sum(
            -1
        )
        return (follows @ self.sums["qq"] * follows).sum((-1, -2)) + 2 * p * both


def _product(a: Tensor, b: Tensor) -> Tensor:
    """`[..., size of a, size of b]`, summed over dimensions."""
    return (a.transpose(-1, -2) @ b).double()


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """`[..., token, size of a · size of b]`."""
    return (a[..., :, None] * b[..., None, :]).flatten(-2)


def _pushed(model: HeadModel, batch: Batch, made: Made, memory: float) -> Tensor:
    """Every token and dimension of E[l] moved by itself, through this layer only."""
    hidden = made[3]
    examples, n, width = hidden.shape
    sums = torch.zeros(n, examples, model.heads, n, dtype=torch.float64, device=hidden.device)

    def some(start: int, stop: int) -> None:
        places = torch.arange(start, stop, device=hidden.device)
        if forward_mode(model, batch) == "tangent_tensor":
            tangents = torch.zeros(
                stop - start, examples, n, width, dtype=hidden.dtype, device=hidden.device
            )
            tangents[places - start, :, places // width, places % width] = 1
            output = _Replay(model, form=True).replay(made, TangentTensor(hidden, tangents)).output
            assert isinstance(output, TangentTensor)
            sums.index_add_(0, places // width, squared_norm(output.tangent).double())
            return
        found = []
        for place in (
            places.tolist()
        ):  # one tangent at a time keeps the shapes of whatever else the layer was given
            tangent = torch.zeros_like(hidden)
            tangent[:, place // width, place % width] = 1
            with forward_ad.dual_level():
                output = _Replay(model, form=True).replay(made, make_dual(hidden, tangent)).output
                assert output is not None
                found.append((place // width, squared_norm(tangent_of(output)).double()))
        for token, squares in found:
            sums[token] += squares

    for_each_chunk(some, n * width, tangents_per_chunk(model, batch, memory), model)
    return sums.permute(1, 2, 3, 0)
