"""Surface patterns of heads: where they look by position and token type, and how broadly.

Clark et al. 2019, §3."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    WEIGHTINGS,
    LayerObserver,
    Paper,
    Shape,
    layer_head_coords,
    mean_variables,
    one_of,
)
from headwise.analyses.summaries import top_heads
from headwise.atlas.behaviours import special_token_note
from headwise.core.token_types import SPECIAL_TYPES, TYPE_NAMES
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.view import Layer
from headwise.stats.accumulators import State, means
from headwise.text.encode import Batch
from headwise.text.example import ROLES

OFFSETS = (-1, 0, 1)
OFFSET_NAMES = {-1: "previous", 0: "own", 1: "next"}
TYPES_WITH_FIRST = ("first", *TYPE_NAMES)

# Names of requested sets of keys. Analyses that request the same set share its name.
FIRST = "type first"
LATER_CLS = "type cls, not the first token"
# The types of tokens but the first, in the order of TYPE_NAMES: the first token may be a `cls`, and
# is of no other type.
LATER_TYPES = (LATER_CLS, *(f"type {name}" for name in TYPE_NAMES if name != "cls"))

# Variables by their last dim. Those that end in `_uniform` are the same for all heads.
ORIGINS = ("mass", "mass_from_sep", "mass_from_other")
MASSES = (*ORIGINS, "mass_rest", "mass_uniform", "mass_rest_uniform")
ROLE_MASSES = ("role_mass", "role_mass_rest", "role_mass_uniform")
POSITIONS = ("position", "position_rest", "position_uniform", "position_rest_uniform")
SCALARS = (
    "entropy",
    "entropy_from_cls",
    "entropy_rest",
    "entropy_uniform",
    "entropy_rest_uniform",
    "max_weight",
    "max_weight_rest",
    "sink",
)
SHARE = "share of attention"


@dataclass(frozen=True)
class Surface(LayerObserver):
    """Mean attention by relative position and token type, entropy and largest weight of each head.

    For a row i with weights `A[i, :]` over its visible keys V(i), averaged over the rows of an
    example, then over examples (or, with `weighting="tokens"`, over all rows):

    - `position[layer, head, offset]`: `A[i, i+o]` for o in −1, 0, 1, over the rows for which `i+o`
      is visible (so NaN for o = 1 in a causal model);
    - `mass[layer, head, token_type]`: `Σ_j A[i, j]` over keys of a type, from all rows;
      `mass_from_sep`, from `sep` rows; `mass_from_other`, from all but `sep`. The first token, the
      attention sink of many heads, has a type of its own, `first`, whatever it is: it also counts
      as `cls` where the tokenizer opens inputs with one, and as nothing else;
    - `mass_uniform[layer, token_type]`, `position_uniform[layer, offset]`: the same for uniform
      attention, which gives each of a short input's few tokens much;
    - `entropy[layer, head]`: `−Σ_j A ln A` in nats; `entropy_from_cls`: of row 0 alone (NaN for
      causal models and without a cls token); `entropy_uniform[layer]`: `ln |V(i)|`, that of uniform
      attention;
    - `max_weight[layer, head]`: `max_j A[i, j]`;
    - `mass_rest`, `position_rest`, `entropy_rest`, `max_weight_rest`: the same excluding the first
      token (the sink of Xiao et al. 2023), rows scaled to sum to one, over the rows after the first
      that leave more than 0.0001 of their attention to other tokens; and for uniform attention
      `mass_rest_uniform[layer, token_type]`, `position_rest_uniform[layer, offset]`,
      `entropy_rest_uniform[layer]`;
    - `role_mass`, `role_mass_rest[layer, head, role]`, `role_mass_uniform[layer, role]`
      (conversations): the same for tokens of each role, `system`, `user`, `assistant`, `tool` (what
      is said) and `template` (all that the tokenizer's template adds), excluding the first token,
      over the examples that are conversations;
    - `special_cosine[layer]` (encoders with an opening and a closing token): the cosine of the keys
      of the two, those of all heads side by side, each less the mean key of the example's other
      tokens. At 1 no head of the layer can tell the two apart, and `cls` and `sep` mean the same;
    - `sink[layer, head]` (models with learned sinks): mass on the sink. Entropy is then that of the
      remaining weights, scaled to sum to one.

    Parameters
    ----------
    weighting : str, default "examples"
        `examples` (each example has the same weight) or `tokens` (each row has).

    Notes
    -----
    Question: Where does each head look: which positions, which token types, how broadly?

    Assumes: A row of weights is a distribution over the tokens it may see, and every example has
    the same weight (`weighting`).

    Pitfalls: A mean hides rows that differ: a head can be sharp on a few tokens and attend to its
    sink on all others. Short inputs give every token much, so read shares beside `mass_uniform` and
    entropies beside `entropy_uniform`. Positions and token types overlap, since the previous token
    may be a full stop. A weight is not what is moved: the value behind it may be short
    (`attribution`).

    Cost: The pass of the model itself; on a GPU no map is formed (`benchmarks/bench_pass.py`,
    `benchmarks/bench_fused.py`).
    """

    weighting: str = "examples"

    name: ClassVar[str] = "surface"
    title: ClassVar[str] = "Where heads look: positions, token types, breadth"
    paper: ClassVar[Paper] = Paper("clark2019", "§3.1-3.3, Fig 2 and 4")
    cross: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of("weighting", self.weighting, WEIGHTINGS)

    def missing_items(self, shape: Shape) -> dict[str, str]:
        reasons = missing_token_types(shape)
        if shape.causal:
            reasons["position=1"] = "a causal model cannot look ahead"
            reasons["entropy_from_cls"] = "the first token of a causal model sees only itself"
        return reasons

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        tokenizer_types = json.loads(str(dataset.attrs.get("token_types", "[]")))
        has_values = dataset["mass"].notnull().any(("layer", "head"))
        reasons = {}
        for token_type in tokenizer_types:
            in_dataset = token_type in dataset["token_type"]
            if in_dataset and not bool(has_values.sel(token_type=token_type)):
                reasons[f"token_type={token_type}"] = "no tokens of this type in the corpus"
        return reasons

    # --- the pass -------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        state = State()

        def add(names: Sequence[str], *size: int) -> None:
            for name in names:
                if name.endswith("_uniform"):
                    state[name] = means(self.weighting, shape.layers, *size)
                else:
                    state[name] = means(self.weighting, shape.layers, shape.heads, *size)

        add(MASSES, len(TYPES_WITH_FIRST))
        if "roles" in shape.annotations:
            add(ROLE_MASSES, len(ROLES))
        add(POSITIONS, len(OFFSETS))
        add(SCALARS)
        state["special_cosine"] = means(self.weighting, shape.layers)
        return state

    def request(self, batch: Batch) -> StatsRequest:
        is_cross = batch.keys is not batch  # two texts have no offsets between them
        return StatsRequest(
            token_type_columns(batch.keys) | _role_columns(batch.keys),
            offsets=frozenset() if is_cross else frozenset(OFFSETS),
            entropy=True,
            max_weight=True,
            without_first=True,
            uniform=True,
        )

    def reduce(self, result: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        uniform = result.uniform
        assert uniform is not None
        assert result.entropy is not None
        assert result.max_weight is not None
        masses = _stack_masses(result, TYPES_WITH_FIRST)
        uniform_masses = _stack_masses(uniform, TYPES_WITH_FIRST)
        # Sets of queries, in the order of ORIGINS.
        queries = torch.stack(
            [batch.attention_mask, batch.sep, batch.attention_mask & ~batch.sep], dim=1
        ).to(masses.dtype)
        sums = {
            "mass": _sum_over_queries(queries, masses),
            "mass_uniform": uniform_masses.sum(-1).transpose(1, 2),
            "queries": queries.sum(-1)[:, None],
            "entropy": result.entropy.sum(-1),
            "entropy_from_cls": result.entropy[..., 0],
            "entropy_uniform": result.n_visible.clamp(min=1).log().sum(-1)[:, None],
            "max_weight": result.max_weight.sum(-1),
        }
        if result.learned_sink is not None:
            sums["sink"] = (result.learned_sink * batch.attention_mask[:, None]).sum(-1)
        if result.at_offset:
            sums |= _position_sums(result, uniform)
        role_masses = None
        if f"type {ROLES[0]}" in result.columns:
            role_masses = _stack_masses(result, ROLES)
            uniform_role_masses = _stack_masses(uniform, ROLES)
            sums["role_mass"] = _sum_over_queries(queries[:, :1], role_masses)[:, :, 0]
            sums["role_mass_uniform"] = uniform_role_masses.sum(-1).transpose(1, 2)
        return sums | _sums_without_first(result, batch, role_masses)

    def read_layer(self, layer: Layer, batch: Batch) -> Mapping[str, Tensor]:
        if layer.key is None:  # a module that forms its weights itself
            return {}
        return {"special_cosine": _special_cosine_sums(layer.key, batch.keys)}

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        here = (layers,)
        n_rows = batch.lengths[:, None, None].double()
        n_without_first = sums["rest_count"].double()
        for number, name in enumerate(ORIGINS):
            n_queries = sums["queries"][..., number, None].double()
            state.means(name).add_sums(sums["mass"][..., number, :], n_queries, here)

        counts = {
            "entropy": n_rows,
            "max_weight": n_rows,
            "sink": n_rows,
            "entropy_from_cls": batch.cls[:, :1, None].double(),
            "mass_rest": n_without_first[..., None],
            "entropy_rest": n_without_first,
            "max_weight_rest": n_without_first,
        }
        for name in ("position", "position_rest"):
            if name in sums:
                counts[name] = sums[f"{name}_count"].double()
        uniform_counts = {
            "entropy_uniform": n_rows[..., 0],
            "mass_uniform": n_rows,
            "entropy_rest_uniform": sums["entropy_rest_uniform_count"][..., 0].double(),
            "mass_rest_uniform": sums["rest_uniform_count"].double(),
        }
        if "position_uniform" in sums:
            uniform_counts["position_uniform"] = sums["position_count"][:, :, 0].double()
            uniform_counts["position_rest_uniform"] = sums["position_rest_uniform_count"][
                :, :, 0
            ].double()
        if "role_mass" in state and "role_mass" in sums:
            is_conversation = _conversations(batch.keys, n_rows.device)
            counts["role_mass"] = (n_rows * is_conversation)[..., None]
            counts["role_mass_rest"] = (n_without_first * is_conversation)[..., None]
            uniform_counts["role_mass_uniform"] = n_rows * is_conversation

        for name, count in counts.items():
            if name in sums:
                state.means(name).add_sums(sums[name], count, here)
        n_layers = layers.stop - layers.start
        for name, count in uniform_counts.items():  # the same for every layer and head
            value = sums[name][:, :, 0].expand(-1, n_layers, *sums[name].shape[3:])
            state.means(name).add_sums(value, count, here)
        if "special_cosine" in sums:
            cosines = sums["special_cosine"][:, :, 0]
            n_pairs = _special_pairs(batch.keys).sum(-1, keepdim=True).double()
            state.means("special_cosine").add_sums(cosines, n_pairs.expand(-1, n_layers), here)

    # --- the result -----------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        last_dim = dict.fromkeys(MASSES, ("token_type",))
        last_dim |= dict.fromkeys(ROLE_MASSES, ("role",))
        last_dim |= dict.fromkeys(POSITIONS, ("offset",))
        names = [*MASSES, *POSITIONS, *SCALARS]
        if "role_mass" in state:
            names += ROLE_MASSES
        variables: dict[str, xr.Variable] = {}
        for name in names:
            dims: tuple[str, ...] = ("layer",)
            if not name.endswith("_uniform"):
                dims += ("head",)
            dims += last_dim.get(name, ())
            units = "nats" if name.startswith("entropy") else SHARE
            mean = mean_variables(name, dims, state.means(name), units=units)
            if name == "sink" and not (mean["sink_n"].values > 0).any():
                continue  # the model has no learned sink
            variables |= mean
        if not shape.causal:
            cosine = mean_variables(
                "special_cosine", ("layer",), state.means("special_cosine"), units="cosine"
            )
            if (cosine["special_cosine_n"].values > 0).any():
                variables |= cosine

        _blank(variables, MASSES, _absent_types(variables, shape))
        if "role_mass" in state:
            is_silent = ~(variables["role_mass_uniform"].values > 0).any(0)
            _blank(variables, ROLE_MASSES, np.asarray(is_silent))
        if shape.causal:
            _blank(variables, ["entropy_from_cls"], np.array(True))
        coords = layer_head_coords(shape)
        coords |= {"offset": np.array(OFFSETS), "token_type": list(TYPES_WITH_FIRST)}
        if "role_mass" in state:
            coords["role"] = list(ROLES)
        attrs = {"token_types": json.dumps(list(shape.token_types))}
        return xr.Dataset(variables, coords=coords, attrs=attrs)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for offset, name in OFFSET_NAMES.items():
            top = top_heads(dataset.sel(offset=offset), "position")
            lines.append(f"Most attention to the {name} token: {top}")
        for token_type in map(str, dataset["token_type"].values):
            of_type = dataset.sel(token_type=token_type)
            if of_type["mass"].notnull().any() and token_type != "other":
                n_over_half = int((of_type["mass"] > 0.5).sum())
                top = top_heads(of_type, "mass")
                lines.append(
                    f"Most attention to {token_type}: {top}; over half: {n_over_half} heads"
                )
        if "role" in dataset.dims:
            for role in map(str, dataset["role"].values):
                of_role = dataset.sel(role=role)
                if of_role["role_mass"].notnull().any():
                    uniform = float(of_role["role_mass_uniform"].mean())
                    top = top_heads(of_role, "role_mass")
                    lines.append(
                        f"Most attention to {role}: {top} (uniform attention {uniform:.2f})"
                    )
        uniform_entropy = float(dataset["entropy_uniform"].mean())
        lines.append(
            f"Broadest: {top_heads(dataset, 'entropy')} nats of entropy "
            f"(uniform attention {uniform_entropy:.2f})"
        )
        note = special_token_note(dataset)
        if note:
            lines.append(note)
        return lines


# --- the keys of special tokens -----------------------------------------------------------------


def _special_pairs(batch: Batch) -> Tensor:
    """Return the closing tokens of examples that have an opening token, bool `[example, token]`."""
    return batch.sep & batch.cls[:, :1]


def _special_cosine_sums(key: Tensor, batch: Batch) -> Tensor:
    """Return the cosines of the opening token's keys with each closing token's, added up,
    `[example, 1]`.

    The mean key of the other tokens is subtracted first: it holds the bias of the projection, and
    what all tokens share, which would make any two keys alike.
    """
    keys = key.float().transpose(1, 2).flatten(2)  # example, token, all heads
    is_other = batch.attention_mask & ~batch.cls & ~batch.sep
    n_others = is_other.sum(-1).clamp(min=1)
    mean_key = torch.einsum("et,etd->ed", is_other.float(), keys) / n_others[:, None]
    directions = torch.nn.functional.normalize(keys - mean_key[:, None], dim=-1)
    cosines = torch.einsum("etd,ed->et", directions, directions[:, 0])
    return (cosines * _special_pairs(batch)).sum(-1, keepdim=True)


# --- token types --------------------------------------------------------------------------------


def token_type_columns(batch: Batch) -> dict[str, Tensor]:
    """Return the sets of keys by token type, bool `[example, token]`, under the names to request.

    The first token is `first`, also `cls` if it is one, and of no other type."""
    first = batch.token_mask("first")
    cls = batch.token_mask("cls")
    columns = {FIRST: first, "type cls": cls}
    for name in TYPE_NAMES:
        if name != "cls":
            columns[f"type {name}"] = batch.token_mask(name) & ~first
    columns[LATER_CLS] = cls & ~first
    return columns


def token_type_masks(batch: Batch) -> Tensor:
    """Return which type each token has, `[example, token, type]`."""
    return torch.stack([batch.token_mask(name) for name in TYPE_NAMES], dim=-1)


def missing_token_types(shape: Shape) -> dict[str, str]:
    """Return the token types that the tokenizer lacks, with the reason."""
    reasons = {}
    for name in TYPE_NAMES:
        if name not in shape.token_types:
            reasons[f"token_type={name}"] = "the tokenizer has no such token"
    return reasons


def _absent_types(variables: Mapping[str, xr.Variable], shape: Shape) -> np.ndarray:
    """Return which of TYPES_WITH_FIRST the tokenizer or the corpus lacks, bool `[type]`."""
    # The corpus may lack special tokens that the tokenizer has: a decoder's closing token, say.
    is_special = np.isin(TYPES_WITH_FIRST, SPECIAL_TYPES)
    never_seen = ~(variables["mass_uniform"].values > 0).any(0)
    is_known = np.isin(TYPES_WITH_FIRST, ("first", *shape.token_types))
    return (is_special & never_seen) | ~is_known


def _role_columns(batch: Batch) -> dict[str, Tensor]:
    """Return the sets of keys by role, excluding the first token, if there are conversations."""
    if all(row.roles is None for row in batch.rows):
        return {}
    later = ~batch.token_mask("first")
    return {f"type {role}": batch.token_mask(role) & later for role in ROLES}


def _conversations(batch: Batch, device: torch.device) -> Tensor:
    """Return which examples are conversations, bool `[example, 1, 1]`."""
    has_roles = [row.roles is not None for row in batch.rows]
    return torch.tensor(has_roles, device=device)[:, None, None]


# --- sums over rows -----------------------------------------------------------------------------


def _stack_masses(result: StatsResult, types: Sequence[str]) -> Tensor:
    """Return the mass of each row on keys of each type, `[example, type, head, row]`."""
    return torch.stack([result.columns[f"type {name}"] for name in types], dim=1)


def _sum_over_queries(queries: Tensor, masses: Tensor) -> Tensor:
    """Return `masses[example, type, head, row]` summed over sets of queries, `[example, set, row]`,
    as `[example, head, set, type]`."""
    totals = torch.bmm(masses.flatten(1, 2), queries.transpose(1, 2))
    return totals.view(*masses.shape[:3], -1).permute(0, 2, 3, 1)


def _position_sums(result: StatsResult, uniform: StatsResult) -> dict[str, Tensor]:
    """Return the sums of weights at each offset, for the heads and for uniform attention, and how
    many rows see such a token."""
    weights = [result.at_offset[offset].sum(-1) for offset in OFFSETS]
    uniform_weights = [uniform.at_offset[offset].sum(-1) for offset in OFFSETS]
    counts = [(uniform.at_offset[offset] > 0).sum(-1) for offset in OFFSETS]
    return {
        "position": torch.stack(weights, dim=-1),
        "position_uniform": torch.stack(uniform_weights, dim=-1),
        "position_count": torch.stack(counts, dim=-1),
    }


def _sums_without_first(
    result: StatsResult, batch: Batch, role_masses: Tensor | None
) -> dict[str, Tensor]:
    """Return sums over the rows after the first, excluding the first token, each row scaled to sum
    to one."""
    uniform = result.uniform
    assert uniform is not None
    assert uniform.without_first is not None
    assert result.without_first is not None
    row_number = torch.arange(batch.attention_mask.shape[1], device=batch.attention_mask.device)
    later = (batch.attention_mask & (row_number > 0))[:, None]
    usable, scale = result.rows_without_first(later)
    uniform_usable, uniform_scale = uniform.rows_without_first(later)
    n_other_keys = (uniform.without_first.mass * result.n_visible[:, None]).round()
    sums = {
        "rest_count": usable.sum(-1),
        "mass_rest": later_masses_without_first(result, scale),
        "entropy_rest": (result.without_first.entropy * usable).sum(-1),
        "max_weight_rest": (result.without_first.max_weight * usable).sum(-1),
        "entropy_rest_uniform": (n_other_keys.clamp(min=1).log() * later).sum(-1),
        "entropy_rest_uniform_count": later.sum(-1),
        "mass_rest_uniform": later_masses_without_first(uniform, uniform_scale),
        "rest_uniform_count": uniform_usable.sum(-1),
    }
    # The first token has no mass: a column of zeros stands for it.
    for name in ("mass_rest", "mass_rest_uniform"):
        sums[name] = torch.nn.functional.pad(sums[name], (1, 0))
    if role_masses is not None:
        scaled = torch.linalg.vecdot(role_masses, scale[:, None].expand_as(role_masses))
        sums["role_mass_rest"] = scaled.transpose(1, 2)
    if result.at_offset:
        sees_offset = {}
        for offset in OFFSETS:
            sees_offset[offset] = (uniform.at_offset[offset] > 0) & (row_number + offset > 0)
        for name, attention, rows, row_scale in (
            ("position_rest", result, usable, scale),
            ("position_rest_uniform", uniform, uniform_usable, uniform_scale),
        ):
            weights = []
            counts = []
            for offset, sees in sees_offset.items():
                weights.append((attention.at_offset[offset] * row_scale * (rows & sees)).sum(-1))
                counts.append((rows & sees).sum(-1))
            sums[name] = torch.stack(weights, dim=-1)
            sums[f"{name}_count"] = torch.stack(counts, dim=-1)
    return sums


def later_masses_without_first(result: StatsResult, scale: Tensor) -> Tensor:
    """Return the mass on tokens of TYPE_NAMES excluding the first token, `[example, head, type]`.

    Each row is multiplied by its `scale[example, head, row]`, then rows are added up."""
    masses = torch.stack([result.columns[name] for name in LATER_TYPES], dim=1)
    totals: Tensor = torch.linalg.vecdot(masses, scale[:, None].expand_as(masses))
    return totals.transpose(1, 2)


def _blank(variables: Mapping[str, xr.Variable], names: Sequence[str], where: np.ndarray) -> None:
    """Set means to NaN, and their counts to 0, where the model or the corpus has no such thing."""
    for name in names:
        mask = np.broadcast_to(where, variables[name].shape)
        for suffix in ("", "_low", "_high"):
            variables[name + suffix].values[mask] = np.nan
        variables[f"{name}_n"].values[mask] = 0
