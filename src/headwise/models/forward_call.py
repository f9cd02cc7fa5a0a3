"""Calls the smallest part of a model that computes a stack, with the inputs that part takes; sets
evaluation mode or a number of threads for a while; and keeps hooks to the thread that set them."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models.sizes import head_of


def call_part(
    module: transformers.PreTrainedModel,
    encoder: nn.Module | None,
    stack: str,
    ids: Tensor,
    attention_mask: Tensor,
    types: Tensor,
    *,
    logits: bool = False,
    source: tuple[Tensor, Tensor] | None = None,
) -> Any:
    """The output of the part that computes `stack`, or of the whole model where logits are asked
    for.

    `encoder` is that of an encoder-decoder. Its decoder reads `ids`, its encoder `source` (ids, and
    which are real)."""
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": attention_mask.long()}
    part: nn.Module = (
        module
        if logits
        else encoder
        if encoder is not None and stack == "encoder"
        else body_of(module)
    )
    if encoder is not None and stack != "encoder":
        if source is None:
            raise ModelError(
                f"The decoder of {type(module).__name__} reads a source beside its target; give pairs of both."
            )
        inputs = {"input_ids": source[0], "attention_mask": source[1].long()}
        inputs |= {"decoder_input_ids": ids, "decoder_attention_mask": attention_mask.long()}
        if part is module and not logits and head_of(module, stack)[0]:
            return _decoded(module, encoder, inputs)
    elif encoder is not None and logits and head_of(module, stack)[0]:
        raise ModelError(
            f"{type(module).__name__} predicts a target from a source; open it with stack='decoder' and give pairs."
        )
    accepted = frozenset(inspect.signature(part.forward).parameters)
    if (
        tells_segments(module.config)
        and "token_type_ids" in accepted
        and (encoder is None or part is encoder)
    ):
        inputs["token_type_ids"] = types
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    return part(
        **{key: value for key, value in inputs.items() if key in accepted or "kwargs" in accepted}
    )


def tells_segments(config: Any) -> bool:
    """Whether a model has embeddings of segments. Not every one that takes them has: GPT-2 would
    add the embedding of token 0 to everything."""
    return (getattr(config, "type_vocab_size", 0) or 0) > 1 or config.model_type == "xlnet"


def only_in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that leaves calls of other threads alone: a module has one list of hooks for all of
    them.

    torch sets and removes a hook with keywords in two steps, and between them calls it from
    elsewhere without them."""
    owner = threading.get_ident()

    def own(*given: Any) -> Any:
        return hook(*given) if threading.get_ident() == owner else None

    return own


def body_of(module: transformers.PreTrainedModel) -> nn.Module:
    """The model without its head, where that is a module of its own; the model itself otherwise.

    Most classes name it; Llama 4's names something else.
    """
    named: nn.Module = getattr(module, "base_model", module)
    if named is not module or not head_of(module, "decoder")[0]:
        return named
    inner = getattr(module, "model", None)
    body: nn.Module = inner if isinstance(inner, transformers.PreTrainedModel) else module
    return body


def _decoded(
    module: transformers.PreTrainedModel, encoder: nn.Module, inputs: Mapping[str, Any]
) -> Any:
    """The output of the decoder after its encoder, without the head (T5 has no module that holds
    both alone)."""
    read = encoder(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
    ).last_hidden_state
    decoder: nn.Module = module.get_decoder()
    return decoder(
        input_ids=inputs["decoder_input_ids"],
        attention_mask=inputs["decoder_attention_mask"],
        encoder_hidden_states=read,
        encoder_attention_mask=inputs["attention_mask"],
        use_cache=False,
    )


def shifted(module: transformers.PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """The token ids that a decoder reads for a target, as the model itself makes them from
    labels."""
    labels, config = torch.from_numpy(ids)[None], module.config
    make = getattr(module, "prepare_decoder_input_ids_from_labels", None) or getattr(
        module, "_shift_right", None
    )
    shift = getattr(sys.modules[type(module).__module__], "shift_tokens_right", None)
    if make is not None:
        found: np.ndarray = make(labels)[0].cpu().numpy()
    elif shift is not None:
        more = config.pad_token_id, config.decoder_start_token_id
        found = (
            shift(labels, *more[: len(inspect.signature(shift).parameters) - 1])[0].cpu().numpy()
        )
    else:
        text = config.get_text_config(decoder=True)
        starts = (
            getattr(c, n, None)
            for n in ("decoder_start_token_id", "bos_token_id")
            for c in (config, text)
        )
        start = next((int(s) for s in starts if s is not None), None)
        if start is None:
            raise ModelError(
                f"The config of {type(module).__name__} does not say what its decoder starts from."
            )
        found = np.concatenate([[start], ids[:-1]])
    if not np.array_equal(found[1:], ids[:-1]):
        raise ModelError(
            f"{type(module).__name__} reads its targets in another way than shifted by one: not served."
        )
    return found


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
