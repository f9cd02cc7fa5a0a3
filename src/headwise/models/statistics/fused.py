"""Statistics from the GPU's attention kernel: which calls it can compute, and how its numbers
become a `StatsResult`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.models.masks import MaskPattern, RowMask
from headwise.models.statistics.reducer import Visibility
from headwise.models.statistics.request import StatsRequest, StatsResult
from headwise.models.tap import Call, differentiated
from headwise.stats.gpu import has_kernels

# `launch` imports Triton, which is installed only beside a GPU: functions import it when they run.
if TYPE_CHECKING:
    from headwise.models.statistics.launch import Scores

MAX_HEAD_SIZE = 256
PAIRS_AT_ONCE = 8192
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def scores_of(call: Call, lengths: Tensor) -> Scores | None:
    """Return what the kernels need of a call; None if they cannot compute it.

    They do not compute biases (ALiBi, T5), values of another size than keys, masks other than
    causal, window and padding on the right, and modules that form their weights themselves. Such
    calls are computed in blocks of rows.

    Parameters
    ----------
    call : Call
        The attention call.
    lengths : Tensor
        Number of tokens of each example, int32 `[example]`.
    """
    query = call.query
    key = call.key
    if type(call) is not Call or not query.is_cuda or not has_kernels() or differentiated():
        return None
    if call.bias is not None or query.dtype not in DTYPES or query.shape[-1] > MAX_HEAD_SIZE:
        return None
    if call.value.shape[-1] != query.shape[-1] or query.shape[2] != key.shape[2]:
        return None
    pattern: MaskPattern | None = None
    if call.mask is None:
        pattern = MaskPattern(call.causal)
    elif isinstance(call.mask, RowMask):
        pattern = call.mask.pattern
    if pattern is None:
        return None
    from headwise.models.statistics.launch import Scores

    return Scores(
        query=_with_contiguous_rows(query),
        key=_with_contiguous_rows(key),
        lengths=lengths,
        scaling=call.scaling,
        causal=pattern.causal,
        window=pattern.window,
        softcap=call.softcap or 0.0,
        sinks=call.sinks,
    )


def _with_contiguous_rows(values: Tensor) -> Tensor:
    """The kernels read the last dim with stride 1."""
    return values if values.stride(-1) == 1 else values.contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class KernelRequest:
    """A request prepared for the kernels, with the visibility of the layers it serves.

    It is made once for all layers of a pass with the same mask."""

    request: StatsRequest
    visibility: Visibility
    offsets: Tensor  # those requested, in order
    columns: Tensor | None
    labels: tuple[tuple[Tensor, Tensor], ...]  # as many at a time as one launch compares


def prepare_for_kernels(request: StatsRequest, scores: Scores, layer: int) -> KernelRequest:
    """Prepare a request for all layers with the mask of these scores.

    The statistics of uniform attention are the kernel's own, on queries and keys of zero."""
    from headwise.models.statistics.launch import LABELS_AT_ONCE, Scores, column_table

    device = scores.query.device
    names = list(request.equal_labels)
    labels = []
    for first in range(0, len(names), LABELS_AT_ONCE):
        labels.append(_stack_labels(request, names[first : first + LABELS_AT_ONCE]))
    prepared = KernelRequest(
        request=request,
        visibility=_visibility(request, scores),
        offsets=torch.tensor(sorted(request.offsets), device=device, dtype=torch.int32),
        columns=column_table(list(request.columns.values())),
        labels=tuple(labels),
    )
    if not request.uniform:
        return prepared
    n_examples, _, n_tokens, _ = scores.query.shape
    zeros = scores.query.new_zeros(n_examples, 1, n_tokens, 16, dtype=torch.bfloat16)
    uniform_scores = Scores(zeros, zeros, scores.lengths, 1.0, scores.causal, scores.window)
    _, uniform = attend_with_statistics(prepared, uniform_scores, None, layer)
    visibility = replace(prepared.visibility, uniform=uniform)
    return replace(prepared, visibility=visibility)


