"""StatsResult straight from the GPU's attention kernel: which calls it serves, and how its numbers
become answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.models.masks import RowMask, Sight
from headwise.models.statistics.request import StatsRequest, StatsResult
from headwise.models.tap import Call, differentiated
from headwise.stats.gpu import has_kernels

if TYPE_CHECKING:
    from headwise.models.statistics.launch import Scores

LARGEST_HEAD = 256
PAIRS_AT_ONCE = 8192
TYPES = (torch.bfloat16, torch.float16, torch.float32)


def scores_of(call: Call, lengths: Tensor) -> Scores | None:
    """What the kernels need of a call, or None where they do not serve it: it then goes by blocks
    of rows.

    Biases (ALiBi, T5), values of another size than keys, masks of another kind than causal, windows
    and padding on the right, and modules that form their weights themselves are not served."""
    query, key = call.query, call.key
    if (
        type(call) is not Call
        or not query.is_cuda
        or not has_kernels()
        or differentiated()
        or call.bias is not None
        or query.dtype not in TYPES
        or query.shape[-1] > LARGEST_HEAD
        or call.value.shape[-1] != query.shape[-1]
        or query.shape[2] != key.shape[2]
    ):
        return None
    sight = (
        Sight(call.causal)
        if call.mask is None
        else call.mask.sight
        if isinstance(call.mask, RowMask)
        else None
    )
    if sight is None:
        return None
    from headwise.models.statistics.launch import Scores  # Triton is there only beside a GPU

    query, key = (side if side.stride(-1) == 1 else side.contiguous() for side in (query, key))
    return Scores(
        query,
        key,
        lengths,
        call.scaling,
        sight.causal,
        sight.window,
        call.softcap or 0.0,
        call.sinks,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What all layers share in which the same tokens see each other: how many keys each token sees,
    `[example, token]`, how many pairs there are at each offset, and what even attention gives."""

    keys: Tensor
    pairs: Tensor
    offsets: Tensor  # those asked for, in order
    columns: Tensor | None
    labels: tuple[tuple[Tensor, Tensor], ...]  # as many kinds at a time as a launch compares
    uniform: StatsResult | None = None


def sight_of(ask: StatsRequest, scores: Scores, layer: int) -> Seen:
    """That of the layers that see as this one does. Even attention is the kernel's, on queries and
    keys of zero."""
    from headwise.models.statistics.launch import AT_ONCE, Scores, column_table  # as above

    offsets = torch.tensor(sorted(ask.offsets), device=scores.query.device, dtype=torch.int32)
    names = list(ask.equal_labels)
    labels = tuple(
        _labels(ask, names[first : first + AT_ONCE]) for first in range(0, len(names), AT_ONCE)
    )
    seen = Seen(
        _seen(scores),
        _pairs(scores, ask.max_offset),
        offsets,
        column_table(list(ask.columns.values())),
        labels,
    )
    if not ask.uniform:
        return seen
    nothing = scores.query.new_zeros(
        scores.query.shape[0], 1, scores.query.shape[2], 16, dtype=torch.bfloat16
    )
    alike = Scores(nothing, nothing, scores.lengths, 1.0, scores.causal, scores.window)
    return replace(seen, uniform=fused_answers(ask, alike, None, layer, seen)[1])


def fused_answers(
    ask: StatsRequest, scores: Scores, value: Tensor | None, layer: int, seen: Seen
) -> tuple[Tensor | None, StatsResult]:
    """The head outputs (where values are given) and the answers of one layer."""
    from headwise.models.statistics import launch  # as above

    if value is not None and value.stride(-1) != 1:
        value = value.contiguous()
    found = launch.statistics(
        scores, value, seen.columns, seen.labels[0] if seen.labels else None, ask.distance
    )
    masses = (
        {} if found.mass is None else dict(zip(ask.columns, found.mass.unbind(-1), strict=False))
    )
    alike = [] if found.same is None else list(found.same.unbind(-1))
    for more in seen.labels[1:]:
        others = launch.statistics(scores, None, None, more).same
        assert others is not None
        alike += others.unbind(-1)
    same = dict(zip(ask.equal_labels, alike, strict=True))
    offsets = sorted(ask.offsets)
    at = launch.weights_at(scores, found.logsumexp, seen.offsets).unbind(-1) if offsets else ()
    batch, heads, n, _ = scores.query.shape
    lengths = scores.lengths
    diagonals = found.largest.new_zeros(batch, heads, 1)
    if ask.max_offset:
        diagonals = launch.band_sums(scores, found.logsumexp, ask.max_offset)
    sink = None
    if scores.sinks is not None:
        shown = torch.arange(n, device=lengths.device) < lengths[:, None]
        sink = torch.exp(scores.sinks.float()[None, :, None] - found.logsumexp) * shown[:, None]
    return found.output, StatsResult(
        layer,
        masses,
        same,
        dict(zip(offsets, at, strict=True)),
        {name: _single(scores, found.logsumexp, wanted) for name, wanted in ask.pairs.items()},
        {name: _rows(scores, found.logsumexp, wanted) for name, wanted in ask.rows.items()},
        diagonals,
        seen.pairs,
        None if found.offset is None else found.offset.double().sum(-1),
        None if found.distance is None else found.distance.double().sum(-1),
        launch.received(scores, found.logsumexp) if ask.received else None,
        found.entropy if ask.entropy else None,
        found.largest if ask.max_weight else None,
        found.rest if ask.without_sink else None,
        sink,
        seen.keys,
        seen.uniform,
    )


