"""Exact contributions of the input by forward mode: one tangent for each token and input dimension
gives every head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.analyses.attribution.hooked_pass import token_pair_mask
from headwise.analyses.attribution.precision import compiled, in_half, matrix_products, use_compiled
from headwise.analyses.attribution.pushforward import DUAL_NUMBERS, forward_mode, push_tangents
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.text.encode import Batch

# MiB of tangents in flight. Larger chunks are hardly faster on a CPU; a GPU can take far more.
DEFAULT_MEMORY = 256
MIB = 2**20
LayerNorms = list[tuple[int, Tensor]]  # layer, squared norms [tangent, example, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SquaredNorms:
    """Squared Frobenius norms of Jacobian blocks.

    `heads[example, layer, head, receiving, source]`, and `layers[example, layer, receiving,
    source]` of what leaves a layer.
    """

    heads: Tensor
    layers: Tensor | None = None


def exact_squared_norms(
    model: HeadModel, batch: Batch, *, layer_output: bool = False, memory: float = DEFAULT_MEMORY
) -> SquaredNorms:
    """Return `‖∂O[l,h,j] / ∂E[0,i]‖²` (and `‖∂E[l+1,j] / ∂E[0,i]‖²`) for a whole batch (Pascual et
    al. 2021, §4).

    There is one tangent per token and dimension of the input; all layers and heads are read off in
    its pass. The squares of a token's tangents add up to the squared norm of its block.

    Parameters
    ----------
    model : HeadModel
        In float32 or better.
    batch : Batch
        The inputs.
    layer_output : bool, default False
        Also compute the norms of what leaves each layer.
    memory : float, default 256
        MiB that bound how many tangents are in flight, whatever the length of the input.
    """
    n_tokens = int(batch.lengths.max())
    width = model.hidden
    sums = SquaredNormSums(model, batch, layer_output)

    def push_chunk(start: int, stop: int) -> None:
        numbers = torch.arange(start, stop, device=model.device)
        tokens = numbers // width
        tangents = torch.zeros(
            stop - start, len(batch), batch.ids.shape[1], width, device=model.device
        )
        # The same direction in every example at once: examples do not influence each other.
        tangents[numbers - start, :, tokens, numbers % width] = 1
        sums.add_tangents(tangents, tokens)

    chunk_size = tangents_per_chunk(model, batch, memory)
    for_each_chunk(push_chunk, n_tokens * width, chunk_size, model)
    return sums.squared_norms()


class SquaredNormSums:
    """Sums over tangents of the squared norms of the tangents of head outputs, by the token each
    tangent stands on.

    Parameters
    ----------
    model : HeadModel
        In float32 or better.
    batch : Batch
        The inputs.
    layer_output : bool
        Also sum over what leaves each layer.
    moments : int, default 1
        How many powers of the squared norms are summed.
    """

    def __init__(
        self, model: HeadModel, batch: Batch, layer_output: bool, moments: int = 1
    ) -> None:
        self.model = model
        self.batch = batch
        self.moments = moments
        n_examples, n_tokens = batch.ids.shape
        # Source token before layer and example: rows of tangents are added there. In float64, so
        # that the order of chunks does not matter.
        shape = (moments, n_tokens, model.layers, n_examples, model.heads, n_tokens)
        self.heads = torch.zeros(shape, dtype=torch.float64, device=model.device)
        self.layers = torch.zeros_like(self.heads[:, :, :, :, 0]) if layer_output else None

    def add_tangents(self, tangents: Tensor, tokens: Tensor) -> None:
        """Push tangents, the t-th of which stands on token `tokens[t]`, and add what arrives."""
        heads, layers = self._push(tangents)
        if in_half() and not _all_finite([*heads, *layers]):
            # Some tangent exceeds the range of half precision: push these again in single.
            with matrix_products("tf32"):
                heads, layers = self._push(tangents)
        # Added only now, so that a chunk that runs out of memory leaves nothing behind. The product
        # with a one-hot matrix adds in a fixed order, on a GPU too.
        by_token = torch.nn.functional.one_hot(tokens, self.heads.shape[1]).double().T
        self._add(self.heads, heads, by_token)
        if self.layers is not None:
            self._add(self.layers, layers, by_token)

    def _push(self, tangents: Tensor) -> tuple[LayerNorms, LayerNorms]:
        """Return the squared norms of heads and of layers."""
        heads: LayerNorms = []
        layers: LayerNorms = []

        def on_heads(layer: int, head_tangents: Tensor) -> None:
            heads.append((layer, squared_norm(head_tangents)))

        def on_layers(layer: int, layer_tangents: Tensor) -> None:
            layers.append((layer, squared_norm(layer_tangents)))

        layer_callback = None if self.layers is None else on_layers
        push_tangents(self.model, self.batch, tangents, on_heads, layer_callback)
        return heads, layers

    def _add(self, total: Tensor, layer_norms: LayerNorms, by_token: Tensor) -> None:
        for layer, squares in layer_norms:
            for power in range(self.moments):
                added = by_token @ (squares.double() ** (power + 1)).flatten(1)
                total[power, :, layer] += added.view(-1, *squares.shape[1:])

    def squared_norms(self, power: int = 0) -> SquaredNorms:
        """Return the sums, zero for padding on either side."""
        mask = token_pair_mask(self.batch).double()
        heads = self.heads[power].permute(2, 1, 3, 4, 0) * mask[:, None, None]
        layers = None
        if self.layers is not None:
            layers = self.layers[power].permute(2, 1, 3, 0) * mask[:, None]
        return SquaredNorms(heads, layers)


def _all_finite(layer_norms: LayerNorms) -> bool:
    return all(bool(squares.isfinite().all()) for _, squares in layer_norms)


def squared_norm(tangents: Tensor) -> Tensor:
    """Return the sum of squares over the last dimension, without a copy of the squares."""
    if use_compiled():
        return compiled(_squared_norm)(tangents)
    dtype = torch.promote_types(tangents.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(tangents, dim=-1, dtype=dtype)
    return norms.square_()


def _squared_norm(tangents: Tensor) -> Tensor:
    """The same, for the compiler."""
    return tangents.to(torch.promote_types(tangents.dtype, torch.float32)).square().sum(-1)


def tangents_per_chunk(model: HeadModel, batch: Batch, memory: float) -> int:
    """Return how many tangents fit into `memory` MiB.

    For each, at most eight hidden states, three inner states of the feed-forward part and five maps
    are alive at once.
    """
    widest = model.hidden
    widths = []
    for entry in model.sites.entries:
        for parameter in entry.parameters():
            if parameter.ndim == 2:
                widths.append(max(parameter.shape))
    if widths:
        widest = max(widths)
    n_examples, n_tokens = batch.ids.shape
    attention_width = model.heads * model.d_head
    values_per_token = (
        8 * max(model.hidden, attention_width) + 3 * widest + 5 * model.heads * n_tokens
    )
    values = n_examples * n_tokens * values_per_token
    if forward_mode(model, batch) == DUAL_NUMBERS:
        values *= 3  # the primal once for each tangent, and intermediate results of both
    bytes_per_value = max(4, torch.finfo(model.dtype).bits // 8)
    return max(1, int(memory * MIB / (values * bytes_per_value)))


def for_each_chunk(
    function: Callable[[int, int], None], total: int, chunk_size: int, model: HeadModel
) -> None:
    """Call `function(start, stop)` over `total` tangents; halve the chunks if memory runs out."""
    start = 0
    while start < total:
        stop = min(start + chunk_size, total)
        try:
            function(start, stop)
            start = stop
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if chunk_size == 1:
                raise ModelError(
                    "One tangent of this input does not fit into memory; shorten the input or use "
                    "a smaller batch."
                ) from error
            chunk_size = max(1, chunk_size // 2)
            if model.device.type == "cuda":
                torch.cuda.empty_cache()


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, whatever its class."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    message = str(error)
    return "not enough memory" in message or "can't allocate memory" in message
