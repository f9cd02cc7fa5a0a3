"""The matrices of every head, read from any architecture: directions are sent into its attention,
and the queries, keys and values that come out are the matrices."""

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
from headwise.models.tap import Call, FormedCall, TapSession, use_session

ROWS = 4096  # directions sent at a time


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The matrices of one layer's heads, for row vectors: `query[head, width, d]`, `key`, `value`
    (grouped ones repeated), the gain of the norm before them folded in, and `output[head, d,
    width]`, without the gain of a norm after it, which is `output_gain[width]` (None where there is
    no such norm).

    `query`, `key` are None where the architecture does not show them. `left_out` says what they do
    not hold."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor
    output: Tensor
    output_gain: Tensor | None
    left_out: frozenset[str]

    def written(self) -> Tensor:
        """Return what the heads write into the residual stream, the gain of a norm after the
        projection folded in, `[head, d, width]`."""
        if self.output_gain is None:
            return self.output
        return self.output * self.output_gain


class _CallRecorded(Exception):
    """Ends a pass inside attention once query, key and value are known."""


class _Reader(TapSession):
    """A session that records the first attention call and ends the pass there."""

    def __init__(self) -> None:
        self.call: Call | None = None

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        self.call = call
        raise _CallRecorded


def head_weights(model: HeadModel, structure: Structure) -> Iterator[LayerWeights]:
    """Yield the matrices of the heads, layer by layer: only one layer is in memory at a time."""
    arguments = _arguments(model, structure)
    for block in structure.blocks:
        args, kwargs = arguments[block.module]
        yield _layer(model, block, args, kwargs)


def _arguments(
    model: HeadModel, structure: Structure
) -> Mapping[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the arguments of each attention module for an input of one token."""
    arguments: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments[module] = args, dict(kwargs)

    hook = only_in_this_thread(record)
    ids = torch.ones(1, 1, dtype=torch.int64, device=model.device)
    with ExitStack() as stack, torch.no_grad(), model.evaluating():
        for block in structure.blocks:
            handle = block.module.register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        model.run(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    return arguments


def _layer(
    model: HeadModel, block: TransformerBlock, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> LayerWeights:
    example = hidden_input(args, kwargs)
    width = example.shape[-1]
    # The last row is zero: it shows the biases.
    directions = torch.cat([torch.eye(width), torch.zeros(1, width)]).to(example)
    parts: dict[str, list[Tensor]] = {"query": [], "key": [], "value": []}
    with torch.no_grad(), model.evaluating(), _gains_only(block.inner):
        for start in range(0, width + 1, ROWS):
            rows = directions[start : start + ROWS, None]
            for name, values in _send(block, rows, args, kwargs).items():
                parts[name].append(values)
    left_out = set()
    if block.inner:
        left_out.add("the norms of queries and keys hold their gain, not their scale")
    matrices: dict[str, Tensor] = {}
    for name, blocks in parts.items():
        if not blocks:
            continue
        values = torch.cat(blocks)
        bias = values[-1]
        if bool(bias.abs().max() > 0):
            left_out.add(f"the bias of the {name}")
        matrix = (values[:-1] - bias).float().permute(1, 0, 2)  # head, width, d
        if block.reading is not None:  # the norm before attention, except for its scale
            matrix = block.reading.middle(matrix * block.reading.gain[:, None].to(matrix), 1)
        if name != "query" and len(matrix) != model.heads:
            matrix = matrix.repeat_interleave(model.heads // model.kv_heads, dim=0)
        matrices[name] = matrix
    if "value" not in matrices:
        raise ModelError(
            f"{type(block.module).__name__} shows no values; its weights cannot be read."
        )
    if block.reading is not None and bool(block.reading.bias.abs().max() > 0):
        left_out.add("the bias of the norm before attention")
    value = matrices["value"]
    output, bias = affine(block.projection, model.heads * value.shape[-1], example)
    if bool(bias.abs().max() > 0):
        left_out.add("the bias of the output projection")
    output_gain = None
    if block.writing is not None:
        output = block.writing.middle(output)
        output_gain = block.writing.gain.to(output).float()
        left_out.add("the norm after the output projection holds its gain, not its scale")
    output = output.float().view(model.heads, -1, output.shape[-1])
    return LayerWeights(
        query=matrices.get("query"),
        key=matrices.get("key"),
        value=value,
        output=output,
        output_gain=output_gain,
        left_out=frozenset(left_out),
    )


def _send(
    block: TransformerBlock, rows: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Tensor]:
    """Return query, key and value `[row, head, d]` for these rows, each an input of one token at
    the first position; a module that forms its weights itself shows values alone."""
    call = capture_call(block.module, args, kwargs, rows)
    sent = {"value": call.value[:, :, 0]}
    if not isinstance(call, FormedCall):
        sent["query"] = call.query[:, :, 0]
        sent["key"] = call.key[:, :, 0]
    return sent


def capture_call(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Tensor
) -> Call:
    """Return the attention call that an attention module makes of other hidden states.

    The module runs up to its attention and no further.

    Parameters
    ----------
    module : Module
        The attention module.
    args, kwargs
        The arguments of a call of the module.
    hidden : Tensor
        What takes the place of the hidden states among them.
    """
    reader = _Reader()
    name = type(module).__name__
    new_args, new_kwargs = replaced(args, kwargs, hidden_input(args, kwargs), hidden)
    try:
        with use_session(reader):
            module(*new_args, **new_kwargs)
    except _CallRecorded:
        pass
    except Exception as error:  # whatever a module that cannot run apart may raise
        raise ModelError(
            f"{name} cannot be run apart from its layer ({type(error).__name__}), so its weights "
            "cannot be read."
        ) from error
    if reader.call is None:
        raise ModelError(f"{name} calls no attention of its own; its weights cannot be read.")
    return reader.call


@contextmanager
def _gains_only(norms: tuple[Norm, ...]) -> Iterator[None]:
    """Let norms multiply by their gain without dividing, for a `with` block: queries and keys are
    linear then."""
    with ExitStack() as stack:
        for norm in norms:

            def plain(
                module: nn.Module, args: tuple[Any, ...], output: Tensor, norm: Norm = norm
            ) -> Tensor:
                x = norm.middle(args[0])
                return (x * norm.gain.to(x)).to(output.dtype)

            stack.callback(norm.module.register_forward_hook(only_in_this_thread(plain)).remove)
        yield
