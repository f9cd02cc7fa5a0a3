"""A model with random weights gets no word for any of its heads, however sharp its attention is."""

from __future__ import annotations

import pytest
import torch

from headwise import HeadModel, make_atlas
from headwise.testing import random_model
from headwise.text import open_corpus

SHARPER = 6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sharper", [1, SHARPER])
def test_random_weights_get_no_word(causal: bool, sharper: int) -> None:
    """Weights as models are made with, and query and key weights six times as large, which makes
    attention far from uniform."""
    corpus = open_corpus(limit=40, prose=causal)
    words = sorted(
        {word for example in corpus for word in example.all_words if word.isalpha() or word in ".,"}
    )
    module, tokenizer = random_model(
        causal=causal, layers=4, heads=8, d_head=16, words=words, max_length=128
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.ndim == 2:
                weight.normal_(0, 0.02, generator=generator)
            if "c_attn.weight" in name:  # query, key and value side by side
                weight[:, : 2 * weight.shape[0]] *= sharper
            elif "query.weight" in name or "key.weight" in name:
                weight *= sharper
    model = HeadModel.open(module, tokenizer=tokenizer)
    told = make_atlas(model, corpus, ["surface", "dependency"], full=True).describe()
    assert told["does"].tolist() == ["other"] * 32, told[
        ["name", "does", "attention", "finds"]
    ].to_string()
