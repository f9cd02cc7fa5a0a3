"""The built-in corpus as the package reads it. What its sentences are like is tested with the
grammar that made them."""

from __future__ import annotations

import pytest

from headwise.core.errors import ParameterError
from headwise.text import open_corpus
from headwise.text.demo import SIZE, TREEBANK, demo_corpus, demo_examples

FINGERPRINT = "b107cef7686251e911911cfe323c7f64e71e79da1a15a8c0a830652d529bd0ec"  # results name it: it must not change
REAL_FINGERPRINT = "6f75dd118be46894f1ce2dac7ff8b62e7edfa1ed6b4ce49d650d7d2fefa291b7"


def test_the_corpus_is_the_one_of_every_version() -> None:
    corpus = demo_corpus()
    survey = corpus.survey()
    assert (survey.count, survey.fingerprint, survey.notes) == (SIZE, FINGERPRINT, {})
    assert (corpus.name, corpus.licence) == ("demo", "Apache-2.0")
    assert "true trees, coreference and frames" in corpus.description
    assert survey.schemes == ("ud",)
    annotations = {"words", "dependencies", "pos", "coreference", "frames", "segments", "label"}
    assert survey.annotations == corpus.annotations == annotations


def test_a_part_is_the_beginning() -> None:
    part = demo_examples(30)
    assert part == demo_examples()[:30] == list(demo_corpus(30))
    assert [example.origin for example in part[:2]] == ["demo:1", "demo:2"]


@pytest.mark.parametrize("size", [0, SIZE + 1])
def test_sizes_it_does_not_have_are_refused(size: int) -> None:
    with pytest.raises(ParameterError, match="`size` must be at"):
        demo_corpus(size)


def test_reader_options_are_refused() -> None:
    with pytest.raises(ParameterError, match="takes no reader options; given: split"):
        open_corpus(split="lines")


def test_the_built_in_corpus_is_real_english_with_its_trees() -> None:
    corpus = open_corpus()
    survey = corpus.survey()
    assert (survey.count, survey.fingerprint) == (375, REAL_FINGERPRINT)
    assert (corpus.name, corpus.licence) == (TREEBANK, "CC BY-SA 4.0")
    assert survey.annotations == {"words", "dependencies", "pos", "segments"}
    assert [part.name for part in corpus.parts] == ["demo"]
    examples = list(corpus)
    assert len({example.document for example in examples}) == 125
    assert sum(1 + example.has_pair for example in examples) == 500
    for example in examples:
        first = len(example.words)
        texts = [example.text] * first + [example.pair] * (len(example.all_words) - first)
        written = [text[a:b] for text, (a, b) in zip(texts, example.spans, strict=True)]
        assert written == list(example.all_words)


def test_prose_is_the_same_words_and_trees_as_running_text() -> None:
    apart, prose = open_corpus(), open_corpus(prose=True)
    for corpus, text in ((apart, prose), (apart.parts[0], prose.parts[0])):
        for one, other in zip(corpus, text, strict=True):
            assert other.words == one.all_words
            assert not other.has_pair
            assert [other.text[a:b] for a, b in other.spans] == list(other.words)
            assert (other.heads, other.relations, other.mentions) == (
                one.heads,
                one.relations,
                one.mentions,
            )
            assert "  " not in other.text
            assert " ." not in other.text
    pair = apart.peek()[0]
    assert prose.peek()[0].text == f"{pair.text} {pair.pair}"


def test_which_part_has_what_is_asked() -> None:
    corpus = open_corpus()
    assert corpus.having(frozenset({"dependencies"})) is corpus
    assert corpus.having(frozenset({"coreference"})) is corpus.parts[0]
    assert corpus.having(frozenset({"nothing"})) is corpus
    assert corpus.alone().parts == ()
    assert [part.survey().count for part in open_corpus(limit=7).parts] == [7]
