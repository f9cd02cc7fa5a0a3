"""Heads that follow the gold annotation of any corpus: its words are renamed so that each names
what it points at.

No weights can compute a syntactic head in general, but a table can hold it: every word of the
corpus gets a form of its own, so that the tree, the antecedents and the frame links become
functions of the word, and an embedding can carry them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from headwise.core.errors import MissingAnnotationError
from headwise.testing.planted import Planted, planted_model
from headwise.testing.vocabulary import PIECE_BREAK
from headwise.text.example import ROOT, Example

TREE_HEADS = (("tree", "children"), ("uniform", "previous"))


def planted_annotations(
    examples: Sequence[Example],
    behaviours: Sequence[Sequence[str]] = TREE_HEADS,
    *,
    causal: bool = False,
    several_pieces_every: int = 3,
    max_length: int = 64,
    seed: int = 0,
) -> tuple[Planted, list[Example]]:
    """A model whose heads follow the gold annotation of these examples, and the examples with
    renamed words.

    Parameters
    ----------
    examples
        Examples with words; at least one with dependencies, coreference or frames.
    behaviours
        As in `planted_model`. Tables: `tree` (a word points at its syntactic head), `antecedent`
        (the head word of a mention at the head word of the nearest earlier mention of its entity),
        `frame` (the first word of a target at the first word of its first element). `tree:RELATION`
        works too.
    several_pieces_every
        Every so many words one has two pieces; 0 for none.

    Returns
    -------
    tuple
        The planted model, and the examples: same annotations, words renamed (`dog` becomes
        `dog_3_1`, with two pieces `dog_3_1+3_1`).
    """
    tables: dict[str, dict[str, str]] = {"tree": {}, "antecedent": {}, "frame": {}}
    relation: dict[str, str] = {}
    marked: list[str] = []
    renamed: list[Example] = []
    for number, example in enumerate(examples):
        if example.words is None:
            raise MissingAnnotationError(f"{example.where}: planted annotations need `words`.")
        forms = [
            _form(word, number, index, several_pieces_every)
            for index, word in enumerate(example.all_words)
        ]
        marked.extend(forms)
        plain = [form.replace(PIECE_BREAK, "") for form in forms]
        first = len(example.words)
        pair = tuple(plain[first:]) if example.words_pair is not None else None
        renamed.append(
            replace(
                example,
                text=None,
                pair=None,
                spans=None,
                words=tuple(plain[:first]),
                words_pair=pair,
            )
        )
        if example.heads is not None:
            tables["tree"] |= {
                word: plain[head]
                for word, head in zip(plain, example.heads, strict=True)
                if head != ROOT
            }
        if example.relations is not None:
            relation |= dict(zip(plain, example.relations, strict=True))
        tables["antecedent"] |= {plain[a]: plain[b] for a, b in _antecedents(example).items()}
        for link in example.frames or ():
            if link.target[0] != link.span[0]:
                tables["frame"].setdefault(plain[link.target[0]], plain[link.span[0]])
    asked = {name.partition(":")[0] for row in behaviours for name in row}
    used = {name: table for name, table in tables.items() if table}
    model = planted_model(
        behaviours,
        causal=causal,
        words=marked,
        examples=renamed,
        tables=used,
        relation=relation if "tree" in asked else {},
        max_length=max_length,
        seed=seed,
    )
    return model, renamed


def _form(word: str, number: int, index: int, several_pieces_every: int) -> str:
    stem = re.sub(r"\W", "", word) or "mark"
    several = several_pieces_every and index % several_pieces_every == several_pieces_every - 1
    return f"{stem}_{number}_{index}" + (f"{PIECE_BREAK}+{number}_{index}" if several else "")


def _antecedents(example: Example) -> dict[int, int]:
    """The head word of each mention and that of the nearest earlier mention of the same entity,
    where they differ."""
    last: dict[str, int] = {}
    out: dict[int, int] = {}
    for mention in sorted(example.mentions or (), key=lambda m: (m.start, -m.end)):
        head = mention.end - 1 if mention.head is None else mention.head
        if mention.entity in last and last[mention.entity] != head:
            out.setdefault(head, last[mention.entity])
        last[mention.entity] = head
    return out
