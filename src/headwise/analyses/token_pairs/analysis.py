"""Attention between two kinds of words, against matched pairs of other words (Kovaleva et al. 2019,
§4.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Paper, Shape, layer_head_coords, mean_variables, one_of
from headwise.analyses.features.predicates import known_features
from headwise.analyses.items import ItemObserver, choose_items
from headwise.analyses.nulls import RandomNull, apply_excess_null, significant_excess
from headwise.analyses.summaries import ranked_heads
from headwise.analyses.token_pairs.matching import MatchedPairs, matched_pairs
from headwise.analyses.token_pairs.pairs import PairType, known_pairs, parse_pairs
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.token_pairs import group_max, group_mean
from headwise.models.view import Layer
from headwise.stats.accumulators import Moments, State, Sums
from headwise.stats.corrections import CORRECTIONS, correct
from headwise.stats.intervals import share
from headwise.stats.tests import z_test
from headwise.text.encode import Batch

PAIRS, PARTNERS = "token pairs", "token pairs' partners"
DIMS = ("layer", "head", "pair")
SCORES = ("attention", "pair_mean", "expected", "excess")
ROUNDING = 1e-6  # a difference of weights below this is rounding


@dataclass(frozen=True)
class TokenPairAttention(RandomNull, ItemObserver):
    """Weights between two kinds of words of a sentence.

    Over all pairs of pieces (i, j) of an input that are of the kind and that the head may see:

    - `attention[layer, head, pair]`: the largest `A[i, j]`, then the mean over inputs; `pair_mean`:
      the mean of `A[i, j]`, then the mean over inputs;
    - `expected`: the mean, over the same pairs, of the mean weight of matched pairs: pairs of
      ordinary tokens of this input at the same offset `j − i` that are not of the kind, with words
      of the same parts of speech at both ends; where there are none, with the same part of speech
      at j; else (or without parts of speech) any; where all pairs at this offset are of the kind,
      these. Where it is more, uniform attention in its row plus what they have above uniform
      attention in theirs (a decoder's early rows have few keys). `excess`: `pair_mean − expected`,
      input by input: what the kind adds to distance and part of speech. Such words are often
      neighbours, so a head that looks at the next token has a high `attention`, but no excess;
    - `matched[pair]`: the share of pairs with such partners of the same parts of speech at both
      ends;
    - `p_value`: one-tailed z-test of `excess > 0`; `p_adjusted` corrected over heads × pairs;
      `count[pair]`: pairs of tokens; `inputs_left_out[pair]`: inputs without one;
    - `random_excess`, `random_bound[pair]`: the mean excess of heads of random-weights models of
      the same shape, as sharp as this one, on the same inputs (they keep words, places and
      distances; only the training is missing), and what, at 0.05, none of their heads passes;
      `above_random`: `excess − random_bound`;
    - `stands_out`: `p_adjusted < 0.05`, 30 inputs or more, an excess of `margin` or more and above
      `random_bound`: what a head must have to be called one for this kind.

    All means have `_n`, `_low`, `_high`. Attribute `matched_nothing`: kinds of which the corpus has
    no pair.

    Parameters
    ----------
    pairs : sequence of str or str, optional
        Only these (a string: names with commas between): verb->subject, subject->verb (over nsubj
        arcs), noun->pronoun, pronoun->noun (all of a sentence), and those of `extra`.
    extra : str, optional
        Pairs of your own: `name: A -> B`, or `name: A -> B by RELATION` for words joined by an arc
        (`down`: A is the head; `up`: B is), with `;` between them. A and B are features (noun,
        verb, ...), `any`, or predicates: `aux: upos=AUX -> verb by aux; det: upos=DET -> noun up
        det`.
    correction : str, default "holm"
        `holm`, `benjamini_hochberg` or `none`.
    margin : float, default 0.05
        The least excess of a head that stands out.
    random_models : int, optional
        Random-weights models beside the model. By default one to four, so many that they have 144
        heads, and none for models of more than 500 million parameters; 0 for none.

    Notes
    -----
    Question: Which heads attend between two kinds of words (verb and subject, pronoun and noun)
    beyond distance and part of speech?

    Assumes: Trees and parts of speech are right.

    Traps: A head on the previous token has a high `attention` for words that are neighbours: read
    `excess`. Where a kind has few matched pairs (`matched`), the comparison is with any pair at
    that distance. Weights between pieces of long words count piece by piece.

    Cost: The pass of the model, and a pass of one to four random-weights models on the same inputs.
    """

    pairs: tuple[str, ...] | str = ()
    extra: str = ""
    correction: str = "holm"
    margin: float = 0.05
    random_models: int | None = None

    name: ClassVar[str] = "token_pairs"
    title: ClassVar[str] = "Attention between kinds of words"
    paper: ClassVar[Paper] = Paper("kovaleva2019", "§4.5")
    units: ClassVar[Mapping[str, str]] = {
        "share of pairs": "matched",
        "attention weight": "random_excess random_bound above_random",
    }
    budget: ClassVar[int | None] = 1000
    item_dim: ClassVar[str] = "pair"
    unmatched_reason: ClassVar[str] = "the corpus has no such pair"

    def __post_init__(self) -> None:
        one_of("correction", self.correction, CORRECTIONS)
        if not 0 <= self.margin < 1:
            raise ParameterError(f"`margin` must be at least 0 and below 1; it is {self.margin!r}.")
        self.check_random_models()
        self.chosen()

    def chosen(self) -> tuple[PairType, ...]:
        return choose_items(
            "pair", self.pairs, known_pairs() | parse_pairs(self.extra, known_features())
        )

    def _pairs(self, batch: Batch) -> MatchedPairs:
        kinds = self.chosen()
        return batch.remember(("token_pairs", kinds), lambda: matched_pairs(batch, kinds))

    def start(self, shape: Shape) -> State:
        kinds = len(self.chosen())
        state = State({name: Moments(shape.layers, shape.heads, kinds) for name in SCORES})
        state["count"], state["left_out"], state["matched"] = Sums(kinds), Sums(kinds), Sums(kinds)
        return state

    def request(self, batch: Batch) -> StatsRequest:
        found = self._pairs(batch)
        return StatsRequest(
            pairs={PAIRS: found.pairs.places, PARTNERS: found.partners.places}, uniform=True
        )

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        assert answers.uniform is not None
        own, even = answers.pair_weights, answers.uniform.pair_weights
        named = {"weights": own[PAIRS], "others": own[PARTNERS]}
        return named | {"even": even[PAIRS], "even_others": even[PARTNERS]}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        found = self._pairs(batch)
        pairs = found.pairs
        weights, present = sums["weights"].double(), sums["even"] > 0
        others, seen = sums["others"].double(), sums["even_others"] > 0
        usual = group_mean(others, seen, found.partners)[found.partner]
        # A decoder's early rows have few keys to share among: as much above uniform as partners are
        # counts as well.
        above = group_mean(others - sums["even_others"].double(), seen, found.partners)[
            found.partner
        ]
        usual = torch.fmax(usual, above + sums["even"].double())
        scores = {
            "attention": group_max(weights, present, pairs),
            "pair_mean": group_mean(weights, present, pairs),
            "expected": group_mean(usual, present, pairs),
        }
        scores["excess"] = scores["pair_mean"] - scores["expected"]
        kinds = len(self.chosen())
        for name, values in scores.items():
            state.moments(name).add(
                values.reshape(len(batch), kinds, -1).transpose(1, 2), (layer.layer,)
            )
        if layer.layer == 0:
            held = torch.bincount(pairs.group, minlength=pairs.groups).view(len(batch), kinds)
            state.sums("count").add(held.sum(0))
            state.sums("left_out").add((held == 0).sum(0))
            same = torch.bincount(pairs.group, weights=found.same.double(), minlength=pairs.groups)
            state.sums("matched").add(same.view(len(batch), kinds).sum(0))

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        variables: dict[str, xr.Variable] = {}
        for name in SCORES:
            variables |= mean_variables(name, DIMS, state.moments(name), units="attention weight")
        excess = state.moments("excess")
        seen = excess.count.numpy()
        mean, variance = np.where(seen > 0, excess.mean.numpy(), np.nan), excess.variance()
        noise = (np.abs(mean) <= ROUNDING) & (np.sqrt(variance) <= ROUNDING)
        p_value = z_test(
            np.where(noise, 0.0, mean), np.where(noise, 0.0, variance), seen, 0.0
        ).p_value
        adjusted, how = (
            correct(p_value, self.correction),
            f"p_value corrected over heads and pairs ({self.correction})",
        )
        variables["p_value"] = xr.Variable(
            DIMS, p_value, {"long_name": "one-tailed z-test of excess > 0"}
        )
        variables["p_adjusted"] = xr.Variable(DIMS, adjusted, {"long_name": how})
        count, left_out = (
            state.sums(name).total.numpy().astype(np.int64) for name in ("count", "left_out")
        )
        variables["count"] = xr.Variable(("pair",), count, {"long_name": "pairs of tokens"})
        variables["inputs_left_out"] = xr.Variable(("pair",), left_out)
        matched = share(state.sums("matched").total.numpy(), count)
        about = "share of pairs with matched pairs of the same parts of speech"
        variables["matched"] = xr.Variable(("pair",), matched, {"long_name": about})
        variables["stands_out"] = significant_excess(variables, self.margin)
        nothing = self.matched_nothing(count, shape)
        if nothing and not count.any() and left_out.any():  # inputs there were
            raise ParameterError(
                f"The corpus has no pair of any of the kinds {', '.join(nothing)}; "
                "check `pairs` and `extra`, or give another corpus."
            )
        coords = layer_head_coords(shape) | {
            "pair": np.array([pair.name for pair in self.chosen()])
        }
        return xr.Dataset(
            variables,
            coords=coords,
            attrs={"matched_nothing": ", ".join(nothing), "random_models": 0},
        )

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        return apply_excess_null(dataset, random_results, self.margin, "pair")

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["stands_out"]

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for name in map(str, dataset["pair"].values):
            one = dataset.sel(pair=name)
            excess = one["excess"].transpose("layer", "head").values
            for place in ranked_heads(excess)[:1]:
                out = int(one["stands_out"].sum())
                beside = (
                    f", random heads below +{float(one['random_bound']):.2f}"
                    if "random_bound" in one
                    else ""
                )
                best = f"{head_name(*place)} +{excess[place]:.2f} over matched pairs{beside}"
                lines.append(f"{name}: {best}; {out} heads stand out")
        return lines
