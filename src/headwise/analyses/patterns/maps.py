"""Resize attention maps of any length to one size, by a linear map that keeps stripes, diagonals and
blocks."""

from __future__ import annotations

import torch
from torch import Tensor

SIZE = 64
CHANNELS = ("seen", "weight", "visible", "column", "offset")
# The darkest shade stands for this quantile of the visible weights: one outlier must not make the
# rest of a map white.
TOP_SHARE = 0.01


def bins(lengths: Tensor, width: int, start: int = 0, stop: int | None = None) -> Tensor:
    """Return one-hot `[example, SIZE, token]`: which of at most SIZE groups each of the tokens
    `start..stop` belongs to.

    Up to SIZE tokens, each is its own group; beyond, token t of n belongs to group `⌊t · SIZE
    / n⌋`, so that groups are neighbours and (nearly) of one size. Padding tokens belong to none."""
    stop = width if stop is None else stop
    tokens = torch.arange(start, stop, device=lengths.device)[None].expand(len(lengths), -1)
    n_tokens = lengths[:, None]
    scaled = tokens * SIZE // n_tokens.clamp(min=1)
    group = torch.where(n_tokens > SIZE, scaled, tokens)
    # Padding gets a group of its own, which is dropped.
    group = torch.where(tokens < n_tokens, group, SIZE)
    one_hot = torch.nn.functional.one_hot(group.clamp(max=SIZE), SIZE + 1)
    return one_hot[..., :SIZE].transpose(1, 2)


def shrink(weights: Tensor, lengths: Tensor, start: int = 0) -> Tensor:
    """Return the mass between groups of tokens: `[example, head, row, key]`, rows from `start` on,
    to `[..., SIZE, SIZE]`.

    `M[I, J] = 1/|I| Σ_{i ∈ I} Σ_{j ∈ J} A[i, j]`: how much a token of group I gives to group J, so
    rows still sum to one. It is linear, so blocks of rows add up. A head on the previous token
    keeps a full diagonal, a head on one token a full stripe, and a head on its segment a full
    block, however long the input. Maps of at most SIZE tokens are left as they are, in the upper
    left corner."""
    keys = bins(lengths, weights.shape[-1]).to(weights.dtype)
    rows = bins(lengths, weights.shape[-1], start, start + weights.shape[-2]).to(weights.dtype)
    rows = rows / keys.sum(-1, keepdim=True).clamp(min=1)
    return rows[:, None] @ (weights @ keys[:, None].transpose(-1, -2))


def shrink_visible(visible: Tensor, lengths: Tensor, start: int = 0) -> Tensor:
    """Return how many pairs of two groups are visible, `[example, 1 or head, SIZE, SIZE]`; blocks of
    rows add up."""
    keys = bins(lengths, visible.shape[-1]).float()
    rows = bins(lengths, visible.shape[-1], start, start + visible.shape[-2]).float()
    return rows[:, None] @ (visible.float() @ keys[:, None].transpose(-1, -2))


def images(mass: Tensor, seen_pairs: Tensor, lengths: Tensor) -> Tensor:
    """Return the input of the network, `[example, head, channel, SIZE, SIZE]`, from `shrink` and
    `shrink_visible`.

    Maps of fewer than SIZE groups are stretched by repeating their cells. Channels:

    - `seen`: the map as a labeller sees it, the square root of the weight over the map's 99th
      percentile of visible weights, at most 1;
    - `weight`: the square root of the weight itself;
    - `visible`: 1 where a query may look;
    - `column`: the square root of the mean weight of each column over the rows that may look there,
      along the whole column;
    - `offset`: the square root of the mean weight at each distance from the diagonal, along it.
    """
    groups = lengths.clamp(max=SIZE)
    source = torch.arange(SIZE, device=mass.device)[None] * groups[:, None] // SIZE
    mass = _stretch(mass.clamp(min=0), source)
    visible = (_stretch(seen_pairs, source) > 0).to(mass.dtype).expand_as(mass)
    mass = mass * visible
    flat = mass.flatten(-2)
    n_visible = visible.flatten(-2).sum(-1, keepdim=True)
    rank = (n_visible * TOP_SHARE).long()
    largest = flat.topk(int(SIZE * SIZE * TOP_SHARE) + 1, dim=-1).values
    darkest = largest.gather(-1, rank)  # the 99th percentile of the visible weights
    seen = (flat / darkest.clamp(min=1e-9)).clamp(max=1).view_as(mass)
    column = mass.sum(-2, keepdim=True) / visible.sum(-2, keepdim=True).clamp(min=1)
    offset = _offset_means(mass, visible)
    channels = [seen.sqrt(), mass.sqrt(), visible, column.sqrt().expand_as(mass), offset.sqrt()]
    return torch.stack(channels, dim=-3)


def _stretch(square: Tensor, source: Tensor) -> Tensor:
    """Return squares whose cell (i, j) is cell (source[i], source[j]), for each example."""
    wide = source[:, None, None, :].expand(*square.shape[:-1], -1)
    square = square.gather(-1, wide)
    return square.gather(-2, source[:, None, :, None].expand(*square.shape))


def _offset_means(mass: Tensor, visible: Tensor) -> Tensor:
    """Return the mean over the visible cells of each diagonal, put back on that diagonal."""
    position = torch.arange(SIZE, device=mass.device)
    diagonal = position[None] - position[:, None] + SIZE - 1
    index = diagonal.flatten().expand(*mass.shape[:-2], -1)
    total = mass.new_zeros(*mass.shape[:-2], 2 * SIZE - 1)
    count = total.clone()
    total.scatter_add_(-1, index, mass.flatten(-2))
    count.scatter_add_(-1, index, visible.flatten(-2).contiguous())
    return (total / count.clamp(min=1)).gather(-1, index).view_as(mass)


def map_images(maps: Tensor, causal: bool) -> Tensor:
    """Return the images `[map, channel, SIZE, SIZE]` of maps `[map, n, n]` of one length."""
    n = maps.shape[-1]
    lengths = torch.tensor([n], device=maps.device)
    square = torch.ones(n, n, dtype=torch.bool, device=maps.device)
    visible = square.tril() if causal else square
    weights = maps[None].float() * visible
    visible_pairs = shrink_visible(visible[None, None], lengths)
    return images(shrink(weights, lengths), visible_pairs, lengths)[0]