def attend_with_statistics(
    prepared: KernelRequest, scores: Scores, value: Tensor | None, layer: int
) -> tuple[Tensor | None, StatsResult]:
    """Compute the head outputs (if values are given) and the statistics of one layer."""
    from headwise.models.statistics import launch

    request = prepared.request
    visibility = prepared.visibility
    if value is not None:
        value = _with_contiguous_rows(value)
    first_labels = prepared.labels[0] if prepared.labels else None
    row_stats = launch.row_statistics(
        scores, value, prepared.columns, first_labels, request.distance
    )
    logsumexp = row_stats.logsumexp

    columns: dict[str, Tensor] = {}
    if row_stats.mass is not None:
        # The table of columns is padded to a multiple of 16: there are more masses than names.
        columns = dict(zip(request.columns, row_stats.mass.unbind(-1), strict=False))
    label_masses: list[Tensor] = []
    if row_stats.equal_label_mass is not None:
        label_masses += row_stats.equal_label_mass.unbind(-1)
    for labels in prepared.labels[1:]:
        mass = launch.row_statistics(scores, None, None, labels).equal_label_mass
        assert mass is not None
        label_masses += mass.unbind(-1)
    at_offset: dict[int, Tensor] = {}
    if request.offsets:
        weights = launch.weights_at_offsets(scores, logsumexp, prepared.offsets)
        at_offset = dict(zip(sorted(request.offsets), weights.unbind(-1), strict=True))
    pair_weights = {}
    for name, pairs in request.pairs.items():
        pair_weights[name] = _pair_weights(scores, logsumexp, pairs)
    rows = {}
    for name, row_numbers in request.rows.items():
        row_weights = _row_weights(scores, logsumexp, row_numbers, visibility.rows[name])
        rows[name] = (row_weights, visibility.rows[name])
    diagonals = row_stats.max_weight.new_zeros(*scores.query.shape[:2], 1)
    if request.max_offset:
        diagonals = launch.diagonal_sums(scores, logsumexp, request.max_offset)
    offset_sum = distance_sum = None
    if row_stats.offset is not None and row_stats.distance is not None:
        offset_sum = row_stats.offset.double().sum(-1)
        distance_sum = row_stats.distance.double().sum(-1)
    received = None
    if request.received:
        received = launch.received(scores, logsumexp)
    return row_stats.output, StatsResult(
        layer=layer,
        columns=columns,
        equal_labels=dict(zip(request.equal_labels, label_masses, strict=True)),
        at_offset=at_offset,
        pair_weights=pair_weights,
        rows=rows,
        diagonals=diagonals,
        n_pairs=visibility.n_pairs,
        offset_sum=offset_sum,
        distance_sum=distance_sum,
        received=received,
        entropy=row_stats.entropy if request.entropy else None,
        max_weight=row_stats.max_weight if request.max_weight else None,
        without_first=row_stats.without_first if request.without_first else None,
        learned_sink=_learned_sink_mass(scores, logsumexp),
        n_visible=visibility.n_visible,
        uniform=visibility.uniform,
    )


def _learned_sink_mass(scores: Scores, logsumexp: Tensor) -> Tensor | None:
    """Return the mass on the learned sinks, `[example, head, row]`; None without sinks."""
    if scores.sinks is None:
        return None
    position = torch.arange(scores.query.shape[2], device=scores.lengths.device)
    is_token = position < scores.lengths[:, None]
    return torch.exp(scores.sinks.float()[None, :, None] - logsumexp) * is_token[:, None]


def _pair_weights(scores: Scores, logsumexp: Tensor, pairs: Tensor) -> Tensor:
    """Return the weights of single pairs, `[pair, head]`: they are few, so plain products do."""
    n_heads = scores.query.shape[1]
    group_size = n_heads // scores.key.shape[1]
    parts = [torch.zeros(0, n_heads, device=pairs.device)]
    for first in range(0, pairs.shape[1], PAIRS_AT_ONCE):
        example, row, key = pairs[:, first : first + PAIRS_AT_ONCE].unbind()
        query_vectors = scores.query[example, :, row].float()
        key_vectors = scores.key[example, :, key].float().repeat_interleave(group_size, dim=1)
        score = _cap((query_vectors * key_vectors).sum(-1) * scores.scaling, scores)
        visible = _is_visible(scores, row, key, scores.lengths[example])
        parts.append(torch.exp(score - logsumexp[example, :, row]) * visible[:, None])
    return torch.cat(parts)


