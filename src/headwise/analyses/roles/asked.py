"""Roles without matrices: what their sieves ask of the attention kernel, and the scores that come of the answers.

For a row t, β(t) is the mass on the sieve over the mass that even attention has there: both are answers to one ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.roles.sieves import Sieve, Tokens
from headwise.analyses.roles.sieves.forms import Band, Form, Keys, Linked, Same
from headwise.models.ask import Answers, Ask
from headwise.text.encode import Batch


def asked_of(sieves: Sequence[Sieve], batch: Batch) -> Ask | None:
    """What these sieves ask; None where one of them is known to its function alone."""
    forms = [sieve.form for sieve in sieves]
    if any(form is None for form in forms):
        return None
    sides = [Tokens(row, 0, len(row), False) for row in batch.rows]
    columns: dict[str, Tensor] = {}
    labels: dict[str, tuple[Tensor, Tensor]] = {}
    pairs: dict[str, Tensor] = {}
    offsets = frozenset[int]()
    for sieve, form in zip(sieves, forms, strict=True):
        if isinstance(form, Band):
            offsets |= set(form.offsets)
        elif isinstance(form, Keys):
            columns[_name(sieve)] = _filled(batch, [form.of(side)[0] for side in sides], False)
        elif isinstance(form, Same) and form.name not in labels:
            own, theirs = ([side_labels(side)[0] for side in sides] for side_labels in (form.own, form.theirs))
            if any((one >= 0).any() for one in own):  # a label that no token has costs as much as one that some have
                labels[form.name] = _filled(batch, own, -1), _filled(batch, theirs, -1)
        elif isinstance(form, Linked):
            pairs[_name(sieve)] = _pairs(sieve, form, batch)
    if any(isinstance(form, Same) and not form.itself for form in forms):
        offsets |= {0}
    return Ask(columns, labels, offsets, pairs, uniform=True)


def settled(sieves: Sequence[Sieve], answers: Answers, batch: Batch) -> Mapping[str, Tensor]:
    """`total[example, head, role]`, the sum of β(t) over rows; `count[example, 1, role]`, the rows whose sieve is not
    empty; `most[example, 1, role]`, the sum of the largest β(t) there could be."""
    even = answers.uniform
    assert even is not None
    sums: dict[str, list[Tensor]] = {"total": [], "count": [], "most": []}
    of_tokens = 1.0 if answers.sink is None else 1 / (1 - answers.sink).clamp(min=torch.finfo(torch.float32).tiny)
    for sieve in sieves:
        assert sieve.form is not None
        share = _mass(sieve, sieve.form, even, batch)
        # Rounding must not make a token of nothing: the least share there is, is 1 / |V(t)|.
        some = share * answers.seen[:, None] > 0.5
        factor = torch.where(some, 1 / share.clamp(min=1e-12), 0.0)
        sums["total"].append((_mass(sieve, sieve.form, answers, batch) * of_tokens * factor).double().sum(-1))
        sums["count"].append(some.double().sum(-1))
        sums["most"].append(factor.double().sum(-1))
    return {name: torch.stack(parts, dim=-1) for name, parts in sums.items()}


def _name(sieve: Sieve) -> str:
    return f"role {sieve.name}"


def _mass(sieve: Sieve, form: Form, answers: Answers, batch: Batch) -> Tensor:
    """The mass on a sieve, `[example, head, row]`."""
    nothing = answers.seen.new_zeros(len(batch), answers.heads, answers.seen.shape[1], dtype=torch.float32)
    if isinstance(form, Band):
        return torch.stack([answers.at[offset] for offset in form.offsets]).sum(0)
    if isinstance(form, Keys):
        found = answers.columns[_name(sieve)]
        if form.from_later:
            found = found.clone()
            found[..., 0] = 0
        return found
    if isinstance(form, Same):
        if form.name not in answers.labels:
            return nothing
        found = answers.labels[form.name]
        if form.itself:
            return found
        # Whether a token's own label is its own: the labels of both sides are the same, or never meet.
        own = found - answers.at[0] * _labelled(form, batch)
        return own.clamp(min=0)
    example, row, _ = _pairs(sieve, form, batch)
    flat = nothing.transpose(1, 2).flatten(0, 1).contiguous()
    flat.index_add_(0, example * nothing.shape[-1] + row, answers.single[_name(sieve)].float())
    return flat.view(len(batch), -1, answers.heads).transpose(1, 2)


def _pairs(sieve: Sieve, form: Linked, batch: Batch) -> Tensor:
    """Example, row and key of every pair, `[3, pair]`."""

    def make() -> Tensor:
        found = [np.insert(form.pairs(row), 0, place, axis=0) for place, row in enumerate(batch.rows)]
        return torch.from_numpy(np.concatenate(found, axis=1)).to(batch.device)

    return batch.remember(("pairs", sieve.name), make)


def _labelled(form: Same, batch: Batch) -> Tensor:
    """`[example, 1, token]`: whether a token has its own label as one that is looked at."""

    def make() -> Tensor:
        sides = [Tokens(row, 0, len(row), False) for row in batch.rows]
        both = [(form.own(side)[0], form.theirs(side)[0]) for side in sides]
        return _filled(batch, [(own == theirs) & (own >= 0) for own, theirs in both], False)[:, None]

    return batch.remember(("labelled", form.name), make)


def _filled(batch: Batch, values: Sequence[np.ndarray], padding: int | bool) -> Tensor:
    """One array for each example as one tensor `[example, token]`."""
    out = np.full(tuple(batch.ids.shape), padding)
    for place, own in enumerate(values):
        out[place, : len(own)] = own
    return torch.from_numpy(out).to(batch.device)
