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
from headwise.text.example import ROOT, UPOS

ALL = "all"
SUBTYPES = ("fold", "keep")
POSSESSIVE = ("poss", "nmod:poss")
POSSESSIVE_MARKS = ("'s", "s'", "’s", "s’")


def relation_label(relation: str, subtypes: str) -> str:
    """Return the label a relation is counted under; roots have none.

    >>> relation_label("nmod:poss", "fold"), relation_label("nmod:poss", "keep"), relation_label("root", "fold")
    ('nmod', 'nmod:poss', '')
    """
    name = relation.split(":", 1)[0] if subtypes == "fold" else relation
    return "" if name.lower() == "root" else name


def relation_labels(relations: Iterable[str], subtypes: str) -> list[str]:
    """Return all labels that these relations are counted under, sorted."""
    return sorted({relation_label(relation, subtypes) for relation in relations} - {""})


@dataclass(frozen=True, slots=True)
class PairRules:
    """Rules that decide which pairs there are and how they are counted."""

    labels: tuple[str, ...]  # the first is ALL
    subtypes: str = "fold"
    with_root: bool = False
    with_punct: bool = False
    poss_rule: bool = False
    reach: int = 10
    noop: str = "off"  # the token type that heads with nothing to do attend to
    causal: bool = False  # whether words see only what stands before them

    @property
    def bins(self) -> int:
        """Number of bins: offsets −reach..reach, and one for all beyond."""
        return 2 * self.reach + 2

    def counted_as(self, relation: str) -> list[int]:
        """Return the places among the labels that a pair of this relation counts for: its own, if
        requested, and `all`."""
        label = relation_label(relation, self.subtypes)
        places = []
        if label in self.labels[1:]:
            places.append(self.labels.index(label))
        if self.with_punct or label.split(":", 1)[0] != "punct":
            places.append(self.labels.index(ALL))
        return places


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
    """Return all pairs of a batch, gathered once for all its layers."""
    return batch.remember((WordPairs, rules), lambda: _gather(batch, rules))


def _gather(batch: Batch, rules: PairRules) -> WordPairs:
    counted_as = cache(rules.counted_as)
    present = word_index(batch).present.cpu().numpy()
    last_bin = rules.bins - 1
    table: list[tuple[int, int, int, int, int]] = []
    used = 0
    unaligned = 0
    bare = 0
    cut = 0
    for number, row in enumerate(batch.rows):
        if not has_tree(row):
            bare += 1
            continue
        if not row.aligned:
            unaligned += 1
            continue
        used += 1
        is_present = present[number]
        arcs = list(_arcs(row, is_present))
        cut += len(row.example.heads or ()) - len(arcs)
        for dependent, head, relation in arcs:
            if head == ROOT:
                if rules.with_root:
                    table.append((number, dependent, ROOT, 0, last_bin))
                continue
            word = dependent
            if rules.poss_rule and _has_possessive_mark(row, dependent, relation):
                word = dependent + 1
            if word >= len(is_present) or not is_present[word]:
                cut += 1
                continue
            offset = head - word
            offset_bin = offset + rules.reach if abs(offset) <= rules.reach else last_bin
            for label in counted_as(relation):
                table.append((number, word, head, label, offset_bin))
    columns = torch.tensor(table, dtype=torch.int64, device=batch.device).reshape(-1, 5).T
    example, word_column, head_column, label_column, bin_column = columns
    return WordPairs(
        example,
        word_column,
        head_column,
        label_column,
        bin_column,
        used=used,
        unaligned=unaligned,
        bare=bare,
        cut=cut,
    )


def _has_possessive_mark(row: Encoded, dependent: int, relation: str) -> bool:
    """Return whether a word is a possessor followed by `'s`."""
    words = row.example.all_words
    if relation not in POSSESSIVE or dependent + 1 >= len(words):
        return False
    return words[dependent + 1].lower() in POSSESSIVE_MARKS


def has_tree(row: Encoded) -> bool:
    """Return whether an example is annotated with a dependency tree."""
    return row.example.heads is not None and row.example.relations is not None


def _arcs(row: Encoded, is_present: np.ndarray) -> Iterator[tuple[int, int, str]]:
    """Yield dependent, head and relation of the arcs that a long example keeps when it is cut.

    Both words (of a root: the one word) must be present."""
    n_present = len(is_present)

    def is_kept(word: int) -> bool:
        return word < n_present and bool(is_present[word])

    annotated = zip(row.example.heads or (), row.example.relations or (), strict=True)
    for dependent, (head, relation) in enumerate(annotated):
        if is_kept(dependent) and (head == ROOT or is_kept(head)):
            yield dependent, head, relation


def relation_members(batch: Batch, rules: PairRules) -> Tensor:
    """Return which words have a relation, `[direction, example, word, label]` as 0 or 1.

    First as its dependents (they attend to their head), then as its heads (they attend to their
    dependents)."""
    counted_as = cache(rules.counted_as)
    present = word_index(batch).present
    present_array = present.cpu().numpy()
    members = torch.zeros(2, *present.shape, len(rules.labels))
    for number, row in enumerate(batch.rows):
        if not row.aligned or not has_tree(row):
            continue
        for dependent, head, relation in _arcs(row, present_array[number]):
            if head != ROOT:
                members[0, number, dependent, counted_as(relation)] = 1
                members[1, number, head, counted_as(relation)] = 1
    return members.to(batch.device)


def upos_members(batch: Batch) -> Tensor:
    """Return which words have which part of speech, `[example, word, upos]` as 0 or 1; tags outside
    the set count as X."""
    present = word_index(batch).present
    n_words = present.shape[1]
    place_of_tag = {name: place for place, name in enumerate(UPOS)}
    members = torch.zeros(*present.shape, len(UPOS))
    for number, row in enumerate(batch.rows):
        tags = row.example.upos or ()
        for word, tag in enumerate(tags[:n_words]):
            members[number, word, place_of_tag.get(tag, place_of_tag["X"])] = 1
    return members.to(batch.device) * present[..., None]
