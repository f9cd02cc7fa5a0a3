"""Roles without matrices: what their sieves ask of the attention kernel, and the scores that come
of the answers.

For a row t, β(t) is the mass on the sieve over the mass that even attention has there: both are
answers to one ask. The first token is asked for apart and added: what is left beside it is exact
however little it is."""

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
from headwise.models.statistics import MIN_MASS_WITHOUT_SINK, StatsRequest, StatsResult
from headwise.text.encode import Batch, Encoded

FIRST = "kind first"  # the same set of keys that `surface` asks for


def asked_of(sieves: Sequence[Sieve], batch: Batch) -> StatsRequest | None:
    """What these sieves ask; None where one of them is known to its function alone."""
    forms = [sieve.form for sieve in sieves]
    if any(form is None for form in forms):
        return None
    sides = [TokenAxis(row, 0, len(row), False) for row in batch.rows]
    columns: dict[str, Tensor] = {}
    labels: dict[str, tuple[Tensor, Tensor]] = {}
    pairs: dict[str, Tensor] = {}
    offsets = frozenset[int]()
    for sieve, form in zip(sieves, forms, strict=True):
        if isinstance(form, OffsetBand):
            offsets |= set(form.offsets)
        elif isinstance(form, KeySet):
            columns[_name(sieve)] = _but_first(
                _filled(batch, [form.of(side)[0] for side in sides], False), False
            )
        elif isinstance(form, EqualLabels) and form.name not in labels:
            own, theirs = (
                [side_labels(side)[0] for side in sides] for side_labels in (form.own, form.theirs)
            )
            if any(
                (one >= 0).any() for one in own
            ):  # a label that no token has costs as much as one that some have
                labels[form.name] = (
                    _filled(batch, own, -1),
                    _but_first(_filled(batch, theirs, -1), -1),
                )
        elif isinstance(form, RelationArcs):
            pairs[_name(sieve)] = _pairs(sieve, form, batch)
    if any(isinstance(form, EqualLabels) and not form.itself for form in forms):
        offsets |= {0}
    columns[FIRST] = batch.token_mask("first")
    return StatsRequest(columns, labels, offsets, pairs, without_sink=True, uniform=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Even:
    """What even attention makes of one sieve, the same for all layers that see the same keys.

    `factor[example, 1, row]` is 1 over its share, 0 where the sieve is empty; `to_first`, the same
    where the first token is in it; `rest`, the factor without the first token. `count`, `most`:
    sums over rows. None: nothing."""

    factor: Tensor
    to_first: Tensor | None
    count: Tensor
    most: Tensor
    rest: Tensor | None


def settled(sieves: Sequence[Sieve], answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
    """The sums of one layer, as `shares.reduced` has them."""
    even = answers.uniform
    assert even is not None
    assert answers.without_sink is not None
    tiny = torch.finfo(torch.float32).tiny
    of_tokens = None if answers.sink is None else 1 / (1 - answers.sink).clamp(min=tiny)
    # The answers stay beside what comes of them, so that their id stays their own.
    known, later, causal = batch.remember(
        ("roles even", tuple(sieve.name for sieve in sieves), id(even)),
        lambda: evenly(sieves, answers, batch),
    )[1:]
    first, used, left = answers.columns[FIRST], None, None
    if causal:
        mass = (
            answers.without_sink.mass
            if of_tokens is None
            else answers.without_sink.mass * of_tokens
        )
        used = later & (mass > MIN_MASS_WITHOUT_SINK)
        left = torch.where(used, 1 / answers.without_sink.mass.clamp(min=tiny), 0.0)
    names = ("total", "count", "most", "total_rest", "count_rest")
    sums: dict[str, list[Tensor]] = {name: [] for name in names[: 5 if causal else 3]}
    nothing = first.new_zeros(len(first), first.shape[1], dtype=torch.float64)
    for sieve, one in zip(sieves, known, strict=True):
        sums["count"].append(nothing[:, :1] if one is None else one.count)
        sums["most"].append(nothing[:, :1] if one is None else one.most)
        if one is None:
            for name in ("total", "total_rest", "count_rest"):
                if name in sums:
                    sums[name].append(nothing)
            continue
        assert sieve.form is not None
        others = _mass(sieve, sieve.form, answers, batch)
        share = others if of_tokens is None else others * of_tokens
        total = torch.linalg.vecdot(share, one.factor.expand_as(share)).double()
        if one.to_first is not None:
            share = first if of_tokens is None else first * of_tokens
            total = total + torch.linalg.vecdot(share, one.to_first.expand_as(share)).double()
        sums["total"].append(total)
        if left is not None and used is not None:
            assert one.rest is not None
            sums["total_rest"].append(
                torch.linalg.vecdot(others * left, one.rest.expand_as(others)).double()
            )
            sums["count_rest"].append(
                torch.bmm(used.float(), (one.rest > 0).float().transpose(1, 2))[..., 0].double()
            )
    found = {name: torch.stack(parts, dim=-1) for name, parts in sums.items()}
    if causal:
        resting = (first if of_tokens is None else first * of_tokens) * later
        found |= {"first": resting.double().sum(-1), "later": later.double().sum(-1)}
    return found


def evenly(
    sieves: Sequence[Sieve], answers: StatsResult, batch: Batch
) -> tuple[StatsResult, list[_Even | None], Tensor, bool]:
    """Even attention to each sieve, None where it holds nothing; the rows after the first; whether
    the model may be a causal one."""
    even = answers.uniform
    assert even is not None
    assert even.without_sink is not None
    seen = answers.n_visible[:, None]
    later = batch.attention_mask[:, None] & (torch.arange(seen.shape[-1], device=seen.device) > 0)
    # Rows without the first token are of use in decoders alone; to ask a GPU what this is would be
    # to wait for it.
    causal = answers.n_visible.is_cuda or not bool((answers.n_visible[:, 0] > 1).any())
    found: list[_Even | None] = []
    for sieve in sieves:
        assert sieve.form is not None
        other, to_first = _mass(sieve, sieve.form, even, batch), _holds_first(sieve, batch)
        share = other + even.columns[FIRST] * to_first
        # Rounding must not make a token of nothing: the least share there is, is 1 / |V(t)|.
        some = share * seen > 0.5
        if answers.n_visible.device.type == "cpu" and not bool(
            some.any()
        ):  # a GPU would have to be waited for
            found.append(None)
            continue
        factor = torch.where(some, 1 / share.clamp(min=1e-12), 0.0)
        aside = to_first if to_first.device.type != "cpu" or bool(to_first.any()) else None
        rest = None
        if causal:
            beside = (other * seen > 0.5) & later
            rest = torch.where(beside, even.without_sink.mass / other.clamp(min=1e-12), 0.0)
        count, most = (value.double().sum(-1) for value in (some, factor))
        found.append(_Even(factor, None if aside is None else factor * aside, count, most, rest))
    return even, found, later, causal


def _holds_first(sieve: Sieve, batch: Batch) -> Tensor:
    """`[example, 1, row]`: whether the first token is in the sieve of a row."""
    form = sieve.form

    def of_row(row: Encoded) -> np.ndarray:
        side, place = TokenAxis(row, 0, len(row), False), np.arange(len(row))
        found: np.ndarray
        if isinstance(form, OffsetBand):
            found = (-place >= form.low) & (-place <= form.high)
        elif isinstance(form, KeySet):
            found = form.of(side)[0, 0] & (place >= int(form.from_later))
        elif isinstance(form, EqualLabels):
            own = form.own(side)[0]
            found = (own == form.theirs(side)[0, 0]) & (own >= 0) & (place >= int(not form.itself))
        else:
            assert form is not None
            looking, key = form.pairs(row)
            found = np.isin(place, looking[key == 0])
        return found

    def make() -> Tensor:
        return _filled(batch, [of_row(row) for row in batch.rows], False)[:, None]

    return batch.remember(("holds first", sieve.name), make)


def _but_first(values: Tensor, nothing: int | bool) -> Tensor:
    values[:, 0] = nothing
    return values


def _name(sieve: Sieve) -> str:
    return f"role {sieve.name}"


def _mass(sieve: Sieve, form: SieveForm, answers: StatsResult, batch: Batch) -> Tensor:
    """The mass on a sieve without the first token, `[example, head, row]`."""
    if isinstance(form, OffsetBand):
        place = torch.arange(answers.n_visible.shape[1], device=answers.n_visible.device)
        return torch.stack(
            [answers.at_offset[offset] * (place + offset != 0) for offset in form.offsets]
        ).sum(0)
    if isinstance(form, KeySet):
        found = answers.columns[_name(sieve)]
        if form.from_later:
            found = found.clone()
            found[..., 0] = 0
        return found
    if isinstance(form, EqualLabels):
        if form.name not in answers.equal_labels:
            return _nothing(answers, batch)
        found = answers.equal_labels[form.name]
        if form.itself:
            return found
        # Whether a token's own label is its own: the labels of both sides are the same, or never
        # meet.
        own = found - answers.at_offset[0] * _labelled(form, batch)
        return own.clamp(min=0)
    example, row, _ = _pairs(sieve, form, batch)
    nothing = _nothing(answers, batch)
    flat = nothing.transpose(1, 2).flatten(0, 1).contiguous()
    flat.index_add_(
        0, example * nothing.shape[-1] + row, answers.pair_weights[_name(sieve)].float()
    )
    return flat.view(len(batch), -1, answers.heads).transpose(1, 2)


def _nothing(answers: StatsResult, batch: Batch) -> Tensor:
    size = len(batch), answers.heads, answers.n_visible.shape[1]
    return answers.n_visible.new_zeros(size, dtype=torch.float32)


def _pairs(sieve: Sieve, form: RelationArcs, batch: Batch) -> Tensor:
    """Example, row and key of every pair, `[3, pair]`."""

    def make() -> Tensor:
        found = []
        for place, row in enumerate(batch.rows):
            own = form.pairs(row)
            found.append(np.insert(own[:, own[1] > 0], 0, place, axis=0))
        return torch.from_numpy(np.concatenate(found, axis=1)).to(batch.device, non_blocking=True)

    return batch.remember(("pairs", sieve.name), make)


def _labelled(form: EqualLabels, batch: Batch) -> Tensor:
    """`[example, 1, token]`: whether a token has its own label as one that is looked at."""

    def make() -> Tensor:
        sides = [TokenAxis(row, 0, len(row), False) for row in batch.rows]
        both = [(form.own(side)[0], form.theirs(side)[0]) for side in sides]
        return _but_first(
            _filled(batch, [(own == theirs) & (own >= 0) for own, theirs in both], False), False
        )[:, None]

    return batch.remember(("labelled", form.name), make)


def _filled(batch: Batch, values: Sequence[np.ndarray], padding: int | bool) -> Tensor:
    """One array for each example as one tensor `[example, token]`."""
    out = np.full(tuple(batch.ids.shape), padding)
    for place, own in enumerate(values):
        out[place, : len(own)] = own
    return torch.from_numpy(out).to(batch.device, non_blocking=True)
