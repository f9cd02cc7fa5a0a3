"""Every analysis has a summary; top heads come with their intervals."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from headwise.analyses.contract import Analysis, known_analyses
from headwise.analyses.summaries import top_heads


@pytest.mark.parametrize(
    "name", [n for n, c in known_analyses().items() if c.__module__.startswith("headwise.")]
)
def test_every_analysis_has_a_summary(name: str) -> None:
    assert known_analyses()[name].summary is not Analysis.summary


def test_top_heads_with_their_intervals() -> None:
    values = np.array([[0.1, np.nan], [0.7, 0.4]])
    dims = ("layer", "head")
    dataset = xr.Dataset(
        {"x": (dims, values), "x_low": (dims, values - 0.05), "x_high": (dims, values + 0.05)}
    )
    # Picked from three heads: 0.05 times 2.394 / 1.960, the quantiles of 1 − 0.05/6 and 1 − 0.05/2.
    assert top_heads(dataset, "x", 2) == "L1H0 0.70 (0.64 to 0.76), L1H1 0.40 (0.34 to 0.46)"
    # From two: 2.241 / 1.960.
    assert (
        top_heads(dataset, "x", 5, allowed=values < 0.5, form=".3f")
        == "L1H1 0.400 (0.343 to 0.457), L0H0 0.100 (0.043 to 0.157)"
    )
    assert top_heads(dataset, "x", allowed=np.zeros((2, 2), bool)) == "none"
