"""Contributions of the previous layer, exactly: a head's Jacobian has a closed form in those of
queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
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
from headwise.analyses.attribution.pushforward import (
    TANGENT_TENSOR,
    forward_mode,
    make_dual,
    tangent_of,
)
from headwise.analyses.attribution.tangent_tensor import NoForwardDerivative, TangentTensor
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.sites import replaced
from headwise.models.tap import Call, FormedCall
from headwise.text.encode import Batch

# Float64 matrices of size × size alive at once for each token and head.
LIVE_GRAMS = 8


@dataclass(frozen=True, slots=True, eq=False)
class _LayerCall:
    """How a layer was called, and E[l] among its arguments, `[example, token, width]`."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    hidden: Tensor


class _CallRecorder(HookedPass):
    """A plain pass that records how each layer is called."""

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)
        self.layer_calls: list[_LayerCall] = []
        self._current: tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None = None

    def on_layer_call(
        self, layer: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._current = module, args, dict(kwargs)

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        assert self._current is not None
        self.layer_calls.append(_LayerCall(*self._current, hidden))
        return None

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        if layer == self.sites.layers - 1:
            raise StopPass


class _LayerReplay(HookedPass):
    """One layer called again with other hidden states, up to its attention.

    Parameters
    ----------
    model : HeadModel
        The model of the layer.
    with_output : bool
        Whether head outputs are computed too, or only query, key and value.
    """

    def __init__(self, model: HeadModel, with_output: bool) -> None:
        super().__init__(model)
        self.with_output = with_output
        self.call: Call | None = None
        self.output: Tensor | None = None

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        self.call = call
        if self.with_output:
            super().attend_layer(layer, call)
        raise StopPass

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        self.output = output

    def replay(self, layer_call: _LayerCall, hidden: Tensor) -> _LayerReplay:
        """Call the layer with `hidden` in place of the recorded states; return self."""
        args = layer_call.args
        kwargs = layer_call.kwargs
        recorded = self._examples_first(layer_call.hidden)
        for argument in (*args, *kwargs.values()):
            if not isinstance(argument, Tensor):
                continue
            same_memory = argument.data_ptr() == recorded.data_ptr()
            if argument is layer_call.hidden or (same_memory and argument.shape == recorded.shape):
                break
        else:
            raise ModelError("The hidden states are not among the arguments of a layer.")
        args, kwargs = replaced(args, kwargs, argument, self._examples_first(hidden))
        # A cache was filled by the first call; a second one would see its keys twice.
        args = tuple(None if isinstance(value, Cache) else value for value in args)
        kwargs = {
            name: None if isinstance(value, Cache) else value for name, value in kwargs.items()
        }
        with self.running():
            layer_call.module(*args, **kwargs)
        return self


def previous_layer_squared_norms(
    model: HeadModel, batch: Batch, *, memory: float = DEFAULT_MEMORY
) -> Tensor:
    """Return `‖∂O[l,h,j] / ∂E[l,i]‖²` as `[example, layer, head, receiving, source]` (Pascual et
    al. 2021, §4).

    Where query, key and value of a token depend on that token alone (true of every usual layer, and
    checked), with P the weights, s the scale and y the head's output,

    `∂y_j/∂x_i = P_ji (V'_i + s (v_i − y_j) (q_jᵀ K'_i)) + [i = j] s Σ_k P_jk (v_k − y_j) (k_kᵀ
    Q'_j)`,

    so that all blocks follow from the d_head × width Jacobians of query, key and value of each
    token, which `width` tangents give for all tokens at once. They are multiplied by the few
    vectors that they meet (`_JacobianVectors`) or, where an input has more tokens than a head has
    dimensions, by each other (`_JacobianGrams`). Soft-capped scores contribute their own slope. In
    other layers tangents are pushed one by one.
    """
    n_examples, n_tokens = batch.ids.shape
    shape = (n_examples, model.layers, model.heads, n_tokens, n_tokens)
    squares = torch.zeros(shape, dtype=torch.float64, device=model.device)
    # Few examples at a time, so that the products of all heads fit into memory: for each group of
    # heads that does not, the Jacobians would be computed again.
    step = _examples_at_once(model, n_tokens, memory)
    for start in range(0, n_examples, step):
        examples = list(range(start, min(start + step, n_examples)))
        part = batch if len(examples) == n_examples else batch.select(examples)
        n = part.ids.shape[1]
        squares[start : start + step, :, :, :n, :n] = _batch_squared_norms(model, part, memory)
    return squares * token_pair_mask(batch).double()[:, None, None]


def _examples_at_once(model: HeadModel, n_tokens: int, memory: float) -> int:
    """Return how many examples have the Jacobian products of all their heads in `memory` MiB."""
    bytes_per_example = LIVE_GRAMS * 8 * n_tokens * model.heads * model.d_head**2
    return max(1, int(memory * MIB / bytes_per_example))


def _batch_squared_norms(model: HeadModel, batch: Batch, memory: float) -> Tensor:
    """Return the squared norms of all layers, `[example, layer, head, receiving, source]`."""
    with torch.no_grad():
        recorder = _CallRecorder(model)
        recorder.run(batch)
        layers = []
        for layer_call in recorder.layer_calls:
            layers.append(_layer_squared_norms(model, batch, layer_call, memory))
    return torch.stack(layers, dim=1)


def _layer_squared_norms(
    model: HeadModel, batch: Batch, layer_call: _LayerCall, memory: float
) -> Tensor:
    if forward_mode(model, batch) == TANGENT_TENSOR:
        with suppress(NoForwardDerivative):
            squares = _closed_form(model, batch, layer_call, memory)
            if squares is not None:
                return squares
    return _by_single_tangents(model, batch, layer_call, memory)


# --- closed form ----------------------------------------------------------------------------------


def _closed_form(
    model: HeadModel, batch: Batch, layer_call: _LayerCall, memory: float
) -> Tensor | None:
    """Return all blocks of a layer from the Jacobians of each token's query, key and value; None if
    tokens mix in those."""
    hidden = layer_call.hidden
    _, n, width = hidden.shape
    call = _LayerReplay(model, with_output=False).replay(layer_call, hidden).call
    if call is None or isinstance(call, FormedCall):
        return None
    if call.query.shape[2] != n or call.key.shape[2] != n:
        return None
    # Two tangents, each of which moves one token alone, the first and the last: no other token may
    # move with it.
    single_tokens = torch.zeros(2, *hidden.shape, dtype=hidden.dtype, device=hidden.device)
    direction = torch.linspace(-1, 1, width, dtype=hidden.dtype, device=hidden.device)
    single_tokens[0, :, 0] = direction
    single_tokens[1, :, -1] = direction
    tangents = _query_key_value_tangents(model, layer_call, hidden, single_tokens)
    if tangents is None:
        return None
    for tangent in tangents:
        if tangent[0, :, :, 1:].any() or tangent[1, :, :, :-1].any():
            return None
    # Where neither norm nor position comes before query, key and value, every token has the same
    # Jacobian: that of one token is enough.
    same_jacobian = n > 1 and all(map(_first_equals_last, tangents))
    states = hidden[:1, :1] if same_jacobian else hidden
    # Products of Jacobians with vectors take longer the more tokens there are, products of
    # Jacobians with each other the larger a head is.
    use_vectors = n <= call.query.shape[-1] and not same_jacobian
    head_groups = [slice(0, call.key.shape[1])]
    if not use_vectors:
        head_groups = _head_groups(call, memory)
    parts = []
    for kv_heads in head_groups:
        blocks: _BlockSums = _JacobianGrams(call, kv_heads)
        if use_vectors:
            blocks = _JacobianVectors(call, kv_heads)

        def add_chunk(start: int, stop: int, blocks: _BlockSums = blocks) -> None:
            # All tokens move at once along each dimension: they do not mix here.
            directions = torch.zeros(
                stop - start, *states.shape, dtype=hidden.dtype, device=hidden.device
            )
            directions[torch.arange(stop - start), :, :, torch.arange(start, stop)] = 1
            moved = _query_key_value_tangents(model, layer_call, states, directions)
            assert moved is not None
            query, key, value = moved
            if same_jacobian:
                # One token's Jacobian is small: exact products cost nothing.
                blocks.add(query.double(), key.double(), value.double())
            else:
                blocks.add(query, key, value)

        for_each_chunk(add_chunk, width, tangents_per_chunk(model, batch, memory), model)
        parts.append(blocks.squared_norms())
    return torch.cat(parts, dim=1)


def _first_equals_last(tangent: Tensor) -> bool:
    """Return whether the first and the last token have the same derivative."""
    tolerance = 1e-6 * float(tangent.abs().max())
    return torch.allclose(tangent[0, :, :, 0], tangent[1, :, :, -1], rtol=1e-5, atol=tolerance)


def _head_groups(call: Call, memory: float) -> list[slice]:
    """Return groups of key/value heads whose Jacobian products fit into `memory` MiB; at least one
    head each."""
    n_examples, n_heads, n_tokens, _, n_kv_heads, size = call.sizes
    largest_size = max(size, call.query.shape[-1])
    heads_per_kv = n_heads // n_kv_heads
    bytes_per_kv = LIVE_GRAMS * 8 * n_examples * n_tokens * heads_per_kv * largest_size**2
    step = max(1, int(memory * MIB / bytes_per_kv))
    groups = []
    for start in range(0, n_kv_heads, step):
        groups.append(slice(start, min(start + step, n_kv_heads)))
    return groups


def _query_key_value_tangents(
    model: HeadModel, layer_call: _LayerCall, hidden: Tensor, tangents: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the tangents of query, key and value, `[tangent, example, head, token, size]`; None if
    anything else of the attention call has tangents."""
    with_tangents = TangentTensor(hidden, tangents)
    call = _LayerReplay(model, with_output=False).replay(layer_call, with_tangents).call
    if call is None:
        return None
    if any(isinstance(tensor, TangentTensor) for tensor in (call.bias, call.mask, call.sinks)):
        return None

    def tangents_of(tensor: Tensor) -> Tensor:
        if isinstance(tensor, TangentTensor):
            return tensor.tangent
        return tensor.new_zeros(len(tangents), *tensor.shape)

    return tangents_of(call.query), tangents_of(call.key), tangents_of(call.value)


class _BlockSums:
    """Squared norms of a layer's blocks, from sums over input dimensions.

    The block is `P_ji (V'_i + (v_i − y_j) aᵀ)` with `a = s_ji K'_iᵀ q_j`, and for i = j `F_j Q'_j`
    besides, with `F_j = Σ_k P_jk s_jk (v_k − y_j) k_kᵀ`. Sums are in float64, since terms may
    cancel.

    Parameters
    ----------
    call : Call
        The attention call, without tangents.
    kv_heads : slice
        Some of the key/value heads; the query heads that share them belong to it.
    """

    def __init__(self, call: Call, kv_heads: slice) -> None:
        self.kv_heads = kv_heads
        self.group_size = call.query.shape[1] // call.key.shape[1]
        self.heads = slice(kv_heads.start * self.group_size, kv_heads.stop * self.group_size)
        key, value = call.repeated()
        weights, _ = call.weights(key, 0, call.query.shape[2])
        self.query = call.query[:, self.heads].double()
        self.key = key[:, self.heads].double()
        self.value = value[:, self.heads].double()
        self.weights = weights[:, self.heads].double()
        # Derivative of the score with respect to q·k: the scale, less where scores are soft-capped.
        self.slope = torch.full_like(self.weights, call.scaling)
        if call.softcap is not None:
            scores = self.query @ self.key.transpose(2, 3) * call.scaling
            self.slope = self.slope * (1 - torch.tanh(scores / call.softcap) ** 2)
        self.output = self.weights @ self.value
        self.sums: dict[str, Tensor] = {}

    def add(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Add the tangents along some input dimensions, `[dimension, example, head, token,
        size]`."""
        # Sums are changed only now, so that a chunk that runs out of memory leaves nothing behind.
        for name, product in self._products(query, key, value).items():
            if name in self.sums:
                self.sums[name].add_(product)
            else:
                self.sums[name] = product

    def _products(self, query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        """Return what is summed, over these input dimensions."""
        raise NotImplementedError

    def squared_norms(self) -> Tensor:
        """Return the squared norms of all blocks, `[example, head, receiving, source]`."""
        raise NotImplementedError

    def _through_key_and_value(self, vv: Tensor, cross: Tensor, a_squared: Tensor) -> Tensor:
        """Return `‖P (V' + (v − y) aᵀ)‖² = P² (‖V'‖² + 2 (v − y)ᵀ V' a + ‖v − y‖² ‖a‖²)`."""
        v_squared = self.value.square().sum(-1)[..., None, :]
        y_squared = self.output.square().sum(-1)[..., :, None]
        difference_squared = v_squared + y_squared - 2 * self.output @ self.value.transpose(-1, -2)
        return self.weights**2 * (
            vv[..., None, :] + 2 * cross + difference_squared.clamp(min=0) * a_squared
        )


class _JacobianVectors(_BlockSums):
    """The sums from products of Jacobians with the vectors that they meet: `K'_iᵀ q_j`, `V'_iᵀ
    y_j`, `Q'_jᵀ k_k`.

    They take tokens × size × width operations for each token and head, where the products of
    Jacobians with each other take size² × width: here the cheaper way for inputs of fewer tokens
    than a head has dimensions.
    """

    def _products(self, query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        # example, head, dimension, token, size
        query = query.permute(1, 2, 0, 3, 4)
        key = key.permute(1, 2, 0, 3, 4)
        value = value.permute(1, 2, 0, 3, 4)
        v = self.value.to(value.dtype)
        output = self.output.to(value.dtype)

        # K'_iᵀ q_j, V'_iᵀ v_k and V'_iᵀ (v_i − y_j): example, head, dimension, source i, token
        key_by_query = self._meet_in_groups(key, self.query.to(key.dtype))
        value_by_value = _meet(value, v[:, :: self.group_size])
        value_by_value = value_by_value.repeat_interleave(self.group_size, dim=1)
        own_value = value_by_value.diagonal(dim1=-2, dim2=-1)
        value_by_difference = own_value[..., None] - self._meet_in_groups(value, output)
        # F_j Q'_j = Σ_k (∂P_jk) v_k, the derivative of the softmax: y_j is Σ_k P_jk v_k.
        weights = self.weights.to(query.dtype)[:, :, None]
        slope = self.slope.to(query.dtype)[:, :, None]
        change = _meet(query, self.key.to(query.dtype)) * (weights * slope)
        change -= weights * change.sum(-1, keepdim=True)
        f_query = _meet(change, v.transpose(-1, -2))
        value_by_own_difference = (v - output) @ v.transpose(-1, -2)
        f_query_by_difference = (change * value_by_own_difference[:, :, None]).sum(-1)
        own_key_by_query = key_by_query.diagonal(dim1=-2, dim2=-1)
        v_squared = torch.linalg.vector_norm(value, dim=-1).square().sum(2, dtype=torch.float64)
        return {
            "kk": key_by_query.square().sum(2, dtype=torch.float64),
            "vk": (value_by_difference * key_by_query).sum(2, dtype=torch.float64),
            "vv": v_squared.repeat_interleave(self.group_size, dim=1),
            "qq": torch.linalg.vector_norm(f_query, dim=-1).square().sum(2, dtype=torch.float64),
            "qv": (change * value_by_value).sum((2, 4), dtype=torch.float64),
            "qk": (f_query_by_difference * own_key_by_query).sum(2, dtype=torch.float64),
        }

    def _meet_in_groups(self, tangents: Tensor, vectors: Tensor) -> Tensor:
        """Return the products of the tangents of key/value heads with vectors of query heads: those
        that share a key/value head at once."""
        n_examples, n_heads, n, size = vectors.shape
        by_kv = vectors.reshape(n_examples, n_heads // self.group_size, -1, size)
        products = _meet(tangents, by_kv)
        products = products.view(*products.shape[:-1], self.group_size, n)
        # example, key/value head, head of the group, dimension, source, receiving
        return products.permute(0, 1, 4, 2, 3, 5).flatten(1, 2)

    def squared_norms(self) -> Tensor:
        # receiving, source
        a_squared = self.slope**2 * self.sums["kk"].transpose(-1, -2)
        cross = self.slope * self.sums["vk"].transpose(-1, -2)
        blocks = self._through_key_and_value(self.sums["vv"], cross, a_squared)
        # What the token's own query adds: ‖F Q'‖² + 2 ⟨P (V' + (v − y) aᵀ), F Q'⟩
        weight = self.weights.diagonal(dim1=-2, dim2=-1)
        slope = self.slope.diagonal(dim1=-2, dim2=-1)
        diagonal = blocks.diagonal(dim1=-2, dim2=-1)
        diagonal += self.sums["qq"] + 2 * weight * (self.sums["qv"] + slope * self.sums["qk"])
        return blocks.clamp(min=0)


class _JacobianGrams(_BlockSums):
    """The sums from products of Jacobians with each other.

    The square of a block needs only the products `V'V'ᵀ`, `V'K'ᵀ`, `K'K'ᵀ`, ... of each token,
    `[example, head, token, size, size]`, which broadcast where all tokens share them.
    """

    def _products(self, query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        def dimension_last(tangents: Tensor) -> Tensor:
            # example, head, token, dimension, size
            return tangents.permute(1, 2, 3, 0, 4).contiguous()

        q = dimension_last(query[:, :, self.heads])
        k = dimension_last(key[:, :, self.kv_heads])
        v = dimension_last(value[:, :, self.kv_heads])
        kk = _gram(k, k)
        vk = _gram(v, k)
        vv = v.square().sum((-1, -2)).double()
        if self.group_size > 1:
            # Products of shared heads are formed once, then repeated for each query head.
            k = k.repeat_interleave(self.group_size, dim=1)
            v = v.repeat_interleave(self.group_size, dim=1)
            kk = kk.repeat_interleave(self.group_size, dim=1)
            vk = vk.repeat_interleave(self.group_size, dim=1)
            vv = vv.repeat_interleave(self.group_size, dim=1)
        return {
            "kk": kk,
            "vk": vk,
            "vv": vv,
            "qq": _gram(q, q),
            "qk": _gram(q, k),
            "vq": _gram(v, q),
        }

    def squared_norms(self) -> Tensor:
        kk = self.sums["kk"].flatten(-2).transpose(-1, -2)
        vk = self.sums["vk"]
        vv = self.sums["vv"]
        a_squared = self.slope**2 * (_outer(self.query, self.query) @ kk)
        v_part = self.query @ (self.value[..., None, :] @ vk)[..., 0, :].transpose(-1, -2)
        y_part = _outer(self.output, self.query) @ vk.flatten(-2).transpose(-1, -2)
        cross = self.slope * (v_part - y_part)
        blocks = self._through_key_and_value(vv, cross, a_squared)
        diagonal = blocks.diagonal(dim1=-2, dim2=-1)
        diagonal += self._through_query()
        return blocks.clamp(min=0)

    def _through_query(self) -> Tensor:
        """Return what the token's own query adds to its block: `‖F Q'‖² + 2 ⟨P (V' + (v−y) aᵀ), F
        Q'⟩`."""
        output = self.output
        mass = self.weights * self.slope
        sizes = (self.value.shape[-1], self.key.shape[-1])
        value_key = (mass @ _outer(self.value, self.key)).view(*output.shape[:-1], *sizes)
        f = value_key - output[..., :, None] * (mass @ self.key)[..., None, :]
        weight = self.weights.diagonal(dim1=-2, dim2=-1)
        slope = self.slope.diagonal(dim1=-2, dim2=-1)
        q_k_query = (self.sums["qk"] @ self.query[..., None])[..., 0]  # Q' K'ᵀ q
        f_q_k_query = (f @ q_k_query[..., None])[..., 0]
        value_term = (self.sums["vq"] * f).sum((-1, -2))
        key_term = slope * ((self.value - output) * f_q_k_query).sum(-1)
        query_term = (f @ self.sums["qq"] * f).sum((-1, -2))
        return query_term + 2 * weight * (value_term + key_term)


def _meet(tangents: Tensor, vectors: Tensor) -> Tensor:
    """Return the products of tangents `[example, head, dimension, token, size]` with vectors
    `[example, head, vector, size]`, `[example, head, dimension, token, vector]`."""
    # One large product for each head instead of one for each dimension.
    products = tangents.flatten(2, 3) @ vectors.transpose(-1, -2)
    return products.view(*tangents.shape[:-1], vectors.shape[2])


def _gram(a: Tensor, b: Tensor) -> Tensor:
    """Return the products `[..., size of a, size of b]`, summed over dimensions."""
    return (a.transpose(-1, -2) @ b).double()


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Return the outer products, flattened: `[..., token, size of a · size of b]`."""
    return (a[..., :, None] * b[..., None, :]).flatten(-2)


# --- one tangent at a time ------------------------------------------------------------------------


def _by_single_tangents(
    model: HeadModel, batch: Batch, layer_call: _LayerCall, memory: float
) -> Tensor:
    """Move every token and dimension of E[l] by itself, through this layer only."""
    hidden = layer_call.hidden
    n_examples, n, width = hidden.shape
    sums = torch.zeros(n, n_examples, model.heads, n, dtype=torch.float64, device=hidden.device)

    def push_together(start: int, stop: int) -> None:
        numbers = torch.arange(start, stop, device=hidden.device)
        tokens = numbers // width
        tangents = torch.zeros(
            stop - start, n_examples, n, width, dtype=hidden.dtype, device=hidden.device
        )
        tangents[numbers - start, :, tokens, numbers % width] = 1
        replay = _LayerReplay(model, with_output=True)
        output = replay.replay(layer_call, TangentTensor(hidden, tangents)).output
        assert isinstance(output, TangentTensor)
        sums.index_add_(0, tokens, squared_norm(output.tangent).double())

    def push_one_by_one(start: int, stop: int) -> None:
        # One dual number at a time keeps the shapes of the layer's other arguments.
        squares = []
        for number in range(start, stop):
            token = number // width
            tangent = torch.zeros_like(hidden)
            tangent[:, token, number % width] = 1
            with forward_ad.dual_level():
                replay = _LayerReplay(model, with_output=True)
                output = replay.replay(layer_call, make_dual(hidden, tangent)).output
                assert output is not None
                squares.append((token, squared_norm(tangent_of(output)).double()))
        for token, token_squares in squares:
            sums[token] += token_squares

    together = forward_mode(model, batch) == TANGENT_TENSOR
    push_chunk = push_together if together else push_one_by_one
    for_each_chunk(push_chunk, n * width, tangents_per_chunk(model, batch, memory), model)
    return sums.permute(1, 2, 3, 0)
