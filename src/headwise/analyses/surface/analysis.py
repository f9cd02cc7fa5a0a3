"""Surface patterns of heads: where they look by position and token type, and how broadly (Clark et
al. 2019, §3)."""

from __future__ import annotations

import json
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
    layer_head_coords,
    mean_variables,
    one_of,
)
from headwise.analyses.summaries import top_heads
from headwise.models.statistics import MIN_MASS_WITHOUT_SINK, StatsRequest, StatsResult
from headwise.stats.accumulators import State, means
from headwise.text.encode import Batch
from headwise.text.example import ROLES

OFFSETS = (-1, 0, 1)
TOKEN_TYPES = ("cls", "sep", "punct", "other")
KINDS = ("first", *TOKEN_TYPES)
FIRST, LATER_CLS = "kind first", "kind cls, not the first token"
LATER = (
    LATER_CLS,
    *(f"kind {name}" for name in TOKEN_TYPES[1:]),
)  # kinds of tokens after the first
ORIGINS = ("mass", "mass_from_sep", "mass_from_other")

MASSES = (*ORIGINS, "mass_rest", "mass_uniform")
ROLE_MASSES = ("role_mass", "role_mass_rest", "role_mass_uniform")
POSITIONS = ("position", "position_rest", "position_uniform")
SCALARS = (
    *("entropy", "entropy_from_cls", "entropy_rest", "entropy_uniform", "entropy_rest_uniform"),
    *("max_weight", "max_weight_rest", "sink"),
)


