"""Single weights of a map, picked out by lists of token pairs and put together by groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenPairs:
    """Pairs of tokens of a batch, `query` looking at `key`, each of a group; `owner[group]` is the
    group's example."""

    example: Tensor  # int64 [pair]
    query: Tensor
    key: Tensor
    group: Tensor
    owner: Tensor  # int64 [group]

    @property
    def groups(self) -> int:
        return len(self.owner)

    @property
    def places(self) -> Tensor:
        """Example, query and key, `[3, pair]`, as `Ask` wants them."""
        return torch.stack([self.example, self.query, self.key])


def token_pairs(
    rows: Sequence[tuple[int, int, int, int]], owner: Sequence[int], device: torch.device
) -> TokenPairs:
    """From (example, query, key, group) in any order."""
    table = torch.tensor(rows, dtype=torch.int64, device=device).reshape(-1, 4)
    example, query, key, group = table.unbind(1)
    return TokenPairs(
        example, query, key, group, torch.tensor(owner, dtype=torch.int64, device=device)
    )


def group_max(values: Tensor, present: Tensor, pairs: TokenPairs) -> Tensor:
    """The largest present value of each group, `[group, head]`; NaN where there is none."""
    shown = torch.where(present, values, -torch.inf)
    out = shown.new_full((pairs.groups, values.shape[1]), -torch.inf)
    out.scatter_reduce_(0, pairs.group[:, None].expand_as(shown), shown, "amax")
    return torch.where(out.isinf(), torch.nan, out)


def group_mean(values: Tensor, present: Tensor, pairs: TokenPairs) -> Tensor:
    """The mean of the present values of each group, `[group, head]`; NaN where there is none."""
    present = present.expand_as(values)
    total = values.new_zeros(pairs.groups, values.shape[1])
    total.index_add_(0, pairs.group, torch.where(present, values, 0.0))
    count = torch.zeros_like(total).index_add_(0, pairs.group, present.to(values.dtype))
    return torch.where(count > 0, total / count, torch.nan)
