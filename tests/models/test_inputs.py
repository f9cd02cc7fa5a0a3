"""What a model takes as input: texts, examples, token ids, a tokenizer's answer; and what it
refuses, in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import SUPPORTED, VOCABULARY, build, word_tokenizer

from headwise import Example
from headwise.core.errors import HeadwiseError
from headwise.models import HeadModel

TEXTS = ["w1 w2 w3 w4", "w5 w6"]


@pytest.fixture(scope="module")
def model() -> HeadModel:
    return HeadModel.open(build(*SUPPORTED["bert"]), tokenizer=word_tokenizer())


def test_a_tokenizers_answer_is_read_as_token_ids(model: HeadModel) -> None:
    wanted = model.batch(TEXTS)
    for given in (
        model.tokenizer(TEXTS, padding=True, return_tensors="pt"),
        model.tokenizer(TEXTS, padding=True, return_tensors="np"),
        model.tokenizer(TEXTS),
        dict(model.tokenizer(TEXTS, padding=True)),
    ):
        got = model.batch(given)
        for name in ("ids", "types", "attention_mask", "segment", "special", "cls", "sep", "punct"):
            assert torch.equal(getattr(got, name), getattr(wanted, name)), (type(given), name)
        assert (
            got.tokens
            == wanted.tokens
            == [["[CLS]", "w1", "w2", "w3", "w4", "[SEP]"], ["[CLS]", "w5", "w6", "[SEP]"]]
        )
    assert [row.example.text for row in model.batch(model.tokenizer(TEXTS)).rows] == [
        "[CLS] w1 w2 w3 w4 [SEP]",
        "[CLS] w5 w6 [SEP]",
    ]


def test_a_pair_keeps_its_segments(model: HeadModel) -> None:
    got, wanted = (
        model.batch(model.tokenizer("w1 w2", "w3")),
        model.batch(Example(text="w1 w2", pair="w3")),
    )
    assert torch.equal(got.segment, wanted.segment)
    assert torch.equal(got.types, wanted.types)


def test_token_ids_of_every_shape(model: HeadModel) -> None:
    rows = [[2, 10, 11, 3], [2, 12, 3]]
    padded = torch.tensor([[2, 10, 11, 3], [2, 12, 3, 0]])
    real = padded != 0
    wanted = model.batch(rows)
    assert [row.ids.tolist() for row in wanted.rows] == rows
    for given, mask in (
        (padded, real),
        (padded.to(torch.int32), real.long()),
        (padded.numpy(), real.numpy()),
        (padded.tolist(), real.long().tolist()),
        (padded.tolist(), real.tolist()),
        ([torch.tensor(row) for row in rows], None),
        ([np.array(rows[0]), rows[1]], None),
        ((row for row in rows), None),
        ({"input_ids": padded, "attention_mask": real}, None),
    ):
        got = model.batch(given, mask)
        assert torch.equal(got.ids, wanted.ids)
        assert torch.equal(got.attention_mask, wanted.attention_mask)
    for one in (rows[0], torch.tensor(rows[0]), np.array(rows[0]), tuple(rows[0])):
        assert model.batch(one).ids.tolist() == rows[:1]
    assert (
        model.batch(["w5 w6", rows[1], Example(text="w7")]).tokens[1]
        == model.batch(rows[1]).tokens[0]
    )
    assert model.batch(wanted) is wanted


def test_a_pass_takes_what_a_batch_takes(model: HeadModel) -> None:
    wanted = model.trace(model.batch(TEXTS)).attention
    for given in (TEXTS, model.tokenizer(TEXTS, padding=True, return_tensors="pt")):
        assert torch.equal(model.trace(given).attention, wanted)  # type: ignore[arg-type]
    assert torch.equal(
        model.forward("w5 w6").last_hidden_state,
        model.forward(model.batch("w5 w6")).last_hidden_state,
    )


def test_token_ids_need_no_tokenizer() -> None:
    bare = HeadModel.open(build(*SUPPORTED["llama"]))
    batch = bare.batch([[7, 8, 9], [5]])
    assert batch.tokens == [["7", "8", "9"], ["5"]]
    assert batch.attention_mask.tolist() == [[True] * 3, [True, False, False]]
    assert bare.trace([7, 8, 9]).attention is not None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([2, VOCABULARY], f"Row 0 of token ids has the id {VOCABULARY}, but the model has ids 0 to {VOCABULARY - 1}."),
        ([[2, 3], [5, -1]], "Row 1 of token ids has the id -1, but none is below 0."),
        (
            {"input_ids": [[0, 0, 5, 6]], "attention_mask": [[0, 0, 1, 1]]},
            "Row 0 of token ids is padded on the left or inside: give rows padded on the right "
            "(tokenizer.padding_side = 'right').",
        ),
        (
            {"input_ids": [[5, 6]], "attention_mask": [[0, 0]]},
            "Row 0 of token ids is all padding: give rows padded on the right (tokenizer.padding_side = 'right').",
        ),
        (
            {"input_ids": [[5, 6]], "attention_mask": [[1]]},
            "The attention mask must have the shape of the token ids: one row of numbers for each of the 1 rows, as "
            "long as it.",
        ),
        ({"ids": [1]}, "A mapping given as input needs `input_ids`; it has `ids`."),
        (
            torch.ones(2, 3),
            "Token ids are whole numbers [token] or [example, token]; [2, 3] of float32 were given.",
        ),
        (
            torch.ones(2, 3, dtype=torch.bool),
            "Token ids are whole numbers; true and false were given: is this an attention mask?",
        ),
        ([], "A batch needs at least one example."),
        ([[]], "A list (place 0) is no input; give a text, an Example, token ids (whole numbers, or a tensor "
               "[example, token]) or what a tokenizer gives."),
        (3, "A int is no input; give a text, an Example, token ids (whole numbers, or a tensor [example, token]) or "
            "what a tokenizer gives."),
        (["w1", None], "A NoneType (place 1) is no input; give a text, an Example, token ids (whole numbers, or a "
                       "tensor [example, token]) or what a tokenizer gives."),
    ],
)  # fmt: skip
def test_what_is_no_input_is_said(model: HeadModel, given: Any, sentence: str) -> None:
    with pytest.raises(HeadwiseError) as caught:
        model.batch(given)
    assert str(caught.value) == sentence


def test_a_mask_goes_with_ids_only(model: HeadModel) -> None:
    with pytest.raises(HeadwiseError, match="not taken with texts"):
        model.batch("w1 w2", mask=[1, 1])


def test_a_trace_is_short_to_read(model: HeadModel) -> None:
    said = repr(model.trace("w1 w2", {"attention", "outputs"}))
    assert (
        said == "Trace(attention=[1, 3, 4, 4, 4], visible=[1, 3, 1, 4, 4], outputs=[1, 3, 4, 4, 8])"
    )
