"""The file of an atlas: one NetCDF file with a group for each analysis, written whole or not at
all, refused where it is damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from headwise.atlas.arrays import read_groups
from headwise.atlas.check import FORMAT, MAX_BYTES, check_file
from headwise.atlas.seal import check_seal, try_elsewhere
from headwise.core.errors import AtlasError, HeadwiseError
from headwise.core.store import digest_of

FIRST_WHOLE = 3  # the first format whose digest covers everything


def dataset_digest(datasets: Mapping[str, xr.Dataset]) -> str:
    """A digest over all variables: names, dims, types, bytes. It is what formats 1 and 2 carry; see
    `atlas_digest`."""
    digest = hashlib.sha256()
    for group in sorted(datasets):
        dataset = datasets[group]
        for name in sorted(map(str, dataset.variables)):
            array = dataset.variables[name]
            values = np.ascontiguousarray(array.values)
            text = (
                values.dtype.kind in "UOST"
            )  # which of these kinds a string has depends on whether it was in a file
            data = (
                "\0".join(map(str, values.ravel().tolist())).encode() if text else values.tobytes()
            )
            kind = "text" if text else values.dtype.str
            digest.update(f"{group}/{name}{array.dims}{values.shape}{kind}".encode() + data)
    return digest.hexdigest()


def atlas_digest(datasets: Mapping[str, xr.Dataset], provenance: Mapping[str, Any]) -> str:
    """A digest over everything in an atlas: all variables, the attributes of groups and variables,
    which variables are labels, and the provenance. It is what the file carries since format 3."""
    about: dict[str, Any] = {
        group: {
            "attrs": _told(dataset.attrs),
            "labels": sorted(map(str, dataset.coords)),
            "variables": {
                str(name): _told(array.attrs) for name, array in dataset.variables.items()
            },
        }
        for group, dataset in datasets.items()
    }
    everything = {"groups": about, "provenance": provenance, "variables": dataset_digest(datasets)}
    # Names of numbers become text in the file: read back before they are sorted, they sort as they
    # will.
    return digest_of(json.loads(json.dumps(everything, default=str)))


def _told(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as they come back from a file: numbers of numpy as numbers, a list of one as that
    one."""
    found: dict[str, Any] = {}
    for name, value in attrs.items():
        plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if isinstance(plain, list | tuple):
            plain = [one.tolist() if isinstance(one, np.generic) else one for one in plain]
            plain = plain[0] if len(plain) == 1 else plain
        found[str(name)] = plain
    return found


def to_tree(datasets: Mapping[str, xr.Dataset], provenance: Mapping[str, Any]) -> xr.DataTree:
    """The datasets as they lie in the file, with format, provenance and digest as attributes of the
    root."""
    attrs = {"headwise_format": FORMAT, "provenance": json.dumps(provenance, sort_keys=True)}
    attrs |= {"digest": atlas_digest(datasets, provenance)}
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attrs), **datasets})


def read_tree(
    path: Path, max_bytes: int | None = MAX_BYTES, *, first: bool = True
) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    """The datasets of a file and their provenance, in the form of this version. With `first`, a
    file without a seal is tried in another process before."""
    if path.is_dir():
        path = path / "atlas.nc"
    if not path.exists():
        raise AtlasError(f"There is no file {path}; run `headwise atlas` to make one.")
    if not path.is_file():
        raise AtlasError(f"{path} is not a file; give the atlas.nc of a run.")
    try:
        own = first and check_seal(path)
        if first and not own:
            try_elsewhere(path, max_bytes)
        header = check_file(path, max_bytes)
        datasets = read_groups(path) if own else read_any(path)
        whole = header.format >= FIRST_WHOLE
        digest = atlas_digest(datasets, header.provenance) if whole else dataset_digest(datasets)
        if header.format == 1:
            datasets = {name: _from_format_1(dataset) for name, dataset in datasets.items()}
    except HeadwiseError:
        raise
    except MemoryError as error:
        if not first:  # whoever asked will say so
            raise
        raise AtlasError(f"{path} takes more memory than there is.") from error
    except (
        Exception
    ) as error:  # the readers of NetCDF raise whatever a damaged file makes them trip over
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise AtlasError(f"{path} is not a NetCDF file that can be read ({reason}).") from error
    if digest != header.digest:
        raise AtlasError(
            f"{path} has been changed or damaged since it was written: its digest does not fit its contents."
        )
    return datasets, header.provenance


def read_any(path: Path) -> dict[str, xr.Dataset]:
    """The groups of a file that others may have written: in whatever way NetCDF allows."""
    # Nothing here is a time, whatever its `units` say.
    with xr.open_datatree(
        path, engine="h5netcdf", decode_times=False, decode_timedelta=False
    ) as tree:
        return {
            str(name): node.to_dataset(inherit=False).load() for name, node in tree.children.items()
        }


def _from_format_1(dataset: xr.Dataset) -> xr.Dataset:
    """Format 1 called the mass on each token type `token_type`, like its dim, and kept the labels
    of that dim in `token_type_name`."""
    renamed = {
        name: str(name).replace("token_type", "mass", 1)
        for name, array in dataset.variables.items()
        if str(name).startswith("token_type") and array.ndim > 1
    }
    dataset = dataset.rename_vars(renamed).reset_coords(
        [new for new in renamed.values() if new == "mass"]
    )
    if "token_type_name" in dataset:
        dataset = dataset.assign_coords(token_type=dataset["token_type_name"].values).drop_vars(
            "token_type_name"
        )
    return dataset