def _single(scores: Scores, logsumexp: Tensor, wanted: Tensor) -> Tensor:
    """The weights at these pairs, `[pair, head]`: few of them, so plain products do."""
    heads, groups = scores.query.shape[1], scores.key.shape[1]
    parts = [torch.zeros(0, heads, device=wanted.device)]
    for first in range(0, wanted.shape[1], PAIRS_AT_ONCE):
        example, row, key = wanted[:, first : first + PAIRS_AT_ONCE].unbind()
        own, theirs = scores.query[example, :, row].float(), scores.key[example, :, key].float()
        score = _capped(
            (own * theirs.repeat_interleave(heads // groups, dim=1)).sum(-1) * scores.scaling,
            scores,
        )
        seen = _sees(scores, row, key, scores.lengths[example])
        parts.append(torch.exp(score - logsumexp[example, :, row]) * seen[:, None])
    return torch.cat(parts)


def _rows(scores: Scores, logsumexp: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Whole rows, `[example, head, row, key]`, and what they see: few of them, so plain products
    do."""
    wanted = wanted.to(scores.query.device)
    examples, heads, n, size = scores.query.shape
    seen = _sees(
        scores,
        wanted[:, None],
        torch.arange(n, device=wanted.device),
        scores.lengths[:, None, None],
    )
    groups = scores.key.shape[1]
    own = (
        scores.query[:, :, wanted]
        .float()
        .view(examples, groups, heads // groups, len(wanted), size)
    )
    score = (
        (own @ scores.key.float().transpose(-1, -2)[:, :, None]).flatten(1, 2).mul_(scores.scaling)
    )
    weights = _capped(score, scores).sub_(logsumexp[:, :, wanted, None]).exp_().mul_(seen[:, None])
    return weights, seen[:, None]


def _sees(scores: Scores, row: Tensor, key: Tensor, lengths: Tensor) -> Tensor:
    """Whether these rows see these keys."""
    seen = (row < lengths) & (key < lengths)
    if scores.causal:
        seen &= key <= row
    if scores.window:
        seen &= (key - row).abs() < scores.window
    return seen


def _capped(score: Tensor, scores: Scores) -> Tensor:
    return scores.softcap * torch.tanh(score / scores.softcap) if scores.softcap else score


def _labels(ask: StatsRequest, names: list[str]) -> tuple[Tensor, Tensor]:
    own, theirs = (
        torch.stack([ask.equal_labels[name][side] for name in names], dim=1).to(torch.int32)
        for side in (0, 1)
    )
    return own.contiguous(), torch.where(
        theirs < 0, -2, theirs
    ).contiguous()  # −1 is equal to nothing


def _seen(scores: Scores) -> Tensor:
    """How many keys each token sees, `[example, token]`; 0 for padding."""
    n, lengths = scores.query.shape[2], scores.lengths[:, None]
    place = torch.arange(n, device=lengths.device)[None]
    last = torch.minimum(place, lengths - 1) if scores.causal else (lengths - 1).expand(-1, n)
    first = torch.zeros_like(last)
    if scores.window:
        first = (place - scores.window + 1).clamp(min=0).expand_as(last)
        last = torch.minimum(last, place + scores.window - 1)
    return torch.where(place < lengths, last - first + 1, 0)


def _pairs(scores: Scores, reach: int) -> Tensor:
    """How many pairs (i, i + o) can be seen, `[example, 2·reach + 1]`."""
    offsets = torch.arange(-reach, reach + 1, device=scores.lengths.device)
    count = (scores.lengths[:, None] - offsets.abs()).clamp(min=0)
    if scores.causal:
        count = count * (offsets <= 0)
    if scores.window:
        count = count * (offsets.abs() < scores.window)
    return count
