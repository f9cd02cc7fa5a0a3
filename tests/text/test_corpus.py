"""Corpora: walking, limits, fingerprints, surveys."""

from __future__ import annotations

from collections import Counter

import pytest

from headwise.core.errors import InputError, ParameterError
from headwise.text import Corpus, Example


def test_walks_any_number_of_times():
    corpus = Corpus.from_texts(["one", ("two", "three")])
    assert [e.text for e in corpus] == ["one", "two"] == [e.text for e in corpus]
    assert corpus.annotations == {"segments"}
    assert corpus.limit(1).annotations == frozenset()
    assert len(list(corpus.limit(1))) == 1
    assert len(list(corpus.limit(99))) == 2
    assert corpus.limit(None) is corpus


def test_empty_is_refused():
    with pytest.raises(InputError, match=r"nothing holds no examples"):
        list(Corpus.from_examples([], name="nothing"))
    with pytest.raises(InputError, match="holds no examples"):
        Corpus.from_examples([]).fingerprint()
    with pytest.raises(ParameterError, match="limit"):
        Corpus.from_texts(["a"]).limit(0)
    with pytest.raises(ParameterError, match="list of texts"):
        Corpus.from_texts("abc")


def test_fingerprint_is_of_the_content_alone():
    a = Corpus.from_examples([Example(text="x", origin="a:1"), Example(text="y")], name="a")
    b = Corpus.from_examples([Example(text="x", origin="b:9"), Example(text="y")], name="b")
    assert a.fingerprint() == b.fingerprint()
    assert a.limit(1).fingerprint() != a.fingerprint()
    assert Corpus.from_texts(["y", "x"]).fingerprint() != a.fingerprint()
    assert Corpus.from_examples([Example(text="x", label="1"), Example(text="y")]).fingerprint() != a.fingerprint()


def test_survey_and_notes():
    tree = Example(words=("a", "b"), heads=(1, -1), relations=("det", "root"))

    def stream(notes: Counter[str]):
        yield tree
        notes["left out"] += 1
        yield Example(text="plain")

    corpus = Corpus("mixed", stream)
    survey = corpus.survey()
    assert survey.count == 2
    assert survey.annotations == {"words", "dependencies"}
    assert survey.relations == ("det", "root")
    assert survey.examples_with == {"dependencies": 1, "words": 1}
    assert survey.notes == {"left out": 1} == corpus.notes
    list(corpus)
    assert corpus.notes == {"left out": 1}


def test_a_stream_is_not_run_ahead():
    drawn = []

    def stream(notes):
        for number in range(1000):
            drawn.append(number)
            yield Example(text=str(number))

    assert len(Corpus("long", stream).peek(3)) == 3
    assert len(drawn) == 3
