"""Labelled maps on disk: maps as bytes in one .npz file, labels as an append-only table."""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from headwise.analyses.patterns.network import PATTERNS
from headwise.core.errors import InputError, unknown
from headwise.core.spreadsheet import as_written, inert

COLUMNS = ("id", "label", "labeller", "pass")


@dataclass(frozen=True, slots=True)
class Label:
    """What one labeller called one map in one pass."""

    id: str
    label: str
    labeller: str
    round: int = 1


def save_maps(path: Path, maps: Mapping[str, np.ndarray]) -> None:
    """Write maps `{id: [n, n] weights}` for `tools/label_maps`.

    Weights become bytes, `round(255 · √w)`: fine where weights are small, and never off by more
    than 0.004."""
    stored: dict[str, Any] = {}
    for name, given in maps.items():
        weights = np.asarray(given)
        _check_square(path, name, weights)
        stored[name] = np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)
    np.savez_compressed(path, **stored)


def read_maps(path: Path) -> dict[str, np.ndarray]:
    """Maps by id, as float32 weights `[n, n]`, in the file's order."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}; give an .npz file of square maps.") from error
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise InputError(f"{path} cannot be read as an .npz file of maps ({error}).") from error
    for name, array in arrays.items():
        _check_square(path, name, array)
    # Bytes hold the square roots of weights, see `save_maps`.
    return {
        name: (array.astype(np.float32) / 255) ** 2
        if array.dtype == np.uint8
        else array.astype(np.float32)
        for name, array in arrays.items()
    }


def _check_square(path: Path, name: str, array: np.ndarray) -> None:
    if (
        array.ndim != 2
        or array.shape[0] != array.shape[1]
        or not array.size
        or array.dtype.kind not in "fui"
    ):
        raise InputError(
            f"{path}: map '{name}' must be a square array of numbers; it is {array.dtype} of shape {list(array.shape)}."
        )


def typical_maps() -> dict[str, list[np.ndarray]]:
    """Labelled maps that come with the package, `{pattern: [weights [n, n], ...]}`: the
    classifier's surest first."""
    with resources.as_file(resources.files("headwise.analyses.patterns") / "typical.npz") as path:
        stored = read_maps(path)
    return {
        name: [stored[key] for key in sorted(stored) if key.split("|")[0] == name]
        for name in PATTERNS
    }


def shade(weights: np.ndarray) -> np.ndarray:
    """A map as labellers see it: the square root of the weight over the 99th percentile of the
    visible, at most 1."""
    causal = not np.triu(weights, 1).any()
    visible = weights[np.tril_indices(len(weights))] if causal else weights.ravel()
    return np.sqrt(np.clip(weights / max(float(np.quantile(visible, 0.99)), 1e-9), 0, 1))


def read_labels(path: Path, maps: Iterable[str] | None = None) -> list[Label]:
    """The labels that stand: for each map, labeller and pass the last row, none where its label is
    empty (undone).

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
            lacking = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if lacking:
                needed = ", ".join(COLUMNS)
                raise InputError(
                    f"{path}, line 1: a label file needs the columns {needed}; {', '.join(lacking)} is missing."
                )
            rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError as error:
        raise InputError(f"There is no label file {path}.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table of labels ({error}).") from error
    known = None if maps is None else set(maps)
    standing: dict[tuple[str, str, int], Label] = {}
    for line, row in rows:
        name, label = as_written(row["id"] or ""), row["label"] or ""
        if known is not None and name not in known:
            raise InputError(
                f"{path}, line {line}: there is no map '{name}' in the maps file; "
                "give the maps these labels were made for."
            )
        if label and label not in PATTERNS:
            raise InputError(f"{path}, line {line}: {unknown('pattern', label, PATTERNS)}")
        try:
            found = Label(name, label, as_written(row["labeller"] or ""), int(row["pass"] or 1))
        except ValueError as error:
            raise InputError(
                f"{path}, line {line}: `pass` must be a whole number; it is '{row['pass']}'."
            ) from error
        key = (found.id, found.labeller, found.round)
        standing.pop(key, None)
        if label:
            standing[key] = found
    return list(standing.values())


def append_label(path: Path, label: Label) -> None:
    """Add one row and see it onto the disk before going on; a new file gets its header."""
    fresh = not path.exists() or path.stat().st_size == 0
    torn = not fresh and not path.read_bytes().endswith((b"\n", b"\r"))
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(COLUMNS)
        elif torn:  # a row cut short by a crash or an editor must not swallow the next one
            file.write("\n")
        writer.writerow([inert(label.id), label.label, inert(label.labeller), label.round])
        file.flush()
        os.fsync(file.fileno())
