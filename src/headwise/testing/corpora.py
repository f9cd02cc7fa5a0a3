"""A handful of examples that carry every kind of annotation, for the battery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headwise.text.example import ROOT, Example, FrameLink, Mention

# word, part of speech, head (1-based, 0 for the root), relation
_SENTENCES = (
    "the DET 3 det|old ADJ 3 amod|teacher NOUN 4 nsubj|saw VERB 0 root|a DET 6 det|cat NOUN 4 obj|under ADP 9 case"
    "|the DET 9 det|tree NOUN 4 obl|. PUNCT 4 punct",
    "she PRON 2 nsubj|heard VERB 0 root|it PRON 2 obj|, PUNCT 2 punct|and CCONJ 6 cc|sings VERB 2 conj"
    "|happily ADV 6 advmod|. PUNCT 2 punct",
    "the DET 2 det|gardener NOUN 4 nsubj|not PART 4 advmod|saw VERB 0 root|the DET 6 det|dog NOUN 4 obj"
    "|? PUNCT 4 punct",
    "the DET 3 det|small ADJ 3 amod|dog NOUN 4 nsubj|runs VERB 0 root|near ADP 7 case|a DET 7 det|house NOUN 4 obl",
    "he PRON 2 nsubj|sleeps VERB 0 root|. PUNCT 2 punct",
    "the DET 2 det|child NOUN 3 nsubj|saw VERB 0 root|the DET 5 det|bird NOUN 3 obj"
    "|and CCONJ 9 cc|the DET 8 det|bird NOUN 9 nsubj|sings VERB 3 conj|near ADP 12 case|the DET 12 det"
    "|child NOUN 9 obl|. PUNCT 3 punct",
)
_MENTIONS = {
    0: (Mention(0, 3, "teacher", 2), Mention(4, 6, "cat", 5)),
    1: (Mention(0, 1, "teacher", 0), Mention(2, 3, "cat", 2)),
    5: (
        Mention(0, 2, "child", 1),
        Mention(3, 5, "bird", 4),
        Mention(6, 8, "bird", 7),
        Mention(10, 12, "child", 11),
    ),
}
_FRAMES = {
    0: (
        FrameLink("Perception", "Phenomenon", (3, 4), (4, 6)),
        FrameLink("Perception", "Perceiver", (3, 4), (0, 3)),
    ),
    5: (
        FrameLink("Perception", "Perceiver", (2, 3), (0, 2)),
        FrameLink("Sound", "Place", (8, 9), (9, 12), core=False),
    ),
    3: (FrameLink("Motion", "Place", (3, 4), (4, 7)),),
}
_KIN = (
    ("cat", "dog", "bird", "child", "teacher", "gardener", "house"),
    ("saw", "heard"),
    ("sings", "sleeps", "runs"),
    ("old", "small"),
    ("near", "under"),
)
_PAIRS = ((0, 1), (2, 3), (5, 4), (3, 2), (1, 0))


def battery_examples(copies: int = 1) -> list[Example]:
    """Eleven examples (six single sentences, five pairs) with trees, parts of speech and labels.

    Most with mentions, some with frames.

    Words are those of `DEFAULT_WORDS`. Further copies have other nouns, verbs and adjectives in the
    same trees. The label says whether a dog or a cat comes up."""
    out: list[Example] = []
    for copy in range(copies):
        single = [_sentence(number, copy) for number in range(len(_SENTENCES))]
        pairs = [_joined(single[a], single[b]) for a, b in _PAIRS]
        couples = zip(single, [*pairs, None], strict=True)
        out += [example for couple in couples for example in couple if example is not None]
    return [
        replace(
            example,
            label="pet" if {"dog", "cat"} & set(example.all_words) else "none",
            origin=f"battery:{i + 1}",
        )
        for i, example in enumerate(out)
    ]


def _other(word: str, copy: int) -> str:
    """The word that stands in its place in a further copy."""
    kin = next((words for words in _KIN if word in words), (word,))
    return kin[(kin.index(word) + copy) % len(kin)]


def _sentence(number: int, copy: int) -> Example:
    rows = [item.split() for item in _SENTENCES[number].split("|")]
    found, upos, heads, relations = zip(*rows, strict=True)
    words = tuple(_other(word, copy * (number + 1)) for word in found)
    return Example(
        words=words,
        upos=upos,
        lemmas=words,
        heads=tuple(int(h) - 1 if h != "0" else ROOT for h in heads),
        relations=relations,
        sentences=(0,) * len(words),
        mentions=_MENTIONS.get(number, ()),
        frames=_FRAMES.get(number, ()),
    )


def _joined(first: Example, second: Example) -> Example:
    shift = len(first.words or ())

    def moved(span: tuple[int, int]) -> tuple[int, int]:
        return span[0] + shift, span[1] + shift

    mentions = [mention.moved(shift) for mention in second.mentions or ()]
    frames = [
        replace(link, target=moved(link.target), span=moved(link.span))
        for link in second.frames or ()
    ]
    return replace(
        first,
        words_pair=second.words,
        upos=_both(first.upos, second.upos),
        lemmas=_both(first.lemmas, second.lemmas),
        heads=_both(first.heads, [h if h == ROOT else h + shift for h in second.heads or ()]),
        relations=_both(first.relations, second.relations),
        sentences=_both(first.sentences, [1] * len(second.words or ())),
        mentions=_both(first.mentions, mentions),
        frames=_both(first.frames, frames),
    )


def _both(first: Sequence[Any] | None, second: Sequence[Any] | None) -> tuple[Any, ...]:
    return (*(first or ()), *(second or ()))
