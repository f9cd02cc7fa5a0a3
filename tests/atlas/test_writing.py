"""headwise writes the same file as xarray, except for the order in which its parts are created."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from headwise.atlas.arrays import netcdf_bytes


def tree_of(*datasets: xr.Dataset) -> xr.DataTree:
    root = xr.Dataset(attrs={"headwise_format": 3, "provenance": "{}"})
    return xr.DataTree.from_dict(
        {"/": root, **{f"group {n}": dataset for n, dataset in enumerate(datasets)}}
    )


def everything() -> xr.Dataset:
    """Every kind of array, label and attribute that an atlas may hold."""
    attributes: dict[str, Any] = {
        "long_name": "größe",
        "n": 3,
        "least": np.float32(0.5),
        "heads": ["L0H1", "L1H0"],
        "at": [1, 2],
    }
    return xr.Dataset(
        {
            "value": (("layer", "head"), np.array([[0.5, np.nan], [1, 2]], "f4"), attributes),
            "transposed": (("head", "layer"), np.arange(4.0).reshape(2, 2).T),
            "count": (("layer", "bare"), np.arange(6).reshape(2, 3)),
            "small": ("bare", np.arange(3, dtype="u1")),
            "yes": ("head", [True, False]),
            "word": ("layer", ["sep", "größe"]),
            "objects": ("layer", np.array(["über", ""], dtype=object)),
            "whole": 2.5,
            "called": "one text",
        },
        coords={"layer": [0, 1], "head": ["a", "bé"], "length": ("layer", [8, 16]), "beside": 7},
        attrs={"unit": "nats", "limit": 20, "empty": ""},
    )


def parts(node: h5py.Group | h5py.Dataset, file: h5py.File) -> Iterator[tuple[Any, ...]]:
    """Yield everything in a group: names, types, sizes, values, attributes and references."""
    for name in sorted(node.attrs):
        value = node.attrs[name]
        attribute_id = node.attrs.get_id(name)
        if name == "DIMENSION_LIST":
            value = [file[reference].name for (reference,) in value]
        elif name == "REFERENCE_LIST":
            value = sorted((file[reference].name, int(axis)) for reference, axis in value)
        yield node.name, name, str(attribute_id.dtype), attribute_id.shape, repr(value)
    if isinstance(node, h5py.Dataset):
        yield (
            node.name,
            str(node.dtype),
            node.shape,
            node.maxshape,
            node.chunks,
            repr(node.fillvalue),
            repr(np.asarray(node[()]).tolist()),
        )
    else:
        yield node.name, list(node)
        for child in node.values():
            yield from parts(child, file)


def parts_of_file(content: bytes) -> list[tuple[Any, ...]]:
    with h5py.File(io.BytesIO(content), "r") as file:
        return list(parts(file, file))


def test_the_file_is_the_one_that_xarray_writes() -> None:
    tree = tree_of(
        everything(),
        everything()[["small", "value"]],
        xr.Dataset(attrs={"why": "nothing was found"}),
    )
    parts_here = parts_of_file(netcdf_bytes(tree))
    parts_of_xarray = parts_of_file(bytes(tree.to_netcdf(engine="h5netcdf")))
    assert len(parts_here) > 100
    for part, expected in zip(parts_here, parts_of_xarray, strict=True):
        assert part == expected


def test_the_same_tree_gives_the_same_bytes() -> None:
    assert netcdf_bytes(tree_of(everything())) == netcdf_bytes(tree_of(everything()))


@pytest.mark.parametrize(
    "odd",
    [
        xr.Dataset({"none": (("layer", "role"), np.zeros((2, 0)))}),
        xr.Dataset({"objects": ("layer", np.array(["a", None], dtype=object))}),
        xr.Dataset({"letters": ("layer", np.array([b"ab", b"c"]))}),
        xr.Dataset({"value": ("layer", [1.0, 2.0], {"nothing": []})}),
    ],
    ids=["an empty dim", "objects", "bytes", "an empty list"],
)
def test_what_is_unusual_is_written_as_xarray_writes_it(odd: xr.Dataset) -> None:
    tree = tree_of(everything(), odd)
    with xr.open_datatree(io.BytesIO(netcdf_bytes(tree)), engine="h5netcdf") as loaded:
        content = io.BytesIO(bytes(tree.to_netcdf(engine="h5netcdf")))
        with xr.open_datatree(content, engine="h5netcdf") as expected:
            xr.testing.assert_identical(loaded, expected)


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        (xr.Dataset(attrs={"yes": True}), "boolean dtypes are not a supported NetCDF feature"),
        (xr.Dataset({"value": ("layer", [1.0], {"NAME": "a"})}), "reserved name"),
        (xr.Dataset({"value": ("layer", [1.0], {"one": {"two": 2}})}), "no native HDF5 equivalent"),
    ],
)
def test_what_netcdf_cannot_store_is_rejected(odd: xr.Dataset, error: str) -> None:
    with pytest.raises(Exception, match=error):
        netcdf_bytes(tree_of(odd))
