"""Attention sinks: how much each head attends to the first token, and where it looks otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    LayerObserver,
    Paper,
    Shape,
    layer_head_coords,
    mean_variables,
)
from headwise.analyses.summaries import format_heads, ranked_heads
from headwise.analyses.surface.analysis import (
    FIRST,
    later_masses_without_first,
    token_type_columns,
)
from headwise.core.errors import ParameterError
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.core.token_types import TYPE_NAMES
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.view import Layer
from headwise.stats.accumulators import Moments, State
from headwise.stats.corrections import holm
from headwise.text.encode import Batch

HEADS = ("layer", "head")
SHARE = "share of attention"

# Inputs of fewer tokens have too few rows after the first.
MIN_TOKENS = 3

# Variables `[layer, head]` with their units.
HEAD_VARIABLES = {
    "first": SHARE,
    "rate": "share of rows",
    "value_norm_ratio": "times the mean",
    "rest_entropy": "nats",
    "rest_largest": SHARE,
    "learned": SHARE,
    "learned_rate": "share of rows",
}


@dataclass(frozen=True)
class Sinks(LayerObserver):
    """Attention of each head to the first token of an input, its sink, and to the other tokens.

    Over the rows i > 0 that see token 0, averaged in an example, then over examples, with count and
    95 % interval:

    - `first[layer, head]`: `A[i, 0]`; `uniform[layer]`: `1/|V(i)|`, that of uniform attention;
      `rate`: share of rows with `A[i, 0]` above `threshold`; `learned`, `learned_rate`: the same of
      a learned sink, if the model has one;
    - `first_p`: test over examples (or documents, if examples have any) that the mean is no more
      than `threshold`, or than twice that of uniform attention if that is more (Student's t);
      `first_p_adjusted`: corrected over heads (Holm). Compared with uniform attention alone, random
      weights would be significant: the first token is always the same, and a random head likes or
      dislikes it;
    - `value_norm_ratio[layer, head]`: `‖v_0‖` over the mean of the other `‖v_j‖`; it is small for a
      sink that moves nothing. `hidden_norm_ratio[layer]`: norm of what enters the layer at token 0,
      over the median of the tokens;
    - `rest_entropy`, `rest_largest[layer, head]`, `rest_mass[layer, head, token_type]`: entropy in
      nats, largest weight and mass by token type excluding token 0, rows scaled to sum to one, over
      the rows that leave more than 0.0001 of their attention to other tokens: what a head does
      beside its sink. `entropy_rest`, `max_weight_rest` and `mass_rest` of `surface` are the same.

    Inputs of fewer than three tokens are left out. What changes without the opening token, or with
    it, is another analysis: `opening_token`.

    Parameters
    ----------
    threshold : float, default 0.3
        The weight on the first token above which a row counts as attending to the sink.

    Notes
    -----
    Question: How much does each head attend to the first token, and what does it do otherwise?

    Assumes: All tokens see the first token: a decoder-only analysis.

    Pitfalls: Weights without the first token are scaled to sum to one even if they are a thousandth
    of the row: read `rest_*` beside `first`. Whether the tokenizer adds an opening token changes
    what the first token is (`opening_token`).

    Cost: The pass that `surface`, `offsets` and `roles` observe too; on a GPU no map is formed
    (`benchmarks/bench_fused.py`).
    """

    threshold: float = 0.3

    name: ClassVar[str] = "sinks"
    title: ClassVar[str] = "Attention sinks: attention to the first token"
    paper: ClassVar[Paper] = Paper("gu2024", "Attention sinks; Xiao et al. 2023")
    units: ClassVar[Mapping[str, str]] = {SHARE: "uniform"}
    taps: ClassVar[frozenset[str]] = frozenset({"attention", "hidden"})

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def unsupported_reason(self, shape: Shape) -> str | None:
        if not shape.causal:
            return "decoder-only analysis"
        if not shape.hidden:
            return "the layers of this model pass on no hidden states of the usual shape"
        return None

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        if dataset["first"].notnull().any():
            return {}
        return {"first": f"every input is shorter than {MIN_TOKENS} tokens"}

    # --- the pass -------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        state = State()
        for name in (*HEAD_VARIABLES, "excess"):
            state[name] = Moments(shape.layers, shape.heads)
        state["rest_mass"] = Moments(shape.layers, shape.heads, len(TYPE_NAMES))
        state["uniform"] = Moments(shape.layers)
        state["hidden_norm_ratio"] = Moments(shape.layers)
        return state

    def request(self, batch: Batch) -> StatsRequest:
        return StatsRequest(token_type_columns(batch), without_first=True, uniform=True)

    def reduce(self, result: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        without_first = result.without_first
        assert without_first is not None
        sees_first, sums = first_token_sums(result, batch, self.threshold)
        usable, scale = result.rows_without_first(sees_first)
        sums |= {
            "rest_rows": usable.sum(-1),
            "rest_entropy": (without_first.entropy * usable).sum(-1, dtype=torch.float64),
            "rest_largest": (without_first.max_weight * usable).sum(-1, dtype=torch.float64),
            "rest_mass": later_masses_without_first(result, scale),
        }
        if result.learned_sink is not None:
            rows = batch.attention_mask[:, None] & _is_long_enough(batch)[:, None, None]
            sums["all_rows"] = rows.sum(-1)
            sums["learned"] = (result.learned_sink * rows).sum(-1, dtype=torch.float64)
            sums["learned_rate"] = ((result.learned_sink > self.threshold) & rows).sum(-1)
        return sums

    def read_layer(self, layer: Layer, batch: Batch) -> Mapping[str, Tensor]:
        is_long_enough = _is_long_enough(batch)[:, None]
        ratios: dict[str, Tensor] = {}
        if layer.value is not None:
            norms = _norms(layer.value) * batch.attention_mask[:, None]  # example, group, token
            n_others = (batch.lengths - 1).clamp(min=1)[:, None]
            mean_of_others = norms[..., 1:].sum(-1) / n_others
            ratio = norms[..., 0] / mean_of_others.clamp(min=1e-30)
            ratios["value_norm_ratio"] = torch.where(is_long_enough, ratio, torch.nan)
        if layer.hidden is not None:
            norms = _norms(layer.hidden)
            without_padding = norms.masked_fill(~batch.attention_mask, torch.nan)
            # Of an even number of tokens, the mean of the two middle norms.
            median = without_padding.nanquantile(0.5, -1, keepdim=True)
            ratio = norms[:, :1] / median
            ratios["hidden_norm_ratio"] = torch.where(is_long_enough, ratio, torch.nan)
        return ratios

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        here = (layers,)
        n_layers = layers.stop - layers.start
        n_rows = sums["rows"].double()
        state.moments("first").add_sums(sums["first"], n_rows, here)
        state.moments("rate").add_sums(sums["above"], n_rows, here)

        mean_uniform = sums["uniform"] / n_rows.clamp(min=1)
        bar = (2 * mean_uniform).clamp(min=self.threshold)
        state.moments("excess").add_sums(sums["first"] - bar * n_rows, n_rows, here)
        uniform = sums["uniform"][:, :, 0].expand(-1, n_layers)
        state.moments("uniform").add_sums(uniform, n_rows[:, :, 0].expand(-1, n_layers), here)

        n_without_first = sums["rest_rows"].double()
        for name in ("rest_entropy", "rest_largest"):
            state.moments(name).add_sums(sums[name], n_without_first, here)
        state.moments("rest_mass").add_sums(sums["rest_mass"], n_without_first[..., None], here)

        for name in ("learned", "learned_rate"):
            if name in sums:
                state.moments(name).add_sums(sums[name], sums["all_rows"].double(), here)
        if "value_norm_ratio" in sums:
            # One value for each group of heads that share their values.
            ratio = sums["value_norm_ratio"]
            heads_per_group = sums["first"].shape[2] // ratio.shape[2]
            ratio_per_head = ratio.repeat_interleave(heads_per_group, 2)
            state.moments("value_norm_ratio").add(ratio_per_head, here)
        if "hidden_norm_ratio" in sums:
            state.moments("hidden_norm_ratio").add(sums["hidden_norm_ratio"][:, :, 0], here)

    # --- the result -----------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        variables: dict[str, Any] = {}
        for name, units in HEAD_VARIABLES.items():
            mean = mean_variables(name, HEADS, state.moments(name), units=units)
            if name.startswith("learned") and not (mean[f"{name}_n"].values > 0).any():
                continue  # the model has no learned sink
            variables |= mean
        variables |= mean_variables(
            "hidden_norm_ratio",
            ("layer",),
            state.moments("hidden_norm_ratio"),
            units="times the median",
        )
        variables |= mean_variables(
            "rest_mass", (*HEADS, "token_type"), state.moments("rest_mass"), units=SHARE
        )
        uniform = state.moments("uniform").summary()["mean"].astype(np.float32)
        variables["uniform"] = ("layer", uniform)
        p_value = state.moments("excess").p_above()
        variables["first_p"] = (HEADS, p_value)
        variables["first_p_adjusted"] = (HEADS, holm(p_value))
        coords = layer_head_coords(shape) | {"token_type": list(TYPE_NAMES)}
        return xr.Dataset(variables, coords, {"threshold": self.threshold})

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["first_p_adjusted"] < SIGNIFICANCE_LEVEL

    def summary(self, dataset: xr.Dataset) -> list[str]:
        first = dataset["first"].values
        ranking = ranked_heads(first)
        if not ranking:
            return []
        n_over_half = int((first > 0.5).sum())
        n_significant = int((dataset["first_p_adjusted"] < SIGNIFICANCE_LEVEL).sum())
        lines = [
            f"{n_over_half} of {first.size} heads give over half of their attention to the first "
            f"token, {n_significant} significantly over {self.threshold:g} "
            f"(corrected p < {SIGNIFICANCE_LEVEL:g}); most: {format_heads(first, ranking[:1])}"
        ]
        norms = dataset["hidden_norm_ratio"].values
        if np.isfinite(norms).any():
            lines.append(
                f"Norm of the first token's hidden state: {np.nanmax(norms):.1f} times the median "
                f"at layer {int(np.nanargmax(norms))}"
            )
        # Atlases made before `opening_token` was an analysis of its own.
        if "first_other" in dataset:
            mean_of_other = float(dataset["first_other"].mean())
            lines.append(
                f"Mean over heads {np.nanmean(first):.2f}; {dataset.attrs['other']} "
                f"{mean_of_other:.2f}"
            )
        return lines


def check_threshold(value: float) -> None:
    """Reject a threshold that is not between 0 and 1."""
    if not 0 < value < 1:
        raise ParameterError(f"`threshold` must be between 0 and 1; it is {value!r}.")


def first_token_sums(
    result: StatsResult, batch: Batch, threshold: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return which rows are counted, and sums over them.

    Parameters
    ----------
    result : StatsResult
        With the column `FIRST`, also of uniform attention.
    batch : Batch
        The examples.
    threshold : float
        The weight above which a row counts as attending to the sink.

    Returns
    -------
    rows : Tensor
        Bool `[example, 1, row]`: rows after the first that see it, of inputs that are long enough.
    sums : dict of str to Tensor
        Over these rows: their number (`rows`), weights on the first token (`first`), how many of
        these are above the threshold (`above`), and the weights of uniform attention (`uniform`).
    """
    assert result.uniform is not None
    first = result.columns[FIRST]
    uniform = result.uniform.columns[FIRST]
    is_later = torch.arange(first.shape[-1], device=first.device) > 0
    is_long_enough = _is_long_enough(batch)[:, None, None]
    rows = (uniform > 0) & batch.attention_mask[:, None] & is_later & is_long_enough
    sums = {
        "rows": rows.sum(-1),
        "first": (first * rows).sum(-1, dtype=torch.float64),
        "above": ((first > threshold) & rows).sum(-1),
        "uniform": (uniform * rows).sum(-1, dtype=torch.float64),
    }
    return rows, sums


def _is_long_enough(batch: Batch) -> Tensor:
    """Return which examples have enough tokens, bool `[example]`."""
    return batch.lengths >= MIN_TOKENS


def _norms(values: Tensor) -> Tensor:
    """Return the lengths of vectors, computed in single precision or better."""
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    norms: Tensor = torch.linalg.vector_norm(wide, dim=-1)
    return norms.double()
