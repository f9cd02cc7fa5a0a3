"""Pairs of words of a kind, and for each the pairs of other words that it is matched with: at the
same distance, of the same parts of speech where the input has such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.token_pairs.pairs import PairType
from headwise.models.token_pairs import TokenPairs, token_pairs
from headwise.text.encode import Batch, Encoded


@dataclass(frozen=True, slots=True, eq=False)
class MatchedPairs:
    """All pairs of a batch, one group for each example and kind, and their partners.

    `partner[pair]` is the group of `partners` that holds a pair's partners; `same[pair]`: these
    have the same parts of speech at both ends."""

    pairs: TokenPairs
    partners: TokenPairs
    partner: Tensor
    same: Tensor


def matched_pairs(batch: Batch, kinds: Sequence[PairType]) -> MatchedPairs:
    """The pairs of these kinds and their partners."""
    rows: list[tuple[int, int, int, int]] = []
    others: list[tuple[int, int, int, int]] = []
    owner, partner, same = list[int](), list[int](), list[bool]()
    for number, row in enumerate(batch.rows):
        for place, kind in enumerate(kinds):
            matrix = kind.matrix(row)
            found = PartnerFinder(row, matrix)
            # Pairs of one distance and the same parts of speech share theirs.
            groups: dict[tuple[int, int, int], tuple[int, bool]] = {}
            for i, j in zip(*np.nonzero(matrix), strict=True):
                rows.append((number, int(i), int(j), number * len(kinds) + place))
                key = found.key(int(i), int(j))
                if key not in groups:
                    partners, alike = found.partners(*key)
                    groups[key] = len(owner), alike
                    others.extend((number, int(a), int(b), len(owner)) for a, b in partners)
                    owner.append(number)
                partner.append(groups[key][0])
                same.append(groups[key][1])
    device = batch.device
    return MatchedPairs(
        pairs=token_pairs(rows, np.repeat(np.arange(len(batch)), len(kinds)).tolist(), device),
        partners=token_pairs(others, owner, device),
        partner=torch.tensor(partner, dtype=torch.int64, device=device),
        same=torch.tensor(same, dtype=torch.bool, device=device),
    )


class PartnerFinder:
    """Finds the partners of pairs of one kind in one input."""

    def __init__(self, row: Encoded, matrix: np.ndarray) -> None:
        tags = row.example.upos
        names = sorted(set(tags or ()))
        of_word = np.array([names.index(tag) for tag in tags or ()] + [-1])
        self.tag = of_word[row.word] if tags and row.aligned else np.full(len(row), -1)
        self.matrix = matrix
        self.ordinary = np.flatnonzero(~row.special)

    def key(self, i: int, j: int) -> tuple[int, int, int]:
        """What the partners of a pair depend on: the distance, and both parts of speech."""
        return j - i, int(self.tag[i]), int(self.tag[j])

    def partners(self, offset: int, first: int, second: int) -> tuple[np.ndarray, bool]:
        """Pairs of tokens `[partner, 2]`, and whether they have the same parts of speech at both
        ends."""
        a = self.ordinary[np.isin(self.ordinary + offset, self.ordinary)]
        b = a + offset
        others = ~self.matrix[a, b]
        alike = (self.tag[a] == first, self.tag[b] == second)
        known = first >= 0 and second >= 0
        tiers = [(others & alike[0] & alike[1], True), (others & alike[1], False)] if known else []
        for chosen, same in [*tiers, (others, False), (np.ones(len(a), dtype=bool), False)]:
            if chosen.any():
                return np.stack([a[chosen], b[chosen]], axis=1), same
        raise AssertionError("a pair lies at its own distance")
