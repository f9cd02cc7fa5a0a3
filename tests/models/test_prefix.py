"""Runs that share layers and tokens give what whole runs give, on many architectures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_models import SUPPORTED

from headwise.experiments.patching.pairs import EncodedPair
from headwise.experiments.patching.run import PatchRunner
from headwise.models import HeadModel
from headwise.models.interventions import feed_forward
from headwise.models.prefix import last_token_alone
from headwise.testing import random_model

ARCHITECTURES = (
    "llama",
    "gpt2",
    "gpt-neox",
    "gptj",
    "opt",
    "qwen3",
    "gemma3",
    "mistral",
    "bloom",
    "falcon",
    "gpt-oss",
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shared_tokens_and_layers_hold_on_other_architectures(name: str) -> None:
    """Grouped keys, rotary and learned positions, biases, parallel layers, windows, experts."""
    config, _, arguments = SUPPORTED[name]
    torch.manual_seed(3)
    module = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, config)(**arguments)
    ).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    clean = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12], [7, 9, 8, 6, 5, 11, 12, 10]])
    corrupted = clean.clone()
    corrupted[:, 4] = torch.tensor([13, 14])
    with HeadModel.open(module, tokenizer=None, device="cpu") as model:
        pairs = []
        for row in range(2):
            clean_row = model.batch(clean[row : row + 1]).rows[0]
            corrupted_row = model.batch(corrupted[row : row + 1]).rows[0]
            pairs.append(EncodedPair(clean_row, corrupted_row, 20, 21, np.arange(8)))
        shared = PatchRunner(model, pairs, share=True)
        whole = PatchRunner(model, pairs, share=False)
        assert shared.tokens.length == 4
        assert shared.shares()
        for layer in range(model.layers):
            together = shared.patched_layer("corrupted", layer)
            for head in range(model.heads):
                alone = whole.patched("corrupted", layer, head)
                torch.testing.assert_close(together[head], alone, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        # Its layers give a list.
        ("OpenAIGPTConfig", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 60}),
        # Its hidden states are `[token, example, width]`.
        ("XLNetConfig", SUPPORTED["xlnet"][2]),
    ],
)
def test_layers_are_shared_whatever_the_form_of_their_outputs(
    config: str, arguments: dict[str, Any]
) -> None:
    torch.manual_seed(3)
    module = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, config)(**arguments)
    ).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    clean = torch.tensor([[5, 6, 7, 8, 9, 10], [7, 9, 8, 6, 5, 11]])
    corrupted = clean.clone()
    corrupted[:, 3] = torch.tensor([13, 14])
    with HeadModel.open(module, tokenizer=None, device="cpu") as model:
        pairs = []
        for row in range(2):
            clean_row = model.batch(clean[row : row + 1]).rows[0]
            corrupted_row = model.batch(corrupted[row : row + 1]).rows[0]
            pairs.append(EncodedPair(clean_row, corrupted_row, 20, 21, np.arange(6)))
        shared = PatchRunner(model, pairs, share=True)
        whole = PatchRunner(model, pairs, share=False)
        assert shared.shares()
        for layer in range(model.layers):
            together = shared.patched_layer("corrupted", layer)
            for head in range(model.heads):
                alone = whole.patched("corrupted", layer, head)
                torch.testing.assert_close(together[head], alone, atol=1e-4, rtol=1e-5)


def test_the_last_feed_forward_part_computes_the_last_token_alone() -> None:
    module, tokenizer = random_model(causal=True, layers=2, heads=2, d_head=4)
    model = HeadModel.open(module, tokenizer=tokenizer, device="cpu")
    batch = model.batch("the cat saw")
    n_tokens = batch.ids.shape[1]
    expected = model.forward(batch, logits=True).logits[:, -1]
    rows = []
    part = feed_forward(model.sites.entries[-1])
    with last_token_alone(model):
        inner = next(child for child in part.modules() if not list(child.children()))
        handle = inner.register_forward_hook(
            lambda module, args, output: rows.append(args[0].view(-1, args[0].shape[-1]).shape[0])
        )
        logits = model.forward(batch, logits=True).logits
        handle.remove()
    assert n_tokens > 1
    assert rows == [1]
    torch.testing.assert_close(logits[:, -1], expected)
