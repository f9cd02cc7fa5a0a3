"""Read and write the arrays of a NetCDF file with h5py alone, in the layout of h5netcdf.

h5netcdf looks up every array some fifty times, which takes ten times as long."""

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

# Attributes that HDF5 and NetCDF use internally.
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
    """Return the groups of a tree as a NetCDF 4 file, made in memory.

    Numbers and texts in named arrays, which is all that headwise makes, are written here. A tree
    with anything else (an analysis may come from another package) is left to xarray, which writes
    or rejects it."""
    groups = {str(name): node.to_dataset(inherit=False) for name, node in tree.children.items()}
    is_plain = _has_plain_attributes(tree.attrs) and all(map(_is_plain, groups.values()))
    if not is_plain:
        content = tree.to_netcdf(engine="h5netcdf")
        assert isinstance(content, memoryview)
        return bytes(content)
    # The C library of NetCDF needs the order in which objects were created.
    with h5py.File("atlas.nc", "w", driver="core", backing_store=False, track_order=True) as file:
        _set_attributes(file, tree.attrs)
        dim_ids = itertools.count()
        for name, dataset in groups.items():
            _write_group(file.create_group(name, track_order=True), dataset, dim_ids)
        versions = (
            f"version=2,h5netcdf={h5netcdf.__version__},hdf5={h5py.version.hdf5_version},"
            f"h5py={h5py.__version__}"
        )
        file.attrs.create("_NCProperties", np.bytes_(versions))
        file.flush()
        return bytes(file.id.get_file_image())


# --- what can be written here ---------------------------------------------------------------------


def _is_plain(dataset: xr.Dataset) -> bool:
    for name in (*dataset.variables, *dataset.dims):
        if not isinstance(name, str) or "/" in name:
            return False
    if not all(dataset.sizes.values()):  # for NetCDF an empty dim is an unlimited one
        return False
    for array in dataset.variables.values():
        has_plain_values = array.dtype.kind in "fiubU"
        if array.dtype.kind == "O":
            has_plain_values = all(isinstance(text, str) for text in array.values.ravel())
        if not has_plain_values or not _has_plain_attributes(array.attrs):
            return False
    return _has_plain_attributes(dataset.attrs)


def _has_plain_attributes(attrs: Mapping[Any, Any]) -> bool:
    for name, value in attrs.items():
        if not isinstance(name, str) or name in HIDDEN:
            return False
        if not isinstance(value, str) and np.asarray(value).dtype.kind not in "fiuU":
            return False
    return True


# --- writing --------------------------------------------------------------------------------------


def _write_group(group: h5py.Group, dataset: xr.Dataset, dim_ids: Iterator[int]) -> None:
    """Write one group.

    Every dim is an array for HDF5 too (a scale, numbered through the file): its labels, or an
    array without content."""
    variables, attrs = cf_encoder(*encode_dataset_coordinates(dataset))
    _set_attributes(group, attrs)
    id_of_dim = {str(dim): next(dim_ids) for dim in dataset.sizes}
    scales = {}
    for dim in id_of_dim:
        if dim not in variables:
            scales[dim] = _write_bare_dim(group, dim, dataset.sizes[dim])
    bare_dims = set(scales)
    arrays = {}
    for name, variable in variables.items():
        arrays[str(name)] = _write_array(group, str(name), variable)
    for dim, dim_id in id_of_dim.items():
        if dim in bare_dims:
            scale_name = BARE_DIM + b".%10d" % len(scales[dim])
        else:
            scales[dim] = arrays[dim]
            scale_name = dim.encode()
        h5py.h5ds.set_scale(scales[dim].id, scale_name)
        scales[dim].attrs.create("_Netcdf4Dimid", dim_id, dtype="i4")
    for name, variable in variables.items():
        array = arrays[str(name)]
        dims = [str(dim) for dim in variable.dims]
        if not dims:
            continue
        if str(name) not in scales:
            for axis, dim in enumerate(dims):
                h5py.h5ds.attach_scale(array.id, scales[dim].id, axis)
            array.attrs.create("_Netcdf4Dimid", id_of_dim[dims[0]], dtype="i4")
        dim_ids_of_array = [id_of_dim[dim] for dim in dims]
        array.attrs.create("_Netcdf4Coordinates", dim_ids_of_array, dtype="i4")


def _write_array(group: h5py.Group, name: str, variable: xr.Variable) -> h5py.Dataset:
    values = np.asarray(variable.values)
    attrs = dict(variable.attrs)
    fill_value = None
    if "_FillValue" in attrs:
        fill_value = np.asarray(attrs["_FillValue"], dtype=values.dtype)[()]
        attrs["_FillValue"] = fill_value
    dtype = values.dtype
    if dtype.kind in "UO":
        dtype = h5py.string_dtype()
        values = values.astype(object)
    array = group.create_dataset(
        name, dtype=dtype, data=values, fillvalue=fill_value, track_order=True
    )
    _set_attributes(array, attrs)
    return array


def _write_bare_dim(group: h5py.Group, name: str, length: int) -> h5py.Dataset:
    return group.create_dataset(name, shape=(length,), dtype=">f4", track_order=True)


def _set_attributes(target: h5py.Group | h5py.Dataset, attrs: Mapping[Any, Any]) -> None:
    for name, value in attrs.items():
        if np.isscalar(value) and not isinstance(value, str):
            value = np.atleast_1d(value)  # NetCDF stores a number as a list of one
        target.attrs.create(name, value)


# --- reading --------------------------------------------------------------------------------------


def read_groups(path: Path) -> dict[str, xr.Dataset]:
    """Return the groups of a file that headwise wrote, equal to those of `xarray.open_datatree`."""
    with h5py.File(path, "r") as file:
        return {str(name): _read_dataset(group) for name, group in file.items()}


def _read_dataset(group: h5py.Group) -> xr.Dataset:
    arrays = dict(group.items())
    # References to dims lead to addresses in the file.
    name_at_address = {}
    for name, array in arrays.items():
        name_at_address[h5py.h5o.get_info(array.id).addr] = name
    variables = {}
    for name, array in arrays.items():
        if is_bare_dim(array):
            continue
        if h5py.check_string_dtype(array.dtype) is None:
            values = array[()]
        else:
            values = np.asarray(array.asstr()[()], dtype=str)
        dims = _dims(array, name, name_at_address)
        variables[name] = xr.Variable(dims, values, _attributes(array))
    dataset = xr.Dataset(variables, attrs=_attributes(group))
    # Nothing here is a time, whatever its `units` say.
    return xr.decode_cf(dataset, decode_times=False, decode_timedelta=False)


def _dims(array: h5py.Dataset, name: str, name_at_address: Mapping[int, str]) -> tuple[str, ...]:
    if "DIMENSION_LIST" not in array.attrs:
        return (name,)[: array.ndim]  # the labels of a dim, or a single value
    dims = []
    for (reference,) in array.attrs["DIMENSION_LIST"]:
        scale = h5py.h5r.dereference(reference, array.id)
        dims.append(name_at_address[h5py.h5o.get_info(scale).addr])
    return tuple(dims)


def _attributes(source: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    attributes = {}
    for name in source.attrs:
        if name in HIDDEN:
            continue
        value = source.attrs[name]
        if isinstance(value, np.ndarray):
            if value.dtype.kind == "O":
                value = value.tolist()
            if len(value) == 1:
                value = value[0]
        attributes[name] = value
    return attributes
