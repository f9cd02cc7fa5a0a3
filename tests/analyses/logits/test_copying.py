"""Copying on text: the planted heads that copy are found and no other, every number is that of a
slow computation, and random weights copy nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise import make_atlas
from headwise.analyses.logits.copying import AttendedTokens, copying_means, partner_rows
from headwise.atlas.behaviours import copies_on_text
from headwise.models import HeadModel
from headwise.models.direct import Recorded
from headwise.models.structure import find_structure
from headwise.models.view import AttentionRows
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.example import Example

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SUPPORTED, build, ids_batch


def random_texts(count: int, words: int, seed: int) -> Corpus:
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        drawn = rng.integers(0, words, 12)
        texts.append(" ".join(f"word{number}" for number in drawn))
    return Corpus.from_examples([Example(text=text) for text in texts], "random words")


def test_planted_heads_that_copy_are_called_so_and_no_other() -> None:
    decoder = planted_decoder()
    model = HeadModel.open(decoder.model, tokenizer=decoder.tokenizer)
    atlas = make_atlas(model, random_texts(24, 40, 0), ["logits", "surface"], full=True)
    logits = atlas["logits"]
    copies = copies_on_text(logits)
    # `induction` copies what followed its token, where there was one.
    expected = np.zeros((2, 3), bool)
    expected[decoder.where("copying")] = True
    expected[decoder.where("induction")] = True
    assert np.array_equal(copies, expected)
    # The copying head attends to each token itself and adds `loudness` to its logit; a token that
    # it does not attend to gets what is left of a code that is centred over the vocabulary.
    added = float(logits["copying_effect"].values[decoder.where("copying")])
    assert added == pytest.approx(decoder.loudness, rel=1e-4)
    table = atlas.describe().set_index("name")
    assert table.loc["L1H1", "does"] == "copying"
    assert table.loc["L1H1", "also"] == "same token"


def test_examples_of_one_document_are_one_observation() -> None:
    """Every text three times: as documents they say no more than once, as examples they do."""
    module, tokenizer = random_model(
        causal=True, layers=2, heads=3, words=[f"word{i}" for i in range(40)], seed=0
    )
    model = HeadModel.open(module, tokenizer=tokenizer)
    texts = list(random_texts(10, 40, 0))
    rows = [example for example in texts for _ in range(3)]
    in_documents = [replace(example, document=example.text) for example in rows]
    names = ("copying", "copying_effect")
    results = []
    for examples in (texts, rows, in_documents):
        corpus = Corpus.from_examples(examples, "texts")
        results.append(make_atlas(model, corpus, ["logits"], full=True)["logits"])
    once, as_examples, as_documents = results
    for name in names:
        for end in ("low", "high"):
            np.testing.assert_allclose(as_documents[f"{name}_{end}"], once[f"{name}_{end}"], 1e-4)
        assert np.all(as_examples[f"{name}_low"] > once[f"{name}_low"])
    np.testing.assert_allclose(as_documents["copying_p"], once["copying_p"], rtol=1e-3)


def test_random_weights_copy_nothing() -> None:
    for seed in range(3):
        module, tokenizer = random_model(
            causal=True, layers=3, heads=4, words=[f"word{i}" for i in range(40)], seed=seed
        )
        model = HeadModel.open(module, tokenizer=tokenizer)
        logits = make_atlas(model, random_texts(24, 40, seed), ["logits"], full=True)["logits"]
        assert not copies_on_text(logits).any()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_every_number_is_that_of_all_logits(name: str) -> None:
    """By what each head adds to the logits of the whole vocabulary, row by row."""
    config, _, arguments = SUPPORTED[name]
    causal = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "gemma2": "Gemma2ForCausalLM"}
    module = build(config, causal[name], arguments)
    with torch.no_grad():
        for parameter in module.parameters():  # norms and biases that are not one and zero
            if parameter.ndim == 1:
                parameter.add_(torch.rand_like(parameter) * 0.5)
    with HeadModel.open(module) as model:
        structure = find_structure(model)
        batch = ids_batch()
        blocks: dict[int, list[torch.Tensor]] = {}
        attended = AttendedTokens()

        def on_rows(rows: AttentionRows) -> None:
            blocks.setdefault(rows.layer, []).append(rows.weights.clone())
            attended.on_rows(rows)

        recorded = Recorded(model, structure, batch, on_rows)
        fast = copying_means(recorded, attended, recorded.logit_covariance())
        vocabulary = model.config.get_text_config().vocab_size
        added = []  # [token of the vocabulary][layer, example, row, head]
        for token in range(vocabulary):
            added.append(recorded.direct(torch.full_like(batch.ids, token)).heads)
        contribution = torch.stack(added, -1).double()  # [layer, example, row, head, token]

    weights = {layer: torch.cat(parts, -2) for layer, parts in blocks.items()}
    partner, is_row = partner_rows(batch)
    layers, examples, _, heads, _ = contribution.shape
    for layer, example, head in np.ndindex(layers, examples, heads):
        sums = np.zeros(3)
        total = 0.0
        for row in torch.nonzero(is_row[example])[:, 0].tolist():
            of_row = weights[layer][example, head, row].clone()
            other_row = weights[layer][example, head, int(partner[example, row])].clone()
            of_row[0] = other_row[0] = -1
            token = int(batch.ids[example, of_row.argmax()])
            control = int(batch.ids[example, other_row.argmax()])
            if token == control:
                continue
            logits = contribution[layer, example, row, head]
            excess = float(logits[token] - logits[control])
            spread = float(logits.std(correction=0))
            weight = float(of_row.max())
            sums += weight * np.array([excess, float(logits[token]), excess / spread])
            total += weight
        if total:
            names = ("copying", "copying_effect", "copying_spreads")
            for value, measure in zip(sums / total, names, strict=True):
                found = float(fast[measure][example, layer, head])
                assert found == pytest.approx(value, rel=2e-3, abs=1e-5), (measure, layer, head)
