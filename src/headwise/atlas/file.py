"""The file of an atlas: one NetCDF file with a group for each analysis, rejected if damaged."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from headwise.atlas.arrays import read_groups
from headwise.atlas.check import FORMAT, MAX_BYTES, check_file
from headwise.core.errors import AtlasError, HeadwiseError
from headwise.core.files import cache_dir, similar_path
from headwise.core.store import WORK_FOLDER, digest_of, stored_identity

FIRST_COMPLETE_DIGEST = 3  # the first format whose digest covers everything


def dataset_digest(datasets: Mapping[str, xr.Dataset]) -> str:
    """Return a digest of all variables: names, dims, types, bytes.

    Formats 1 and 2 store it; see `atlas_digest` for format 3."""
    digest = hashlib.sha256()
    for group in sorted(datasets):
        dataset = datasets[group]
        for name in sorted(map(str, dataset.variables)):
            array = dataset.variables[name]
            values = np.ascontiguousarray(array.values)
            # The dtype of strings differs before and after they were in a file.
            if values.dtype.kind in "UOST":
                dtype = "text"
                content = "\0".join(map(str, values.ravel().tolist())).encode()
            else:
                dtype = values.dtype.str
                content = values.tobytes()
            digest.update(f"{group}/{name}{array.dims}{values.shape}{dtype}".encode() + content)
    return digest.hexdigest()


def atlas_digest(datasets: Mapping[str, xr.Dataset], provenance: Mapping[str, Any]) -> str:
    """Return a digest of everything in an atlas; files store it since format 3.

    It covers all variables, the attributes of groups and variables, which variables are labels,
    and the provenance."""
    groups: dict[str, Any] = {}
    for group, dataset in datasets.items():
        variables = {}
        for name, array in dataset.variables.items():
            variables[str(name)] = _plain_attributes(array.attrs)
        groups[group] = {
            "attrs": _plain_attributes(dataset.attrs),
            "labels": sorted(map(str, dataset.coords)),
            "variables": variables,
        }
    content = {
        "groups": groups,
        "provenance": provenance,
        "variables": dataset_digest(datasets),
    }
    # Keys that are numbers become text in the file, which sorts differently: read them back first.
    return digest_of(json.loads(json.dumps(content, default=str)))


def _plain_attributes(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return attributes as they come back from a file.

    Numbers of numpy are plain numbers there, and a list of one is its item."""
    plain: dict[str, Any] = {}
    for name, value in attrs.items():
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        if isinstance(value, list | tuple):
            value = [item.tolist() if isinstance(item, np.generic) else item for item in value]
            if len(value) == 1:
                value = value[0]
        plain[str(name)] = value
    return plain


def to_tree(datasets: Mapping[str, xr.Dataset], provenance: Mapping[str, Any]) -> xr.DataTree:
    """Return the datasets as a tree like the file's; the root has format, provenance and digest."""
    attrs = {
        "headwise_format": FORMAT,
        "provenance": json.dumps(provenance, sort_keys=True),
        "digest": atlas_digest(datasets, provenance),
    }
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attrs), **datasets})


def read_tree(
    path: Path, max_bytes: int | None = MAX_BYTES, *, first: bool = True
) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    """Return the datasets of a file and their provenance, in the current format.

    Parameters
    ----------
    path : Path
        The file, or the folder with its `atlas.nc`.
    max_bytes : int or None, default 4 GiB
        The most its arrays may take in memory; None for no limit.
    first : bool, default True
        Whether to try a file in a subprocess before, unless its seal is remembered.
    """
    try:
        is_folder = path.is_dir()
    except OSError as error:  # a name that is too long, say
        raise AtlasError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    if is_folder:
        path = path / "atlas.nc"
    if is_folder and not path.exists() and stored_identity(path.parent / WORK_FOLDER) is not None:
        raise AtlasError(
            f"The atlas in {path.parent} is not finished; repeat the command that makes it."
        )
    if not path.exists():
        hint = "" if is_folder else similar_path(path)
        raise AtlasError(f"There is no file {path}; run `headwise atlas` to create one.{hint}")
    if not path.is_file():
        raise AtlasError(f"{path} is not a file; give the atlas.nc of a run.")
    try:
        seal = check_seal(path)
        if first and not (seal and is_remembered(seal)):
            try_in_subprocess(path, max_bytes)
        header = check_file(path, max_bytes)
        datasets = read_groups(path) if seal else read_any(path)
        if header.format >= FIRST_COMPLETE_DIGEST:
            digest = atlas_digest(datasets, header.provenance)
        else:
            digest = dataset_digest(datasets)
        if header.format == 1:
            datasets = {name: _from_format_1(dataset) for name, dataset in datasets.items()}
    except HeadwiseError:
        raise
    except MemoryError as error:
        if not first:  # the process that started this one reports it
            raise
        raise AtlasError(f"{path} takes more memory than there is.") from error
    # Any exception: the readers of NetCDF raise all sorts of errors on a damaged file.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise AtlasError(f"{path} is not a NetCDF file that can be read ({reason}).") from error
    if digest != header.digest:
        raise AtlasError(
            f"{path} has been changed or damaged since it was written: its digest does not match "
            "its contents."
        )
    if first and seal:
        remember_seal(seal)
    return datasets, header.provenance


def read_any(path: Path) -> dict[str, xr.Dataset]:
    """Return the groups of a file that others may have written, in any way that NetCDF allows."""
    # Nothing here is a time, whatever its `units` say.
    with xr.open_datatree(
        path, engine="h5netcdf", decode_times=False, decode_timedelta=False
    ) as tree:
        datasets = {}
        for name, node in tree.children.items():
            datasets[str(name)] = node.to_dataset(inherit=False).load()
        return datasets


