"""What the table of heads after `headwise run` leaves to the file."""

from __future__ import annotations

import re

import pytest

from headwise.cli.atlas import NOT_IN_SUMMARY


@pytest.mark.parametrize(
    "name",
    ["first_p", "prefix_matching_p", "p_value", "p_holm", "p_fdr", "bias_rest_p_adjusted", "p"],
)
def test_a_mean_of_p_values_over_heads_is_never_told(name: str) -> None:
    assert re.search(NOT_IN_SUMMARY, name)


@pytest.mark.parametrize(
    "name", ["first", "position", "punct", "prefix_matching", "top", "mass", "pairs", "p_only"]
)
def test_measures_are_told(name: str) -> None:
    assert not re.search(NOT_IN_SUMMARY, name)
