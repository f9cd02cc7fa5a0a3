"""Measure a model before and after heads are removed: its score, and the time of a pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headwise.core.errors import HeadwiseError
from headwise.experiments.ablation.options import MAX_LENGTH, PruneOptions
from headwise.experiments.ablation.run import evaluate
from headwise.experiments.ablation.scored_models import ScoredLanguageModel, open_scored_model
from headwise.models import HeadModel
from headwise.text import Corpus, Spec, open_corpus
from headwise.text.encode import Batch

DEFAULT_EXAMPLES = 200  # of the built-in corpus, where no text is named
TIMED_BATCHES = 1
TIMED_BATCHES_OF_DATA = 3  # where a task or a text is named
REPEATS = 5
ScoreFunction = Callable[[Path], dict[str, float]]


@dataclass(frozen=True, slots=True)
class PruningEvaluation:
    """What a model is compared with itself on.

    Attributes
    ----------
    batches : sequence of Batch
        The inputs on which outputs are compared and a pass is timed.
    score : callable, optional
        Returns the scores of a model's folder.
    about : str
        What the score is, or why there is none.
    """

    batches: Sequence[Batch]
    score: ScoreFunction | None
    about: str


def pruning_evaluation(
    model: HeadModel,
    source: str,
    corpus: Corpus | Spec | str | Path | None,
    options: PruneOptions,
) -> PruningEvaluation:
    """Return what the options say a model is scored on: a function, a task, a text, or by default
    the built-in corpus. `source` is the folder or hub name of the model."""
    if options.score is not None:
        return PruningEvaluation(options.batches, options.score, "")
    if options.names_task or (corpus is not None and not isinstance(corpus, Corpus)):
        return _data_evaluation(source, corpus, options)
    return _language_evaluation(model, corpus, options)


def _data_evaluation(
    source: str, corpus: Corpus | Spec | str | Path | None, options: PruneOptions
) -> PruningEvaluation:
    """Score on a task or a text that is named; every model is opened with it anew."""

    def score(folder: Path) -> dict[str, float]:
        scored = open_scored_model(folder, corpus, options)
        return scored.score(evaluate(scored, []).baseline)

    batches = options.batches
    if not batches:
        batches = open_scored_model(source, corpus, options).batches[-TIMED_BATCHES_OF_DATA:]
    return PruningEvaluation(batches, score, "")


def _language_evaluation(
    model: HeadModel, corpus: Corpus | None, options: PruneOptions
) -> PruningEvaluation:
    """Score the language-modelling loss on a text, or say why that is not possible."""

    def score_on_text(opened: HeadModel) -> ScoredLanguageModel:
        text = corpus
        if text is None:
            text = open_corpus(None, tokenizer=opened.tokenizer, prose=opened.causal)
        return ScoredLanguageModel(
            opened,
            text,
            limit=options.limit or DEFAULT_EXAMPLES,
            max_length=MAX_LENGTH,
            seed=options.seed,
        )

    def score(folder: Path) -> dict[str, float]:
        with HeadModel.open(folder, device=options.device, dtype=torch.float32) as opened:
            scored = score_on_text(opened)
            return scored.score(evaluate(scored, []).baseline)

    try:
        scored = score_on_text(model)
    except HeadwiseError as error:
        return PruningEvaluation(options.batches, None, f"No score: {error}")
    name = "the built-in corpus" if corpus is None else f"'{corpus.name}'"
    unit = "masked token" if model.lm_kind == "masked" else "token"
    about = f"loss: nats per {unit} on {scored.examples:,} texts of {name}"
    return PruningEvaluation(options.batches or scored.batches[-TIMED_BATCHES:], score, about)


def time_both(
    intact: HeadModel, pruned: HeadModel, batches: Sequence[Batch]
) -> tuple[float, float]:
    """Return the shortest time of several passes of each model, in seconds.

    The models take turns, so that a machine that is busy for a while slows both."""
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(REPEATS + 1):
        for model, seconds in zip((intact, pruned), times, strict=True):
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            for batch in batches:
                model.forward(batch)
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            if repeat:  # the first pass warms up
                seconds.append(time.perf_counter() - began)
    return min(times[0]), min(times[1])


def describe_timing(batches: Sequence[Batch]) -> str:
    """Return what a pass was timed on, as a text."""
    n_inputs = sum(len(batch) for batch in batches)
    n_tokens = sum(int(batch.attention_mask.sum()) for batch in batches)
    return (
        f"seconds: the shortest of {REPEATS} passes over {n_inputs:,} inputs of {n_tokens:,} tokens"
    )
