"""The bound that random heads do not pass: holds its level on normal values, finds what is far beyond."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headwise.stats.nulls import chance_bound


def test_bound_by_hand() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0])
    spread = np.sqrt(np.mean(np.arange(1.0, 7.0) ** 2))  # around the median, 6
    assert chance_bound(values[:, None], tests=10) == pytest.approx(6 + spread * stats.t.isf(0.005, 5))
    with_gaps = np.concatenate([values, [np.nan] * 5])[:, None]
    assert chance_bound(with_gaps, tests=10) == pytest.approx(chance_bound(values[:, None], tests=10))
    assert np.isnan(chance_bound(values[:11, None], tests=10)).all()  # too few
    assert chance_bound(np.full((20, 2, 3), 4.0), tests=5).tolist() == [[4.0] * 3] * 2


@pytest.mark.parametrize(("heads", "models"), [(12, 4), (144, 1)])
def test_no_random_head_passes_but_at_the_level(heads: int, models: int) -> None:
    rng = np.random.default_rng(1)
    passed = []
    for _ in range(400):
        null, new = rng.normal(size=(heads * models, 6)), rng.normal(size=(heads, 6))
        passed.append((new > chance_bound(null, heads * 6)).any())
    assert 0.005 < np.mean(passed) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
