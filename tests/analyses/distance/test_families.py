"""What families of heads do: labels and means from the other analyses' results."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from headwise.analyses.distance.analysis import Distance, distance_dataset, with_behaviours
from headwise.atlas.behaviours import behaviour_scores, head_labels

LAYERS, HEADS = 2, 3


@pytest.fixture
def surface() -> xr.Dataset:
    """Heads of the first layer look back, at [SEP] and everywhere; of the second, nowhere in
    particular."""
    position, types = np.full((LAYERS, HEADS, 3), 0.1), np.full((LAYERS, HEADS, 4), 0.1)
    position[0, 0, 0], types[0, 1, 1] = 0.9, 0.8
    broadest = np.full((LAYERS, HEADS), 0.4)
    broadest[0, 2] = 0.05
    return _surface(position, types, broadest)


def _surface(position: np.ndarray, types: np.ndarray, broadest: np.ndarray) -> xr.Dataset:
    dims = ("layer", "head")
    variables = {
        "position": ((*dims, "offset"), position),
        "mass": ((*dims, "token_type"), types),
        "max_weight": (dims, broadest),
        "entropy": (dims, 3 * (1 - broadest)),
        "entropy_uniform": ("layer", [3.0, 3.0]),
    }
    coords = {
        "layer": [0, 1],
        "head": [0, 1, 2],
        "offset": [-1, 0, 1],
        "token_type": ["cls", "sep", "punct", "other"],
    }
    return xr.Dataset(variables, coords=coords)


@pytest.fixture
def dependency() -> xr.Dataset:
    """One head of the second layer is the best for `obj`, significantly; another for `det`, by
    chance."""
    accuracy = np.full((2, LAYERS, HEADS, 2), 0.3)
    accuracy[0, 1, 0, 0], accuracy[1, 1, 1, 1] = 0.9, 0.6
    p = np.ones(accuracy.shape)
    p[0, 1, 0, 0] = 1e-9
    dims = ("direction", "layer", "head", "relation")
    best = {"layer": [1, 1], "head": [0, 1], "margin": [0.5, 0.2], "p_adjusted": [1e-9, 1.0]}
    variables = {
        "accuracy": (dims, accuracy),
        "p_adjusted": (dims, p),
        "baseline_possible": (("direction", "relation"), np.full((2, 2), 0.4)),
    }
    variables |= {f"best_{name}": ("relation", values) for name, values in best.items()}
    return xr.Dataset(
        variables, coords={"relation": ["obj", "det"], "layer": [0, 1], "head": [0, 1, 2]}
    )


@pytest.fixture
def distance() -> xr.Dataset:
    """Two families: the layers."""
    js = np.where(np.arange(6)[:, None] // 3 == np.arange(6)[None] // 3, 0.01, 0.5) * (
        1 - np.eye(6)
    )
    return distance_dataset(js, LAYERS, HEADS, Distance(permutations=9))


def test_labels(surface: xr.Dataset, dependency: xr.Dataset) -> None:
    found = head_labels({"surface": surface, "dependency": dependency}, LAYERS, HEADS)
    assert found.tolist() == [["previous token", "to sep", "broad"], ["obj", "other", "other"]]
    assert head_labels({}, 1, 2).tolist() == [["other", "other"]]


def test_scores(surface: xr.Dataset, dependency: xr.Dataset) -> None:
    roles = xr.Dataset(
        {"has_role": (("layer", "head", "role"), np.eye(3, dtype=bool)[None].repeat(2, 0))},
        coords={"role": ["local", "block", "sep"]},
    )
    scores = behaviour_scores({"surface": surface, "dependency": dependency, "roles": roles})
    assert scores.dims == ("behaviour", "layer", "head")
    assert float(scores.sel(behaviour="previous token", layer=0, head=0)) == pytest.approx(0.9)
    assert float(scores.sel(behaviour="broad", layer=0, head=2)) == pytest.approx(0.95)
    assert float(scores.sel(behaviour="relation obj", layer=1, head=0)) == pytest.approx(0.5)
    assert float(scores.sel(behaviour="relation obj", layer=1, head=1)) == 0
    assert "relation det" not in scores["behaviour"]  # nothing significant
    assert scores.sel(behaviour="role block").values.tolist() == [[0, 1, 0]] * 2


def test_families_get_the_means_of_their_heads(
    surface: xr.Dataset, dependency: xr.Dataset, distance: xr.Dataset
) -> None:
    found = with_behaviours({"surface": surface, "dependency": dependency, "distance": distance})[
        "distance"
    ]
    assert found["family_size"].values.tolist() == [3, 3]
    assert list(found["behaviour"].values[:4]) == ["previous token", "to sep", "broad", "obj"]
    means = found["family_behaviour"]
    assert float(means.sel(family=0, behaviour_name="previous token")) == pytest.approx(
        (0.9 + 0.1 + 0.1) / 3
    )
    assert float(means.sel(family=1, behaviour_name="relation obj")) == pytest.approx(0.5 / 3)


def test_without_anything_to_take_from(distance: xr.Dataset, surface: xr.Dataset) -> None:
    assert with_behaviours({"distance": distance})["distance"] is distance
    assert set(with_behaviours({"surface": surface})) == {"surface"}
    other = distance_dataset(np.zeros((2, 2)), 1, 2, Distance(permutations=9))
    assert with_behaviours({"distance": other, "surface": surface})["distance"] is other
