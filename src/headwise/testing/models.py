"""Small models with random weights and a tokenizer of their own, and the same model with its heads
in another order."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from headwise.core.errors import ModelError
from headwise.testing.vocabulary import Vocabulary, make_vocabulary


@dataclass(frozen=True, slots=True)
class Size:
    """How large a small model is."""

    layers: int
    heads: int
    hidden: int
    inner: int  # of the feed-forward layers
    max_length: int


def blank_model(vocabulary: Vocabulary, size: Size, causal: bool, seed: int, **changes: Any) -> Any:
    """A BERT (or, causal, a GPT-2) with random weights for this vocabulary; `changes` go to its
    config."""
    tokenizer = vocabulary.tokenizer
    sizes = {
        "vocab_size": len(vocabulary),
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "max_position_embeddings": size.max_length,
    }
    special = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if causal:
            return GPT2LMHeadModel(
                GPT2Config(n_inner=size.inner, **sizes, **special, **changes)
            ).eval()
        return BertForMaskedLM(
            BertConfig(intermediate_size=size.inner, **sizes, **special, **changes)
        ).eval()


def random_model(
    *,
    causal: bool = False,
    layers: int = 2,
    heads: int = 3,
    d_head: int = 32,
    words: Sequence[str] | None = None,
    max_length: int = 64,
    seed: int = 0,
) -> tuple[nn.Module, PreTrainedTokenizerFast]:
    """A BERT (or, causal, a GPT-2) whose random weights are so large that heads differ, and a
    tokenizer for `words`."""
    vocabulary = make_vocabulary(words, None, {}, {}, causal)
    width = heads * d_head
    size = Size(layers, heads, width, (4 if causal else 2) * width, max_length)
    return blank_model(vocabulary, size, causal, seed, initializer_range=0.25), vocabulary.tokenizer


def permute_heads(model: Any, order: Sequence[Sequence[int]]) -> Any:
    """A copy of a BERT or GPT-2 whose head `h` of layer `l` is head `order[l][h]` of the given
    one."""
    model = deepcopy(model)
    with torch.no_grad():
        for layer, new in enumerate(order):
            if hasattr(model, "bert"):
                attention = model.bert.encoder.layer[layer].attention
                for linear in (attention.self.query, attention.self.key, attention.self.value):
                    linear.weight.copy_(_reordered(linear.weight, new, 0, 1))
                    linear.bias.copy_(_reordered(linear.bias, new, 0, 1))
                attention.output.dense.weight.copy_(
                    _reordered(attention.output.dense.weight, new, 1, 1)
                )
            elif hasattr(model, "transformer"):
                attention = model.transformer.h[layer].attn
                attention.c_attn.weight.copy_(_reordered(attention.c_attn.weight, new, 1, 3))
                attention.c_attn.bias.copy_(_reordered(attention.c_attn.bias, new, 0, 3))
                attention.c_proj.weight.copy_(_reordered(attention.c_proj.weight, new, 0, 1))
            else:
                raise ModelError(
                    f"Heads of {type(model).__name__} cannot be put in another order; give a BERT or a GPT-2."
                )
    return model


def _reordered(weight: Tensor, order: Sequence[int], dim: int, parts: int) -> Tensor:
    """The blocks of heads along `dim` reordered within each of `parts` equal parts (query, key,
    value side by side)."""
    split = torch.unflatten(weight, dim, (parts, len(order), -1))
    return split.index_select(dim + 1, torch.as_tensor(list(order), device=weight.device)).flatten(
        dim, dim + 2
    )
