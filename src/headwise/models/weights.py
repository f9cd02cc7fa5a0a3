"""The matrices of every head, read from any architecture: directions are sent into its attention,
and what comes out as query, key and value is the matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models.forward_call import only_in_this_thread
from headwise.models.headmodel import HeadModel
from headwise.models.sites import hidden_input, replaced
from headwise.models.structure import Norm, Structure, TransformerBlock, affine
from headwise.models.tap import Call, FormedCall, Running, use_session

ROWS = 4096  # directions sent at a time


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The matrices of one layer's heads, for row vectors: `query[head, width, d]`, `key`, `value`
    (grouped ones repeated), the gain of the norm before them folded in, and `output[head, d,
    width]`.

    `query`, `key` are None where the architecture does not show them. `left_out` says what they do
    not hold."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor
    output: Tensor
    left_out: frozenset[str]


class _Seen(Exception):
    """Raised inside attention once query, key and value are there: the rest would be for
    nothing."""


class _Reader(Running):
    """A session that keeps the first attention call and ends the pass there."""

    def __init__(self) -> None:
        self.call: Call | None = None

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        self.call = call
        raise _Seen


def head_weights(model: HeadModel, structure: Structure) -> Iterator[LayerWeights]:
    """The matrices of the heads, layer by layer, so that only one layer is held at a time."""
    given = _arguments(model, structure)
    for block in structure.blocks:
        yield _layer(model, block, *given[block.module])


def _arguments(
    model: HeadModel, structure: Structure
) -> Mapping[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]:
    """What each attention module gets for an input of one token, at the first position."""
    kept: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept[module] = args, dict(kwargs)

    ids = torch.ones(1, 1, dtype=torch.int64, device=model.device)
    with ExitStack() as stack, torch.no_grad(), model.evaluating():
        for block in structure.blocks:
            stack.callback(
                block.module.register_forward_pre_hook(
                    only_in_this_thread(keep), with_kwargs=True
                ).remove
            )
        model.run(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    return kept


def _layer(
    model: HeadModel, block: TransformerBlock, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> LayerWeights:
    example = hidden_input(args, kwargs)
    width = example.shape[-1]
    directions = torch.cat([torch.eye(width), torch.zeros(1, width)]).to(example)
    parts: list[tuple[Tensor | None, ...]] = []
    with torch.no_grad(), model.evaluating(), _gains_only(block.inner):
        for start in range(0, width + 1, ROWS):
            parts.append(
                _sent(model, block, directions[start : start + ROWS, None], example, args, kwargs)
            )
    groups = model.heads // model.kv_heads
    found = [
        None if own[0] is None else torch.cat([x for x in own if x is not None])
        for own in zip(*parts, strict=True)
    ]
    left_out = (
        {"the norms of queries and keys hold their gain, not their scale"} if block.inner else set()
    )
    matrices: list[Tensor | None] = []
    for values, what in zip(found, ("query", "key", "value"), strict=True):
        if values is None:
            matrices.append(None)
            continue
        bias, matrix = values[-1], (values[:-1] - values[-1]).float()
        if bool(bias.abs().max() > 0):
            left_out.add(f"the bias of the {what}")
        matrix = matrix.permute(1, 0, 2)  # head, width, d
        if block.reading is not None:  # the norm before it, but for its scale
            matrix = block.reading.middle(matrix * block.reading.gain[:, None].to(matrix), 1)
        repeated = groups if what != "query" and len(matrix) != model.heads else 1
        matrices.append(matrix.repeat_interleave(repeated, dim=0))
    query, key, value = matrices
    if value is None:
        raise ModelError(
            f"{type(block.module).__name__} shows no values; its weights cannot be read."
        )
    if block.reading is not None and bool(block.reading.bias.abs().max() > 0):
        left_out.add("the bias of the norm before attention")
    output, bias = affine(block.projection, model.heads * value.shape[-1], example)
    if bool(bias.abs().max() > 0):
        left_out.add("the bias of the output projection")
    if block.writing is not None:
        output = block.writing.middle(output * block.writing.gain.to(output))
        left_out.add("the norm after the output projection holds its gain, not its scale")
    output = output.float().view(model.heads, -1, output.shape[-1])
    return LayerWeights(query, key, value, output, frozenset(left_out))


def _sent(
    model: HeadModel,
    block: TransformerBlock,
    rows: Tensor,
    example: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Tensor | None, ...]:
    """Query, key and value `[row, head, d]` for these rows, each an input of one token at the first
    position."""
    reader = _Reader()
    own_args, own_kwargs = replaced(args, kwargs, example, rows)
    try:
        with use_session(reader):
            block.module(*own_args, **own_kwargs)
    except _Seen:
        pass
    except Exception as error:  # whatever a module that cannot run apart may raise
        raise ModelError(
            f"{type(block.module).__name__} cannot be run apart from its layer ({type(error).__name__}), so its "
            "weights cannot be read."
        ) from error
    if reader.call is None:
        raise ModelError(
            f"{type(block.module).__name__} calls no attention of its own; its weights cannot be read."
        )
    call = reader.call
    shown = (
        (None, None, call.value)
        if isinstance(call, FormedCall)
        else (call.query, call.key, call.value)
    )
    return tuple(None if values is None else values[:, :, 0] for values in shown)


@contextmanager
def _gains_only(norms: tuple[Norm, ...]) -> Iterator[None]:
    """Norms that multiply by their gain and divide by nothing, for a while: then queries and keys
    are linear."""
    with ExitStack() as stack:
        for norm in norms:

            def plain(
                module: nn.Module, args: tuple[Any, ...], output: Tensor, norm: Norm = norm
            ) -> Tensor:
                x = norm.middle(args[0])
                return (x * norm.gain.to(x)).to(output.dtype)

            stack.callback(norm.module.register_forward_hook(only_in_this_thread(plain)).remove)
        yield
