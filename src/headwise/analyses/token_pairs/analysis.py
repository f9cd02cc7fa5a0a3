"""Attention between two types of words, against matched pairs of other words (Kovaleva et al. 2019,
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
from headwise.analyses.nulls import (
    RandomNull,
    apply_excess_null,
    excess_p_values,
    significant_excess,
)
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
from headwise.text.encode import Batch

PAIRS = "token pairs"
PARTNERS = "token pairs' partners"
DIMS = ("layer", "head", "pair")
SCORES = ("attention", "pair_mean", "expected", "excess")
ROUNDING = 1e-6  # a difference of weights below this is rounding


@dataclass(frozen=True)
class TokenPairAttention(RandomNull, ItemObserver):
    """Measure the weights between two types of words of a sentence.

    Over all pairs of pieces (i, j) of an input that are of the type and that the head may see:

    - `attention[layer, head, pair]`: the largest `A[i, j]`, then the mean over inputs; `pair_mean`:
      the mean of `A[i, j]`, then the mean over inputs;
    - `expected`: the mean, over the same pairs, of the mean weight of matched pairs: pairs of
      ordinary tokens of this input at the same offset `j − i` that are not of the type, with words
      of the same parts of speech at both ends; where there are none, with the same part of speech
      at j; else (or without parts of speech) any; where all pairs at this offset are of the type,
      these. Where it is more, uniform attention in its row plus what they have above uniform
      attention in theirs (a decoder's early rows have few keys). `excess`: `pair_mean − expected`,
      input by input: what the type adds to distance and part of speech. Such words are often
      neighbours, so a head that attends to the next token has a high `attention`, but no excess;
    - `matched[pair]`: the share of pairs with such partners of the same parts of speech at both
      ends;
    - `p_value`: one-tailed z-test of `excess > 0`; `p_adjusted` corrected over heads × pairs;
      `count[pair]`: pairs of tokens; `inputs_left_out[pair]`: inputs without one;
    - `random_excess`, `random_bound[pair]`: the mean excess of heads of random-weights models of
      the same shape, as sharp as this one, on the same inputs (they keep words, places and
      distances; only the training is missing), and what, at 0.05, none of their heads passes;
      `above_random`: `excess − random_bound`;
    - `stands_out`: `p_adjusted < 0.05`, 30 inputs or more, an excess of `margin` or more and above
      `random_bound`: the condition for a head of this type.

    All means have `_n`, `_low`, `_high`. Attribute `matched_nothing`: types of which the corpus has
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
        Smallest excess of a head that stands out.
    random_models : int, optional
        Random-weights models beside the model. By default one to four, so many that they have 144
        heads, and none for models of more than 500 million parameters; 0 for none.

    Notes
    -----
    Question: Which heads attend between two types of words (verb and subject, pronoun and noun)
    beyond distance and part of speech?

    Assumes: Trees and parts of speech are right.

    Pitfalls: A head on the previous token has a high `attention` for words that are neighbours:
    read `excess`. Where a type has few matched pairs (`matched`), the comparison is with any pair
    at that distance. Weights between pieces of long words count piece by piece.

    Cost: The pass of the model, and a pass of one to four random-weights models on the same inputs.
    """

    pairs: tuple[str, ...] | str = ()
    extra: str = ""
    correction: str = "holm"
    margin: float = 0.05
    random_models: int | None = None

    name: ClassVar[str] = "token_pairs"
    title: ClassVar[str] = "Attention between types of words"
    paper: ClassVar[Paper] = Paper("kovaleva2019", "§4.5")
    units: ClassVar[Mapping[str, str]] = {
        "share of pairs": "matched",
        "attention weight": "random_excess random_bound above_random",
    }
    budget: ClassVar[int | None] = 1000
    item_dim: ClassVar[str] = "pair"
    unmatched_reason: ClassVar[str] = "no token pairs of this type in the corpus"

    def __post_init__(self) -> None:
        one_of("correction", self.correction, CORRECTIONS)
        if not 0 <= self.margin < 1:
            raise ParameterError(f"`margin` must be at least 0 and below 1; it is {self.margin!r}.")
        self.check_random_models()
        self.chosen()

    def chosen(self) -> tuple[PairType, ...]:
        """Return the pair types to compute."""
        known = known_pairs() | parse_pairs(self.extra, known_features())
        return choose_items("pair", self.pairs, known)

    def _pairs(self, batch: Batch) -> MatchedPairs:
        pair_types = self.chosen()
        return batch.remember(("token_pairs", pair_types), lambda: matched_pairs(batch, pair_types))

    # --- the pass ---------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        n_types = len(self.chosen())
        state = State({name: Moments(shape.layers, shape.heads, n_types) for name in SCORES})
        for name in ("count", "left_out", "matched"):
            state[name] = Sums(n_types)
        return state

    def request(self, batch: Batch) -> StatsRequest:
        matched = self._pairs(batch)
        pairs = {PAIRS: matched.pairs.places, PARTNERS: matched.partners.places}
        return StatsRequest(pairs=pairs, uniform=True)

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        assert answers.uniform is not None
        uniform = answers.uniform.pair_weights
        return {
            "weights": answers.pair_weights[PAIRS],
            "others": answers.pair_weights[PARTNERS],
            "even": uniform[PAIRS],
            "even_others": uniform[PARTNERS],
        }

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        matched = self._pairs(batch)
        pairs = matched.pairs
        weights = sums["weights"].double()
        uniform = sums["even"].double()
        is_visible = sums["even"] > 0
        partner_weights = sums["others"].double()
        partner_uniform = sums["even_others"].double()
        partner_visible = sums["even_others"] > 0
        partner_mean = group_mean(partner_weights, partner_visible, matched.partners)
        expected = partner_mean[matched.partner]
        # A decoder's early rows have few keys to share attention among. There a pair may be as far
        # above uniform attention as its partners are in their rows.
        above_uniform = group_mean(
            partner_weights - partner_uniform, partner_visible, matched.partners
        )
        expected = torch.fmax(expected, above_uniform[matched.partner] + uniform)
        scores = {
            "attention": group_max(weights, is_visible, pairs),
            "pair_mean": group_mean(weights, is_visible, pairs),
            "expected": group_mean(expected, is_visible, pairs),
        }
        scores["excess"] = scores["pair_mean"] - scores["expected"]
        n_types = len(self.chosen())
        for name, values in scores.items():
            by_type = values.reshape(len(batch), n_types, -1).transpose(1, 2)
            state.moments(name).add(by_type, (layer.layer,))
        if layer.layer == 0:
            counts = torch.bincount(pairs.group, minlength=pairs.groups).view(len(batch), n_types)
            state.sums("count").add(counts.sum(0))
            state.sums("left_out").add((counts == 0).sum(0))
            same_pos = torch.bincount(
                pairs.group, weights=matched.same.double(), minlength=pairs.groups
            )
            state.sums("matched").add(same_pos.view(len(batch), n_types).sum(0))

    # --- the result -------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        count = state.sums("count").total.numpy().astype(np.int64)
        left_out = state.sums("left_out").total.numpy().astype(np.int64)
        matched_nothing = self.matched_nothing(count, shape)
        has_inputs = left_out.any()
        if matched_nothing and not count.any() and has_inputs:
            raise ParameterError(
                f"The corpus has no pair of any of the types {', '.join(matched_nothing)}; "
                "check `pairs` and `extra`, or use another corpus."
            )
        variables: dict[str, xr.Variable] = {}
        for name in SCORES:
            variables |= mean_variables(name, DIMS, state.moments(name), units="attention weight")
        variables |= self._tests(state.moments("excess"))
        variables["stands_out"] = significant_excess(variables, self.margin)
        variables["count"] = xr.Variable(("pair",), count, {"long_name": "pairs of tokens"})
        variables["inputs_left_out"] = xr.Variable(("pair",), left_out)
        variables["matched"] = xr.Variable(
            ("pair",),
            share(state.sums("matched").total.numpy(), count),
            {"long_name": "share of pairs with matched pairs of the same parts of speech"},
        )
        coords = layer_head_coords(shape)
        coords["pair"] = np.array([pair_type.name for pair_type in self.chosen()])
        attrs = {"matched_nothing": ", ".join(matched_nothing), "random_models": 0}
        return xr.Dataset(variables, coords=coords, attrs=attrs)

    def _tests(self, excess: Moments) -> dict[str, xr.Variable]:
        """Test whether the excess is above zero."""
        p_value = excess_p_values(excess, ROUNDING)
        p_adjusted = correct(p_value, self.correction)
        return {
            "p_value": xr.Variable(DIMS, p_value, {"long_name": "one-tailed z-test of excess > 0"}),
            "p_adjusted": xr.Variable(
                DIMS,
                p_adjusted,
                {"long_name": f"p_value corrected over heads and pairs ({self.correction})"},
            ),
        }

    # --- beside random-weights models, and the summary --------------------------------------------

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        return apply_excess_null(dataset, random_results, self.margin, "pair")

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["stands_out"]

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for name in map(str, dataset["pair"].values):
            of_type = dataset.sel(pair=name)
            excess = of_type["excess"].transpose("layer", "head").values
            ranked = ranked_heads(excess)
            if not ranked:
                continue
            best = ranked[0]
            text = f"{name}: {head_name(*best)} +{excess[best]:.2f} over matched pairs"
            if "random_bound" in of_type:
                text += f", random heads below +{float(of_type['random_bound']):.2f}"
            n_significant = int(of_type["stands_out"].sum())
            lines.append(f"{text}; {n_significant} heads stand out")
        return lines
