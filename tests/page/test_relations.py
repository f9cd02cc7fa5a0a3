"""Fig 5's drawings: sentences are picked where the head is right, and the looking words are the
coloured ones."""

from __future__ import annotations

from itertools import product

import pytest
from matplotlib.text import Text

from headwise import Corpus, HeadModel, make_atlas
from headwise.core.errors import InputError, ParameterError
from headwise.page.relations import ScoredSentence, best_head, draw_relation, find_sentences
from headwise.testing import planted_annotations, random_model
from headwise.testing.corpora import battery_examples
from headwise.text.demo import demo_corpus
from headwise.text.example import ROOT


@pytest.fixture(scope="module")
def planted() -> tuple[HeadModel, Corpus]:
    examples = [
        e
        for e in demo_corpus(size=120)
        if e.heads is not None and not e.has_pair and len(e.all_words) <= 16 and e.mentions
    ][:30]
    made, renamed = planted_annotations(
        examples, [["tree", "children"], ["uniform", "to:antecedent"], ["to:frame", "uniform"]]
    )
    return HeadModel.open(made.model, tokenizer=made.tokenizer), Corpus.from_examples(renamed)


def pairs(one: ScoredSentence) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The tokens of each word that was asked about and found, and of the words to find."""
    return {(one.tokens(answer.word), one.tokens(*answer.wanted)) for answer in one.found}


def all_right(shown: list[ScoredSentence]) -> bool:
    return all(one.found == list(one.answers) for one in shown)


def rights(shown: list[ScoredSentence]) -> int:
    return sum(len(one.found) for one in shown)


def test_a_tree_head_is_right_in_every_sentence_and_its_dependents_are_coloured(
    planted: tuple[HeadModel, Corpus],
) -> None:
    model, corpus = planted
    shown = find_sentences(model, corpus, "det", (0, 0), 100)
    with_det = [
        e for e in corpus if any(r == "det" for r in e.relations) and len(model.encode(e)) <= 24
    ]
    assert len(shown) == len(with_det) > 3
    assert all_right(shown)
    example = next(e for e in with_det)
    row = model.encode(example)
    expected = set()
    for word, (head, relation) in enumerate(zip(example.heads, example.relations, strict=True)):
        if relation == "det" and head != ROOT:
            expected.add(
                (
                    tuple(t for t in range(len(row)) if row.word[t] == word),
                    tuple(t for t in range(len(row)) if row.word[t] == head),
                )
            )
    (own,) = [
        one
        for one in shown
        if one.sample.tokens == [model.encoder.piece_text(int(i)) for i in row.ids]
    ]
    assert pairs(own) == expected
    figure = draw_relation(model, [example], "det", (0, 0), 1)[0]
    bold = [
        text.get_text()
        for text in figure.findobj(Text)
        if text.get_fontweight() == "bold" and text.get_text() in own.sample.tokens
    ]
    assert sorted(bold) == sorted(own.sample.tokens[t] for looking, _ in expected for t in looking)


def test_other_direction_and_coreference(planted: tuple[HeadModel, Corpus]) -> None:
    model, corpus = planted
    assert all_right(find_sentences(model, corpus, "nsubj", (0, 1), 5, "head_to_dependent"))
    by_children, by_tree = (
        rights(find_sentences(model, corpus, "nsubj", (0, h), 100, "head_to_dependent"))
        for h in (1, 0)
    )
    assert by_children > by_tree
    found = find_sentences(model, corpus, "coreference", (1, 1), 3)
    assert all_right(found)
    assert len(found[0].answers) >= len(found[-1].answers)


def test_frames(planted: tuple[HeadModel, Corpus]) -> None:
    model, corpus = planted
    with_frames = [
        e
        for e in corpus
        if any(link.core for link in e.frames or ()) and len(model.encode(e)) <= 24
    ]
    found = find_sentences(model, corpus, "frames", (2, 0), 100)
    assert (
        len(found) == len(with_frames) > 3
    )  # the planted head finds the first element of every target
    assert all_right(found)
    example = with_frames[0]
    row = model.encode(example)
    (own,) = [
        one
        for one in found
        if one.sample.tokens == [model.encoder.piece_text(int(i)) for i in row.ids]
    ]
    targets = {link.target[0] for link in example.frames if link.core}
    assert {looking for looking, _ in pairs(own)} == {
        tuple(t for t in range(len(row)) if row.word[t] == word) for word in targets
    }
    assert rights(found) > rights(find_sentences(model, corpus, "frames", (0, 0), 100))
    atlas = make_atlas(model, corpus, ["frames"], parameters={"frames": {"exclude": "links"}})
    assert best_head(atlas, "frames") == ((2, 0), "dependent_to_head")


def test_a_named_head_is_drawn_in_the_direction_in_which_it_finds_more(
    planted: tuple[HeadModel, Corpus],
) -> None:
    model, corpus = planted
    assert {one.direction for one in find_sentences(model, corpus, "nsubj", (0, 0), 100)} == {
        "dependent_to_head"
    }
    assert {one.direction for one in find_sentences(model, corpus, "nsubj", (0, 1), 100)} == {
        "head_to_dependent"
    }


def test_the_best_head_comes_from_an_atlas(planted: tuple[HeadModel, Corpus]) -> None:
    model, corpus = planted
    atlas = make_atlas(model, corpus, ["dependency", "coreference"])
    assert best_head(atlas, "coreference") == ((1, 1), "dependent_to_head")
    head, direction = best_head(atlas, "det")
    assert (head, direction) == ((0, 0), "dependent_to_head")
    figure = draw_relation(model, corpus, "det", head, 1, direction)[0]
    said = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "L0H0" in said
    assert "dependent to head" in said


@pytest.mark.parametrize("causal", [False, True])
def test_a_drawing_is_right_just_as_often_as_the_number_says(causal: bool) -> None:
    """With every sentence drawn, the words found and asked about are those behind the accuracy of
    the atlas."""
    module, tokenizer = random_model(causal=causal)
    model = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_examples(
        [example for example in battery_examples(3) if not example.has_pair]
    )
    atlas = make_atlas(model, corpus, ["dependency", "coreference"])
    compared = 0
    for head, relation in product([(0, 0), (1, 2)], ["obj", "det", "coreference"]):
        label = {"mention_type": "all"} if relation == "coreference" else {"relation": relation}
        by_head = atlas["coreference" if relation == "coreference" else "dependency"].sel(label)
        for direction in ["dependent_to_head", "head_to_dependent"][
            : 1 if relation == "coreference" else 2
        ]:
            at = by_head.sel(layer=head[0], head=head[1]).sel(
                {} if relation == "coreference" else {"direction": direction}
            )
            if at["accuracy"] > 0:
                shown = find_sentences(model, corpus, relation, head, 100, direction, longest=100)
                assert rights(shown) == round(float(at["accuracy"] * at["accuracy_n"]))
                compared += 1
    assert compared >= 4


def test_what_cannot_be_drawn_is_rejected(planted: tuple[HeadModel, Corpus]) -> None:
    model, corpus = planted
    with pytest.raises(ParameterError, match=r"no relation in these examples 'dett'.*det"):
        draw_relation(model, corpus, "dett", (0, 0))
    with pytest.raises(ParameterError, match="Name the head"):
        best_head({}, "det")
    with pytest.raises(ParameterError, match="no head L9H0"):
        draw_relation(model, corpus, "det", (9, 0))
    with pytest.raises(InputError, match="No sentence of at most 3 tokens"):
        draw_relation(model, corpus, "det", (0, 0), longest=3)
