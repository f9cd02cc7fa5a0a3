"""Sieve bias computed from statistics of the attention kernel, without weights or matrices.

Three steps:

1. `request_sieves`: every sieve of a known form (`sieves/forms.py`) is a request for statistics: a
   band requests offsets, a key set a column, equal labels a pair of label arrays, arcs single
   weights. The same statistics of uniform attention are requested with them.
2. `uniform_sieves`: what uniform attention gives each sieve, computed once for all layers that see
   the same keys.
3. `bias_sums_from_stats`: for a row t, β(t) is the mass on the sieve over the mass that uniform
   attention has there. Sums over rows go to the state of the analysis.

The first token is requested apart and added: the mass beside it is then exact however small it is.
How the scores are tested is in `significance.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.roles.sieves import Sieve, TokenAxis
from headwise.analyses.roles.sieves.forms import (
    EqualLabels,
    KeySet,
    OffsetBand,
    RelationArcs,
    SieveForm,
)
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.text.encode import Batch, Encoded

# The name under which `surface` requests the same set of keys: it is then computed once for both.
FIRST_TOKEN = "type first"


# --- 1. what is requested -------------------------------------------------------------------------


def request_sieves(sieves: Sequence[Sieve], batch: Batch) -> StatsRequest | None:
    """Return the statistics these sieves need; None if one of them is a plain function."""
    axes = [_key_axis(row) for row in batch.rows]
    columns: dict[str, Tensor] = {}
    equal_labels: dict[str, tuple[Tensor, Tensor]] = {}
    pairs: dict[str, Tensor] = {}
    offsets: set[int] = set()
    for sieve in sieves:
        form = sieve.form
        if form is None:
            return None
        if isinstance(form, OffsetBand):
            offsets.update(form.offsets)
        elif isinstance(form, KeySet):
            keys = _pad(batch, [form.of(axis)[0] for axis in axes], padding=False)
            columns[_stat_name(sieve)] = _clear_first(keys, False)
        elif isinstance(form, EqualLabels):
            if form.name not in equal_labels:
                query_labels = [form.query_labels(axis)[0] for axis in axes]
                # Labels that no token has would cost as much as any others.
                if any((labels >= 0).any() for labels in query_labels):
                    key_labels = _pad(
                        batch, [form.key_labels(axis)[0] for axis in axes], padding=-1
                    )
                    equal_labels[form.name] = (
                        _pad(batch, query_labels, padding=-1),
                        _clear_first(key_labels, -1),
                    )
            if not form.includes_self:
                offsets.add(0)  # the attention of a token to itself is subtracted
        else:
            pairs[_stat_name(sieve)] = _arc_pairs(sieve, form, batch)
    columns[FIRST_TOKEN] = batch.token_mask("first")
    return StatsRequest(
        columns, equal_labels, frozenset(offsets), pairs, without_first=True, uniform=True
    )


def _key_axis(row: Encoded) -> TokenAxis:
    return TokenAxis(row, 0, len(row), as_column=False)


def _stat_name(sieve: Sieve) -> str:
    return f"role {sieve.name}"


def _clear_first(values: Tensor, empty: int | bool) -> Tensor:
    """Take the first token out of `values[example, token]`, in place."""
    values[:, 0] = empty
    return values


def _pad(batch: Batch, values: Sequence[np.ndarray], padding: int | bool) -> Tensor:
    """Return one array per example as one tensor `[example, token]`."""
    padded = np.full(tuple(batch.ids.shape), padding)
    for place, row_values in enumerate(values):
        padded[place, : len(row_values)] = row_values
    return torch.from_numpy(padded).to(batch.device, non_blocking=True)


def _arc_pairs(sieve: Sieve, form: RelationArcs, batch: Batch) -> Tensor:
    """Return example, query and key of every pair, `[3, pair]`, without the first token as key."""

    def gather() -> Tensor:
        of_examples = []
        for place, row in enumerate(batch.rows):
            pairs = form.pairs(row)
            later_keys = pairs[:, pairs[1] > 0]
            of_examples.append(np.insert(later_keys, 0, place, axis=0))
        joined = np.concatenate(of_examples, axis=1)
        return torch.from_numpy(joined).to(batch.device, non_blocking=True)

    return batch.remember(("pairs", sieve.name), gather)


# --- 2. uniform attention -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class UniformSieve:
    """What uniform attention gives one sieve; the same for all layers that see the same keys.

    Attributes
    ----------
    factor : Tensor
        `[example, 1, row]`: 1 over the share of uniform attention on the sieve; 0 where the sieve
        is empty.
    first_factor : Tensor, optional
        `factor` for rows whose sieve holds the first token, else 0; None if there are none.
    factor_without_first : Tensor, optional
        The factor for rows and keys without the first token; None for models that are not causal.
    count : Tensor
        `[example, 1]`: rows whose sieve is not empty.
    max_bias : Tensor
        `[example, 1]`: sum of the largest possible bias of these rows.
    """

    factor: Tensor
    first_factor: Tensor | None
    factor_without_first: Tensor | None
    count: Tensor
    max_bias: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class UniformSieves:
    """What uniform attention gives all sieves of an analysis on a batch.

    `sieves` has None for a sieve that is empty on the whole batch; `is_later[example, 1, row]`
    marks the rows after the first; `maybe_causal` is False if the first row sees later tokens.
    `uniform` is what it was computed from; it is kept so that its `id` stays unique.
    """

    uniform: StatsResult
    sieves: list[UniformSieve | None]
    is_later: Tensor
    maybe_causal: bool


def uniform_sieves(sieves: Sequence[Sieve], stats: StatsResult, batch: Batch) -> UniformSieves:
    """Return what uniform attention gives each sieve."""
    uniform = stats.uniform
    assert uniform is not None
    assert uniform.without_first is not None
    n_visible = stats.n_visible[:, None]
    on_cpu = stats.n_visible.device.type == "cpu"
    row_index = torch.arange(n_visible.shape[-1], device=n_visible.device)
    is_later = batch.attention_mask[:, None] & (row_index > 0)
    # Rows without the first token are needed only for decoders; asking on a GPU would force a
    # synchronisation, so the sums are computed there in any case.
    maybe_causal = stats.n_visible.is_cuda or not bool((stats.n_visible[:, 0] > 1).any())

    results: list[UniformSieve | None] = []
    for sieve in sieves:
        assert sieve.form is not None
        other_share = _mass_without_first(sieve, sieve.form, uniform, batch)
        holds_first = _holds_first(sieve, batch)
        share = other_share + uniform.columns[FIRST_TOKEN] * holds_first
        # The smallest share of one token is 1 / |V(t)|: half of it tells a token from rounding.
        has_keys = share * n_visible > 0.5
        if on_cpu and not bool(has_keys.any()):
            results.append(None)
            continue
        factor = torch.where(has_keys, 1 / share.clamp(min=1e-12), 0.0)
        first_factor = None
        if not on_cpu or bool(holds_first.any()):
            first_factor = factor * holds_first
        factor_without_first = None
        if maybe_causal:
            has_other_keys = (other_share * n_visible > 0.5) & is_later
            ratio = uniform.without_first.mass / other_share.clamp(min=1e-12)
            factor_without_first = torch.where(has_other_keys, ratio, 0.0)
        results.append(
            UniformSieve(
                factor,
                first_factor,
                factor_without_first,
                count=has_keys.double().sum(-1),
                max_bias=factor.double().sum(-1),
            )
        )
    return UniformSieves(uniform, results, is_later, maybe_causal)


def _holds_first(sieve: Sieve, batch: Batch) -> Tensor:
    """Return `[example, 1, row]`: whether the sieve of a row holds the first token."""
    form = sieve.form
    assert form is not None

    def of_row(row: Encoded) -> np.ndarray:
        axis = _key_axis(row)
        position = np.arange(len(row))
        holds: np.ndarray
        if isinstance(form, OffsetBand):
            holds = (-position >= form.low) & (-position <= form.high)
        elif isinstance(form, KeySet):
            holds = form.of(axis)[0, 0] & (position >= int(form.not_for_first_query))
        elif isinstance(form, EqualLabels):
            query_labels = form.query_labels(axis)[0]
            first_label = form.key_labels(axis)[0, 0]
            holds = (query_labels == first_label) & (query_labels >= 0)
            holds = holds & (position >= int(not form.includes_self))
        else:
            query, key = form.pairs(row)
            holds = np.isin(position, query[key == 0])
        return holds

    def of_batch() -> Tensor:
        return _pad(batch, [of_row(row) for row in batch.rows], padding=False)[:, None]

    return batch.remember(("holds first", sieve.name), of_batch)


# --- 3. the bias ----------------------------------------------------------------------------------


def bias_sums_from_stats(
    sieves: Sequence[Sieve], stats: StatsResult, batch: Batch
) -> Mapping[str, Tensor]:
    """Return the sums of one layer, as `matrix_bias.bias_sums` returns them."""
    assert stats.uniform is not None
    assert stats.without_first is not None
    tiny = torch.finfo(torch.float32).tiny
    uniform = batch.remember(
        ("roles uniform", tuple(sieve.name for sieve in sieves), id(stats.uniform)),
        lambda: uniform_sieves(sieves, stats, batch),
    )
    first_mass = stats.columns[FIRST_TOKEN]
    # With a learned sink the weights on tokens sum to less than one; β is of tokens only.
    token_scale = (
        None if stats.learned_sink is None else 1 / (1 - stats.learned_sink).clamp(min=tiny)
    )
    is_used = None
    scale_without_first = None
    if uniform.maybe_causal:
        is_used, scale_without_first = stats.rows_without_first(uniform.is_later)

    names = ["total", "count", "max_bias"]
    if uniform.maybe_causal:
        names += ["total_rest", "count_rest"]
    per_sieve: dict[str, list[Tensor]] = {name: [] for name in names}
    zeros = first_mass.new_zeros(len(first_mass), first_mass.shape[1], dtype=torch.float64)
    for sieve, uniform_sieve in zip(sieves, uniform.sieves, strict=True):
        if uniform_sieve is None:
            for name in names:
                per_sieve[name].append(zeros[:, :1] if name in ("count", "max_bias") else zeros)
            continue
        assert sieve.form is not None
        other_mass = _mass_without_first(sieve, sieve.form, stats, batch)
        total = _row_sum(_scaled(other_mass, token_scale), uniform_sieve.factor)
        if uniform_sieve.first_factor is not None:
            total = total + _row_sum(_scaled(first_mass, token_scale), uniform_sieve.first_factor)
        per_sieve["total"].append(total)
        per_sieve["count"].append(uniform_sieve.count)
        per_sieve["max_bias"].append(uniform_sieve.max_bias)
        if is_used is not None and scale_without_first is not None:
            factor = uniform_sieve.factor_without_first
            assert factor is not None
            per_sieve["total_rest"].append(_row_sum(other_mass * scale_without_first, factor))
            has_keys = (factor > 0).float().transpose(1, 2)
            per_sieve["count_rest"].append(torch.bmm(is_used.float(), has_keys)[..., 0].double())

    sums = {name: torch.stack(parts, dim=-1) for name, parts in per_sieve.items()}
    if uniform.maybe_causal:
        sink_mass = _scaled(first_mass, token_scale) * uniform.is_later
        sums["first"] = sink_mass.double().sum(-1)
        sums["later"] = uniform.is_later.double().sum(-1)
    return sums


def _scaled(mass: Tensor, scale: Tensor | None) -> Tensor:
    return mass if scale is None else mass * scale


def _row_sum(mass: Tensor, factor: Tensor) -> Tensor:
    """Return the sum over rows of `mass[example, head, row]` times `factor[example, 1, row]`."""
    total: Tensor = torch.linalg.vecdot(mass, factor.expand_as(mass)).double()
    return total


def _mass_without_first(sieve: Sieve, form: SieveForm, stats: StatsResult, batch: Batch) -> Tensor:
    """Return the mass of each row on a sieve without the first token, `[example, head, row]`."""
    if isinstance(form, OffsetBand):
        position = torch.arange(stats.n_visible.shape[1], device=stats.n_visible.device)
        at_offsets = []
        for offset in form.offsets:
            is_not_first = position + offset != 0
            at_offsets.append(stats.at_offset[offset] * is_not_first)
        return torch.stack(at_offsets).sum(0)
    if isinstance(form, KeySet):
        mass = stats.columns[_stat_name(sieve)]
        if form.not_for_first_query:
            mass = mass.clone()
            mass[..., 0] = 0
        return mass
    if isinstance(form, EqualLabels):
        if form.name not in stats.equal_labels:
            return _zero_mass(stats, batch)
        mass = stats.equal_labels[form.name]
        if form.includes_self:
            return mass
        to_itself = stats.at_offset[0] * _matches_itself(form, batch)
        # A difference of two sums may be a hair below zero.
        return (mass - to_itself).clamp(min=0)
    example, query, _ = _arc_pairs(sieve, form, batch)
    zeros = _zero_mass(stats, batch)
    by_row = zeros.transpose(1, 2).flatten(0, 1).contiguous()  # [example · row, head]
    weights = stats.pair_weights[_stat_name(sieve)].float()
    by_row.index_add_(0, example * zeros.shape[-1] + query, weights)
    return by_row.view(len(batch), -1, stats.heads).transpose(1, 2)


def _zero_mass(stats: StatsResult, batch: Batch) -> Tensor:
    size = (len(batch), stats.heads, stats.n_visible.shape[1])
    return stats.n_visible.new_zeros(size, dtype=torch.float32)


def _matches_itself(form: EqualLabels, batch: Batch) -> Tensor:
    """Return `[example, 1, token]`: whether a token's label as a query is its label as a key."""

    def compare() -> Tensor:
        matches = []
        for row in batch.rows:
            axis = _key_axis(row)
            query_labels = form.query_labels(axis)[0]
            matches.append((query_labels == form.key_labels(axis)[0]) & (query_labels >= 0))
        return _clear_first(_pad(batch, matches, padding=False), False)[:, None]

    return batch.remember(("matches itself", form.name), compare)
