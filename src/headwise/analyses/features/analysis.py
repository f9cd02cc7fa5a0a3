"""How much attention nouns, verbs, subjects, negations, special tokens receive (Kovaleva et al.
2019, §4.4-4.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Paper, Shape, layer_head_coords, mean_variables
from headwise.analyses.features.predicates import Feature, known_features, parse_features
from headwise.analyses.items import ItemObserver, choose_items
from headwise.analyses.nulls import RandomNull, apply_excess_null, significant_excess
from headwise.analyses.summaries import align_columns, top_heads
from headwise.core.errors import ParameterError
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.view import Layer
from headwise.stats.accumulators import Moments, State, Sums
from headwise.stats.corrections import holm
from headwise.stats.tests import z_test
from headwise.text.encode import Batch

FIRST = "features first"  # row 0, which is the cls token where there is one
DIMS = ("layer", "head", "feature")
ROUNDING = 1e-5
REACH = 2  # neighbours that a token is compared with, on either side


@dataclass(frozen=True)
class Features(RandomNull, ItemObserver):
    """Attention that tokens of a feature receive.

    For a token t of the feature (every piece is a token), `a(t) = Σ_i A[i, t] / n`; of an input
    with several such tokens the largest; inputs without any are left out; the mean over inputs. A
    uniform head of an encoder gives `1/n`.

    - `attention[layer, head, feature]`: from all tokens, with `attention_n` and a 95 % interval;
      `uniform[layer, feature]`: what uniform attention would give on the same inputs;
    - `from_cls[head, feature]`: in the last layer, from the first token alone, `max_t A[0, t]` (Fig
      7); NaN without a cls token and for causal models;
    - `inputs_left_out[feature]`: inputs without the feature;
    - `first[feature]`: what a head with all its attention on token 0 would give (the sink of many
      models): the share of inputs, of those with the feature, whose token 0 has it;
    - `excess[layer, head, feature]`: `Σ_i A[i, t]` of the feature's tokens minus that of the tokens
      around them (up to two on either side, as many before as behind where that can be, none of the
      feature), the mean over tokens, then over inputs: by how many times what uniform attention
      gives a token it gets more than its neighbours. Token 0 has no part in it, so that a head
      which looks at token 0 alone has 0, as has a uniform one. `p_value`: one-tailed z-test of
      `excess > 0`; `p_adjusted`: by Holm over heads × features;
    - `random_excess`, `random_bound[feature]`: the mean excess of heads of random-weights models of
      the same shape, as sharp as this one, on the same inputs, and what, at 0.05, none of their
      heads passes; `above_random`: `excess − random_bound`;
    - `stands_out`: `p_adjusted < 0.05`, 30 inputs or more, an excess of `margin` or more and above
      `random_bound`: what a head must have to be called one that looks at the feature.

    Attribute `matched_nothing`: features that no token of the corpus has.

    Parameters
    ----------
    features : sequence of str or str, optional
        Only these (a string: names with commas between): noun, verb, pronoun, subject, object,
        negation, cls, sep, punct, and those of `extra`; all by default.
    extra : str, optional
        Features of your own, `name: key=value|value & key!=value`, with `;` between them; keys are
        upos, relation, lemma, form and token. For instance `modal: upos=AUX & lemma=can|may|must;
        proper: upos=PROPN`.
    margin : float, default 0.5
        The least excess of a head that stands out, in multiples of what uniform attention gives a
        token.
    random_models : int, optional
        Random-weights models beside the model. By default one to four, so many that they have 144
        heads, and none for models of more than 500 million parameters; 0 for none.

    Notes
    -----
    Question: Which heads attend to nouns, verbs, negation or separators more than to the words
    around them?

    Assumes: Parts of speech and relations are right, or come from a parser that is good enough.

    Traps: `attention` is the largest over the tokens of a feature, as in the paper: it is high for
    frequent features by chance, so it stands beside `uniform`; whether a head looks at the feature
    is what `excess` and `stands_out` say. A head may like a place in the sentence where such words
    stand.

    Cost: The pass of the model, and a pass of one to four random-weights models on the same inputs.
    """

    features: tuple[str, ...] | str = ()
    extra: str = ""
    margin: float = 0.5
    random_models: int | None = None

    name: ClassVar[str] = "features"
    title: ClassVar[str] = "Attention to linguistic features and special tokens"
    paper: ClassVar[Paper] = Paper("kovaleva2019", "§4.4-4.5, Fig 6-7")
    units: ClassVar[Mapping[str, str]] = {
        "times uniform attention": "random_excess random_bound above_random"
    }
    budget: ClassVar[int | None] = 1000

    item_dim: ClassVar[str] = "feature"
    unmatched_reason: ClassVar[str] = "no token of the corpus is one"

    def __post_init__(self) -> None:
        if not 0 <= self.margin < float("inf"):
            raise ParameterError(f"`margin` must be a number of at least 0; it is {self.margin!r}.")
        self.check_random_models()
        self.chosen()

    def chosen(self) -> tuple[Feature, ...]:
        return choose_items("feature", self.features, known_features() | parse_features(self.extra))

    def missing_items(self, shape: Shape) -> dict[str, str]:
        reasons = super().missing_items(shape)
        if shape.causal:
            reasons["from_cls"] = "the first token of a causal model sees only itself"
        elif "cls" not in shape.token_types:
            reasons["from_cls"] = "the tokenizer has no cls token"
        return reasons

    def start(self, shape: Shape) -> State:
        count = len(self.chosen())
        return State(
            attention=Moments(shape.layers, shape.heads, count),
            uniform=Moments(shape.layers, count),
            from_cls=Moments(
                shape.layers, shape.heads, count
            ),  # only the last layer is filled and shown
            excess=Moments(shape.layers, shape.heads, count),
            first=Moments(count),
            left_out=Sums(count),
        )

    def request(self, batch: Batch) -> StatsRequest:
        return StatsRequest(
            rows={FIRST: torch.zeros(1, dtype=torch.int64, device=batch.device)},
            received=True,
            uniform=True,
        )

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        assert answers.received is not None
        assert answers.uniform is not None
        assert answers.uniform.received is not None
        first = answers.rows[FIRST][0][:, :, 0]
        return {"received": answers.received, "even": answers.uniform.received, "first": first}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        features = self.chosen()
        masks = batch.remember(("features", features), lambda: feature_masks(batch, features))
        length = batch.lengths[:, None, None].double()
        here = (layer.layer,)
        state.moments("attention").add(largest(sums["received"].double() / length, masks), here)
        state.moments("uniform").add(largest(sums["even"].double() / length, masks)[:, 0], here)
        contrast = batch.remember(
            ("features around", features), lambda: neighbour_contrasts(batch, masks)
        )
        excess = sums["received"].double() @ contrast.transpose(1, 2)
        state.moments("excess").add(excess.masked_fill(~contrast.any(-1)[:, None], torch.nan), here)
        if layer.layer == 0:
            state.sums("left_out").add((~masks.any(-1)).sum(0))
            opens_with = masks[:, :, 0].double().masked_fill(~masks.any(-1), torch.nan)
            state.moments("first").add(opens_with)
        if layer.layer == state.moments("from_cls").count.shape[0] - 1:
            opens = batch.cls[:, 0, None, None]
            state.moments("from_cls").add(
                largest(sums["first"].double(), masks).masked_fill(~opens, torch.nan), here
            )

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        chosen = self.chosen()
        dims, units = DIMS, "share of attention"
        variables = mean_variables("attention", dims, state.moments("attention"), units=units)
        variables |= mean_variables(
            "uniform", ("layer", "feature"), state.moments("uniform"), units=units
        )
        for name, variable in mean_variables(
            "from_cls", dims, state.moments("from_cls"), units=units
        ).items():
            values = variable.values[-1]
            if shape.causal:
                values = (
                    np.zeros_like(values) if name.endswith("_n") else np.full_like(values, np.nan)
                )
            variables[name] = xr.Variable(("head", "feature"), values, variable.attrs)
        about = "times uniform attention"
        variables |= mean_variables("excess", dims, state.moments("excess"), units=about)
        told = "attention of a head that looks at token 0 alone"
        variables |= mean_variables(
            "first", ("feature",), state.moments("first"), units=units, long_name=told
        )
        variables |= self._tested(state.moments("excess"))
        variables["stands_out"] = significant_excess(variables, self.margin)
        left_out = state.sums("left_out").total.numpy().astype(np.int64)
        variables["inputs_left_out"] = xr.Variable(("feature",), left_out)
        coords = layer_head_coords(shape) | {
            "feature": np.array([feature.name for feature in chosen]),
            "about": ("feature", np.array([feature.about for feature in chosen])),
        }
        seen = variables["attention_n"].values.reshape(-1, len(chosen)).max(0)
        nothing = self.matched_nothing(seen, shape)
        if nothing and not seen.any() and left_out.any():  # inputs there were
            raise ParameterError(
                f"No token of the corpus is of any of the features {', '.join(nothing)}; "
                "check `features` and `extra`, or give another corpus."
            )
        return xr.Dataset(
            variables,
            coords=coords,
            attrs={"matched_nothing": ", ".join(nothing), "random_models": 0},
        )

    def _tested(self, excess: Moments) -> dict[str, xr.Variable]:
        seen = excess.count.numpy()
        mean, variance = np.where(seen > 0, excess.mean.numpy(), np.nan), excess.variance()
        noise = (np.abs(mean) <= ROUNDING) & (np.sqrt(variance) <= ROUNDING)
        p = z_test(np.where(noise, 0.0, mean), np.where(noise, 0.0, variance), seen, 0.0).p_value
        return {
            "p_value": xr.Variable(DIMS, p, {"long_name": "one-tailed z-test of excess > 0"}),
            "p_adjusted": xr.Variable(
                DIMS, holm(p), {"long_name": "p_value corrected over heads and features (holm)"}
            ),
        }

    # --- beside random-weights models -------------------------------------------------------------

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        # What a token receives may be most of the attention there is: a heavy tail.
        return apply_excess_null(
            dataset, random_results, self.margin, "feature", tail="exponential"
        )

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["stands_out"]

    def summary(self, dataset: xr.Dataset) -> list[str]:
        rows = []
        for name in map(str, dataset["feature"].values):
            one = dataset.sel(feature=name)
            if one["attention"].notnull().any():
                even = float(one["uniform"].mean())
                rows.append(
                    (name, top_heads(one, "attention", form=".3f"), f"even attention {even:.3f}")
                )
        counts = {
            str(name): int(dataset["stands_out"].sel(feature=name).sum())
            for name in dataset["feature"].values
        }
        found = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        least = f"{self.margin:g} times uniform attention or more over the words around, p < 0.05 corrected"
        beside = ", above random heads of the same shape" if dataset.attrs["random_models"] else ""
        out = f"Heads that stand out ({least}{beside}; token 0 left out): {found or 'none'}"
        return ["Heads that attend most to each feature:", *align_columns(rows), out]


def largest(values: Tensor, masks: Tensor) -> Tensor:
    """The largest of `values[example, head, token]` of each feature, `[example, head, feature]`;
    NaN without any."""
    inside = torch.where(masks[:, None], values[:, :, None], -torch.inf).amax(-1)
    return torch.where(inside.isinf(), torch.nan, inside)


def neighbour_contrasts(batch: Batch, masks: Tensor) -> Tensor:
    """`[example, feature, token]`: the sum of an input's values by these weights is that of the
    feature's tokens minus that of the tokens around them, mean over tokens; 0 throughout where no
    token has such neighbours."""
    found = masks.cpu().numpy()
    out = np.zeros(found.shape)
    for number, place in zip(*np.nonzero(found.any(-1)), strict=True):
        own, length = found[number, place], len(batch.rows[number])
        tokens = [
            (int(t), around)
            for t in np.flatnonzero(own)
            if t and (around := _around(int(t), own, length))
        ]
        for t, around in tokens:
            out[number, place, t] += 1 / len(tokens)
            out[number, place, around] -= 1 / len(tokens) / len(around)
    return torch.from_numpy(out).to(masks.device)


def _around(t: int, own: np.ndarray, length: int) -> list[int]:
    """The tokens around one that are none of the feature and not token 0, as many before as behind
    where that can be: what a token receives changes along an input, most of all in a decoder."""
    free = [0 < u < length and not own[u] for u in range(t - REACH, t + REACH + 1)]
    both = [d for d in range(1, REACH + 1) if free[REACH - d] and free[REACH + d]]
    return [t + sign * d for d in both for sign in (-1, 1)] or [
        t - REACH + k for k, is_free in enumerate(free) if is_free
    ]


def feature_masks(batch: Batch, features: tuple[Feature, ...]) -> Tensor:
    """Bool `[example, feature, token]`: the same for every layer."""
    out = torch.zeros(len(batch), len(features), batch.ids.shape[1], dtype=torch.bool)
    for number, row in enumerate(batch.rows):
        for place, feature in enumerate(features):
            out[number, place, : len(row)] = torch.from_numpy(feature.tokens(row))
    return out.to(batch.device)
