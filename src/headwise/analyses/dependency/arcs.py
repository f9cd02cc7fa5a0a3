"""Pairs of words that a treebank links, gathered from a batch, with the labels each is counted
under."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from headwise.models.words import word_index
from headwise.text.encode import Batch, Encoded
from headwise.text.example import ROOT

ALL = "all"
SUBTYPES = ("fold", "keep")
POSSESSIVE = ("poss", "nmod:poss")
POSSESSIVE_MARKS = ("'s", "s'", "’s", "s’")
UPOS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
)


def relation_label(relation: str, subtypes: str) -> str:
    """What a relation is counted as; roots have no label.

    >>> label_of("nmod:poss", "fold"), label_of("nmod:poss", "keep"), label_of("root", "fold")
    ('nmod', 'nmod:poss', '')
    """
    name = relation.split(":", 1)[0] if subtypes == "fold" else relation
    return "" if name.lower() == "root" else name


def relation_labels(relations: Iterable[str], subtypes: str) -> list[str]:
    """All labels that these relations are counted as, sorted."""
    return sorted({relation_label(relation, subtypes) for relation in relations} - {""})


@dataclass(frozen=True, slots=True)
class PairRules:
    """What decides which pairs there are and how they are counted."""

    labels: tuple[str, ...]  # the first is ALL
    subtypes: str = "fold"
    with_root: bool = False
    with_punct: bool = False
    poss_rule: bool = False
    reach: int = 10
    noop: str = "off"  # the type of token that heads with nothing to do look at
    causal: bool = False  # whether words see only what stands before them

    @property
    def bins(self) -> int:
        """Offsets −reach..reach, and one for all beyond."""
        return 2 * self.reach + 2

    def counted_as(self, relation: str) -> list[int]:
        """The places among the labels that a pair of this relation counts for: its own, where asked
        for, and `all`."""
        label = relation_label(relation, self.subtypes)
        own = [self.labels.index(label)] if label in self.labels[1:] else []
        return own + ([0] if self.with_punct or label.split(":", 1)[0] != "punct" else [])


@dataclass(frozen=True, slots=True, eq=False)
class WordPairs:
    """Word pairs of a batch; a pair that counts for its relation and for `all` is there twice.

    `word` is the word whose prediction counts (the dependent, or the possessive mark after it),
    `head` its true head (ROOT: none to find), `label` the place of the relation among the labels,
    `bin` that of `head − word` among the offsets."""

    example: Tensor
    word: Tensor
    head: Tensor
    label: Tensor
    bin: Tensor
    used: int  # examples counted
    unaligned: int  # examples left out because pieces and words do not align
    bare: int  # examples without a tree
    cut: int  # words whose head (or own mark) lies behind the cut of a long example


def gather_pairs(batch: Batch, rules: PairRules) -> WordPairs:
    """All pairs of a batch, gathered once for all its layers."""
    return batch.remember((WordPairs, rules), lambda: _gather(batch, rules))


def _gather(batch: Batch, rules: PairRules) -> WordPairs:
    counted_as = cache(rules.counted_as)
    present = word_index(batch).present.cpu().numpy()
    table: list[tuple[int, int, int, int, int]] = []
    beyond = rules.bins - 1
    used = unaligned = bare = cut = 0
    for number, row in enumerate(batch.rows):
        if not has_tree(row):
            bare += 1
            continue
        if not row.aligned:
            unaligned += 1
            continue
        used += 1
        words, here = row.example.all_words, present[number]
        arcs = list(_arcs(row, here))
        cut += len(row.example.heads or ()) - len(arcs)
        for dependent, head, relation in arcs:
            if head == ROOT:
                if rules.with_root:
                    table.append((number, dependent, ROOT, 0, beyond))
                continue
            after = words[dependent + 1].lower() if dependent + 1 < len(words) else ""
            marked = rules.poss_rule and relation in POSSESSIVE and after in POSSESSIVE_MARKS
            word = dependent + 1 if marked else dependent
            if word >= len(here) or not here[word]:
                cut += 1
                continue
            offset = head - word
            place = offset + rules.reach if abs(offset) <= rules.reach else beyond
            table.extend((number, word, head, label, place) for label in counted_as(relation))
    columns = torch.tensor(table, dtype=torch.int64, device=batch.device).reshape(-1, 5).T
    return WordPairs(
        columns[0], columns[1], columns[2], columns[3], columns[4], used, unaligned, bare, cut
    )


def has_tree(row: Encoded) -> bool:
    return row.example.heads is not None and row.example.relations is not None


def _arcs(row: Encoded, present: np.ndarray) -> Iterator[tuple[int, int, str]]:
    """Dependent, head and relation wherever both words (of a root: the word) lie before the cut."""
    here = len(present)
    for dependent, (head, relation) in enumerate(
        zip(row.example.heads or (), row.example.relations or (), strict=True)
    ):
        if (
            dependent < here
            and present[dependent]
            and (head == ROOT or (head < here and present[head]))
        ):
            yield dependent, head, relation


def relation_members(batch: Batch, rules: PairRules) -> Tensor:
    """Which words have a relation, `[direction, example, word, label]` as 0 or 1.

    First as its dependents (they attend to their head), then as its heads (they attend to their
    dependents)."""
    counted_as = cache(rules.counted_as)
    present = word_index(batch).present
    out = torch.zeros(2, *present.shape, len(rules.labels))
    shown = present.cpu().numpy()
    for number, row in enumerate(batch.rows):
        for dependent, head, relation in (
            _arcs(row, shown[number]) if row.aligned and has_tree(row) else ()
        ):
            if head != ROOT:
                out[0, number, dependent, counted_as(relation)] = 1
                out[1, number, head, counted_as(relation)] = 1
    return out.to(batch.device)


def upos_members(batch: Batch) -> Tensor:
    """Which words have which part of speech, `[example, word, upos]` as 0 or 1; tags outside the
    set count as X."""
    present = word_index(batch).present
    out = torch.zeros(*present.shape, len(UPOS))
    places = {name: place for place, name in enumerate(UPOS)}
    for number, row in enumerate(batch.rows):
        for word, tag in enumerate((row.example.upos or ())[: present.shape[1]]):
            out[number, word, places.get(tag, places["X"])] = 1
    return out.to(batch.device) * present[..., None]
