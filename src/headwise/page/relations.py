"""Drawings of a head at its work: sentences in which it finds a relation's words, antecedents or frame elements, with those words coloured (Clark et al. 2019, Fig 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.analyses.coreference.baselines import candidates_of
from headwise.analyses.coreference.mentions import expressions_of
from headwise.analyses.dependency.arcs import label_of
from headwise.core.errors import InputError, ParameterError, unknown
from headwise.core.labels import head_name
from headwise.page.sample import Sample, sample_of
from headwise.plots import style
from headwise.plots.drawing import draw_head
from headwise.text.example import ROOT

if TYPE_CHECKING:
    from headwise.models import HeadModel
    from headwise.text import Example
    from headwise.text.encode import Encoded

COREFERENCE, FRAMES = "coreference", "frames"
# What is not a dependency relation: what is found, and what is counted.
OTHERS = {COREFERENCE: ("antecedents", "mention"), FRAMES: ("frame elements", "target")}
LOOKED_AT = 400  # examples among which sentences are sought
COLOURS = (style.VERMILION, style.BLUE, style.GREEN, style.PINK)
Direction = Literal["dependent_to_head", "head_to_dependent"]
DIRECTIONS: tuple[Direction, Direction] = ("dependent_to_head", "head_to_dependent")


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A sentence in which a head is right: its maps, and for each pair of words found the tokens of the dependent (or mention) and of the right word."""

    sample: Sample
    pairs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    right: int
    asked: int
    direction: Direction


def draw_relation(
    model: HeadModel,
    corpus: Iterable[Example],
    relation: str,
    head: tuple[int, int] | None = None,
    count: int = 3,
    *,
    direction: Direction | None = None,
    atlas: Mapping[str, xr.Dataset] | None = None,
    longest: int = 24,
) -> list[Figure]:
    """Draw a head on sentences where it finds a relation.

    Parameters
    ----------
    model, corpus
        The model, and examples with trees (or mentions, or frames).
    relation
        A dependency relation (`obj`, `nmod:poss`; without a subtype it means all of them), `coreference`, or `frames` (right where a frame's target attends
        most to a word of one of its core elements, Kovaleva et al. 2019, Fig 4).
    head
        `(layer, head)`; by default the best one for the relation that `atlas` knows.
    count
        How many sentences.
    direction
        `dependent_to_head`: right where a dependent attends most to its head; `head_to_dependent`: where the word that attends most to a dependent is its head.
        By default the one the atlas says the best head is best in, and for a head you name the one in which it finds more.
    atlas
        Where the best head is looked up (groups `dependency`, `coreference` and `frames`): an `Atlas`, or datasets by group.
    longest
        Sentences of more tokens are not drawn.

    Returns
    -------
    list of Figure
        Of the sentences where the head is right on every word with the relation, those with most such words first, the surest first among equals; where there
        are too few, sentences where it is right on some.
        The dependent (or mention) is coloured, and its lines with it: on the left where it looks, on the right where it is looked at.
    """
    if head is None:
        head, best = _best(atlas, relation)
        direction = direction or best
    name = head_name(*head)
    figures = []
    for one in find_sentences(model, corpus, relation, head, count, direction, longest):
        highlight = {
            token: style.cycle(COLOURS, place) for place, (tokens, _) in enumerate(one.pairs) for token in tokens
        }
        what, unit = OTHERS.get(relation, (f"{relation}, {one.direction.replace('_', ' ')}", "word"))
        found = f"{one.right} of {one.asked} {unit}{'s' if one.asked > 1 else ''} right"
        side: Literal["from", "to"] = "to" if one.direction == "head_to_dependent" else "from"
        weights = {name: one.sample.head(*head)}
        figures.append(
            draw_head(
                weights, one.sample.tokens, highlight=highlight, side=side, title=f"{what}: {name}", notes=[found]
            )
        )
    return figures


def find_sentences(
    model: HeadModel,
    corpus: Iterable[Example],
    relation: str,
    head: tuple[int, int],
    count: int,
    direction: Direction | None = None,
    longest: int = 24,
) -> list[Shown]:
    """The sentences `draw_relation` draws; refuses a relation that does not occur (naming those that do) and a corpus with no fitting sentence."""
    wanted: tuple[Direction, ...] = DIRECTIONS if direction is None else (direction,)
    if relation in OTHERS:
        wanted = DIRECTIONS[:1]  # a mention looks back, a target at its elements
    found: dict[Direction, list[tuple[float, int, float, int, Shown]]] = {one: [] for one in wanted}
    seen: set[str] = set()
    for index, example in enumerate(islice(corpus, LOOKED_AT)):
        row = model.encoder.encode(example, index)
        if example.relations is not None:
            seen.update(example.relations)
        if row is None or not row.aligned or row.truncated or len(row) > longest:
            continue
        questions = {one: asked for one in wanted if (asked := _asked(row, relation, one, model.causal))}
        if not questions:
            continue
        sample = sample_of(model, example)
        weights = _word_map(np.nan_to_num(sample.head(*head)), row)
        for one, asked in questions.items():
            shown = _answered(
                row, sample, weights if one == DIRECTIONS[0] else weights.T, asked, one
            )  # transposed: which word attends to it most
            if shown is not None:
                found[one].append((shown[0].right / shown[0].asked, shown[0].right, shown[1], -index, shown[0]))
    best = max(wanted, key=lambda one: sum(right for _, right, *_ in found[one]))
    if not found[best]:
        labels = sorted({label_of(name, "fold") for name in seen} | seen)
        if relation not in OTHERS and relation not in labels:
            raise ParameterError(unknown("relation in these examples", relation, [name for name in labels if name]))
        raise InputError(
            f"No sentence of at most {longest} tokens was found where {head_name(*head)} is right on {relation}; allow longer ones or name another head."
        )
    return [one for *_, one in sorted(found[best], key=lambda item: item[:4], reverse=True)[:count]]


