"""`gradient`: equal to plain autograd on the model's own attentions, one sentence at a time; what
is masked depends on seed and place alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.normalizers import BertNormalizer

from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.gradient.analysis import masked_tokens
from headwise.core.errors import MissingAnnotationError, ParameterError
from headwise.run import RunOptions, run_analyses
from headwise.testing import random_model
from headwise.testing.slow import eager, model_inputs
from headwise.text import open_corpus
from headwise.text.encode import Encoded

TYPES = ("cls", "sep", "punct", "other")
TEXTS: list[str | tuple[str, str]] = [
    "the cat saw a dog .",
    ("the old cat , a dog", "the dog sleeps near a house ."),
    "dog",
    ("a small child and a bird", "a cat ."),
    "the teacher saw the gardener under the tree , and the child heard it .",
]


def slow(
    model: Any, rows: Sequence[Encoded], loss: str, mask_id: int | None, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Importance [layer, head, type] and the paper's "other", one sentence at a time, with
    `retain_grad` on transformers' eager attentions."""
    by_type: list[np.ndarray] = []
    paper: list[np.ndarray] = []
    with eager(model) as module, torch.enable_grad():
        for row in rows:
            inputs = model_inputs(module, row)
            n = len(row)
            ids = row.ids.tolist()
            if loss == "causal":
                predicted = list(range(1, n))
            elif loss == "all":
                predicted = [t for t in range(n) if not row.special[t]]
            else:
                predicted = masked_tokens(row, share, seed).tolist()
                assert not row.special[predicted].any()
                assert len(predicted) == max(1, round(share * (~row.special).sum()))
                for t in predicted:
                    inputs["input_ids"][0, t] = mask_id
            output = (
                module(**inputs, output_attentions=True, use_cache=False)
                if loss == "causal"
                else module(**inputs, output_attentions=True)
            )
            for weights in output.attentions:
                weights.retain_grad()
            scores = (output.logits if hasattr(output, "logits") else output.prediction_logits)[
                0
            ].double()
            shift = 1 if loss == "causal" else 0
            terms = [
                torch.logsumexp(scores[t - shift], 0) - scores[t - shift, ids[t]] for t in predicted
            ]
            (sum(terms) / len(terms)).backward()
            gradient = np.stack([w.grad[0].abs().double().numpy() for w in output.attentions])
            module.zero_grad()
            types = []
            for t in range(n):
                seen = int(inputs["input_ids"][0, t])
                types.append(
                    "cls"
                    if row.cls[t]
                    else "sep"
                    if row.sep[t]
                    else "punct"
                    if row.punct[t] and seen == ids[t]
                    else "other"
                )
            pairs: dict[str, list[np.ndarray]] = {kind: [] for kind in (*TYPES, "paper")}
            for i in range(n):
                for j in range(n if loss != "causal" else i + 1):
                    pairs[types[j]].append(gradient[:, :, i, j])
                    if types[j] in ("cls", "other"):
                        pairs["paper"].append(gradient[:, :, i, j])
            nothing = np.full(gradient.shape[:2], np.nan)
            by_type.append(
                np.stack(
                    [np.mean(pairs[kind], axis=0) if pairs[kind] else nothing for kind in TYPES], -1
                )
            )
            paper.append(np.mean(pairs["paper"], axis=0))
    values = np.stack(by_type)
    total, count = np.nansum(values, 0), (~np.isnan(values)).sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), np.mean(paper, axis=0)


def close(found: Any, expected: np.ndarray, rtol: float = 1e-4) -> None:
    """Equal to a ten-thousandth of each number, or a millionth of the largest."""
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6 * np.nanmax(expected))


@pytest.mark.parametrize("loss", ["masked", "all", "causal"])
def test_equal_to_plain_autograd(loss: str) -> None:
    causal = loss == "causal"
    module, tokenizer = random_model(causal=causal)
    model = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_texts([text for text in TEXTS if isinstance(text, str) or not causal])
    parameters = {"gradient": {"loss": loss, "share": 0.3, "seed": 4}}
    found = make_atlas(model, corpus, ["gradient"], parameters=parameters)["gradient"]
    rows = [model.encode(example, i) for i, example in enumerate(corpus)]
    expected, paper = slow(model, rows, loss, tokenizer.mask_token_id, 0.3, 4)
    assert np.nanmin(expected) > 0
    close(found["importance"], expected)
    close(found["importance_paper_other"], paper)
    assert found.attrs["loss"] == loss
    for i, kind in enumerate(TYPES):
        assert bool(np.isnan(found["importance"].values[..., i]).all()) == bool(
            np.isnan(expected[..., i]).all()
        ), kind
    punct = sum("." in str(e.text) or "," in str(e.text) for e in corpus)
    if loss != "masked":
        assert int(found["importance_n"].sel(token_type="punct")[0, 0]) <= punct + 1


def test_auto_is_the_loss_the_model_was_trained_for() -> None:
    for causal, kind in ((False, "masked"), (True, "causal")):
        module, tokenizer = random_model(causal=causal)
        model = HeadModel.open(module, tokenizer=tokenizer)
        corpus = Corpus.from_texts([text for text in TEXTS if isinstance(text, str)])
        auto = make_atlas(model, corpus, ["gradient"])["gradient"]
        named = make_atlas(model, corpus, ["gradient"], parameters={"gradient": {"loss": kind}})[
            "gradient"
        ]
        np.testing.assert_array_equal(auto["importance"], named["importance"])


