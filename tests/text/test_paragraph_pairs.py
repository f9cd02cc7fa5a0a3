"""Pairs of consecutive paragraphs, cut to so many tokens."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import ALL, bert_like

from headwise.core.errors import InputError, ParameterError
from headwise.text import open_corpus
from headwise.text.readers.paragraphs import paragraph_pairs, share

WORDS = st.sampled_from(
    ["the", "dog", "believing", "weathervane", "a", "cat.", "don't", "déjà", "x"]
)
PARAGRAPH = st.lists(WORDS, min_size=1, max_size=60).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(st.lists(PARAGRAPH, min_size=2, max_size=5), st.integers(12, 60), st.sampled_from(ALL))
def test_pairs_fit_and_end_with_whole_words(paragraphs, most, make):
    tokenizer = make()
    pairs = list(paragraph_pairs(paragraphs, tokenizer, most))
    for number, pair in enumerate(pairs):
        first, second = paragraphs[2 * number], paragraphs[2 * number + 1]
        tokens = len(tokenizer(pair.text, pair.pair)["input_ids"])
        assert tokens <= most
        for cut, whole in ((pair.text, first), (pair.pair, second)):
            assert whole.split()[: len(cut.split())] == cut.split()
        room = most - tokenizer.num_special_tokens_to_add(pair=True)
        lengths = [
            len(tokenizer(t, add_special_tokens=False)["input_ids"]) for t in (first, second)
        ]
        if sum(lengths) <= room:
            assert (pair.text, pair.pair) == (first, second)
        elif min(lengths) <= room // 2:  # the shorter one is never touched
            assert (pair.text, pair.pair)[lengths.index(min(lengths))] == (first, second)[
                lengths.index(min(lengths))
            ]


def test_cut_keeps_as_much_as_fits():
    tokenizer = bert_like()
    text = " ".join(["the"] * 100)
    (pair,) = paragraph_pairs([text, text], tokenizer, 43)
    assert (len(pair.text.split()), len(pair.pair.split())) == (20, 20)
    (pair,) = paragraph_pairs(["the the", text], tokenizer, 43)
    assert (len(pair.text.split()), len(pair.pair.split())) == (2, 38)


def test_share():
    for a in range(1, 20):
        for b in range(1, 20):
            for budget in range(2, 25):
                x, y = a, b
                while (
                    x + y > budget
                ):  # the longer one loses a token at a time; of two alike the second
                    if x > y:
                        x -= 1
                    else:
                        y -= 1
                assert share(a, b, budget) == (x, y)


def test_which_paragraphs_stand_together():
    five = ["a", "b", " ", "c", "d", "e"]
    notes: Counter[str] = Counter()
    assert [(p.text, p.pair) for p in paragraph_pairs(five, notes=notes)] == [
        ("a", "b"),
        ("c", "d"),
    ]
    assert list(notes.values()) == [1]
    overlapping = [(p.text, p.pair) for p in paragraph_pairs(five, overlapping=True)]
    assert overlapping == [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")]
    with pytest.raises(ParameterError, match="max_tokens"):
        list(paragraph_pairs(five, bert_like(), 4))


def test_a_text_without_spaces_is_cut_within():
    tokenizer = bert_like()
    (pair,) = paragraph_pairs(["x" * 30, "y"], tokenizer, 5)
    assert pair.pair == "y"
    notes: Counter[str] = Counter()
    assert (
        list(paragraph_pairs(["weathervane" * 5 + " dog", "the " * 30], tokenizer, 8, notes=notes))
        == []
    )
    assert sum(notes.values()) == 1


def test_articles_and_plain_text(tmp_path):
    articles = tmp_path / "articles.jsonl"
    articles.write_text(
        "".join(
            json.dumps({"title": t, "paragraphs": [f"{t}1", f"{t}2", f"{t}3"]}) + "\n" for t in "ab"
        )
    )
    expected = [("a1", "a2"), ("b1", "b2")]  # no pair across articles
    for spec in (str(articles), f"wikipedia:{articles}", f"articles:{articles}"):
        assert [(e.text, e.pair) for e in open_corpus(spec)] == expected
    text = tmp_path / "t.txt"
    text.write_text("a1\n\na2\n\na3\n")
    assert [(e.text, e.pair) for e in open_corpus(f"txt-pairs:{text}")] == [("a1", "a2")]
    long = tmp_path / "long.txt"
    long.write_text("the dog " * 200 + "\n\n" + "the cat " * 200)
    (pair,) = open_corpus(f"txt-pairs:{long}", tokenizer=bert_like(), max_tokens=50)
    assert len(bert_like()(pair.text, pair.pair)["input_ids"]) <= 50
    articles.write_text('{"title": "a", "paragraphs": "one"}\n')
    with pytest.raises(InputError, match=r"articles\.jsonl:1: an article needs"):
        open_corpus(articles)
