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
from headwise.analyses.nulls import (
    RandomNull,
    apply_excess_null,
    excess_p_values,
    significant_excess,
)
from headwise.analyses.summaries import align_columns, top_heads
from headwise.core.errors import ParameterError
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.view import Layer
from headwise.stats.accumulators import Moments, State, Sums
from headwise.stats.corrections import holm
from headwise.text.encode import Batch

FIRST_ROW = "features first"  # the row of the cls token, if there is one
DIMS = ("layer", "head", "feature")
ROUNDING = 1e-5  # an excess below this is rounding
REACH = 2  # a token is compared with this many neighbours on either side


@dataclass(frozen=True)
class Features(RandomNull, ItemObserver):
    """Measure the attention that tokens of a feature receive.

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
      which attends to token 0 alone has 0, as has a uniform one. `p_value`: one-tailed z-test of
      `excess > 0`; `p_adjusted`: by Holm over heads × features;
    - `random_excess`, `random_bound[feature]`: the mean excess of heads of random-weights models of
      the same shape, as sharp as this one, on the same inputs, and what, at 0.05, none of their
      heads passes; `above_random`: `excess − random_bound`;
    - `stands_out`: `p_adjusted < 0.05`, 30 inputs or more, an excess of `margin` or more and above
      `random_bound`: the condition for a head that attends to the feature.

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
        Smallest excess of a head that stands out, in multiples of what uniform attention gives a
        token.
    random_models : int, optional
        Random-weights models beside the model. By default one to four, so many that they have 144
        heads, and none for models of more than 500 million parameters; 0 for none.

    Notes
    -----
    Question: Which heads attend to nouns, verbs, negation or separators more than to the words
    around them?

    Assumes: Parts of speech and relations are right, or come from a parser that is good enough.

    Pitfalls: `attention` is the largest over the tokens of a feature, as in the paper: it is high
    for frequent features by chance, so compare it with `uniform`; whether a head attends to the
    feature is what `excess` and `stands_out` say. A head may prefer a place in the sentence where
    such words stand.

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
    unmatched_reason: ClassVar[str] = "no token of this type in the corpus"

    def __post_init__(self) -> None:
        if not 0 <= self.margin < float("inf"):
            raise ParameterError(f"`margin` must be a number of at least 0; it is {self.margin!r}.")
        self.check_random_models()
        self.chosen()

    def chosen(self) -> tuple[Feature, ...]:
        """Return the features to compute."""
        return choose_items("feature", self.features, known_features() | parse_features(self.extra))

    def missing_items(self, shape: Shape) -> dict[str, str]:
        reasons = super().missing_items(shape)
        if shape.causal:
            reasons["from_cls"] = "the first token of a causal model sees only itself"
        elif "cls" not in shape.token_types:
            reasons["from_cls"] = "the tokenizer has no cls token"
        return reasons

    # --- the pass ---------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        n_features = len(self.chosen())
        by_head = (shape.layers, shape.heads, n_features)
        return State(
            attention=Moments(*by_head),
            uniform=Moments(shape.layers, n_features),
            from_cls=Moments(*by_head),  # only the last layer is filled and shown
            excess=Moments(*by_head),
            first=Moments(n_features),
            left_out=Sums(n_features),
        )

    def request(self, batch: Batch) -> StatsRequest:
        first_row = torch.zeros(1, dtype=torch.int64, device=batch.device)
        return StatsRequest(rows={FIRST_ROW: first_row}, received=True, uniform=True)

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        assert answers.received is not None
        assert answers.uniform is not None
        assert answers.uniform.received is not None
        first_row_weights, _ = answers.rows[FIRST_ROW]
        return {
            "received": answers.received,
            "even": answers.uniform.received,
            "first": first_row_weights[:, :, 0],
        }

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        features = self.chosen()
        masks = batch.remember(("features", features), lambda: feature_masks(batch, features))
        contrast = batch.remember(
            ("features around", features), lambda: neighbour_contrasts(batch, masks)
        )
        received = sums["received"].double()
        length = batch.lengths[:, None, None].double()
        where = (layer.layer,)
        state.moments("attention").add(max_of_feature(received / length, masks), where)
        uniform = max_of_feature(sums["even"].double() / length, masks)[:, 0]
        state.moments("uniform").add(uniform, where)
        has_neighbours = contrast.any(-1)[:, None]
        excess = received @ contrast.transpose(1, 2)
        state.moments("excess").add(excess.masked_fill(~has_neighbours, torch.nan), where)

        has_feature = masks.any(-1)
        if layer.layer == 0:
            state.sums("left_out").add((~has_feature).sum(0))
            first_token_has_it = masks[:, :, 0].double()
            state.moments("first").add(first_token_has_it.masked_fill(~has_feature, torch.nan))
        last_layer = state.moments("from_cls").count.shape[0] - 1
        if layer.layer == last_layer:
            begins_with_cls = batch.cls[:, 0, None, None]
            from_first = max_of_feature(sums["first"].double(), masks)
            state.moments("from_cls").add(
                from_first.masked_fill(~begins_with_cls, torch.nan), where
            )

    # --- the result -------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        features = self.chosen()
        units = "share of attention"
        variables = mean_variables("attention", DIMS, state.moments("attention"), units=units)
        variables |= mean_variables(
            "uniform", ("layer", "feature"), state.moments("uniform"), units=units
        )
        variables |= self._from_cls_variables(state, shape)
        variables |= mean_variables(
            "excess", DIMS, state.moments("excess"), units="times uniform attention"
        )
        variables |= mean_variables(
            "first",
            ("feature",),
            state.moments("first"),
            units=units,
            long_name="attention of a head that attends to token 0 alone",
        )
        variables |= self._tests(state.moments("excess"))
        variables["stands_out"] = significant_excess(variables, self.margin)
        left_out = state.sums("left_out").total.numpy().astype(np.int64)
        variables["inputs_left_out"] = xr.Variable(("feature",), left_out)

        inputs_per_feature = variables["attention_n"].values.reshape(-1, len(features)).max(0)
        matched_nothing = self.matched_nothing(inputs_per_feature, shape)
        has_inputs = left_out.any()
        if matched_nothing and not inputs_per_feature.any() and has_inputs:
            raise ParameterError(
                "No token of the corpus has any of the features "
                f"{', '.join(matched_nothing)}; check `features` and `extra`, or use another "
                "corpus."
            )
        coords = layer_head_coords(shape) | {
            "feature": np.array([feature.name for feature in features]),
            "about": ("feature", np.array([feature.about for feature in features])),
        }
        attrs = {"matched_nothing": ", ".join(matched_nothing), "random_models": 0}
        return xr.Dataset(variables, coords=coords, attrs=attrs)

    def _from_cls_variables(self, state: State, shape: Shape) -> dict[str, xr.Variable]:
        """Return the last layer of `from_cls`; NaN for causal models."""
        of_layers = mean_variables(
            "from_cls", DIMS, state.moments("from_cls"), units="share of attention"
        )
        variables = {}
        for name, variable in of_layers.items():
            values = variable.values[-1]
            if shape.causal:
                is_count = name.endswith("_n")
                values = np.full_like(values, 0 if is_count else np.nan)
            variables[name] = xr.Variable(("head", "feature"), values, variable.attrs)
        return variables

    def _tests(self, excess: Moments) -> dict[str, xr.Variable]:
        """Test whether the excess is above zero."""
        p_value = excess_p_values(excess, ROUNDING)
        return {
            "p_value": xr.Variable(DIMS, p_value, {"long_name": "one-tailed z-test of excess > 0"}),
            "p_adjusted": xr.Variable(
                DIMS,
                holm(p_value),
                {"long_name": "p_value corrected over heads and features (holm)"},
            ),
        }

    # --- beside random-weights models, and the summary --------------------------------------------

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        # What a token receives may be most of the attention there is: a heavy tail.
        return apply_excess_null(
            dataset, random_results, self.margin, "feature", tail="exponential"
        )

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["stands_out"]

    def summary(self, dataset: xr.Dataset) -> list[str]:
        rows = []
        counts = []
        for name in map(str, dataset["feature"].values):
            of_feature = dataset.sel(feature=name)
            if of_feature["attention"].notnull().any():
                uniform = float(of_feature["uniform"].mean())
                heads = top_heads(of_feature, "attention", form=".3f")
                rows.append((name, heads, f"uniform attention {uniform:.3f}"))
            n_significant = int(of_feature["stands_out"].sum())
            if n_significant:
                counts.append(f"{name} {n_significant}")
        conditions = (
            f"{self.margin:g} times uniform attention or more over the words around, p < 0.05 "
            "corrected"
        )
        if dataset.attrs["random_models"]:
            conditions += ", above random heads of the same shape"
        return [
            "Heads that attend most to each feature:",
            *align_columns(rows),
            f"Heads that stand out ({conditions}; excluding token 0): {', '.join(counts) or 'none'}",
        ]


def max_of_feature(values: Tensor, masks: Tensor) -> Tensor:
    """Return the largest of `values[example, head, token]` over the tokens of each feature,
    `[example, head, feature]`; NaN if there are none."""
    largest = torch.where(masks[:, None], values[:, :, None], -torch.inf).amax(-1)
    return torch.where(largest.isinf(), torch.nan, largest)


def neighbour_contrasts(batch: Batch, masks: Tensor) -> Tensor:
    """Return weights `[example, feature, token]` that contrast tokens with their neighbours.

    The weighted sum of an input's values is that of the feature's tokens minus that of the tokens
    around them, mean over tokens; 0 throughout where no token has such neighbours."""
    mask_array = masks.cpu().numpy()
    contrasts = np.zeros(mask_array.shape)
    for number, place in zip(*np.nonzero(mask_array.any(-1)), strict=True):
        has_feature = mask_array[number, place]
        length = len(batch.rows[number])
        neighbours: dict[int, list[int]] = {}
        for token in np.flatnonzero(has_feature).tolist():
            around = _neighbours(token, has_feature, length)
            if token > 0 and around:
                neighbours[token] = around
        for token, around in neighbours.items():
            contrasts[number, place, token] += 1 / len(neighbours)
            contrasts[number, place, around] -= 1 / len(neighbours) / len(around)
    return torch.from_numpy(contrasts).to(masks.device)


def _neighbours(token: int, has_feature: np.ndarray, length: int) -> list[int]:
    """Return the tokens around one that do not have the feature and are not token 0.

    As many before as behind if possible: what a token receives changes along an input, most of all
    in a decoder."""

    def is_free(position: int) -> bool:
        return 0 < position < length and not has_feature[position]

    on_both_sides = []
    for distance in range(1, REACH + 1):
        if is_free(token - distance) and is_free(token + distance):
            on_both_sides += [token - distance, token + distance]
    if on_both_sides:
        return on_both_sides
    return [position for position in range(token - REACH, token + REACH + 1) if is_free(position)]


def feature_masks(batch: Batch, features: tuple[Feature, ...]) -> Tensor:
    """Return bool `[example, feature, token]`: the same for every layer."""
    masks = torch.zeros(len(batch), len(features), batch.ids.shape[1], dtype=torch.bool)
    for number, row in enumerate(batch.rows):
        for place, feature in enumerate(features):
            masks[number, place, : len(row)] = torch.from_numpy(feature.tokens(row))
    return masks.to(batch.device)
