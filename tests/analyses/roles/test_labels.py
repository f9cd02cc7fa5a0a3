"""Roles by mean beside roles by test, and what is drawn of them."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headwise.analyses.roles.figures import labels, p_scatter
from headwise.analyses.roles.significance import roles_by_mean
from headwise.plots import style


def test_a_mean_calls_heads_that_the_test_does_not() -> None:
    mean = np.array([[[3.5], [3.5], [2.0], [9.0]]])
    count = np.array([[[100], [100], [100], [12]]])
    p = np.array([[[0.001], [0.4], [1.0], [0.0]]])
    variables_by_mean = roles_by_mean(mean, count, p, tau=3.0, alpha=0.05)
    assert variables_by_mean["role_by_mean"].values[0, :, 0].tolist() == [True, True, False, False]
    assert variables_by_mean["role_by_test"].values[0, :, 0].tolist() == [True, False, False, False]
    assert variables_by_mean["mean_only"].values.tolist() == [1]


def test_figures_show_every_p_value_and_name_what_only_the_mean_calls() -> None:
    rng, dims = np.random.default_rng(0), ("layer", "head", "role")
    bias, p, count = rng.uniform(1, 6, (3, 4, 2)), rng.random((3, 4, 2)), np.full((3, 4, 2), 50)
    variables = {"bias": (dims, bias), "bias_n": (dims, count), "p_value": (dims, p)}
    dataset = xr.Dataset(
        variables
        | roles_by_mean(bias, count, p, 3.0, 0.05)
        | {"has_role": (dims, (bias > 3) & (p < 0.05))},
        {"layer": range(3), "head": range(4), "role": ["local", "block"]},
        {"tau": 3.0},
    )
    with style.context():
        points = p_scatter(dataset).axes[0].lines
        drawn = np.concatenate([line.get_ydata() for line in points if line.get_marker() == "."])
        assert np.array_equal(np.sort(drawn), np.sort(p, axis=None))
        label_text = " ".join(text.get_text() for text in labels(dataset).axes[0].texts)
    n_with_role = ((bias > 3) & (p < 0.05)).sum((0, 1))
    assert all(str(count) in label_text for count in n_with_role)
    layer, head, _ = np.argwhere((bias > 3) & (p >= 0.05))[0]
    assert f"L{layer}H{head}" in label_text
