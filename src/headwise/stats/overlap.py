"""Whether two sets of heads overlap more than chance would have it: exact, over all heads or within each layer."""

from __future__ import annotations

import numpy as np
from scipy import stats as scipy_stats

from headwise.stats.intervals import share


def overlap_counts(members: np.ndarray) -> np.ndarray:
    """How many items each two sets share, `[set, set]`, from `members[..., set]` (bool).

    The diagonal holds the sizes.
    """
    flat = np.asarray(members, dtype=bool).reshape(-1, members.shape[-1]).astype(np.int64)
    return flat.T @ flat


def jaccard(counts: np.ndarray) -> np.ndarray:
    """`|A ∩ B| / |A ∪ B|` from the shared counts; NaN where both sets are empty."""
    size = np.diag(counts)
    return share(counts, size[:, None] + size[None] - counts)


def overlap_test(members: np.ndarray) -> np.ndarray:
    """`P(overlap ≥ the one found)` for each two sets drawn at random with their sizes: the hypergeometric tail.

    `members[..., set]` is bool. The diagonal and pairs with an empty set are NaN: there is nothing to test.
    """
    flat = np.asarray(members, dtype=bool).reshape(1, -1, members.shape[-1])
    return stratified_overlap_test(flat)


def stratified_overlap_test(members: np.ndarray) -> np.ndarray:
    """The same with each stratum's (layer's) sizes kept, `members[stratum, item, set]`.

    Sets that merely share layers do not count as overlapping.

    The overlap is then a sum of independent hypergeometric counts, one for each stratum; its distribution is their
    convolution, so the test is exact."""
    members = np.asarray(members, dtype=bool)
    strata, items, sets = members.shape
    sizes = members.sum(1)
    counts = overlap_counts(members)
    out = np.full((sets, sets), np.nan)
    for a in range(sets):
        for b in range(a + 1, sets):
            if not counts[a, a] or not counts[b, b]:
                continue
            chances = np.ones(1)
            for stratum in range(strata):
                most = int(min(sizes[stratum, a], sizes[stratum, b]))
                here = scipy_stats.hypergeom.pmf(np.arange(most + 1), items, sizes[stratum, a], sizes[stratum, b])
                chances = np.convolve(chances, here)
            out[a, b] = out[b, a] = min(1.0, float(chances[counts[a, b] :].sum()))
    return out
