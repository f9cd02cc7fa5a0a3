"""§4.2: heads that link a frame's target to its core elements; Figures 3 and 4."""

from __future__ import annotations

import re

import numpy as np
import xarray as xr

from headwise.analyses.frames.analysis import Frames
from headwise.analyses.frames.figures import best_heads, frame_annotation, frame_heads
from headwise.analyses.frames.links import chosen_links
from headwise.core.labels import head_name
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.kovaleva2019 import claims
from headwise.experiments.reproduction.schema import (
    EntryResult,
    NotRunError,
    ReportFigure,
    ReportRow,
)
from headwise.experiments.reproduction.shared import (
    attention_maps,
    head_values,
    registered_figures,
)
from headwise.text import Corpus, Example
from headwise.text.demo import demo_corpus

N_SENTENCES = 473  # in the paper
N_SENTENCES_QUICK = 120
PRINTED_TARGET = re.compile(r"address(es|ed|ing)?", re.IGNORECASE)


def _filtered_sentences(context: ReproductionContext) -> tuple[Corpus, list[str], int]:
    """Return a sample of the exemplars that pass the paper's filters, the deviations, and how many
    pass."""
    analysis = Frames()
    deviations = []
    if context.data.find("framenet") is None:
        corpus = demo_corpus()
        deviations.append("No FrameNet was given: examples of the built-in grammar stand in.")
    else:
        corpus = context.corpus("framenet")
    passing = []
    for example in corpus:
        if example.words is None or len(example.all_words) > analysis.max_words:
            continue
        row = context.model.encoder.encode(example)
        if row is not None and chosen_links(row, analysis)[1]:
            passing.append(example)
    if not passing:
        raise NotRunError("no sentence passes the paper's filters")
    sentences = Corpus.from_examples(passing, corpus.name)
    limit = context.sample_size(len(passing), N_SENTENCES_QUICK)
    if limit < len(passing):
        sentences = sentences.sample(limit, context.seed)
    return sentences, deviations, len(passing)


def _frame_scores(
    context: ReproductionContext,
) -> tuple[xr.Dataset, Corpus, dict[str, str], list[str], int]:
    """Return the scores of heads, the sentences, their description, the deviations, and how many
    sentences pass the filters."""
    sentences, deviations, n_passing = context.compute_once(
        "frames", lambda: _filtered_sentences(context)
    )
    scores = context.run_analysis(sentences, context.analysis("frames"))
    n_used = int(scores.attrs["sentences"])
    inputs = {"sentences": f"{sentences.name}, {n_used:,} of {n_passing:,} that pass the filters"}
    deviations = list(deviations)
    if n_passing > N_SENTENCES:
        deviations.append(
            "FrameNet 1.7 has more exemplars that pass than the version the authors had."
        )
    return scores, sentences, inputs, deviations, n_passing


def best_frame_heads(context: ReproductionContext) -> list[tuple[int, int]]:
    """Return the two heads with the highest scores."""
    scores, *_ = _frame_scores(context)
    return best_heads(head_values(scores["score"]))


def heads(context: ReproductionContext) -> EntryResult:
    """Figure 3."""
    scores, sentences, inputs, deviations, n_passing = _frame_scores(context)
    rows = []
    for key, head in zip(("best", "second"), best_frame_heads(context), strict=False):
        layer_index, head_index = head
        cell = scores.isel(layer=layer_index, head=head_index)
        note = head_name(*head)
        p_adjusted = float(cell["p_adjusted"]) if "p_adjusted" in cell else np.nan
        if np.isfinite(p_adjusted):
            note += f", corrected p {p_adjusted:.3g}"
        rows.append(ReportRow.from_variable(key, cell, "score", note, scale=1.0))
    note = f"{int(scores.attrs['sentences']):,} were used"
    rows.append(ReportRow("sentences", n_passing, note=note))
    figures = registered_figures("frames", scores, "heads")
    figures.append(_heads_on_sentence(context, scores, _example_to_draw(sentences)))
    return EntryResult(
        rows,
        figures=figures,
        evidence=claims.frame_evidence(scores),
        deviations=deviations,
        inputs=inputs,
    )


def annotation(context: ReproductionContext) -> EntryResult:
    """Figure 4: an annotated sentence, and what the best heads do on it."""
    scores, sentences, inputs, deviations, _ = _frame_scores(context)
    example = _example_to_draw(sentences)
    links = example.frames or ()
    frame = links[0].frame.replace("_", " ")
    elements = dict.fromkeys(link.element.replace("_", " ") for link in links)
    description = f"frame {frame}, elements {', '.join(elements)}"
    caption = f"Above: the target; below: its elements, core ones in whole lines ({description})."
    figures = [
        ReportFigure("annotation", "A sentence with its frame", caption, frame_annotation(example)),
        _heads_on_sentence(context, scores, example),
    ]
    start, stop = links[0].target
    target = " ".join(example.all_words[start:stop])
    if not PRINTED_TARGET.fullmatch(target):
        deviations.append(f"No sentence of “address” is among them: the target here is “{target}”.")
    inputs["sentence"] = description
    return EntryResult(figures=figures, deviations=deviations, inputs=inputs)


def _example_to_draw(sentences: Corpus) -> Example:
    """Return a sentence whose target is `address` with most core elements, else any with most."""
    highest_rank = -1
    best_example = None
    for example in sentences:
        links = [link for link in example.frames or () if link.core]
        target_words = {example.all_words[link.target[0]] for link in links}
        n_elements = len({link.element for link in links})
        has_printed_target = any(PRINTED_TARGET.fullmatch(word) for word in target_words)
        rank = 10 * has_printed_target + n_elements
        if rank > highest_rank:
            highest_rank = rank
            best_example = example
    assert best_example is not None
    return best_example


def _heads_on_sentence(
    context: ReproductionContext, scores: xr.Dataset, example: Example
) -> ReportFigure:
    """Draw the two best heads on one sentence, with the elements' tokens named."""
    word_of_token = context.model.encode(example).word
    links = [link for link in example.frames or () if link.core] or list(example.frames or ())
    start, stop = links[0].target
    target_tokens = np.flatnonzero((word_of_token >= start) & (word_of_token < stop)).tolist()
    element_of_token = {}
    for link in links:
        start, stop = link.span
        for token in np.flatnonzero((word_of_token >= start) & (word_of_token < stop)):
            element_of_token[int(token)] = link.element.replace("_", " ")
    maps, tokens = attention_maps(context.model, example)
    frame = links[0].frame.replace("_", " ")
    drawing = frame_heads(scores, tokens, maps, target_tokens, element_of_token, frame=frame)
    caption = (
        f"Frame {frame}: where the target's attention goes in the two best heads; elements are "
        "marked and named."
    )
    return ReportFigure("sentence", "The two best heads on one sentence", caption, drawing)
