"""What a file must be before any of its data is read: a shallow tree of plain arrays no larger than
it says, with a format, a provenance and a digest."""

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
MOST_DEEP = 50  # brackets within brackets of the provenance
PACKED = 1100  # no filter of HDF5 packs tighter: deflate's best is 1 to 1032
POINTER = 16  # bytes of a text of any length, beside the text itself
BARE_DIM = b"This is a netCDF dimension but not a netCDF variable"
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself."""

    format: int
    digest: str
    provenance: dict[str, Any]


def check_file(path: Path, max_bytes: int | None = MAX_BYTES) -> Header:
    """Refuse a file that is no atlas, or whose arrays are not what an atlas holds, without reading
    the arrays.

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


# --- what it says of itself -----------------------------------------------------------------------


def _header(path: Path, file: h5py.File) -> Header:
    if "headwise_format" not in file.attrs:
        raise AtlasError(f"{path} is a NetCDF file, but not a headwise atlas.")
    given = _attribute(file, "headwise_format")
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise _malformed(path, f"its format is {_shown(given)}, which is no number of a format")
    if given > FORMAT:
        raise AtlasError(
            f"{path} has atlas format {given}; this headwise reads up to {FORMAT}: pip install --upgrade headwise."
        )
    digest = _attribute(file, "digest")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise _malformed(path, f"its digest is {_shown(digest)}")
    return Header(given, digest, _provenance(path, _attribute(file, "provenance")))


def _attribute(file: h5py.File, name: str) -> object:
    """A text or a number; None for whatever else it is, which is not read."""
    if name not in file.attrs:
        return None
    about = file.attrs.get_id(name)
    if about.shape is None or int(np.prod(about.shape)) != 1:
        return None
    value = file.attrs[name]
    if isinstance(value, np.ndarray):
        value = value.reshape(-1)[0]
    if isinstance(value, np.generic):
        value = value.item()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _provenance(path: Path, text: object) -> dict[str, Any]:
    if not isinstance(text, str):
        raise _malformed(path, "its provenance is no text")
    try:
        found = json.loads(text)
        deep = _depth(found) > MOST_DEEP
    except RecursionError:
        deep = True
    except ValueError as error:
        raise _malformed(path, f"its provenance is no JSON ({error})") from error
    if deep:
        raise _malformed(path, f"its provenance is nested more than {MOST_DEEP} deep")
    if not isinstance(found, dict):
        raise _malformed(
            path, f"its provenance is {_shown(found)}, not names with what they stand for"
        )
    for key in ("model", "corpus"):
        if not isinstance(found.get(key, {}), dict):
            raise _malformed(
                path, f"'{key}' in its provenance is {_shown(found[key])}, not names with values"
            )
    return found


def _depth(value: object) -> int:
    """How many brackets are open at the deepest place."""
    level, here = 0, [value]
    while here := [
        inner
        for outer in here
        if isinstance(outer, dict | list)
        for inner in (outer.values() if isinstance(outer, dict) else outer)
    ]:
        level += 1
    return level


# --- its arrays -----------------------------------------------------------------------------------


def _check_arrays(path: Path, file: h5py.File, max_bytes: int | None) -> None:
    stored = path.stat().st_size
    total = 0
    for number, (name, array) in enumerate(_arrays(path, file)):
        size = _size(path, name, array)
        total += size
        if number >= MOST_ARRAYS:
            raise AtlasError(f"{path} holds more than {MOST_ARRAYS:,} arrays, which no atlas does.")
        if max_bytes is not None and total > max_bytes:
            raise AtlasError(
                f"{path} says that its arrays take {total:,} bytes or more ('{name}' alone {size:,}), over the limit "
                f"of {max_bytes:,}; if it is yours, give Atlas.load a larger max_bytes."
            )
        if total > PACKED * stored:
            raise _malformed(
                path,
                f"'{name}' would take {size:,} bytes, more than can be in a file of {stored:,}",
            )


def _arrays(path: Path, file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Every array, by group and name. A group within a group (it may hold itself) or a link
    elsewhere is refused."""
    for group, holder in _members(path, file, ""):
        if not isinstance(holder, h5py.Group):
            raise _malformed(path, f"'{group}' stands outside of every group")
        for name, array in _members(path, holder, f"{group}/"):
            if not isinstance(array, h5py.Dataset):
                raise _malformed(
                    path, f"'{name}' is a {type(array).__name__.lower()} where an array belongs"
                )
            yield name, array


def _members(path: Path, holder: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name in holder:
        link = holder.get(name, getlink=True)  # type: ignore[call-overload]
        if not isinstance(link, h5py.HardLink):
            raise _malformed(path, f"'{prefix}{name}' is a link to another place")
        yield f"{prefix}{name}", holder[name]


def _size(path: Path, name: str, array: h5py.Dataset) -> int:
    """The bytes an array takes in memory, once it is known to be plain and to lie in this file."""
    if array.shape is None:
        raise _malformed(path, f"'{name}' holds nothing")
    text = h5py.check_string_dtype(array.dtype)
    if array.dtype.kind not in "fiubS" and text is None:
        raise _malformed(path, f"'{name}' is of type {array.dtype}, not of numbers or texts")
    count = 1
    for length in array.shape:
        count *= int(length)
    if is_bare_dim(array):  # it has a length and no content, and gets labels 0, 1, 2 …
        return 8 * count
    held = count * (POINTER if text is not None and text.length is None else array.dtype.itemsize)
    if array.external or array.is_virtual:
        raise _malformed(path, f"'{name}' lies in another file")
    # What is not filtered is as large on the disk as it says.
    ratio = PACKED if array.id.get_create_plist().get_nfilters() else 1
    if held > ratio * array.id.get_storage_size():
        raise _malformed(path, f"'{name}' says that it has {count:,} values, more than are stored")
    return held


def is_bare_dim(array: h5py.Dataset) -> bool:
    """Whether an array is a dim without labels: it has a length and no content."""
    name = array.attrs.get("NAME", b"")
    return isinstance(name, bytes) and name.startswith(BARE_DIM)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _malformed(path: Path, what: str) -> AtlasError:
    return AtlasError(
        f"{path} is damaged or no atlas: {what}; make it again with `headwise atlas`."
    )
