"""What a drawing of a head at its work asks on a sentence, answered by the code that makes the
analysis's numbers.

A dependency relation (Clark et al. 2019, Fig 5), the antecedents of mentions, the elements of
frames (Kovaleva et al. 2019, Fig 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.accuracy import argmax_heads
from headwise.analyses.coreference.analysis import scored_mentions
from headwise.analyses.dependency.analysis import find_heads
from headwise.analyses.dependency.arcs import (
    ALL,
    PairRules,
    WordPairs,
    gather_pairs,
    relation_label,
)
from headwise.analyses.dependency.result import DIRECTIONS
from headwise.core.errors import ParameterError, unknown
from headwise.models.view import AttentionRows
from headwise.models.words import WordQuestions, find_words, word_index, word_maps, word_visibility
from headwise.text.encode import Batch

BestHead = tuple[tuple[int, int], str]  # (layer, head), and the direction it is best in


@dataclass(frozen=True, slots=True)
class Answer:
    """What a head says to one question: the word that looks (or is looked at) and the words it is
    to find."""

    word: int
    wanted: tuple[int, ...]
    found: bool
    weight: float  # the most that a word it is to find gets


class SentenceTask:
    """Something that heads find in sentences: its analysis, words for what is found and counted,
    and the directions in which it can be looked for."""

    group: ClassVar[str]
    what: str
    unit: ClassVar[str]
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS[:1]

    def questions(self, batch: Batch) -> WordQuestions:
        """Which words are asked about, on a batch of one example."""
        raise NotImplementedError

    def asked(self, batch: Batch) -> bool:
        """Whether there is anything to find."""
        return len(self.questions(batch).word) > 0

    def answers(self, rows: AttentionRows, batch: Batch, direction: str) -> list[Answer]:
        """What the one head of `rows` says on a batch of one example, wherever it could find what
        is asked for."""
        questions, (maps, visible) = self.questions(batch), _by_words(rows, batch)
        found, possible = find_words(maps, visible, questions)
        seen = questions.wanted & visible[0, 0, questions.word]
        return [
            _answer(
                maps, int(questions.word[place]), seen[place].nonzero()[:, 0], bool(found[place, 0])
            )
            for place in possible[:, 0].nonzero()[:, 0].tolist()
        ]

    def best(self, dataset: xr.Dataset) -> BestHead:
        """The best head for it by the group of an atlas."""
        raise NotImplementedError


@dataclass(frozen=True)
class RelationTask(SentenceTask):
    """The syntactic head of a word: `obj`, `nmod:poss`; without a subtype it means all of them."""

    what: str
    group: ClassVar[str] = "dependency"
    unit: ClassVar[str] = "word"
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS

    def _pairs(self, batch: Batch) -> WordPairs:
        return gather_pairs(
            batch, PairRules((ALL, self.what), "keep" if ":" in self.what else "fold")
        )

    def asked(self, batch: Batch) -> bool:
        return bool((self._pairs(batch).label == 1).any())

    def answers(self, rows: AttentionRows, batch: Batch, direction: str) -> list[Answer]:
        pairs, (maps, visible) = self._pairs(batch), _by_words(rows, batch)
        found, possible = find_heads(maps, visible, pairs)[DIRECTIONS.index(direction)]
        turned = maps if direction == DIRECTIONS[0] else maps.transpose(-1, -2)
        return [
            _answer(turned, int(pairs.word[place]), pairs.head[place, None], bool(found[place, 0]))
            for place in (possible[:, 0] & (pairs.label == 1)).nonzero()[:, 0].tolist()
        ]

    def best(self, dataset: xr.Dataset) -> BestHead:
        known = [str(name) for name in dataset["relation"].values]
        label = self.what if self.what in known else relation_label(self.what, "fold")
        if label not in known:
            raise ParameterError(unknown("relation in this atlas", self.what, known))
        own = dataset.sel(relation=label)
        return _scored(own, self.what), str(own["best_direction"].values)


class AntecedentTask(SentenceTask):
    """The head word of an earlier mention of the same entity."""

    group: ClassVar[str] = "coreference"
    what = "antecedents"
    unit: ClassVar[str] = "mention"

    def questions(self, batch: Batch) -> WordQuestions:
        return scored_mentions(batch).questions

    def best(self, dataset: xr.Dataset) -> BestHead:
        return _scored(dataset.sel(mention_type="all"), self.group), DIRECTIONS[0]


class FrameElementTask(SentenceTask):
    """A word of a core element of a frame, asked of its target's first word among all words outside
    the target."""

    group: ClassVar[str] = "frames"
    what = "frame elements"
    unit: ClassVar[str] = "target"

    def questions(self, batch: Batch) -> WordQuestions:
        links = [link for link in batch.rows[0].example.frames or () if link.core]
        targets = sorted({link.target for link in links})
        outside = torch.ones(len(targets), word_index(batch).count, dtype=torch.bool)
        element = torch.zeros_like(outside)
        for place, target in enumerate(targets):
            outside[place, slice(*target)] = False
            for link in links:
                element[place, slice(*link.span)] |= link.target == target
        first = torch.tensor([target[0] for target in targets], dtype=torch.int64)
        given = (torch.zeros_like(first), first, outside, element & outside)
        return WordQuestions(*(tensor.to(batch.device) for tensor in given))

    def best(self, dataset: xr.Dataset) -> BestHead:
        place, scored = argmax_heads(dataset["score"].transpose("layer", "head").values[..., None])
        if not scored[0]:
            raise ParameterError(
                "The atlas has no head that could be scored on frames; name a relation or a head."
            )
        return (int(place[0][0]), int(place[1][0])), DIRECTIONS[0]


def sentence_task(name: str) -> SentenceTask:
    """What a name stands for: `coreference`, `frames`, or a dependency relation."""
    return {"coreference": AntecedentTask(), "frames": FrameElementTask()}.get(
        name
    ) or RelationTask(name)


def _by_words(rows: AttentionRows, batch: Batch) -> tuple[Tensor, Tensor]:
    index = word_index(batch)
    return word_maps(rows, index), word_visibility(rows, index) > 0


def _answer(maps: Tensor, word: int, wanted: Tensor, found: bool) -> Answer:
    return Answer(word, tuple(wanted.tolist()), found, float(maps[0, 0, word, wanted].max()))


def _scored(own: xr.Dataset, name: str) -> tuple[int, int]:
    if int(own["best_layer"]) < 0:
        raise ParameterError(
            f"The atlas has no head that could be scored on {name}; name another relation."
        )
    return int(own["best_layer"]), int(own["best_head"])
