"""The built-in corpus as the package reads it. What its sentences are like is tested with the grammar that made
them."""

from __future__ import annotations

import pytest

from headwise.core.errors import ParameterError
from headwise.text import open_corpus
from headwise.text.demo import SIZE, demo_corpus, demo_examples

FINGERPRINT = "b107cef7686251e911911cfe323c7f64e71e79da1a15a8c0a830652d529bd0ec"  # results name it: it must not change


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
    assert part == demo_examples()[:30] == list(open_corpus(limit=30)) == list(demo_corpus(30))
    assert [example.origin for example in part[:2]] == ["demo:1", "demo:2"]


@pytest.mark.parametrize("size", [0, SIZE + 1])
def test_sizes_it_does_not_have_are_refused(size: int) -> None:
    with pytest.raises(ParameterError, match="`size` must be at"):
        demo_corpus(size)


def test_reader_options_are_refused() -> None:
    with pytest.raises(ParameterError, match="takes no reader options; given: seed"):
        open_corpus(seed=1)
