"""Corrections against scipy, against their definitions, and with gaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests

from headwise.core.errors import ParameterError
from headwise.stats.corrections import benjamini_hochberg, correct, holm

p_values = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def slow_holm(p: list[float]) -> list[float]:
    """The adjusted value of a test: the largest of (m − rank) · p over the tests ranked at or
    before it."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    return [
        min(1.0, max((len(p) - k) * p[order[k]] for k in range(order.index(i) + 1)))
        for i in range(len(p))
    ]


@given(p_values)
def test_holm_is_its_definition(p: list[float]) -> None:
    np.testing.assert_allclose(holm(np.array(p)), slow_holm(p), rtol=1e-12)


@given(p_values)
def test_benjamini_hochberg_is_scipys(p: list[float]) -> None:
    np.testing.assert_allclose(
        benjamini_hochberg(np.array(p)), scipy_stats.false_discovery_control(p), rtol=1e-12
    )


def test_holm_is_that_of_statsmodels() -> None:
    p = np.random.default_rng(4).beta(0.4, 1, 300)
    p[:20] = p[20:40]  # ties
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1], rtol=1e-12)


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize("method", ["holm", "benjamini_hochberg"])
def test_nan_is_no_test_and_any_shape_goes(method: str) -> None:
    p = np.random.default_rng(0).uniform(size=(3, 4, 5))
    p[p > 0.7] = np.nan
    adjusted = correct(p, method)
    assert adjusted.shape == p.shape
    np.testing.assert_array_equal(np.isnan(adjusted), np.isnan(p))
    np.testing.assert_allclose(adjusted[~np.isnan(p)], correct(p[~np.isnan(p)], method))
    assert np.isnan(correct(np.full((2, 2), np.nan), method)).all()
    assert correct(np.zeros((0, 3)), method).shape == (0, 3)


def test_the_correction_is_over_all_axes() -> None:
    p = np.full((2, 5), 0.01)
    np.testing.assert_allclose(holm(p), 0.1)


def test_none_and_unknown() -> None:
    np.testing.assert_array_equal(correct(np.array([0.2, 0.1]), "none"), [0.2, 0.1])
    with pytest.raises(ParameterError, match="holm, benjamini_hochberg, none; it is 'bonferoni'"):
        correct(np.array([0.2]), "bonferoni")
