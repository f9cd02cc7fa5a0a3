"""Attention by relative position: histogram over offsets and its centre of mass (Pascual et al.
2021, §6)."""

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

DEFAULT_REACH = 511


@dataclass(frozen=True)
class Offsets(Observer):
    """How much a head looks at each relative position.

    With offset o = source position − receiving position and N(o) the number of pairs (i, i+o) in
    the corpus that the model can see:

    - `histogram[source, layer, head, offset]`: `Σ A[i, i+o] / N(o)`, the mean weight at an offset, every pair alike;
    - `centre[source, layer, head]`: `Σ_o o·h(o) / Σ_o h(o)`;
    - `mean_offset`, `mean_distance[source, layer, head]`: mean of `Σ_j A[i,j]·(j−i)` and of `Σ_j A[i,j]·|j−i|` over the
      rows of an example, then over examples: unlike `centre`, these have an interval over examples.

    `source` is `attention`; `attribution` adds `previous_layer` and `input`.

    Parameters
    ----------
    reach : int, optional
        The largest offset kept; the longest input, at most 511, unless given. Mass further away is
        `beyond[source, layer, head]`, and not in `centre`.
    weighting : str, default "examples"
        For `mean_offset`, `mean_distance` and `beyond`: `examples` or `tokens`. The histogram
        always weighs pairs alike.

    Notes
    -----
    Question: How far does each head look, back or ahead?

    Assumes: Positions are counted in tokens, not in words.

    Traps: `histogram` weighs every offset alike, though far ones occur in few pairs, so `centre` is
    pulled far out by a head that rests on the first token; `mean_offset` and `mean_distance` weigh
    by where the mass lies. Corpora of other lengths have other histograms.

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

    def _reach(self, shape: Shape) -> int:
        return max(1, min(self.reach or DEFAULT_REACH, shape.max_length - 1))

    def start(self, shape: Shape) -> State:
        width = 2 * self._reach(shape) + 1
        state = State(
            histogram=Ratios(
                shape.layers, shape.heads, width, weight_shape=(shape.layers, 1, width)
            )
        )
        for name in ("mean_offset", "mean_distance", "beyond"):
            state[name] = means(self.weighting, shape.layers, shape.heads)
        return state

    def request(self, batch: Batch) -> StatsRequest:
        return StatsRequest(max_offset=self._reach_in(batch), distance=True)

    def _reach_in(self, batch: Batch) -> int:
        return min(self.reach or DEFAULT_REACH, batch.ids.shape[1] - 1)

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        reach = self._reach_in(batch)
        mass, pairs = answers.diagonals_within(reach)
        beyond = torch.zeros_like(mass[..., 0])
        if reach < batch.ids.shape[1] - 1:
            whole = (answers.n_visible > 0).sum(-1)[:, None] - (
                0 if answers.sink is None else answers.sink.sum(-1)
            )
            beyond = (whole - mass.double().sum(-1)).clamp(min=0)
        assert answers.offset_sum is not None
        assert answers.distance_sum is not None
        moved = {"offset": answers.offset_sum, "distance": answers.distance_sum, "beyond": beyond}
        return moved | {"mass": mass, "pairs": pairs[:, None], "count": batch.lengths[:, None]}

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        here, count = (layers,), sums["count"].double()
        mass = sums["mass"]
        histogram = state["histogram"]
        assert isinstance(histogram, Ratios)
        state.means("mean_offset").add_sums(sums["offset"], count, here)
        state.means("mean_distance").add_sums(sums["distance"], count, here)
        state.means("beyond").add_sums(sums["beyond"], count, here)
        reach, width = histogram.shape[-1] // 2, mass.shape[-1] // 2
        near = min(reach, width)  # a batch may be padded beyond the longest input
        kept, where = slice(width - near, width + near + 1), slice(reach - near, reach + near + 1)
        histogram.add_sums(mass[..., kept], sums["pairs"][..., kept], (*here, slice(None), where))

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for source in map(str, dataset["source"].values):
            one = dataset.sel(source=source)
            far, named = (
                one["mean_distance"].mean(("layer", "head")),
                top_heads(one, "mean_distance", form=".1f"),
            )
            centres = " ".join(f"{centre:+.1f}" for centre in one["centre"].mean("head").values)
            lines += [
                f"{source}: mean distance {float(far):.1f} tokens; farthest {named}",
                f"{source}: centre of mass by layer {centres} (below 0: before the token)",
            ]
        return lines

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        heads = ("layer", "head")
        histogram = state["histogram"]
        assert isinstance(histogram, Ratios)
        reach = histogram.shape[-1] // 2
        variables = mean_variables(
            "histogram", (*heads, "offset"), histogram, units="mean weight of a pair"
        )
        pairs = histogram.parts["w"].numpy()[:, 0].astype(np.int64)
        variables["pairs"] = xr.Variable(
            ("layer", "offset"), pairs, {"long_name": "pairs of tokens at an offset"}
        )
        for name in ("mean_offset", "mean_distance", "beyond"):
            units = "share of attention" if name == "beyond" else "tokens"
            variables |= mean_variables(name, heads, state.means(name), units=units)
        dataset = xr.Dataset(
            variables, coords=layer_head_coords(shape) | {"offset": np.arange(-reach, reach + 1)}
        )
        seen = np.flatnonzero(dataset["pairs"].values.sum(0))
        if len(seen):
            dataset = dataset.isel(offset=slice(int(seen[0]), int(seen[-1]) + 1))
        dataset["centre"] = centre_of_mass(dataset["histogram"])
        per_source = [name for name in dataset.data_vars if "head" in dataset[name].dims]
        return dataset.assign(
            {name: dataset[name].expand_dims(source=["attention"]) for name in per_source}
        )


def centre_of_mass(histogram: xr.DataArray) -> xr.DataArray:
    """`Σ o·h(o) / Σ h(o)` over the offsets that occur."""
    centre = (histogram * histogram["offset"]).sum("offset") / histogram.sum("offset")
    centre.attrs = {"units": "tokens", "long_name": "centre of mass of the histogram"}
    return centre
