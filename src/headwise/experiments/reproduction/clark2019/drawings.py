"""Figures 1 and 5: heads drawn on sentences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from headwise.analyses.accuracy import shown_accuracy
from headwise.atlas.behaviours import BROAD_LABEL, attention_shares
from headwise.core.labels import head_name
from headwise.experiments.reproduction.clark2019.corpora import segments, treebank
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
from headwise.plots import draw_head
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
MIN_TOKENS = 8  # of a drawn sentence
MAX_TOKENS = 26
N_SEARCHED = 400  # sentences among which one is chosen


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
    row = ReportRow.from_variable(
        "coreference", overall, shown_accuracy(overall), f"{best_name}; see Table 2"
    )
    return EntryResult(
        [row],
        figures=figures,
        deviations=[*deviations, *coreference_deviations],
        inputs=inputs | coreference_inputs,
    )


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
