"""Whether one way is better than another on the same units: the sign-flip test, for many columns at
once (max-T)."""

from __future__ import annotations

import numpy as np

from headwise.stats.bootstrap import FamilyTest

FLIPS = 9999
AT_ONCE = 2**24  # signs and statistics held at once


def sign_flip_test(differences: np.ndarray, repeats: int = FLIPS, seed: int = 0) -> FamilyTest:
    """p-values of `H0: mean difference ≤ 0` for each column of `differences[unit, ...]`, and over
    all columns.

    What the one way gets right more than the other is summed for each unit (a document, a
    sentence). Were both alike, each unit's difference could as well have the other sign: t = Σd /
    sqrt(Σd²) is held against its values under `repeats` random sets of signs, the same for all
    columns (the given signs count as one). With units of one item this is McNemar's test; with
    larger ones it allows for items of one unit that hang together. A column of zeros gets p = 1.

    The adjusted p is the share of sets of signs whose largest t over the columns is at least t
    (Westfall and Young's max-T: family-wise error, however the columns hang together). Columns
    surely worse, with t below `−sqrt(2 ln ln units)`, have no part in the largest (Hansen 2005): a
    hundred heads far below the bar must not hide the one above it.

    Examples
    --------
    >>> found = sign_flip_test(np.ones((10, 1)))  # ten units, all better: 1 of 1,024 sets of signs is as good
    >>> bool(found.p_value[0] < 0.003)
    True
    """
    flat = np.asarray(differences, dtype=np.float32).reshape(len(differences), -1)
    flat = flat[(flat != 0).any(1)]
    size = np.sqrt((flat.astype(np.float64) ** 2).sum(0))
    unit = (flat / np.where(size > 0, size, 1.0)).astype(np.float32)
    observed = unit.sum(0, dtype=np.float64)
    worse = -np.sqrt(2 * np.log(np.log(max(len(flat), 3))))
    rivals = unit[:, (observed >= worse) & (size > 0)]
    slack = 1e-5  # equal statistics may differ by rounding
    reached, family = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
    generator = np.random.default_rng(seed)
    step = max(1, AT_ONCE // max(len(flat) + flat.shape[1], 1))
    for start in range(0, repeats if len(flat) else 0, step):
        count = min(step, repeats - start)
        signs = (
            generator.integers(0, 2, size=(count, len(flat)), dtype=np.int8).astype(np.float32) * 2
            - 1
        )
        reached += (signs @ unit >= observed - slack).sum(0)
        largest = np.sort((signs @ rivals).max(1, initial=-np.inf))
        family += count - np.searchsorted(largest, observed - slack, side="left")
    none = size == 0
    p = (1 + reached) / (1 + repeats)
    adjusted = np.maximum((1 + family) / (1 + repeats), p)
    shape = np.asarray(differences).shape[1:]
    return FamilyTest(
        np.where(none, 1.0, p).reshape(shape), np.where(none, 1.0, adjusted).reshape(shape)
    )
