"""Heads that follow the gold annotation of any corpus, whose words are renamed so that each occurs
once.

No weights can compute a syntactic head in general, but a table can hold it: every word of the
corpus gets its own form, so that the tree, the antecedents and the frame links become functions of
the word, and an embedding can hold them."""

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
    """Return a model whose heads follow the gold annotation of these examples, and the examples
    with renamed words.

    Parameters
    ----------
    examples : sequence of Example
        Examples with words; at least one with dependencies, coreference or frames.
    behaviours : sequence of sequences of str, optional
        As in `planted_model`. Tables: `tree` (a word points at its syntactic head), `antecedent`
        (the head word of a mention at the head word of the nearest earlier mention of its entity),
        `frame` (the first word of a target at the first word of its first element). `tree:RELATION`
        works too.
    causal : bool, default False
        Plant a decoder instead of an encoder.
    several_pieces_every : int, default 3
        One word in so many has two pieces; 0 for none.
    max_length : int, default 64
        Tokens of the longest row, special ones included.
    seed : int, default 0
        As in `planted_model`.

    Returns
    -------
    tuple
        The planted model, and the examples: same annotations, words renamed (`dog` becomes
        `dog_3_1`, with two pieces `dog_3_1+3_1`).
    """
    tables: dict[str, dict[str, str]] = {"tree": {}, "antecedent": {}, "frame": {}}
    relation: dict[str, str] = {}
    marked_words: list[str] = []
    renamed: list[Example] = []
    for number, example in enumerate(examples):
        if example.words is None:
            raise MissingAnnotationError(f"{example.where}: planted annotations need `words`.")
        forms = []
        for index, word in enumerate(example.all_words):
            marked_word = _unique_form(word, number, index, several_pieces_every)
            marked_words.append(marked_word)
            forms.append(marked_word.replace(PIECE_BREAK, ""))
        renamed.append(_with_words(example, forms))
        if example.heads is not None:
            for form, head in zip(forms, example.heads, strict=True):
                if head != ROOT:
                    tables["tree"][form] = forms[head]
        if example.relations is not None:
            relation.update(zip(forms, example.relations, strict=True))
        for mention_head, antecedent_head in _antecedents(example).items():
            tables["antecedent"][forms[mention_head]] = forms[antecedent_head]
        for link in example.frames or ():
            target = link.target[0]
            element = link.span[0]
            if target != element:
                tables["frame"].setdefault(forms[target], forms[element])
    rules = {name.partition(":")[0] for row in behaviours for name in row}
    model = planted_model(
        behaviours,
        causal=causal,
        words=marked_words,
        examples=renamed,
        tables={name: table for name, table in tables.items() if table},
        relation=relation if "tree" in rules else {},
        max_length=max_length,
        seed=seed,
    )
    return model, renamed


def _unique_form(word: str, number: int, index: int, several_pieces_every: int) -> str:
    """Return a form that no other word of the corpus has, with a mark where it breaks into
    pieces."""
    stem = re.sub(r"\W", "", word) or "mark"
    form = f"{stem}_{number}_{index}"
    if several_pieces_every and (index + 1) % several_pieces_every == 0:
        form += f"{PIECE_BREAK}+{number}_{index}"
    return form


def _with_words(example: Example, forms: Sequence[str]) -> Example:
    """Return an example with these words instead of its own (those of both texts, of a pair)."""
    n_first = len(example.words or ())
    words_pair = None
    if example.words_pair is not None:
        words_pair = tuple(forms[n_first:])
    return replace(
        example,
        text=None,
        pair=None,
        spans=None,
        words=tuple(forms[:n_first]),
        words_pair=words_pair,
    )


def _antecedents(example: Example) -> dict[int, int]:
    """Return the head word of each mention and that of the nearest earlier mention of the same
    entity, where they differ."""
    last_head: dict[str, int] = {}
    antecedents: dict[int, int] = {}
    for mention in sorted(example.mentions or (), key=lambda m: (m.start, -m.end)):
        head = mention.end - 1 if mention.head is None else mention.head
        antecedent = last_head.get(mention.entity, head)
        if antecedent != head:
            antecedents.setdefault(head, antecedent)
        last_head[mention.entity] = head
    return antecedents
