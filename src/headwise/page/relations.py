"""Draw a head on sentences in which it finds a relation, antecedents or frame elements, with these
words coloured (Clark et al. 2019, Fig 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
import xarray as xr
from matplotlib.figure import Figure

from headwise.analyses.dependency.arcs import relation_labels
from headwise.analyses.sentences import Answer, BestHead, RelationTask, sentence_task
from headwise.core.errors import InputError, ParameterError, unknown
from headwise.core.labels import head_name
from headwise.models import HeadModel
from headwise.models.view import AttentionRows
from headwise.page.sample import Sample, sample_of
from headwise.plots import style
from headwise.plots.maps import draw_head
from headwise.text import Example
from headwise.text.encode import Encoded

LOOKED_AT = 400  # examples that are searched for sentences
LONGEST = 24  # tokens of a sentence that is drawn
COLOURS = (style.VERMILION, style.BLUE, style.GREEN, style.PINK)


@dataclass(frozen=True, slots=True, eq=False)
class ScoredSentence:
    """A sentence with its maps, and what a head finds for each of its words with the relation."""

    sample: Sample
    row: Encoded
    direction: str
    answers: tuple[Answer, ...]

    @property
    def found(self) -> list[Answer]:
        """The answers that are right."""
        return [answer for answer in self.answers if answer.found]

    @property
    def rank(self) -> tuple[float, int, float]:
        """The key to sort by: share of right answers, their number, their mean weight."""
        n_right = len(self.found)
        mean_weight = float(np.mean([answer.weight for answer in self.found]))
        return n_right / len(self.answers), n_right, mean_weight

    def tokens(self, *words: int) -> tuple[int, ...]:
        """Return the positions of the subwords of these words."""
        return tuple(np.flatnonzero(np.isin(self.row.word, words)).tolist())


def draw_relation(
    model: HeadModel,
    corpus: Iterable[Example],
    relation: str,
    head: tuple[int, int],
    count: int = 3,
    direction: str | None = None,
    longest: int = LONGEST,
) -> list[Figure]:
    """Draw a head on sentences where it finds a relation.

    Parameters
    ----------
    model : HeadModel
        The model.
    corpus : iterable of Example
        Examples with trees (or mentions, or frames).
    relation : str
        A dependency relation (`obj`, `nmod:poss`; without a subtype it means all of them),
        `coreference`, or `frames` (right where a frame's target attends most to a word of one of
        its core elements, Kovaleva et al. 2019, Fig 4).
    head : tuple of int
        `(layer, head)`; `best_head` looks up the best one for the relation in an atlas.
    count : int, default 3
        How many sentences.
    direction : {"dependent_to_head", "head_to_dependent"}, optional
        Right where a dependent attends most to its head, or where the word that attends most to a
        dependent is its head. By default the one in which the head finds more.
    longest : int, default 24
        Sentences of more tokens are not drawn.

    Returns
    -------
    list of Figure
        Sentences where the head is right on every word with the relation come first: those with
        most such words, then those with the largest weights. If there are too few, sentences where
        it is right on some words follow. The dependent (or mention) and its lines are coloured: on
        the left where it attends, on the right where it is attended to.
    """
    task = sentence_task(relation)
    name = head_name(*head)
    figures = []
    for sentence in find_sentences(model, corpus, relation, head, count, direction, longest):
        colours = {}
        for index, answer in enumerate(sentence.found):
            for token in sentence.tokens(answer.word):
                colours[token] = style.cycle(COLOURS, index)
        title = task.what
        if len(task.directions) > 1:
            title += f", {sentence.direction.replace('_', ' ')}"
        n_answers = len(sentence.answers)
        unit = task.unit if n_answers == 1 else f"{task.unit}s"
        figures.append(
            draw_head(
                {name: sentence.sample.head(*head)},
                sentence.sample.tokens,
                highlight=colours,
                side="to" if sentence.direction == "head_to_dependent" else "from",
                title=f"{title}: {name}",
                notes=[f"{len(sentence.found)} of {n_answers} {unit} right"],
            )
        )
    return figures


def find_sentences(
    model: HeadModel,
    corpus: Iterable[Example],
    relation: str,
    head: tuple[int, int],
    count: int,
    direction: str | None = None,
    longest: int = LONGEST,
) -> list[ScoredSentence]:
    """Return the sentences that `draw_relation` draws.

    Raises
    ------
    ParameterError
        The relation does not occur.
    InputError
        No sentence is short enough, or the head is right on none.
    """
    task = sentence_task(relation)
    by_direction: dict[str, list[ScoredSentence]] = {}
    for task_direction in task.directions:
        # A task with one direction ignores the one that was passed.
        if direction in (None, task_direction) or len(task.directions) == 1:
            by_direction[task_direction] = []
    relations: set[str] = set()
    for index, example in enumerate(islice(corpus, LOOKED_AT)):
        row = model.encoder.encode(example, index)
        relations.update(example.relations or ())
        if row is None or not row.aligned or row.truncated or len(row) > longest:
            continue
        batch = model.batch(example)
        if not task.asked(batch):
            continue
        sample = sample_of(model, example)
        weights = torch.from_numpy(sample.head(*head))[None, None].to(batch.device)
        rows = AttentionRows(head[0], 0, len(row), weights.nan_to_num(), ~weights.isnan())
        for task_direction, sentences in by_direction.items():
            answers = tuple(task.answers(rows, batch, task_direction))
            sentence = ScoredSentence(sample, row, task_direction, answers)
            if sentence.found:
                sentences.append(sentence)
    best = max(by_direction.values(), key=_count_right)
    if not best:
        known = sorted({*relation_labels(relations, "fold"), *relations})
        if isinstance(task, RelationTask) and relation not in known:
            raise ParameterError(unknown("relation in these examples", relation, known))
        raise InputError(
            f"No sentence of at most {longest} tokens was found where {head_name(*head)} is right "
            f"on {relation}; allow longer ones or name another head."
        )
    best.sort(key=lambda sentence: sentence.rank, reverse=True)
    return best[:count]


def _count_right(sentences: list[ScoredSentence]) -> int:
    return sum(len(sentence.found) for sentence in sentences)


def best_head(atlas: Mapping[str, xr.Dataset], relation: str) -> BestHead:
    """Return the best head for a relation in an atlas (or datasets by group), and its direction."""
    task = sentence_task(relation)
    if task.group not in atlas:
        raise ParameterError(
            f"Name the head to draw, or give an atlas with the group {task.group}, which says "
            f"which head is best for {relation}."
        )
    return task.best(atlas[task.group])
