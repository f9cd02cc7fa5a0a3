"""Retrieval heads: a needle in unrelated text, a question, and who looks at the needle while it is
said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar

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
from headwise.analyses.retrieval.trials import SHORTEST, hay_of, make_trial, said_at_most, try_one
from headwise.analyses.summaries import SIGNIFICANCE_LEVEL, format_heads, ranked_heads
from headwise.core.errors import ModelError, ParameterError
from headwise.core.workers import current, raise_failures
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.stats.tests import mean_above

HEADS = ("layer", "head")
CALLED = 0.1  # the score from which Wu et al. call a head a retrieval head


@dataclass(frozen=True)
class Retrieval(Experiment):
    """Which heads look at a needle in unrelated text while the model says it.

    A sentence of our own is put at several depths into the corpus's text, a question is asked, and
    the model answers greedily. For a needle token that is said, a head scores if its largest weight
    at that step lies on that token in the needle.

    - `score[layer, head]`: share of the needle's tokens scored, mean over the trials in which at
      least half of the needle was said, with count and interval over trials; `score_p`: over
      trials, the mean is no more than 0.1, from which Wu et al. speak of a retrieval head
      (Student's t); `score_p_adjusted`: corrected over heads (Holm);
    - `emitted[length, depth]`: share of the needle said, mean over needles; `passed[length,
      depth]`: share of trials in which at least half was.

    A model that passes no trial cannot do the task: it gets no scores, and `trials_passed` is 0.

    Parameters
    ----------
    lengths : sequence of int, default (256, 512)
        Tokens of a prompt; those the model cannot take are left out.
    depths : int, default 3
        Depths, from the beginning of the text to its end.
    needles : int, default 2
        Needles at each depth, at most four different ones.

    Notes
    -----
    Question: Which heads find a needle in unrelated text while the model says it?

    Assumes: Greedy decoding, and that a head whose largest weight lies on the token that is said
    took part in saying it.

    Traps: A model that cannot do the task gets no scores, which says nothing about its heads. Few
    trials at few depths make wide intervals. It is attention, not cause: disable the heads to see
    whether the answer goes.

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

    def __post_init__(self) -> None:
        for name in ("depths", "needles"):
            at_least(name, getattr(self, name), 1)
        given = self.lengths
        if (
            isinstance(given, int | str)
            or not given
            or any(not isinstance(n, int) or n < SHORTEST for n in given)
        ):
            raise ParameterError(
                f"`lengths` must be whole numbers of at least {SHORTEST} tokens; it is {given!r}."
            )

    def unsupported_reason(self, shape: Shape) -> str | None:
        if not shape.causal or shape.extras.get("lm_kind") != "causal":
            return "the model has no head that predicts the next token, so it cannot answer"
        if shape.extras.get("reads_source"):
            return "the decoder reads a source beside its own text, and a needle in a text has none"
        return None

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        lengths = [
            length for length in self.lengths if length + said_at_most(model) <= model.max_length
        ]
        if not lengths:
            raise ModelError(
                f"{model.name} takes {model.max_length} tokens, too few for a needle in {min(self.lengths)} tokens of "
                "text; set retrieval.lengths."
            )
        hay = hay_of(model, bench.rows, max(lengths))
        depths = np.linspace(0, 1, self.depths) if self.depths > 1 else np.array([0.5])
        found: dict[tuple[int, int, int], Any] = {}
        trials = [*product(lengths, range(len(depths)), range(self.needles))]
        units = (
            (
                f"trial-{length}-{place}-{needle}",
                make_trial(model, hay, length, float(depths[place]), needle),
            )
            for length, place, needle in trials
        )
        made = raise_failures(current().run_units(bench.store, partial(try_one, model), units))
        for trial, piece in zip(trials, made, strict=True):
            found[trial] = piece.arrays
            bench.progress("trials", len(found), len(trials))
        emitted = np.array([float(one["emitted"]) for one in found.values()])
        emitted = emitted.reshape(len(lengths), len(depths), self.needles)
        scores = np.stack([one["score"] for one in found.values()])
        kept = scores[~np.isnan(scores).any((1, 2))]
        moments = Moments(bench.shape.layers, bench.shape.heads)
        if len(kept):
            moments.add(torch.as_tensor(kept))
        variables: dict[str, Any] = mean_variables(
            "score", HEADS, moments, units="share of the needle"
        )
        p = mean_above(kept, CALLED) if len(kept) > 1 else np.full(scores.shape[1:], np.nan)
        variables |= {"score_p": (HEADS, p), "score_p_adjusted": (HEADS, holm(p))}
        variables["emitted"] = (("length", "depth"), emitted.mean(-1))
        variables["passed"] = (("length", "depth"), (emitted >= 0.5).mean(-1))
        coords = layer_head_coords(bench.shape) | {"length": lengths, "depth": depths}
        return xr.Dataset(variables, coords, {"trials": len(found), "trials_passed": len(kept)})

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["score_p_adjusted"] < SIGNIFICANCE_LEVEL

    def summary(self, dataset: xr.Dataset) -> list[str]:
        attrs = dataset.attrs
        line = f"{attrs['trials_passed']} of {attrs['trials']} trials passed (half of the needle or more was said)"
        if not attrs["trials_passed"]:
            return [f"{line}: the model cannot do this task, and no head is scored"]
        score, sure = (
            dataset["score"].values,
            (dataset["score_p_adjusted"] < SIGNIFICANCE_LEVEL).values,
        )
        named = format_heads(score, ranked_heads(score)[:5])
        return [
            line,
            f"{int(sure.sum())} heads score over {CALLED:g} (corrected p < {SIGNIFICANCE_LEVEL:g}); highest: {named}",
        ]
