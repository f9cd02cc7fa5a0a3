"""Roles by matrices: the sieves of a block of rows against its weights, the same without the first
token, and scores as the authors' notebooks have them, by what they do to the rows of `local` and
`block`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.roles.sieves import Sieve, TokenAxis, sieve_matrices
from headwise.analyses.roles.sieves.builtin import segment
from headwise.analyses.roles.sieves.forms import EqualLabels
from headwise.models.statistics import MIN_MASS_WITHOUT_SINK
from headwise.models.view import AttentionRows
from headwise.text.encode import Batch

EDGE = 2  # rows at the end whose band is too wide


def reduced(
    sieves: tuple[Sieve, ...], rows: AttentionRows, batch: Batch, released: bool = False
) -> dict[str, Tensor]:
    """The sums of one block of rows: see `ScaledSieves.score`; of a causal model also `total_rest`,
    `count_rest[example, head, role]`, the same of rows without the first token, made to sum to one
    again (`count_rest` has only the rows that leave anything), and `first[example, head]`,
    `later[example, 1]`: the mass on the first token of the rows after it, and how many there
    are."""
    shares, tiny = (
        _shares(batch, sieves, rows.start, rows.stop),
        torch.finfo(rows.weights.dtype).tiny,
    )
    weights, visible = rows.weights, rows.visible
    if rows.sink is not None:  # the mean over V(t) is of what the tokens get
        weights = weights / (1 - rows.sink.unsqueeze(-1)).clamp(min=tiny)
    found = shares["all"].score(weights, visible)
    if released:
        return as_released(found, shares["all"], weights, rows, batch, sieves)
    if looks_ahead(rows, batch):
        return found
    later = visible[..., 1:].any(-1)  # example, 1, row: the first row sees but the first token
    first, others = weights[..., 0] * later, weights[..., 1:]
    mass = others.sum(-1)
    used = later & (mass > MIN_MASS_WITHOUT_SINK)
    scaled = others * torch.where(used, 1 / mass.clamp(min=tiny), 0.0).unsqueeze(-1)
    rest = shares["rest"].score(scaled, visible[..., 1:], used)
    found |= {"total_rest": rest["total"], "count_rest": rest["count"]}
    return found | {"first": first.double().sum(-1), "later": later.double().sum(-1)}


def looks_ahead(rows: AttentionRows, batch: Batch) -> bool:
    """Whether the first token sees later ones: then the model is no causal one."""

    def make() -> bool:  # rows come in order, so these are the first ones
        return bool(rows.visible[:, :, 0, 1:].any()) if rows.start == 0 else False

    return batch.remember(("roles", "looks ahead"), make)


class ScaledSieves:
    """The sieves of a block of rows, divided by their sizes: one product with the weights gives
    every head's sum of β for every role."""

    def __init__(self, sieves: Tensor) -> None:
        self.sieves = sieves  # bool [example, role, row, key]
        self._visible: Tensor | None = None
        self._parts: tuple[Tensor, Tensor, Tensor] | None = None

    def score(
        self, weights: Tensor, visible: Tensor, used: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`total[example, head, role]`, the sum of β(t) over rows, and `count[example, 1 or head,
        role]`, the rows whose sieve is not empty (and that are `used[example, head, row]`);
        `most[example, 1, role]`, the sum of the largest β(t) there could be."""
        shared = visible.shape[1] == 1  # some models have a window of its own for each head
        groups = [slice(None)] if shared else [slice(h, h + 1) for h in range(weights.shape[1])]
        totals, counts, mosts = [], [], []
        for group in groups:
            share, some, most = self._divided(visible[:, group][:, 0], keep=shared)
            totals.append(torch.bmm(weights[:, group].flatten(2), share.to(weights.dtype)).double())
            counted = some.new_ones(len(some), 1, some.shape[1]) if used is None else used[:, group]
            counts.append(torch.bmm(counted.float(), some.float()).double())
            mosts.append(most)
        return {
            "total": torch.cat(totals, 1),
            "count": torch.cat(counts, 1),
            "most": mosts[0][:, None],
        }

    def _divided(self, visible: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
        """`[example, row · key, role]`: |V(t)| / |S(t) ∩ V(t)| on the sieve, 0 elsewhere;
        `[example, row, role]`: whether it is not empty; kept for the next layer, which mostly sees
        the same keys."""
        if (
            self._parts is not None
            and self._visible is not None
            and torch.equal(self._visible, visible)
        ):
            return self._parts
        inside = self.sieves & visible[:, None]
        size = inside.sum(-1)
        factor = visible.sum(-1)[:, None] / size.clamp(min=1)
        share = (inside * factor[..., None].float()).flatten(2).transpose(1, 2)
        parts = share, (size > 0).transpose(1, 2), (factor * (size > 0)).double().sum(-1)
        if keep:
            self._visible, self._parts = visible, parts
        return parts


def _shares(
    batch: Batch, sieves: tuple[Sieve, ...], start: int, stop: int
) -> dict[str, ScaledSieves]:
    """The sieves depend on the batch, not on the layer: they are built once for all layers. Where
    rows come in blocks only the last block is kept, so that memory stays linear in length."""
    last = batch.remember(("roles", sieves), dict[tuple[int, int], dict[str, ScaledSieves]])
    if (start, stop) not in last:
        last.clear()
        matrices = sieve_matrices(sieves, batch, start, stop)
        last[start, stop] = {"all": ScaledSieves(matrices), "rest": ScaledSieves(matrices[..., 1:])}
    return last[start, stop]


# --- as released ----------------------------------------------------------------------------------


def block_of(side: TokenAxis) -> np.ndarray:
    """The block that a looking token is scored against: the first up to its end, the second from
    the first [SEP] on."""
    own = side.row.segment
    if not side.row.example.has_pair or not (own == 0).any():
        return np.full_like(side.segment, -1)
    end = np.flatnonzero(own == 0)[-1]
    found: np.ndarray = (side.position > end).astype(side.segment.dtype)
    return found


_BLOCK = EqualLabels("block as released", block_of, segment, itself=True)


def released_sieves(sieves: tuple[Sieve, ...]) -> tuple[Sieve, ...]:
    """The same sieves, with the block of special tokens."""
    return tuple(
        replace(sieve, function=_BLOCK) if sieve.name == "block" else sieve for sieve in sieves
    )


def as_released(
    sums: Mapping[str, Tensor],
    shares: ScaledSieves,
    weights: Tensor,
    rows: AttentionRows,
    batch: Batch,
    sieves: tuple[Sieve, ...],
) -> dict[str, Tensor]:
    """`sums` of these rows with the scores of `local` and `block` as released."""
    total = sums["total"].clone()
    for place, sieve in enumerate(sieves):
        if sieve.name in _FACTORS:
            factor = _FACTORS[sieve.name](weights, shares.sieves[:, place], rows, batch)
            scored = shares.score(weights * factor[..., None].to(weights.dtype), rows.visible)
            total[..., place] = scored["total"][..., place]
    return {**sums, "total": total}


def _entropy(weights: Tensor, inside: Tensor, rows: AttentionRows, batch: Batch) -> Tensor:
    found: Tensor = torch.special.entr(weights).sum(-1)
    return found


def _wide(weights: Tensor, inside: Tensor, rows: AttentionRows, batch: Batch) -> Tensor:
    """`[example, 1, row]`: the last two rows are divided by one token more than their band has."""
    size = (inside[:, None] & rows.visible[:, :1]).sum(-1)
    before_end = batch.lengths[:, None, None] - torch.arange(
        rows.start, rows.stop, device=weights.device
    )
    return torch.where(before_end <= EDGE, size / (size + 1), 1.0)


_FACTORS: dict[str, Callable[[Tensor, Tensor, AttentionRows, Batch], Tensor]] = {
    "block": _entropy,
    "local": _wide,
}
