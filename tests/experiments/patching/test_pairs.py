"""Pairs of prompts: alignment by marks token by token, files with damaged rows, and what every
built-in set promises."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headwise.core.errors import InputError, ParameterError
from headwise.experiments.circuit.options import CircuitOptions
from headwise.experiments.circuit.result import MIN_UNITS
from headwise.experiments.circuit.run import split_by_unit
from headwise.experiments.patching import PromptPair, builtin_pairs, read_pairs
from headwise.experiments.patching.pairs import (
    choose_pairs,
    distinct_pairs,
    encode_pair,
    encode_pairs,
)
from headwise.experiments.patching.templates import BUILTIN
from headwise.models import HeadModel
from headwise.testing import planted_decoder


@pytest.fixture(scope="module")
def model():
    planted = planted_decoder(words=12, max_length=16)
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        yield model


def test_marked_spans_of_other_lengths_are_aligned_at_their_ends(model: HeadModel) -> None:
    pair = PromptPair(
        "word1 [[word2 word3]] word4 [[word5]]",
        "word1 [[word6 word7 word8]] word4 [[word9]]",
        "word3",
        "word8",
    )
    tokens, reason = encode_pair(model, pair, 0)
    assert reason == ""
    # Marks are no tokens.
    plain = model.encode("word1 word2 word3 word4 word5")
    np.testing.assert_array_equal(tokens.clean.ids, plain.ids)
    # What stands beside each token of the clean input, by the texts of both.
    beside = {}
    for position, other in enumerate(tokens.positions):
        clean_text = tokens.clean.tokens[position].strip()
        beside[clean_text] = tokens.corrupted.tokens[other].strip()
    opening = tokens.clean.tokens[0].strip()
    expected = {"word1": "word1", "word2": "word7", "word3": "word8", "word4": "word4"}
    assert beside == {opening: opening, **expected, "word5": "word9"}


def test_of_a_longer_marked_span_the_first_tokens_have_no_counterpart(model: HeadModel) -> None:
    pair = PromptPair("[[word1 word2 word3]] word4", "[[word5]] word4", "word1", "word5")
    tokens, reason = encode_pair(model, pair, 0)
    assert reason == ""
    texts = [text.strip() for text in tokens.clean.tokens]
    without = {text for text, other in zip(texts, tokens.positions, strict=True) if other < 0}
    assert without == {"word1", "word2"}
    at_end = tokens.positions[texts.index("word3")]
    assert tokens.corrupted.tokens[at_end].strip() == "word5"


@pytest.mark.parametrize(
    ("clean", "corrupted", "message"),
    [
        ("[[word1]] word2", "word1 word2", "1 and 0 marked spans"),
        ("word1 [[word2]]", "word1 word3 [[word2]]", "tokens before the first mark"),
        ("[[word1]] word2", "[[word1]] word2 word3", "tokens after mark 1"),
        ("word1 word2", "word1 word2 word3", "they must have equally many"),
    ],
)
def test_pairs_that_cannot_be_aligned_say_why(
    model: HeadModel, clean: str, corrupted: str, message: str
) -> None:
    pair = PromptPair(clean, corrupted, "word1", "word2", where="pairs.jsonl:3")
    with pytest.raises(InputError, match=message) as error:
        encode_pairs(model, [pair], strict=True, marked=True)
    assert str(error.value).startswith("pairs.jsonl:3: ")
    usable = PromptPair("word1 word2", "word1 word3", "word1", "word2")
    encoded, n_left_out = encode_pairs(model, [pair, usable], strict=False, marked=True)
    assert (len(encoded), n_left_out) == (1, 1)


def test_marked_pairs_of_unequal_length_are_left_out_unless_allowed(model: HeadModel) -> None:
    pair = PromptPair("[[word1 word2]] word3", "[[word4]] word3", "word1", "word4")
    assert len(encode_pairs(model, [pair], strict=True, marked=True)[0]) == 1
    with pytest.raises(InputError, match="they must have equally many"):
        encode_pairs(model, [pair], strict=True)
    with pytest.raises(InputError, match="No pair can be used"):
        encode_pairs(model, [pair], strict=False)


def test_a_file_names_the_line_and_the_field_that_is_wrong(tmp_path: Path) -> None:
    row = {"clean": "a b", "corrupted": "a c", "answer": "b", "wrong": "c"}
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({**row, "unit": "u1"}) + "\n" + json.dumps(row) + "\n")
    assert [pair.unit for pair in read_pairs(path)] == ["u1", ""]
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "unit": 3}) + "\n")
    with pytest.raises(InputError, match=r"pairs\.jsonl:2.*`unit` must be a text"):
        read_pairs(path)
    path.write_text(json.dumps({**row, "answer": None}) + "\n")
    with pytest.raises(InputError, match=r"pairs\.jsonl:1.*`answer` must be a text"):
        read_pairs(path)
    path.write_text("\n")
    with pytest.raises(InputError, match="holds no pairs"):
        read_pairs(path)


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_a_built_in_set_gives_different_pairs_that_its_seed_decides(name: str) -> None:
    pairs = builtin_pairs(name, 12, seed=3)
    assert len(pairs) == 12
    assert distinct_pairs(pairs) == pairs
    assert builtin_pairs(name, 12, seed=3) == pairs
    assert builtin_pairs(name, 12, seed=4) != pairs
    for pair in pairs:
        assert pair.clean != pair.corrupted
        assert pair.answer != pair.wrong
        assert pair.unit, "pairs of one unit are one observation: each set says what they share"
        # An answer is predicted after the prompt: it must not stand at the prompt's end.
        assert not pair.clean.endswith(pair.answer)


def test_units_of_a_set_are_shared_by_pairs_but_not_by_all() -> None:
    units = {pair.unit for pair in builtin_pairs("names", 40)}
    assert 1 < len(units) <= 40


def test_a_pair_without_a_unit_shares_none_whatever_units_are_called(model: HeadModel) -> None:
    pairs = []
    for first, unit in (("word1", ""), ("word2", "pair 0"), ("word3", ""), ("word5", "pair 0")):
        pairs.append(PromptPair(f"{first} word4", "word6 word4", first, "word6", unit=unit))
    pairs.append(PromptPair("word7 word4", "word6 word4", "word7", "word6", unit="0"))
    encoded, _ = encode_pairs(model, pairs, strict=True)
    units = [pair.unit for pair in encoded]
    assert len(set(units)) == 4
    assert units[1] == units[3]
    # Ranked and judged apart: the pairs of one unit are in one half.
    ranking, judging = split_by_unit(encoded)
    assert {pair.unit for pair in ranking}.isdisjoint({pair.unit for pair in judging})
    assert len(ranking) + len(judging) == 5


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_both_halves_of_a_set_have_enough_units_for_a_test(name: str) -> None:
    """A circuit's edges are ranked on one half of the units and tested on the other."""
    for seed in range(3):
        pairs = builtin_pairs(name, CircuitOptions().limit, seed)
        assert len(pairs) == CircuitOptions().limit
        ranking, judging = split_by_unit(pairs)
        ranking_units = {pair.unit for pair in ranking}
        judging_units = {pair.unit for pair in judging}
        assert not ranking_units & judging_units
        assert min(len(ranking_units), len(judging_units)) >= MIN_UNITS


def test_an_unknown_set_names_those_there_are() -> None:
    with pytest.raises(ParameterError, match="agreement"):
        builtin_pairs("agrement", 1)


def test_pairs_that_are_none_are_named(model: HeadModel, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="agreement"):
        choose_pairs(model, "agrement", 4, 0, None)
    with pytest.raises(InputError, match=r"mine\.jsonl"):
        choose_pairs(model, tmp_path / "mine.jsonl", 4, 0, None)
    with pytest.raises(ParameterError, match=r"a tuple at place 1.*PromptPair"):
        choose_pairs(model, [PromptPair("a", "b", "c", "d"), ("a", "b", "c", "d")], 4, 0, None)


def test_repeated_pairs_are_one_observation() -> None:
    pair = PromptPair("a b", "a c", "b", "c", where="x:1")
    again = PromptPair("a b", "a c", "b", "c", where="x:2")
    other = PromptPair("a b", "a c", "b", "d")
    assert distinct_pairs([pair, other, again]) == [pair, other]
