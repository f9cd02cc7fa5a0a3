"""Sentences on which a head gets a relation right, for drawings of it (Clark et al. 2019, Fig 5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr

from headwise.analyses.base import one_of
from headwise.analyses.dependency import DIRECTIONS, score
from headwise.analyses.dependency_pairs import ALL, SUBTYPES, Settings, gather_pairs, labels_of
from headwise.analyses.words import fold, word_index
from headwise.errors import InputError, ParameterError, unknown
from headwise.text.encode import Batch, collate
from headwise.text.example import Example

if TYPE_CHECKING:
    from headwise.models import HeadModel

MARGIN = 0.3  # least mean weight on the right words for a sentence to be worth drawing


@dataclass(frozen=True, slots=True, eq=False)
class RightSentence:
    """A sentence on which one head finds every pair of a relation.

    `weights[word, word]`: its word-level map; `pairs`: (dependent, head) of the relation, as word indices.
    """

    example: Example
    words: tuple[str, ...]
    weights: np.ndarray
    pairs: tuple[tuple[int, int], ...]
    relation: str
    layer: int
    head: int
    direction: str


def best_place(dataset: xr.Dataset, relation: str) -> tuple[int, int, str]:
    """Layer, head and direction of a relation's best head, from the result of `dependency`."""
    known = [str(name) for name in dataset["relation"].values]
    if relation not in known:
        raise ParameterError(unknown("relation", relation, known))
    at = dataset.sel(relation=relation)
    if int(at["best_layer"]) < 0:
        raise ParameterError(f"No head could be scored on the relation '{relation}'; choose another one.")
    return int(at["best_layer"]), int(at["best_head"]), str(at["best_direction"].values)


def right_sentences(
    model: HeadModel,
    examples: Iterable[Example],
    relation: str,
    layer: int,
    head: int,
    direction: str = DIRECTIONS[0],
    *,
    count: int = 2,
    longest: int = 16,
    subtypes: str = "fold",
) -> list[RightSentence]:
    """The first sentences on which a head finds every pair of a relation with a fair share of its attention.

    Parameters
    ----------
    model, examples
        What to look at; examples without a tree, with words that do not align, or without the relation are passed over.
    relation, layer, head, direction
        What should be right; `best_place` gives the best head of a relation.
    count
        How many sentences.
    longest
        In words.
    subtypes
        `fold` or `keep`, as in `dependency`.
    """
    one_of("direction", direction, DIRECTIONS)
    one_of("subtypes", subtypes, SUBTYPES)
    settings = Settings((ALL, relation), subtypes, False, False, False, reach=1)
    found: list[RightSentence] = []
    seen: set[str] = set()
    for example in examples:
        if example.heads is None or example.relations is None or len(example.all_words) > longest:
            continue
        seen.update(example.relations)
        if relation not in labels_of(example.relations, subtypes):
            continue
        row = model.encode(example)
        sentence = (
            _examine(model, row.example, collate([row], model.pad_id, model.device), settings, (layer, head, direction))
            if row.aligned
            else None
        )
        if sentence is not None:
            found.append(sentence)
            if len(found) == count:
                break
    if not found and relation not in labels_of(seen, subtypes):
        raise InputError(
            f"No sentence of at most {longest} words has the relation '{relation}'; those that occur: {', '.join(labels_of(seen, subtypes)) or 'none'}."
        )
    return found


def _examine(model: HeadModel, example: Example, batch: Batch, settings: Settings, place: tuple[int, int, str]) -> RightSentence | None:
    layer, head, direction = place
    trace = model.trace(batch)
    assert trace.attention is not None
    assert trace.visible is not None
    index = word_index(batch)
    weights = fold(trace.attention[:, layer, head : head + 1], index)
    seen = trace.visible[:, layer]
    visible = fold(seen[:, min(head, seen.shape[1] - 1)][:, None].to(weights), index) > 0
    pairs = gather_pairs(batch, settings)
    own = pairs.label == 1
    right, _ = score(weights, visible, pairs)[DIRECTIONS.index(direction)]
    if not bool(right[own].all()) or not bool(own.any()):
        return None
    words, heads = pairs.word[own], pairs.head[own]
    map_ = weights[0, 0]
    strength = map_[words, heads] if direction == DIRECTIONS[0] else map_[heads, words]
    if float(strength.mean()) < MARGIN:
        return None
    linked = tuple(zip(words.tolist(), heads.tolist(), strict=True))
    return RightSentence(
        example,
        example.all_words,
        torch.where(visible[0, 0], map_, torch.nan).cpu().numpy(),
        linked,
        settings.labels[1],
        layer,
        head,
        direction,
    )
