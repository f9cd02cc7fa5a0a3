"""The random model as a standing check: whatever an analysis calls a head must vanish on random
weights."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats as scipy_stats

from headwise.analyses.contract import Analysis, make_analysis
from headwise.analyses.frames.analysis import Frames
from headwise.core.labels import head_name
from headwise.models import HeadModel
from headwise.run.options import RunOptions
from headwise.run.runner import RunCallbacks, run_analyses
from headwise.testing.models import Size, blank_model
from headwise.testing.vocabulary import make_vocabulary
from headwise.text import Corpus
from headwise.text.demo import demo_examples
from headwise.text.example import Example

TESTED = ("roles", "frames", "token_pairs", "features", "dependency", "coreference", "patterns")
OF_DECODERS = (
    "induction",
    "sinks",
    "circuits",
    "logits",
)  # `retrieval` says nothing of a model that fails its task
PARAMETERS = {
    "frames": {"exclude": "links"}
}  # few sentences of the built-in corpus have no other link
UNLUCKY = 0.01  # so rarely may a test that holds its level be refused


@dataclass(frozen=True, slots=True)
class RandomRuns:
    """Which random-weights models are run: one for each seed and gain.

    Parameters
    ----------
    seeds : sequence of int, default (0, 1, 2)
        A model each.
    gains : sequence of float, default (1, 6)
        What query and key weights are multiplied by: 1 as transformers draws them, where attention
        is near uniform; 6, where it is far from that.
    causal : bool, default False
        GPT-2 instead of BERT.
    layers, heads, d_head : int, default 3, 4, 32
        Their size.
    """

    seeds: Sequence[int] = (0, 1, 2)
    gains: Sequence[float] = (1.0, 6.0)
    causal: bool = False
    layers: int = 3
    heads: int = 4
    d_head: int = 32


def random_calls(
    analyses: Sequence[str | Analysis] | None = None,
    examples: Sequence[Example] | None = None,
    runs: RandomRuns = RandomRuns(),  # noqa: B008  (frozen)
) -> pd.DataFrame:
    """What analyses call the heads of random-weights models.

    Parameters
    ----------
    analyses : sequence of str or Analysis, optional
        By name or made; those of headwise that test heads (of a decoder, those for decoders too) by
        default.
    examples : sequence of Example, optional
        The corpus; by default the first 40 of the built-in one and its short sentences with frames.
    runs : RandomRuns, optional
        The models.

    Returns
    -------
    DataFrame
        One row for each analysis and run: `analysis`, `gain`, `seed`, `heads`, `called` (how many
        heads are called anything after correction) and `what`, the first of it.
    """
    if analyses is None:
        analyses = (*TESTED, *(OF_DECODERS if runs.causal else ()))
    made = [make_analysis(a, PARAMETERS.get(a, {})) if isinstance(a, str) else a for a in analyses]
    given = level_examples() if examples is None else list(examples)
    vocabulary = make_vocabulary(
        sorted({w for e in given for w in e.all_words}), None, {}, {}, runs.causal
    )
    longest = 2 * max(len(e.all_words) for e in given) + 8
    width = runs.heads * runs.d_head
    size = Size(runs.layers, runs.heads, width, 2 * width, longest)
    rows = []
    for gain in runs.gains:
        for seed in runs.seeds:
            module = blank_model(vocabulary, size, runs.causal, seed)
            sharpen_weights(module, gain)
            model = HeadModel.open(module, tokenizer=vocabulary.tokenizer)
            with tempfile.TemporaryDirectory() as folder:
                corpus, options = (
                    Corpus.from_examples(given, "levels"),
                    RunOptions(full=True, seed=seed),
                )
                quiet = RunCallbacks(note=lambda _: None)
                atlas = run_analyses(model, corpus, made, folder, options, quiet)
            for analysis in made:
                if (
                    analysis.name in atlas
                    and (called := analysis.significant_heads(atlas[analysis.name])) is not None
                ):
                    of_heads = called.any(
                        [dim for dim in called.dims if dim not in ("layer", "head")]
                    )
                    rows.append(
                        (
                            analysis.name,
                            gain,
                            seed,
                            of_heads.size,
                            int(of_heads.sum()),
                            _first(called),
                        )
                    )
    return pd.DataFrame(rows, columns=["analysis", "gain", "seed", "heads", "called", "what"])


def level_examples() -> list[Example]:
    """Examples of the built-in corpus on which every analysis that tests heads has 30 inputs or
    more."""
    everything = demo_examples()
    wanted = make_analysis("frames", PARAMETERS["frames"])
    assert isinstance(wanted, Frames)
    short = [e for e in everything[40:] if len(e.all_words) <= wanted.max_words and e.frames]
    return everything[:40] + short


def check_random_models(calls: pd.DataFrame, level: float = 0.05) -> None:
    """Refuse calls (see `random_calls`) in which an analysis calls a random head anything in more
    runs than its level allows, given how many there were.

    Raises AssertionError that says which, and what it called them.
    """
    for name, own in calls.groupby("analysis", sort=False):
        said = int((own["called"] > 0).sum())
        chance = float(scipy_stats.binom.sf(said - 1, len(own), level))
        told = "; ".join(own.loc[own["called"] > 0, "what"].head(3))
        assert chance >= UNLUCKY, (
            f"{name} calls heads of {said} of {len(own)} random-weights models something: {told}"
        )


def sharpen_weights(module: Any, gain: float) -> None:
    """Multiply the query and key weights of a BERT or GPT-2 by a factor."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if ".query." in name or ".key." in name:
                parameter.mul_(gain)
            elif "attn.c_attn" in name:
                parameter[..., : parameter.shape[-1] * 2 // 3].mul_(gain)


def _first(called: Any) -> str:
    """The first thing that is called anything, in words."""
    at = next(iter(np.argwhere(called.values)), None)
    if at is None:
        return ""
    place = dict(zip(called.dims, map(int, at), strict=True))
    items = [
        str(called[dim].values[where])
        for dim, where in place.items()
        if dim not in ("layer", "head")
    ]
    return " ".join([head_name(place["layer"], place["head"]), *items])
