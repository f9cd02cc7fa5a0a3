"""Sentences for drawings: those where the head is right, and only those."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.analyses.dependency_sentences import right_sentences
from headwise.errors import InputError, ParameterError
from headwise.models import HeadModel
from headwise.testing import planted_annotations
from headwise.testing.corpora import battery_examples


@pytest.fixture
def planted() -> tuple[HeadModel, list]:
    singles = [example for example in battery_examples() if not example.has_pair]
    made, examples = planted_annotations(singles, (("tree", "children", "previous"),))
    return HeadModel.open(made.model, tokenizer=made.tokenizer), examples


def test_a_tree_head_is_right_everywhere(planted: tuple[HeadModel, list]) -> None:
    model, examples = planted
    with_objects = [e for e in examples if "obj" in e.relations]
    found = right_sentences(model, examples, "obj", 0, 0, count=99)
    assert [s.example for s in found] == with_objects
    for sentence in found:
        expected = [(d, h) for d, (h, r) in enumerate(zip(sentence.example.heads, sentence.example.relations, strict=True)) if r == "obj"]
        assert list(sentence.pairs) == expected
        for dependent, head in sentence.pairs:
            assert sentence.weights[dependent, head] == pytest.approx(1, abs=1e-4)
    assert len(right_sentences(model, examples, "obj", 0, 0, count=2)) == 2


def test_the_other_direction(planted: tuple[HeadModel, list]) -> None:
    model, examples = planted
    found = right_sentences(model, examples, "nsubj", 0, 1, "head_to_dependent", count=1)
    (dependent, head) = found[0].pairs[0]
    assert np.nanargmax(found[0].weights[:, dependent]) == head


def test_a_head_that_looks_back_finds_no_subjects(planted: tuple[HeadModel, list]) -> None:
    model, examples = planted
    assert right_sentences(model, examples, "nsubj", 0, 2) == []


def test_relations_that_do_not_occur_and_wrong_directions(planted: tuple[HeadModel, list]) -> None:
    model, examples = planted
    with pytest.raises(InputError, match="has the relation 'dobj'; those that occur: advmod, amod, "):
        right_sentences(model, examples, "dobj", 0, 0)
    with pytest.raises(ParameterError, match="dependent_to_head, head_to_dependent"):
        right_sentences(model, examples, "obj", 0, 0, "both")
