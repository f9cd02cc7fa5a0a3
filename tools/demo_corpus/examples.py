"""The examples of the demo corpus: sentences, pairs and passages in a fixed mixture, each from its
number and the seed alone."""

from __future__ import annotations

from demo_corpus.grammar import KINDS, Grammar
from demo_corpus.trees import Node, Words
from headwise.core.checks import at_least
from headwise.text.example import Example

SHAPES = (
    "pair",
    "single",
    "pair",
    "single",
    "pair",
    "passage",
    "pair",
    "single",
    "pair",
    "single",
)  # repeated: any prefix is a fair mix


def demo_examples(size: int = 400, seed: int = 0) -> list[Example]:
    """Annotated English examples whose annotations are true by construction.

    Of ten examples, five are pairs of consecutive sentences (two segments, always joined by
    coreference), four are single sentences and one is a passage of three to five sentences. Every
    word has its head, UD relation, UPOS, lemma and features; mentions of entities that occur at
    least twice are given with their head words (as OntoNotes does: no singletons); frame links name
    the frames and elements of FrameNet. The label is the tense of all main clauses, `past` or
    `present`.

    Every example depends only on its number and the seed: `demo_examples(100) ==
    demo_examples(400)[:100]`.

    Parameters
    ----------
    size
        How many examples.
    seed
        Another seed gives other sentences.
    """
    at_least("size", size, 1)
    return [_example(number, seed) for number in range(size)]


def _example(number: int, seed: int) -> Example:
    shape = SHAPES[number % len(SHAPES)]
    length = {"single": 1, "pair": 2, "passage": 3 + number // len(SHAPES) % 3}[shape]
    kinds = list(KINDS)
    for attempt in range(1000):  # a draw whose sentences do not hang together is drawn again
        grammar = Grammar(f"headwise-demo/{seed}/{number}/{attempt}")
        words = Words()
        starts: list[int] = []
        roots: list[Node] = []
        for position in range(length):
            # 23 kinds, so that steps of 5 and 11 visit them all; after some attempts a follower
            # that fits badly makes room for the next kind
            kind = kinds[
                (5 * number + 11 * position + (attempt // 8 if position else 0)) % len(kinds)
            ]
            starts.append(len(words.forms))
            roots.append(grammar.sentence(kind))
            words.add(roots[-1])
        if _hangs_together(words):
            return words.example(
                starts[1] if shape == "pair" else None, grammar.tense, origin=f"demo:{number + 1}"
            )
    raise AssertionError(f"the demo grammar made no coherent example {number} of seed {seed}")


def _hangs_together(words: Words) -> bool:
    """Whether every sentence but the first speaks of an entity of an earlier one."""
    seen: set[str] = set()
    for sentence in range(words.sentences[-1] + 1):
        here = {
            mention.entity
            for mention in words.mentions
            if mention.head is not None and words.sentences[mention.head] == sentence
        }
        if sentence and not here & seen:
            return False
        seen |= here
    return True
