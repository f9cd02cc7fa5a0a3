"""Corpora: walking, limits, fingerprints, surveys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count

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
    assert (
        Corpus.from_examples([Example(text="x", label="1"), Example(text="y")]).fingerprint()
        != a.fingerprint()
    )


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


def test_a_draw_takes_as_many_documents_as_there_are() -> None:
    rows = [
        (name, number) for name, size in (("a", 50), ("b", 3), ("c", 1)) for number in range(size)
    ]
    corpus = Corpus.from_examples([Example(text=f"{name} {n}", document=name) for name, n in rows])
    assert [e.document for e in corpus.sample(3)] == ["a", "b", "c"]
    five = [e.document for e in corpus.sample(5)]
    assert five == ["a", "a", "b", "b", "c"]
    assert list(corpus.sample(1000)) == list(corpus)
    assert corpus.sample(None) is corpus
    draws = {tuple(e.text for e in corpus.sample(3, seed)) for seed in range(20)}
    assert len(draws) > 10
    assert list(corpus.sample(3, 7)) == list(corpus.sample(3, 7))


def test_without_documents_every_example_is_as_likely() -> None:
    corpus = Corpus.from_texts([str(number) for number in range(10)])
    counts = Counter(e.text for seed in range(600) for e in corpus.sample(2, seed))
    assert sum(counts.values()) == 1200
    # Each is drawn 120 times on average, with a deviation of less than ten.
    assert all(80 < counts[str(number)] < 160 for number in range(10))


def test_a_draw_reads_only_the_beginning_of_a_long_corpus_and_says_so() -> None:
    walked = []

    def endless(notes: Counter) -> Iterator[Example]:
        for number in count():
            walked.append(number)
            yield Example(text=str(number))

    corpus = Corpus("endless", endless).sample(2, pool=30)
    assert all(int(e.text) < 40 for e in corpus)
    assert max(walked) == 40  # twenty times two, and one more to see that there is more
    assert corpus.notes == {"examples drawn from the first 40 of the corpus": 2}


@pytest.mark.parametrize("held", [2**17, 40, 2])  # all that is read, the draw, nothing
def test_a_file_is_read_once_for_a_draw_that_is_kept(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.text.corpus.MAX_CACHED_WORDS", held)
    walks = []

    def stream(notes: Counter) -> Iterator[Example]:
        walks.append(0)
        for number in range(200):
            notes["left out"] += number % 2
            yield Example(words=(str(number), "is", "a", "number"))

    corpus = Corpus("numbers", stream).sample(5, seed=3)
    first = [e.words[0] for e in corpus.peek(2)]
    times = [[e.words[0] for e in corpus] for _ in range(4)]
    assert times[0] == times[1] == times[2] == times[3]
    assert times[0][:2] == first
    assert len(times[0]) == 5
    assert corpus.notes == {"left out": (int(times[0][-1]) + 1) // 2}  # up to the last of them
    assert len(walks) == {2**17: 1, 40: 3, 2: 6}[held]