def test_masks_depend_on_seed_and_place_alone() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    rows = [
        model.encode("the cat saw a small dog under the old tree .", index) for index in range(40)
    ]
    chosen = [tuple(masked_tokens(row, 0.15, 0)) for row in rows]
    assert len(set(chosen)) > 10
    assert all(len(c) == 2 for c in chosen)
    assert chosen == [tuple(masked_tokens(row, 0.15, 0)) for row in rows]
    assert chosen != [tuple(masked_tokens(row, 0.15, 1)) for row in rows]
    assert len(masked_tokens(model.encode("dog", 0), 0.01, 0)) == 1


def test_many_examples_run_in_small_parts_give_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_texts(TEXTS)
    whole = make_atlas(model, corpus, ["gradient"])["gradient"]
    monkeypatch.setattr("headwise.analyses.gradient.analysis.GRADIENT_TOKENS", 1)
    close(
        run_analyses(model, corpus, [make_analysis("gradient")], tmp_path, RunOptions(full=True))[
            "gradient"
        ]["importance"],
        whole["importance"].values,
    )


def test_an_example_with_nothing_to_predict_is_left_out() -> None:
    module, tokenizer = random_model(causal=True)
    model = HeadModel.open(module, tokenizer=tokenizer)
    with_empty = make_atlas(model, Corpus.from_texts(["the cat saw a dog .", " "]), ["gradient"])[
        "gradient"
    ]
    alone = make_atlas(model, Corpus.from_texts(["the cat saw a dog ."]), ["gradient"])["gradient"]
    assert int(with_empty["importance_n"].max()) == 1
    np.testing.assert_allclose(with_empty["importance"], alone["importance"], rtol=1e-5)


def test_what_cannot_be_is_refused() -> None:
    module, tokenizer = random_model()
    corpus = Corpus.from_texts(["the cat ."])
    with pytest.raises(MissingAnnotationError, match="no language-modelling head"):
        make_atlas(HeadModel.open(module.bert, tokenizer=tokenizer), corpus, ["gradient"])
    with pytest.raises(MissingAnnotationError, match="predicts masked tokens"):
        make_atlas(
            HeadModel.open(module, tokenizer=tokenizer),
            corpus,
            ["gradient"],
            parameters={"gradient": {"loss": "causal"}},
        )
    decoder, its_tokenizer = random_model(causal=True)
    with pytest.raises(MissingAnnotationError, match="predicts the next token"):
        make_atlas(
            HeadModel.open(decoder, tokenizer=its_tokenizer),
            corpus,
            ["gradient"],
            parameters={"gradient": {"loss": "all"}},
        )
    for wrong in (
        {"loss": "mlm"},
        {"share": 0},
        {"share": 1.5},
        {"seed": -1},
        {"weighting": "words"},
    ):
        with pytest.raises(ParameterError):
            make_analysis("gradient", wrong)


@pytest.fixture(scope="module")
def in_double(wiki_bert: Path) -> HeadModel:
    """Where nearly every token is certain, the gradient of float32 losses is rounding."""
    return HeadModel.open(wiki_bert, dtype=torch.float64)


@pytest.mark.real
@pytest.mark.parametrize("loss", ["masked", "all"])
def test_equal_to_plain_autograd_on_wiki_bert(
    in_double: HeadModel, shared: Path, loss: str
) -> None:
    model, count = (
        in_double,
        (50 if loss == "masked" else 20) if os.environ.get("HEADWISE_FULL") else 2,
    )
    trees = open_corpus(shared / "data" / "trees" / "en_ewt-ud-dev.conllu.xz").limit(count)
    found = make_atlas(
        model, trees, ["gradient"], parameters={"gradient": {"loss": loss}}, full=True
    )["gradient"]
    rows = [model.encode(example, i) for i, example in enumerate(trees)]
    expected, paper = slow(model, rows, loss, model.tokenizer.mask_token_id, 0.15, 0)
    close(found["importance"], expected, 1e-6)
    close(found["importance_paper_other"], paper, 1e-6)


@pytest.mark.real
def test_equal_to_plain_autograd_on_a_decoder(stories: Path) -> None:
    model = HeadModel.open(stories)
    corpus = Corpus.from_texts(
        [
            "Once upon a time, there was a little dog.",
            "The cat ran.",
            "She saw a big red ball and she wanted to play with it.",
        ]
    )
    found = make_atlas(model, corpus, ["gradient"])["gradient"]
    rows = [model.encode(example, i) for i, example in enumerate(corpus)]
    expected, paper = slow(model, rows, "causal", None, 0.15, 0)
    close(found["importance"], expected)
    close(found["importance_paper_other"], paper)


def test_inputs_without_content_are_left_out_and_counted() -> None:
    module, tokenizer = random_model()
    tokenizer.backend_tokenizer.normalizer = (
        BertNormalizer()
    )  # takes zero-width characters away, as BERT's does
    model = HeadModel.open(module, tokenizer=tokenizer)
    empty = "\u200b\u200b"
    assert len(model.encode(empty)) == 2  # nothing but [CLS] and [SEP]
    alone = make_atlas(model, Corpus.from_texts(["the cat saw a dog ."]), ["gradient"])["gradient"]
    for texts in ([empty, "the cat saw a dog ."], ["the cat saw a dog .", empty, empty]):
        atlas = make_atlas(
            model, Corpus.from_texts(texts), ["gradient"], parameters={"gradient": {"loss": "all"}}
        )
        found = atlas["gradient"]
        assert found.attrs["inputs_left_out"] == len(texts) - 1
        assert int(found["importance_n"].max()) == 1
        told = atlas.provenance["left_out"]["gradient"]
        assert told[f"{len(texts) - 1} inputs"] == "they have no token to predict"
    assert alone.attrs["inputs_left_out"] == 0
