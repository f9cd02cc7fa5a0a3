"""Surface patterns of heads: where they look by position and token type, and how broadly (Clark et al. 2019, §3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import WEIGHTINGS, Observer, Paper, Shape, layer_head_coords, mean_variables, one_of
from headwise.analyses.headlines import top_heads
from headwise.models.ask import row_entropy
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import State, means
from headwise.text.encode import Batch

OFFSETS = (-1, 0, 1)
TOKEN_TYPES = ("cls", "sep", "punct", "other")
KINDS = ("first", *TOKEN_TYPES)
LEAST_REST = 1e-4  # of its attention: a row that leaves less to all but the first token has no rest to speak of
ORIGINS = ("mass", "mass_from_sep", "mass_from_other")

MASSES = (*ORIGINS, "mass_rest", "mass_uniform")
POSITIONS = ("position", "position_rest", "position_uniform")
SCALARS = (
    *("entropy", "entropy_from_cls", "entropy_rest", "entropy_uniform", "entropy_rest_uniform"),
    *("max_weight", "max_weight_rest", "sink"),
)


@dataclass(frozen=True)
class Surface(Observer):
    """Mean attention by relative position and token type, entropy and largest weight of each head.

    For a row i with weights `A[i, :]` over its visible keys V(i), averaged over the rows of an example, then over
    examples (or, with `weighting="tokens"`, over all rows alike):

    - `position[layer, head, offset]`: `A[i, i+o]` for o in −1, 0, 1, over the rows for which `i+o` is visible (so NaN
      for o = 1 in a causal model);
    - `mass[layer, head, token_type]`: `Σ_j A[i, j]` over keys of a type, from all rows; `mass_from_sep`, from `sep`
      rows; `mass_from_other`, from all but `sep`. The first token, on which many heads rest, is a kind of its own,
      `first`, whatever it is: it counts as `cls` too where the tokenizer opens inputs with one, and as nothing else;
    - `mass_uniform[layer, token_type]`, `position_uniform[layer, offset]`: the same of a head that attends to
      everything it may see alike, which gives a short input's few tokens much;
    - `entropy[layer, head]`: `−Σ_j A ln A` in nats; `entropy_from_cls`: of row 0 alone (NaN for causal models and
      without a cls token); `entropy_uniform[layer]`: `ln |V(i)|`, what a uniform head would have;
    - `max_weight[layer, head]`: `max_j A[i, j]`;
    - `mass_rest`, `position_rest`, `entropy_rest`, `max_weight_rest`: the same with the first token left out and rows
      made to sum to one (Xiao et al. 2023 call it a sink), over the rows after the first that leave anything; and
      `entropy_rest_uniform[layer]`;
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

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        given = dataset["mass"].notnull().any(("layer", "head"))
        had = json.loads(str(dataset.attrs.get("token_types", "[]")))
        lacking = [kind for kind in had if kind in dataset["token_type"] and not bool(given.sel(token_type=kind))]
        return {f"token_type={kind}": "no text of the corpus has such a token" for kind in lacking}

    def start(self, shape: Shape) -> State:
        heads = (shape.layers, shape.heads)
        state = State()
        for names, size in ((MASSES, (len(KINDS),)), (POSITIONS, (len(OFFSETS),)), (SCALARS, ())):
            for name in names:
                where = heads if not name.endswith("_uniform") else heads[:1]
                state[name] = means(self.weighting, *where, *size)
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
        kinds = _kinds(batch.keys).to(weights.dtype)
        even = rows.visible[:, 0].to(weights.dtype)
        even = even / even.sum(-1, keepdim=True).clamp(min=1)
        sums = {
            "mass": attended @ kinds[:, None],
            "mass_uniform": even.sum(1, keepdim=True).matmul(kinds)[:, 0],
            "position_uniform": torch.stack([_diagonal(even, rows, o).sum(-1) for o in OFFSETS], dim=-1),
            "queries": queries.sum(-1),
            "entropy": entropies.sum(-1),
            "max_weight": weights.amax(-1).sum(-1),
            "entropy_uniform": rows.visible[:, 0].sum(-1).clamp(min=1).log().sum(-1),
            "position": torch.stack([_diagonal(weights, rows, o).sum(-1) for o in OFFSETS], dim=-1),
            "position_count": torch.stack([_diagonal(rows.visible, rows, o).sum(-1) for o in OFFSETS], dim=-1),
            "entropy_from_cls": entropies[..., 0] if rows.start == 0 else torch.zeros_like(entropies[..., 0]),
        }
        if rows.sink is not None:
            sums["sink"] = (rows.sink * real[:, None]).sum(-1)
        sums |= _rest(rows, tokens, entropies, real, kinds)
        if batch.keys is not batch:  # between two texts there are no offsets
            sums |= {name: torch.zeros_like(own) for name, own in sums.items() if name.startswith("position")}
        return sums

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        here = (layer.layer,)
        count = batch.lengths[:, None].double()
        for i, name in enumerate(ORIGINS):
            state.means(name).add_sums(sums["mass"][:, :, i], sums["queries"][:, i, None, None].double(), here)
        counts = dict.fromkeys(("entropy", "max_weight", "sink"), count)
        counts |= {"entropy_uniform": count[:, 0], "entropy_from_cls": batch.cls[:, :1].double()}
        counts |= {"mass_uniform": count, "position": sums["position_count"].double()}
        counts |= {"position_uniform": sums["position_count"][:, 0].double()}
        counts |= {name: sums[f"{name}_count"].double() for name in ("position_rest", "entropy_rest_uniform")}
        left = sums["rest_count"].double()
        counts |= {"mass_rest": left[..., None], "entropy_rest": left, "max_weight_rest": left}
        for name, of in counts.items():
            if name in sums:
                state.means(name).add_sums(sums[name], of, here)

    def headline(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for offset, name in ((-1, "previous"), (0, "own"), (1, "next")):
            lines.append(f"Most attention to the {name} token: {top_heads(dataset.sel(offset=offset), 'position')}")
        for kind in map(str, dataset["token_type"].values):
            one = dataset.sel(token_type=kind)
            if one["mass"].notnull().any() and kind != "other":
                over = int((one["mass"] > 0.5).sum())
                lines.append(f"Most attention to {kind}: {top_heads(one, 'mass')}; over half: {over} heads")
        uniform = float(dataset["entropy_uniform"].mean())
        lines.append(f"Broadest: {top_heads(dataset, 'entropy')} nats of entropy (even attention {uniform:.2f})")
        return lines

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        heads, share = ("layer", "head"), "share of attention"
        last = dict.fromkeys(MASSES, ("token_type",)) | dict.fromkeys(POSITIONS, ("offset",))
        variables: dict[str, xr.Variable] = {}
        for name in (*MASSES, *POSITIONS, *SCALARS):
            dims = (*(heads if not name.endswith("_uniform") else heads[:1]), *last.get(name, ()))
            units = "nats" if name.startswith("entropy") else share
            made = mean_variables(name, dims, state.means(name), units=units)
            if name != "sink" or (made["sink_n"].values > 0).any():
                variables |= made
        coords = layer_head_coords(shape) | {"offset": np.array(OFFSETS), "token_type": list(KINDS)}
        # Special tokens that no text of the corpus has: a decoder's closing token, say.
        never = np.isin(KINDS, ("cls", "sep")) & ~(variables["mass_uniform"].values > 0).any(0)
        absent = never | ~np.isin(KINDS, ("first", *shape.token_types))
        for name in MASSES:
            _blank(variables, name, np.broadcast_to(absent, variables[name].shape))
        if shape.causal:
            _blank(variables, "entropy_from_cls", np.ones(variables["entropy_from_cls"].shape, bool))
        return xr.Dataset(variables, coords=coords, attrs={"token_types": json.dumps(list(shape.token_types))})


def _kinds(batch: Batch) -> Tensor:
    """Which kind each token is of, `[example, token, kind]`: the first is `first`, and `cls` where it is one."""
    first, own = batch.kind("first"), kinds_of(batch)
    own[..., 1:] &= ~first[..., None]
    return torch.cat([first[..., None], own], dim=-1)


def _rest(rows: Rows, tokens: Tensor, entropies: Tensor, real: Tensor, kinds: Tensor) -> dict[str, Tensor]:
    """Sums over the rows after the first of what is left without the first token, each row made to sum to one."""
    later = real & (torch.arange(rows.start, rows.stop, device=real.device) > 0)
    on_first, others = tokens[..., 0], tokens[..., 1:]
    left = others.sum(-1)
    used = later[:, None] & (left > LEAST_REST)
    scale = torch.where(used, 1 / left.clamp(min=LEAST_REST), 0.0)
    # -Σ (w/r) ln (w/r) is -Σ w ln w / r + ln r.
    entropy = ((entropies + torch.xlogy(on_first, on_first)) * scale - scale.clamp(min=1).log()).clamp(min=0)
    attended = scale.unsqueeze(-2) @ tokens  # example, head, 1, key
    attended[..., 0] = 0
    seen = rows.visible[:, 0, :, 1:].sum(-1)
    positions = [_rest_diagonal(rows, tokens, scale, used, offset) for offset in OFFSETS]
    return {
        "rest_count": used.sum(-1),
        "mass_rest": (attended @ kinds[:, None])[:, :, 0],
        "entropy_rest": (entropy * used).sum(-1),
        "max_weight_rest": (others.amax(-1) * scale).sum(-1),
        "position_rest": torch.stack([total for total, _ in positions], dim=-1),
        "position_rest_count": torch.stack([count for _, count in positions], dim=-1),
        "entropy_rest_uniform": (seen.clamp(min=1).log() * later).sum(-1),
        "entropy_rest_uniform_count": later.sum(-1),
    }


def _rest_diagonal(rows: Rows, tokens: Tensor, scale: Tensor, used: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """The sum of the entries (i, i + offset) without the first token, and their number, for each example and head."""
    start = rows.start + offset  # the key of the block's first row
    diagonal, visible = (_diagonal(values, rows, offset) for values in (tokens, rows.visible))
    here = slice(max(0, -start), max(0, -start) + diagonal.shape[-1])
    later = torch.arange(diagonal.shape[-1], device=tokens.device) + max(0, start) > 0
    there = used[..., here] & visible & later
    return (diagonal * scale[..., here] * there).sum(-1), there.sum(-1)


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


def _diagonal(values: Tensor, rows: Rows, offset: int) -> Tensor:
    """The entries (i, i + offset) of a block of rows."""
    return values.diagonal(rows.start + offset, dim1=-2, dim2=-1)
