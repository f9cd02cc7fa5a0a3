"""Pairs of words that a treebank links, gathered from a batch, with the label each is counted under."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.models.words import word_index
from headwise.text.encode import Batch
from headwise.text.example import ROOT, Example

ALL = "all"
SUBTYPES = ("fold", "keep")
POSSESSIVE = ("poss", "nmod:poss")
POSSESSIVE_MARKS = ("'s", "s'", "’s", "s’")
UPOS = (
    "ADJ",
    "ADP",
    "ADV",
    "AUX",
    "CCONJ",
    "DET",
    "INTJ",
    "NOUN",
    "NUM",
    "PART",
    "PRON",
    "PROPN",
    "PUNCT",
    "SCONJ",
    "SYM",
    "VERB",
    "X",
)


def label_of(relation: str, subtypes: str) -> str:
    """What a relation is counted as: `nmod:poss` as `nmod` where subtypes are folded. Roots have no label."""
    name = relation.split(":", 1)[0] if subtypes == "fold" else relation
    return "" if name.lower() == "root" else name


def labels_of(relations: Iterable[str], subtypes: str) -> list[str]:
    """All labels that these relations are counted as, sorted."""
    return sorted({label_of(relation, subtypes) for relation in relations} - {""})


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides which pairs there are and how they are counted."""

    labels: tuple[str, ...]  # the first is ALL
    subtypes: str
    with_root: bool
    with_punct: bool
    poss_rule: bool
    reach: int
    noop: str = "off"  # the type of token that heads with nothing to do look at

    @property
    def bins(self) -> int:
        """Offsets −reach..reach, and one for all beyond."""
        return 2 * self.reach + 2


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Word pairs of a batch; a pair that counts for its relation and for `all` is there twice.

    `word` is the word whose prediction counts (the dependent, or the possessive mark after it), `head` its true head (ROOT: none to find),
    `label` the place of the relation among the labels, `bin` the place of `head − word` among the offsets.
    """

    example: Tensor
    word: Tensor
    head: Tensor
    label: Tensor
    bin: Tensor
    unaligned: int  # examples left out because pieces and words do not align
    bare: int  # examples without a tree
    used: int  # examples counted
    cut: int  # words whose head (or own mark) lies behind the cut of a long example


def gather_pairs(batch: Batch, settings: Settings) -> Pairs:
    """All pairs of a batch."""
    places = {name: place for place, name in enumerate(settings.labels)}
    present = word_index(batch).present.cpu().numpy()
    rows: list[tuple[int, int, int, int, int]] = []
    unaligned = bare = used = cut = 0
    for number, row in enumerate(batch.rows):
        example = row.example
        if example.heads is None or example.relations is None:
            bare += 1
        elif not row.aligned:
            unaligned += 1
        else:
            used += 1
            cut += _add_pairs(rows, number, example, present[number], places, settings)
    table = torch.tensor(rows, dtype=torch.int64, device=batch.device).reshape(-1, 5)
    example_of, word, head, label, place = table.unbind(1)
    return Pairs(example_of, word, head, label, place, unaligned=unaligned, bare=bare, used=used, cut=cut)


def _add_pairs(
    out: list[tuple[int, int, int, int, int]],
    number: int,
    example: Example,
    present: np.ndarray,
    places: Mapping[str, int],
    settings: Settings,
) -> int:
    cut = 0
    beyond = settings.bins - 1
    words = example.all_words
    here = len(present)
    for dependent, (head, relation) in enumerate(zip(example.heads or (), example.relations or (), strict=True)):
        if dependent >= here or not present[dependent] or (head != ROOT and (head >= here or not present[head])):
            cut += 1
            continue
        label = label_of(relation, settings.subtypes)
        if head == ROOT:
            if settings.with_root:
                out.append((number, dependent, ROOT, 0, beyond))
            continue
        word = dependent
        if (
            settings.poss_rule
            and relation in POSSESSIVE
            and dependent + 1 < len(words)
            and words[dependent + 1].lower() in POSSESSIVE_MARKS
        ):
            word = dependent + 1
            if word >= here or not present[word]:
                cut += 1
                continue
        offset = head - word
        place = offset + settings.reach if abs(offset) <= settings.reach else beyond
        if label in places:
            out.append((number, word, head, places[label], place))
        if settings.with_punct or label.split(":", 1)[0] != "punct":
            out.append((number, word, head, places[ALL], place))
    return cut


def relation_members(batch: Batch, settings: Settings) -> Tensor:
    """Which words have a relation, `[direction, example, word, label]` as 0 or 1.

    First as its dependents (they attend to their head), then as its heads (they attend to their dependents).
    """
    present = word_index(batch).present
    out = torch.zeros(2, *present.shape, len(settings.labels))
    places = {name: place for place, name in enumerate(settings.labels)}
    shown = present.cpu().numpy()
    for number, row in enumerate(batch.rows):
        example = row.example
        if not row.aligned or example.heads is None or example.relations is None:
            continue
        for dependent, (head, relation) in enumerate(zip(example.heads, example.relations, strict=True)):
            if (
                head == ROOT
                or max(dependent, head) >= shown.shape[1]
                or not (shown[number, dependent] and shown[number, head])
            ):
                continue
            label = label_of(relation, settings.subtypes)
            counted = [places[label]] if label in places else []
            if settings.with_punct or label.split(":", 1)[0] != "punct":
                counted.append(places[ALL])
            out[0, number, dependent, counted] = 1
            out[1, number, head, counted] = 1
    return out.to(batch.device)


def upos_members(batch: Batch) -> Tensor:
    """Which words have which part of speech, `[example, word, upos]` as 0 or 1; tags outside the universal set count as X."""
    present = word_index(batch).present
    out = torch.zeros(*present.shape, len(UPOS))
    places = {name: place for place, name in enumerate(UPOS)}
    for number, row in enumerate(batch.rows):
        for word, tag in enumerate(row.example.upos or ()):
            if word < present.shape[1]:
                out[number, word, places.get(tag, places["X"])] = 1
    return out.to(batch.device) * present[..., None]
