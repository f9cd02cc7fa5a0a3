"""What a model's config, embeddings and tokenizer say about its inputs, its layers and its head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.models.auto import modeling_auto as auto

# Importing PreTrainedModel takes seconds: only who opens a model waits for it.
if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headwise.models.headmodel import HeadModel

DEFAULT_LIMIT = 512
UNLIMITED = 10**6  # tokenizers without a limit say 1e30
FULL = "full"
LAYER_KINDS = {"global": FULL, "local": "sliding"}  # GPT-Neo's words


def input_limit(module: PreTrainedModel, tokenizer: Any, notes: list[str]) -> int:
    """Return the longest input in tokens: the least of what position embeddings, config and
    tokenizer allow."""
    config = module.config.get_text_config()
    candidates = [getattr(tokenizer, "model_max_length", None)]
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
        candidates.append(getattr(config, name, None))
    for path, part in module.named_modules():
        is_position = path.rpartition(".")[2] == "position_embeddings"
        if is_position and isinstance(part, nn.Embedding) and part.padding_idx is not None:
            # Positions start after the padding's (RoBERTa and its kin).
            candidates.append(part.num_embeddings - part.padding_idx - 1)
    limits = []
    for candidate in candidates:
        if isinstance(candidate, int | float) and 0 < candidate < UNLIMITED:
            limits.append(int(candidate))
    if not limits:
        notes.append(
            f"Neither model nor tokenizer names a longest input; {DEFAULT_LIMIT} tokens are taken."
        )
    return min(limits, default=DEFAULT_LIMIT)


def padding_id(module: PreTrainedModel, tokenizer: Any) -> int:
    """Return the id that fills a batch.

    The model must have an embedding for it; no token ever attends to it."""
    vocabulary = getattr(module.get_input_embeddings(), "num_embeddings", None)
    candidates = (
        getattr(module.config, "pad_token_id", None),
        getattr(tokenizer, "pad_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
    )
    for candidate in candidates:
        if not isinstance(candidate, int) or candidate < 0:
            continue
        if vocabulary is None or candidate < vocabulary:
            return int(candidate)
    return 0


def head_of(module: PreTrainedModel, stack: str) -> tuple[bool, str | None]:
    """Return whether the model has a language-modelling head, and its kind (`masked`, `causal`) for
    this stack."""
    name = type(module).__name__
    if name in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values():
        return True, None if stack == "encoder" else "causal"
    is_pretraining = name.endswith("ForPreTraining") and not name.startswith("Electra")
    if name in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values() or is_pretraining:
        return True, "masked"
    if name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return True, "causal"
    return False, None


def layer_kinds(model: HeadModel) -> tuple[str, ...]:
    """Return which keys each layer of a model may attend to; see `kinds_of_layers`."""
    config = model.config.get_text_config(decoder=model.stack != "encoder")
    return kinds_of_layers(config, model.layers)


def has_rotary_positions(model: HeadModel) -> bool:
    """Return whether a model's config sets rotary positions."""
    config = model.config.get_text_config(decoder=model.stack != "encoder")
    return getattr(config, "rope_parameters", None) is not None


def kinds_of_layers(config: Any, layers: int) -> tuple[str, ...]:
    """Return `full`, `sliding` or `chunked` for each layer that computes attention; all `full` if
    the config does not say.

    >>> from types import SimpleNamespace
    >>> kinds_of_layers(SimpleNamespace(layer_types=["full_attention", "sliding_attention"]), 2)
    ('full', 'sliding')
    >>> kinds_of_layers(SimpleNamespace(sliding_window=128), 2)
    ('sliding', 'sliding')
    >>> kinds_of_layers(SimpleNamespace(), 1)
    ('full',)
    """
    layer_types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if layer_types is not None:
        kinds = []
        for layer_type in layer_types:
            kind = str(layer_type).removesuffix("_attention")
            if not kind.startswith(("linear", "mamba", "conv", "recurrent")):
                kinds.append(LAYER_KINDS.get(kind, kind))
        return tuple(kinds) if len(kinds) == layers else (FULL,) * layers
    has_window = getattr(config, "sliding_window", None)
    uses_window = has_window and getattr(config, "use_sliding_window", True)
    return ("sliding" if uses_window else FULL,) * layers
