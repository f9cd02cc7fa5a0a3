"""What a model's config, embeddings and tokenizer say about its inputs, its layers and its head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.models.auto import modeling_auto as auto

if (
    TYPE_CHECKING
):  # transformers takes seconds to bring it: whoever opens a model waits, nobody else
    from transformers import PreTrainedModel

    from headwise.models.headmodel import HeadModel

DEFAULT_LIMIT = 512
UNLIMITED = 10**6  # tokenizers without a limit say 1e30


def input_limit(module: PreTrainedModel, tokenizer: Any, notes: list[str]) -> int:
    """The longest input in tokens: by the position embeddings, the config and the tokenizer,
    whichever is least."""
    config = module.config.get_text_config()
    limits = [
        getattr(config, name, None)
        for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
    ]
    for path, part in module.named_modules():
        if (
            isinstance(part, nn.Embedding)
            and path.rpartition(".")[2] == "position_embeddings"
            and part.padding_idx is not None
        ):
            # Positions start after the padding's (RoBERTa and its kin).
            limits.append(part.num_embeddings - part.padding_idx - 1)
    limits.append(getattr(tokenizer, "model_max_length", None))
    known = [
        int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < UNLIMITED
    ]
    if not known:
        notes.append(
            f"Neither model nor tokenizer names a longest input; {DEFAULT_LIMIT} tokens are taken."
        )
    return min(known, default=DEFAULT_LIMIT)


def padding_id(module: PreTrainedModel, tokenizer: Any) -> int:
    """The id that fills a batch. It must be one the model has an embedding for; what stands there
    is never seen."""
    rows = getattr(module.get_input_embeddings(), "num_embeddings", None)
    candidates = (
        getattr(module.config, "pad_token_id", None),
        getattr(tokenizer, "pad_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
        0,
    )
    return next(
        int(c) for c in candidates if isinstance(c, int) and c >= 0 and (rows is None or c < rows)
    )


def head_of(module: PreTrainedModel, stack: str) -> tuple[bool, str | None]:
    """Whether the model has a language-model head, and of which kind (`masked`, `causal`) for this
    stack."""
    name = type(module).__name__
    if name in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values():
        return True, "causal" if stack != "encoder" else None
    if name in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values() or (
        name.endswith("ForPreTraining") and not name.startswith("Electra")
    ):
        return True, "masked"
    if name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return True, "causal"
    return False, None


FULL = "full"
NAMES = {"global": FULL, "local": "sliding"}  # GPT-Neo's words


def layer_kinds(model: HeadModel) -> tuple[str, ...]:
    """What each layer of a model may see, see `kinds_of_layers`."""
    return kinds_of_layers(
        model.config.get_text_config(decoder=model.stack != "encoder"), model.layers
    )


def kinds_of_layers(config: Any, layers: int) -> tuple[str, ...]:
    """`full`, `sliding` or `chunked` for each layer that computes attention; all `full` where the
    config does not say.

    >>> from types import SimpleNamespace
    >>> kinds_of_layers(SimpleNamespace(layer_types=["full_attention", "sliding_attention"]), 2)
    ('full', 'sliding')
    >>> kinds_of_layers(SimpleNamespace(sliding_window=128), 2), kinds_of_layers(SimpleNamespace(), 1)
    (('sliding', 'sliding'), ('full',))
    """
    given = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if given is not None:
        named = [str(kind).removesuffix("_attention") for kind in given]
        seen = [
            NAMES.get(kind, kind)
            for kind in named
            if not kind.startswith(("linear", "mamba", "conv", "recurrent"))
        ]
        return tuple(seen) if len(seen) == layers else (FULL,) * layers
    windowed = getattr(config, "sliding_window", None) and getattr(
        config, "use_sliding_window", True
    )
    return ("sliding" if windowed else FULL,) * layers
