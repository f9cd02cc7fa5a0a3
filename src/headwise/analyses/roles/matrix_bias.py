"""Sieve bias computed from matrices: for sieves that are plain functions, and as released.

A block of attention rows is multiplied with the boolean matrices of the sieves. `sieve_stats.py`
computes the same sums without weights or matrices, for sieves of a known form. The second half of
this module computes the scores of `local` and `block` as the authors' notebooks do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.roles.sieves import Sieve, TokenAxis, sieve_matrices
from headwise.analyses.roles.sieves.builtin import segment
from headwise.analyses.roles.sieves.forms import EqualLabels
from headwise.models.statistics import MIN_MASS_WITHOUT_FIRST
from headwise.models.view import AttentionRows
from headwise.text.encode import Batch

EDGE = 2  # rows at the end of an input whose band is one token too wide in the released code


def bias_sums(
    sieves: tuple[Sieve, ...], rows: AttentionRows, batch: Batch, released: bool = False
) -> dict[str, Tensor]:
    """Return the sums of one block of rows; sums of blocks add up.

    Returns
    -------
    dict
        `total`, `count`, `max_bias`: see `ScaledSieves.score`. Of a causal model also `total_rest` and
        `count_rest[example, head, role]`, the same of rows without the first token, scaled to sum
        to one (only rows that leave some mass count), and `first[example, head]`,
        `later[example, 1]`: the mass of later rows on the first token, and the number of these
        rows.
    """
    tiny = torch.finfo(rows.weights.dtype).tiny
    visible = rows.visible
    weights = rows.weights
    if rows.sink is not None:
        # The mean over V(t) is that of the attention to tokens: a learned sink is no token.
        weights = weights / (1 - rows.sink.unsqueeze(-1)).clamp(min=tiny)
    all_keys, without_first_key = _scaled_sieves(batch, sieves, rows.start, rows.stop)
    sums = all_keys.score(weights, visible)
    if released:
        return released_sums(sums, all_keys, weights, rows, batch, sieves)
    if _is_bidirectional(rows, batch):
        return sums

    # The first row sees the first token only, so it has nothing left without it.
    is_later = visible[..., 1:].any(-1)  # [example, 1, row]
    sink_mass = weights[..., 0] * is_later
    other_weights = weights[..., 1:]
    other_mass = other_weights.sum(-1)
    is_used = is_later & (other_mass > MIN_MASS_WITHOUT_FIRST)
    scale = torch.where(is_used, 1 / other_mass.clamp(min=tiny), 0.0)
    sums_without_first = without_first_key.score(
        other_weights * scale.unsqueeze(-1), visible[..., 1:], is_used
    )
    return sums | {
        "total_rest": sums_without_first["total"],
        "count_rest": sums_without_first["count"],
        "first": sink_mass.double().sum(-1),
        "later": is_later.double().sum(-1),
    }


def _is_bidirectional(rows: AttentionRows, batch: Batch) -> bool:
    """Return whether the first token sees later ones: then the model is not causal."""

    def first_row_sees_later() -> bool:
        # Blocks of rows come in order, so the first call has the first row.
        return rows.start == 0 and bool(rows.visible[:, :, 0, 1:].any())

    return batch.remember(("roles", "bidirectional"), first_row_sees_later)


class ScaledSieves:
    """The sieves of a block of rows, divided by their sizes.

    One product with the weights gives every head's sum of β for every role.

    Parameters
    ----------
    sieves : Tensor
        Bool `[example, role, row, key]`.
    """

    def __init__(self, sieves: Tensor) -> None:
        self.sieves = sieves
        self._visible: Tensor | None = None
        self._scaled: tuple[Tensor, Tensor, Tensor] | None = None

    def score(
        self, weights: Tensor, visible: Tensor, is_used: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return sums over rows.

        `total[example, head, role]`: the sum of β(t); `count[example, 1 or head, role]`: the rows
        whose sieve is not empty (and that are used, `is_used[example, head, row]`);
        `max_bias[example, 1, role]`: the sum of the largest possible β(t).
        """
        # Some models have a different window for each head; mostly one V(t) holds for all heads.
        heads_share_view = visible.shape[1] == 1
        if heads_share_view:
            groups = [slice(None)]
        else:
            groups = [slice(head, head + 1) for head in range(weights.shape[1])]
        totals = []
        counts = []
        largest = []
        for group in groups:
            scaled, has_keys, max_bias = self._scale(visible[:, group][:, 0], keep=heads_share_view)
            product = torch.bmm(weights[:, group].flatten(2), scaled.to(weights.dtype))
            totals.append(product.double())
            if is_used is None:
                counted = has_keys.new_ones(len(has_keys), 1, has_keys.shape[1])
            else:
                counted = is_used[:, group]
            counts.append(torch.bmm(counted.float(), has_keys.float()).double())
            largest.append(max_bias)
        return {
            "total": torch.cat(totals, 1),
            "count": torch.cat(counts, 1),
            "max_bias": largest[0][:, None],
        }

    def _scale(self, visible: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Divide the sieves by their sizes among the visible keys.

        Returns `[example, row · key, role]`, |V(t)| / |S(t) ∩ V(t)| on the sieve and 0 elsewhere;
        `[example, row, role]`, whether the sieve has a visible key; and `[example, role]`, the sum
        of the largest possible β(t).
        """
        # The next layer mostly sees the same keys, so the last result is kept.
        is_kept = self._visible is not None and torch.equal(self._visible, visible)
        if is_kept and self._scaled is not None:
            return self._scaled
        inside = self.sieves & visible[:, None]
        size = inside.sum(-1)
        has_keys = size > 0
        factor = visible.sum(-1)[:, None] / size.clamp(min=1)
        scaled = (inside * factor[..., None].float()).flatten(2).transpose(1, 2)
        max_bias = (factor * has_keys).double().sum(-1)
        result = scaled, has_keys.transpose(1, 2), max_bias
        if keep:
            self._visible = visible
            self._scaled = result
        return result


def _scaled_sieves(
    batch: Batch, sieves: tuple[Sieve, ...], start: int, stop: int
) -> tuple[ScaledSieves, ScaledSieves]:
    """Return the sieves of rows `start..stop` on all keys, and on all but the first key."""
    # They depend on the batch, not on the layer, and are built once for all layers. Where rows come
    # in blocks only the last block is kept, so that memory stays linear in length.
    last_block = batch.remember(
        ("roles", sieves), dict[tuple[int, int], tuple[ScaledSieves, ScaledSieves]]
    )
    if (start, stop) not in last_block:
        last_block.clear()
        matrices = sieve_matrices(sieves, batch, start, stop)
        last_block[start, stop] = (ScaledSieves(matrices), ScaledSieves(matrices[..., 1:]))
    return last_block[start, stop]


# --- as released ----------------------------------------------------------------------------------


def released_block(axis: TokenAxis) -> np.ndarray:
    """Label each query by the block it is scored against in the released code.

    The first block reaches up to its last token, the second begins with the first [SEP].
    """
    segments = axis.row.segment
    if not axis.row.example.has_pair or not (segments == 0).any():
        return np.full_like(axis.segment, -1)
    end_of_first = np.flatnonzero(segments == 0)[-1]
    labels: np.ndarray = (axis.position > end_of_first).astype(axis.segment.dtype)
    return labels


_RELEASED_BLOCK = EqualLabels("block as released", released_block, segment, includes_self=True)


def released_sieves(sieves: tuple[Sieve, ...]) -> tuple[Sieve, ...]:
    """Return the same sieves, in which special tokens have a block too."""
    changed = []
    for sieve in sieves:
        if sieve.name == "block":
            sieve = replace(sieve, function=_RELEASED_BLOCK)
        changed.append(sieve)
    return tuple(changed)


def released_sums(
    sums: Mapping[str, Tensor],
    scaled_sieves: ScaledSieves,
    weights: Tensor,
    rows: AttentionRows,
    batch: Batch,
    sieves: tuple[Sieve, ...],
) -> dict[str, Tensor]:
    """Return `sums` of these rows with the scores of `local` and `block` as released."""
    total = sums["total"].clone()
    for place, sieve in enumerate(sieves):
        if sieve.name in _RELEASED_FACTORS:
            row_factor = _RELEASED_FACTORS[sieve.name]
            factor = row_factor(weights, scaled_sieves.sieves[:, place], rows, batch)
            scaled_weights = weights * factor[..., None].to(weights.dtype)
            scored = scaled_sieves.score(scaled_weights, rows.visible)
            total[..., place] = scored["total"][..., place]
    return {**sums, "total": total}


def _row_entropy(weights: Tensor, inside: Tensor, rows: AttentionRows, batch: Batch) -> Tensor:
    entropy: Tensor = torch.special.entr(weights).sum(-1)
    return entropy


def _wide_band(weights: Tensor, inside: Tensor, rows: AttentionRows, batch: Batch) -> Tensor:
    """Return `[example, 1, row]`: the last two rows are divided by one token more than their band
    has."""
    size = (inside[:, None] & rows.visible[:, :1]).sum(-1)
    row_index = torch.arange(rows.start, rows.stop, device=weights.device)
    rows_to_end = batch.lengths[:, None, None] - row_index
    return torch.where(rows_to_end <= EDGE, size / (size + 1), 1.0)


_RELEASED_FACTORS: dict[str, Callable[[Tensor, Tensor, AttentionRows, Batch], Tensor]] = {
    "block": _row_entropy,
    "local": _wide_band,
}
