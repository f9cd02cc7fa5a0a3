"""A handful of examples with every annotation, for the battery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headwise.text.example import ROOT, Example, FrameLink, Mention

# word, part of speech, head (1-based, 0 for the root), relation
_SENTENCES = (
    "the DET 3 det|old ADJ 3 amod|teacher NOUN 4 nsubj|saw VERB 0 root|a DET 6 det|cat NOUN 4 obj"
    "|under ADP 9 case|the DET 9 det|tree NOUN 4 obl|. PUNCT 4 punct",
    "she PRON 2 nsubj|heard VERB 0 root|it PRON 2 obj|, PUNCT 2 punct|and CCONJ 6 cc"
    "|sings VERB 2 conj|happily ADV 6 advmod|. PUNCT 2 punct",
    "the DET 2 det|gardener NOUN 4 nsubj|not PART 4 advmod|saw VERB 0 root|the DET 6 det"
    "|dog NOUN 4 obj|? PUNCT 4 punct",
    "the DET 3 det|small ADJ 3 amod|dog NOUN 4 nsubj|runs VERB 0 root|near ADP 7 case|a DET 7 det"
    "|house NOUN 4 obl",
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
# Words that can replace each other: further copies of a sentence take the next of its list.
_SUBSTITUTES = (
    ("cat", "dog", "bird", "child", "teacher", "gardener", "house"),
    ("saw", "heard"),
    ("sings", "sleeps", "runs"),
    ("old", "small"),
    ("near", "under"),
)
_PAIRS = ((0, 1), (2, 3), (5, 4), (3, 2), (1, 0))


def battery_examples(copies: int = 1) -> list[Example]:
    """Return eleven examples (six single sentences, five pairs) with trees, parts of speech and
    labels; most have mentions, some have frames.

    Words are those of `DEFAULT_WORDS`. Further copies have other nouns, verbs and adjectives in the
    same trees. The label says whether the example mentions a dog or a cat."""
    unlabelled: list[Example] = []
    for copy in range(copies):
        sentences = [_sentence(number, copy) for number in range(len(_SENTENCES))]
        # Single sentences and pairs alternate, so that every shard has both.
        for number, sentence in enumerate(sentences):
            unlabelled.append(sentence)
            if number < len(_PAIRS):
                first, second = _PAIRS[number]
                unlabelled.append(_joined(sentences[first], sentences[second]))
    examples = []
    for number, example in enumerate(unlabelled, start=1):
        mentions_pet = not {"dog", "cat"}.isdisjoint(example.all_words)
        label = "pet" if mentions_pet else "none"
        examples.append(replace(example, label=label, origin=f"battery:{number}"))
    return examples


def _substitute(word: str, steps: int) -> str:
    """Return the word that replaces a word: so many steps on in its list; itself if it has none."""
    for words in _SUBSTITUTES:
        if word in words:
            return words[(words.index(word) + steps) % len(words)]
    return word


def _sentence(number: int, copy: int) -> Example:
    rows = [item.split() for item in _SENTENCES[number].split("|")]
    forms, upos, heads, relations = zip(*rows, strict=True)
    words = tuple(_substitute(form, copy * (number + 1)) for form in forms)
    return Example(
        words=words,
        upos=upos,
        lemmas=words,
        heads=tuple(ROOT if head == "0" else int(head) - 1 for head in heads),
        relations=relations,
        sentences=(0,) * len(words),
        mentions=_MENTIONS.get(number, ()),
        frames=_FRAMES.get(number, ()),
    )


def _joined(first: Example, second: Example) -> Example:
    """Return two sentences as a pair; annotations of the second point to its words in the pair."""
    shift = len(first.words or ())

    def moved(span: tuple[int, int]) -> tuple[int, int]:
        start, end = span
        return start + shift, end + shift

    mentions = [mention.moved(shift) for mention in second.mentions or ()]
    frames = []
    for link in second.frames or ():
        frames.append(replace(link, target=moved(link.target), span=moved(link.span)))
    heads = []
    for head in second.heads or ():
        heads.append(ROOT if head == ROOT else head + shift)
    return replace(
        first,
        words_pair=second.words,
        upos=_both(first.upos, second.upos),
        lemmas=_both(first.lemmas, second.lemmas),
        heads=_both(first.heads, heads),
        relations=_both(first.relations, second.relations),
        sentences=_both(first.sentences, [1] * len(second.words or ())),
        mentions=_both(first.mentions, mentions),
        frames=_both(first.frames, frames),
    )


def _both(first: Sequence[Any] | None, second: Sequence[Any] | None) -> tuple[Any, ...]:
    return (*(first or ()), *(second or ()))
