"""Heads that follow a corpus's own annotation.

Every gold head, antecedent and frame link is attended to with mass one.
"""

from __future__ import annotations

import numpy as np
import pytest

from headwise.core.errors import MissingAnnotationError
from headwise.testing import eager_maps, planted_annotations
from headwise.text.example import ROOT, Example, FrameLink, Mention

EXAMPLES = [
    Example(
        words=("the", "dog", "saw", "a", "cat", "near", "her", "."),
        heads=(1, 2, ROOT, 4, 2, 6, 2, 2),
        relations=("det", "nsubj", "root", "det", "obj", "case", "obl", "punct"),
        mentions=(Mention(0, 2, "dog", 1), Mention(3, 5, "cat", 4), Mention(6, 7, "dog", 6)),
        frames=(FrameLink("See", "Phenomenon", (2, 3), (3, 5)),),
    ),
    Example(
        words=("he", "sleeps"),
        words_pair=("dogs", "saw", "him"),
        heads=(1, ROOT, 3, ROOT, 3),
        relations=("nsubj", "root", "nsubj", "root", "obj"),
    ),
    Example(
        text="The dog saw it.",
        words=("The", "dog", "saw", "it", "."),
        spans=((0, 3), (4, 7), (8, 11), (12, 14), (14, 15)),
    ),
]
HEADS = (("tree", "children", "tree:obj"), ("to:antecedent", "from:antecedent", "to:frame"))


@pytest.fixture(scope="module")
def planted():
    return planted_annotations(EXAMPLES, HEADS)


def word_map(weights: np.ndarray, word: np.ndarray) -> np.ndarray:
    """To a word: sum; from a word: mean."""
    count = word.max() + 1
    member = np.stack([word == w for w in range(count)]).astype(float)
    return (member / member.sum(1, keepdims=True)) @ weights @ member.T


def test_maps_are_what_was_planted(planted):
    model, examples = planted
    rows = model.encode(examples)
    assert all(row.aligned for row in rows)
    assert any(
        (np.bincount(row.word[row.word >= 0]) > 1).any() for row in rows
    )  # words of several pieces
    for row, found in zip(rows, eager_maps(model.model, rows), strict=True):
        np.testing.assert_allclose(found, model.expected_map(row), atol=1e-6)


def test_gold_annotation_is_followed(planted):
    """Read off the gold annotation of the *original* examples, not off the tables."""
    model, renamed = planted
    rows = model.encode(renamed)
    maps = eager_maps(model.model, rows)
    for row, found, example in zip(rows[:2], maps[:2], EXAMPLES[:2], strict=True):
        words = {
            name: word_map(found[model.where(name)[0]], row.word)
            for row_names in HEADS
            for name in row_names
        }
        for word, head in enumerate(example.heads):
            if head != ROOT:
                assert words["tree"][word, head] == pytest.approx(1, abs=1e-6)
                assert words["children"][head, word] > 0.1
            obj = example.relations[word] == "obj"
            assert words["tree:obj"][word].sum() == pytest.approx(float(obj), abs=1e-6)
            if obj:
                assert words["tree:obj"][word, head] == pytest.approx(1, abs=1e-6)
        for head in set(example.heads) - {ROOT}:
            children = [w for w, h in enumerate(example.heads) if h == head]
            assert words["children"][head, children].sum() == pytest.approx(1, abs=1e-6)
    first = word_map(maps[0][model.where("to:antecedent")[0]], rows[0].word)
    assert first[6, 1] == pytest.approx(1, abs=1e-6)
    assert first[4, 4] == pytest.approx(1, abs=1e-6)
    assert word_map(maps[0][model.where("to:frame")[0]], rows[0].word)[2, 3] == pytest.approx(
        1, abs=1e-6
    )


def test_annotations_are_kept(planted):
    _, renamed = planted
    for old, new in zip(EXAMPLES, renamed, strict=True):
        assert new.heads == old.heads
        assert new.mentions == old.mentions
        assert len(new.all_words) == len(old.all_words)
        assert len(set(new.all_words)) == len(new.all_words)


def test_causal_tree_sees_only_heads_that_came_before():
    model, renamed = planted_annotations(
        EXAMPLES[:1], [["tree", "uniform"]], causal=True, several_pieces_every=0
    )
    [row] = model.encode(renamed)
    found = eager_maps(model.model, [row])[0]
    np.testing.assert_allclose(found, model.expected_map(row), atol=1e-6)
    tree = word_map(found[0, 0], row.word)
    for word, head in enumerate(EXAMPLES[0].heads):
        target = head if ROOT < head < word else word
        assert tree[word, target] == pytest.approx(1, abs=1e-6)


def test_examples_without_words_are_refused():
    with pytest.raises(MissingAnnotationError, match="need `words`"):
        planted_annotations([Example(text="no words")])
