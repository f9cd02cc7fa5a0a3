"""Call the smallest part of a model that computes a stack; set evaluation mode or the number of
threads for a while; keep hooks to the thread that set them."""

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
from headwise.stats.products import faster_products


def call_part(
    module: transformers.PreTrainedModel,
    encoder: nn.Module | None,
    stack: str,
    ids: Tensor,
    attention_mask: Tensor,
    types: Tensor,
    *,
    logits: bool = False,
    logit_rows: Tensor | None = None,
    source: tuple[Tensor, Tensor] | None = None,
    past: Any = None,
) -> Any:
    """Return the output of the part that computes a stack, or of the whole model.

    Parameters
    ----------
    module : PreTrainedModel
        The model.
    encoder : Module, optional
        The encoder of an encoder-decoder.
    stack : str
        `encoder`, `decoder` or `cross`.
    ids, attention_mask, types : Tensor
        Token ids, attention mask and segments, `[example, token]`. The decoder of an
        encoder-decoder reads them.
    logits : bool, default False
        Call the whole model.
    logit_rows : Tensor, optional
        The positions of the tokens whose logits are returned; default: all. Most decoders then
        compute no others.
    source : (Tensor, Tensor), optional
        Ids and attention mask that the encoder reads, if the stack is the decoder's.
    past : Cache, optional
        Keys and values of tokens before these; the attention mask is then that of all tokens.
    """
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": attention_mask.long()}
    part: nn.Module
    if logits:
        part = module
    elif encoder is not None and stack == "encoder":
        part = encoder
    else:
        part = body_of(module)
    if encoder is not None and stack != "encoder":
        if source is None:
            raise ModelError(
                f"The decoder of {type(module).__name__} reads a source beside its target; give "
                "pairs of both."
            )
        source_ids, source_mask = source
        inputs = {
            "input_ids": source_ids,
            "attention_mask": source_mask.long(),
            "decoder_input_ids": ids,
            "decoder_attention_mask": attention_mask.long(),
        }
        if part is module and not logits and head_of(module, stack)[0]:
            return _run_decoder(module, encoder, inputs)
    elif encoder is not None and logits and head_of(module, stack)[0]:
        raise ModelError(
            f"{type(module).__name__} predicts a target from a source; open it with "
            "stack='decoder' and give pairs."
        )
    accepted = frozenset(inspect.signature(part.forward).parameters)
    reads_segments = encoder is None or part is encoder
    if reads_segments and "token_type_ids" in accepted and has_segments(module.config):
        inputs["token_type_ids"] = types
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    if past is not None:
        inputs["past_key_values"] = past
    keeps_rows = logit_rows is not None and "logits_to_keep" in accepted
    if keeps_rows:
        inputs["logits_to_keep"] = logit_rows
    if "kwargs" not in accepted:
        inputs = {name: value for name, value in inputs.items() if name in accepted}
    output = part(**inputs)
    if logits and logit_rows is not None and not keeps_rows:
        output.logits = output.logits[:, logit_rows]
    return output


def has_segments(config: Any) -> bool:
    """Return whether a model has embeddings of segments.

    Not every model that takes segments has: GPT-2 would add the embedding of token 0 to every
    token."""
    n_segments = getattr(config, "type_vocab_size", 0) or 0
    return n_segments > 1 or config.model_type == "xlnet"


def only_in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that ignores calls from other threads: a module has one list of hooks for all.

    It takes any arguments: torch sets and removes a hook with keywords in two steps, and between
    them other threads call it without keywords."""
    owner = threading.get_ident()

    def hook_of_owner(*args: Any) -> Any:
        if threading.get_ident() != owner:
            return None
        return hook(*args)

    return hook_of_owner


def body_of(module: transformers.PreTrainedModel) -> nn.Module:
    """Return the model without its head, if that is a module of its own, else the model.

    Most classes name it as their base model; Llama 4 names something else."""
    base: nn.Module = getattr(module, "base_model", module)
    if base is not module or not head_of(module, "decoder")[0]:
        return base
    inner = getattr(module, "model", None)
    body: nn.Module = inner if isinstance(inner, transformers.PreTrainedModel) else module
    return body


def _run_decoder(
    module: transformers.PreTrainedModel, encoder: nn.Module, inputs: Mapping[str, Any]
) -> Any:
    """Run encoder and decoder without the head (T5 has no module with both of them alone)."""
    encoded = encoder(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    decoder: nn.Module = module.get_decoder()
    return decoder(
        input_ids=inputs["decoder_input_ids"],
        attention_mask=inputs["decoder_attention_mask"],
        encoder_hidden_states=encoded.last_hidden_state,
        encoder_attention_mask=inputs["attention_mask"],
        use_cache=False,
    )


def shifted(module: transformers.PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """Return the token ids that a decoder reads for a target, as the model makes them from
    labels."""
    name = type(module).__name__
    config = module.config
    labels = torch.from_numpy(ids)[None]
    shift_labels = getattr(module, "prepare_decoder_input_ids_from_labels", None)
    if shift_labels is None:
        shift_labels = getattr(module, "_shift_right", None)
    shift_tokens_right = getattr(sys.modules[type(module).__module__], "shift_tokens_right", None)
    decoder_ids: np.ndarray
    if shift_labels is not None:
        decoder_ids = shift_labels(labels)[0].cpu().numpy()
    elif shift_tokens_right is not None:
        # It takes labels, and one or both of the special ids.
        n_special = len(inspect.signature(shift_tokens_right).parameters) - 1
        special_ids = (config.pad_token_id, config.decoder_start_token_id)[:n_special]
        decoder_ids = shift_tokens_right(labels, *special_ids)[0].cpu().numpy()
    else:
        start = _decoder_start(config)
        if start is None:
            raise ModelError(f"The config of {name} does not say what its decoder starts from.")
        decoder_ids = np.concatenate([[start], ids[:-1]])
    if not np.array_equal(decoder_ids[1:], ids[:-1]):
        raise ModelError(
            f"{name} reads its targets in another way than shifted by one: not supported."
        )
    return decoder_ids


def _decoder_start(config: Any) -> int | None:
    text_config = config.get_text_config(decoder=True)
    for name in ("decoder_start_token_id", "bos_token_id"):
        for part in (config, text_config):
            token_id = getattr(part, name, None)
            if token_id is not None:
                return int(token_id)
    return None


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode for a `with` block, then restore the mode of every module.

    Products with weights are the faster ones meanwhile: every pass of a model runs in such a
    block."""
    in_training = [part for part in module.modules() if part.training]
    if in_training:
        module.eval()
    try:
        with faster_products():
            yield
    finally:
        for part in in_training:
            part.training = True


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads for a `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
