"""The data of the page's script: every number of every head as it was computed, in text that cannot
end its element."""

from __future__ import annotations

import base64
import gzip
import json

import numpy as np
import pytest
import xarray as xr
from site_of import compared

from headwise.atlas import Atlas
from headwise.page import data as page
from headwise.page.compared import changed_most
from headwise.page.data import data_text, page_data
from headwise.page.measures import definition, head_measures
from headwise.page.sample import Sample
from synthetic import surface


def dependency(layers: int, heads: int) -> xr.Dataset:
    """Accuracies in two directions; the second head of layer 1 is best at `obj`, from dependent to
    head."""
    rng = np.random.default_rng(1)
    dims = ("direction", "layer", "head", "relation")
    accuracy = rng.uniform(0.1, 0.4, (2, layers, heads, 2))
    accuracy[0, 1, 1, 1] = 0.9
    half = np.full_like(accuracy, 0.05)
    half[0, 1, 1, 1] = 0.01
    return xr.Dataset(
        {
            "accuracy": (dims, accuracy, {"units": "share of pairs"}),
            "accuracy_n": (dims, np.full(accuracy.shape, 70)),
            "accuracy_low": (dims, accuracy - half),
            "accuracy_high": (dims, accuracy + half),
            "p_adjusted": (dims, np.where(accuracy > 0.8, 1e-40, 1.0)),
            "bar": (("direction", "relation"), np.array([[0.2, 0.3], [0.25, 0.35]])),
        },
        {"direction": ["dependent_to_head", "head_to_dependent"], "relation": ["all", "obj"]},
        {"title": "Heads that follow syntax", "paper": "Clark et al. 2019"},
    )


def unpack_plane(data: dict, entry: object, n_heads: int) -> np.ndarray:  # type: ignore[type-arg]
    """Return a packed plane, unpacked as the script does it."""
    if not isinstance(entry, list):
        return np.full(n_heads, float(entry))  # type: ignore[arg-type]
    all_codes = np.frombuffer(gzip.decompress(base64.b64decode(data["arrays"])), "<u2")
    start, low, high = entry
    codes = all_codes[start : start + n_heads]
    values = low + codes / (page.NO_VALUE - 1) * (high - low)
    return np.where(codes == page.NO_VALUE, np.nan, values)


def test_every_number_is_there_as_it_was_computed() -> None:
    atlas = Atlas({"surface": surface(3, 4), "dependency": dependency(3, 4)})
    data = json.loads(data_text(page_data(atlas)))
    entries = {entry["name"]: entry for entry in data["measures"]}
    assert {"surface.entropy", "surface.mass.cls", "dependency.accuracy.obj"} <= set(entries)
    assert next(iter(entries)) == "surface.entropy"  # leading measures come first
    for measure in head_measures(atlas):
        values = unpack_plane(data, entries[measure.name]["values"], 12)
        expected = measure.values.ravel()
        if measure.kind == "p":
            values = 10.0**-values
        step = (np.nanmax(expected) - np.nanmin(expected)) / 60000
        assert np.allclose(values, expected, atol=step + 1e-6, rtol=1e-3, equal_nan=True)
    for name in ("surface.mass.cls", "surface.entropy"):
        group, variable, *item = name.split(".")
        part = atlas[group].sel(token_type=item[0]) if item else atlas[group]
        for end in ("low", "high"):
            values = unpack_plane(data, entries[name][end], 12)
            assert np.allclose(values, part[f"{variable}_{end}"].values.ravel(), atol=2e-4)
    assert entries["surface.entropy"]["n"] == [200, 200]
    assert "entropy" in data["texts"][entries["surface.entropy"]["definition"]]


def test_the_better_of_two_directions_has_its_own_interval_p_value_and_baseline() -> None:
    data = page_data(Atlas({"dependency": dependency(3, 4)}))
    entries = {entry["name"]: entry for entry in data["measures"]}
    entry = entries["dependency.accuracy.obj"]

    def value_of_best_head(key: str) -> float:
        return float(unpack_plane(data, entry[key], 12)[1 * 4 + 1])

    assert round(value_of_best_head("values"), 3) == 0.9
    assert round(value_of_best_head("low"), 3) == 0.89
    assert round(value_of_best_head("against"), 3) == 0.3
    assert round(value_of_best_head("p"), 2) == 40  # −log10
    assert "obj" in entry["asked"]
    assert entry["against_name"] == "best baseline"


