"""`headwise.knockout`: the planted reader of a span, a plain mask by hand, texts that do not count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headwise
from headwise.core.errors import InputError
from headwise.experiments.knockout.run import (
    KnockoutSession,
    MarkedText,
    _dataset,
    _KnockoutPlan,
    _units_of,
    read_marked_texts,
)
from headwise.experiments.patching.templates import capital_texts
from headwise.models import HeadModel
from headwise.models.tap import use_session
from headwise.testing import planted_decoder, random_model
from headwise.testing.names import check_names

WORDS = [f"word{number}" for number in range(1, 12)]


def induction_texts(count: int) -> list[MarkedText]:
    """Lists whose last word has occurred, its follower there marked: that is the answer."""
    random = np.random.default_rng(0)
    texts = []
    for number in range(count):
        words = [str(word) for word in random.choice(WORDS, 6, replace=False)]
        repeated, answer, *others = words
        sequence = [others[0], repeated, f"[[{answer}]]", *others[1:], repeated]
        texts.append(MarkedText(" ".join(sequence), answer, f"text:{number}"))
    return texts


def test_the_span_is_read_where_the_induction_head_is() -> None:
    decoder = planted_decoder()
    layer, head = decoder.where("induction")
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        texts = induction_texts(12)
        result = headwise.knockout(model, texts, window=1)
        check_names("knockout", result)
        assert result.attrs["texts"] == 12
        change = result["change"].sel(span="marked", renormalised=False)
        assert float(change.sel(layer=layer)) < -0.5
        assert abs(float(change.sel(layer=1 - layer))) < 0.05
        p = result["change_p_adjusted"].sel(span="marked", renormalised=False, layer=layer)
        assert float(p) < 0.05
        other = result["change"].sel(span="other", renormalised=False)
        assert float(abs(other).max()) < 0.05
        by_head = headwise.knockout(model, texts, window=1, heads=f"L{layer}H{head}")
        cut = by_head["change"].sel(span="marked", renormalised=False, layer=layer)
        assert float(cut) < -0.5
        idle = (head + 1) % 3
        by_other = headwise.knockout(model, texts, window=1, heads=f"L{layer}H{idle}")
        spared = by_other["change"].sel(span="marked", renormalised=False, layer=layer)
        assert abs(float(spared)) < 0.05


def test_a_renormalised_cut_is_a_mask() -> None:
    """Scaled up, the remaining weights are those of a softmax that never saw the keys."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    module = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    ids = torch.arange(5, 12)[None]
    n_tokens = ids.shape[1]
    cut = torch.zeros(1, n_tokens, n_tokens, dtype=torch.bool)
    cut[0, -1, 2:4] = True
    everywhere = torch.tensor([[0, 2]])
    with HeadModel.open(module, tokenizer=None, device="cpu") as model:

        def run(renormalised: bool, windows: torch.Tensor = everywhere) -> Any:
            session = KnockoutSession(model.sites, cut, windows, torch.tensor([renormalised]), ())
            with torch.no_grad(), use_session(session):
                mask = torch.ones_like(ids, dtype=torch.bool)
                return model.run(ids, mask, torch.zeros_like(ids), logits=True).logits

        scaled = run(True)
        bare = run(False)
        nowhere = run(False, torch.tensor([[0, 0]]))
    lowest = torch.finfo(torch.float32).min
    mask = torch.full((n_tokens, n_tokens), lowest).triu(1)
    mask = mask.masked_fill(cut[0], lowest)[None, None]
    with torch.no_grad():
        module.set_attn_implementation("eager")
        expected = module(input_ids=ids, attention_mask=mask).logits
        whole = module(input_ids=ids).logits
    torch.testing.assert_close(scaled, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(nowhere, whole, atol=1e-5, rtol=1e-5)
    assert (bare[:, -1] - expected[:, -1]).abs().max() > 1e-3
    torch.testing.assert_close(bare[:, :-1], whole[:, :-1], atol=1e-5, rtol=1e-5)


def test_texts_whose_answer_is_not_predicted_do_not_count() -> None:
    module, tokenizer = random_model(causal=True, layers=2, heads=2, d_head=8)
    words = [word for word in tokenizer.get_vocab() if word.isalpha()]
    texts = []
    for number in range(10):
        first, second, answer = np.random.default_rng(number).choice(words, 3, replace=False)
        texts.append(MarkedText(f"{first} [[{second}]] {first}", str(answer), f"text:{number}"))
    with HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model:
        result = headwise.knockout(model, texts)
    assert result.attrs["texts"] < 8
    assert "nothing is tested" in result.attrs["note"]
    assert np.isnan(result["change_p_adjusted"].values).all()


def test_texts_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "word1 [[word2]] word3", "answer": "word4"}\n')
    (text,) = read_marked_texts(path)
    assert (text.text, text.answer) == ("word1 [[word2]] word3", "word4")
    path.write_text('{"text": "word1"}\n')
    with pytest.raises(InputError, match="`answer` must be a text"):
        read_marked_texts(path)
    decoder = planted_decoder()
    with (
        HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model,
        pytest.raises(InputError, match="mine:3: 'word1 word2' has no marked span"),
    ):
        headwise.knockout(model, [MarkedText("word1 word2", "word3", "mine:3")])


def test_built_in_texts_are_repeatable_and_marked() -> None:
    texts = capital_texts(10, 1)
    assert texts == capital_texts(10, 1)
    assert len(set(texts)) == 10
    for text, answer in texts:
        assert text.count("[[") == 1
        assert answer.startswith(" ")


def test_texts_of_one_unit_count_as_one(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    parts = []
    for change in random.normal(-0.4, 0.3, 12):
        changes = np.full((3, 2, 2), change) + random.normal(0, 0.1, (3, 2, 2))
        parts.append({"right": np.array(True), "probability": np.array(0.5), "change": changes})
    plan = _KnockoutPlan(((0, 1), (1, 2)), ())
    model: Any = SimpleNamespace(layers=2)
    alone = _dataset(model, plan, parts, np.arange(12))
    together = _dataset(model, plan, 3 * parts, np.tile(np.arange(12), 3))
    for name in ("change", "change_low", "change_high", "change_p"):
        np.testing.assert_allclose(together[name].values, alone[name].values, rtol=1e-6)
    assert int(together["change_n"].min()) == 36
    apart = _dataset(model, plan, 3 * parts, np.arange(36))
    assert (apart["change_high"] < together["change_high"]).all()
    one_unit = _dataset(model, plan, parts, np.zeros(12, dtype=int))
    assert np.isnan(one_unit["change_p"].values).all()
    assert "the same unit; nothing is tested" in one_unit.attrs["note"]
    assert together.attrs["note"] == ""
    # Without a unit each text is one.
    texts = [MarkedText("a [[b]]", "c"), MarkedText("d [[e]]", "f"), MarkedText("a [[b]] g", "c")]
    assert len(set(_units_of(texts))) == 3
    assert len(set(_units_of([replace(text, unit=text.answer) for text in texts]))) == 2
    path = tmp_path / "texts.jsonl"
    # A unit may be called as a text without one might be numbered.
    named = [replace(texts[0], unit="text 1"), texts[1]]
    assert len(set(_units_of(named))) == 2
    path.write_text('{"text": "word1 [[word2]] word3", "answer": "word4", "unit": "mine"}\n')
    assert read_marked_texts(path)[0].unit == "mine"
    path.write_text('{"text": "word1 [[word2]] word3", "answer": "word4", "unit": 3}\n')
    with pytest.raises(InputError, match="`unit` must be a text"):
        read_marked_texts(path)
