"""A check on random weights: an analysis must find no significant heads there."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from scipy import stats as scipy_stats
from torch import Tensor

from headwise.analyses.contract import Analysis, make_analysis
from headwise.analyses.frames.analysis import Frames
from headwise.core.labels import head_name
from headwise.models import HeadModel
from headwise.run.options import RunOptions
from headwise.run.runner import RunCallbacks, run_analyses
from headwise.testing.models import Size, blank_llama, blank_model
from headwise.testing.vocabulary import make_vocabulary
from headwise.text import Corpus
from headwise.text.demo import demo_examples
from headwise.text.example import Example

TESTED = ("roles", "frames", "token_pairs", "features", "dependency", "coreference", "patterns")
# Without `retrieval`, which has no result for a model that fails its task.
OF_DECODERS = ("induction", "sinks", "circuits", "logits", "copy_suppression")

# Few sentences of the built-in corpus have no other link.
PARAMETERS = {"frames": {"exclude": "links"}}


@dataclass(frozen=True, slots=True)
class HeadGain:
    """Factors of query and key weights that differ from head to head within each layer.

    Parameters
    ----------
    first, last : float
        The factor of the first and of the last head of a layer, and evenly between them.
    rising : bool, default False
        Whether heads differ more from layer to layer: in the first layer all have the factor
        `first`, in the last one they go up to `last`.
    """

    first: float
    last: float
    rising: bool = False


# What query and key weights are multiplied by: a number for all layers, one for the first layer and
# one for the last, and evenly between them, or one for each head.
Gain = float | tuple[float, float] | HeadGain

# The probability that a test which holds its level is rejected by chance.
FALSE_ALARM = 0.01


@dataclass(frozen=True, slots=True)
class RandomRuns:
    """Which random-weights models are run: one for each seed and gain.

    Parameters
    ----------
    seeds : sequence of int, default (0, 1, 2)
        One model for each.
    gains : sequence of float, (float, float) or HeadGain, default (1, 6, (1, 8))
        What query and key weights are multiplied by: 1 as transformers draws them, where attention
        is near uniform; 6, where it is far from that; a pair: from the first layer to the last, so
        that layers differ in sharpness; a `HeadGain`: the heads of a layer do.
    causal : bool, default False
        GPT-2 instead of BERT.
    llama : bool, default False
        Llama instead of GPT-2.
    layers, heads, d_head : int, default 3, 4, 32
        Their size.
    """

    seeds: Sequence[int] = (0, 1, 2)
    gains: Sequence[Gain] = (1.0, 6.0, (1.0, 8.0))
    causal: bool = False
    llama: bool = False
    layers: int = 3
    heads: int = 4
    d_head: int = 32


def random_calls(
    analyses: Sequence[str | Analysis] | None = None,
    examples: Sequence[Example] | None = None,
    runs: RandomRuns = RandomRuns(),
) -> pd.DataFrame:
    """Return the significant heads of random-weights models, by analysis.

    Parameters
    ----------
    analyses : sequence of str or Analysis, optional
        Names or analyses; default: those of headwise that test heads.
    examples : sequence of Example, optional
        The corpus; default: 40 examples of the built-in one and its short sentences with frames.
    runs : RandomRuns, optional
        The models.

    Returns
    -------
    DataFrame
        One row for each analysis and run: `analysis`, `gain` (as text), `seed`, `heads`,
        `significant` (how many heads are significant after correction) and `what`, the first of
        them.
    """
    if analyses is None:
        analyses = TESTED
        if runs.causal:
            analyses = (*TESTED, *OF_DECODERS)
    chosen = []
    for item in analyses:
        if isinstance(item, str):
            chosen.append(make_analysis(item, PARAMETERS.get(item, {})))
        else:
            chosen.append(item)
    corpus_examples = level_examples() if examples is None else list(examples)
    corpus = Corpus.from_examples(corpus_examples, "levels")
    quiet = RunCallbacks(note=lambda _: None)
    rows = []
    for gain in runs.gains:
        for seed in runs.seeds:
            model = random_weights_model(corpus_examples, runs, gain, seed)
            options = RunOptions(full=True, seed=seed)
            with tempfile.TemporaryDirectory() as folder:
                atlas = run_analyses(model, corpus, chosen, folder, options, quiet)
            for analysis in chosen:
                if analysis.name not in atlas:
                    continue
                significant = analysis.significant_heads(atlas[analysis.name])
                if significant is None:
                    continue
                item_dims = [dim for dim in significant.dims if dim not in ("layer", "head")]
                by_head = significant.any(item_dims)
                first = _first_significant(significant)
                rows.append(
                    (analysis.name, gain_text(gain), seed, by_head.size, int(by_head.sum()), first)
                )
    columns = ["analysis", "gain", "seed", "heads", "significant", "what"]
    return pd.DataFrame(rows, columns=columns)


def level_examples() -> list[Example]:
    """Return examples of the built-in corpus that give every analysis 30 inputs or more."""
    all_examples = demo_examples()
    frames = make_analysis("frames", PARAMETERS["frames"])
    assert isinstance(frames, Frames)
    examples = all_examples[:40]
    for example in all_examples[40:]:
        if example.frames and len(example.all_words) <= frames.max_words:
            examples.append(example)
    return examples


def check_random_models(calls: pd.DataFrame, level: float = 0.05) -> None:
    """Raise AssertionError if an analysis has significant heads in more random models than its
    level allows.

    Parameters
    ----------
    calls : DataFrame
        The result of `random_calls`.
    level : float, default 0.05
        The share of random models in which any head may be significant.
    """
    for name, runs in calls.groupby("analysis", sort=False):
        has_significant = runs["significant"] > 0
        n_models = int(has_significant.sum())
        probability = float(scipy_stats.binom.sf(n_models - 1, len(runs), level))
        examples = "; ".join(runs.loc[has_significant, "what"].head(3))
        assert probability >= FALSE_ALARM, (
            f"{name} has significant heads in {n_models} of {len(runs)} random-weights models: "
            f"{examples}"
        )


def random_weights_model(
    examples: Sequence[Example], runs: RandomRuns, gain: Gain, seed: int
) -> HeadModel:
    """Return one of the models of `runs`, with a vocabulary of the examples' words."""
    causal = runs.causal or runs.llama
    words = sorted({word for example in examples for word in example.all_words})
    vocabulary = make_vocabulary(words, None, {}, {}, causal)
    max_length = 2 * max(len(example.all_words) for example in examples) + 8
    width = runs.heads * runs.d_head
    size = Size(runs.layers, runs.heads, width, 2 * width, max_length)
    if runs.llama:
        module = blank_llama(vocabulary, size, seed)
    else:
        module = blank_model(vocabulary, size, causal, seed)
    sharpen_weights(module, gain)
    return HeadModel.open(module, tokenizer=vocabulary.tokenizer)


