"""Runs of prompts: mean outputs of heads at the last token, and runs in which they are put in."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analyses.function_vectors.prompts import Prompt
from headwise.models import HeadModel
from headwise.models.forward_call import body_of, only_in_this_thread
from headwise.models.sites import hidden_input, replaced
from headwise.models.structure import Structure

ROWS_AT_A_TIME = 96  # copies of a prompt that run together, one for each changed head
PROMPTS_AT_A_TIME = 32


def last_outputs(model: HeadModel, prompts: Sequence[Prompt]) -> Tensor:
    """Return the mean output of every head at the last token, `[layer, head, d_head]`."""
    total: Tensor | None = None
    for prompt in prompts:
        outputs = model.trace(torch.tensor([prompt.ids]), {"outputs"}).outputs
        assert outputs is not None
        last = outputs[0, :, :, -1].float()
        total = last if total is None else total + last
    assert total is not None
    return total / len(prompts)


def next_probabilities(model: HeadModel, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Return the probabilities of the next token of prompts that are equally long, `[prompt,
    vocabulary]`."""
    batch = model.batch(torch.tensor([list(ids) for ids in prompts]))
    last = torch.tensor([batch.ids.shape[1] - 1], device=batch.device)
    logits: Tensor = model.forward(batch, logits=True, logit_rows=last).logits[:, -1]
    return logits.float().softmax(-1).cpu()


def are_right(model: HeadModel, prompts: Sequence[Prompt]) -> list[bool]:
    """Return for each prompt whether the likeliest next token is that of the answer.

    Prompts of the same length run together: one alone reads all weights for a few tokens."""
    by_length: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt.ids), []).append(number)
    right = [False] * len(prompts)
    for numbers in by_length.values():
        for start in range(0, len(numbers), PROMPTS_AT_A_TIME):
            group = numbers[start : start + PROMPTS_AT_A_TIME]
            probabilities = next_probabilities(model, [prompts[number].ids for number in group])
            for number, token in zip(group, probabilities.argmax(-1).tolist(), strict=True):
                right[number] = token == prompts[number].answer
    return right


def patched_probabilities(
    model: HeadModel, structure: Structure, prompt: Prompt, outputs: Tensor
) -> np.ndarray:
    """Return the probability of the answer with one head's output at the last token replaced, for
    every head, `[layer, head]`.

    What comes before the last token does not change: it runs once, and its keys and values serve
    for all heads.

    Parameters
    ----------
    model : HeadModel
        A causal language model.
    structure : Structure
        Its parts.
    prompt : Prompt
        What is run.
    outputs : Tensor
        What is put in, `[layer, head, d_head]`.
    """
    places = list(np.ndindex(model.layers, model.heads))
    probabilities = np.zeros((model.layers, model.heads))
    module: Any = model.module
    ids = torch.tensor([prompt.ids], device=model.device)
    with torch.no_grad(), model.evaluating():
        cache = None
        if ids.shape[1] > 1:
            cache = body_of(module)(input_ids=ids[:, :-1], use_cache=True).past_key_values
        can_repeat = hasattr(cache, "batch_repeat_interleave")
        for start in range(0, len(places), ROWS_AT_A_TIME):
            rows = places[start : start + ROWS_AT_A_TIME]
            arguments: dict[str, Any] = {"input_ids": ids.repeat(len(rows), 1)}
            if can_repeat:
                repeated: Any = copy.deepcopy(cache)
                repeated.batch_repeat_interleave(len(rows))
                arguments = {
                    "input_ids": ids[:, -1:].repeat(len(rows), 1),
                    "attention_mask": torch.ones(
                        len(rows), ids.shape[1], dtype=torch.int64, device=ids.device
                    ),
                    "past_key_values": repeated,
                    "use_cache": True,
                }
            with _replaced_outputs(structure, rows, outputs):
                logits = module(**arguments).logits[:, -1]
            answers = logits.float().softmax(-1)[:, prompt.answer].double().cpu().numpy()
            for (layer, head), probability in zip(rows, answers, strict=True):
                probabilities[layer, head] = probability
    return probabilities


@contextmanager
def _replaced_outputs(
    structure: Structure, rows: Sequence[tuple[int, ...]], outputs: Tensor
) -> Iterator[None]:
    """Replace, in each row of a batch, the output of one head at the last token."""
    rows_by_layer: dict[int, list[tuple[int, int]]] = {}
    for row, (layer, head) in enumerate(rows):
        rows_by_layer.setdefault(layer, []).append((row, head))
    d_head = outputs.shape[-1]
    with ExitStack() as stack:
        for layer, row_heads in rows_by_layer.items():

            def replace_heads(
                module: nn.Module,
                args: tuple[Tensor, ...],
                layer: int = layer,
                row_heads: list[tuple[int, int]] = row_heads,
            ) -> tuple[Tensor, ...]:
                joined = args[0].clone()  # [row, token, head · d_head]
                for row, head in row_heads:
                    columns = slice(head * d_head, (head + 1) * d_head)
                    joined[row, -1, columns] = outputs[layer, head].to(joined)
                return (joined, *args[1:])

            projection = structure.blocks[layer].projection
            hook = only_in_this_thread(replace_heads)
            stack.callback(projection.register_forward_pre_hook(hook).remove)
        yield


def function_vector(
    structure: Structure, outputs: Tensor, heads: Sequence[tuple[int, int]]
) -> Tensor:
    """Return the sum of what these heads write into the residual stream when they give their mean
    output, `[width]`."""
    vector: Tensor | None = None
    for layer, head in heads:
        block = structure.blocks[layer]
        of_layer = outputs[layer][None, :, None]  # example, head, token, d_head
        matrix, bias = block.written(of_layer)
        by_head = matrix.view(outputs.shape[1], outputs.shape[2], -1)
        written = outputs[layer, head].to(matrix) @ by_head[head]
        if block.writing is not None:
            # The norm after the projection, at the scale of the whole layer's mean output.
            whole = outputs[layer].flatten().to(matrix) @ matrix + bias
            written = block.writing.middle(written) / block.writing.scale(whole)
            written = written * block.writing.gain
        written = written * block.factor
        vector = written if vector is None else vector + written
    assert vector is not None
    return vector


def are_right_with(
    model: HeadModel, entry: nn.Module, prompts: Sequence[Prompt], vector: Tensor
) -> list[bool]:
    """Return for each prompt whether the answer is the likeliest next token when a vector is added
    to what enters a layer at the last token.

    Parameters
    ----------
    model : HeadModel
        The model.
    entry : Module
        The module of the layer.
    prompts : sequence of Prompt
        What is run.
    vector : Tensor
        What is added.
    """

    def add(module: nn.Module, args: Any, kwargs: Any) -> Any:
        hidden = hidden_input(args, kwargs)
        changed = hidden.clone()
        changed[:, -1] += vector.to(hidden)
        return replaced(args, kwargs, hidden, changed)

    handle = entry.register_forward_pre_hook(only_in_this_thread(add), with_kwargs=True)
    try:
        return are_right(model, prompts)
    finally:
        handle.remove()
