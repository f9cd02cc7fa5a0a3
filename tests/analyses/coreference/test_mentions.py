"""Mentions, the three baselines and windows, on texts small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from headwise.analyses.coreference import Window, baseline_choices, expressions_of, windows
from headwise.analyses.coreference.baselines import agree, candidates_of
from headwise.analyses.coreference.mentions import head_word
from headwise.core.errors import InputError, ParameterError
from headwise.testing import random_model
from headwise.text import Corpus
from headwise.text.example import ROOT, Example, Mention

#          0    1      2      3   4    5      6    7   8     9    10   11  12
STORY = [
    "Anna",
    "Smith",
    "bought",
    "a",
    "dog",
    "and",
    "some",
    "cats",
    ".",
    "She",
    "fed",
    "them",
    ".",
]
UPOS = (
    "PROPN",
    "PROPN",
    "VERB",
    "DET",
    "NOUN",
    "CCONJ",
    "DET",
    "NOUN",
    "PUNCT",
    "PRON",
    "VERB",
    "PRON",
    "PUNCT",
)
HEADS = (2, 0, ROOT, 4, 2, 7, 7, 4, 2, 10, ROOT, 10, 10)
RELATIONS = (
    "nsubj",
    "flat",
    "root",
    "det",
    "obj",
    "cc",
    "det",
    "conj",
    "punct",
    "nsubj",
    "root",
    "obj",
    "punct",
)
MENTIONS = (
    Mention(0, 2, "anna"),
    Mention(3, 8, "pets"),
    Mention(3, 5, "dog"),
    Mention(9, 10, "anna"),
    Mention(11, 12, "pets"),
)


def story(**changes: object) -> Example:
    given: dict = {
        "words": tuple(STORY),
        "upos": UPOS,
        "heads": HEADS,
        "relations": RELATIONS,
        "mentions": MENTIONS,
    }
    return Example(**(given | changes))


def test_expressions_with_a_tree() -> None:
    found = expressions_of(story())
    assert [(e.start, e.head, e.mention_type) for e in found] == [
        (0, 0, "proper"),
        (3, 4, "nominal"),
        (9, 9, "pronoun"),
        (11, 11, "pronoun"),
    ]
    assert [e.features.get("Number") for e in found] == [
        None,
        "Plur",
        "Sing",
        "Plur",
    ]  # joined by `and`; from the list of pronouns
    assert [e.features.get("Person") for e in found] == ["3", "3", "3", "3"]
    assert len(expressions_of(story(), singletons=True)) == 5


def test_features_of_the_corpus_come_first() -> None:
    features = tuple({"Gender": "Fem", "Number": "Plur"} if word == "She" else {} for word in STORY)
    assert expressions_of(story(features=features))[2].features == {
        "Gender": "Fem",
        "Number": "Plur",
        "Person": "3",
    }


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("the old dog", "dog"),
        ("the dog of my neighbour", "dog"),
        ("Durham University , United Kingdom", "University"),
        ("people who live in Rome", "people"),
        ("my neighbour 's", "neighbour"),
        ("that", "that"),
        ("in", "in"),
    ],
)
def test_head_words_without_a_tree(text: str, head: str) -> None:
    words = tuple(text.split())
    example = Example(words=words, mentions=(Mention(0, len(words), "a"),))
    assert words[head_word(example, example.mentions[0])] == head


def test_kinds_without_parts_of_speech() -> None:
    example = Example(
        words=("Dogs", "like", "Anna", "and", "her", "cats"),
        mentions=(Mention(0, 1, "a"), Mention(2, 3, "b"), Mention(4, 5, "b"), Mention(4, 6, "a")),
    )
    assert [e.mention_type for e in expressions_of(example)] == [
        "nominal",
        "proper",
        "nominal",
        "pronoun",
    ]


def picks(example: Example, mention: int) -> dict[str, int | None]:
    found = expressions_of(example, singletons=True)
    chosen = baseline_choices(found[mention], candidates_of(found[mention], found))
    return {name: None if e is None else e.start for name, e in chosen.items()}


def test_baselines_pick_as_described() -> None:
    """`She` (index 3 in reading order): the nearest is `a dog`, no head matches, `Anna Smith` and
    `a dog` agree and `a dog` is nearer; `them` needs a plural."""
    with_number = tuple({"Number": "Sing"} if tag in ("PROPN", "NOUN") else {} for tag in UPOS)
    example = story(features=with_number)
    assert picks(example, 3) == {"nearest": 3, "head_match": None, "rules": 3}
    assert picks(example, 4) == {
        "nearest": 9,
        "head_match": None,
        "rules": 3,
    }  # `a dog and some cats`, past `She` and `a dog`
    same = Example(
        words=(
            "the",
            "cat",
            "saw",
            "a",
            "dog",
            ".",
            "the",
            "old",
            "cat",
            "saw",
            "her",
            ".",
            "the",
            "cat",
            "ran",
        ),
        upos=(
            "DET",
            "NOUN",
            "VERB",
            "DET",
            "NOUN",
            "PUNCT",
            "DET",
            "ADJ",
            "NOUN",
            "VERB",
            "PRON",
            "PUNCT",
            "DET",
            "NOUN",
            "VERB",
        ),
        mentions=(
            Mention(0, 2, "a"),
            Mention(3, 5, "b"),
            Mention(6, 9, "c"),
            Mention(10, 11, "b"),
            Mention(12, 14, "a"),
        ),
    )
    assert picks(same, 4) == {
        "nearest": 10,
        "head_match": 6,
        "rules": 0,
    }  # the full string beats the nearer head word


def test_candidates_start_earlier_and_have_another_head() -> None:
    """`[[Durham] University]` beside `[the [old] University]`: what starts at the same word is no
    candidate, nor what has the same head."""
    example = Example(
        words=("Rome", "and", "Durham", "University", "saw", "it"),
        mentions=(
            Mention(0, 1, "r", 0),
            Mention(2, 4, "u", 3),
            Mention(2, 3, "d", 2),
            Mention(3, 4, "x", 3),
            Mention(5, 6, "u", 5),
        ),
    )
    found = expressions_of(example, singletons=True)
    starts = {(e.start, e.end): [(c.start, c.end) for c in candidates_of(e, found)] for e in found}
    assert starts[2, 4] == starts[2, 3] == [(0, 1)]
    assert starts[3, 4] == [(0, 1), (2, 3)]
    assert starts[5, 6] == [(0, 1), (2, 4), (2, 3), (3, 4)]


def test_what_is_unknown_agrees() -> None:
    first, second, third, fourth = expressions_of(story())
    assert agree(first, third)
    assert not agree(third, fourth)
    assert not agree(fourth, third)
    assert agree(second, fourth)


def tokenizer():
    return random_model()[1]


def document(sentences: int) -> Example:
    """Sentences of seven words, the entity `a` in each, `b` in the first and last alone."""
    words, mentions = [], []
    for number in range(sentences):
        start = len(words)
        words += ["the", "cat", "saw", "a", "dog", "near", "it"]
        mentions += [Mention(start, start + 2, "a"), Mention(start + 6, start + 7, "a")]
        if number in (0, sentences - 1):
            mentions.append(Mention(start + 3, start + 5, "b"))
    return Example(
        words=tuple(words),
        mentions=tuple(mentions),
        sentences=tuple(i // 7 for i in range(len(words))),
    )


def test_a_document_is_cut_to_its_beginning() -> None:
    corpus = windows(Corpus.from_examples([document(5)]), tokenizer(), max_tokens=20)
    (only,) = list(corpus)
    assert isinstance(only, Window)
    assert len(only.words) == 18  # and [CLS], [SEP]
    assert only.words == document(5).words[:18]
    assert sorted((m.start, m.entity) for m in only.mentions) == [
        (0, "a"),
        (3, "b"),
        (6, "a"),
        (7, "a"),
        (13, "a"),
        (14, "a"),
    ]
    assert only.cut == len(document(5).mentions) - 6
    assert all(m.head is not None for m in only.mentions)
    assert only.first == 0


def test_windows_hold_every_mention_once() -> None:
    whole = document(6)
    found = list(windows(Corpus.from_examples([whole]), tokenizer(), max_tokens=20, overlap=8))
    assert [len(w.words) for w in found[:-1]] == [18] * (len(found) - 1)
    starts, counted, place = [0], [], 0
    for before, window in pairwise(found):
        place += len(before.words) - window.first
        starts.append(place)
        assert window.first == 8
        assert window.words[: window.first] == before.words[-window.first :]
    for start, window in zip(starts, found, strict=True):
        assert window.words == whole.words[start : start + len(window.words)]
        counted += [
            (m.start + start, m.end + start, m.entity)
            for m in window.mentions
            if m.end > window.first
        ]
    assert sorted(counted) == sorted((m.start, m.end, m.entity) for m in whole.mentions)
    assert sum(w.cut for w in found) == 0


def test_singletons_are_left_out_and_counted_once() -> None:
    whole = document(6)
    lone = (Mention(4, 5, "x"), Mention(25, 26, "y"))
    found = list(
        windows(
            Corpus.from_examples([replace(whole, mentions=whole.mentions + lone)]),
            tokenizer(),
            max_tokens=20,
            overlap=8,
        )
    )
    assert [w.singletons for w in found] == [0] * (len(found) - 1) + [2]
    assert {m.entity for w in found for m in w.mentions} == {"a", "b"}


def test_text_is_cut_with_its_words() -> None:
    words = document(4).words
    spans, at = [], 0
    for word in words:
        spans.append((at, at + len(word)))
        at += len(word) + 1
    example = Example(
        text=" ".join(words), words=words, spans=tuple(spans), mentions=document(4).mentions
    )
    for window in windows(Corpus.from_examples([example]), tokenizer(), max_tokens=15, overlap=4):
        assert [window.text[a:b] for a, b in window.spans] == list(window.words)


def test_what_fits_stays_as_it_is() -> None:
    short = [
        document(1),
        Example(text="no words here"),
        Example(words=("a", "cat"), words_pair=("a", "dog")),
    ]
    assert list(windows(Corpus.from_examples(short), tokenizer(), max_tokens=20)) == short


def test_trees_do_not_point_out_of_a_window() -> None:
    example = story()
    (window,) = list(windows(Corpus.from_examples([example]), tokenizer(), max_tokens=8))
    assert window.heads == (2, 0, ROOT, 4, 2, ROOT)


def test_bad_sizes_are_refused() -> None:
    corpus = Corpus.from_examples([document(3)])
    for wrong in (
        {"max_tokens": 2},
        {"max_tokens": 20, "overlap": 20},
        {"max_tokens": 20, "overlap": -1},
    ):
        with pytest.raises(ParameterError):
            windows(corpus, tokenizer(), **wrong)
    with pytest.raises(InputError, match="word 1 alone is longer than 4 tokens"):
        list(
            windows(
                Corpus.from_examples([Example(words=("gardener",) * 5)]), tokenizer(), max_tokens=4
            )
        )
