"""The sign-flip test: exact where all signs can be tried, right over families, blind to columns far
below."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from headwise.stats.corrections import correct_families
from headwise.stats.flips import sign_flip_test
from headwise.stats.tests import mcnemar_exact


def test_against_all_sets_of_signs() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(-2, 4, size=(9, 3)).astype(float)
    size = np.sqrt((values**2).sum(0))
    every = np.array([(np.array(signs) @ values) / size for signs in product((-1, 1), repeat=9)])
    observed = values.sum(0) / size
    found = sign_flip_test(values)
    np.testing.assert_allclose(found.p_value, (every >= observed - 1e-9).mean(0), atol=0.012)
    np.testing.assert_allclose(
        found.p_adjusted, [(every.max(1) >= t - 1e-9).mean() for t in observed], atol=0.012
    )


def test_single_items_are_mcnemars() -> None:
    better, worse = 14, 5
    values = np.concatenate([np.ones(better), -np.ones(worse), np.zeros(100)])[:, None]
    assert sign_flip_test(values).p_value[0] == pytest.approx(
        float(mcnemar_exact(better, worse)), abs=0.006
    )


def test_items_of_one_unit_count_once() -> None:
    one = sign_flip_test(np.ones((12, 1))).p_value[0]
    assert sign_flip_test(np.full((12, 1), 9.0)).p_value[0] == one


def test_columns_far_below_do_not_hide_the_one_above() -> None:
    rng = np.random.default_rng(2)
    good = rng.choice([1.0, 0.0, -1.0], p=[0.14, 0.82, 0.04], size=(300, 1))
    bad = rng.choice([1.0, 0.0, -1.0], p=[0.05, 0.3, 0.65], size=(300, 280))
    alone, among = sign_flip_test(good), sign_flip_test(np.concatenate([good, bad], 1))
    assert among.p_adjusted[0] == pytest.approx(alone.p_value[0], abs=0.002)
    assert among.p_adjusted[0] < 0.005
    assert (among.p_adjusted[1:] > 0.9).all()


def test_nothing_to_tell_apart() -> None:
    found = sign_flip_test(np.zeros((5, 2)))
    assert found.p_value.tolist() == found.p_adjusted.tolist() == [1, 1]


def test_families() -> None:
    p = np.array([[0.001, 0.02, np.nan], [0.04, 0.03, np.nan]])
    np.testing.assert_allclose(correct_families(p), [[0.002, 0.02, np.nan], [0.08, 0.06, np.nan]])
    np.testing.assert_allclose(correct_families(p, "none"), p)
