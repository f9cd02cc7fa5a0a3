"""The battery sees what it is there to see.

Each analysis here breaks one rule of the contract, and the check for it fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import xarray as xr

from headwise.analyses.contract import (
    REGISTRY,
    Analysis,
    Observer,
    Paper,
    known_analyses,
    layer_head_coords,
    mean_variables,
)
from headwise.stats.accumulators import Moments, State
from headwise.testing import permute_heads, random_model
from headwise.testing.battery import CHECKS, BatteryCase, assert_same, check_analysis, permuted
from headwise.testing.names import check_names


@pytest.fixture(autouse=True)
def registry():
    """Analyses made here are forgotten again."""
    before = known_analyses()
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def make_sound() -> type[Analysis]:
    @dataclass(frozen=True)
    class Sound(Observer):
        power: float = 2.0

        name: ClassVar[str] = "sound"
        title: ClassVar[str] = "Mean weight to a power"
        paper: ClassVar[Paper] = Paper("clark2019", "§0")

        def start(self, shape):
            return State(mass=Moments(shape.layers, shape.heads))

        def reduce_rows(self, rows, batch):
            return {
                "mass": (rows.weights**self.power).sum((-1, -2)),
                "rows": rows.visible[:, 0].any(-1).sum(-1),
            }

        def observe(self, state, sums, layer, batch):
            state.moments("mass").add(sums["mass"] / sums["rows"][:, None], (layer.layer,))

        def result(self, state, shape):
            return xr.Dataset(
                mean_variables("mass", ("layer", "head"), state.moments("mass")),
                coords=layer_head_coords(shape),
            )

    return Sound


def counts_padding(cls):
    def reduce_rows(self, rows, batch):
        return {
            "mass": (rows.weights**2).sum((-1, -2)),
            "rows": torch.full((len(batch),), rows.stop - rows.start),
        }

    cls.reduce_rows = reduce_rows


def averages_batches(cls):
    def observe(self, state, sums, layer, batch):
        state.moments("mass").add(
            (sums["mass"] / sums["rows"][:, None]).mean(0, keepdim=True), (layer.layer,)
        )

    cls.observe = observe


def does_not_add_over_rows(cls):
    def reduce_rows(self, rows, batch):
        return {"mass": rows.weights.amax((-1, -2)), "rows": torch.ones(len(batch))}

    cls.reduce_rows = reduce_rows


class LastWins(Moments):
    def merge(self, other):
        self.load(other.arrays())


class Forgets(Moments):
    def arrays(self):
        return super().arrays() | {"squares": np.zeros_like(self.parts["squares"].numpy())}


def state_of(accumulator):
    def change(cls):
        cls.start = lambda self, shape: State(mass=accumulator(shape.layers, shape.heads))

    return change


def remembers_order(cls):
    def observe(self, state, sums, layer, batch):
        weight = 1 + int(state.moments("mass").count[layer.layer, 0])
        state.moments("mass").add(weight * sums["mass"] / sums["rows"][:, None], (layer.layer,))

    cls.observe = observe


def knows_head_numbers(cls):
    whole = cls.observe

    def observe(self, state, sums, layer, batch):
        number = torch.arange(sums["mass"].shape[1])
        whole(
            self, state, {"mass": sums["mass"] * (1 + number), "rows": sums["rows"]}, layer, batch
        )

    cls.observe = observe


def rolls_dice(cls):
    whole = cls.result
    cls.result = lambda self, state, shape: (
        whole(self, state, shape) + float(np.random.default_rng().random())
    )


def has_no_interval(cls):
    whole = cls.result
    cls.result = lambda self, state, shape: whole(self, state, shape).drop_vars("mass_high")


def has_strange_dims(cls):
    whole = cls.result
    cls.result = lambda self, state, shape: whole(self, state, shape).rename(head="kopf")


def changes_parameters(cls):
    cls.__post_init__ = lambda self: object.__setattr__(self, "power", self.power + 0.5)


BROKEN = [
    ("padding", counts_padding),
    ("batching", counts_padding),
    ("batching", averages_batches),
    ("row_blocks", does_not_add_over_rows),
    ("merge", state_of(LastWins)),
    ("sharding", state_of(LastWins)),
    ("saving", state_of(Forgets)),
    ("order", remembers_order),
    ("permutation", knows_head_numbers),
    ("repetition", rolls_dice),
    ("result", has_no_interval),
    ("result", has_strange_dims),
    ("parameters", changes_parameters),
]


@pytest.mark.parametrize("causal", [False, True])
def test_a_sound_analysis_passes(causal):
    assert check_analysis(make_sound()(), causal=causal) == list(CHECKS)


@pytest.mark.parametrize(
    ("check", "breakage"), BROKEN, ids=[f"{c}-{getattr(b, '__name__', 'state')}" for c, b in BROKEN]
)
def test_a_broken_rule_is_seen(check, breakage):
    cls = make_sound()
    if (
        breakage is changes_parameters
    ):  # runs at construction, so it must be there when the dataclass is made
        breakage(cls)
        cls.__init__ = lambda self, power=2.0: (
            object.__setattr__(self, "power", power),
            self.__post_init__(),
        )[0]
    else:
        breakage(cls)
    with pytest.raises(AssertionError):
        CHECKS[check](BatteryCase(cls()))


def test_permuted_reorders_by_layer():
    values = np.arange(6).reshape(2, 3)
    dataset = xr.Dataset(
        {
            "x": (("layer", "head"), values),
            "y": (("head", "layer"), values.T),
            "z": (("head_a", "head_b"), np.arange(36).reshape(6, 6)),
        }
    )
    found = permuted(dataset, [[2, 0, 1], [1, 0, 2]])
    assert found["x"].values.tolist() == [[2, 0, 1], [4, 3, 5]]
    assert found["y"].values.T.tolist() == [[2, 0, 1], [4, 3, 5]]
    assert found["z"].values[0, 3] == 2 * 6 + 4


@pytest.mark.parametrize("causal", [False, True])
def test_heads_in_another_order_make_the_same_model(causal):
    model, tokenizer = random_model(causal=causal)
    order = [[2, 0, 1], [1, 2, 0]]
    inputs = tokenizer(["the cat saw a dog."], return_tensors="pt")
    for each in (model, other := permute_heads(model, order)):
        each.set_attn_implementation("eager")
    with torch.no_grad():
        before, after = (
            model(**inputs, output_attentions=True),
            other(**inputs, output_attentions=True),
        )
    torch.testing.assert_close(after.logits, before.logits, rtol=1e-4, atol=1e-4)
    for a, b, new in zip(after.attentions, before.attentions, order, strict=True):
        torch.testing.assert_close(a, b[:, new], rtol=1e-4, atol=1e-6)


def test_names_refuse_numbers_without_counts_and_uncorrected_tests():
    mean = xr.Dataset(
        {
            "x": ("head", [1.0]),
            "x_low": ("head", [0.5]),
            "x_high": ("head", [2.0]),
            "x_n": ("head", [0]),
        }
    )
    with pytest.raises(AssertionError, match="nothing was counted"):
        check_names("mine", mean)
    with pytest.raises(AssertionError, match="outside its interval"):
        check_names("mine", mean.assign(x_low=("head", [1.5]), x_n=("head", [3])))
    with pytest.raises(AssertionError, match="p_adjusted"):
        check_names("mine", xr.Dataset({"p_value": ("head", [0.1, 0.2])}))
    with pytest.raises(AssertionError, match="lacks the variable `histogram`"):
        check_names("offsets", xr.Dataset())


def test_assert_same_tells_what_differs():
    one = xr.Dataset({"x": ("head", [1.0, 2.0])})
    with pytest.raises(AssertionError, match=r"somewhere: x"):
        assert_same(one, one + 0.01, "somewhere")