def test_maps_are_precise_to_a_two_hundredth_and_mark_hidden_keys() -> None:
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.ones(5) * 0.3, (3, 4, 5))
    maps[..., np.triu_indices(5, 1)[0], np.triu_indices(5, 1)[1]] = np.nan
    sample = Sample(list("abcde"), maps, None, [0, 0, 1, 2, -1], [False] * 4 + [True])
    data = page_data(Atlas({"surface": surface(3, 4)}), [sample])
    content = gzip.decompress(base64.b64decode(data["maps"]))
    codes = np.frombuffer(content, np.uint8).reshape(maps.shape)
    is_hidden = codes == page.HIDDEN
    assert np.array_equal(is_hidden, np.isnan(maps))
    weights = np.where(is_hidden, np.nan, (codes / 254.0) ** 2)
    assert np.nanmax(np.abs(weights - maps)) < 0.005
    assert data["sentences"][0]["special"] == [0, 0, 0, 0, 1]


def test_notes_say_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Sample(list("abcde"), np.full((3, 4, 5, 5), 0.2)) for _ in range(3)]
    monkeypatch.setattr(page, "MAP_BYTES", 12 * 25 * 2)
    atlas = Atlas({"surface": surface(3, 4)})
    data = page_data(atlas, samples)
    assert len(data["sentences"]) == 2
    assert any("2 of 3 sentences" in note for note in data["left_out"])
    monkeypatch.setattr(page, "MAP_BYTES", 6 * 25)
    data = page_data(atlas, samples[:1])
    assert len(data["sentences"][0]["heads"]) == 6
    monkeypatch.setattr(page.Packing, "__init__", lambda self: _small(self))
    data = page_data(atlas)
    assert any("measures are on this page" in note for note in data["left_out"])
    assert data["measures"][0]["name"] == "surface.entropy"


def _small(packing: page.Packing) -> None:
    packing.limit, packing.parts, packing.offsets, packing.size = 24 * 10, [], {}, 0


def test_no_text_can_leave_the_script_element() -> None:
    evil = "</script><script>alert(1)</script><!--\u2028\ud800"
    text = data_text({"word": evil})
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text)["word"].startswith("</script>")


def test_nearest_heads_are_those_of_the_distance() -> None:
    js = np.array([[0, 0.3, 0.1], [0.3, 0, 0.2], [0.1, 0.2, 0]])
    points = np.array([[0.0, 1], [1, 0], [0.5, 0.5]])
    distance = xr.Dataset({"js": (("head_a", "head_b"), js), "mds": (("head_a", "axis"), points)})
    data = page_data(Atlas({"distance": distance, "surface": surface(1, 3)}))
    assert data["nearest"][0] == [[2, 0.1], [1, 0.3]]
    assert data["positions"][2] == [0.5, 0.5]


def test_every_measure_of_the_analyses_has_a_definition() -> None:
    for group, names in {
        "surface": ("entropy", "mass_rest", "position"),
        "roles": ("bias",),
    }.items():
        for name in names:
            assert f"`{name}" in definition(group, name)
    assert definition("unheard", "of", "a long name") == "a long name"


def test_labels_of_three_models_are_compared_and_equal_changes_are_listed_once() -> None:
    """The first different label of three models is in `below`, also `other`; changes that two
    measures show with the same numbers are one row."""
    atlas = compared()
    words = atlas["change_words"]
    change = atlas["change_surface"]
    does = np.stack(
        [words["does"].values[0], words["does"].values[0], words["does"].values[1]]
    ).astype("<U20")
    does[2, 0, 0] = "other"
    kinds = np.where(does == "broad", "broad", np.where(does == "other", "other", "cls"))
    dims = ("model_all", "layer", "head")
    variables = {
        "does": (dims, does),
        "kind": (dims, kinds),
        "attention": (dims, np.full(does.shape, "")),
    }
    three = xr.Dataset(variables, {"model_all": ["old", "same", "new"]})
    described = page.described(Atlas(dict(atlas) | {"change_words": three}))
    heads = {head["name"]: head for head in described.to_dict("records")}
    assert (heads["L1H2"]["does"], heads["L1H2"]["below"]) == ("broad", "to cls")
    assert heads["L0H0"]["below"] == "other"
    assert heads["L0H1"]["below"] == ""
    assert list(heads["L1H2"]["models"]) == ["old", "same", "new"]
    again = {
        str(name).replace("mass", "share"): values for name, values in change.data_vars.items()
    }
    rows, _ = changed_most(
        Atlas(dict(atlas) | {"change_surface": change.assign(again)}, atlas.provenance)
    )
    assert [row[:3] for row in rows] == [("L1H2", "surface mass cls", "new")]
