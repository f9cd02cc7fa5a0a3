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
    LlamaConfig,
    LlamaForCausalLM,
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
    """Return a BERT (or, causal, a GPT-2) with random weights for this vocabulary; `changes` go to
    its config."""
    tokenizer = vocabulary.tokenizer
    sizes = {
        "vocab_size": len(vocabulary),
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "max_position_embeddings": size.max_length,
    }
    special_ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if causal:
            config = GPT2Config(n_inner=size.inner, **sizes, **special_ids, **changes)
            return GPT2LMHeadModel(config).eval()
        config = BertConfig(intermediate_size=size.inner, **sizes, **special_ids, **changes)
        return BertForMaskedLM(config).eval()


def blank_llama(vocabulary: Vocabulary, size: Size, seed: int) -> Any:
    """Return a Llama with random weights for this vocabulary."""
    tokenizer = vocabulary.tokenizer
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.inner,
        max_position_embeddings=size.max_length,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


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
    """Return a BERT (or, causal, a GPT-2) whose random weights are so large that heads differ, and
    a tokenizer for `words`."""
    vocabulary = make_vocabulary(words, None, {}, {}, causal)
    hidden = heads * d_head
    inner = (4 if causal else 2) * hidden
    size = Size(layers, heads, hidden, inner, max_length)
    model = blank_model(vocabulary, size, causal, seed, initializer_range=0.25)
    return model, vocabulary.tokenizer


def permute_heads(model: Any, order: Sequence[Sequence[int]]) -> Any:
    """Return a copy of a BERT or GPT-2 whose head `h` of layer `l` is head `order[l][h]` of the
    original."""
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
                    f"Heads of {type(model).__name__} cannot be put in another order; pass a BERT "
                    "or a GPT-2."
                )
    return model


def _reordered(weight: Tensor, order: Sequence[int], dim: int, parts: int) -> Tensor:
    """Return a weight with the blocks of heads along `dim` reordered within each of `parts` equal
    parts (query, key, value side by side)."""
    by_head = torch.unflatten(weight, dim, (parts, len(order), -1))
    index = torch.as_tensor(list(order), device=weight.device)
    return by_head.index_select(dim + 1, index).flatten(dim, dim + 2)
