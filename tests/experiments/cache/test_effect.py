"""Effects on the prediction: they add up to the divergence that short heads cause, and are largest
for the head that copies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from headwise.experiments.cache.effect import effects_on_prediction
from headwise.experiments.cache.run import as_batch
from headwise.models import HeadModel
from headwise.models.short_context import LongTextModel, sliding_layers
from headwise.testing import planted_decoder
from headwise.text.encode import Batch

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def small_model(sliding: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    if sliding:
        layers = ["sliding_attention", "full_attention", "full_attention"]
        config = transformers.Gemma3TextConfig(
            **SIZES, query_pre_attn_scalar=8, sliding_window=6, layer_types=layers
        )
        module = transformers.Gemma3ForCausalLM(config)
    else:
        module = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    return module.eval()


@pytest.mark.parametrize("sliding", [False, True])
def test_effects_add_up_to_the_divergence_of_all_heads_short(sliding: bool) -> None:
    ids = torch.randint(3, 60, (1, 40), generator=torch.Generator().manual_seed(0))
    zeros = torch.zeros_like(ids)
    is_token = torch.ones_like(ids, dtype=torch.bool)
    batch = Batch((), ids, zeros, is_token, torch.tensor([40]), zeros, zeros, ~is_token, zeros)
    with HeadModel.open(small_model(sliding), tokenizer=None, device="cpu") as model:
        long_model = LongTextModel(model, sink=2, window=4)
        free = np.ones((3, 2), bool)
        free[list(sliding_layers(model))] = False
        effects = effects_on_prediction(long_model, batch, free, points=32)
        roughly = effects_on_prediction(long_model, batch, free)
        everything = np.ones_like(free)
        intact = long_model.hidden(batch, long_model.short(everything))
        all_short = long_model.hidden(batch, long_model.short(~free))
        _, _, divergences = long_model.compare(batch, intact, [all_short], 6)
        # Parameters do not keep gradients, and none is left on.
        assert all(parameter.requires_grad for parameter in model.module.parameters())
        assert all(parameter.grad is None for parameter in model.module.parameters())
    assert divergences[0] > 0.05
    assert effects.sum() == pytest.approx(divergences[0], rel=0.01)
    assert roughly.sum() == pytest.approx(divergences[0], rel=0.5)
    assert (effects[~free] == 0).all()


def test_the_head_that_copies_has_the_largest_effect() -> None:
    decoder = planted_decoder(max_length=64)
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        words = " ".join(f"word{number}" for number in [1, 5, 3, 9, 2, 7, 4, 8, 6, 10] * 4)
        ids = model.tokenizer(words, add_special_tokens=False)["input_ids"]
        batch = as_batch(model, np.array(ids))
        free = np.ones((model.layers, model.kv_heads), bool)
        effects = effects_on_prediction(LongTextModel(model, sink=1, window=4), batch, free)
    layer, head = np.unravel_index(effects.argmax(), effects.shape)
    assert (layer, head) == decoder.where("induction")