def gain_text(gain: Gain) -> str:
    """Return a gain in words.

    >>> gain_text(1.0), gain_text(6.0), gain_text((1.0, 8.0))
    ('as drawn', '× 6', '× 1 to × 8')
    >>> gain_text(HeadGain(1.0, 8.0))
    '× 1 to × 8 within each layer'
    """
    if isinstance(gain, HeadGain):
        text = f"× {gain.first:g} to × {gain.last:g} within each layer"
        return f"{text}, rising over layers" if gain.rising else text
    if isinstance(gain, tuple):
        return f"× {gain[0]:g} to × {gain[1]:g}"
    return "as drawn" if gain == 1 else f"× {gain:g}"


def gain_factors(gain: Gain, layers: int, heads: int) -> np.ndarray:
    """Return the factor of each head, `[layer, head]`.

    >>> gain_factors(HeadGain(1.0, 3.0, rising=True), layers=2, heads=3).tolist()
    [[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]]
    """
    if isinstance(gain, HeadGain):
        within_layer = np.linspace(0, gain.last - gain.first, heads)
        by_layer = np.linspace(0, 1, layers) if gain.rising else np.ones(layers)
        return gain.first + by_layer[:, None] * within_layer
    first, last = gain if isinstance(gain, tuple) else (gain, gain)
    return np.repeat(np.linspace(first, last, layers)[:, None], heads, axis=1)


def sharpen_weights(module: Any, gain: Gain) -> None:
    """Multiply the query and key weights of a BERT, a GPT-2 or a Llama by the factors of a gain.

    Heads that share a key get the mean of their factors on it, and the rest on their queries: the
    scores of every head are multiplied by the square of its factor.
    """
    config = module.config
    n_heads = config.num_attention_heads
    n_kv_heads = getattr(config, "num_key_value_heads", None) or n_heads
    factors = gain_factors(gain, config.num_hidden_layers, n_heads)
    of_keys = factors.reshape(len(factors), n_kv_heads, -1).mean(-1)
    of_queries = factors * (factors / of_keys.repeat(n_heads // n_kv_heads, axis=1))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            numbers = [int(part) for part in name.split(".") if part.isdigit()]
            if not numbers:
                continue
            layer = numbers[0]
            if ".query." in name or ".q_proj." in name:
                _multiply_rows(parameter, of_queries[layer])
            elif ".key." in name or ".k_proj." in name:
                _multiply_rows(parameter, of_keys[layer])
            elif "attn.c_attn" in name:
                # The columns are those of query, key and value.
                width = parameter.shape[-1] // 3
                of_heads = torch.as_tensor(factors[layer], dtype=parameter.dtype)
                by_column = of_heads.repeat_interleave(width // n_heads)
                parameter[..., : 2 * width].mul_(by_column.repeat(2))


def _multiply_rows(parameter: Tensor, factors: np.ndarray) -> None:
    """Multiply a matrix or a bias, whose heads lie one after another along the rows."""
    of_heads = torch.as_tensor(factors, dtype=parameter.dtype)
    by_row = of_heads.repeat_interleave(len(parameter) // len(of_heads))
    parameter.mul_(by_row.reshape(-1, *[1] * (parameter.ndim - 1)))


def _first_significant(significant: xr.DataArray) -> str:
    """Return the first significant head and item, as text; empty if there is none."""
    places = np.argwhere(significant.values)
    if not len(places):
        return ""
    place = dict(zip(significant.dims, map(int, places[0]), strict=True))
    words = [head_name(place["layer"], place["head"])]
    for dim, number in place.items():
        if dim not in ("layer", "head"):
            words.append(str(significant[dim].values[number]))
    return " ".join(words)
