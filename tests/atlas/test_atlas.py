"""The atlas: saved and loaded the same, other files rejected, everything on one head."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from headwise.atlas import Atlas, dataset_digest
from headwise.core.errors import AtlasError, OutputError, ParameterError


def small_atlas() -> Atlas:
    rng = np.random.default_rng(0)
    heads = {"layer": [0, 1], "head": [0, 1, 2]}
    surface = xr.Dataset(
        {
            "entropy": (("layer", "head"), rng.random((2, 3))),
            "entropy_n": (("layer", "head"), np.full((2, 3), 7)),
            "entropy_low": (("layer", "head"), rng.random((2, 3)) - 1),
            "entropy_high": (("layer", "head"), rng.random((2, 3)) + 1),
            "mass": (("layer", "head", "token_type"), rng.random((2, 3, 2))),
        },
        coords=heads | {"token_type": ["cls", "sep"]},
    )
    offsets = xr.Dataset(
        {"histogram": (("layer", "head", "offset"), rng.random((2, 3, 99)))},
        coords=heads | {"offset": np.arange(-49, 50)},
    )
    return Atlas(
        {"surface": surface, "offsets": offsets},
        {"model": {"name": "tiny"}, "corpus": {"name": "toy", "examples": 7}},
    )


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    atlas = small_atlas()
    path = atlas.save(tmp_path / "a" / "atlas.nc")
    loaded = Atlas.load(path)
    assert loaded.digest == atlas.digest
    assert loaded.provenance == atlas.provenance
    assert list(loaded) == list(atlas)
    xr.testing.assert_equal(loaded["surface"]["mass"], atlas["surface"]["mass"])
    assert float(loaded["surface"]["mass"].sel(token_type="sep")[1, 2]) == float(
        atlas["surface"]["mass"][1, 2, 1]
    )
    assert Atlas.load(path.parent).digest == atlas.digest  # the folder is enough
    assert atlas.save(tmp_path / "again.nc").read_bytes() == path.read_bytes()


def test_overwrites_only_with_overwrite(tmp_path: Path) -> None:
    path = small_atlas().save(tmp_path / "atlas.nc")
    with pytest.raises(OutputError, match="exists; pass overwrite=True"):
        small_atlas().save(path)
    small_atlas().save(path, overwrite=True)


def test_rejects_other_files_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(AtlasError, match="There is no file"):
        Atlas.load(tmp_path / "none.nc")
    (tmp_path / "text.nc").write_text("hello")
    with pytest.raises(AtlasError, match="not a NetCDF file that can be read"):
        Atlas.load(tmp_path / "text.nc")
    xr.Dataset({"x": ("y", [1.0])}).to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    with pytest.raises(AtlasError, match="not a headwise atlas"):
        Atlas.load(tmp_path / "other.nc")
    path = small_atlas().save(tmp_path / "atlas.nc")
    with h5py.File(path, "r+") as file:
        file["surface/entropy"][0, 0] = 5
    with pytest.raises(AtlasError, match="changed or damaged"):
        Atlas.load(path)
    with h5py.File(path, "r+") as file:
        file.attrs["headwise_format"] = 99
    with pytest.raises(AtlasError, match="format 99"):
        Atlas.load(path)


def test_a_head_card_has_everything_with_ranks() -> None:
    atlas = small_atlas()
    card = atlas.head(1, 2)
    assert card["surface", "entropy"] == float(atlas["surface"]["entropy"][1, 2])
    assert card["surface", "mass", "sep"] == float(atlas["surface"]["mass"][1, 2, 1])
    row = card.table[card.table["variable"] == "entropy"].iloc[0]
    assert row["n"] == 7
    assert row["rank"] == 1 + int(
        (atlas["surface"]["entropy"] > atlas["surface"]["entropy"][1, 2]).sum()
    )
    assert card.datasets["offsets"]["histogram"].shape == (99,)
    assert "histogram" not in set(card.table["variable"])  # a curve is no line of a table
    assert repr(atlas.head("L1H2")) == repr(card)
    assert "<table" in card._repr_html_()
    assert "7.000" not in repr(card)  # counts and ranks are whole numbers
    assert card.does["does"] == atlas.describe().set_index("name").loc["L1H2", "does"]
    assert f"does: {card.does['does']}" in repr(card)
    for wrong in ((2, 0), (0, 3), (-1, 0)):
        with pytest.raises(ParameterError, match="2 layers of 3 heads"):
            atlas.head(*wrong)
    with pytest.raises(ParameterError, match="L7H9"):
        atlas.head("8-10")


def test_tables() -> None:
    atlas = small_atlas()
    frame = atlas.to_dataframe("surface")
    assert len(frame) == 6 + 12
    cell = frame[
        (frame["variable"] == "mass")
        & (frame["layer"] == 1)
        & (frame["head"] == 0)
        & (frame["item"] == "cls")
    ]
    assert cell["value"].item() == float(atlas["surface"]["mass"][1, 0, 0])
    summary = atlas.summary().set_index(["variable", "item"])
    entropy = atlas["surface"]["entropy"]
    assert summary.loc[("entropy", ""), "highest"] == float(entropy.max())
    layer, head = np.unravel_index(int(entropy.values.argmin()), entropy.shape)
    assert summary.loc[("entropy", ""), "lowest_head"] == f"L{layer}H{head}"


def test_unknown_groups_name_the_known_ones_and_html_is_escaped() -> None:
    atlas = small_atlas()
    with pytest.raises(ParameterError, match="Did you mean 'surface'"):
        atlas["surfaces"]
    atlas.provenance["model"]["name"] = "<script>"
    assert "<script>" not in atlas._repr_html_()


def test_digest_sees_values_names_and_labels() -> None:
    base = {"g": xr.Dataset({"x": ("y", [1.0, 2.0])}, coords={"y": ["a", "b"]})}
    digests = {
        dataset_digest(base),
        dataset_digest({"h": base["g"]}),
        dataset_digest({"g": base["g"].rename(x="z")}),
        dataset_digest({"g": base["g"].assign_coords(y=["a", "c"])}),
        dataset_digest({"g": base["g"] + 1e-9}),
    }
    assert len(digests) == 5
