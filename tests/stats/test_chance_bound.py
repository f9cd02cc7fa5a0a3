"""The bound that random heads do not pass: holds its level on normal values, finds what is far
beyond."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headwise.core.errors import ParameterError
from headwise.stats.nulls import chance_bound


def test_bound_by_hand() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0])
    spread = np.sqrt(np.mean(np.arange(1.0, 7.0) ** 2))  # around the median, 6
    assert chance_bound(values[:, None], 10, tail="normal") == pytest.approx(
        6 + spread * stats.t.isf(0.005, 5)
    )
    # beyond 2 lie ten values, 5.5 above it on average: P(x > 2 + y) = 10/13 (1 + y/55)^-10
    further = 55 * ((10 / 13 / 0.005) ** 0.1 - 1)
    assert chance_bound(values[:, None], 10) == pytest.approx(2 + further)
    for tail in ("normal", "exponential"):
        with_gaps = np.concatenate([values, [np.nan] * 5])[:, None]
        assert chance_bound(with_gaps, 10, tail=tail) == pytest.approx(
            chance_bound(values[:, None], 10, tail=tail)
        )
        assert np.isnan(chance_bound(values[:11, None], 10, tail=tail)).all()  # too few
        assert chance_bound(np.full((20, 2, 3), 4.0), 5, tail=tail).tolist() == [[4.0] * 3] * 2
    with pytest.raises(ParameterError, match="normal, exponential; it is 'heavy'"):
        chance_bound(values[:, None], 10, tail="heavy")


@pytest.mark.parametrize(("heads", "models"), [(12, 4), (144, 1)])
@pytest.mark.parametrize("tail", ["normal", "exponential"])
def test_no_random_head_passes_but_at_the_level(heads: int, models: int, tail: str) -> None:
    rng = np.random.default_rng(1)
    draw = rng.standard_normal if tail == "normal" else rng.standard_exponential
    passed = []
    for _ in range(300):
        null, new = draw(size=(heads * models, 6)), draw(size=(heads, 6))
        passed.append((new > chance_bound(null, heads * 6, tail=tail)).any())
    assert 0.003 < np.mean(passed) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