@dataclass(frozen=True)
class Surface(Observer):
    """Mean attention by relative position and token type, entropy and largest weight of each head.

    For a row i with weights `A[i, :]` over its visible keys V(i), averaged over the rows of an
    example, then over examples (or, with `weighting="tokens"`, over all rows alike):

    - `position[layer, head, offset]`: `A[i, i+o]` for o in −1, 0, 1, over the rows for which `i+o` is visible (so NaN
      for o = 1 in a causal model);
    - `mass[layer, head, token_type]`: `Σ_j A[i, j]` over keys of a type, from all rows; `mass_from_sep`, from `sep`
      rows; `mass_from_other`, from all but `sep`. The first token, on which many heads rest, is a
      kind of its own, `first`, whatever it is: it counts as `cls` too where the tokenizer opens
      inputs with one, and as nothing else;
    - `mass_uniform[layer, token_type]`, `position_uniform[layer, offset]`: the same of a head that attends to
      everything it may see alike, which gives a short input's few tokens much;
    - `entropy[layer, head]`: `−Σ_j A ln A` in nats; `entropy_from_cls`: of row 0 alone (NaN for causal models and
      without a cls token); `entropy_uniform[layer]`: `ln |V(i)|`, what a uniform head would have;
    - `max_weight[layer, head]`: `max_j A[i, j]`;
    - `mass_rest`, `position_rest`, `entropy_rest`, `max_weight_rest`: the same with the first token left out and rows
      made to sum to one (Xiao et al. 2023 call it a sink), over the rows after the first that leave
      anything; and `entropy_rest_uniform[layer]`;
    - `role_mass`, `role_mass_rest[layer, head, role]`, `role_mass_uniform[layer, role]` (conversations): the same of
      tokens of each role, `system`, `user`, `assistant`, `tool` (what is said) and `template` (all
      that the tokenizer's template adds), but for the first token, over the examples that are
      conversations;
    - `sink[layer, head]` (models with learned sinks): mass on the sink. Entropy is then that of the rest, made to sum
      to one.

    Parameters
    ----------
    weighting : str, default "examples"
        `examples` (each example weighs alike) or `tokens` (each row alike).

    Notes
    -----
    Question: Where does each head look: which positions, which kinds of token, how broadly?

    Assumes: A row of weights is a distribution over the tokens it may see, and every example weighs
    alike (`weighting`).

    Traps: A mean hides rows that differ: a head can be sharp on a few tokens and rest on all
    others. Short inputs give every token much, so read shares beside `mass_uniform` and entropies
    beside `entropy_uniform`. Positions and kinds overlap, since the previous token may be a full
    stop. A weight is not what is moved: the value behind it may be short (`attribution`).

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
        given = dataset["mass"].notnull().any(("layer", "head"))
        had = json.loads(str(dataset.attrs.get("token_types", "[]")))
        lacking = [
            kind
            for kind in had
            if kind in dataset["token_type"] and not bool(given.sel(token_type=kind))
        ]
        return {f"token_type={kind}": "no text of the corpus has such a token" for kind in lacking}

    def start(self, shape: Shape) -> State:
        heads = (shape.layers, shape.heads)
        state = State()
        roles = ROLE_MASSES if "roles" in shape.annotations else ()
        sizes = (
            (MASSES, (len(KINDS),)),
            (roles, (len(ROLES),)),
            (POSITIONS, (len(OFFSETS),)),
            (SCALARS, ()),
        )
        for names, size in sizes:
            for name in names:
                where = heads if not name.endswith("_uniform") else heads[:1]
                state[name] = means(self.weighting, *where, *size)
        return state

    def request(self, batch: Batch) -> StatsRequest:
        return StatsRequest(
            token_type_columns(batch.keys) | _role_columns(batch.keys),
            offsets=frozenset(OFFSETS)
            if batch.keys is batch
            else frozenset(),  # between two texts there are none
            entropy=True,
            max_weight=True,
            without_sink=True,
            uniform=True,
        )

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        even, entropy, largest, real = (
            answers.uniform,
            answers.entropy,
            answers.max_weight,
            batch.attention_mask[:, None],
        )
        assert even is not None
        assert entropy is not None
        assert largest is not None
        masses = torch.stack(
            [answers.columns[f"kind {name}"] for name in KINDS], dim=1
        )  # example, kind, head, row
        queries = torch.stack(
            [batch.attention_mask, batch.sep, batch.attention_mask & ~batch.sep], dim=1
        ).to(masses.dtype)
        evenly = torch.stack([even.columns[f"kind {name}"] for name in KINDS], dim=-1)
        sums = {
            "mass": _from(queries, masses),
            "mass_uniform": evenly.sum(2),
            "queries": queries.sum(-1)[:, None],
            "entropy": entropy.sum(-1),
            "max_weight": largest.sum(-1),
            "entropy_uniform": answers.n_visible.clamp(min=1).log().sum(-1)[:, None],
            "entropy_from_cls": entropy[..., 0],
        }
        if answers.sink is not None:
            sums["sink"] = (answers.sink * real).sum(-1)
        if answers.at_offset:
            can = [even.at_offset[offset] > 0 for offset in OFFSETS]
            sums["position"] = torch.stack(
                [answers.at_offset[offset].sum(-1) for offset in OFFSETS], dim=-1
            )
            sums["position_uniform"] = torch.stack(
                [even.at_offset[offset].sum(-1) for offset in OFFSETS], dim=-1
            )
            sums["position_count"] = torch.stack([one.sum(-1) for one in can], dim=-1)
        if f"kind {ROLES[0]}" in answers.columns:
            said, as_even = (
                torch.stack([of.columns[f"kind {role}"] for role in ROLES], dim=1)
                for of in (answers, even)
            )
            sums["role_mass"] = _from(queries[:, :1], said)[:, :, 0]
            sums["role_mass_uniform"] = as_even.sum(-1).transpose(1, 2)
            return sums | _rest(answers, masses, real, said)
        return sums | _rest(answers, masses, real)

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        here = (layers,)
        count = batch.lengths[:, None, None].double()
        for i, name in enumerate(ORIGINS):
            state.means(name).add_sums(
                sums["mass"][..., i, :], sums["queries"][..., i, None].double(), here
            )
        counts = dict.fromkeys(("entropy", "max_weight", "sink"), count)
        counts |= {"entropy_from_cls": batch.cls[:, :1, None].double()}
        left = sums["rest_count"].double()
        counts |= {"mass_rest": left[..., None], "entropy_rest": left, "max_weight_rest": left}
        counts |= {
            name: sums[f"{name}_count"].double()
            for name in ("position", "position_rest")
            if name in sums
        }
        for name, of in counts.items():
            if name in sums:
                state.means(name).add_sums(sums[name], of, here)
        uniform = {"entropy_uniform": count[..., 0], "mass_uniform": count}
        uniform |= {"entropy_rest_uniform": sums["entropy_rest_uniform_count"][..., 0].double()}
        if "position_uniform" in sums:
            uniform["position_uniform"] = sums["position_count"][:, :, 0].double()
        if "role_mass" in state and "role_mass" in sums:
            talks = torch.tensor(
                [row.roles is not None for row in batch.keys.rows], device=left.device
            )[:, None, None]
            state.means("role_mass").add_sums(sums["role_mass"], (count * talks)[..., None], here)
            state.means("role_mass_rest").add_sums(
                sums["role_mass_rest"], (left * talks)[..., None], here
            )
            uniform["role_mass_uniform"] = count * talks
        many = layers.stop - layers.start
        for name, of in uniform.items():  # of every layer the same
            own = sums[name][:, :, 0].expand(-1, many, *sums[name].shape[3:])
            state.means(name).add_sums(own, of, here)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for offset, name in ((-1, "previous"), (0, "own"), (1, "next")):
            lines.append(
                f"Most attention to the {name} token: {top_heads(dataset.sel(offset=offset), 'position')}"
            )
        for kind in map(str, dataset["token_type"].values):
            one = dataset.sel(token_type=kind)
            if one["mass"].notnull().any() and kind != "other":
                over = int((one["mass"] > 0.5).sum())
                lines.append(
                    f"Most attention to {kind}: {top_heads(one, 'mass')}; over half: {over} heads"
                )
        for role in map(str, dataset["role"].values) if "role" in dataset.dims else ():
            one = dataset.sel(role=role)
            if one["role_mass"].notnull().any():
                even = float(one["role_mass_uniform"].mean())
                lines.append(
                    f"Most attention to {role}: {top_heads(one, 'role_mass')} (even attention {even:.2f})"
                )
        uniform = float(dataset["entropy_uniform"].mean())
        lines.append(
            f"Broadest: {top_heads(dataset, 'entropy')} nats of entropy (even attention {uniform:.2f})"
        )
        return lines

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        heads, share = ("layer", "head"), "share of attention"
        last = dict.fromkeys(MASSES, ("token_type",)) | dict.fromkeys(POSITIONS, ("offset",))
        last |= dict.fromkeys(ROLE_MASSES, ("role",))
        variables: dict[str, xr.Variable] = {}
        for name in (
            *MASSES,
            *POSITIONS,
            *SCALARS,
            *(name for name in ROLE_MASSES if name in state),
        ):
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
        if "role_mass" in state:
            coords["role"] = list(ROLES)
            silent = ~(variables["role_mass_uniform"].values > 0).any(0)
            for name in ROLE_MASSES:
                _blank(variables, name, np.broadcast_to(silent, variables[name].shape))
        if shape.causal:
            _blank(
                variables, "entropy_from_cls", np.ones(variables["entropy_from_cls"].shape, bool)
            )
        return xr.Dataset(
            variables, coords=coords, attrs={"token_types": json.dumps(list(shape.token_types))}
        )


def token_type_columns(batch: Batch) -> dict[str, Tensor]:
    """Which tokens are of a kind, bool `[example, token]`: the first is `first`, and `cls` where it
    is one."""
    first, cls = batch.token_mask("first"), batch.token_mask("cls")
    others = {f"kind {name}": batch.token_mask(name) & ~first for name in TOKEN_TYPES[1:]}
    return {FIRST: first, "kind cls": cls, **others, LATER_CLS: cls & ~first}


def _role_columns(batch: Batch) -> dict[str, Tensor]:
    """Which tokens but the first are of a role, where the batch holds a conversation."""
    if all(row.roles is None for row in batch.rows):
        return {}
    return {f"kind {role}": batch.token_mask(role) & ~batch.token_mask("first") for role in ROLES}


def _from(queries: Tensor, masses: Tensor) -> Tensor:
    """`masses[example, kind, head, row]` summed over the rows of sets of queries, `[example, set,
    row]`, as `[example, head, set, kind]`."""
    of = torch.bmm(masses.flatten(1, 2), queries.transpose(1, 2))
    return of.view(*masses.shape[:3], -1).permute(0, 2, 3, 1)


def _rest(
    answers: StatsResult, masses: Tensor, real: Tensor, said: Tensor | None = None
) -> dict[str, Tensor]:
    """Sums over the rows after the first of what is left without the first token, each row made to
    sum to one."""
    rest, even = answers.without_sink, answers.uniform
    assert rest is not None
    assert even is not None
    place = torch.arange(masses.shape[3], device=masses.device)
    later = real & (place > 0)
    tokens = (
        1.0
        if answers.sink is None
        else (1 - answers.sink).clamp(min=torch.finfo(masses.dtype).tiny)
    )
    used = later & (rest.mass / tokens > MIN_MASS_WITHOUT_SINK)
    scale = torch.where(used, 1 / rest.mass.clamp(min=torch.finfo(masses.dtype).tiny), 0.0)
    others = torch.stack(
        [answers.columns[LATER_CLS], *masses[:, 2:].unbind(1)], dim=1
    )  # the first token is of no kind
    without = torch.nn.functional.pad(
        torch.linalg.vecdot(others, scale[:, None].expand_as(others)), (0, 0, 1, 0)
    )
    assert even.without_sink is not None
    seen = (even.without_sink.mass * answers.n_visible[:, None]).round()  # keys but the first
    sums = {
        "rest_count": used.sum(-1),
        "mass_rest": without.transpose(1, 2),
        "entropy_rest": (rest.entropy * used).sum(-1),
        "max_weight_rest": (rest.max_weight * used).sum(-1),
        "entropy_rest_uniform": (seen.clamp(min=1).log() * later).sum(-1),
        "entropy_rest_uniform_count": later.sum(-1),
    }
    if said is not None:
        sums["role_mass_rest"] = torch.linalg.vecdot(
            said, scale[:, None].expand_as(said)
        ).transpose(1, 2)
    if answers.at_offset:
        there = {o: used & (even.at_offset[o] > 0) & (place + o > 0) for o in OFFSETS}
        sums["position_rest"] = torch.stack(
            [(answers.at_offset[o] * scale * there[o]).sum(-1) for o in OFFSETS], dim=-1
        )
        sums["position_rest_count"] = torch.stack([there[o].sum(-1) for o in OFFSETS], dim=-1)
    return sums


def _blank(variables: Mapping[str, xr.Variable], name: str, where: np.ndarray) -> None:
    """Take a mean back where the model has no such thing."""
    for suffix in ("", "_low", "_high"):
        variables[name + suffix].values[where] = np.nan
    variables[f"{name}_n"].values[where] = 0


def missing_token_types(shape: Shape) -> dict[str, str]:
    """The token types that the tokenizer lacks, with the reason."""
    absent = [kind for kind in TOKEN_TYPES if kind not in shape.token_types]
    return {f"token_type={kind}": "the tokenizer has no such token" for kind in absent}


def token_type_masks(batch: Batch) -> Tensor:
    """Which type each token is of, `[example, token, type]`."""
    return torch.stack([batch.token_mask(kind) for kind in TOKEN_TYPES], dim=-1)
