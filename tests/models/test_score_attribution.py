"""Why a head attends where it does: the parts of a score add up on every architecture, and name the
planted writer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import headwise
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.models import HeadModel
from headwise.models.score_attribution import ScoreAttribution
from headwise.testing import planted_decoder

PLAIN = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = PLAIN | {"num_key_value_heads": 2, "head_dim": 8}
OPT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "ffn_dim": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
}
GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40}
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "qwen3, norms of queries and keys": ("Qwen3Config", "Qwen3ForCausalLM", GROUPED),
    "gemma2, soft capping": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        GROUPED | {"query_pre_attn_scalar": 8},
    ),
    "gemma3, norms on both sides": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        GROUPED | {"query_pre_attn_scalar": 8},
    ),
    "gpt2, biases": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "neox, parallel": ("GPTNeoXConfig", "GPTNeoXForCausalLM", PLAIN),
    "opt, biases": ("OPTConfig", "OPTForCausalLM", OPT),
}


def opened(name: str) -> HeadModel:
    torch.manual_seed(0)
    config_class, model_class, config = ARCHITECTURES[name]
    module = getattr(transformers, model_class)(getattr(transformers, config_class)(**config))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)
    return HeadModel.open(module.eval(), tokenizer=None, device="cpu")


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("layer", [0, 2])
def test_parts_add_up_to_the_score(name: str, layer: int) -> None:
    model = opened(name)
    batch = model.batch(torch.arange(5, 12)[None])
    parts = ScoreAttribution(model).parts(batch, layer, 3)
    scale = float(parts.scores.abs().max())
    total = torch.einsum("ctd,usd->ts", parts.queries, parts.keys)
    torch.testing.assert_close(total, parts.scores, atol=1e-4 * scale, rtol=1e-4)
    # The scores are the head's own: capped and normalised they are its attention.
    scores = parts.scores
    if parts.softcap is not None:
        scores = parts.softcap * torch.tanh(scores / parts.softcap)
    weights = scores.masked_fill(~parts.visible, -torch.inf).softmax(-1)
    attention = torch.as_tensor(model.attention(batch, (layer, 3)).values)
    torch.testing.assert_close(weights, attention, atol=1e-5, rtol=1e-4)
    query = torch.tensor([5, 6])
    key = torch.tensor([2, 0])
    rows = parts.table(5, 2).sum(1)
    columns = parts.table(5, 2).sum(0)
    close = {"atol": 1e-4 * scale, "rtol": 1e-4}
    torch.testing.assert_close(parts.query_margins(query, key)[0], rows, **close)
    torch.testing.assert_close(parts.key_margins(query, key)[0], columns, **close)
    assert len(parts.components) == 2 + layer * 5


def test_the_induction_head_looks_where_the_previous_token_head_wrote() -> None:
    decoder = planted_decoder()
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        text = "word1 word2 word3 word4 word2"
        induction = decoder.where("induction")
        layer, head = decoder.where("previous")
        result = model.why(text, induction, query=5, key="word3")
        assert result.attrs["weight"] > 0.9
        score = result.attrs["score"]
        assert float(result["score"].sum()) == pytest.approx(score, rel=1e-4)
        # Nearly all of the score is the embedding at the query times what the previous-token head
        # wrote at the key.
        by_pair = result["score"].sel(query_component="embedding", key_component=f"L{layer}H{head}")
        assert float(by_pair) > 0.8 * score
        assert result["key_margin"].idxmax().item() == f"L{layer}H{head}"
        assert result["query_margin"].idxmax().item() == "embedding"
        with pytest.raises(InputError, match="occurs 2 times"):
            model.why(text, induction, query="word2", key="word3")
        with pytest.raises(InputError, match="no token 'word9'"):
            model.why(text, induction, query=5, key="word9")
        with pytest.raises(InputError, match="hidden from it"):
            model.why(text, induction, query=2, key=4)


def test_encoders_are_rejected_by_name() -> None:
    model = headwise.HeadModel.from_pretrained()
    with pytest.raises(ModelError, match="no language-modelling head for the next token"):
        model.why("A short text.", "L3H5", 1, 2)


def test_the_parts_of_a_logit_add_up() -> None:
    decoder = planted_decoder()
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        text = "word1 word2 word3 word4 word2"
        parts = model.logit_attribution(text, "word3")
        assert float(parts.sum()) == pytest.approx(parts.attrs["logit"], abs=1e-3)
        layer, head = decoder.where("induction")
        assert parts.idxmax().item() == f"L{layer}H{head}"
        difference = model.logit_attribution(text, "word3", against="word1")
        logits = model.forward(text, logits=True).logits[0, -1]
        ids = model.tokenizer.convert_tokens_to_ids(["word3", "word1"])
        expected = float(logits[ids[0]] - logits[ids[1]])
        assert float(difference.sum()) == pytest.approx(expected, abs=1e-3)

        # With interventions it is the logit of the model with them.
        disabled = {f"L{layer}H{head}": "zero"}
        without = model.logit_attribution(text, "word3", against="word1", interventions=disabled)
        assert float(without.sel(component=f"L{layer}H{head}")) == 0
        logits = model.forward(text, interventions=disabled, logits=True).logits[0, -1]
        expected = float(logits[ids[0]] - logits[ids[1]])
        assert float(without.sum()) == pytest.approx(expected, abs=1e-3)
        with pytest.raises(ParameterError, match="streams cannot be changed"):
            model.logit_attribution(text, "word3", interventions={(0, "mlp"): "zero"})
        patched = model.patch(
            "word1 word2 word3 word2", "word2 word1 word3 word2", "word3", "word1"
        )
        assert patched.attrs["pairs"] == 1
