"""`Atlas.load` rejects a file that is no atlas, or has been changed, before its arrays are read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from fuzz.atlas_inputs import HOSTILE, attack, endless, hostile, seed_bytes, whole
from headwise.atlas import Atlas
from headwise.atlas.arrays import read_groups
from headwise.atlas.file import LENGTH, read_any, sealed
from headwise.core.errors import AtlasError

# Written by a version of headwise before format 3.
FORMAT_2 = Path(__file__).parent / "data" / "format-2.nc"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_file_is_rejected_with_the_reason(name: str, tmp_path: Path) -> None:
    message = attack(hostile(name, tmp_path))
    assert message != "read"
    assert HOSTILE[name][1] in message
    assert "hostile.nc" in message


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


def test_a_sealed_file_is_read_as_xarray_reads_it(tmp_path: Path) -> None:
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
    groups = read_groups(path)
    expected_groups = read_any(path)
    assert list(groups) == list(expected_groups)
    for name, expected in expected_groups.items():
        dataset = groups[name]
        xr.testing.assert_identical(dataset, expected)
        assert dataset.identical(expected)
        assert types_of_attributes(dataset) == types_of_attributes(expected)
        for variable in expected.variables:
            assert dataset[variable].dtype == expected[variable].dtype
            assert types_of_attributes(dataset[variable]) == types_of_attributes(expected[variable])
    assert Atlas(groups).to_bytes() == Atlas(expected_groups).to_bytes()


def types_of_attributes(data: xr.Dataset | xr.DataArray) -> dict[object, type]:
    return {name: type(value) for name, value in data.attrs.items()}


def test_the_digest_sees_attributes_and_provenance() -> None:
    def digest_with(provenance: dict[object, object], **attrs: object) -> str:
        return Atlas({"own": xr.Dataset({"x": ("y", [1.0], attrs)})}, provenance).digest  # type: ignore[arg-type]

    different = {
        digest_with({}),
        digest_with({"a": 1}),
        digest_with({"a": 2}),
        digest_with({}, units="nats"),
        digest_with({}, units="bits"),
    }
    assert len(different) == 5
    assert digest_with({"a": 1, "b": (2, 3)}) == digest_with({"b": [2, 3], "a": 1})
    assert digest_with({10: "a", 9: "b"}) == digest_with({"9": "b", "10": "a"})


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


def test_a_damaged_file_without_a_seal_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.atlas.file.ENOUGH_SECONDS", 2)
    path = tmp_path / "atlas.nc"
    path.write_bytes(endless(seed_bytes(tmp_path)))
    with pytest.raises(AtlasError, match="did not end within 2 seconds"):
        Atlas.load(path)


def test_a_damaged_file_that_a_stranger_sealed_again_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("headwise.atlas.file.ENOUGH_SECONDS", 2)
    path = tmp_path / "atlas.nc"
    path.write_bytes(sealed(endless(seed_bytes(tmp_path))))
    with pytest.raises(AtlasError, match="did not end within 2 seconds"):
        Atlas.load(path)


def test_a_file_of_others_is_tried_once_and_one_of_ours_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    monkeypatch.setattr("headwise.atlas.file.try_in_subprocess", lambda path, _: tried.append(path))
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    path = whole().save(tmp_path / "atlas.nc")
    Atlas.load(path)
    assert not tried
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache of another user"))
    Atlas.load(path)
    Atlas.load(path)
    assert tried == [path]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_too_little_memory_is_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "atlas.nc"
    content = whole().to_bytes()
    path.write_bytes(content[:-LENGTH])
    load = (
        "import resource, sys; from headwise.atlas import Atlas; "
        "resource.setrlimit(resource.RLIMIT_AS, (120 << 20, 120 << 20)); "
        "Atlas.load(sys.argv[1])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", load, str(path)], capture_output=True, text=True, check=False
    )
    # Which of the two comes first depends on what the imports of this machine take.
    too_little = ("could not be tried in a second process", "takes more memory than there is")
    assert any(message in ended.stderr for message in too_little), ended.stderr
    assert "AtlasError" in ended.stderr
    assert "damaged" not in ended.stderr
    # With the memory it needs, it is read.
    assert Atlas.load(path).digest == whole().digest


def test_every_flipped_bit_is_detected_before_hdf5_opens_the_file(
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


def test_a_file_with_too_many_arrays_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.atlas.check.MOST_ARRAYS", 5)
    with pytest.raises(AtlasError, match="more than 5 arrays"):
        Atlas.load(whole().save(tmp_path / "atlas.nc"))


def test_pipes_and_devices_are_rejected_at_once(tmp_path: Path) -> None:
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
