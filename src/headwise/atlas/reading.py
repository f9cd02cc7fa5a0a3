"""The arrays of a sealed file, read with h5py alone: h5netcdf looks every array up some fifty times, which takes ten
times as long."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

from headwise.atlas.check import is_bare_dim

# What HDF5 and NetCDF note beside an array for themselves.
HIDDEN = {"REFERENCE_LIST", "CLASS", "DIMENSION_LIST", "NAME", "_Netcdf4Dimid", "_Netcdf4Coordinates", "_NCProperties"}


def read_groups(path: Path) -> dict[str, xr.Dataset]:
    """The groups of a file that headwise wrote, as `xarray.open_datatree` gives them (but for how they lie on disk)."""
    with h5py.File(path, "r") as file:
        return {str(name): _dataset(group) for name, group in file.items()}


def _dataset(group: h5py.Group) -> xr.Dataset:
    arrays = dict(group.items())
    names = {h5py.h5o.get_info(array.id).addr: name for name, array in arrays.items()}  # by where HDF5 has them
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
    dims = (h5py.h5r.dereference(reference, array.id) for (reference,) in array.attrs["DIMENSION_LIST"])
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
