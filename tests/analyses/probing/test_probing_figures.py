"""Figures of probing are drawn for ten tasks, one task, regression, and results without greedy
selection."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from headwise.analyses.contract import Shape
from headwise.analyses.probing.result import probing_dataset
from headwise.plots import figures_for
from headwise.text import Example
from headwise.text.tasks import SENTEVAL, Split, Task

LAYERS, HEADS, TEST = 3, 4, 40


def example_dataset(
    names: list[str], kind: str = "classification", greedy: bool = True
) -> xr.Dataset:
    """A dataset of random scores, built by the code that builds the real one."""
    random = np.random.default_rng(0)
    examples = tuple(Example(text="w", label=str(i % 2)) for i in range(TEST + 4))
    split = Split([0, 1], [2, 3], np.arange(4, TEST + 4))
    truth = np.arange(TEST) % 2
    fits = []
    for _ in names:
        fit: dict[str, np.ndarray] = {
            "truth": truth,
            "majority": np.array(0),
            "top/order": random.permutation(12),
        }
        parts = {"heads": 12, "layers": LAYERS, "control": 12, "top/4": 1, "top/2": 1}
        if greedy:
            fit["greedy/order"] = random.permutation(12)[:4]
            parts |= {"greedy/4": 1, "greedy/2": 1}
        for part, units in parts.items():
            predicted = random.integers(0, 2, (units, TEST))
            fit |= {
                f"{part}/predicted": predicted,
                f"{part}/test": (predicted == truth).mean(1),
                f"{part}/validation": random.random(units),
            }
            fit |= {
                f"{part}/penalty": np.full(units, 0.1),
                f"{part}/spearman": random.random(units),
            }
        fit["control/truth"] = truth
        fits.append(fit)
    tasks = [
        Task(
            name,
            examples,
            split,
            ("pearson", "spearman") if kind == "regression" else ("accuracy",),
        )
        for name in names
    ]
    return probing_dataset(tasks, fits, Shape(LAYERS, HEADS, 8, 32, False, 16, ()), 4, (2, 4))


@pytest.mark.parametrize(
    ("names", "kind", "greedy"),
    [(list(SENTEVAL), "classification", True), (["STS-B"], "regression", False)],
)
def test_every_figure_is_drawn(
    names: list[str], kind: str, greedy: bool, request: pytest.FixtureRequest
) -> None:
    if len(names) > 1:  # where all has room is found for one task
        request.getfixturevalue("only_svg")
    dataset = example_dataset(names, kind, greedy)
    drawn = {one.name: one.figure for spec in figures_for("probing") for one in spec.draw(dataset)}
    wanted = {
        "heads",
        "heads-sorted",
        "poolings",
        "curves",
        "task-correlation",
        "selectivity",
        "localised",
    } | {f"task-{name.replace('_', '-')}" for name in names}
    if len(names) > 1:
        wanted.add("syntactic-semantic")
    assert wanted == set(drawn)


@pytest.mark.usefixtures("only_svg")
def test_panels_share_one_colour_scale_and_sorted_rows_fall() -> None:
    dataset = example_dataset(list(SENTEVAL))
    figures = {spec.name: spec for spec in figures_for("probing")}
    axes = [ax for ax in figures["heads-sorted"].draw(dataset)[0].figure.axes if ax.images]
    assert len({(ax.images[0].norm.vmin, ax.images[0].norm.vmax) for ax in axes}) == 1
    for ax in axes:
        values = np.asarray(ax.images[0].get_array())
        if values.shape == (LAYERS, HEADS):
            assert (np.diff(values, axis=1) <= 1e-6).all()
    plain = next(ax for ax in figures["heads"].draw(dataset)[0].figure.axes if ax.images)
    np.testing.assert_allclose(
        np.asarray(plain.images[0].get_array()), 100 * dataset.accuracy.values[0], rtol=1e-6
    )
