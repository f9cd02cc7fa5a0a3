"""The sentence encoder from heads: its vectors are the heads' outputs, it trains, it is saved and
loaded with its model, sentence-transformers takes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.core.errors import InputError, MissingExtraError, ModelError, ParameterError
from headwise.models import HeadModel
from headwise.models.pooling import CONFIG, HeadPooling
from headwise.models.vectors import collect_vectors
from headwise.testing import planted_model
from headwise.text import Example

WORDS = [f"w{i}" for i in range(10)]
TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w0", "w2 w2"]
HEADS = [(1, 2), (0, 0), (1, 0)]


def opened(causal: bool = False) -> HeadModel:
    rows = [["previous", "self", "uniform"], ["cls", "uniform", "self"]]
    made = planted_model(rows, words=WORDS, max_length=16, causal=causal)
    return HeadModel.open(made.model, tokenizer=made.tokenizer)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("token", ["auto", "mean"])
def test_vectors_are_the_heads_outputs(causal: bool, token: str) -> None:
    model = opened(causal)
    vectors = collect_vectors(model, [Example(text=text) for text in TEXTS], token=token)
    found = HeadPooling(model, HEADS, token=token).encode(TEXTS, batch_size=3)
    expected = np.concatenate([vectors.heads[layer, head] for layer, head in HEADS], -1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    unit = HeadPooling(model, HEADS, token=token, normalize=True).encode(TEXTS)
    np.testing.assert_allclose(
        unit, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-4
    )


def test_a_model_without_a_tokenizer_takes_token_ids() -> None:
    model = opened()
    features = HeadPooling(model, HEADS).preprocess(TEXTS)
    bare = HeadPooling(HeadModel.open(model.module), HEADS)
    assert bare.token == "first"
    wanted = HeadPooling(model, HEADS)(features)["sentence_embedding"]
    torch.testing.assert_close(bare(features)["sentence_embedding"], wanted)
    with pytest.raises(ModelError, match="without a tokenizer"):
        bare.preprocess(TEXTS)


def test_names_sizes_and_refusals() -> None:
    model = opened()
    pooling = HeadPooling(model, ["L1H2", "L0H0"])
    assert pooling.heads == ((1, 2), (0, 0))
    assert (
        pooling.get_sentence_embedding_dimension()
        == pooling.get_word_embedding_dimension()
        == 2 * model.d_head
    )
    assert pooling.encode(["w1"]).shape == (1, 2 * model.d_head)
    for heads, message in (
        ([], "at least one"),
        (["7-9"], "named like .L7H9."),
        ([(2, 0)], "no head L2H0"),
        ([(0, 0), "L0H0"], "named twice"),
    ):
        with pytest.raises(ParameterError, match=message):
            HeadPooling(model, heads)
    left = {"input_ids": torch.tensor([[0, 5, 6]]), "attention_mask": torch.tensor([[0, 1, 1]])}
    with pytest.raises(InputError, match="padded on the left"):
        pooling(left)


def test_gradients_reach_the_model_and_dropout_follows_the_mode() -> None:
    model = opened()
    pooling = HeadPooling(model, HEADS)
    features = pooling.preprocess(TEXTS)
    pooling(features)["sentence_embedding"].square().sum().backward()
    value = dict(pooling.backbone.named_parameters())[
        "bert.encoder.layer.1.attention.self.value.weight"
    ]
    assert value.grad is not None
    assert value.grad.abs().sum() > 0
    pooling.train()
    pooling.backbone.bert.embeddings.dropout.p = 0.5
    first, second = (pooling(features)["sentence_embedding"] for _ in range(2))
    assert not torch.equal(first, second)
    pooling.eval()
    torch.testing.assert_close(
        pooling(features)["sentence_embedding"], pooling(features)["sentence_embedding"]
    )
    pooling.train()
    before = pooling.encode(TEXTS)
    torch.testing.assert_close(before, pooling.encode(TEXTS))
    assert pooling.training


def test_saved_and_loaded_with_its_model(tmp_path: Path) -> None:
    pooling = HeadPooling(opened(), HEADS, normalize=True)
    pooling.save(tmp_path / "p")
    assert (tmp_path / "p" / "model.safetensors").exists()
    assert not list((tmp_path / "p").glob("*.bin"))
    again = HeadPooling.load(tmp_path / "p")
    assert again.get_config_dict() == pooling.get_config_dict()
    torch.testing.assert_close(again.encode(TEXTS), pooling.encode(TEXTS))
    assert HeadModel.open(tmp_path / "p").same_weights(pooling.model.identity())
    with pytest.raises(InputError, match=f"has no {CONFIG}"):
        HeadPooling.load(tmp_path)
    config = json.loads((tmp_path / "p" / CONFIG).read_text())
    (tmp_path / "p" / CONFIG).write_text(json.dumps(config | {"d_head": 3}))
    with pytest.raises(ModelError, match="checkpoint of another model"):
        HeadPooling.load(tmp_path / "p")
    (tmp_path / "p" / CONFIG).write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        HeadPooling.load(tmp_path / "p")


def test_sentence_transformers_takes_it(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    pooling = HeadPooling(opened(), HEADS)
    encoder = pooling.sentence_transformer()
    found = encoder.encode(TEXTS, batch_size=2)
    np.testing.assert_allclose(found, pooling.encode(TEXTS), atol=1e-5)
    assert encoder.get_embedding_dimension() == pooling.get_embedding_dimension()
    encoder.save(str(tmp_path / "st"))
    again = (
        HeadPooling.load(tmp_path / "st").sentence_transformer()
    )  # no code is trusted for that, other than with SentenceTransformer(folder)
    np.testing.assert_allclose(again.encode(TEXTS), found, atol=1e-5)


def test_without_sentence_transformers_the_sentence_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"headwise\[sentence-transformers\]"):
        HeadPooling(opened(), HEADS).sentence_transformer()
