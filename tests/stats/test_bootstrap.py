"""The studentized bootstrap where scores are equal: rounding is no spread."""

from __future__ import annotations

import numpy as np

from headwise.stats.skewed import bootstrap_family_test


def test_equal_scores_have_no_spread_however_they_are_rounded() -> None:
    rng = np.random.default_rng(15)
    values = np.full((200, 12), 5.198434290571065e-07)  # the mean of 141 to 200 of these is another number
    values[:59, 3] = np.nan
    values[:, 6:] = 3 + rng.normal(size=(200, 6))
    found = bootstrap_family_test(values, 2.0, 300)
    assert (found.p_value[:6] == 1).all()
    assert (found.p_adjusted[:6] == 1).all()
    np.testing.assert_allclose(
        found.p_adjusted[6:], 1 / 301
    )  # such columns have no part in what is the largest t of all
    assert (bootstrap_family_test(np.full((200, 1), 0.1), 0.1, 100).p_value == 1).all()  # 0.1 is not above 0.1
