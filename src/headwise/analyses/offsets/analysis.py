"""Attention by relative position: histogram over offsets and its centre of mass.

Pascual et al. 2021, §6."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    WEIGHTINGS,
    Observer,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    mean_variables,
    one_of,
)
from headwise.analyses.summaries import top_heads
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.stats.accumulators import Ratios, State, means
from headwise.text.encode import Batch

# The largest offset kept by default.
MAX_REACH = 511

MEANS = {"mean_offset": "tokens", "mean_distance": "tokens", "beyond": "share of attention"}


@dataclass(frozen=True)
class Offsets(Observer):
    """How much a head attends to each relative position.

    With offset o = source position − receiving position and N(o) the number of pairs (i, i+o) in
    the corpus that the model can see:

    - `histogram[source, layer, head, offset]`: `Σ A[i, i+o] / N(o)`, the mean weight at an offset,
      all pairs with the same weight;
    - `centre[source, layer, head]`: `Σ_o o·h(o) / Σ_o h(o)`;
    - `mean_offset`, `mean_distance[source, layer, head]`: mean of `Σ_j A[i,j]·(j−i)` and of `Σ_j
      A[i,j]·|j−i|` over the rows of an example, then over examples: unlike `centre`, these have an
      interval over examples.

    `source` is `attention`; `attribution` adds `previous_layer` and `input`.

    Parameters
    ----------
    reach : int, optional
        The largest offset kept; default: that of the longest input, at most 511. Mass further away
        is `beyond[source, layer, head]`, and not in `centre`.
    weighting : str, default "examples"
        For `mean_offset`, `mean_distance` and `beyond`: `examples` or `tokens`. In the histogram
        all pairs have the same weight.

    Notes
    -----
    Question: How far does each head look, back or ahead?

    Assumes: Positions are counted in tokens, not in words.

    Pitfalls: In `histogram` all offsets have the same weight, though far ones occur in few pairs,
    so that attention to a sink at the first token moves `centre` far out; `mean_offset` and
    `mean_distance` are weighted by where the mass lies. Corpora of other lengths have other
    histograms.

    Cost: The pass of the model itself; on a GPU no map is formed (`benchmarks/bench_pass.py`).
    """

    reach: int | None = None
    weighting: str = "examples"

    name: ClassVar[str] = "offsets"
    title: ClassVar[str] = "How far heads look: relative positions"
    paper: ClassVar[Paper] = Paper("pascual2021", "§6, Fig 2 to 5")

    def __post_init__(self) -> None:
        one_of("weighting", self.weighting, WEIGHTINGS)
        if self.reach is not None:
            at_least("reach", self.reach, 1)

    # --- the pass -------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        reach = max(1, min(self.reach or MAX_REACH, shape.max_length - 1))
        width = 2 * reach + 1
        # How often an offset occurs is the same for all heads of a layer.
        weight_shape = (shape.layers, 1, width)
        # Shares of far offsets are near 0 and skewed.
        histogram = Ratios(
            shape.layers, shape.heads, width, weight_shape=weight_shape, third_moments=True
        )
        state = State(histogram=histogram)
        for name in MEANS:
            state[name] = means(self.weighting, shape.layers, shape.heads)
        return state

    def request(self, batch: Batch) -> StatsRequest:
        return StatsRequest(max_offset=self._reach_in(batch), distance=True)

    def _reach_in(self, batch: Batch) -> int:
        """Return the largest offset kept of this batch."""
        return min(self.reach or MAX_REACH, batch.ids.shape[1] - 1)

    def reduce(self, result: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        assert result.offset_sum is not None
        assert result.distance_sum is not None
        reach = self._reach_in(batch)
        mass, n_pairs = result.diagonals_within(reach)
        beyond = torch.zeros_like(mass[..., 0])
        if reach < batch.ids.shape[1] - 1:
            total_mass = (result.n_visible > 0).sum(-1)[:, None]
            if result.learned_sink is not None:
                total_mass = total_mass - result.learned_sink.sum(-1)
            beyond = (total_mass - mass.double().sum(-1)).clamp(min=0)
        return {
            "mean_offset": result.offset_sum,
            "mean_distance": result.distance_sum,
            "beyond": beyond,
            "mass": mass,
            "pairs": n_pairs[:, None],
            "count": batch.lengths[:, None],
        }

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        n_rows = sums["count"].double()
        for name in MEANS:
            state.means(name).add_sums(sums[name], n_rows, (layers,))
        histogram = _histogram_of(state)
        reach_of_state = histogram.shape[-1] // 2
        reach_of_batch = sums["mass"].shape[-1] // 2
        # A batch may be padded beyond the longest input.
        reach = min(reach_of_state, reach_of_batch)
        in_batch = slice(reach_of_batch - reach, reach_of_batch + reach + 1)
        in_state = slice(reach_of_state - reach, reach_of_state + reach + 1)
        histogram.add_sums(
            sums["mass"][..., in_batch],
            sums["pairs"][..., in_batch],
            (layers, slice(None), in_state),
        )

    # --- the result -----------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        heads = ("layer", "head")
        histogram = _histogram_of(state)
        reach = histogram.shape[-1] // 2
        variables = mean_variables(
            "histogram", (*heads, "offset"), histogram, units="mean weight of a pair"
        )
        n_pairs = histogram.parts["w"].numpy()[:, 0].astype(np.int64)
        variables["pairs"] = xr.Variable(
            ("layer", "offset"), n_pairs, {"long_name": "pairs of tokens at an offset"}
        )
        for name, units in MEANS.items():
            variables |= mean_variables(name, heads, state.means(name), units=units)
        coords = layer_head_coords(shape) | {"offset": np.arange(-reach, reach + 1)}
        dataset = xr.Dataset(variables, coords=coords)
        occurring = np.flatnonzero(n_pairs.sum(0))
        if len(occurring):
            dataset = dataset.isel(offset=slice(int(occurring[0]), int(occurring[-1]) + 1))
        dataset["centre"] = centre_of_mass(dataset["histogram"])
        for variable, array in list(dataset.data_vars.items()):
            if "head" in array.dims:
                dataset[variable] = array.expand_dims(source=["attention"])
        return dataset

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for source in map(str, dataset["source"].values):
            of_source = dataset.sel(source=source)
            mean_distance = float(of_source["mean_distance"].mean(("layer", "head")))
            farthest = top_heads(of_source, "mean_distance", form=".1f")
            centre_by_layer = of_source["centre"].mean("head").values
            centres = " ".join(f"{centre:+.1f}" for centre in centre_by_layer)
            lines.append(f"{source}: mean distance {mean_distance:.1f} tokens; farthest {farthest}")
            lines.append(f"{source}: centre of mass by layer {centres} (below 0: before the token)")
        return lines


def _histogram_of(state: State) -> Ratios:
    histogram = state["histogram"]
    assert isinstance(histogram, Ratios)
    return histogram


def centre_of_mass(histogram: xr.DataArray) -> xr.DataArray:
    """Return `Σ o·h(o) / Σ h(o)` over the offsets that occur."""
    centre = (histogram * histogram["offset"]).sum("offset") / histogram.sum("offset")
    centre.attrs = {"units": "tokens", "long_name": "centre of mass of the histogram"}
    return centre
