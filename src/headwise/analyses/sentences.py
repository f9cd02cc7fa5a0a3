"""Which words a head finds in one sentence, by the code that computes the analyses' numbers.

For drawings of a head on a sentence: a dependency relation (Clark et al. 2019, Fig 5), the
antecedents of mentions, the elements of frames (Kovaleva et al. 2019, Fig 4)."""

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

# (layer, head), and the direction in which it is best.
BestHead = tuple[tuple[int, int], str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a head finds for one word.

    `word` looks (or is looked at), `wanted` are the words it should find, `weight` the largest
    weight on one of these."""

    word: int
    wanted: tuple[int, ...]
    found: bool
    weight: float


class SentenceTask:
    """Something that heads find in sentences.

    `group` is its analysis, `what` names what is found and `unit` what is counted; `directions` are
    those in which it can be looked for."""

    group: ClassVar[str]
    what: str
    unit: ClassVar[str]
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS[:1]

    def questions(self, batch: Batch) -> WordQuestions:
        """Return which words are scored, on a batch of one example."""
        raise NotImplementedError

    def asked(self, batch: Batch) -> bool:
        """Return whether there is anything to find."""
        return len(self.questions(batch).word) > 0

    def answers(self, rows: AttentionRows, batch: Batch, direction: str) -> list[Answer]:
        """Return what the one head of `rows` finds on a batch of one example, for every word whose
        answer it can see."""
        questions = self.questions(batch)
        maps, visible = _word_maps(rows, batch)
        found, possible = find_words(maps, visible, questions)
        visible_wanted = questions.wanted & visible[0, 0, questions.word]
        answers = []
        for place in possible[:, 0].nonzero()[:, 0].tolist():
            word = int(questions.word[place])
            wanted = visible_wanted[place].nonzero()[:, 0]
            answers.append(_answer(maps, word, wanted, bool(found[place, 0])))
        return answers

    def best(self, dataset: xr.Dataset) -> BestHead:
        """Return the best head for it, from the analysis's group of an atlas."""
        raise NotImplementedError


@dataclass(frozen=True)
class RelationTask(SentenceTask):
    """The syntactic head of a word: `obj`, `nmod:poss`; without a subtype it means all of them."""

    what: str
    group: ClassVar[str] = "dependency"
    unit: ClassVar[str] = "word"
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS

    def _pairs(self, batch: Batch) -> WordPairs:
        subtypes = "keep" if ":" in self.what else "fold"
        return gather_pairs(batch, PairRules((ALL, self.what), subtypes))

    def asked(self, batch: Batch) -> bool:
        return bool((self._pairs(batch).label == 1).any())

    def answers(self, rows: AttentionRows, batch: Batch, direction: str) -> list[Answer]:
        pairs = self._pairs(batch)
        maps, visible = _word_maps(rows, batch)
        found, possible = find_heads(maps, visible, pairs)[DIRECTIONS.index(direction)]
        if direction != DIRECTIONS[0]:
            maps = maps.transpose(-1, -2)
        is_scored = possible[:, 0] & (pairs.label == 1)
        answers = []
        for place in is_scored.nonzero()[:, 0].tolist():
            word = int(pairs.word[place])
            answers.append(_answer(maps, word, pairs.head[place, None], bool(found[place, 0])))
        return answers

    def best(self, dataset: xr.Dataset) -> BestHead:
        relations = [str(name) for name in dataset["relation"].values]
        label = self.what
        if label not in relations:
            label = relation_label(self.what, "fold")
        if label not in relations:
            raise ParameterError(unknown("relation in this atlas", self.what, relations))
        of_relation = dataset.sel(relation=label)
        return _best_head(of_relation, self.what), str(of_relation["best_direction"].values)


class AntecedentTask(SentenceTask):
    """The head word of an earlier mention of the same entity."""

    group: ClassVar[str] = "coreference"
    what = "antecedents"
    unit: ClassVar[str] = "mention"

    def questions(self, batch: Batch) -> WordQuestions:
        return scored_mentions(batch).questions

    def best(self, dataset: xr.Dataset) -> BestHead:
        return _best_head(dataset.sel(mention_type="all"), self.group), DIRECTIONS[0]


class FrameElementTask(SentenceTask):
    """A word of a core element of a frame, from the first word of its target, among all words
    outside the target."""

    group: ClassVar[str] = "frames"
    what = "frame elements"
    unit: ClassVar[str] = "target"

    def questions(self, batch: Batch) -> WordQuestions:
        links = [link for link in batch.rows[0].example.frames or () if link.core]
        targets = sorted({link.target for link in links})
        is_outside = torch.ones(len(targets), word_index(batch).count, dtype=torch.bool)
        is_element = torch.zeros_like(is_outside)
        for place, target in enumerate(targets):
            is_outside[place, slice(*target)] = False
            for link in links:
                is_element[place, slice(*link.span)] |= link.target == target
        first_word = torch.tensor([target[0] for target in targets], dtype=torch.int64)
        example = torch.zeros_like(first_word)
        return WordQuestions(
            example.to(batch.device),
            first_word.to(batch.device),
            is_outside.to(batch.device),
            (is_element & is_outside).to(batch.device),
        )

    def best(self, dataset: xr.Dataset) -> BestHead:
        scores = dataset["score"].transpose("layer", "head").values
        (layer, head, _), scored = argmax_heads(scores[..., None])
        if not scored[0]:
            raise ParameterError(
                "The atlas has no head that was scored on frames; name a relation or a head."
            )
        return (int(layer[0]), int(head[0])), DIRECTIONS[0]


def sentence_task(name: str) -> SentenceTask:
    """Return the task of a name: `coreference`, `frames`, or a dependency relation."""
    if name == "coreference":
        return AntecedentTask()
    if name == "frames":
        return FrameElementTask()
    return RelationTask(name)


def _word_maps(rows: AttentionRows, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the attention between words, and which words see each other."""
    index = word_index(batch)
    return word_maps(rows, index), word_visibility(rows, index) > 0


def _answer(maps: Tensor, word: int, wanted: Tensor, found: bool) -> Answer:
    weight = float(maps[0, 0, word, wanted].max())
    return Answer(word, tuple(wanted.tolist()), found, weight)


def _best_head(item: xr.Dataset, name: str) -> tuple[int, int]:
    """Return the best head of a result with one item selected."""
    layer = int(item["best_layer"])
    if layer < 0:
        raise ParameterError(
            f"The atlas has no head that was scored on {name}; name another relation."
        )
    return layer, int(item["best_head"])
