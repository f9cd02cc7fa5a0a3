"""The common battery over every registered analysis, on an encoder and a decoder.

A new module in `analyses/` is checked without a word here.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from headwise.analyses.contract import known_analyses, make_analysis
from headwise.testing.battery import CHECKS, SMALL, STREAM_CHECKS, Bed

# Variables that depend on the order of heads by convention, with the reason.
ORDER_DEPENDENT: dict[str, frozenset[str]] = {
    # clusters and leaves are numbered by their first head; the tree names heads; other permutations are drawn
    "distance": frozenset({"cluster", "leaf", "linkage", "layer_p_value"}),
    # heads are joined by their validation scores, where some tie; in another order the probe starts from other weights
    "probing": frozenset({"curve_accuracy", "pooled_accuracy"}),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models run faster on one thread, and on a busy machine ten times so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def bed(name: str, causal: bool) -> Bed:
    return Bed(make_analysis(name, SMALL.get(name)), causal, order_dependent=ORDER_DEPENDENT.get(name, frozenset()))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", ["encoder", "decoder"])
@pytest.mark.parametrize("name", known_analyses())
def test_battery(name: str, model: str, check: str) -> None:
    made = bed(name, model == "decoder")
    if made.refusal is not None:
        pytest.skip(f"{name} does not run on a {model} here: {made.refusal}")
    if not made.streams and check in STREAM_CHECKS:
        pytest.skip(f"{name} is an experiment: it does not stream")
    CHECKS[check](made)
