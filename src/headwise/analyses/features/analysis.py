"""How much attention nouns, verbs, subjects, negations, special tokens receive (Kovaleva et al. 2019, §4.4-4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Paper, Shape, layer_head_coords, mean_variables
from headwise.analyses.features.predicates import Feature, known_features, parse_features
from headwise.analyses.headlines import aligned, top_heads
from headwise.analyses.items import ItemObserver, choose
from headwise.core.errors import ParameterError
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import Moments, State, Sums
from headwise.text.encode import Batch


@dataclass(frozen=True)
class Features(ItemObserver):
    """Attention that tokens of a feature receive.

    For a token t of the feature (every piece is a token), `a(t) = Σ_i A[i, t] / n`; of an input with several such
    tokens the largest; inputs without any are left out; the mean over inputs. A uniform head of an encoder gives `1/n`.

    - `attention[layer, head, feature]`: from all tokens, with `attention_n` and a 95 % interval;
      `uniform[layer, feature]`: what uniform attention would give on the same inputs;
    - `from_cls[head, feature]`: in the last layer, from the first token alone, `max_t A[0, t]` (Fig 7); NaN without a
      cls token and for causal models;
    - `inputs_left_out[feature]`: inputs without the feature.

    Attribute `matched_nothing`: features that no token of the corpus has.

    Parameters
    ----------
    features : sequence of str or str, optional
        Only these (a string: names with commas between): noun, verb, pronoun, subject, object, negation, cls, sep,
        punct, and those of `extra`; all by default.
    extra : str, optional
        Features of your own, `name: key=value|value & key!=value`, with `;` between them; keys are upos, relation,
        lemma, form and token. For instance `modal: upos=AUX & lemma=can|may|must; proper: upos=PROPN`.
    """

    features: tuple[str, ...] | str = ()
    extra: str = ""

    name: ClassVar[str] = "features"
    title: ClassVar[str] = "Attention to linguistic features and special tokens"
    paper: ClassVar[Paper] = Paper("kovaleva2019", "§4.4-4.5, Fig 6-7")
    budget: ClassVar[int | None] = 1000

    item_dim: ClassVar[str] = "feature"
    unmatched_reason: ClassVar[str] = "no token of the corpus is one"

    def __post_init__(self) -> None:
        self.chosen()

    def chosen(self) -> tuple[Feature, ...]:
        return choose("feature", self.features, known_features() | parse_features(self.extra))

    def missing(self, shape: Shape) -> dict[str, str]:
        reasons = super().missing(shape)
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
            from_cls=Moments(shape.layers, shape.heads, count),  # only the last layer is filled and shown
            left_out=Sums(count),
        )

    def reduce(self, rows: Rows, batch: Batch) -> Mapping[str, Tensor]:
        real = batch.real[:, rows.start : rows.stop].to(rows.weights.dtype)[:, None, None]
        first = rows.weights[:, :, 0] if rows.start == 0 else torch.zeros_like(rows.weights[:, :, 0])
        visible = rows.visible[:, :1].to(rows.weights.dtype)
        even = visible / visible.sum(-1, keepdim=True).clamp(min=1)
        return {"received": (real @ rows.weights)[:, :, 0], "even": even.sum((1, 2)), "first": first}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        features = self.chosen()
        masks = batch.remember(("features", features), lambda: feature_masks(batch, features))
        length = batch.lengths[:, None, None].double()
        here = (layer.layer,)
        state.moments("attention").add(largest(sums["received"].double() / length, masks), here)
        state.moments("uniform").add(largest(sums["even"].double()[:, None] / length, masks)[:, 0], here)
        if layer.layer == 0:
            state.sums("left_out").add((~masks.any(-1)).sum(0))
        if layer.layer == state.moments("from_cls").count.shape[0] - 1:
            opens = batch.cls[:, 0, None, None]
            state.moments("from_cls").add(largest(sums["first"].double(), masks).masked_fill(~opens, torch.nan), here)

    def headline(self, dataset: xr.Dataset) -> list[str]:
        rows = []
        for name in map(str, dataset["feature"].values):
            one = dataset.sel(feature=name)
            if one["attention"].notnull().any():
                even = float(one["uniform"].mean())
                rows.append((name, top_heads(one, "attention", form=".3f"), f"even attention {even:.3f}"))
        return ["Heads that attend most to each feature:", *aligned(rows)]

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        chosen = self.chosen()
        dims, units = ("layer", "head", "feature"), "share of attention"
        variables = mean_variables("attention", dims, state.moments("attention"), units=units)
        variables |= mean_variables("uniform", ("layer", "feature"), state.moments("uniform"), units=units)
        for name, variable in mean_variables("from_cls", dims, state.moments("from_cls"), units=units).items():
            values = variable.values[-1]
            if shape.causal:
                values = np.zeros_like(values) if name.endswith("_n") else np.full_like(values, np.nan)
            variables[name] = xr.Variable(("head", "feature"), values, variable.attrs)
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
        return xr.Dataset(variables, coords=coords, attrs={"matched_nothing": ", ".join(nothing)})


def largest(values: Tensor, masks: Tensor) -> Tensor:
    """The largest of `values[example, head, token]` of each feature, `[example, head, feature]`; NaN without any."""
    inside = torch.where(masks[:, None], values[:, :, None], -torch.inf).amax(-1)
    return torch.where(inside.isinf(), torch.nan, inside)


def feature_masks(batch: Batch, features: tuple[Feature, ...]) -> Tensor:
    """Bool `[example, feature, token]`: the same for every layer."""
    out = torch.zeros(len(batch), len(features), batch.ids.shape[1], dtype=torch.bool)
    for number, row in enumerate(batch.rows):
        for place, feature in enumerate(features):
            out[number, place, : len(row)] = torch.from_numpy(feature.tokens(row))
    return out.to(batch.device)
