"""The arrays of a file, read and written with h5py alone as h5netcdf lays them out: that library
looks every array up some fifty times, which takes ten times as long."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import xarray as xr
from xarray.conventions import cf_encoder, encode_dataset_coordinates

from headwise.atlas.check import BARE_DIM, is_bare_dim

# What HDF5 and NetCDF note beside an array for themselves.
HIDDEN = {
    "REFERENCE_LIST",
    "CLASS",
    "DIMENSION_LIST",
    "NAME",
    "_Netcdf4Dimid",
    "_Netcdf4Coordinates",
    "_NCProperties",
}


def netcdf_bytes(tree: xr.DataTree) -> bytes:
    """The groups of a tree as a NetCDF 4 file, made in memory.

    Numbers and texts in named arrays, which is all that headwise makes, are written here; a tree
    with anything else in it (an analysis may come from elsewhere) is left to xarray, which writes
    or refuses it."""
    groups = {str(name): node.to_dataset(inherit=False) for name, node in tree.children.items()}
    if not (_plain_attributes(tree.attrs) and all(map(_plain, groups.values()))):
        content = tree.to_netcdf(engine="h5netcdf")
        assert isinstance(content, memoryview)
        return bytes(content)
    # The C library of NetCDF wants to know the order in which things were made.
    with h5py.File("atlas.nc", "w", driver="core", backing_store=False, track_order=True) as file:
        _set_attributes(file, tree.attrs)
        numbers = itertools.count()
        for name, dataset in groups.items():
            _write_group(file.create_group(name, track_order=True), dataset, numbers)
        made = f"version=2,h5netcdf={h5netcdf.__version__},hdf5={h5py.version.hdf5_version},h5py={h5py.__version__}"
        file.attrs.create("_NCProperties", np.bytes_(made))
        file.flush()
        return bytes(file.id.get_file_image())


# --- what is written here -------------------------------------------------------------------------


def _plain(dataset: xr.Dataset) -> bool:
    named = all(
        isinstance(name, str) and "/" not in name for name in (*dataset.variables, *dataset.dims)
    )
    return (
        named
        and all(dataset.sizes.values())  # an empty dim is one that may grow, for NetCDF
        and _plain_attributes(dataset.attrs)
        and all(
            _plain_array(array) and _plain_attributes(array.attrs)
            for array in dataset.variables.values()
        )
    )


def _plain_array(array: xr.Variable) -> bool:
    kind = array.dtype.kind
    return kind in "fiubU" or (
        kind == "O" and all(isinstance(text, str) for text in array.values.ravel())
    )


def _plain_attributes(attrs: Mapping[Any, Any]) -> bool:
    return all(
        isinstance(name, str)
        and name not in HIDDEN
        and (isinstance(value, str) or np.asarray(value).dtype.kind in "fiuU")
        for name, value in attrs.items()
    )


# --- how ------------------------------------------------------------------------------------------


def _write_group(group: h5py.Group, dataset: xr.Dataset, numbers: Iterator[int]) -> None:
    """One group. Its dims are arrays for HDF5 too (scales, numbered through the file): their
    labels, or bare ones."""
    variables, attrs = cf_encoder(*encode_dataset_coordinates(dataset))
    _set_attributes(group, attrs)
    number = {str(dim): next(numbers) for dim in dataset.sizes}
    bare = {
        dim: _bare_dim(group, dim, dataset.sizes[dim]) for dim in number if dim not in variables
    }
    arrays = {str(name): _write_array(group, str(name), array) for name, array in variables.items()}
    scales = {dim: bare[dim] if dim in bare else arrays[dim] for dim in number}
    for dim, scale in scales.items():
        h5py.h5ds.set_scale(
            scale.id, BARE_DIM + b".%10d" % len(scale) if dim in bare else dim.encode()
        )
        scale.attrs.create("_Netcdf4Dimid", number[dim], dtype="i4")
    for name, array in variables.items():
        held, dims = arrays[str(name)], [str(dim) for dim in array.dims]
        if str(name) not in scales:
            for axis, dim in enumerate(dims):
                h5py.h5ds.attach_scale(held.id, scales[dim].id, axis)
            if dims:
                held.attrs.create("_Netcdf4Dimid", number[dims[0]], dtype="i4")
        if dims:
            held.attrs.create("_Netcdf4Coordinates", [number[dim] for dim in dims], dtype="i4")


def _write_array(group: h5py.Group, name: str, array: xr.Variable) -> h5py.Dataset:
    values, attrs = np.asarray(array.values), dict(array.attrs)
    fill = None
    if "_FillValue" in attrs:
        fill = attrs["_FillValue"] = np.asarray(attrs["_FillValue"], dtype=values.dtype)[()]
    if values.dtype.kind in "UO":
        kind, values = h5py.string_dtype(), values.astype(object)
    else:
        kind = values.dtype
    made = group.create_dataset(name, dtype=kind, data=values, fillvalue=fill, track_order=True)
    _set_attributes(made, attrs)
    return made


def _bare_dim(group: h5py.Group, name: str, length: int) -> h5py.Dataset:
    return group.create_dataset(name, shape=(length,), dtype=">f4", track_order=True)


def _set_attributes(holder: h5py.Group | h5py.Dataset, attrs: Mapping[Any, Any]) -> None:
    for name, value in attrs.items():
        # A number is a list of one, as NetCDF has it.
        holder.attrs.create(
            name,
            np.atleast_1d(value) if np.isscalar(value) and not isinstance(value, str) else value,
        )


# --- reading --------------------------------------------------------------------------------------


def read_groups(path: Path) -> dict[str, xr.Dataset]:
    """The groups of a file that headwise wrote, as `xarray.open_datatree` gives them (but for how
    they lie on disk)."""
    with h5py.File(path, "r") as file:
        return {str(name): _dataset(group) for name, group in file.items()}


def _dataset(group: h5py.Group) -> xr.Dataset:
    arrays = dict(group.items())
    names = {
        h5py.h5o.get_info(array.id).addr: name for name, array in arrays.items()
    }  # by where HDF5 has them
    variables = {}
    for name, array in arrays.items():
        if not is_bare_dim(array):
            text = h5py.check_string_dtype(array.dtype)
            values = array[()] if text is None else np.asarray(array.asstr()[()], dtype=str)
            variables[name] = xr.Variable(_dims(array, name, names), values, _attributes(array))
    # Nothing here is a time, whatever its `units` say.
    found = xr.Dataset(variables, attrs=_attributes(group))
    return xr.decode_cf(found, decode_times=False, decode_timedelta=False)


def _dims(array: h5py.Dataset, name: str, names: Mapping[int, str]) -> tuple[str, ...]:
    if "DIMENSION_LIST" not in array.attrs:
        return (name,)[: array.ndim]  # labels of a dim, or one value
    dims = (
        h5py.h5r.dereference(reference, array.id) for (reference,) in array.attrs["DIMENSION_LIST"]
    )
    return tuple(names[h5py.h5o.get_info(dim).addr] for dim in dims)


def _attributes(holder: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    found = {}
    for name in holder.attrs:
        if name not in HIDDEN:
            value = holder.attrs[name]
            if isinstance(value, np.ndarray):
                value = value.tolist() if value.dtype.kind == "O" else value
                value = value[0] if len(value) == 1 else value
            found[name] = value
    return found
