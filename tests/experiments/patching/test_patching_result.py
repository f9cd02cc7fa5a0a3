"""The arrays of patching in closed form: shares of totals, signs, missing positions, tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from headwise.analyses.contract import MIN_EXAMPLES
from headwise.experiments.patching.result import (
    describe_ablated_heads,
    describe_best_heads,
    patching_dataset,
    strongest_heads,
    two_sided_p,
)
from headwise.models import HeadModel


def model_of(heads: int = 2, kv_groups: tuple[int, ...] | None = None) -> HeadModel:
    groups = tuple(range(heads)) if kv_groups is None else kv_groups
    return cast(HeadModel, SimpleNamespace(layers=1, heads=heads, kv_groups=groups))


def arrays_of(
    recovered: list[list[float]], gap: list[float], **more: np.ndarray
) -> dict[str, np.ndarray]:
    """Changes of d by `[pair][head]` in one layer, and pairs whose clean d is the gap."""
    values = np.array(recovered)[:, None, :]
    return {
        "clean": np.array(gap),
        "corrupted": np.zeros(len(gap)),
        "recovered": values,
        "estimate": values,
        **more,
    }


def test_a_share_is_the_ratio_of_totals_over_pairs() -> None:
    # The pair with the larger gap weighs more, and one whose gap goes the other way counts too.
    arrays = arrays_of([[1.0, 0.0], [3.0, 1.0], [-1.0, 2.0]], [1.0, 6.0, -1.0])
    dataset = patching_dataset(arrays, model_of(), {})
    np.testing.assert_allclose(dataset["recovered"].values, [[3 / 6, 3 / 6]])
    assert dataset["recovered_n"].values.tolist() == [[3, 3]]
    assert dataset.attrs["clean"] == pytest.approx(2)
    assert dataset.attrs["clean_right"] == pytest.approx(2 / 3)
    assert dataset.attrs["corrupted_right"] == 0


def test_where_the_model_prefers_the_wrong_answer_shares_keep_their_sign() -> None:
    arrays = arrays_of([[-1.0, 2.0], [-1.0, 2.0]], [-2.0, -2.0])
    dataset = patching_dataset(arrays, model_of(), {})
    np.testing.assert_allclose(dataset["recovered"].values, [[0.5, -1.0]])
    assert strongest_heads(arrays, 2) == [(0, 0), (0, 1)]


def test_pairs_without_a_position_are_left_out_of_both_totals() -> None:
    by_position = np.full((2, 1, 2, 2), np.nan)
    by_position[0, 0, :, 0] = 1.0
    by_position[1, 0, :, 0] = 1.0
    by_position[1, 0, :, 1] = 3.0  # the first pair has one position only
    arrays = arrays_of([[1.0, 1.0], [1.0, 1.0]], [2.0, 6.0], estimate_at=by_position)
    dataset = patching_dataset(arrays, model_of(), {})
    np.testing.assert_allclose(dataset["estimate_at"].values[0, 0], [2 / 8, 3 / 6])
    assert dataset["estimate_at_n"].values[0, 0].tolist() == [2, 1]
    assert dataset["offset"].values.tolist() == [0, -1]


def test_p_values_are_those_of_a_t_test_over_pairs() -> None:
    random = np.random.default_rng(0)
    values = random.normal(0.2, 1.0, (MIN_EXAMPLES, 2, 3))
    expected = stats.ttest_1samp(values, 0.0, axis=0).pvalue
    np.testing.assert_allclose(two_sided_p(values), expected)
    np.testing.assert_allclose(two_sided_p(-values), expected)
    values[:, 0, 0] = np.nan
    assert np.isnan(two_sided_p(values)[0, 0])
    assert np.isfinite(two_sided_p(values)[0, 1:]).all()
    assert np.isnan(two_sided_p(values[: MIN_EXAMPLES - 1])).all()


def test_estimate_and_exact_are_correlated_over_heads() -> None:
    arrays = arrays_of([[1.0, 2.0, 4.0, 3.0]] * 2, [10.0, 10.0])
    arrays["estimate"] = 0.5 * arrays["recovered"]
    dataset = patching_dataset(arrays, model_of(heads=4), {})
    assert dataset.attrs["pearson"] == pytest.approx(1)
    assert dataset.attrs["spearman"] == pytest.approx(1)
    del arrays["recovered"]
    only_estimate = patching_dataset(arrays, model_of(heads=4), {})
    assert "pearson" not in only_estimate.attrs
    assert describe_best_heads(only_estimate, 1) == ["L0H2 +0.20"]


def test_heads_are_described_in_the_order_of_what_they_bring_back() -> None:
    ablated: Any = np.full((2, 1, 2), np.nan)
    ablated[:, 0, 1] = 5.0
    arrays = arrays_of([[1.0, 2.0]] * 2, [10.0, 10.0], ablated=ablated)
    dataset = patching_dataset(arrays, model_of(), {})
    assert describe_best_heads(dataset) == ["L0H1 +0.20", "L0H0 +0.10"]
    assert describe_ablated_heads(dataset) == ["L0H1 +0.50"]  # only the head that was zeroed


def test_key_value_groups_are_named() -> None:
    arrays = arrays_of([[1.0, 2.0]] * 2, [10.0, 10.0])
    grouped = patching_dataset(arrays, model_of(kv_groups=(0, 0)), {})
    assert grouped["kv_group"].values.tolist() == [0, 0]
    assert "kv_group" not in patching_dataset(arrays, model_of(), {}).coords


def test_pairs_of_one_unit_count_as_one() -> None:
    random = np.random.default_rng(0)
    gap = random.normal(4.0, 1.5, 40)
    recovered = 0.3 * gap[:, None] + random.normal(0.0, 1.0, (40, 2))
    alone = patching_dataset(arrays_of(recovered.tolist(), gap.tolist()), model_of(), {})
    thrice = arrays_of(recovered.repeat(3, 0).tolist(), gap.repeat(3).tolist())
    units = [number for number in range(40) for _ in range(3)]
    dataset = patching_dataset(thrice, model_of(), {}, units)
    for name in ("recovered", "recovered_low", "recovered_high", "recovered_p"):
        np.testing.assert_allclose(dataset[name].values, alone[name].values, rtol=1e-4, atol=1e-6)
    assert dataset["recovered_n"].values.tolist() == [[120, 120]]
    apart = patching_dataset(thrice, model_of(), {})
    assert (apart["recovered_high"] < dataset["recovered_high"]).all()


def test_the_interval_of_a_share_follows_the_long_tail() -> None:
    """Few pairs bring back most: the upper end is farther from the share than the lower one."""
    random = np.random.default_rng(1)
    gap = random.gamma(3.0, 1.4, 60)
    recovered = 0.1 * gap * random.lognormal(-0.5, 1.0, 60)
    arrays = arrays_of([[value, 0.0] for value in recovered], gap.tolist())
    dataset = patching_dataset(arrays, model_of(), {})
    share, low, high = (
        float(dataset[name][0, 0]) for name in ("recovered", "recovered_low", "recovered_high")
    )
    assert share == pytest.approx(recovered.sum() / gap.sum())
    assert high - share > 1.1 * (share - low)
