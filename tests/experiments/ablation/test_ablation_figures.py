"""Figures of disabling say what the numbers say: rings on sure heads only, points for scores and
nats for losses, roles in order."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from headwise.core.errors import ParameterError
from headwise.experiments.ablation.figures import layers_by_task
from headwise.plots import figures_for

LAYERS, HEADS = 3, 4


def ablation_dataset(metric: str = "accuracy") -> xr.Dataset:
    random = np.random.default_rng(0)
    difference = random.normal(scale=0.01, size=(LAYERS, HEADS))
    p = np.full((LAYERS, HEADS), 0.6)
    p[1, 2] = p[2, 0] = 0.01
    both = ("layer", "head")
    correlation = np.array([0.1, np.nan, 0.7, -0.3])
    roles = {
        "": correlation,
        "_low": correlation - 0.1,
        "_high": correlation + 0.1,
        "_p_adjusted": np.array([1.0, np.nan, 0.001, 0.4]),
    }
    variables = {
        "difference": (both, difference),
        "p_adjusted": (both, p),
        "importance": (both, np.abs(difference)),
    }
    variables |= {f"role_correlation{key}": ("role", value) for key, value in roles.items()}
    attrs = {
        "metric": metric,
        "higher_better": int(metric != "loss"),
        "baseline": 0.8267,
        "how": "uniform",
        "examples": 1725,
    }
    attrs |= {
        "mean_difference": -0.00124,
        "improving": 6,
        "improving_significant": 0,
        "harming": 6,
        "harming_significant": 2,
    }
    return xr.Dataset(
        variables, coords={"role": ["local", "block", "same_word", "sep"]}, attrs=attrs
    )


def drawn(name: str, dataset: xr.Dataset) -> Figure:
    [spec] = [spec for spec in figures_for("ablation") if spec.name == name]
    return spec.draw(dataset)[0].figure


def small_print(figure: Figure) -> str:
    return " ".join(figure.get_supxlabel().split())


def test_rings_stand_on_heads_that_survive_correction() -> None:
    axis = drawn("heads", ablation_dataset()).axes[0]
    rings = [own for own in axis.collections if isinstance(own, PathCollection)]
    assert len(rings) == 2  # a dark one on a white one
    for ring in rings:
        assert [tuple(map(int, place)) for place in ring.get_offsets()] == [
            (2, 1),
            (0, 2),
        ]  # across: head, down: layer


@pytest.mark.parametrize(
    ("metric", "words"), [("accuracy", "−0.12 points"), ("loss", "−0.00 nats")]
)
def test_notes_are_in_the_unit_of_the_scale(metric: str, words: str) -> None:
    text = small_print(drawn("heads", ablation_dataset(metric)))
    assert words in text
    assert "1,725 examples" in text
    assert ("82.7" if metric == "accuracy" else "0.827") in text


def test_a_mean_over_some_heads_is_not_called_that_of_a_random_head() -> None:
    assert "Mean over the heads (a random head) −0.12" in small_print(
        drawn("heads", ablation_dataset().assign_attrs(heads_disabled=LAYERS * HEADS))
    )
    some = small_print(drawn("heads", ablation_dataset().assign_attrs(heads_disabled=5)))
    assert "Mean over the 5 heads disabled −0.12" in some
    assert "random" not in some


def test_roles_are_in_order_of_their_correlation_and_undefined_ones_left_out() -> None:
    axis = drawn("roles", ablation_dataset()).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["same word", "local", "sep"]
    filled = [
        line.get_markerfacecolor() != "white" for line in axis.lines if line.get_marker() == "o"
    ]
    assert filled == [True, False, False]


def test_layers_of_several_tasks_are_panels_with_bars_of_their_own() -> None:
    datasets = {}
    for number, task in enumerate(("MRPC", "RTE", "SST-2", "STS-B")):
        change = np.array([-0.02, 0.01, 0.03]) * (number + 1)
        variables = {
            "layer_difference": ("layer", change),
            "layer_difference_low": ("layer", change - 0.01),
            "layer_difference_high": ("layer", change + 0.01),
            "layer_p_adjusted": ("layer", np.array([0.01, 0.5, 0.04])),
        }
        attrs = {"metric": "accuracy", "examples": 100, "baseline": 0.8, "how": "uniform"}
        datasets[task] = xr.Dataset(variables, {"layer": np.arange(3)}, attrs)
    drawn = layers_by_task(datasets)
    assert len(drawn.axes) == 4
    for number, ax in enumerate(drawn.axes):
        heights = [bar.get_height() for bar in ax.patches]
        assert np.allclose(heights, np.array([-2.0, 1.0, 3.0]) * (number + 1))
        # Filled where the change is significant.
        is_white = [bar.get_facecolor() == (1.0, 1.0, 1.0, 1.0) for bar in ax.patches]
        assert is_white == [False, True, False]
    with pytest.raises(ParameterError, match="at least one dataset"):
        layers_by_task({})
