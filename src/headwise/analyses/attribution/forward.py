"""Exact input contributions by forward mode: one tangent for each token and input dimension gives
every head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.analyses.attribution.hooked_pass import TangentCallback, token_pair_mask
from headwise.analyses.attribution.precision import compiled, in_half, matrix_products, use_compiled
from headwise.analyses.attribution.pushforward import forward_mode, push_tangents
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.text.encode import Batch

DEFAULT_MEMORY = 512  # MiB of tangents in flight
MIB = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class SquaredNorms:
    """Squared Frobenius norms of Jacobian blocks.

    `heads[example, layer, head, receiving, source]`, and `layers[example, layer, receiving,
    source]` of what leaves a layer."""

    heads: Tensor
    layers: Tensor | None = None


def exact_squared_norms(
    model: HeadModel, batch: Batch, *, layer_output: bool = False, memory: float = DEFAULT_MEMORY
) -> SquaredNorms:
    """`‖∂O[l,h,j] / ∂E[0,i]‖²` (and `‖∂E[l+1,j] / ∂E[0,i]‖²`) for a whole batch (Pascual et al.
    2021, §4).

    One tangent per token and dimension of the input, all layers and heads read off on its way; the
    squares of a token's tangents add up to the squared norm of its block. `memory` (MiB) bounds how
    many tangents travel together, whatever the length of the input."""
    tokens, width = int(batch.lengths.max()), model.hidden
    sums = SquaredNormSums(model, batch, layer_output)

    def some(start: int, stop: int) -> None:
        places = torch.arange(start, stop, device=model.device)
        tangents = torch.zeros(
            stop - start, len(batch), batch.ids.shape[1], width, device=model.device
        )
        # The same direction in every example at once: examples do not see each other.
        tangents[places - start, :, places // width, places % width] = 1
        sums.add_tangents(tangents, places // width)

    for_each_chunk(some, tokens * width, tangents_per_chunk(model, batch, memory), model)
    return sums.squares()


class SquaredNormSums:
    """SquaredNormSums over tangents of the squared tangents of head outputs, by the token each tangent stands
    on."""

    def __init__(
        self, model: HeadModel, batch: Batch, layer_output: bool, moments: int = 1
    ) -> None:
        self.model, self.batch, self.moments = model, batch, moments
        n, examples = batch.ids.shape[1], len(batch)
        # Source token first: rows of tangents are added there. Float64, so that the order of chunks
        # does not matter.
        sizes = moments, n, model.layers, examples, model.heads, n
        self.heads = torch.zeros(sizes, dtype=torch.float64, device=model.device)
        self.layers = torch.zeros_like(self.heads[:, :, :, :, 0]) if layer_output else None

    def add_tangents(self, tangents: Tensor, tokens: Tensor) -> None:
        """Push tangents, the t-th of which stands on token `tokens[t]`, and add up what arrives."""
        heads: list[tuple[int, Tensor]] = []
        layers: list[tuple[int, Tensor]] = []

        def into(found: list[tuple[int, Tensor]]) -> TangentCallback:
            return lambda layer, moved: found.append((layer, squared_norm(moved)))

        push_tangents(
            self.model,
            self.batch,
            tangents,
            into(heads),
            None if self.layers is None else into(layers),
        )
        if in_half() and not all(
            bool(squares.isfinite().all()) for _, squares in (*heads, *layers)
        ):
            # Some tangent outgrew half precision: these go again, in single.
            heads.clear()
            layers.clear()
            with matrix_products("tf32"):
                push_tangents(
                    self.model,
                    self.batch,
                    tangents,
                    into(heads),
                    None if self.layers is None else into(layers),
                )
        # Added only now, so that a chunk that runs out of memory on its way leaves nothing behind.
        # A product with who stands where adds up in a fixed order, on a GPU too.
        places = torch.nn.functional.one_hot(tokens, self.heads.shape[1]).double().T
        for total, found in ((self.heads, heads), (self.layers, layers)):
            for layer, squares in found:
                assert total is not None
                for power in range(self.moments):
                    added = places @ (squares.double() ** (power + 1)).flatten(1)
                    total[power, :, layer] += added.view(-1, *squares.shape[1:])

    def squares(self, power: int = 0) -> SquaredNorms:
        """`[example, layer, head, receiving, source]`, zero for padding on either side."""
        pairs = token_pair_mask(self.batch).double()
        heads = self.heads[power].permute(2, 1, 3, 4, 0) * pairs[:, None, None]
        layers = (
            None if self.layers is None else self.layers[power].permute(2, 1, 3, 0) * pairs[:, None]
        )
        return SquaredNorms(heads, layers)


def squared_norm(moved: Tensor) -> Tensor:
    """Sum of squares over the last dimension, without a copy of the squares."""
    if use_compiled():
        return compiled(_plain_squares)(moved)
    norms: Tensor = torch.linalg.vector_norm(
        moved, dim=-1, dtype=torch.promote_types(moved.dtype, torch.float32)
    )
    return norms.square_()


def _plain_squares(moved: Tensor) -> Tensor:
    return moved.to(torch.promote_types(moved.dtype, torch.float32)).square().sum(-1)


def tangents_per_chunk(model: HeadModel, batch: Batch, memory: float) -> int:
    """How many tangents fit into `memory` MiB.

    For each at most eight hidden states, three inner states of the feed-forward part and five maps
    are alive at once."""
    widths = (
        max(p.shape) for entry in model.sites.entries for p in entry.parameters() if p.ndim == 2
    )
    widest = max(widths, default=model.hidden)
    examples, tokens = batch.ids.shape
    inner = model.heads * model.d_head
    values = (
        examples * tokens * (8 * max(model.hidden, inner) + 3 * widest + 5 * model.heads * tokens)
    )
    if forward_mode(model, batch) == "dual_numbers":
        values *= 3  # the primal is there once for each tangent, and intermediate results of both
    return max(1, int(memory * MIB / (values * max(4, torch.finfo(model.dtype).bits // 8))))


def for_each_chunk(
    some: Callable[[int, int], None], total: int, at_once: int, model: HeadModel
) -> None:
    """Call `some(start, stop)` over `total` tangents; where memory does not suffice after all, in
    smaller chunks."""
    start = 0
    while start < total:
        stop = min(start + at_once, total)
        try:
            some(start, stop)
            start = stop
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if at_once == 1:
                raise ModelError(
                    "One tangent of this input does not fit into memory; shorten the input or use a smaller batch."
                ) from error
            at_once = max(1, at_once // 2)
            if model.device.type == "cuda":
                torch.cuda.empty_cache()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, whatever its class."""
    said = any(words in str(error) for words in ("not enough memory", "can't allocate memory"))
    return said or isinstance(error, torch.OutOfMemoryError | MemoryError)
