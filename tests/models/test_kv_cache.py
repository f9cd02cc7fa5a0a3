"""A cache with whole and short heads: the same logits and tokens as a mask, and as many bytes as the
pattern says."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface

from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.models import HeadModel, kv_cache, short_context
from headwise.models.kv_cache import CachePattern, HeadwiseCache
from headwise.models.short_context import (
    DistantMass,
    LongTextModel,
    ShortHeads,
    by_group,
    sliding_layers,
)
from headwise.models.tap import use_session
from headwise.text.encode import Batch

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
    # All but the last generated token are held: whole heads all 21, short ones sink + window.
    held = 0
    for layer in range(3):
        if layer in pattern.sliding:
            held += 2 * (pattern.sliding[layer] - 1)
        else:
            n_whole = int(pattern.whole[layer].sum())
            held += n_whole * 21 + (2 - n_whole) * (SINK + WINDOW)
    assert cache.nbytes == held * 8 * 4 * 2
    if not pattern.sliding:
        assert cache.nbytes == pattern.tokens_held(21) * 6 * 8 * 4 * 2
    # Nothing of the last call stays besides: tensors alive are those that were counted.
    for layer in cache.layers:
        assert not getattr(layer, "current", {})


def test_new_tokens_are_written_without_a_copy_of_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_cache, "SPARE_TOKENS", 3)
    module, pattern = make_module("llama")
    ids = torch.randint(3, 60, (2, 30), generator=torch.Generator().manual_seed(6))
    cache = HeadwiseCache(pattern)
    logits = []
    places = []
    with torch.no_grad():
        output = module(input_ids=ids[:, :12], past_key_values=cache, use_cache=True)
        logits.append(output.logits)
        for token in range(12, 30):
            next_ids = ids[:, token : token + 1]
            output = module(input_ids=next_ids, past_key_values=cache, use_cache=True)
            logits.append(output.logits)
            places.append(cache.layers[0].parts["whole keys"].data_ptr())
            # Two examples; keys and values of 8 numbers of 4 bytes.
            assert cache.nbytes == pattern.tokens_held(token + 1) * 6 * 2 * 2 * 8 * 4
            reserved = sum(layer.reserved_bytes for layer in cache.layers)
            assert 0 <= reserved <= 2 * 3 * 2 * 2 * 8 * 4
    torch.testing.assert_close(
        torch.cat(logits, 1), masked_logits(module, ids, pattern), atol=1e-4, rtol=1e-4
    )
    moves = sum(before != after for before, after in pairwise(places))
    assert moves <= 5  # 18 tokens, room for 3 after each one that does not fit


def test_a_cache_that_has_grown_is_repeated_selected_and_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_cache, "SPARE_TOKENS", 3)
    module, pattern = make_module("llama")
    ids = torch.randint(3, 60, (2, 30), generator=torch.Generator().manual_seed(6))
    cache = HeadwiseCache(pattern)

    def read(part: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return module(input_ids=part, past_key_values=cache, use_cache=True).logits[:, -1]

    read(ids[:, :20])
    read(ids[:, 20:21])
    # Each text twice, then the second one alone: as if only that had been read.
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([2]))
    ends = read(ids[1:, 21:22])
    expected = masked_logits(module, ids[1:, :22], pattern)[:, -1]
    torch.testing.assert_close(ends, expected, atol=1e-4, rtol=1e-4)
    cache.reset()
    again = read(ids[:, :22])
    expected = masked_logits(module, ids[:, :22], pattern)[:, -1]
    torch.testing.assert_close(again, expected, atol=1e-4, rtol=1e-4)


def test_prompts_read_in_inference_mode_are_continued_outside_it() -> None:
    module, pattern = make_module("llama")
    ids = torch.randint(3, 60, (2, 30), generator=torch.Generator().manual_seed(6))
    for n_prompt in (4, 20):  # before the ring is full, and after
        cache = HeadwiseCache(pattern)
        with torch.inference_mode():
            module(input_ids=ids[:, :n_prompt], past_key_values=cache, use_cache=True)
        with torch.no_grad():
            next_ids = ids[:, n_prompt : n_prompt + 1]
            output = module(input_ids=next_ids, past_key_values=cache, use_cache=True)
        expected = masked_logits(module, ids[:, : n_prompt + 1], pattern)[:, -1]
        torch.testing.assert_close(output.logits[:, -1], expected, atol=1e-4, rtol=1e-4)


def test_autocast_is_served() -> None:
    module, pattern = make_module("qwen3")
    ids = torch.randint(3, 60, (2, 30), generator=torch.Generator().manual_seed(6))
    cache = HeadwiseCache(pattern)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        module(input_ids=ids[:, :29], past_key_values=cache, use_cache=True)
        output = module(input_ids=ids[:, 29:], past_key_values=cache, use_cache=True)
    expected = masked_logits(module, ids, pattern)[:, -1]
    difference = (output.logits[:, -1].float() - expected).abs().max()
    assert difference < 0.05 * expected.abs().max()


def test_gradients_go_through_the_cache() -> None:
    module, pattern = make_module("llama")
    ids = torch.randint(3, 60, (1, 14), generator=torch.Generator().manual_seed(7))
    embedded = module.get_input_embeddings()(ids).detach().requires_grad_()
    cache = HeadwiseCache(pattern)
    logits = []
    for start, stop in ((0, 9), (9, 10), (10, 11), (11, 14)):
        part = embedded[:, start:stop]
        output = module(inputs_embeds=part, past_key_values=cache, use_cache=True)
        logits.append(output.logits)
    expected = masked_logits(module, ids, pattern)
    torch.testing.assert_close(torch.cat(logits, 1), expected, atol=1e-4, rtol=1e-4)
    (gradient,) = torch.autograd.grad(torch.cat(logits, 1).square().sum(), embedded)
    # Against a difference along the gradient, in the same passes with a mask.
    step = 1e-3 * gradient / gradient.norm()
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            moved = HeadwiseCache(pattern)
            output = module(inputs_embeds=embedded + sign * step, past_key_values=moved)
        losses.append(float(output.logits.double().square().sum()))
    slope = (losses[0] - losses[1]) / 2e-3
    assert slope == pytest.approx(float(gradient.norm()), rel=2e-2)


def test_the_memory_that_a_pattern_promises() -> None:
    pattern = CachePattern(WHOLE, SINK, WINDOW)
    assert pattern.tokens_held(100) == (2 * 100 + 4 * 6) / 6
    assert pattern.share_whole == pytest.approx(2 / 6)
    assert CachePattern(WHOLE, SINK, WINDOW, {0: 10}).tokens_held(100) == (20 + 100 + 6 + 12) / 6


@pytest.mark.parametrize("rows_at_once", [7, 1024])
@pytest.mark.parametrize("name", MODELS)
def test_the_tap_with_short_heads_is_the_same_mask(
    name: str, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_context, "ROWS_AT_ONCE", rows_at_once)
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


def test_a_sliding_window_that_the_pattern_does_not_state_is_rejected() -> None:
    config = transformers.MistralConfig(**PLAIN | {"sliding_window": 6})
    module = transformers.MistralForCausalLM(config).eval()
    ids = torch.randint(3, 60, (2, 12))
    with pytest.raises(InputError, match="a pattern that states it"), torch.no_grad():
        module(input_ids=ids, past_key_values=HeadwiseCache(CachePattern(WHOLE, SINK, WINDOW)))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 1), "1 key/value heads in a layer and the model has 2"),
        ((3, 4), "4 key/value heads in a layer and the model has 2"),
        ((2, 2), "2 layers and the model has more"),
        ((5, 2), "5 layers and the model has 3"),
    ],
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_pattern_of_another_model_is_rejected(
    shape: tuple[int, int], message: str, is_whole: bool
) -> None:
    module, _ = make_module("llama")
    ids = torch.randint(3, 60, (2, 12))
    cache = HeadwiseCache(CachePattern(np.full(shape, is_whole), SINK, WINDOW))
    with pytest.raises(InputError, match=message):
        module.generate(ids, past_key_values=cache, max_new_tokens=3)


@pytest.mark.parametrize(
    "generation",
    [
        {"num_beams": 4},
        {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.5},
    ],
)
def test_beams_are_those_of_the_mask(generation: dict[str, Any]) -> None:
    """Beam search reorders the cache after each token; here beams are found by whole passes."""
    module, pattern = make_module("llama")
    ids = torch.randint(3, 60, (3, 14), generator=torch.Generator().manual_seed(8))
    generation |= {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    beams = module.generate(ids, past_key_values=HeadwiseCache(pattern), **generation)
    place = torch.arange(ids.shape[1] + 12)
    distance = place[:, None] - place[None]
    near = (distance >= 0) & ((place[None] < SINK) | (distance < WINDOW))

    def plain_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        scaling: float,
        **others: Any,
    ) -> tuple[Tensor, None]:
        n_read, n_all = query.shape[2], key.shape[2]
        is_whole = torch.as_tensor(pattern.whole[module.layer_idx]).repeat_interleave(2)
        visible = torch.where(is_whole[:, None, None], distance >= 0, near)
        visible = visible[:, n_all - n_read : n_all, :n_all]
        scores = (query @ key.repeat_interleave(2, 1).transpose(2, 3)) * scaling
        weights = scores.masked_fill(~visible[None], -1e30).softmax(-1)
        return (weights @ value.repeat_interleave(2, 1)).transpose(1, 2).contiguous(), None

    AttentionInterface.register("plain with a whole cache", plain_attention)
    module.set_attn_implementation("plain with a whole cache")
    # The cache of transformers, which holds everything; the mask hides what short heads drop.
    expected = module.generate(ids, **generation)
    assert torch.equal(beams, expected)
    module.set_attn_implementation("sdpa")
    assert not torch.equal(module.generate(ids, **generation), expected)


@pytest.mark.parametrize("how", ["assistant", "prompt lookup"])
def test_tokens_cannot_be_taken_back(how: str) -> None:
    module, pattern = make_module("llama")
    ids = torch.randint(3, 60, (1, 14), generator=torch.Generator().manual_seed(8))
    if how == "assistant":
        assistant, _ = make_module("qwen3")
        speculation: dict[str, Any] = {"assistant_model": assistant}
    else:
        ids = torch.cat([ids, ids], 1)
        speculation = {"prompt_lookup_num_tokens": 3}
    with pytest.raises(ModelError, match="cannot take tokens back"):
        module.generate(
            ids,
            past_key_values=HeadwiseCache(pattern),
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=None,
            **speculation,
        )


def test_a_folder_is_read_by_loaders_of_duo_attention(tmp_path: Path) -> None:
    """The two files, as `load_attn_pattern` and `sparsify_attention_heads` of DuoAttention read them:
    a table with tabs between, clipped to 0..1, and a quantile of it as the threshold."""
    scores = np.random.default_rng(0).random((5, 3))
    whole = np.zeros(15, bool)
    whole[np.argsort(-scores.ravel())[:4]] = True
    pattern = CachePattern(whole.reshape(5, 3), 3, 9, scores=scores)
    pattern.save(tmp_path / "duo")
    table = np.loadtxt(tmp_path / "duo" / "full_attention_heads.tsv", dtype=float, delimiter="\t")
    config = json.loads((tmp_path / "duo" / "config.json").read_text())
    assert (table == table.clip(0, 1)).all()
    assert (config["sink_size"], config["recent_size"]) == (3, 9)
    threshold = np.quantile(table, config["sparsity"])
    assert ((table >= threshold) == pattern.whole).all()
    # Another sparsity keeps the highest scores too, below and above what was recommended.
    for n_whole in (2, 9):
        kept = table >= np.quantile(table, 1 - n_whole / 15)
        assert set(np.flatnonzero(kept)) == set(np.argsort(-scores.ravel())[:n_whole])
    loaded = CachePattern.load(tmp_path / "duo")
    assert (loaded.whole == pattern.whole).all()
    assert (loaded.sink, loaded.window) == (3, 9)
    # Released patterns also have numbers a little below 0.
    (tmp_path / "duo" / "full_attention_heads.tsv").write_text("-5.7e-05\t9.8e-01\n1.0\t4.4e-01\n")
    assert CachePattern.load(tmp_path / "duo").whole.tolist() == [[False, True], [True, False]]
    (tmp_path / "duo" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="sink_size and recent_size"):
        CachePattern.load(tmp_path / "duo")


def test_losses_of_several_patterns_are_those_of_the_whole_model() -> None:
    module, _ = make_module("llama")
    ids = torch.randint(3, 60, (1, 40), generator=torch.Generator().manual_seed(5))
    with HeadModel.open(module, tokenizer=None, device="cpu") as model:
        long_model = LongTextModel(model, SINK, WINDOW)
        zeros = torch.zeros_like(ids)
        is_token = torch.ones_like(ids, dtype=torch.bool)
        lengths = torch.tensor([40])
        batch = Batch((), ids, zeros, is_token, lengths, zeros, zeros, ~is_token, zeros)
        intact = long_model.hidden(batch, long_model.short(np.ones_like(WHOLE)))
        changed = []
        for whole in (WHOLE, ~WHOLE):
            changed.append(long_model.hidden(batch, long_model.short(whole)))
        before, after, divergence = long_model.compare(batch, intact, changed, 6)
    log_p = masked_logits(module, ids, CachePattern(np.ones_like(WHOLE), SINK, WINDOW))
    log_p = log_p[0, 6:-1].double().log_softmax(-1)
    targets = ids[0, 7:]
    assert before == pytest.approx(float(nn.functional.nll_loss(log_p, targets)), abs=1e-5)
    for number, whole in enumerate((WHOLE, ~WHOLE)):
        log_q = masked_logits(module, ids, CachePattern(whole, SINK, WINDOW))
        log_q = log_q[0, 6:-1].double().log_softmax(-1)
        assert after[number] == pytest.approx(
            float(nn.functional.nll_loss(log_q, targets)), abs=1e-5
        )
        expected = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
        assert divergence[number] == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def real_folder(request: pytest.FixtureRequest) -> Path:
    if request.param == "stories15M":
        folder: Path = request.getfixturevalue("stories")
        return folder
    given = os.environ.get("HEADWISE_SMOLLM2")
    if not given:
        pytest.skip("HEADWISE_SMOLLM2 does not point at SmolLM2-135M")
    return Path(given)


@pytest.mark.parametrize("real_folder", ["stories15M", "smollm2"], indirect=True)
def test_real_models_write_the_tokens_of_the_mask(real_folder: Path) -> None:
    module = transformers.AutoModelForCausalLM.from_pretrained(
        real_folder, attn_implementation="sdpa"
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(real_folder)
    text = "Once upon a time, a little girl found a red box under the old tree. " * 6
    ids = tokenizer(text + "She opened it, and", return_tensors="pt").input_ids
    config = module.config
    random = np.random.default_rng(0)
    whole = random.random((config.num_hidden_layers, config.num_key_value_heads)) < 0.25
    pattern = CachePattern(whole, sink=4, window=16)
    n_new = 24
    generation = {"max_new_tokens": n_new, "do_sample": False, "eos_token_id": None}
    cache = HeadwiseCache(pattern)
    generated = module.generate(ids, past_key_values=cache, **generation)
    # By the mask: each token that was written is the best one where short heads are masked.
    logits = masked_logits(module, generated[:, :-1], pattern)
    expected = logits[0, ids.shape[1] - 1 :].argmax(-1)
    assert torch.equal(generated[0, ids.shape[1] :], expected)
    bytes_per_token = 2 * 4 * whole.size * (config.hidden_size // config.num_attention_heads)
    assert cache.nbytes == pattern.tokens_held(generated.shape[1] - 1) * bytes_per_token
    # Prompts may be read in chunks.
    cache = HeadwiseCache(pattern)
    chunked = module.generate(ids, past_key_values=cache, prefill_chunk_size=31, **generation)
    assert torch.equal(chunked, generated)
    # The pattern matters here: the logits are not those of the intact model.
    with torch.no_grad():
        intact = module(generated[:, :-1]).logits
    assert (logits - intact).abs().max() > 0.1
