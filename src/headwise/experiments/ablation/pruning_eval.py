"""What a model is worth before and after heads are taken out of it: its loss on a text, and the
time of a pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headwise.core.errors import HeadwiseError
from headwise.experiments.ablation.run import evaluate
from headwise.experiments.ablation.scored_models import MAX_LENGTH, ScoredLanguageModel
from headwise.models import HeadModel
from headwise.text import Corpus, open_corpus
from headwise.text.encode import Batch

TIMED = 1  # batches
REPEATS = 5
ScoreFunction = Callable[[Path], dict[str, float]]


@dataclass(frozen=True, slots=True)
class PruningEvaluation:
    """What models are compared on: batches to time, a score of a model's folder where there is one,
    and what to say."""

    batches: Sequence[Batch]
    score: ScoreFunction | None
    about: str


def language_ground(
    model: HeadModel,
    corpus: Corpus | None,
    limit: int,
    seed: int,
    device: str | torch.device | None,
) -> PruningEvaluation:
    """The language-model loss on a text, by default the built-in one; a reason instead where that
    cannot be."""

    def opened(own: HeadModel) -> ScoredLanguageModel:
        text = (
            open_corpus(None, tokenizer=own.tokenizer, prose=own.causal)
            if corpus is None
            else corpus
        )
        return ScoredLanguageModel(own, text, limit=limit, max_length=MAX_LENGTH, seed=seed)

    def score(folder: Path) -> dict[str, float]:
        with HeadModel.open(folder, device=device, dtype=torch.float32) as own:
            subject = opened(own)
            return subject.score(evaluate(subject, []).baseline)

    try:
        subject = opened(model)
    except HeadwiseError as error:
        return PruningEvaluation((), None, f"No score: {error}")
    name = "the built-in corpus" if corpus is None else f"'{corpus.name}'"
    what = "masked token" if model.lm_kind == "masked" else "token"
    return PruningEvaluation(
        subject.batches[-TIMED:],
        score,
        f"loss: nats per {what} on {subject.examples:,} texts of {name}",
    )


def seconds_of(
    whole: HeadModel, pruned: HeadModel, batches: Sequence[Batch]
) -> tuple[float, float]:
    """The shortest of several passes of each, in turns, so that a machine that is busy for a while
    slows both."""
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(REPEATS + 1):
        for model, found in zip((whole, pruned), times, strict=True):
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            for batch in batches:
                model.forward(batch)
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            if repeat:  # the first pass warms up
                found.append(time.perf_counter() - began)
    return min(times[0]), min(times[1])


def timed_text(batches: Sequence[Batch]) -> str:
    """What a pass was timed on."""
    texts, tokens = (
        sum(map(len, batches)),
        sum(int(batch.attention_mask.sum()) for batch in batches),
    )
    return f"seconds: the shortest of {REPEATS} passes over {texts:,} inputs of {tokens:,} tokens"
