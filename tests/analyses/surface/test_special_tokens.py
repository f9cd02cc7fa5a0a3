"""Special tokens that a model cannot tell apart: measured, and said on page and in reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from headwise import Atlas, Corpus, HeadModel, make_atlas
from headwise.atlas.behaviours import special_token_note
from headwise.page.report import highlights, page_notes
from headwise.testing import eager_hidden, random_model
from headwise.text.encode import Encoded

WORDS = ["the", "a", "cat", "dog", "saw", "sleeps", ".", "in", "house"]
TEXTS: list[str | tuple[str, str]] = [
    "the cat saw a dog .",
    ("the cat saw a dog", "the dog sleeps in a house ."),
    "dog",
]


def slow_cosines(model: HeadModel, rows: Sequence[Encoded]) -> np.ndarray:
    """The mean cosine by layer, in loops over tokens, from transformers' hidden states."""
    layers = model.module.bert.encoder.layer
    by_example = []
    for row, hidden_states in zip(rows, eager_hidden(model, rows), strict=True):
        by_layer = []
        for layer, hidden in zip(layers, hidden_states, strict=False):
            projection = layer.attention.self.key
            keys = hidden @ projection.weight.detach().double().numpy().T
            keys = keys + projection.bias.detach().double().numpy()
            words = [keys[t] for t in range(len(row)) if not row.cls[t] and not row.sep[t]]
            centred = keys - np.mean(words, axis=0)
            cosines = []
            for t in np.flatnonzero(row.sep):
                norms = np.linalg.norm(centred[0]) * np.linalg.norm(centred[t])
                cosines.append(centred[0] @ centred[t] / norms)
            by_layer.append(np.mean(cosines))
        by_example.append(by_layer)
    return np.mean(by_example, axis=0)


def opened(module: Any, tokenizer: Any) -> HeadModel:
    return HeadModel.open(module, tokenizer=tokenizer)


def surface_atlas(model: HeadModel) -> Atlas:
    return make_atlas(model, Corpus.from_texts(TEXTS), ["surface"])


def test_equal_to_plain_loops() -> None:
    model = opened(*random_model(layers=3, words=WORDS))
    surface = surface_atlas(model)["surface"]
    rows = [model.encode(example, i) for i, example in enumerate(Corpus.from_texts(TEXTS))]
    np.testing.assert_allclose(surface["special_cosine"], slow_cosines(model, rows), atol=1e-5)
    assert (surface["special_cosine_n"] == len(TEXTS)).all()
    assert special_token_note(surface) == ""


def test_tokens_that_are_the_same_are_named() -> None:
    module, tokenizer = random_model(layers=3, words=WORDS)
    embeddings = module.bert.embeddings
    cls = tokenizer.cls_token_id
    sep = tokenizer.sep_token_id
    with torch.no_grad():
        # Without positions and segments, equal words stay equal in every layer.
        embeddings.position_embeddings.weight.zero_()
        embeddings.token_type_embeddings.weight.zero_()
        embeddings.word_embeddings.weight[sep] = embeddings.word_embeddings.weight[cls]
    atlas = surface_atlas(opened(module, tokenizer))
    note = special_token_note(atlas["surface"])
    assert note.startswith("In layers 0, 1, 2 (counted from 0)")
    assert "cosine 1.000 to 1.000" in note
    assert note in page_notes(atlas)
    assert highlights(atlas)


def test_a_shared_direction_is_not_sameness() -> None:
    """A large bias makes all keys alike, and changes no weight."""
    module, tokenizer = random_model(layers=2, words=WORDS)
    without_bias = surface_atlas(opened(module, tokenizer))["surface"]["special_cosine"].values
    with torch.no_grad():
        for layer in module.bert.encoder.layer:
            layer.attention.self.key.bias.fill_(50.0)
    atlas = surface_atlas(opened(module, tokenizer))
    np.testing.assert_allclose(atlas["surface"]["special_cosine"], without_bias, atol=1e-3)
    assert special_token_note(atlas["surface"]) == ""


def test_a_decoder_has_no_such_measure() -> None:
    model = opened(*random_model(causal=True, words=WORDS))
    assert "special_cosine" not in surface_atlas(model)["surface"]


@pytest.mark.real
def test_a_real_model_whose_special_tokens_coincide(wiki_model: HeadModel) -> None:
    """The first wiki-bert: from layer 4 on the two tokens were one."""
    surface = make_atlas(
        wiki_model, Corpus.from_texts(["The cat sat on the mat.", "It rained."]), ["surface"]
    )["surface"]
    cosine = surface["special_cosine"].values
    assert (cosine[5:] > 0.99).all()
    assert (cosine[:3] < 0.9).all()
    assert "told apart" in special_token_note(surface)


def test_the_built_in_model_has_two_special_tokens() -> None:
    """And its middle layers rest on `[SEP]`, the first ones on `[CLS]`, as its README says."""
    pytest.importorskip("headwise_wiki_bert", reason="the built-in model is not installed")
    surface = make_atlas(analyses=["surface"], limit=20)["surface"]
    assert special_token_note(surface) == ""
    by_layer = surface["mass"].mean("head")
    assert (by_layer.sel(token_type="sep", layer=slice(5, 9)) > 0.5).all()
    assert (by_layer.sel(token_type="cls", layer=slice(1, 3)) > 0.3).all()
    assert (by_layer.sel(token_type="cls", layer=slice(4, 9)) < 0.05).all()
