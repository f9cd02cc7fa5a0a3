"""Attention between two kinds of words, against what the distance gives anyway (Kovaleva et al. 2019, §4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Paper, Shape, layer_head_coords, mean_variables, one_of
from headwise.analyses.features.predicates import known_features
from headwise.analyses.headlines import LEVEL, aligned, top_heads
from headwise.analyses.items import ItemObserver, choose
from headwise.analyses.token_pairs.pairs import Pair, known_pairs, parse_pairs
from headwise.core.errors import ParameterError
from headwise.models.ask import sum_by_offset
from headwise.models.picks import TokenPairs, group_max, group_mean, pick, token_pairs
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import Moments, State, Sums
from headwise.stats.corrections import CORRECTIONS, correct
from headwise.stats.tests import z_test
from headwise.text.encode import Batch

DIMS = ("layer", "head", "pair")
SCORES = ("attention", "pair_mean", "expected", "excess")
ROUNDING = 1e-6  # a difference of weights below this is rounding


@dataclass(frozen=True)
class TokenPairAttention(ItemObserver):
    """Weights between two kinds of words of a sentence.

    Over all pairs of pieces (i, j) of an input that are of the kind and that the head may see:

    - `attention[layer, head, pair]`: the largest `A[i, j]`, then the mean over inputs; `pair_mean`: the mean of
      `A[i, j]`, then the mean over inputs;
    - `expected`: the mean, over the same pairs, of the head's mean weight between ordinary tokens of this input at the
      same offset `j − i`; `excess`: `pair_mean − expected`, input by input: what the kind of word adds to the distance.
      Such words are often neighbours, so a head that looks at the next token has a high `attention`, but no excess;
    - `p_value`: one-tailed z-test of `excess > 0`; `p_adjusted` corrected over heads × pairs; `count[pair]`: pairs of
      tokens; `inputs_left_out[pair]`: inputs without one.

    All means have `_n`, `_low`, `_high`. Attribute `matched_nothing`: kinds of which the corpus has no pair.

    Parameters
    ----------
    pairs : sequence of str or str, optional
        Only these (a string: names with commas between): verb->subject, subject->verb (over nsubj arcs), noun->pronoun,
        pronoun->noun (all of a sentence), and those of `extra`.
    extra : str, optional
        Pairs of your own: `name: A -> B`, or `name: A -> B by RELATION` for words joined by an arc (`down`: A is the
        head; `up`: B is), with `;` between them. A and B are features (noun, verb, ...), `any`, or predicates: `aux:
        upos=AUX -> verb by aux; det: upos=DET -> noun up det`.
    correction : str, default "holm"
        `holm`, `benjamini_hochberg` or `none`.
    """

    pairs: tuple[str, ...] | str = ()
    extra: str = ""
    correction: str = "holm"

    name: ClassVar[str] = "token_pairs"
    title: ClassVar[str] = "Attention between kinds of words"
    paper: ClassVar[Paper] = Paper("kovaleva2019", "§4.5")
    budget: ClassVar[int | None] = 1000
    item_dim: ClassVar[str] = "pair"
    unmatched_reason: ClassVar[str] = "the corpus has no such pair"

    def __post_init__(self) -> None:
        one_of("correction", self.correction, CORRECTIONS)
        self.chosen()

    def chosen(self) -> tuple[Pair, ...]:
        return choose("pair", self.pairs, known_pairs() | parse_pairs(self.extra, known_features()))

    def _pairs(self, batch: Batch) -> TokenPairs:
        kinds = self.chosen()
        return batch.remember(("token_pairs", kinds), lambda: pairs_of_kinds(batch, kinds))

    def start(self, shape: Shape) -> State:
        kinds = len(self.chosen())
        state = State({name: Moments(shape.layers, shape.heads, kinds) for name in SCORES})
        state["count"], state["left_out"] = Sums(kinds), Sums(kinds)
        return state

    def reduce(self, rows: Rows, batch: Batch) -> Mapping[str, Tensor]:
        weights, visible = pick(rows, self._pairs(batch))
        ordinary = batch.real & ~batch.special
        both = (ordinary[:, rows.start : rows.stop, None] & ordinary[:, None])[:, None] & rows.visible
        width = batch.ids.shape[1]
        return {
            "weights": weights,
            "visible": visible,
            "mass": sum_by_offset(rows.weights * both, rows.start, width),
            "pairs": sum_by_offset(both.to(rows.weights.dtype), rows.start, width),
        }

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        pairs = self._pairs(batch)
        weights, present = sums["weights"].double(), sums["visible"] > 0
        offset = pairs.key - pairs.query + batch.ids.shape[1] - 1
        mass, count = sums["mass"].double()[pairs.example, :, offset], sums["pairs"].double()[pairs.example, :, offset]
        usual = mass / count.clamp(min=1)
        scores = {
            "attention": group_max(weights, present, pairs),
            "pair_mean": group_mean(weights, present, pairs),
            "expected": group_mean(usual, present, pairs),
        }
        scores["excess"] = scores["pair_mean"] - scores["expected"]
        kinds = len(self.chosen())
        for name, values in scores.items():
            state.moments(name).add(values.reshape(len(batch), kinds, -1).transpose(1, 2), (layer.layer,))
        if layer.layer == 0:
            held = torch.bincount(pairs.group, minlength=pairs.groups).view(len(batch), kinds)
            state.sums("count").add(held.sum(0))
            state.sums("left_out").add((held == 0).sum(0))

    def headline(self, dataset: xr.Dataset) -> list[str]:
        rows = []
        for name in map(str, dataset["pair"].values):
            one = dataset.sel(pair=name)
            if one["excess"].notnull().any():
                sure = (one["p_adjusted"] < LEVEL).transpose("layer", "head").values
                named = top_heads(one, "excess", form="+.3f", allowed=sure)
                rows.append((name, f"{int(one['count']):,} pairs", f"{int(sure.sum())} heads beyond: {named}"))
        return [f"Attention beyond what is expected there (corrected p < {LEVEL:g}):", *aligned(rows)]

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        variables: dict[str, xr.Variable] = {}
        for name in SCORES:
            variables |= mean_variables(name, DIMS, state.moments(name), units="attention weight")
        excess = state.moments("excess")
        seen = excess.count.numpy()
        mean, variance = np.where(seen > 0, excess.mean.numpy(), np.nan), excess.variance()
        noise = (np.abs(mean) <= ROUNDING) & (np.sqrt(variance) <= ROUNDING)
        p_value = z_test(np.where(noise, 0.0, mean), np.where(noise, 0.0, variance), seen, 0.0).p_value
        adjusted, how = correct(p_value, self.correction), f"p_value corrected over heads and pairs ({self.correction})"
        variables["p_value"] = xr.Variable(DIMS, p_value, {"long_name": "one-tailed z-test of excess > 0"})
        variables["p_adjusted"] = xr.Variable(DIMS, adjusted, {"long_name": how})
        count, left_out = (state.sums(name).total.numpy().astype(np.int64) for name in ("count", "left_out"))
        variables["count"] = xr.Variable(("pair",), count, {"long_name": "pairs of tokens"})
        variables["inputs_left_out"] = xr.Variable(("pair",), left_out)
        nothing = self.matched_nothing(count, shape)
        if nothing and not count.any() and left_out.any():  # inputs there were
            raise ParameterError(
                f"The corpus has no pair of any of the kinds {', '.join(nothing)}; "
                "check `pairs` and `extra`, or give another corpus."
            )
        coords = layer_head_coords(shape) | {"pair": np.array([pair.name for pair in self.chosen()])}
        return xr.Dataset(variables, coords=coords, attrs={"matched_nothing": ", ".join(nothing)})


def pairs_of_kinds(batch: Batch, kinds: tuple[Pair, ...]) -> TokenPairs:
    """All pairs of a batch, one group for each example and kind."""
    rows: list[tuple[int, int, int, int]] = []
    for number, row in enumerate(batch.rows):
        for place, kind in enumerate(kinds):
            group = number * len(kinds) + place
            rows.extend((number, int(i), int(j), group) for i, j in zip(*np.nonzero(kind.matrix(row)), strict=True))
    return token_pairs(rows, np.repeat(np.arange(len(batch)), len(kinds)).tolist(), batch.device)