def _row_weights(scores: Scores, logsumexp: Tensor, row_numbers: Tensor, visible: Tensor) -> Tensor:
    """Return whole rows, `[example, head, row, key]`: they are few, so plain products do."""
    row_numbers = row_numbers.to(scores.query.device)
    n_examples, n_heads, _, size = scores.query.shape
    n_groups = scores.key.shape[1]
    query = scores.query[:, :, row_numbers].float()
    query = query.view(n_examples, n_groups, n_heads // n_groups, len(row_numbers), size)
    key = scores.key.float().transpose(-1, -2)[:, :, None]
    score = (query @ key).flatten(1, 2).mul_(scores.scaling)
    return _cap(score, scores).sub_(logsumexp[:, :, row_numbers, None]).exp_().mul_(visible)


def _is_visible(scores: Scores, row: Tensor, key: Tensor, lengths: Tensor) -> Tensor:
    """Return whether these rows may attend to these keys."""
    visible = (row < lengths) & (key < lengths)
    if scores.causal:
        visible &= key <= row
    if scores.window:
        visible &= (key - row).abs() < scores.window
    return visible


def _cap(score: Tensor, scores: Scores) -> Tensor:
    if not scores.softcap:
        return score
    return scores.softcap * torch.tanh(score / scores.softcap)


def _stack_labels(request: StatsRequest, names: list[str]) -> tuple[Tensor, Tensor]:
    """Return the labels of queries and keys under these names, int32 `[example, label, token]`."""
    query_labels = torch.stack([request.equal_labels[name][0] for name in names], dim=1)
    key_labels = torch.stack([request.equal_labels[name][1] for name in names], dim=1)
    # −1 equals nothing, so keys get another number than queries.
    key_labels = torch.where(key_labels < 0, -2, key_labels)
    return query_labels.to(torch.int32).contiguous(), key_labels.to(torch.int32).contiguous()


def _visibility(request: StatsRequest, scores: Scores) -> Visibility:
    """Return who may attend to whom, from lengths, causal mask and window."""
    device = scores.lengths.device
    position = torch.arange(scores.query.shape[2], device=device)
    rows = {}
    for name, row_numbers in request.rows.items():
        row = row_numbers.to(device)[:, None]
        rows[name] = _is_visible(scores, row, position, scores.lengths[:, None, None])[:, None]
    return Visibility(_n_visible(scores), _n_pairs(scores, request.max_offset), rows)


def _n_visible(scores: Scores) -> Tensor:
    """Return how many keys each token may attend to, `[example, token]`; 0 for padding."""
    n_tokens = scores.query.shape[2]
    lengths = scores.lengths[:, None]
    position = torch.arange(n_tokens, device=lengths.device)[None]
    last = (lengths - 1).expand(-1, n_tokens)
    if scores.causal:
        last = torch.minimum(position, last)
    first = torch.zeros_like(last)
    if scores.window:
        first = (position - scores.window + 1).clamp(min=0).expand_as(last)
        last = torch.minimum(last, position + scores.window - 1)
    return torch.where(position < lengths, last - first + 1, 0)


def _n_pairs(scores: Scores, max_offset: int) -> Tensor:
    """Return how many visible pairs (i, i + o) there are, `[example, 2·max_offset + 1]`."""
    offsets = torch.arange(-max_offset, max_offset + 1, device=scores.lengths.device)
    n_pairs = (scores.lengths[:, None] - offsets.abs()).clamp(min=0)
    if scores.causal:
        n_pairs = n_pairs * (offsets <= 0)
    if scores.window:
        n_pairs = n_pairs * (offsets.abs() < scores.window)
    return n_pairs
