"""Jensen-Shannon divergences against a plain double loop in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.stats import divergence
from headwise.stats.divergence import pairwise_js, smooth


def slow_js(maps: Tensor) -> np.ndarray:
    """Two Kullback-Leibler divergences to the middle, row by row, in float64, as the definition has
    it."""
    a = maps.double().numpy()
    heads, rows, keys = a.shape
    out = np.zeros((heads, heads))
    for g in range(heads):
        for h in range(heads):
            for i in range(rows):
                for j in range(keys):
                    p, q = a[g, i, j], a[h, i, j]
                    m = (p + q) / 2
                    out[g, h] += (p * math.log(p / m) if p > 0 else 0) / 2 + (
                        q * math.log(q / m) if q > 0 else 0
                    ) / 2
    return out


def random_maps(heads: int, n: int, causal: bool, sharp: float = 3.0) -> Tensor:
    scores = torch.randn(heads, n, n, generator=torch.Generator().manual_seed(heads + n)) * sharp
    if causal:
        scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(-1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(16, 8192), (3, 50), (1, 7)])
def test_equals_the_double_loop(
    causal: bool, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergence, "ROWS", rows)
    monkeypatch.setattr(divergence, "COLUMNS", columns)
    maps = random_maps(7, 11, causal)
    found = pairwise_js(maps)
    np.testing.assert_allclose(found, slow_js(maps), atol=1e-6 * 11)
    assert found.dtype == torch.float64


def test_the_way_of_accelerators_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "DEVICE_ELEMENTS", 700)
    maps = random_maps(5, 9, False)
    half = maps.reshape(5, -1) / 2 + divergence.TINY
    total = torch.zeros(5, 5, dtype=torch.float64)
    for start in range(0, 81, 30):
        divergence._products_device(half[:, start : start + 30], total)
    np.testing.assert_allclose(
        total.triu(), np.triu(divergence._products_cpu(half.numpy(), 1)), rtol=1e-6
    )


def test_torchs_logarithm_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = random_maps(5, 9, False)
    both = []
    for fast in (True, False):
        monkeypatch.setattr(divergence, "_numpy_log2_is_fast", lambda fast=fast: fast)
        both.append(pairwise_js(maps))
    np.testing.assert_allclose(both[0], both[1], atol=1e-6)


def test_threads_do_not_change_a_bit() -> None:
    maps = random_maps(10, 13, False)
    assert torch.equal(pairwise_js(maps, threads=1), pairwise_js(maps, threads=3))


def test_bounds_symmetry_and_zero() -> None:
    n = 8
    one, other = torch.zeros(n, n), torch.zeros(n, n)
    one[:, 0] = 1
    other[:, 1] = 1
    uniform = torch.full((n, n), 1 / n)
    found = pairwise_js(torch.stack([one, other, uniform, one]))
    assert float(found[0, 1]) == pytest.approx(
        n * math.log(2), rel=1e-6
    )  # disjoint rows are ln 2 apart
    expected = n * (
        -(1 + 1 / n) / 2 * math.log((1 + 1 / n) / 2)
        - (n - 1) / (2 * n) * math.log(1 / (2 * n))
        - math.log(n) / 2
    )
    assert float(found[0, 2]) == pytest.approx(expected, rel=1e-6)
    assert float(found[0, 3]) == 0.0
    assert torch.equal(found, found.T)
    assert (found.diagonal() == 0).all()


@pytest.mark.parametrize("scale", [1e-3, 1e-5, 1e-7])
def test_never_negative_for_nearly_equal_heads(scale: float) -> None:
    base = torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(0)) * 2
    noise = torch.randn(20, 64, 64, generator=torch.Generator().manual_seed(1)) * scale
    found = pairwise_js((base + noise).softmax(-1))
    assert (found >= 0).all()
    assert float(found.max()) < 64 * max(scale**2, 1e-6)


def test_padding_and_dead_keys_cost_and_change_nothing() -> None:
    maps = random_maps(4, 6, False)
    padded = torch.zeros(4, 10, 10)
    padded[:, :6, :6] = maps
    np.testing.assert_allclose(pairwise_js(padded), pairwise_js(maps), rtol=1e-6)


def test_smoothing_mixes_with_the_uniform_row_on_visible_keys() -> None:
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    smoothed = smooth(random_maps(3, 5, True), visible, 0.001)
    np.testing.assert_allclose(smoothed.sum(-1), 1.0, rtol=1e-6)
    assert (smoothed[:, ~visible] == 0).all()
    assert (smoothed[:, visible] >= 0.001 / 5).all()
    # As the released code has it: 0.001 / n + 0.999 · A.
    full = random_maps(3, 5, False)
    np.testing.assert_allclose(
        smooth(full, torch.ones(5, 5, dtype=torch.bool), 0.001), 0.001 / 5 + 0.999 * full, rtol=1e-6
    )
    assert smooth(full, visible, 0.0) is full


def test_no_heads_and_no_tokens() -> None:
    assert pairwise_js(torch.zeros(0, 3, 3)).shape == (0, 0)
    assert pairwise_js(torch.zeros(2, 0, 0)).sum() == 0
