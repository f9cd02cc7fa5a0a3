"""How much attention tokens of a kind receive: nouns, verbs, subjects, negations, special tokens (Kovaleva et al. 2019, §4.4-4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Observer, Paper, Shape, layer_head_coords, mean_variables
from headwise.analyses.features.predicates import Feature, known_features, parse_features
from headwise.core.errors import ParameterError, unknown
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import Moments, State, Sums
from headwise.text.encode import Batch


@dataclass(frozen=True)
class Features(Observer):
    """Attention that tokens of a feature receive.

    For a token t of the feature (every piece is a token), `a(t) = Σ_i A[i, t] / n`; of an input with several such tokens the largest; inputs without any are left out; the mean
    over inputs. A uniform head of an encoder gives `1/n`.

    - `attention[layer, head, feature]`: from all tokens, with `attention_n` and a 95 % interval; `uniform[layer, feature]`: what uniform attention would give on the same inputs;
    - `from_cls[head, feature]`: in the last layer, from the first token alone, `max_t A[0, t]` (Fig 7); NaN without a cls token and for causal models;
    - `inputs_left_out[feature]`: inputs without the feature.

    Attribute `matched_nothing`: features that no token of the corpus has.

    Parameters
    ----------
    features
        Only these (a sequence, or names with commas between): noun, verb, pronoun, subject, object, negation, cls, sep, punct, and those of `extra`; all by default.
    extra
        Features of your own, `name: key=value|value & key!=value`, with `;` between them; keys are upos, relation, lemma, form and token.
        For instance `modal: upos=AUX & lemma=can|may|must; proper: upos=PROPN`.
    """

    features: tuple[str, ...] | str = ()
    extra: str = ""

    name: ClassVar[str] = "features"
    title: ClassVar[str] = "Attention to linguistic features and special tokens"
    paper: ClassVar[Paper] = Paper("kovaleva2019", "§4.4-4.5, Fig 6-7")
    budget: ClassVar[int | None] = 1000

    def __post_init__(self) -> None:
        self._chosen()

    def _chosen(self) -> tuple[Feature, ...]:
        return choose_features(self.features, self.extra)

    def missing(self, shape: Shape) -> dict[str, str]:
        found = {feature.name: feature.lacking(shape) for feature in self._chosen()}
        reasons = {f"feature={name}": reason for name, reason in found.items() if reason}
        if shape.causal:
            reasons["from_cls"] = "the first token of a causal model sees only itself"
        elif "cls" not in shape.token_types:
            reasons["from_cls"] = "the tokenizer has no cls token"
        return reasons

    def refusal(self, shape: Shape) -> str | None:
        reasons = [feature.lacking(shape) for feature in self._chosen()]
        return "; ".join(dict.fromkeys(filter(None, reasons))) if all(reasons) else None

    def start(self, shape: Shape) -> State:
        count = len(self._chosen())
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
        masks = _masks(batch, self._chosen())
        length = batch.lengths[:, None, None].double()
        here = (layer.layer,)
        state.moments("attention").add(largest(sums["received"].double() / length, masks), here)
        state.moments("uniform").add(largest(sums["even"].double()[:, None] / length, masks)[:, 0], here)
        if layer.layer == 0:
            state.sums("left_out").add((~masks.any(-1)).sum(0))
        if layer.layer == state.moments("from_cls").count.shape[0] - 1:
            opens = batch.cls[:, 0, None, None]
            state.moments("from_cls").add(largest(sums["first"].double(), masks).masked_fill(~opens, torch.nan), here)

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        chosen = self._chosen()
        names = [feature.name for feature in chosen]
        variables = mean_variables(
            "attention", ("layer", "head", "feature"), state.moments("attention"), units="share of attention"
        )
        variables |= mean_variables(
            "uniform", ("layer", "feature"), state.moments("uniform"), units="share of attention"
        )
        last = mean_variables(
            "from_cls", ("layer", "head", "feature"), state.moments("from_cls"), units="share of attention"
        )
        for name, variable in last.items():
            values = variable.values[-1]
            if shape.causal:
                values = np.zeros_like(values) if name.endswith("_n") else np.full_like(values, np.nan)
            variables[name] = xr.Variable(("head", "feature"), values, variable.attrs)
        variables["inputs_left_out"] = xr.Variable(("feature",), state.sums("left_out").total.numpy().astype(np.int64))
        coords = layer_head_coords(shape) | {
            "feature": np.array(names),
            "about": ("feature", np.array([feature.about for feature in chosen])),
        }
        absent = {name.removeprefix("feature=") for name in self.missing(shape)}
        seen = variables["attention_n"].values.reshape(-1, len(names)).max(0)
        nothing = [name for name, count in zip(names, seen, strict=True) if not count and name not in absent]
        if nothing and not seen.any() and variables["inputs_left_out"].values.any():  # inputs there were
            raise ParameterError(
                f"No token of the corpus is of any of the features {', '.join(nothing)}; check `features` and `extra`, or give another corpus."
            )
        return xr.Dataset(variables, coords=coords, attrs={"matched_nothing": ", ".join(nothing)})

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        return {
            f"feature={name}": "no token of the corpus is one"
            for name in dataset.attrs["matched_nothing"].split(", ")
            if name
        }


def choose_features(given: tuple[str, ...] | str, extra: str) -> tuple[Feature, ...]:
    """The features that parameters name: built-in ones and a user's own."""
    known = known_features() | parse_features(extra)
    listed = given.split(",") if isinstance(given, str) else list(given)
    names = list(dict.fromkeys(name.strip() for name in listed if name.strip())) or list(known)
    for name in names:
        if name not in known:
            raise ParameterError(unknown("feature", name, known))
    return tuple(known[name] for name in names)


def largest(values: Tensor, masks: Tensor) -> Tensor:
    """The largest of `values[example, head, token]` over the tokens of each feature, `[example, head, feature]`; NaN without any."""
    inside = torch.where(masks[:, None], values[:, :, None], -torch.inf).amax(-1)
    return torch.where(inside.isinf(), torch.nan, inside)


@lru_cache(maxsize=1)
def _masks(batch: Batch, features: tuple[Feature, ...]) -> Tensor:
    """Bool `[example, feature, token]`: the same for every layer."""
    out = torch.zeros(len(batch), len(features), batch.ids.shape[1], dtype=torch.bool)
    for number, row in enumerate(batch.rows):
        for place, feature in enumerate(features):
            out[number, place, : len(row)] = torch.from_numpy(feature.tokens(row))
    return out.to(batch.device)
