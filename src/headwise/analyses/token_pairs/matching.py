"""Pairs of words of a type, and for each the pairs of other words that it is matched with: at the
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
    """All pairs of a batch, one group for each example and type, and their partners.

    `partner[pair]` is the group of `partners` that holds a pair's partners; `same[pair]`: these
    have the same parts of speech at both ends."""

    pairs: TokenPairs
    partners: TokenPairs
    partner: Tensor
    same: Tensor


def matched_pairs(batch: Batch, pair_types: Sequence[PairType]) -> MatchedPairs:
    """Return the pairs of these types and their partners."""
    n_types = len(pair_types)
    pairs: list[tuple[int, int, int, int]] = []  # example, query, key, group
    partners: list[tuple[int, int, int, int]] = []
    example_of_group: list[int] = []
    partner_group: list[int] = []
    same_pos: list[bool] = []
    for number, row in enumerate(batch.rows):
        for place, pair_type in enumerate(pair_types):
            matrix = pair_type.matrix(row)
            finder = PartnerFinder(row, matrix)
            # Pairs of one distance and the same parts of speech share their partners.
            groups: dict[tuple[int, int, int], tuple[int, bool]] = {}
            for i, j in zip(*np.nonzero(matrix), strict=True):
                pairs.append((number, int(i), int(j), number * n_types + place))
                key = finder.key(int(i), int(j))
                if key not in groups:
                    group = len(example_of_group)
                    places, is_same_pos = finder.partners(*key)
                    groups[key] = (group, is_same_pos)
                    for a, b in places:
                        partners.append((number, int(a), int(b), group))
                    example_of_group.append(number)
                group, is_same_pos = groups[key]
                partner_group.append(group)
                same_pos.append(is_same_pos)
    device = batch.device
    example_of_pair_group = np.repeat(np.arange(len(batch)), n_types).tolist()
    return MatchedPairs(
        pairs=token_pairs(pairs, example_of_pair_group, device),
        partners=token_pairs(partners, example_of_group, device),
        partner=torch.tensor(partner_group, dtype=torch.int64, device=device),
        same=torch.tensor(same_pos, dtype=torch.bool, device=device),
    )


class PartnerFinder:
    """Finds the partners of pairs of one type in one input."""

    def __init__(self, row: Encoded, matrix: np.ndarray) -> None:
        self.matrix = matrix
        self.ordinary = np.flatnonzero(~row.special)
        # The part of speech of each token, as a number; −1 where it is not known.
        self.tag = np.full(len(row), -1)
        tags = row.example.upos
        if tags and row.aligned:
            names = sorted(set(tags))
            # Tokens without a word have index −1, which reads the last entry.
            tag_of_word = np.array([*(names.index(tag) for tag in tags), -1])
            self.tag = tag_of_word[row.word]

    def key(self, i: int, j: int) -> tuple[int, int, int]:
        """Return what the partners of a pair depend on: offset, and both parts of speech."""
        return j - i, int(self.tag[i]), int(self.tag[j])

    def partners(self, offset: int, query_tag: int, key_tag: int) -> tuple[np.ndarray, bool]:
        """Return pairs of tokens `[partner, 2]`, and whether they have the same parts of speech at
        both ends."""
        query = self.ordinary[np.isin(self.ordinary + offset, self.ordinary)]
        key = query + offset
        is_other = ~self.matrix[query, key]
        if query_tag >= 0 and key_tag >= 0:
            same_key = is_other & (self.tag[key] == key_tag)
            same_both = same_key & (self.tag[query] == query_tag)
            if same_both.any():
                return np.stack([query[same_both], key[same_both]], axis=1), True
            if same_key.any():
                return np.stack([query[same_key], key[same_key]], axis=1), False
        # If all pairs at this offset are of the type, they are compared with themselves.
        chosen = is_other if is_other.any() else np.ones(len(query), dtype=bool)
        return np.stack([query[chosen], key[chosen]], axis=1), False
