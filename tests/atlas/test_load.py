"""`Atlas.load`: what is not an atlas, or has been changed, is refused in a sentence before its
arrays are read."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from fuzz.atlas_inputs import HOSTILE, attack, endless, hostile, seed_bytes, whole
from headwise.atlas import Atlas
from headwise.atlas.arrays import read_groups
from headwise.atlas.file import read_any
from headwise.atlas.seal import LENGTH
from headwise.core.errors import AtlasError

FORMAT_2 = (
    Path(__file__).parent / "data" / "format-2.nc"
)  # made by headwise as it was before format 3


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_wrong_in_one_way_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    said = attack(hostile(name, tmp_path))
    assert said != "read"
    assert HOSTILE[name][1] in said
    assert "hostile.nc" in said


def test_everything_comes_back_and_the_digest_with_it(tmp_path: Path) -> None:
    loaded = Atlas.load(whole().save(tmp_path / "atlas.nc"))
    assert loaded.digest == whole().digest
    assert loaded["surface"].attrs["inputs"] == 7
    assert loaded["surface"]["sure"].dtype == bool
    again = loaded.save(tmp_path / "again.nc")
    assert Atlas.load(again).digest == whole().digest


@pytest.mark.parametrize(
    "value", ["text", "", 3, 2.5, np.float32(0.1), [1, 2], (1.5,), ["a", "b"], ["a"]]
)
def test_the_digest_of_an_attribute_is_the_same_before_and_after_the_file(
    value: object, tmp_path: Path
) -> None:
    atlas = Atlas(
        {"own": xr.Dataset({"x": ("y", [1.0], {"about": value})}, attrs={"about": value})}
    )
    assert Atlas.load(atlas.save(tmp_path / "atlas.nc")).digest == atlas.digest


def test_a_file_of_ones_own_is_read_as_xarray_reads_it(tmp_path: Path) -> None:
    pair = ("layer", "kind")
    own = xr.Dataset(
        {
            "x": (
                pair,
                np.array([[1, np.nan], [3, 4]], np.float32),
                {"units": "days since 2000-01-01", "l": [1, 2]},
            ),
            "sure": (pair, [[True, False]] * 2, {"coordinates_of": "nothing"}),
            "count": (
                "bare",
                np.arange(3, dtype=np.int16),
                {"names": ["a", "b"], "one": ["a"], "none": ""},
            ),
            "said": (("layer", "bare"), np.array([["", "ü", "long"]] * 2)),
            "one": ((), 2.5),
            "word": ((), "alone"),
        },
        coords={"layer": [0, 1], "kind": ["a", "bc"], "about": ("kind", ["first", "second"])},
        attrs={"n": 3, "share": 0.5, "texts": ["a", "b"], "empty": ""},
    )
    path = Atlas({"own": own, "second": own[["count"]]}).save(tmp_path / "atlas.nc")
    found, expected = read_groups(path), read_any(path)
    assert list(found) == list(expected)
    for name, dataset in expected.items():
        xr.testing.assert_identical(found[name], dataset)
        assert found[name].identical(dataset)
        assert {n: v.dtype for n, v in found[name].variables.items()} == {
            n: v.dtype for n, v in dataset.variables.items()
        }
        for here, there in [
            (found[name], dataset),
            *((found[name][n], dataset[n]) for n in dataset.variables),
        ]:
            assert {k: type(v) for k, v in here.attrs.items()} == {
                k: type(v) for k, v in there.attrs.items()
            }
    assert Atlas(found).to_bytes() == Atlas(expected).to_bytes()


def test_the_digest_sees_attributes_and_provenance() -> None:
    def made(provenance: dict[object, object], **attrs: object) -> str:
        return Atlas({"own": xr.Dataset({"x": ("y", [1.0], attrs)})}, provenance).digest  # type: ignore[arg-type]

    assert (
        len(
            {
                made({}),
                made({"a": 1}),
                made({"a": 2}),
                made({}, units="nats"),
                made({}, units="bits"),
            }
        )
        == 5
    )
    assert made({"a": 1, "b": (2, 3)}) == made({"b": [2, 3], "a": 1})
    assert made({10: "a", 9: "b"}) == made({"9": "b", "10": "a"})


def test_format_2_loads_and_its_variables_are_checked(tmp_path: Path) -> None:
    atlas = Atlas.load(FORMAT_2)
    assert list(atlas) == ["offsets", "surface"]
    assert atlas.provenance["model"] == {"name": "tiny"}
    path = tmp_path / "atlas.nc"
    path.write_bytes(FORMAT_2.read_bytes())
    with h5py.File(path, "r+") as file:
        file["surface/entropy"][0, 0] = 5
    with pytest.raises(AtlasError, match="changed or damaged"):
        Atlas.load(path)


def test_damage_without_a_seal_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.atlas.seal.ENOUGH_SECONDS", 2)
    path = tmp_path / "atlas.nc"
    path.write_bytes(endless(seed_bytes(tmp_path)))
    with pytest.raises(AtlasError, match="did not end within 2 seconds"):
        Atlas.load(path)


def test_every_flipped_bit_is_seen_before_hdf5_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headwise.atlas.file.check_file", lambda *_: pytest.fail("the file was opened")
    )
    content = seed_bytes(tmp_path)
    path = tmp_path / "atlas.nc"
    for at in range(0, len(content) - LENGTH, 97):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        with pytest.raises(AtlasError, match="changed or damaged since"):
            Atlas.load(path)


def test_the_limit_on_size_can_be_set(tmp_path: Path) -> None:
    path = whole().save(tmp_path / "atlas.nc")
    with pytest.raises(AtlasError, match=r"over the limit of 100; .* larger max_bytes"):
        Atlas.load(path, max_bytes=100)
    assert Atlas.load(path, max_bytes=None).digest == whole().digest


def test_more_arrays_than_an_atlas_has_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.atlas.check.MOST_ARRAYS", 5)
    with pytest.raises(AtlasError, match="more than 5 arrays"):
        Atlas.load(whole().save(tmp_path / "atlas.nc"))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.nc")
    for path in (tmp_path / "pipe.nc", Path("/dev/zero")):
        with pytest.raises(AtlasError, match="is not a file"):
            Atlas.load(path)


def test_packed_arrays_are_read(tmp_path: Path) -> None:
    path = whole().save(tmp_path / "atlas.nc")
    packed = {"entropy": {"zlib": True, "complevel": 9}}
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        tree.to_netcdf(tmp_path / "packed.nc", engine="h5netcdf", encoding={"/surface": packed})
    assert attack(tmp_path / "packed.nc") == "read"
