"""Cohen's kappa against scikit-learn's and statsmodels', and its interval."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import cohens_kappa

from headwise.analyses.patterns import cohen_kappa
from headwise.core.errors import ParameterError


def two_labellers(n: int, agree: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    first = rng.choice(list("vdmbh"), n, p=[0.35, 0.15, 0.3, 0.1, 0.1])
    return first, np.where(rng.random(n) < agree, first, rng.choice(list("vdmbh"), n))


@pytest.mark.parametrize("agree", [0.0, 0.5, 0.9])
def test_kappa_equals_others(agree: float) -> None:
    first, second = two_labellers(150, agree, 3)
    got = cohen_kappa(first, second)
    assert got.kappa == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)
    names = sorted(set(first) | set(second))
    table = np.array([[np.sum((first == a) & (second == b)) for b in names] for a in names])
    theirs = cohens_kappa(table)
    assert (got.low, got.high) == (
        pytest.approx(theirs.kappa_low, abs=0.03),
        pytest.approx(theirs.kappa_upp, abs=0.03),
    )
    assert got.n == 150
    assert got.observed == pytest.approx(np.mean(first == second))


def test_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    # Second labels equal the first with probability 0.7, else uniform: kappa's true value, from the
    # probabilities.
    p = np.array([0.35, 0.15, 0.3, 0.1, 0.1])
    joint = 0.7 * np.diag(p) + 0.3 * np.outer(p, np.full(5, 0.2))
    expected = joint.sum(1) @ joint.sum(0)
    truth = (np.trace(joint) - expected) / (1 - expected)
    held = [
        k.low <= truth <= k.high
        for k in (cohen_kappa(*two_labellers(150, 0.7, seed), repeats=400) for seed in range(120))
    ]
    assert 0.88 <= np.mean(held) <= 1.0


def test_edges() -> None:
    assert cohen_kappa([], []).n == 0
    assert "no map" in str(cohen_kappa([], []))
    assert np.isnan(cohen_kappa(["v"] * 4, ["v"] * 4).kappa)
    assert cohen_kappa(list("vdvd"), list("vdvd")).kappa == 1
    assert cohen_kappa(list("vdvd"), list("dvdv")).kappa == -1
    with pytest.raises(ParameterError, match="2 and 1"):
        cohen_kappa(list("vd"), ["v"])
