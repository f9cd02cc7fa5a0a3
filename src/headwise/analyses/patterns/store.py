"""Labelled maps on disk: maps as bytes in one .npz file, labels as an append-only table."""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from headwise.analyses.patterns.network import PATTERNS
from headwise.core.errors import InputError, unknown
from headwise.core.spreadsheet import as_written, inert

COLUMNS = ("id", "label", "labeller", "pass")


@dataclass(frozen=True, slots=True)
class Label:
    """The pattern that one labeller gave to one map in one pass."""

    id: str
    label: str
    labeller: str
    round: int = 1


def save_maps(path: Path, maps: Mapping[str, np.ndarray]) -> None:
    """Write maps `{id: [n, n] weights}` for `tools/label_maps`.

    Weights become bytes, `round(255 · √w)`: fine where weights are small, and never off by more
    than 0.004. The same maps give the same file."""
    stored: dict[str, np.ndarray] = {}
    for name, array in maps.items():
        weights = np.asarray(array)
        _check_square(path, name, weights)
        stored[name] = np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)
    # An .npz file is an archive of arrays, and `np.load` takes any compression that `zipfile`
    # knows: LZMA is 7 % smaller than what numpy writes.
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in stored.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_LZMA
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, values, allow_pickle=False)


def read_maps(path: Path) -> dict[str, np.ndarray]:
    """Read maps by id, as float32 weights `[n, n]`, in the order of the file."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}; give an .npz file of square maps.") from error
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise InputError(f"{path} cannot be read as an .npz file of maps ({error}).") from error
    maps = {}
    for name, array in arrays.items():
        _check_square(path, name, array)
        weights = array.astype(np.float32)
        if array.dtype == np.uint8:
            # Bytes hold the square roots of weights, see `save_maps`.
            weights = (weights / 255) ** 2
        maps[name] = weights
    return maps


def _check_square(path: Path, name: str, array: np.ndarray) -> None:
    is_square = array.ndim == 2 and array.shape[0] == array.shape[1] and array.size > 0
    if not is_square or array.dtype.kind not in "fui":
        raise InputError(
            f"{path}: map '{name}' must be a square array of numbers; it is {array.dtype} of shape "
            f"{list(array.shape)}."
        )


def typical_maps() -> dict[str, list[np.ndarray]]:
    """Return the labelled maps that come with the package, `{pattern: [weights [n, n], ...]}`, the
    most probable first."""
    with resources.as_file(resources.files("headwise.analyses.patterns") / "typical.npz") as path:
        stored = read_maps(path)
    maps: dict[str, list[np.ndarray]] = {name: [] for name in PATTERNS}
    for key in sorted(stored):
        pattern = key.split("|")[0]
        if pattern in maps:
            maps[pattern].append(stored[key])
    return maps


def shade(weights: np.ndarray) -> np.ndarray:
    """Return a map as labellers see it: the square root of the weight over the 99th percentile of
    the visible weights, at most 1."""
    is_causal = not np.triu(weights, 1).any()
    visible = weights[np.tril_indices(len(weights))] if is_causal else weights.ravel()
    darkest = max(float(np.quantile(visible, 0.99)), 1e-9)
    return np.sqrt(np.clip(weights / darkest, 0, 1))


def read_labels(path: Path, maps: Iterable[str] | None = None) -> list[Label]:
    """Read the labels of a table: for each map, labeller and pass the last row; none if its label
    is empty (undone).

    Parameters
    ----------
    path : Path
        A table with the columns `id`, `label`, `labeller`, `pass`; others are ignored.
    maps : iterable of str, optional
        The ids there are: a label for another is an error.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(
                    f"{path}, line 1: a label file needs the columns {', '.join(COLUMNS)}; "
                    f"{', '.join(missing)} is missing."
                )
            rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError as error:
        raise InputError(f"There is no label file {path}.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table of labels ({error}).") from error
    known = None if maps is None else set(maps)
    labels: dict[tuple[str, str, int], Label] = {}
    for line, row in rows:
        name = as_written(row["id"] or "")
        pattern = row["label"] or ""
        if known is not None and name not in known:
            raise InputError(
                f"{path}, line {line}: there is no map '{name}' in the maps file; "
                "give the maps these labels were made for."
            )
        if pattern and pattern not in PATTERNS:
            raise InputError(f"{path}, line {line}: {unknown('pattern', pattern, PATTERNS)}")
        labeller = as_written(row["labeller"] or "")
        try:
            label = Label(name, pattern, labeller, int(row["pass"] or 1))
        except ValueError as error:
            raise InputError(
                f"{path}, line {line}: `pass` must be a whole number; it is '{row['pass']}'."
            ) from error
        # The last row of a map counts, and takes its place in the order of rows.
        key = (label.id, label.labeller, label.round)
        labels.pop(key, None)
        if pattern:
            labels[key] = label
    return list(labels.values())


def append_label(path: Path, label: Label) -> None:
    """Append one row and flush it to disk; a new file gets its header."""
    is_new = not path.exists() or path.stat().st_size == 0
    is_torn = not is_new and not path.read_bytes().endswith((b"\n", b"\r"))
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        elif is_torn:
            # A row cut short by a crash or an editor must not swallow the next one.
            file.write("\n")
        writer.writerow([inert(label.id), label.label, inert(label.labeller), label.round])
        file.flush()
        os.fsync(file.fileno())
