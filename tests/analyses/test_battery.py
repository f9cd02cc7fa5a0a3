"""The common battery over every registered analysis, on an encoder and a decoder.

A new module in `analyses/` is checked without a word here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from docs_site.analyses import units_of
from headwise.analyses.contract import known_analyses, make_analysis
from headwise.analyses.patterns import network
from headwise.testing.battery import CHECKS, SMALL, STREAM_CHECKS, BatteryCase
from headwise.testing.corpora import battery_examples

# Variables that depend on the order of heads by convention, with the reason.
ORDER_DEPENDENT: dict[str, frozenset[str]] = {
    # clusters and leaves are numbered by their first head; the tree names heads; other permutations
    # are drawn
    "distance": frozenset({"cluster", "leaf", "linkage", "layer_p_value"}),
    # heads are joined by their validation scores, where some tie; in another order the probe starts
    # from other weights
    "probing": frozenset({"curve_accuracy", "pooled_accuracy"}),
}
# Experiments that learn nothing from the corpus need no copies of it.
LEARN_NOTHING = ("attribution",)


@pytest.fixture(autouse=True, scope="module")
def one_network():
    """One of the shipped networks sorts maps, not their mean: no check here asks how well."""
    shipped = network.shipped_classifier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            network, "_SHIPPED", {network.WEIGHTS: replace(shipped, networks=shipped.networks[:1])}
        )
        yield


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models run faster on one thread, and on a busy machine ten times so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def battery_case(name: str, causal: bool) -> BatteryCase:
    examples = battery_examples() if name in LEARN_NOTHING else None
    return BatteryCase(
        make_analysis(name, SMALL.get(name)),
        causal,
        examples,
        ORDER_DEPENDENT.get(name, frozenset()),
    )


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", ["encoder", "decoder"])
@pytest.mark.parametrize("name", known_analyses())
def test_battery(name: str, model: str, check: str) -> None:
    case = battery_case(name, model == "decoder")
    if case.unsupported_reason is not None:
        pytest.skip(f"{name} does not run on a {model} here: {case.unsupported_reason}")
    if not case.streams and check in STREAM_CHECKS:
        pytest.skip(f"{name} is an experiment: it does not stream")
    CHECKS[check](case)


def test_numbers_of_results_have_units() -> None:
    """What the documentation shows of variables: from the array, the class, or the name itself."""
    units: dict[str, str] = {}
    for name, cls in known_analyses().items():
        case = battery_case(name, False)
        if cls.__module__.startswith("headwise.") and case.unsupported_reason is None:
            units |= units_of(name, case.labelled)
    lacking = [name for name, unit in units.items() if not unit]
    assert len(lacking) < 0.03 * len(units), (
        f"say the unit of {', '.join(lacking)}: as `units` in the array's attributes, or in `units` of the class"
    )
    assert units["surface.entropy"] == "nats"
    assert (
        units["probing.task_correlation"] == units["roles.spearman"] == "correlation"
    )  # of the class
    assert units["dependency.p_value"] == "probability"  # of the name
