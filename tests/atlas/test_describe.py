"""A line for each head: what it finds comes before where it looks, and only what was tested and large enough is
said."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from headwise.atlas.describe import COLUMNS, KINDS, SHORT, describe_heads
from headwise.core.behaviours import head_labels

HEADS = ("layer", "head")


@pytest.fixture
def surface() -> xr.Dataset:
    """One layer: previous token; [CLS]; [CLS], [SEP] and punctuation together; the three neighbours together; broad;
    none of these."""
    position = np.array([[0.9, 0, 0], [0, 0, 0], [0, 0, 0.2], [0.3, 0.2, 0.2], [0.05, 0, 0], [0.2, 0.1, np.nan]])
    types = np.array([[0.1, 0, 0], [0.8, 0, 0], [0.3, 0.2, 0.15], [0.1, 0.1, 0.1], [0.05, 0.05, 0], [0.1, 0.1, 0.1]])
    variables = {
        "position": ((*HEADS, "offset"), position[None]),
        "mass": ((*HEADS, "token_type"), np.concatenate([types, 1 - types.sum(1, keepdims=True)], 1)[None]),
        "max_weight": (HEADS, [[0.9, 0.8, 0.4, 0.4, 0.06, 0.4]]),
    }
    coords = {"layer": [0], "head": np.arange(6), "offset": [-1, 0, 1], "token_type": ["cls", "sep", "punct", "other"]}
    return xr.Dataset(variables, coords=coords)


def dependency(accuracy: dict[tuple[int, int, int], float], p: dict[tuple[int, int, int], float]) -> xr.Dataset:
    """Relations all, det, obj with a baseline of 0.5; `accuracy` and `p` by direction, head and relation."""
    found, certain = np.full((2, 1, 6, 3), 0.4), np.ones((2, 1, 6, 3))
    for (direction, head, relation), value in accuracy.items():
        found[direction, 0, head, relation] = value
    for (direction, head, relation), value in p.items():
        certain[direction, 0, head, relation] = value
    flat = found.reshape(12, 3).argmax(0)  # direction and head together
    dims = ("direction", *HEADS, "relation")
    return xr.Dataset(
        {
            "accuracy": (dims, found),
            "p_adjusted": (dims, certain),
            "baseline_possible": (("direction", "relation"), np.full((2, 3), 0.5)),
            "best_layer": ("relation", [0, 0, 0]),
            "best_head": ("relation", flat % 6),
            "best_margin": ("relation", found.max((0, 1, 2)) - 0.5),
            "best_p_adjusted": ("relation", certain.reshape(12, 3)[flat, np.arange(3)]),
        },
        coords={"relation": ["all", "det", "obj"], "layer": [0], "head": np.arange(6)},
    )


def test_where_a_head_looks(surface: xr.Dataset) -> None:
    found = describe_heads({"surface": surface}, 1, 6)
    assert tuple(found.columns) == COLUMNS
    assert list(found["does"]) == ["previous token", "to cls", "delimiters", "neighbours", "broad", "other"]
    assert list(found["does"]) == list(found["looks"]) == list(head_labels({"surface": surface}, 1, 6)[0])
    assert list(found["kind"]) == ["position", "cls", "delimiters", "position", "broad", "other"]
    assert found["attention"][0] == "previous token 0.90, cls 0.10"
    assert found["attention"][4] == ""  # nothing gets a tenth
    assert not found["best"].any()


def test_the_largest_share_comes_first_where_a_model_cannot_look_ahead(surface: xr.Dataset) -> None:
    surface["position"][0, 3] = [0.25, 0.21, np.nan]
    surface["mass"][0, 3, :2] = [0.33, 0.0]
    assert (
        describe_heads({"surface": surface}, 1, 6)["attention"][3]
        == "cls 0.33, previous token 0.25, same token 0.21, punct 0.10"
    )


def test_what_a_head_finds_comes_first_and_only_if_certain_and_large(surface: xr.Dataset) -> None:
    trees = dependency(
        {(0, 1, 1): 0.9, (1, 2, 1): 0.7, (0, 3, 2): 0.55, (0, 0, 2): 0.95, (0, 4, 0): 0.99},
        {(0, 1, 1): 1e-9, (1, 2, 1): 1e-9, (0, 3, 2): 1e-9, (0, 4, 0): 1e-9},
    )
    found = describe_heads({"surface": surface, "dependency": trees}, 1, 6).set_index("name")
    assert found.loc["L0H1", ["does", "kind", "looks"]].tolist() == ["det", "syntax", "to cls"]
    assert found.loc["L0H1", "finds"] == "det 90 % (offset 50 %)"
    assert found.loc["L0H2", "finds"] == "det 70 % (offset 50 %)"  # in the other direction, and not the best
    assert found["best"].tolist() == [False, True, False, False, False, False]
    assert found.loc["L0H3", ["does", "finds"]].tolist() == ["neighbours", ""]  # significant, but by 5 points only
    assert found.loc["L0H0", ["does", "finds"]].tolist() == ["previous token", ""]  # large, but not significant
    assert found.loc["L0H4", "finds"] == ""  # `all` is no relation


def test_antecedents_frames_roles_and_maps(surface: xr.Dataset) -> None:
    better = np.zeros((3, 1, 6)) + 1.0
    better[:, 0, 1] = better[:2, 0, 2] = better[:, 0, 3] = (
        0.001  # the third head beats the two simple rules only, the fourth all by little
    )
    coreference = xr.Dataset(
        {
            "accuracy": ((*HEADS, "mention_type"), np.array([0.2, 0.9, 0.9, 0.65, 0.2, 0.2])[None, :, None]),
            "baseline_accuracy": (("baseline", "mention_type"), np.array([[0.5], [0.4], [0.6]])),
            "p_adjusted": (("baseline", *HEADS, "mention_type"), better[..., None]),
        },
        coords={
            "mention_type": ["all"],
            "baseline": ["nearest", "head_match", "rules"],
            "layer": [0],
            "head": np.arange(6),
        },
    )
    p = np.ones((1, 6))
    p[0, 5] = 0.01
    frames = xr.Dataset({"score": (HEADS, p * 0 + 0.3), "expected": (HEADS, p * 0 + 0.1), "p_adjusted": (HEADS, p)})
    roles = xr.Dataset(
        {"has_role_adjusted": ((*HEADS, "role"), np.eye(6, 2, dtype=bool)[None])}, coords={"role": ["local", "block"]}
    )
    patterns = xr.Dataset(
        {"proportion": ((*HEADS, "pattern"), np.tile([0.8, 0.2], (1, 6, 1)))},
        coords={"pattern": ["vertical", "diagonal"]},
    )
    given = {"surface": surface, "coreference": coreference, "frames": frames, "roles": roles, "patterns": patterns}
    found = describe_heads(given, 1, 6)
    assert found["does"].tolist()[1:4] == ["antecedents", "delimiters", "neighbours"]
    assert found["finds"].tolist() == [
        "",
        "antecedents 90 % (best rule 60 %)",
        "",
        "",
        "",
        "frame elements 0.30 (expected 0.10)",
    ]
    assert found["roles"].tolist() == ["local", "block", "", "", "", ""]
    assert set(found["maps"]) == {"vertical 80 %"}


def test_every_word_has_a_kind_and_a_short_form_and_nothing_is_needed(surface: xr.Dataset) -> None:
    found = describe_heads({}, 2, 3)
    assert list(found["does"]) == ["other"] * 6
    assert set(describe_heads({"surface": surface}, 1, 6)["kind"]) <= set(KINDS)
    assert max(map(len, SHORT.values())) <= 6
