"""Small models with random weights and a tokenizer of their own, and the same model with its heads in another order."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from headwise.core.errors import ModelError
from headwise.testing.vocabulary import make_vocabulary


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
    """A BERT (or, causal, a GPT-2) with random weights large enough that its heads differ, and the tokenizer of `planted_model` for these words."""
    vocabulary = make_vocabulary(words, None, {}, {}, causal)
    tokenizer = vocabulary.tokenizer
    common: dict[str, Any] = {
        "vocab_size": len(vocabulary),
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.25,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if causal:
            sizes: dict[str, Any] = {
                "n_positions": max_length,
                "n_embd": heads * d_head,
                "n_layer": layers,
                "n_head": heads,
            }
            special: dict[str, Any] = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
            model: Any = GPT2LMHeadModel(GPT2Config(**common, **sizes, **special))
        else:
            sizes = {
                "max_position_embeddings": max_length,
                "hidden_size": heads * d_head,
                "intermediate_size": 2 * heads * d_head,
            }
            model = BertForMaskedLM(BertConfig(**common, **sizes, num_hidden_layers=layers, num_attention_heads=heads))
    return model.eval(), tokenizer


def permute_heads(model: Any, order: Sequence[Sequence[int]]) -> Any:
    """A copy of a BERT or GPT-2 whose head `h` of layer `l` is head `order[l][h]` of the given one: the same function of its input."""
    model = deepcopy(model)
    with torch.no_grad():
        for layer, new in enumerate(order):
            if hasattr(model, "bert"):
                attention = model.bert.encoder.layer[layer].attention
                for linear in (attention.self.query, attention.self.key, attention.self.value):
                    linear.weight.copy_(_reordered(linear.weight, new, 0, 1))
                    linear.bias.copy_(_reordered(linear.bias, new, 0, 1))
                attention.output.dense.weight.copy_(_reordered(attention.output.dense.weight, new, 1, 1))
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
    """`weight` with the blocks of heads along `dim` reordered, within each of `parts` equal parts (query, key and value side by side)."""
    split = weight.unflatten(dim, (parts, len(order), -1))
    return split.index_select(dim + 1, torch.as_tensor(list(order), device=weight.device)).flatten(dim, dim + 2)
