"""Calls the smallest part of a model that computes a stack, with the inputs that part takes, and sets evaluation mode
or a number of threads for a while."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def call_part(
    module: PreTrainedModel,
    encoder: nn.Module | None,
    stack: str,
    ids: Tensor,
    real: Tensor,
    types: Tensor,
    *,
    logits: bool = False,
    decoder_tokens: int | None = None,
) -> Any:
    """The output of the part that computes `stack`, or of the whole model where logits are asked for; `encoder` is that
    of an encoder-decoder."""
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": real.long()}
    part: nn.Module = module
    if encoder is not None and stack == "encoder" and not logits:
        part = encoder
    elif not logits:
        part = body_of(module)
        if part is module and encoder is not None and module.get_output_embeddings() is not None:
            return _decoded(module, encoder, inputs, decoder_tokens)
    accepted = frozenset(inspect.signature(part.forward).parameters)
    if encoder is not None and part is not encoder:
        inputs["decoder_input_ids"] = ids[:, :decoder_tokens]
        inputs["decoder_attention_mask"] = real[:, :decoder_tokens].long()
    elif "token_type_ids" in accepted and (
        (getattr(module.config, "type_vocab_size", 0) or 0) > 1 or module.config.model_type == "xlnet"
    ):
        # Not for every model that takes them: GPT-2 would add the embedding of token 0 to everything.
        inputs["token_type_ids"] = types
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    return part(**{key: value for key, value in inputs.items() if key in accepted or "kwargs" in accepted})


def body_of(module: PreTrainedModel) -> nn.Module:
    """The model without its head, where that is a module of its own; the model itself otherwise.

    Most classes name it; Llama 4's names something else.
    """
    named = getattr(module, "base_model", module)
    if named is not module or module.get_output_embeddings() is None:
        return named
    inner = getattr(module, "model", None)
    return inner if isinstance(inner, PreTrainedModel) else module


def _decoded(module: PreTrainedModel, encoder: nn.Module, inputs: Mapping[str, Any], tokens: int | None) -> Any:
    """The output of the decoder after its encoder, without the head (T5 has no module that holds both alone)."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    entering = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    return module.get_decoder()(
        input_ids=ids[:, :tokens],
        attention_mask=mask[:, :tokens],
        encoder_hidden_states=entering,
        encoder_attention_mask=mask,
        use_cache=False,
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for the time of a run; training mode is given back module by module."""
    training = [m for m in module.modules() if m.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads of torch for a `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
