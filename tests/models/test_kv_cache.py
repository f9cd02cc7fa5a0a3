"""A cache with whole and short heads: the same logits and tokens as a mask, and as many bytes as the
pattern says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface

from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.models import HeadModel
from headwise.models.kv_cache import CachePattern, HeadwiseCache
from headwise.models.short_context import DistantMass, ShortHeads, by_group, sliding_layers
from headwise.models.tap import use_session

PLAIN = {
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
MIXED = {
    "query_pre_attn_scalar": 8,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[int, int]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", PLAIN, {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", PLAIN, {}),
    "mistral": ("MistralConfig", "MistralForCausalLM", PLAIN | {"sliding_window": None}, {}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", PLAIN | MIXED, {0: 6, 2: 6}),
}
WHOLE = np.array([[True, False], [False, True], [False, False]])
SINK = 2
WINDOW = 4


def make_module(name: str) -> tuple[nn.Module, CachePattern]:
    torch.manual_seed(0)
    config_class, model_class, config, sliding = MODELS[name]
    module = getattr(transformers, model_class)(getattr(transformers, config_class)(**config))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    return module.eval(), CachePattern(WHOLE, SINK, WINDOW, sliding)


def masked_logits(module: nn.Module, ids: Tensor, pattern: CachePattern) -> Tensor:
    """Logits of whole passes with a mask for every head, by plain attention."""
    place = torch.arange(ids.shape[1])
    distance = place[:, None] - place[None]
    near = (distance >= 0) & ((place[None] < pattern.sink) | (distance < pattern.window))

    def plain_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        scaling: float,
        **others: Any,
    ) -> tuple[Tensor, None]:
        layer = module.layer_idx
        group_size = query.shape[1] // key.shape[1]
        visible = []
        for head in range(query.shape[1]):
            if layer in pattern.sliding:
                visible.append((distance >= 0) & (distance < pattern.sliding[layer]))
            elif pattern.whole[layer, head // group_size]:
                visible.append(distance >= 0)
            else:
                visible.append(near)
        key = key.repeat_interleave(group_size, 1)
        value = value.repeat_interleave(group_size, 1)
        scores = (query @ key.transpose(2, 3)) * scaling
        weights = scores.masked_fill(~torch.stack(visible)[None], -1e30).softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("plain with a pattern", plain_attention)
    module.set_attn_implementation("plain with a pattern")
    with torch.no_grad():
        logits: Tensor = module(input_ids=ids, use_cache=False).logits
    module.set_attn_implementation("sdpa")
    return logits


@pytest.mark.parametrize("name", MODELS)
def test_prefill_in_chunks_gives_what_a_mask_gives(name: str) -> None:
    module, pattern = make_module(name)
    ids = torch.randint(3, 60, (2, 20), generator=torch.Generator().manual_seed(1))
    cache = HeadwiseCache(pattern)
    chunks = []
    with torch.no_grad():
        for start, stop in ((0, 7), (7, 8), (8, 15), (15, 16), (16, 20)):
            output = module(input_ids=ids[:, start:stop], past_key_values=cache, use_cache=True)
            chunks.append(output.logits)
    expected = masked_logits(module, ids, pattern)
    torch.testing.assert_close(torch.cat(chunks, 1), expected, atol=1e-4, rtol=1e-4)
    # The pattern matters in this test.
    with torch.no_grad():
        assert (module(input_ids=ids).logits - expected).abs().max() > 1e-2


@pytest.mark.parametrize("name", MODELS)
def test_generate_gives_the_tokens_of_the_mask(name: str) -> None:
    module, pattern = make_module(name)
    ids = torch.randint(3, 60, (1, 12), generator=torch.Generator().manual_seed(2))
    cache = HeadwiseCache(pattern)
    generated = module.generate(
        ids, past_key_values=cache, max_new_tokens=10, do_sample=False, eos_token_id=None
    )
    expected = ids
    for _ in range(10):
        following = masked_logits(module, expected, pattern)[:, -1].argmax(-1)
        expected = torch.cat([expected, following[:, None]], 1)
    assert torch.equal(generated, expected)
    # All but the last generated token are held: whole heads all 21, short ones sink + window - 1.
    held = 0
    for layer in range(3):
        if layer in pattern.sliding:
            held += 2 * (pattern.sliding[layer] - 1)
        else:
            n_whole = int(pattern.whole[layer].sum())
            held += n_whole * 21 + (2 - n_whole) * (SINK + WINDOW - 1)
    assert cache.nbytes == held * 8 * 4 * 2


def test_the_memory_that_a_pattern_promises() -> None:
    pattern = CachePattern(WHOLE, SINK, WINDOW)
    assert pattern.tokens_held(100) == (2 * 100 + 4 * 6) / 6
    assert pattern.share_whole == pytest.approx(2 / 6)
    assert CachePattern(WHOLE, SINK, WINDOW, {0: 10}).tokens_held(100) == (20 + 100 + 6 + 12) / 6


@pytest.mark.parametrize("name", MODELS)
def test_the_tap_with_short_heads_is_the_same_mask(name: str) -> None:
    module, pattern = make_module(name)
    ids = torch.randint(3, 60, (1, 20), generator=torch.Generator().manual_seed(3))
    expected = masked_logits(module, ids, pattern)
    with HeadModel.open(module, tokenizer=None, device="cpu") as model:
        whole = pattern.whole.copy()
        whole[list(sliding_layers(model))] = True
        assert sliding_layers(model) == dict(pattern.sliding)
        session = ShortHeads(model.sites, whole, SINK, WINDOW)
        with torch.no_grad(), use_session(session):
            mask = torch.ones_like(ids, dtype=torch.bool)
            logits = model.run(ids, mask, torch.zeros_like(ids), logits=True).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_distant_mass_and_output_error_are_those_of_a_dense_computation() -> None:
    module, _ = make_module("llama")
    ids = torch.randint(3, 60, (1, 20), generator=torch.Generator().manual_seed(4))
    with HeadModel.open(module, tokenizer=None, device="cpu") as model:
        session = DistantMass(model.sites, SINK, WINDOW)
        with torch.no_grad(), use_session(session):
            mask = torch.ones_like(ids, dtype=torch.bool)
            model.run(ids, mask, torch.zeros_like(ids))
        trace = model.trace(ids, {"attention", "outputs"})
        weights = trace.attention[0].double()  # layer, head, query, key
        values: dict[int, Tensor] = {}

        def keep_values(layer: int) -> Any:
            def hook(part: nn.Module, args: Any, output: Tensor) -> None:
                values[layer] = output.view(1, 20, 2, 8).transpose(1, 2).repeat_interleave(2, 1)[0]

            return hook

        handles = []
        for layer, part in enumerate(module.model.layers):
            handles.append(part.self_attn.v_proj.register_forward_hook(keep_values(layer)))
        with torch.no_grad():
            module(input_ids=ids)
        for handle in handles:
            handle.remove()
    place = torch.arange(20)
    distance = place[:, None] - place[None]
    near = (distance >= 0) & ((place[None] < SINK) | (distance < WINDOW))
    rows = slice(SINK + WINDOW, None)
    for layer in range(3):
        kept = weights[layer] * near
        mass = 1 - kept.sum(-1)[:, rows]
        torch.testing.assert_close(session.mass[layer], mass.mean(-1), atol=1e-6, rtol=1e-6)
        whole = weights[layer] @ values[layer].double()
        short = kept / kept.sum(-1, keepdim=True) @ values[layer].double()
        error = ((whole - short).norm(dim=-1) / whole.norm(dim=-1))[:, rows]
        torch.testing.assert_close(session.error[layer], error.mean(-1), atol=1e-6, rtol=1e-5)
    assert session.rows == 14


def test_groups_keep_what_any_of_their_heads_needs() -> None:
    values = np.array([[0.1, 0.9, 0.3, 0.2]])
    assert by_group(values, 2).tolist() == [[0.9, 0.3]]


# --- files and errors -----------------------------------------------------------------------------


def test_patterns_are_written_and_read(tmp_path: Path) -> None:
    scores = np.array([[0.5, 0.1], [0.2, 0.7], [0.0, 0.1]])
    pattern = CachePattern(WHOLE, 3, 9, {2: 5}, scores, {"model": "tiny"})
    pattern.save(tmp_path / "pattern.json")
    loaded = CachePattern.load(tmp_path / "pattern.json")
    assert (loaded.whole == WHOLE).all()
    assert (loaded.sink, loaded.window, loaded.sliding) == (3, 9, {2: 5})
    np.testing.assert_allclose(loaded.scores, scores)
    pattern.save(tmp_path / "pattern.tsv")
    assert (tmp_path / "pattern.tsv").read_text() == "1\t0\n0\t1\n0\t0\n"
    table = CachePattern.load(tmp_path / "pattern.tsv", sink=3, window=9)
    assert (table.whole == WHOLE).all()
    assert HeadwiseCache(tmp_path / "pattern.json").pattern.window == 9


def test_bad_patterns_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"sink_size": 1}')
    with pytest.raises(InputError, match="is no pattern of headwise"):
        CachePattern.load(tmp_path / "bad.json")
    (tmp_path / "bad.tsv").write_text("1\tx\n")
    with pytest.raises(InputError, match="no table of numbers"):
        CachePattern.load(tmp_path / "bad.tsv")
    (tmp_path / "uneven.tsv").write_text("1\t0\n1\n")
    with pytest.raises(InputError, match="no table of numbers"):
        CachePattern.load(tmp_path / "uneven.tsv")
    with pytest.raises(InputError, match="cannot be read"):
        CachePattern.load(tmp_path / "none.json")
    with pytest.raises(ParameterError, match="`window` 1 or more"):
        CachePattern(WHOLE, 1, 0)


def test_other_attention_and_padding_are_rejected() -> None:
    module, pattern = make_module("llama")
    ids = torch.randint(3, 60, (2, 12))
    module.set_attn_implementation("eager")
    with pytest.raises(ModelError, match="attn_implementation='sdpa'"), torch.no_grad():
        module(input_ids=ids, past_key_values=HeadwiseCache(pattern))
    module.set_attn_implementation("sdpa")
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with pytest.raises(InputError, match="begin with padding"), torch.no_grad():
        module(input_ids=ids, attention_mask=mask, past_key_values=HeadwiseCache(pattern))