def _from_format_1(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset of format 1 with the current names.

    The mass on each token type was called `token_type`, like its dim, whose labels were in
    `token_type_name`."""
    new_names = {}
    for name, array in dataset.variables.items():
        if str(name).startswith("token_type") and array.ndim > 1:
            new_names[name] = str(name).replace("token_type", "mass", 1)
    dataset = dataset.rename_vars(new_names)
    if "mass" in new_names.values():
        # Named like its dim, it was a coordinate.
        dataset = dataset.reset_coords(["mass"])
    if "token_type_name" in dataset:
        labels = dataset["token_type_name"].values
        dataset = dataset.assign_coords(token_type=labels).drop_vars("token_type_name")
    return dataset


# --- protection against damaged files -----------------------------------------------------------

# HDF5 crashes on some damaged files and never returns on others. A file that headwise wrote ends
# with a digest of its bytes, behind the last byte that HDF5 reads; if it does not match, the file
# is rejected unread. Anyone can write such a digest: only files whose digest is remembered in the
# cache (written here, or read once before) are read at once, all others first in a subprocess.
MARK = b"\nheadwise atlas sealed, sha256 of all before: "
LENGTH = len(MARK) + 64
ENOUGH_SECONDS = 10  # of processor time for a file without a seal
SECONDS_PER_MEGABYTE = 3
SPARE_BYTES = 4 << 30  # of address space, in addition to the arrays
OUT_OF_MEMORY = 9  # exit code of the subprocess
_READ_FIRST = """
import os, sys
try:
    import resource
    for kind, most in ((resource.RLIMIT_CPU, int(sys.argv[3])), (resource.RLIMIT_AS, int(sys.argv[4]))):
        _, hard = resource.getrlimit(kind)
        # A lower limit (ulimit -v) stays as it is.
        if most and (hard == resource.RLIM_INFINITY or most <= hard):
            resource.setrlimit(kind, (most, most))
except ImportError:
    pass
from pathlib import Path
from headwise.atlas.file import read_tree
print("reading", flush=True)
try:
    read_tree(Path(sys.argv[1]), int(sys.argv[2]) or None, first=False)
except MemoryError:
    os._exit(9)
except Exception:
    pass  # reading ends: the calling process will say what is wrong
os._exit(0)
"""


def sealed(content: bytes) -> bytes:
    """Return the bytes of a file with their seal.

    >>> with_seal = sealed(b"content")
    >>> with_seal[:7], len(with_seal) - 7 == LENGTH
    (b'content', True)
    """
    return content + MARK + hashlib.sha256(content).hexdigest().encode()


def remember_seal(digest: str) -> None:
    """Remember that a file with this seal can be read; where the cache cannot be written, it is
    tried again each time."""
    with suppress(OSError):
        folder = cache_dir() / "sealed"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / digest).touch()


def is_remembered(digest: str) -> bool:
    """Return whether a file with this seal was written here, or read before."""
    try:
        return (cache_dir() / "sealed" / digest).exists()
    except OSError:
        return False


def check_seal(path: Path) -> str:
    """Return the seal of a file, "" if it has none; raise `AtlasError` if it does not match the
    bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - LENGTH, 0))
        end = file.read()
        if len(end) < LENGTH or not end.startswith(MARK):
            return ""
        file.seek(0)
        digest = hashlib.sha256()
        n_left = size - LENGTH
        while n_left:
            block = file.read(min(n_left, 1 << 20))
            if not block:  # the file has become shorter meanwhile
                break
            digest.update(block)
            n_left -= len(block)
    if digest.hexdigest().encode() != end[len(MARK) :]:
        raise AtlasError(
            f"{path} has been changed or damaged since it was written: its seal does not match its "
            "bytes; get an intact copy, or create it again with `headwise atlas`."
        )
    return digest.hexdigest()


def try_in_subprocess(path: Path, max_bytes: int | None) -> None:
    """Read a file in a subprocess, with limits on time and memory.

    A file that crashes the subprocess or exceeds its limits is rejected; any other can be read in
    this process afterwards."""
    seconds = ENOUGH_SECONDS + SECONDS_PER_MEGABYTE * (path.stat().st_size >> 20)
    memory = 0 if max_bytes is None else 3 * max_bytes + SPARE_BYTES
    arguments = [str(path), str(max_bytes or 0), str(seconds), str(memory)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Raised where nothing can be said of the file: there was too little memory to try it.
    not_tried = AtlasError(
        f"{path} could not be tried in a second process, which every file of others is first: "
        "it ran out of memory or could not start; free some memory, or raise the limit of this "
        "process (ulimit -v)."
    )
    try:
        process = subprocess.run(
            [sys.executable, "-c", _READ_FIRST, *arguments],
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, MemoryError) as error:
        raise not_tried from error
    if process.returncode == 0:
        return
    if b"reading" not in process.stdout or _has_memory_limit():
        raise not_tried
    if process.returncode == OUT_OF_MEMORY:
        reason = "takes more memory than allowed"
    else:
        reason = f"did not end within {seconds} seconds, or crashed"
    raise AtlasError(
        f"{path} is damaged: reading it {reason}; create it again with `headwise atlas`."
    )


def _has_memory_limit() -> bool:
    """Return whether the address space of this process is limited (`ulimit -v`)."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return soft != resource.RLIM_INFINITY