def _answered(
    row: Encoded,
    sample: Sample,
    weights: np.ndarray,
    asked: list[tuple[int, set[int], list[int]]],
    direction: Direction,
) -> tuple[Shown, float] | None:
    """The words a head is right on, with the mean weight it puts there; None where there is none."""
    right = [
        (word, wanted) for word, wanted, options in asked if options[int(np.argmax(weights[word, options]))] in wanted
    ]
    if not right:
        return None
    pairs = tuple((_tokens(row, [word]), _tokens(row, sorted(wanted))) for word, wanted in right)
    sureness = float(np.mean([max(weights[word, w] for w in wanted) for word, wanted in right]))
    return Shown(sample, pairs, len(right), len(asked), direction), sureness


def _asked(row: Encoded, relation: str, direction: Direction, causal: bool) -> list[tuple[int, set[int], list[int]]]:
    """For each dependent (or mention, or frame's target): which words are right, and which may be chosen."""
    example = row.example
    words = range(row.word_count)
    out: list[tuple[int, set[int], list[int]]] = []
    if relation == COREFERENCE:
        expressions = expressions_of(example)
        for mention in expressions:
            earlier = candidates_of(mention, expressions)
            options = sorted({e.head for e in earlier if not causal or e.head < mention.head})
            wanted = {e.head for e in earlier if e.entity == mention.entity} & set(options)
            if wanted:
                out.append((mention.head, wanted, options))
        return out
    if relation == FRAMES:
        links = [link for link in example.frames or () if link.core]
        for first, end in sorted({link.target for link in links}):
            options = [w for w in words if not first <= w < end and (not causal or w < first)]
            wanted = {w for link in links if link.target == (first, end) for w in range(*link.span)} & set(options)
            if wanted:
                out.append((first, wanted, options))
        return out
    if example.heads is None or example.relations is None:
        return []
    fold = "keep" if ":" in relation else "fold"
    for dependent, (governor, name) in enumerate(zip(example.heads, example.relations, strict=True)):
        if governor != ROOT and label_of(name, fold) == relation:
            behind = direction == "head_to_dependent"  # a decoder's heads see dependents that stand before them
            options = [
                w for w in words if w != dependent and (not causal or (w > dependent if behind else w < dependent))
            ]
            if governor in options:
                out.append((dependent, {governor}, options))
    return out


def _word_map(weights: np.ndarray, row: Encoded) -> np.ndarray:
    member = (row.word[:, None] == np.arange(row.word_count)).astype(float)
    return (member / np.maximum(member.sum(0), 1)).T @ weights @ member


def _tokens(row: Encoded, words: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(t) for t in np.flatnonzero(np.isin(row.word, list(words))))


def group_of(relation: str) -> str:
    """The analysis that knows the best head for a relation."""
    return relation if relation in OTHERS else "dependency"


def _best(atlas: Mapping[str, xr.Dataset] | None, relation: str) -> tuple[tuple[int, int], Direction]:
    """The best head for a relation by an atlas, and the direction it is best in."""
    group = group_of(relation)
    if atlas is None or group not in atlas:
        raise ParameterError(
            f"Name the head to draw, or give an atlas with the group {group}, where the best one for {relation} can be looked up."
        )
    dataset = atlas[group]
    if group == FRAMES:
        scores = dataset["score"].transpose("layer", "head")
        if not np.isfinite(scores).any():
            raise ParameterError("The atlas has no head that could be scored on frames; name a relation or a head.")
        layer, head = np.unravel_index(int(np.nanargmax(scores.values)), scores.shape)
        return (int(layer), int(head)), DIRECTIONS[0]
    if group == COREFERENCE:
        own = dataset.sel(mention_type="all")
    else:
        known = [str(name) for name in dataset["relation"].values]
        label = relation if relation in known else label_of(relation, "fold")
        if label not in known:
            raise ParameterError(unknown("relation in this atlas", relation, known))
        own = dataset.sel(relation=label)
    if int(own["best_layer"]) < 0:
        raise ParameterError(f"The atlas has no head that could be scored on {relation}; name another relation.")
    backwards = group != COREFERENCE and str(own["best_direction"].values) == DIRECTIONS[1]
    return (int(own["best_layer"]), int(own["best_head"])), DIRECTIONS[int(backwards)]
