"""Drawings of a head at its work: sentences in which it finds a relation's words, antecedents or
frame elements, with those words coloured (Clark et al. 2019, Fig 5)."""

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
from headwise.plots.drawing import draw_head
from headwise.text import Example
from headwise.text.encode import Encoded

LOOKED_AT = 400  # examples among which sentences are sought
LONGEST = 24
COLOURS = (style.VERMILION, style.BLUE, style.GREEN, style.PINK)


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A sentence with its maps and what a head said to each question on it."""

    sample: Sample
    row: Encoded
    direction: str
    answers: tuple[Answer, ...]

    @property
    def found(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.found]

    @property
    def rank(self) -> tuple[float, int, float]:
        """Right on the larger share of its words, on more words, and surer."""
        right, sureness = len(self.found), float(np.mean([answer.weight for answer in self.found]))
        return right / len(self.answers), right, sureness

    def tokens(self, *words: int) -> tuple[int, ...]:
        """The positions of the pieces of these words."""
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
        Of the sentences where the head is right on every word with the relation, those with most
        such words first, the surest first among equals; where there are too few, sentences where it
        is right on some. The dependent (or mention) is coloured, and its lines with it: on the left
        where it looks, on the right where it is looked at.
    """
    kind, name, figures = sentence_task(relation), head_name(*head), []
    for one in find_sentences(model, corpus, relation, head, count, direction, longest):
        coloured = {
            token: style.cycle(COLOURS, place)
            for place, answer in enumerate(one.found)
            for token in one.tokens(answer.word)
        }
        what = (
            f"{kind.what}, {one.direction.replace('_', ' ')}"
            if len(kind.directions) > 1
            else kind.what
        )
        asked = len(one.answers)
        figures.append(
            draw_head(
                {name: one.sample.head(*head)},
                one.sample.tokens,
                highlight=coloured,
                side="to" if one.direction == "head_to_dependent" else "from",
                title=f"{what}: {name}",
                notes=[f"{len(one.found)} of {asked} {kind.unit}{'s' if asked > 1 else ''} right"],
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
) -> list[Shown]:
    """The sentences `draw_relation` draws; refuses a relation that does not occur, and where no
    sentence fits."""
    kind = sentence_task(relation)
    found: dict[str, list[Shown]] = {
        one: [] for one in kind.directions if direction in (None, one) or len(kind.directions) == 1
    }
    seen: set[str] = set()
    for index, example in enumerate(islice(corpus, LOOKED_AT)):
        row = model.encoder.encode(example, index)
        seen.update(example.relations or ())
        if row is None or not row.aligned or row.truncated or len(row) > longest:
            continue
        batch = model.batch(example)
        if not kind.asked(batch):
            continue
        sample = sample_of(model, example)
        weights = torch.from_numpy(sample.head(*head))[None, None].to(batch.device)
        rows = AttentionRows(head[0], 0, len(row), weights.nan_to_num(), ~weights.isnan())
        for one, shown in found.items():
            told = Shown(sample, row, one, tuple(kind.answers(rows, batch, one)))
            if told.found:
                shown.append(told)
    best = max(found.values(), key=lambda shown: sum(len(one.found) for one in shown))
    if not best:
        known = sorted({*relation_labels(seen, "fold"), *seen})
        if isinstance(kind, RelationTask) and relation not in known:
            raise ParameterError(unknown("relation in these examples", relation, known))
        raise InputError(
            f"No sentence of at most {longest} tokens was found where {head_name(*head)} is right on {relation}; "
            "allow longer ones or name another head."
        )
    return sorted(best, key=lambda one: one.rank, reverse=True)[:count]


def best_head(atlas: Mapping[str, xr.Dataset], relation: str) -> BestHead:
    """The best head for a relation by an atlas (or datasets by group), and the direction it is best
    in."""
    kind = sentence_task(relation)
    if kind.group not in atlas:
        raise ParameterError(
            f"Name the head to draw, or give an atlas with the group {kind.group}, where the best one for {relation} "
            "can be looked up."
        )
    return kind.best(atlas[kind.group])
