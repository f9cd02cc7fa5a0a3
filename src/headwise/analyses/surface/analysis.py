"""Surface patterns of heads: where they look by position and token type, and how broadly (Clark et al. 2019, §3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import WEIGHTINGS, Observer, Paper, Shape, layer_head_coords, mean_variables, one_of
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import State, means
from headwise.text.encode import Batch

OFFSETS = (-1, 0, 1)
TOKEN_TYPES = ("cls", "sep", "punct", "other")
ORIGINS = ("mass", "mass_from_sep", "mass_from_other")


@dataclass(frozen=True)
class Surface(Observer):
    """Mean attention by relative position and token type, entropy and largest weight of each head.

    For a row i with weights `A[i, :]` over its visible keys V(i), averaged over the rows of an example, then over
    examples (or, with `weighting="tokens"`, over all rows alike):

    - `position[layer, head, offset]`: `A[i, i+o]` for o in −1, 0, 1, over the rows for which `i+o` is visible (so NaN
      for o = 1 in a causal model);
    - `mass[layer, head, token_type]`: `Σ_j A[i, j]` over keys of a type, from all rows; `mass_from_sep`, from `sep`
      rows; `mass_from_other`, from all but `sep`;
    - `entropy[layer, head]`: `−Σ_j A ln A` in nats; `entropy_from_cls`: of row 0 alone (NaN for causal models and
      without a cls token); `entropy_uniform[layer]`: `ln |V(i)|`, what a uniform head would have;
    - `max_weight[layer, head]`: `max_j A[i, j]`;
    - `sink[layer, head]` (models with learned sinks): mass on the sink. Entropy is then that of the rest, made to sum
      to one.

    Parameters
    ----------
    weighting : str, default "examples"
        `examples` (each example weighs alike) or `tokens` (each row alike).
    """

    weighting: str = "examples"

    name: ClassVar[str] = "surface"
    title: ClassVar[str] = "Where heads look: positions, token types, breadth"
    paper: ClassVar[Paper] = Paper("clark2019", "§3.1-3.3, Fig 2 and 4")
    cross: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of("weighting", self.weighting, WEIGHTINGS)

    def missing(self, shape: Shape) -> dict[str, str]:
        reasons = missing_types(shape)
        if shape.causal:
            reasons["position=1"] = "a causal model cannot look ahead"
            reasons["entropy_from_cls"] = "the first token of a causal model sees only itself"
        return reasons

    def start(self, shape: Shape) -> State:
        heads = (shape.layers, shape.heads)
        state = State({name: means(self.weighting, *heads, len(TOKEN_TYPES)) for name in ORIGINS})
        state["position"] = means(self.weighting, *heads, len(OFFSETS))
        for name in ("entropy", "entropy_from_cls", "max_weight", "sink"):
            state[name] = means(self.weighting, *heads)
        state["entropy_uniform"] = means(self.weighting, shape.layers)
        return state

    def reduce(self, rows: Rows, batch: Batch) -> Mapping[str, Tensor]:
        weights, here = rows.weights, slice(rows.start, rows.stop)
        real, sep = batch.real[:, here], batch.sep[:, here]
        queries = torch.stack([real, sep, real & ~sep], dim=1).to(weights.dtype)  # example, origin, row
        attended = queries[:, None] @ weights  # example, head, origin, key: all of Fig 2 is this product
        tokens = weights
        if rows.sink is not None:
            tokens = weights / (1 - rows.sink.unsqueeze(-1)).clamp(min=torch.finfo(weights.dtype).tiny)
        entropies = row_entropy(tokens)
        sums = {
            "mass": attended @ kinds_of(batch.keys)[:, None].to(weights.dtype),
            "queries": queries.sum(-1),
            "entropy": entropies.sum(-1),
            "max_weight": weights.amax(-1).sum(-1),
            "entropy_uniform": rows.visible[:, 0].sum(-1).clamp(min=1).log().sum(-1),
            "position": torch.stack([_diagonal(weights, rows, o).sum(-1) for o in OFFSETS], dim=-1),
            "position_count": torch.stack([_diagonal(rows.visible, rows, o).sum(-1) for o in OFFSETS], dim=-1),
            "entropy_from_cls": entropies[..., 0] if rows.start == 0 else torch.zeros_like(entropies[..., 0]),
        }
        if batch.keys is not batch:  # between two texts there are no offsets
            sums |= {name: torch.zeros_like(sums[name]) for name in ("position", "position_count")}
        if rows.sink is not None:
            sums["sink"] = (rows.sink * real[:, None]).sum(-1)
        return sums

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        here = (layer.layer,)
        count = batch.lengths[:, None].double()
        for i, name in enumerate(ORIGINS):
            state.means(name).add_sums(sums["mass"][:, :, i], sums["queries"][:, i, None, None].double(), here)
        counts = dict.fromkeys(("entropy", "max_weight", "sink"), count)
        counts |= {"entropy_uniform": count[:, 0], "entropy_from_cls": batch.cls[:, :1].double()}
        counts |= {"position": sums["position_count"].double()}
        for name, of in counts.items():
            if name in sums:
                state.means(name).add_sums(sums[name], of, here)

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        heads, share = ("layer", "head"), "share of attention"
        dims = dict.fromkeys(ORIGINS, (*heads, "token_type")) | {"position": (*heads, "offset")}
        variables: dict[str, xr.Variable] = {}
        for name, units in {**dict.fromkeys(dims, share), "entropy": "nats", "entropy_from_cls": "nats"}.items():
            variables |= mean_variables(name, dims.get(name, heads), state.means(name), units=units)
        variables |= mean_variables("entropy_uniform", ("layer",), state.means("entropy_uniform"), units="nats")
        variables |= mean_variables("max_weight", heads, state.means("max_weight"), units=share)
        sink = mean_variables("sink", heads, state.means("sink"), units=share)
        if (sink["sink_n"].values > 0).any():
            variables |= sink
        coords = layer_head_coords(shape) | {"offset": np.array(OFFSETS), "token_type": list(TOKEN_TYPES)}
        absent = ~np.isin(TOKEN_TYPES, shape.token_types)
        for name in ORIGINS:
            _blank(variables, name, np.broadcast_to(absent, variables[name].shape))
        if shape.causal:
            _blank(variables, "entropy_from_cls", np.ones(variables["entropy_from_cls"].shape, bool))
        return xr.Dataset(variables, coords=coords)


def _blank(variables: Mapping[str, xr.Variable], name: str, where: np.ndarray) -> None:
    """Take a mean back where the model has no such thing."""
    for suffix in ("", "_low", "_high"):
        variables[name + suffix].values[where] = np.nan
    variables[f"{name}_n"].values[where] = 0


def missing_types(shape: Shape) -> dict[str, str]:
    """The token types that the tokenizer lacks, with the reason."""
    absent = [kind for kind in TOKEN_TYPES if kind not in shape.token_types]
    return {f"token_type={kind}": "the tokenizer has no such token" for kind in absent}


def kinds_of(batch: Batch) -> Tensor:
    """Which type each token is of, `[example, token, type]`."""
    return torch.stack([batch.kind(kind) for kind in TOKEN_TYPES], dim=-1)


def row_entropy(weights: Tensor) -> Tensor:
    """Entropy of each row in nats, `[..., row, key]` to `[..., row]`; 0·ln 0 is 0."""
    if weights.device.type != "cpu":
        entropies: Tensor = torch.special.entr(weights).sum(-1)
        return entropies
    # One example at a time stays in the processor's cache. A floor under the logarithm is cheaper than a masked one,
    # and exact: weights below it add less than 1e-36.
    out = weights.new_empty(weights.shape[:-1])
    buffer = weights.new_empty(weights.shape[1:])
    for example, own in enumerate(weights):
        torch.clamp(own, min=1e-38, out=buffer).log_().mul_(own)
        torch.sum(buffer, dim=-1, out=out[example])
    return out.neg_()


def _diagonal(values: Tensor, rows: Rows, offset: int) -> Tensor:
    """The entries (i, i + offset) of a block of rows."""
    return values.diagonal(rows.start + offset, dim1=-2, dim2=-1)
