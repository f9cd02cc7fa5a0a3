"""Figures 1 and 5: heads drawn on sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
import xarray as xr

from headwise.analyses.accuracy import shown_accuracy
from headwise.analyses.coreference.mentions import head_word
from headwise.analyses.coreference.windows import windows
from headwise.analyses.sentences import Answer, AntecedentTask
from headwise.atlas.behaviours import BROAD_LABEL, attention_shares
from headwise.core.labels import head_name
from headwise.experiments.reproduction.clark2019.corpora import (
    documents,
    segments,
    treebank,
)
from headwise.experiments.reproduction.clark2019.syntax import (
    antecedents,
    best_of_relation,
    dependency,
)
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.schema import (
    EntryResult,
    NotRunError,
    ReportFigure,
    ReportRow,
)
from headwise.experiments.reproduction.shared import attention_maps, best_head, head_values
from headwise.models.view import AttentionRows
from headwise.plots import draw_head, style
from headwise.text import Example
from headwise.text.example import ROOT

# The patterns of Figure 1 and the behaviour that measures each.
PATTERNS = {
    "broad": BROAD_LABEL,
    "next": "next token",
    "delimiter": "to sep",
    "punctuation": "to punct",
}
DRAWN_RELATIONS = ("dobj", "det", "poss", "auxpass", "pobj")  # Figure 5
ENTITY_COLOURS = (style.VERMILION, style.BLUE, style.GREEN, style.PINK)
MIN_TOKENS = 8  # of a drawn sentence
MAX_TOKENS = 26
N_SEARCHED = 400  # sentences among which one is chosen
MAX_PASSAGE_TOKENS = 34  # of a drawn passage with coreference


def patterns(context: ReproductionContext) -> EntryResult:
    """Figure 1: a head that attends broadly, to the next token, to separators, to periods and
    commas."""
    corpus, inputs, deviations = segments(context)
    surface = context.run_analysis(corpus, context.analysis("surface"))
    measures = {**attention_shares(surface), BROAD_LABEL: surface["entropy"]}
    maps, tokens = attention_maps(context.model, _sentence_with_most(context, lambda example: 1))
    named_maps = {}
    for pattern, behaviour in PATTERNS.items():
        measure = measures.get(behaviour)
        if measure is None or not bool(measure.notnull().any()):
            continue
        values = head_values(measure)
        head = best_head(values)
        named_maps[f"{head_name(*head)} ({pattern}, {float(values[head]):.2f})"] = maps[head]
    caption = (
        "The head that goes furthest in each pattern, by its mean over the segments (entropy in "
        "nats for the broad one, else share of attention), drawn on one short text. Left: the "
        "attending token; right: the attended tokens."
    )
    deviations.append("Heads are picked by number, not by eye; the text is not the paper's.")
    figure = ReportFigure(
        "patterns",
        "Heads that show the patterns",
        caption,
        draw_head(named_maps, tokens, title="Heads that show the patterns of §3"),
    )
    return EntryResult(figures=[figure], deviations=deviations, inputs=inputs)


def phenomena(context: ReproductionContext) -> EntryResult:
    """Figure 5: the best head of each phenomenon on a sentence that has it."""
    result, inputs, deviations = dependency(context)
    figures = []
    for name in DRAWN_RELATIONS:
        best = best_of_relation(result, name)
        if best is None:
            continue
        relation, scores = best
        try:
            example = _sentence_with_most(context, partial(_count_relation, relation))
        except NotRunError:
            continue
        layer = int(scores["best_layer"])
        head = int(scores["best_head"])
        from_dependents = str(scores["best_direction"].values) == "dependent_to_head"
        direction = "from dependent to head" if from_dependents else "from head to dependent"
        accuracy = 100 * float(scores[shown_accuracy(scores)])
        title = f"{head_name(layer, head)}: {accuracy:.1f} % at {relation}"
        caption = (
            f"Words that attend {direction} by the relation {relation} are coloured, with their "
            "lines. The short sentence in which the relation is most frequent."
        )
        maps, tokens = attention_maps(context.model, example)
        attending = _attending_tokens(context, example, relation, from_dependents)
        drawing = draw_head(maps[layer, head], tokens, highlight=attending, title=title)
        figures.append(ReportFigure(name, title, caption, drawing))
    if not figures:
        raise NotRunError("no relation of the figure occurs in a short sentence of this treebank")
    coreference, coreference_inputs, coreference_deviations = antecedents(context)
    overall = coreference.sel(mention_type="all")
    best_name = head_name(int(overall["best_layer"]), int(overall["best_head"]))
    passage = _best_passage(context, overall)
    if passage is None:
        coreference_deviations.append(
            f"Coreference is not drawn: {best_name} finds no antecedent in a passage of at most "
            f"{MAX_PASSAGE_TOKENS} tokens."
        )
    else:
        figures.append(_coreference_figure(context, overall, passage))
    row = ReportRow.from_variable(
        "coreference", overall, shown_accuracy(overall), f"{best_name}; see Table 2"
    )
    return EntryResult(
        [row],
        figures=figures,
        deviations=[*deviations, *coreference_deviations],
        inputs=inputs | coreference_inputs,
    )


# --- coreference ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Passage:
    """A short passage with mentions that have an antecedent in it.

    Attributes
    ----------
    example : Example
        The passage.
    answers : sequence of Answer
        What the head finds for each of these mentions.
    candidates : ndarray
        The words among which each is looked for, bool `[mention, word]`.
    """

    example: Example
    answers: Sequence[Answer]
    candidates: np.ndarray

    @property
    def n_right(self) -> int:
        return sum(answer.found for answer in self.answers)

    @property
    def entity_of_word(self) -> dict[int, str]:
        """The entity of each word that is the head of a mention."""
        entities = {}
        for mention in self.example.mentions or ():
            entities[head_word(self.example, mention)] = mention.entity
        return entities

    @property
    def rank(self) -> tuple[int, int, int]:
        """The key to sort by: entities found, mentions found, mentions missed."""
        entity_of_word = self.entity_of_word
        entities = {entity_of_word[answer.word] for answer in self.answers if answer.found}
        return len(entities), self.n_right, -len(self.answers)


def _best_passage(context: ReproductionContext, overall: xr.Dataset) -> Passage | None:
    """Return the short passage in which the best head finds the antecedents of most entities."""
    layer = int(overall["best_layer"])
    head = int(overall["best_head"])
    corpus, _, _ = documents(context)
    passages = windows(corpus, context.model.tokenizer, MAX_PASSAGE_TOKENS, overlap=0)
    task = AntecedentTask()
    best: Passage | None = None
    for example in islice(passages, N_SEARCHED):
        row = context.model.encoder.encode(example)
        if row is None or not row.aligned or not MIN_TOKENS <= len(row) <= MAX_PASSAGE_TOKENS:
            continue
        batch = context.model.batch(example)
        if not task.asked(batch):
            continue
        maps, _ = attention_maps(context.model, example)
        weights = torch.from_numpy(maps[layer, head])[None, None].to(batch.device)
        rows = AttentionRows(layer, 0, len(row), weights.nan_to_num(), ~weights.isnan())
        answers = task.answers(rows, batch, task.directions[0])
        questions = task.questions(batch)
        words = questions.word.tolist()
        asked_rows = [words.index(answer.word) for answer in answers]
        candidates = questions.candidate[asked_rows].cpu().numpy()
        passage = Passage(example, answers, candidates)
        if passage.n_right and (best is None or passage.rank > best.rank):
            best = passage
    return best


def _coreference_figure(
    context: ReproductionContext, overall: xr.Dataset, passage: Passage
) -> ReportFigure:
    """Draw the best head on a passage, each mention in the colour of its entity: all of its
    attention, and the part that decides."""
    layer = int(overall["best_layer"])
    head = int(overall["best_head"])
    name = head_name(layer, head)
    accuracy = 100 * float(overall[shown_accuracy(overall)])
    title = f"{name}: {accuracy:.1f} % at coreference"
    word_of_token = context.model.encode(passage.example).word
    maps, tokens = attention_maps(context.model, passage.example)
    weights = maps[layer, head]
    to_candidates = np.full_like(weights, np.nan)
    colour_of_entity: dict[str, str] = {}
    highlight = {}
    for answer, candidate_words in zip(passage.answers, passage.candidates, strict=True):
        entity = passage.entity_of_word[answer.word]
        if entity not in colour_of_entity:
            colour_of_entity[entity] = style.cycle(ENTITY_COLOURS, len(colour_of_entity))
        candidate_tokens = np.isin(word_of_token, np.flatnonzero(candidate_words))
        for token in np.flatnonzero(word_of_token == answer.word).tolist():
            highlight[token] = colour_of_entity[entity]
            scored = weights[token, candidate_tokens]
            to_candidates[token, candidate_tokens] = scored / np.nansum(scored)
    panels = {f"{name}, all attention": weights, "among earlier mentions": to_candidates}
    drawing = draw_head(panels, tokens, highlight=highlight, title=title)
    caption = (
        "Head words of mentions that have an antecedent in the passage, a colour for each entity, "
        "with their lines: all of their attention, and that to the head words of earlier mentions "
        f"alone, rescaled, which is what is scored. By it {passage.n_right} of "
        f"{len(passage.answers)} attend most to an antecedent. Of the short passages, the one in "
        "which the head finds the antecedents of most entities; the accuracy in the title is over "
        "all documents."
    )
    return ReportFigure("coreference", title, caption, drawing)


# --- sentences ------------------------------------------------------------------------------------


def _sentence_with_most(context: ReproductionContext, count: Callable[[Example], int]) -> Example:
    """Return the short sentence with the highest count, among the first of the treebank."""
    corpus, _, _ = treebank(context, N_SEARCHED)
    highest = 0
    best_example = None
    for example in islice(corpus, N_SEARCHED):
        row = context.model.encoder.encode(example)
        if row is None or not row.aligned or not MIN_TOKENS <= len(row) <= MAX_TOKENS:
            continue
        if count(example) > highest:
            highest = count(example)
            best_example = example
    if best_example is None:
        raise NotRunError("no short sentence of the treebank has it")
    return best_example


def _count_relation(relation: str, example: Example) -> int:
    return sum(name == relation for name in example.relations or ())


def _attending_tokens(
    context: ReproductionContext, example: Example, relation: str, from_dependents: bool
) -> list[int]:
    """Return the tokens of the words that attend: the dependents of a relation, or its heads."""
    attending_words = set()
    edges = zip(example.heads or (), example.relations or (), strict=True)
    for dependent, (head, name) in enumerate(edges):
        if name == relation and head != ROOT:
            attending_words.add(dependent if from_dependents else head)
    word_of_token = context.model.encode(example).word.tolist()
    return [token for token, word in enumerate(word_of_token) if word in attending_words]
