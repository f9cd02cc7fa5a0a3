"""Check a file before any of its data is read: it must be a shallow tree of plain arrays, no larger
than it says, with a format, a provenance and a digest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from headwise.core.errors import AtlasError

FORMAT = 3
MAX_BYTES = 4 << 30
MOST_ARRAYS = 5_000  # of all groups together; an atlas of every analysis has 450
MAX_DEPTH = 50  # nested brackets of the provenance
BEST_RATIO = 1100  # of compression: no filter of HDF5 is better (deflate: 1032)
POINTER_BYTES = 16  # for each text of variable length, in addition to the text itself
BARE_DIM = b"This is a netCDF dimension but not a netCDF variable"
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Header:
    """The format, digest and provenance that a file states."""

    format: int
    digest: str
    provenance: dict[str, Any]


def check_file(path: Path, max_bytes: int | None = MAX_BYTES) -> Header:
    """Reject a file that is no atlas, or whose arrays do not belong in one, without reading them.

    Parameters
    ----------
    path : Path
        The file.
    max_bytes : int or None, default 4 GiB
        The most its arrays may take in memory; None for no limit.
    """
    with h5py.File(path, "r") as file:
        header = _header(path, file)
        _check_arrays(path, file, max_bytes)
        return header


# --- the header -----------------------------------------------------------------------------------


def _header(path: Path, file: h5py.File) -> Header:
    if "headwise_format" not in file.attrs:
        raise AtlasError(f"{path} is a NetCDF file, but not a headwise atlas.")
    version = _attribute(file, "headwise_format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _malformed(path, f"its format is {_shorten(version)}, not the number of a format")
    if version > FORMAT:
        raise AtlasError(
            f"{path} has atlas format {version}; this headwise reads up to {FORMAT}: "
            "pip install -U headwise."
        )
    digest = _attribute(file, "digest")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise _malformed(path, f"its digest is {_shorten(digest)}")
    return Header(version, digest, _provenance(path, _attribute(file, "provenance")))


def _attribute(file: h5py.File, name: str) -> object:
    """Return an attribute that is one text or number; None for anything else, which is not read."""
    if name not in file.attrs:
        return None
    shape = file.attrs.get_id(name).shape
    if shape is None or int(np.prod(shape)) != 1:
        return None
    value = file.attrs[name]
    if isinstance(value, np.ndarray):
        value = value.reshape(-1)[0]
    if isinstance(value, np.generic):
        value = value.item()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _provenance(path: Path, text: object) -> dict[str, Any]:
    if not isinstance(text, str):
        raise _malformed(path, "its provenance is not text")
    try:
        provenance = json.loads(text)
        too_deep = _depth(provenance) > MAX_DEPTH
    except RecursionError:
        too_deep = True
    except ValueError as error:
        raise _malformed(path, f"its provenance is not JSON ({error})") from error
    if too_deep:
        raise _malformed(path, f"its provenance is nested more than {MAX_DEPTH} deep")
    if not isinstance(provenance, dict):
        raise _malformed(path, f"its provenance is {_shorten(provenance)}, not a mapping")
    for key in ("model", "corpus"):
        value = provenance.get(key, {})
        if not isinstance(value, dict):
            raise _malformed(path, f"'{key}' in its provenance is {_shorten(value)}, not a mapping")
    return provenance


def _depth(value: object) -> int:
    """Return how many levels of mappings and lists are nested, without recursion."""
    depth = 0
    level = [value]
    while level:
        next_level: list[object] = []
        for item in level:
            if isinstance(item, dict):
                next_level.extend(item.values())
            elif isinstance(item, list):
                next_level.extend(item)
        if next_level:
            depth += 1
        level = next_level
    return depth


# --- the arrays -----------------------------------------------------------------------------------


def _check_arrays(path: Path, file: h5py.File, max_bytes: int | None) -> None:
    file_bytes = path.stat().st_size
    total = 0
    for number, (name, array) in enumerate(_arrays(path, file)):
        size = _memory_size(path, name, array)
        total += size
        if number >= MOST_ARRAYS:
            raise AtlasError(
                f"{path} contains more than {MOST_ARRAYS:,} arrays, which no atlas does."
            )
        if max_bytes is not None and total > max_bytes:
            raise AtlasError(
                f"{path} says that its arrays take {total:,} bytes or more ('{name}' alone "
                f"{size:,}), over the limit of {max_bytes:,}; if you trust it, call Atlas.load "
                "with a larger max_bytes."
            )
        if total > BEST_RATIO * file_bytes:
            raise _malformed(
                path,
                f"'{name}' would take {size:,} bytes, more than fit into a file of {file_bytes:,}",
            )


def _arrays(path: Path, file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield every array with its path.

    Links and groups within groups are rejected: a group may contain itself."""
    for group_name, group in _members(path, file, ""):
        if not isinstance(group, h5py.Group):
            raise _malformed(path, f"'{group_name}' is outside of every group")
        for name, array in _members(path, group, f"{group_name}/"):
            if not isinstance(array, h5py.Dataset):
                raise _malformed(
                    path, f"'{name}' is a {type(array).__name__.lower()} where an array belongs"
                )
            yield name, array


def _members(path: Path, parent: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name in parent:
        link = parent.get(name, getlink=True)  # type: ignore[call-overload]
        if not isinstance(link, h5py.HardLink):
            raise _malformed(path, f"'{prefix}{name}' is a link to another place")
        yield f"{prefix}{name}", parent[name]


def _memory_size(path: Path, name: str, array: h5py.Dataset) -> int:
    """Return the bytes an array takes in memory; reject one that is not plain or not in this file."""
    if array.shape is None:
        raise _malformed(path, f"'{name}' is empty")
    text_type = h5py.check_string_dtype(array.dtype)
    if array.dtype.kind not in "fiubS" and text_type is None:
        raise _malformed(path, f"'{name}' is of type {array.dtype}, not of numbers or texts")
    # In Python's integers, which do not overflow.
    count = 1
    for length in array.shape:
        count *= int(length)
    if is_bare_dim(array):
        return 8 * count  # it has no content, but gets the labels 0, 1, 2 …
    if array.external or array.is_virtual:
        raise _malformed(path, f"'{name}' is stored in another file")
    item_bytes: int = array.dtype.itemsize
    if text_type is not None and text_type.length is None:
        item_bytes = POINTER_BYTES
    # An array without filters is as large on the disk as it says.
    has_filters = array.id.get_create_plist().get_nfilters() > 0
    ratio = BEST_RATIO if has_filters else 1
    if count * item_bytes > ratio * array.id.get_storage_size():
        raise _malformed(path, f"'{name}' says that it has {count:,} values, more than are stored")
    return count * item_bytes


def is_bare_dim(array: h5py.Dataset) -> bool:
    """Return whether an array is a dim without labels: it has a length and no content."""
    name = array.attrs.get("NAME", b"")
    return isinstance(name, bytes) and name.startswith(BARE_DIM)


def _shorten(value: object) -> str:
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:60]}…"


def _malformed(path: Path, reason: str) -> AtlasError:
    return AtlasError(
        f"{path} is damaged or no atlas: {reason}; create it again with `headwise atlas`."
    )
