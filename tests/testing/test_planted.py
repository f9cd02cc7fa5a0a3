"""Planted heads do exactly what was planted.

Eager attention equals the plain rule, with padding, pairs and causal models.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.core.errors import ParameterError
from headwise.testing import eager_hidden, eager_maps, permute_heads, planted_model
from headwise.text.encode import collate
from headwise.text.example import Example

ENCODER_HEADS = (
    ("previous", "next", "self", "offset:+3", "offset:-2", "sep"),
    ("cls", "first", "block", "uniform", "same_word", "same_word_other_segment"),
)
DECODER_HEADS = (
    ("previous", "self", "offset:-3"),
    ("first", "uniform", "same_word"),
    ("cls", "offset:-1", "previous"),
)
TEXTS = (
    Example(text="the cat saw the dog, and the teacher sings."),
    Example(text="a cat sleeps.", pair="the old cat runs near a gardener?"),
    Example(text="dog"),
    Example(words=("the", "gardener", "sleeps"), words_pair=("sleeps", "the", "unheard")),
)


@pytest.fixture(scope="module")
def encoder():
    return planted_model(ENCODER_HEADS)


@pytest.fixture(scope="module")
def decoder():
    return planted_model(DECODER_HEADS, causal=True)


def test_encoder_maps_are_what_was_planted(encoder):
    rows = encoder.encode(TEXTS)
    for row, found in zip(rows, eager_maps(encoder.model, rows), strict=True):
        np.testing.assert_allclose(found, encoder.expected_map(row), atol=1e-6)


def test_decoder_maps_are_what_was_planted(decoder):
    rows = decoder.encode([TEXTS[0], TEXTS[2]])
    for row, found in zip(rows, eager_maps(decoder.model, rows), strict=True):
        np.testing.assert_allclose(found, decoder.expected_map(row), atol=1e-6)
        assert (np.triu(found, 1) == 0).all()


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_padding_changes_nothing(kind, request):
    planted = request.getfixturevalue(kind)
    rows = planted.encode(TEXTS[:3])
    batch = collate(rows, planted.tokenizer.pad_token_id, pad_to=30)
    inputs = {"input_ids": batch.ids, "attention_mask": batch.attention_mask.long()} | (
        {} if planted.causal else {"token_type_ids": batch.types}
    )
    with torch.no_grad():
        maps = (
            torch.stack(planted.model(**inputs, output_attentions=True).attentions, 1)
            .double()
            .numpy()
        )
    for row, found in zip(rows, maps, strict=True):
        n = len(row)
        np.testing.assert_allclose(found[..., :n, :n], planted.expected_map(row), atol=1e-6)
        assert np.abs(found[..., :n, n:]).max() == 0


def test_the_rules_by_hand(encoder):
    """A map written down by hand, so that rule and weights cannot be wrong together."""
    row = encoder.encode([Example(words=("cat", "sleeps"), words_pair=("a", "cat"))])[0]
    assert encoder.tokenizer.convert_ids_to_tokens(row.ids) == [
        "[CLS]",
        "cat",
        "sleep",
        "##s",
        "[SEP]",
        "a",
        "cat",
        "[SEP]",
    ]
    maps = eager_maps(encoder.model, [row])[0]
    targets = {
        "previous": [[0], [0], [1], [2], [3], [4], [5], [6]],
        "next": [[1], [2], [3], [4], [5], [6], [7], [7]],
        "offset:+3": [[3], [4], [5], [6], [7], [5], [6], [7]],
        "sep": [[4, 7]] * 8,
        "cls": [[0]] * 8,
        "block": [[0], [1, 2, 3], [1, 2, 3], [1, 2, 3], [4], [5, 6], [5, 6], [7]],
        "same_word": [[0], [1, 6], [2], [3], [4, 7], [5], [1, 6], [4, 7]],
        "same_word_other_segment": [[0], [6], [2], [3], [7], [5], [1], [4]],
    }
    for name, wanted in targets.items():
        by_hand = np.zeros((8, 8))
        for i, js in enumerate(wanted):
            by_hand[i, js] = 1 / len(js)
        [(layer, head)] = encoder.where(name)
        np.testing.assert_allclose(maps[layer, head], by_hand, atol=1e-6, err_msg=name)


def test_every_layer_sees_the_same_codes_and_a_payload_that_grows(encoder):
    row = encoder.encode(TEXTS[:1])
    hidden = eager_hidden(encoder.model, row)[0]
    for later in hidden[1:]:
        np.testing.assert_allclose(later[:, :-8], hidden[0][:, :-8], atol=1e-5)
        assert np.abs(later[:, -8:] - hidden[0][:, -8:]).max() > 0.05


def test_layer_norms_leave_the_codes_alone(encoder):
    """What enters the first layer is the plain sum of the three embeddings: every code is
    centred."""
    row = encoder.encode(TEXTS[1:2])[0]
    tables = encoder.model.bert.embeddings
    with torch.no_grad():
        plain = (
            tables.word_embeddings.weight[row.ids]
            + tables.position_embeddings.weight[: len(row)]
            + tables.token_type_embeddings.weight[row.types]
        )
    np.testing.assert_allclose(eager_hidden(encoder.model, [row])[0][0], plain.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_permuted_heads_make_the_same_model(kind, request):
    planted = request.getfixturevalue(kind)
    generator = np.random.default_rng(1)
    order = [generator.permutation(planted.heads).tolist() for _ in range(planted.layers)]
    other = permute_heads(planted.model, order)
    rows = planted.encode(TEXTS[:1])
    np.testing.assert_allclose(
        eager_hidden(other, rows)[0], eager_hidden(planted.model, rows)[0], atol=1e-5
    )
    before, after = eager_maps(planted.model, rows)[0], eager_maps(other, rows)[0]
    for layer, new in enumerate(order):
        np.testing.assert_allclose(after[layer], before[layer][new], atol=1e-6)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_the_language_model_head_feels_the_heads(kind, request):
    """Gradients with respect to the weights are not zero: what heads write reaches the loss."""
    planted = request.getfixturevalue(kind)
    row = planted.encode(TEXTS[:1])[0]
    ids = torch.as_tensor(row.ids)[None]
    output = planted.model(ids, labels=ids, output_attentions=True)
    gradients = torch.autograd.grad(output.loss, output.attentions)
    assert all(g.abs().max() > 1e-6 for g in gradients)


def test_the_same_seed_makes_the_same_model_and_leaves_the_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (planted_model([["uniform", "next"]], max_length=16) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_examples_as_vocabulary_share_codes_and_say_when_that_fails():
    examples = [Example(words=tuple(f"w{i}x{j}" for j in range(5)) * 2) for i in range(40)]
    planted = planted_model([["same_word", "previous"]], examples=examples, max_length=16)
    assert planted.model.config.hidden_size < 60  # 200 words
    rows = planted.encode(examples)
    for row, found in zip(rows, eager_maps(planted.model, rows), strict=True):
        np.testing.assert_allclose(found, planted.expected_map(row), atol=1e-6)
    stranger = planted.encode([Example(words=("w0x0", "w0x1", "w1x0", "w1x1", "w2x0"))])[0]
    with pytest.raises(ParameterError, match="Two words occur together here"):
        planted.expected_map(stranger)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"behaviours": [["previuos"]]}, "Did you mean 'previous'"),
        ({"behaviours": [["next"]], "causal": True}, "causal"),
        ({"behaviours": [["previous"], ["previous", "next"]]}, "same number of heads"),
        ({"behaviours": [["tree"]]}, "needs the table 'tree'"),
        ({"behaviours": [["tree"]], "words": ["a", "b"], "tables": {"tree": {"a": "c"}}}, "'c'"),
        (
            {"behaviours": [["tree"]], "words": ["a", "b"], "tables": {"tree": {"a": "a"}}},
            "points at itself",
        ),
        (
            {"behaviours": [["tree"]], "words": ["a|s", "b|s"], "tables": {"tree": {"as": "bs"}}},
            "piece of another word",
        ),
        ({"behaviours": [["self"]], "words": ["ab|c", "abc|d"]}, "breaks into"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(arguments, message):
    with pytest.raises(ParameterError, match=message):
        planted_model(**arguments)
