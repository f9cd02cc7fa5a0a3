"""The tables of an atlas against one value at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from headwise.atlas import Atlas


@pytest.fixture
def atlas() -> Atlas:
    rng = np.random.default_rng(0)
    places = ("layer", "head")
    mass = rng.random((2, 3, 2))
    mass[0, 1, 1] = np.nan
    first = xr.Dataset(
        {
            "mass": ((*places, "kind"), mass),
            "mass_n": ((*places, "kind"), rng.integers(1, 9, (2, 3, 2))),
            "mass_low": ((*places, "kind"), mass - 0.1),
            "mass_high": ((*places, "kind"), mass + 0.1),
            "turned": (("kind", "head", "size", "layer"), rng.random((2, 3, 2, 2)).astype("f4")),
            "called": (places, rng.random((2, 3)) > 0.5),
            "by_layer": ("layer", np.arange(2)),
            "of_all": ((), 2.5),
            "word": (places, np.full((2, 3), "text")),
            "map": (("token", "head"), rng.random((4, 3))),
        },
        coords={
            "layer": [0, 1],
            "head": [0, 1, 2],
            "kind": ["cls", "sep"],
            "size": [0.5, 2.0],
            "token": list("abcd"),
        },
    )
    return Atlas(
        {
            "first": first,
            "second": xr.Dataset({"curve": ((*places, "step"), rng.random((2, 3, 41)))}),
        }
    )


def test_every_value_is_a_row_with_its_labels(atlas: Atlas) -> None:
    frame = atlas.to_dataframe()
    rows = iter(frame.to_dict("records"))
    for analysis, name in (
        *(("first", n) for n in ("mass", "turned", "called", "by_layer", "of_all")),
        ("second", "curve"),
    ):
        array = atlas[analysis][name]
        for at in itertools.product(*(range(size) for size in array.shape)):
            row, labels = (
                next(rows),
                {dim: array[dim].values[i] for dim, i in zip(array.dims, at, strict=True)},
            )
            assert (row["analysis"], row["variable"]) == (analysis, name)
            for place in ("layer", "head"):
                assert pd.isna(row[place]) if place not in labels else row[place] == labels[place]
            assert row["item"] == " ".join(
                str(label) for dim, label in labels.items() if dim not in ("layer", "head")
            )
            np.testing.assert_equal(row["value"], float(array.values[at]))
            for suffix in ("n", "low", "high"):
                beside = atlas[analysis].get(f"{name}_{suffix}")
                assert pd.isna(row[suffix]) == (beside is None or np.isnan(beside.values[at]))
                assert (
                    beside is None
                    or np.isnan(beside.values[at])
                    or row[suffix] == beside.values[at]
                )
    assert next(rows, None) is None
    assert list(frame.columns) == [
        "analysis",
        "variable",
        "layer",
        "head",
        "item",
        "value",
        "n",
        "low",
        "high",
    ]
    assert [str(frame[column].dtype) for column in ("layer", "head", "value", "n")] == [
        "Int64"
    ] * 2 + [
        "float64",
        "Float64",
    ]


def test_the_summary_has_the_heads_at_both_ends(atlas: Atlas) -> None:
    summary = atlas.summary().set_index(["analysis", "variable", "item"])
    assert {key[1] for key in summary.index} == {
        "mass",
        "turned",
        "called",
    }  # no curve, nothing that is not of a head
    for kind in ("cls", "sep"):
        values = atlas["first"]["mass"].sel(kind=kind)
        row = summary.loc[("first", "mass", kind)]
        assert row["mean"] == pytest.approx(float(values.mean()))
        for end, at in (("lowest", values.argmin(...)), ("highest", values.argmax(...))):
            assert row[end] == float(values[at])
            assert row[f"{end}_head"] == f"L{int(at['layer'])}H{int(at['head'])}"


def test_an_atlas_of_nothing_has_empty_tables() -> None:
    assert list(Atlas({}).to_dataframe().columns)[:2] == ["analysis", "variable"]
    assert len(Atlas({}).to_dataframe()) == 0
