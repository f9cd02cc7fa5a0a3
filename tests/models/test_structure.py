"""The parts of a model, told by what they compute: matrices of heads against what the tap shows,
for many layouts."""

from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import SUPPORTED, build, ids_batch

from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.direct import Recorded, adds_up
from headwise.models.structure import find_structure
from headwise.models.weights import head_weights

LAYOUTS = [
    "gpt2",
    "gpt-neox",
    "opt",
    "phi",
    "phi3",
    "llama",
    "gemma2",
    "gpt-bigcode",
    "gptj",
    "gpt-neo",
    "falcon",
    "mpt",
]


class Keep:
    """Keeps query, key, value and what enters each layer."""

    needs = frozenset({"hidden"})

    def __init__(self) -> None:
        self.layers = []

    def on_rows(self, rows) -> None:
        pass

    def on_layer(self, layer) -> None:
        self.layers.append(layer)


@pytest.mark.parametrize("name", LAYOUTS)
def test_matrices_give_what_the_tap_shows(name: str) -> None:
    config, model_class, arguments = SUPPORTED[name]
    ends = [model_class.replace("Model", end) for end in ("ForCausalLM", "LMHeadModel")]
    module = build(config, next(n for n in ends if hasattr(transformers, n)), arguments)
    with torch.no_grad():
        for parameter in module.parameters():  # gains and biases that are not one and zero
            if parameter.ndim == 1:
                parameter.add_(torch.rand_like(parameter) * 0.5)
    with HeadModel.open(module) as model:
        structure = find_structure(model)
        watch = Keep()
        model.forward(ids_batch(), watch)
        found = list(head_weights(model, structure))
    for layer, block, weights in zip(watch.layers, structure.blocks, found, strict=True):
        assert block.reading is not None
        # At the first position nothing is turned; between two inputs biases cancel.
        x = layer.hidden[:, 0]
        x = x / block.reading.scale(x)
        moved = x[0] - x[1]
        for part, matrix in (
            ("query", weights.query),
            ("key", weights.key),
            ("value", weights.value),
        ):
            if matrix is None:
                assert name in ("falcon", "mpt")
                continue
            shown = getattr(layer, part)[:, :, 0]
            shown = (shown[0] - shown[1]).repeat_interleave(model.heads // len(shown[0]), 0)
            expected = torch.einsum("d,hdk->hk", moved, matrix)
            assert float((shown - expected).abs().max()) < 1e-4 * float(expected.abs().max()), part


@pytest.mark.parametrize(("dtype", "close"), [(torch.bfloat16, 0.05), (torch.float64, 1e-5)])
def test_half_and_double_precision_are_served(dtype: torch.dtype, close: float) -> None:
    config, _, arguments = SUPPORTED["llama"]
    with HeadModel.open(build(config, "LlamaForCausalLM", arguments).to(dtype)) as model:
        structure = find_structure(model)
        assert structure.refusal is None
        batch = ids_batch()
        direct = Recorded(model, structure, batch).direct(torch.roll(batch.ids, -1, 1))
    assert adds_up(direct, batch.attention_mask) < close


def test_what_is_left_out_is_said() -> None:
    config, _, arguments = SUPPORTED["qwen3"]
    with HeadModel.open(build(config, "Qwen3ForCausalLM", arguments)) as model:
        left_out = next(head_weights(model, find_structure(model))).left_out
    assert left_out == {"the norms of queries and keys hold their gain, not their scale"}


def test_post_norm_has_a_reason_and_an_encoder_decoder_is_refused() -> None:
    config, _, arguments = SUPPORTED["gpt1"]
    with HeadModel.open(build(config, "OpenAIGPTLMHeadModel", arguments)) as model:
        assert "normalises the sum" in (find_structure(model).refusal or "")
    model = HeadModel.open(build("T5Config", "T5ForConditionalGeneration", T5), stack="decoder")
    with model, pytest.raises(ModelError, match="encoder-decoder"):
        find_structure(model)


T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 60,
    "decoder_start_token_id": 0,
}


@pytest.mark.parametrize("massive", [False, True])
def test_parts_of_a_deep_model_in_half_precision(massive: bool) -> None:
    # The stream grows over the layers, so the rounding of its sums is large beside what one adds.
    config = transformers.Qwen3Config(
        vocab_size=200,
        num_hidden_layers=24,
        hidden_size=64,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.15,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    if massive:
        with torch.no_grad():
            module.model.embed_tokens.weight[:, 3] = 1000.0
    with HeadModel.open(module) as model:
        structure = find_structure(model)
    assert structure.refusal is None
    for block, layer in zip(structure.blocks, module.model.layers, strict=True):
        assert block.attention is layer.self_attn.o_proj
        assert block.other is layer.mlp or block.other is layer.mlp.down_proj
        assert block.factor == 1
        assert block.reading.module is layer.input_layernorm
        assert block.feed.module is layer.mlp
        assert block.feed.norm.module is layer.post_attention_layernorm
        assert block.feed.after_attention
