"""Attention sinks: how much of each head rests on the first token, and what is left of it
without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Observer, Paper, Shape, layer_head_coords, mean_variables
from headwise.analyses.summaries import SIGNIFICANCE_LEVEL, format_heads, ranked_heads
from headwise.analyses.surface.analysis import FIRST, LATER, TOKEN_TYPES, token_type_columns
from headwise.core.errors import ParameterError
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.view import Layer
from headwise.stats.accumulators import Moments, State
from headwise.stats.corrections import holm
from headwise.text.encode import Batch

HEADS = ("layer", "head")
LEAST = 1e-6  # a row that leaves less than this to other tokens has no rest to speak of
SHARE = "share of attention"
# Of every head, with units.
OF_HEADS = {
    "first": SHARE,
    "rate": "share of rows",
    "value_norm_ratio": "times the mean",
    "rest_entropy": "nats",
    "rest_largest": SHARE,
    "learned": SHARE,
    "learned_rate": "share of rows",
}


@dataclass(frozen=True)
class Sinks(Observer):
    """How much of each head rests on the first token of an input, and what is left of it without.

    Over the rows i > 0 that see token 0, averaged in an example, then over examples, with count and
    95 % interval:

    - `first[layer, head]`: `A[i, 0]`; `uniform[layer]`: `1/|V(i)|`, what a uniform head would have; `rate`: share of
      rows with `A[i, 0]` above `threshold`; `learned`, `learned_rate`: the same of a learned sink,
      where the model has one;
    - `first_p`: over examples (or documents, where examples are of any), the mean is no more than `threshold`, or than
      twice a uniform head's where that is more (Student's t); `first_p_adjusted`: corrected over
      heads (Holm). Against a uniform head alone random weights would pass: the first token is
      always the same, and a random head likes or dislikes it;
    - `value_norm_ratio[layer, head]`: `‖v_0‖` over the mean of the other `‖v_j‖`: a sink that moves nothing has a small
      one; `hidden_norm_ratio[layer]`: norm of what enters the layer at token 0, over the median of
      the tokens;
    - `rest_entropy`, `rest_largest[layer, head]`, `rest_mass[layer, head, token_type]`: entropy in nats, largest weight
      and mass by kind of token of rows without token 0, made to sum to one: what a head does when
      it does not rest.

    Inputs of fewer than three tokens are left out. What changes where the opening token is taken
    away or put there is another question, `opening_token`.

    Parameters
    ----------
    threshold : float, default 0.3
        The weight on the first token above which a row counts as resting.

    Notes
    -----
    Question: How much of each head rests on the first token, and what does it do when it does not
    rest?

    Assumes: The first token is seen by all others, so it is asked of decoders.

    Traps: A rest without the first token is made to sum to one even where it is a thousandth of the
    row: read `rest_*` beside `first`. Whether the tokenizer adds an opening token changes what the
    first token is (`opening_token`).

    Cost: The pass that `surface`, `offsets` and `roles` watch too; on a GPU no map is formed
    (`benchmarks/bench_fused.py`).
    """

    threshold: float = 0.3

    name: ClassVar[str] = "sinks"
    title: ClassVar[str] = "Attention sinks: what rests on the first token"
    paper: ClassVar[Paper] = Paper("gu2024", "Attention sinks; Xiao et al. 2023")
    units: ClassVar[Mapping[str, str]] = {SHARE: "uniform"}
    taps: ClassVar[frozenset[str]] = frozenset({"attention", "hidden"})

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def unsupported_reason(self, shape: Shape) -> str | None:
        if not shape.causal:
            return "it is asked of decoders, whose first token every other token sees"
        return (
            None
            if shape.hidden
            else "the layers of this model pass on no hidden states of the usual shape"
        )

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        if dataset["first"].notnull().any():
            return {}
        return {"first": f"every input is shorter than {SHORTEST} tokens"}

    def start(self, shape: Shape) -> State:
        heads = (shape.layers, shape.heads)
        state = State({name: Moments(*heads) for name in (*OF_HEADS, "excess")})
        state["rest_mass"] = Moments(*heads, len(TOKEN_TYPES))
        state["uniform"], state["hidden_norm_ratio"] = Moments(shape.layers), Moments(shape.layers)
        return state

    def request(self, batch: Batch) -> StatsRequest:
        return StatsRequest(token_type_columns(batch), without_sink=True, uniform=True)

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        sees, sums = on_first(answers, batch, self.threshold)
        rest = answers.without_sink
        assert rest is not None
        some = sees & (rest.mass > LEAST)
        masses = torch.stack([answers.columns[name] for name in LATER], dim=-1)
        scale = torch.where(some, 1 / rest.mass.clamp(min=LEAST), 0)
        sums |= {
            "rest_rows": some.sum(-1),
            "rest_entropy": (rest.entropy * some).sum(-1, dtype=torch.float64),
            "rest_largest": (rest.max_weight * some).sum(-1, dtype=torch.float64),
            "rest_mass": (scale.unsqueeze(-2) @ masses)[:, :, 0],
        }
        if answers.sink is not None:
            here = batch.attention_mask[:, None] & (batch.lengths >= SHORTEST)[:, None, None]
            sums["all_rows"] = here.sum(-1)
            sums["learned"] = (answers.sink * here).sum(-1, dtype=torch.float64)
            sums["learned_rate"] = ((answers.sink > self.threshold) & here).sum(-1)
        return sums

    def read_layer(self, layer: Layer, batch: Batch) -> Mapping[str, Tensor]:
        real, long = batch.attention_mask, (batch.lengths >= SHORTEST)[:, None]
        found: dict[str, Tensor] = {}
        if layer.value is not None:
            norms = _norms(layer.value) * real[:, None]  # example, group, token
            others = norms[..., 1:].sum(-1) / (batch.lengths - 1).clamp(min=1)[:, None]
            found["value_norm_ratio"] = torch.where(
                long, norms[..., 0] / others.clamp(min=1e-30), torch.nan
            )
        if layer.hidden is not None:
            norms = _norms(layer.hidden)
            middle = norms.masked_fill(~real, torch.nan).nanquantile(0.5, -1, keepdim=True)
            found["hidden_norm_ratio"] = torch.where(long, norms[:, :1] / middle, torch.nan)
        return found

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        here, many = (layers,), layers.stop - layers.start
        rows, left = sums["rows"].double(), sums["rest_rows"].double()
        state.moments("first").add_sums(sums["first"], rows, here)
        state.moments("rate").add_sums(sums["above"], rows, here)
        bar = (2 * sums["uniform"] / rows.clamp(min=1)).clamp(min=self.threshold)
        state.moments("excess").add_sums(sums["first"] - bar * rows, rows, here)
        even, of = (x[:, :, 0].expand(-1, many) for x in (sums["uniform"], rows))
        state.moments("uniform").add_sums(even, of, here)
        for name in ("rest_entropy", "rest_largest"):
            state.moments(name).add_sums(sums[name], left, here)
        state.moments("rest_mass").add_sums(sums["rest_mass"], left[..., None], here)
        for name in ("learned", "learned_rate"):
            if name in sums:
                state.moments(name).add_sums(sums[name], sums["all_rows"].double(), here)
        if "value_norm_ratio" in sums:  # of groups of heads that share their values
            ratio = sums["value_norm_ratio"]
            state.moments("value_norm_ratio").add(
                ratio.repeat_interleave(sums["first"].shape[2] // ratio.shape[2], 2), here
            )
        if "hidden_norm_ratio" in sums:
            state.moments("hidden_norm_ratio").add(sums["hidden_norm_ratio"][:, :, 0], here)

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        variables: dict[str, Any] = {}
        for name, units in OF_HEADS.items():
            made = mean_variables(name, HEADS, state.moments(name), units=units)
            if not name.startswith("learned") or (made[f"{name}_n"].values > 0).any():
                variables |= made
        variables |= mean_variables(
            "hidden_norm_ratio",
            ("layer",),
            state.moments("hidden_norm_ratio"),
            units="times the median",
        )
        variables |= mean_variables(
            "rest_mass", (*HEADS, "token_type"), state.moments("rest_mass"), units=SHARE
        )
        variables["uniform"] = (
            "layer",
            state.moments("uniform").summary()["mean"].astype(np.float32),
        )
        p = state.moments("excess").p_above()
        variables["first_p"], variables["first_p_adjusted"] = (HEADS, p), (HEADS, holm(p))
        coords = layer_head_coords(shape) | {"token_type": list(TOKEN_TYPES)}
        return xr.Dataset(variables, coords, {"threshold": self.threshold})

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["first_p_adjusted"] < SIGNIFICANCE_LEVEL

    def summary(self, dataset: xr.Dataset) -> list[str]:
        first, sure = (
            dataset["first"].values,
            (dataset["first_p_adjusted"] < SIGNIFICANCE_LEVEL).values,
        )
        order = ranked_heads(first)
        if not order:
            return []
        lines = [
            f"{int((first > 0.5).sum())} of {first.size} heads give over half of their attention to the first token, "
            f"{int(sure.sum())} over {self.threshold:g} surely (corrected p < {SIGNIFICANCE_LEVEL:g}); "
            f"most: {format_heads(first, order[:1])}"
        ]
        norms = dataset["hidden_norm_ratio"].values
        if np.isfinite(norms).any():
            lines.append(
                f"Norm of the first token's hidden state: {np.nanmax(norms):.1f} times the median at layer "
                f"{int(np.nanargmax(norms))}"
            )
        if (
            "first_other" in dataset
        ):  # atlases made before `opening_token` was a question of its own
            lines.append(
                f"Mean over heads {np.nanmean(first):.2f}; {dataset.attrs['other']} "
                f"{float(dataset['first_other'].mean()):.2f}"
            )
        return lines


def _norms(values: Tensor) -> Tensor:
    """Lengths of vectors, in single precision or better."""
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    found: Tensor = torch.linalg.vector_norm(wide, dim=-1)
    return found.double()


def check_threshold(value: float) -> None:
    """Refuse a weight from which a row rests that is none."""
    if not 0 < value < 1:
        raise ParameterError(f"`threshold` must lie between 0 and 1; it is {value!r}.")


SHORTEST = 3  # tokens of an input that has anything to say


def on_first(
    answers: StatsResult, batch: Batch, threshold: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Which rows are asked, bool `[example, 1, row]`: those after the first that see it, of inputs
    that are long enough. And sums over them: how many they are (`rows`), their weights on the first
    token (`first`), how many of these are above the threshold (`above`), and what a uniform head
    would give (`uniform`)."""
    first, even = answers.columns[FIRST], answers.uniform
    assert even is not None
    uniform = even.columns[FIRST]
    later = torch.arange(first.shape[-1], device=first.device) > 0
    long = (batch.lengths >= SHORTEST)[:, None, None]
    sees = (uniform > 0) & batch.attention_mask[:, None] & later & long
    found = {
        "rows": sees.sum(-1),
        "first": (first * sees).sum(-1, dtype=torch.float64),
        "above": ((first > threshold) & sees).sum(-1),
        "uniform": (uniform * sees).sum(-1, dtype=torch.float64),
    }
    return sees, found
