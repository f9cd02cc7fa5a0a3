"""Attention by relative position: histogram over offsets and its centre of mass (Pascual et al. 2021, §6)."""

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
from headwise.analyses.headlines import top_heads
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import Ratios, State, means
from headwise.text.encode import Batch

DEFAULT_REACH = 511


@dataclass(frozen=True)
class Offsets(Observer):
    """How much a head looks at each relative position.

    With offset o = source position − receiving position and N(o) the number of pairs (i, i+o) in the corpus that the
    model can see:

    - `histogram[source, layer, head, offset]`: `Σ A[i, i+o] / N(o)`, the mean weight at an offset, every pair alike;
    - `centre[source, layer, head]`: `Σ_o o·h(o) / Σ_o h(o)`;
    - `mean_offset`, `mean_distance[source, layer, head]`: mean of `Σ_j A[i,j]·(j−i)` and of `Σ_j A[i,j]·|j−i|` over the
      rows of an example, then over examples: unlike `centre`, these have an interval over examples.

    `source` is `attention`; `attribution` adds `previous_layer` and `input`.

    Parameters
    ----------
    reach : int, optional
        The largest offset kept; the longest input, at most 511, unless given. Mass further away is `beyond[source,
        layer, head]`, and not in `centre`.
    weighting : str, default "examples"
        For `mean_offset`, `mean_distance` and `beyond`: `examples` or `tokens`. The histogram always weighs pairs
        alike.
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
        state = State(histogram=Ratios(shape.layers, shape.heads, width, weight_shape=(shape.layers, 1, width)))
        for name in ("mean_offset", "mean_distance", "beyond"):
            state[name] = means(self.weighting, shape.layers, shape.heads)
        return state

    def reduce(self, rows: Rows, batch: Batch) -> Mapping[str, Tensor]:
        length = batch.ids.shape[1]
        visible = rows.visible[:, :1].to(rows.weights.dtype)
        return {
            "mass": sum_by_offset(rows.weights, rows.start, length),
            "pairs": sum_by_offset(visible, rows.start, length),
        }

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        here = (layer.layer,)
        mass, pairs = sums["mass"].double(), sums["pairs"].double()
        furthest = mass.shape[-1] // 2
        offsets = torch.arange(-furthest, furthest + 1, device=mass.device, dtype=torch.float64)
        count = batch.lengths[:, None].double()
        histogram = state["histogram"]
        assert isinstance(histogram, Ratios)
        reach = histogram.parts["y"].shape[-1] // 2
        kept = offsets.abs() <= reach
        state.means("mean_offset").add_sums(mass @ offsets, count, here)
        state.means("mean_distance").add_sums(mass @ offsets.abs(), count, here)
        state.means("beyond").add_sums(mass[..., ~kept].sum(-1), count, here)
        width = int(kept.sum()) // 2
        histogram.add_sums(
            mass[..., kept], pairs[..., kept], (*here, slice(None), slice(reach - width, reach + width + 1))
        )

    def headline(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for source in map(str, dataset["source"].values):
            one = dataset.sel(source=source)
            far, named = one["mean_distance"].mean(("layer", "head")), top_heads(one, "mean_distance", form=".1f")
            lines += [
                f"{source}: mean distance {float(far):.1f} tokens; farthest {named}",
                f"{source}: centre of mass by layer {_by_layer(one['centre'])} (below 0: before the token)",
            ]
        return lines

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        heads = ("layer", "head")
        histogram = state["histogram"]
        assert isinstance(histogram, Ratios)
        reach = histogram.parts["y"].shape[-1] // 2
        variables = mean_variables("histogram", (*heads, "offset"), histogram, units="mean weight of a pair")
        pairs = histogram.parts["w"].numpy()[:, 0].astype(np.int64)
        variables["pairs"] = xr.Variable(("layer", "offset"), pairs, {"long_name": "pairs of tokens at an offset"})
        for name in ("mean_offset", "mean_distance", "beyond"):
            units = "share of attention" if name == "beyond" else "tokens"
            variables |= mean_variables(name, heads, state.means(name), units=units)
        dataset = xr.Dataset(variables, coords=layer_head_coords(shape) | {"offset": np.arange(-reach, reach + 1)})
        seen = np.flatnonzero(dataset["pairs"].values.sum(0))
        if len(seen):
            dataset = dataset.isel(offset=slice(int(seen[0]), int(seen[-1]) + 1))
        dataset["centre"] = centre_of_mass(dataset["histogram"])
        per_source = [name for name in dataset.data_vars if "head" in dataset[name].dims]
        return dataset.assign({name: dataset[name].expand_dims(source=["attention"]) for name in per_source})


def sum_by_offset(values: Tensor, start: int, length: int) -> Tensor:
    """Sums of a block of rows along its diagonals: `[example, head, row, key]` to `[example, head, offset]` with
    offsets −(length−1)..length−1.

    Row r is written into a buffer shifted so that equal offsets share a column: one copy and one sum, whatever the
    number of offsets. One example is done at a time in the same buffer, which then stays in the processor's cache, and
    whose zeros need writing only once.
    """
    examples, heads, rows, keys = values.shape
    width = keys + rows - 1
    at_once = 1 if values.device.type == "cpu" else examples
    buffer = values.new_zeros(at_once, heads, rows, width)
    # Row r starts r columns further left than row 0, so column c holds offset c − (rows − 1) − start.
    shifted = buffer.as_strided(
        (at_once, heads, rows, keys), (heads * rows * width, rows * width, width - 1, 1), storage_offset=rows - 1
    )
    out = values.new_zeros(examples, heads, 2 * length - 1)
    first = length - 1 - (rows - 1) - start
    for example in range(0, examples, at_once):
        shifted.copy_(values[example : example + at_once])
        torch.sum(buffer, dim=-2, out=out[example : example + at_once, :, first : first + width])
    return out


def centre_of_mass(histogram: xr.DataArray) -> xr.DataArray:
    """`Σ o·h(o) / Σ h(o)` over the offsets that occur."""
    centre = (histogram * histogram["offset"]).sum("offset") / histogram.sum("offset")
    centre.attrs = {"units": "tokens", "long_name": "centre of mass of the histogram"}
    return centre


def _by_layer(values: xr.DataArray) -> str:
    return " ".join(f"{float(value):+.1f}" for value in values.mean("head").values)
