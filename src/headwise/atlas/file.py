"""The file of an atlas: one NetCDF file with a group for each analysis, written whole or not at all, refused where it
is damaged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from headwise.core.errors import AtlasError, OutputError

FORMAT = 2


def dataset_digest(datasets: Mapping[str, xr.Dataset]) -> str:
    """A digest over all variables: names, dims, types, bytes. Attributes are left out."""
    digest = hashlib.sha256()
    for group in sorted(datasets):
        dataset = datasets[group]
        for name in sorted(map(str, dataset.variables)):
            array = dataset.variables[name]
            values = np.ascontiguousarray(array.values)
            text = values.dtype.kind in "UOST"  # which of these kinds a string has depends on whether it was in a file
            data = "\0".join(map(str, values.ravel().tolist())).encode() if text else values.tobytes()
            kind = "text" if text else values.dtype.str
            digest.update(f"{group}/{name}{array.dims}{values.shape}{kind}".encode() + data)
    return digest.hexdigest()


def to_tree(datasets: Mapping[str, xr.Dataset], provenance: Mapping[str, Any]) -> xr.DataTree:
    """The datasets as they lie in the file, with format, provenance and digest as attributes of the root."""
    attrs = {"headwise_format": FORMAT, "provenance": json.dumps(provenance, sort_keys=True)}
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attrs | {"digest": dataset_digest(datasets)}), **datasets})


def write_tree(tree: xr.DataTree, path: Path) -> None:
    """Write a tree as NetCDF, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tree.to_netcdf(temporary, engine="h5netcdf")
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = error.strerror or error
        raise OutputError(f"{path} cannot be written ({reason}); free some space or choose another place.") from error


def read_tree(path: Path) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    """The datasets of a file and their provenance, in the form of this version."""
    if path.is_dir():
        path = path / "atlas.nc"
    if not path.exists():
        raise AtlasError(f"There is no file {path}; run `headwise atlas` to make one.")
    try:
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            attrs = dict(tree.attrs)
            datasets = {name: node.to_dataset().load() for name, node in tree.children.items()}
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise AtlasError(f"{path} is not a NetCDF file that can be read ({reason}).") from error
    if "headwise_format" not in attrs:
        raise AtlasError(f"{path} is a NetCDF file, but not a headwise atlas.")
    given = int(attrs["headwise_format"])
    if given > FORMAT:
        raise AtlasError(
            f"{path} has atlas format {given}; this headwise reads up to {FORMAT}: pip install --upgrade headwise."
        )
    if dataset_digest(datasets) != attrs["digest"]:
        raise AtlasError(
            f"{path} has been changed or damaged since it was written: its digest does not fit its contents."
        )
    if given == 1:
        datasets = {name: _from_format_1(dataset) for name, dataset in datasets.items()}
    return datasets, json.loads(attrs["provenance"])


def _from_format_1(dataset: xr.Dataset) -> xr.Dataset:
    """Format 1 called the mass on each token type `token_type`, like its dim, and kept the labels of that dim in
    `token_type_name`."""
    renamed = {
        name: str(name).replace("token_type", "mass", 1)
        for name, array in dataset.variables.items()
        if str(name).startswith("token_type") and array.ndim > 1
    }
    dataset = dataset.rename_vars(renamed).reset_coords([new for new in renamed.values() if new == "mass"])
    if "token_type_name" in dataset:
        dataset = dataset.assign_coords(token_type=dataset["token_type_name"].values).drop_vars("token_type_name")
    return dataset
