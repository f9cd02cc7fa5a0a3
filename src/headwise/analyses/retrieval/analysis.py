"""Retrieval heads: a needle in unrelated text, a question, and the heads that attend to the needle
while it is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    mean_variables,
)
from headwise.analyses.retrieval.trials import (
    PASSED,
    SHORTEST,
    Trial,
    make_trial,
    max_answer_tokens,
    mean_needle_tokens,
    needle_number,
    run_trial,
    unrelated_text,
)
from headwise.analyses.summaries import format_heads, ranked_heads
from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.core.workers import current, raise_failures
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.stats.units import share_interval, sum_by_unit

HEADS = ("layer", "head")
RETRIEVAL_SCORE = 0.1  # the score above which Wu et al. speak of a retrieval head


@dataclass(frozen=True)
class Retrieval(Experiment):
    """Find the heads that attend to a needle in unrelated text while the model says it.

    A sentence is inserted into the corpus's text at several depths, a question follows, and the
    model answers greedily. For a needle token that is said, a head scores if its largest weight
    at that step lies on that token in the needle.

    - `score[layer, head]`: share of the needle's tokens scored, mean over the trials in which at
      least half of the needle was said, with their count. The interval is over needles (Wilson's,
      with the effective number of tokens): trials that share a needle are one unit. `score_p`: the
      mean is no more than 0.1, from which Wu et al. speak of a retrieval head (Student's t over
      needles); `score_p_adjusted`: corrected over heads (Holm);
    - `emitted[length, depth]`: share of the needle said, mean over needles; `passed[length,
      depth]`: share of trials in which at least half was.

    Every trial has a needle of its own, until all 24 are used. Intervals and tests need two
    different needles at least.

    A model that passes no trial cannot do the task: it gets no scores, and `trials_passed` is 0.

    Parameters
    ----------
    lengths : sequence of int, default (256, 512)
        Tokens of a prompt; those the model cannot take are left out.
    depths : int, default 3
        Depths, from the beginning of the text to its end.
    needles : int, default 2
        Needles at each length and depth.

    Notes
    -----
    Question: Which heads find a needle in unrelated text while the model says it?

    Assumes: Greedy decoding, and that a head whose largest weight lies on the token that is said
    took part in saying it.

    Pitfalls: A model that cannot do the task gets no scores, which says nothing about its heads.
    Few trials at few depths make wide intervals. It is attention, not cause: disable the heads to
    see whether the answer goes.

    Cost: A prompt of each length, depth and needle, read once and answered token by token.
    """

    lengths: tuple[int, ...] = (256, 512)
    depths: int = 3
    needles: int = 2

    name: ClassVar[str] = "retrieval"
    title: ClassVar[str] = "Retrieval: heads that find a needle in unrelated text"
    paper: ClassVar[Paper] = Paper("wu2024", "Retrieval score")
    units: ClassVar[Mapping[str, str]] = {
        "share of the needle": "emitted",
        "share of trials": "passed",
    }
    typical_passes: ClassVar[float] = 350.0

    def __post_init__(self) -> None:
        for name in ("depths", "needles"):
            at_least(name, getattr(self, name), 1)
        lengths = self.lengths
        is_sequence = not isinstance(lengths, int | str)
        if not is_sequence or not lengths or not all(_is_length(length) for length in lengths):
            raise ParameterError(
                f"`lengths` must be whole numbers of at least {SHORTEST} tokens; it is {lengths!r}."
            )

    def unsupported_reason(self, shape: Shape) -> str | None:
        if not shape.causal or shape.extras.get("lm_kind") != "causal":
            return "the model has no language-modelling head, so it cannot answer"
        if shape.extras.get("reads_source"):
            return "the decoder reads a source beside its own text, and a needle in a text has none"
        return None

    def smallest(self) -> tuple[Self, float]:
        shortest = min(self.lengths)
        n_tokens = sum(self.lengths) * self.depths * self.needles
        return replace(self, lengths=(shortest,), depths=1, needles=1), n_tokens / shortest

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        max_prompt = model.max_length - max_answer_tokens(model)
        lengths = [length for length in self.lengths if length <= max_prompt]
        if not lengths:
            raise ModelError(
                f"{model.name} takes {model.max_length} tokens, too few for a needle in "
                f"{min(self.lengths)} tokens of text; set retrieval.lengths."
            )
        hay = unrelated_text(model, bench.rows, max(lengths))
        depths = np.linspace(0, 1, self.depths) if self.depths > 1 else np.array([0.5])
        units: list[tuple[str, Trial]] = []
        needles = []
        for length in lengths:
            for place, depth in enumerate(depths):
                for number in range(self.needles):
                    # Each trial has another needle: trials with the same one are one unit.
                    needle = needle_number(len(units))
                    trial = make_trial(model, hay, length, float(depth), needle)
                    units.append((f"trial-{length}-{place}-{number}", trial))
                    needles.append(needle)
        emitted_shares = []
        trial_scores = []
        trials = current().run_units(bench.store, partial(run_trial, model), units)
        for checkpoint in raise_failures(trials):
            emitted_shares.append(float(checkpoint.arrays["emitted"]))
            trial_scores.append(checkpoint.arrays["score"])
            bench.progress("trials", len(trial_scores), len(units))

        emitted = np.array(emitted_shares).reshape(len(lengths), len(depths), self.needles)
        scores = np.stack(trial_scores)
        has_passed = ~np.isnan(scores).any((1, 2))
        n_passed = int(has_passed.sum())
        needles_passed = np.array(needles)[has_passed].tolist()
        moments = Moments(bench.shape.layers, bench.shape.heads)
        if n_passed:
            moments.batch_units = needles_passed
            moments.add(torch.as_tensor(scores[has_passed]))
        p_value = moments.p_above(RETRIEVAL_SCORE)
        variables: dict[str, Any] = mean_variables(
            "score", HEADS, moments, units="share of the needle"
        )
        if len(set(needles_passed)) > 1:
            tokens = mean_needle_tokens([trial for _, trial in units])
            low, high = score_interval(scores[has_passed], needles_passed, tokens)
            variables["score_low"].values = low.astype(np.float32)
            variables["score_high"].values = high.astype(np.float32)
        for end in ("low", "high"):
            variables[f"score_{end}"].attrs["over"] = "needles"
        variables |= {
            "score_p": (HEADS, p_value),
            "score_p_adjusted": (HEADS, holm(p_value)),
            "emitted": (("length", "depth"), emitted.mean(-1)),
            "passed": (("length", "depth"), (emitted >= PASSED).mean(-1)),
        }
        coords = layer_head_coords(bench.shape) | {"length": lengths, "depth": depths}
        attrs = {
            "trials": len(units),
            "trials_passed": n_passed,
            "needles": len(set(needles)),
            "needles_passed": len(set(needles_passed)),
        }
        return xr.Dataset(variables, coords, attrs)

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["score_p_adjusted"] < SIGNIFICANCE_LEVEL

    def summary(self, dataset: xr.Dataset) -> list[str]:
        attrs = dataset.attrs
        passed = (
            f"{attrs['trials_passed']} of {attrs['trials']} trials passed (half of the needle or "
            "more was said)"
        )
        if not attrs["trials_passed"]:
            return [f"{passed}: the model cannot do this task, and no head is scored"]
        score = dataset["score"].values
        n_significant = int((dataset["score_p_adjusted"] < SIGNIFICANCE_LEVEL).sum())
        highest = format_heads(score, ranked_heads(score)[:5])
        if attrs.get("needles_passed", attrs["trials_passed"]) < 2:
            passed += "; with one needle there is no interval and no test"
        return [
            passed,
            f"{n_significant} heads score over {RETRIEVAL_SCORE:g} (corrected p < "
            f"{SIGNIFICANCE_LEVEL:g}); highest: {highest}",
        ]


def score_interval(
    scores: np.ndarray, needles: Sequence[int], tokens: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % interval of a mean score over needles: Wilson's, with the effective number of
    tokens.

    Most heads score nothing in most trials, where Student's t has no width: of heads that score 1 %
    its interval holds the truth in half of the draws.

    Parameters
    ----------
    scores : array
        `[trial, ...]`
    needles : sequence of int
        The needle of each trial; trials that share one are one unit.
    tokens : float
        How many tokens a needle has on average.
    """
    _, unit_of_trial = np.unique(np.asarray(needles), return_inverse=True)
    hits = sum_by_unit(scores * tokens, unit_of_trial)
    tries = sum_by_unit(np.full(scores.shape, tokens), unit_of_trial)
    return share_interval(hits, tries)


def _is_length(length: object) -> bool:
    return isinstance(length, int) and length >= SHORTEST
