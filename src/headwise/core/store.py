"""The checkpoints of work under way: each knows which run it belongs to and whether it is intact."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import xarray as xr
from safetensors import SafetensorError
from safetensors.numpy import load, save

from headwise.core.errors import OutputError
from headwise.core.files import TEMPORARY_ENDING, write_atomically
from headwise.core.interrupts import raise_if_interrupted
from headwise.core.lock import Lock
from headwise.core.memory import return_freed_memory

Facts = Mapping[str, Any]
Note = Callable[[str], None]
CONSENT = "replace"  # a file that says that the run in a folder may replace a result
INHERITED_KEY = "adopted"  # the name of the inherited settings in files
WORK_FOLDER = ".run"  # the folder of checkpoints beside a result of several files
RUN_FILE = "run.json"  # the identity of the run in a folder, and what later runs take over


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A finished unit of work: arrays by name, and facts that JSON can hold."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


def digest_of(value: object) -> str:
    """Return a digest of anything JSON can hold, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


class CheckpointStore:
    """A folder with the checkpoints of one run.

    A checkpoint that is damaged, or of another run, counts as missing: it is computed again, with a
    note.

    Parameters
    ----------
    folder : Path
        Where the checkpoints lie. One run at a time may use it: a second one is rejected, and told
        who holds it.
    identity : Mapping
        What tells this run from others, as JSON can hold it. A run of the same identity resumes;
        one of another identity is rejected if any checkpoint is there.
    fresh : bool, default False
        Delete the checkpoints of another run, instead of rejecting this one.
    inherited : Mapping, optional
        Settings that a run takes over from the run it resumes (the number of threads, say), with
        the values for a new run. The attribute `inherited` has the values in use.
    note : callable, optional
        Called with a sentence for every checkpoint that cannot be used.
    lock : Lock, optional
        A lock on the folder that the caller holds already; taken here by default.

    Examples
    --------
    >>> import tempfile, numpy
    >>> def compute():
    ...     return {"x": numpy.arange(3)}, {"n": 3}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with CheckpointStore(Path(folder), {"model": "a"}) as store:
    ...         checkpoint = store.checkpoint("sums", compute)
    >>> checkpoint.arrays["x"].tolist(), checkpoint.facts["n"]
    ([0, 1, 2], 3)
    """

    def __init__(
        self,
        folder: Path,
        identity: Facts,
        *,
        fresh: bool = False,
        inherited: Facts | None = None,
        note: Note | None = None,
        lock: Lock | None = None,
    ) -> None:
        self.folder = folder
        self.identity = as_json(identity)
        self.run = digest_of(self.identity)
        self.inherited: dict[str, Any] = dict(inherited or {})
        self.note: Note = note or (lambda _: None)
        self._lock = lock or Lock(folder / "lock")
        self._owner = lock is None
        if self._owner:
            self._lock.take()
        try:
            self._open(fresh)
        except BaseException:
            self.close()
            raise

    # --- opening and closing ----------------------------------------------------------------------

    def _open(self, fresh: bool) -> None:
        """Resume the run in the folder, or delete it, or reject this one."""
        stored = _read_run_file(self.folder / RUN_FILE)
        if stored is not None and stored["identity"] != self.identity:
            if not fresh and self._in_the_way():
                raise OutputError(self._other_run_message(stored["identity"]), option="overwrite")
            _remove_checkpoints(self.folder)
            stored = None
        self._sweep()

        # Every checkpoint repeats the inherited settings: a lost run.json is no loss.
        if stored is None:
            earlier = self._inherited_by_checkpoints()
        else:
            earlier = stored.get(INHERITED_KEY)
        if isinstance(earlier, dict):
            for key in self.inherited.keys() & earlier.keys():
                self.inherited[key] = earlier[key]

        about: dict[str, Any] = {"identity": self.identity, INHERITED_KEY: self.inherited}
        about["digest"] = digest_of(about)
        content = json.dumps(about, indent=1, sort_keys=True).encode()
        write_atomically(self.folder / RUN_FILE, content)

    def _in_the_way(self) -> bool:
        """Return whether another run would lose something: finished work, or the consent to replace
        a result."""
        return any(self.folder.rglob("*.checkpoint")) or (self.folder / CONSENT).exists()

    def _other_run_message(self, stored: Mapping[str, Any]) -> str:
        """Return the error message for a folder with the checkpoints of another run."""
        changed = []
        for key in sorted(stored.keys() | self.identity.keys()):
            if stored.get(key) != self.identity.get(key):
                changed.append(key)
        return (
            f"{self.folder} holds an unfinished run that differs in {', '.join(changed)}; "
            "repeat that command to finish it, or pass overwrite=True to start again."
        )

    def _sweep(self) -> None:
        """Delete what an interrupted process left half-written, and scratch files."""
        for path in self.folder.glob(f".*{TEMPORARY_ENDING}"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)

    def close(self) -> None:
        """Release the folder for other processes; the checkpoints stay."""
        if self._owner:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def remove(self) -> None:
        """Delete this run's files, and nothing else in the folder."""
        _remove_checkpoints(self.folder)
        if self._owner:
            self._lock.release(remove=True)
        with suppress(OSError):
            self.folder.rmdir()

    def part(self, name: str, identity: Facts | None = None) -> CheckpointStore:
        """Return a store within this one, for a phase of the work; checkpoints of another
        `identity` are computed again."""
        inner = object.__new__(CheckpointStore)
        inner.folder = self.folder / f"{name}.part"
        inner.identity = {"run": self.run, "part": name, **as_json(identity or {})}
        inner.run = digest_of(inner.identity)
        inner.inherited = self.inherited
        inner.note = self.note
        inner._lock = self._lock
        inner._owner = False
        if inner.folder.is_dir():
            inner._sweep()
        return inner

    def scratch(self, name: str) -> Path:
        """Return the path of a file for what is too large for memory; it is deleted whenever a run
        starts, so nothing of an interrupted run is trusted."""
        path = self.folder / "scratch" / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{path.parent} cannot be made ({error.strerror or error}); "
                "choose another output path.",
                option="out",
            ) from error
        return path

    # --- checkpoints ------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.checkpoint"

    def save(
        self, name: str, arrays: Mapping[str, np.ndarray], facts: Facts | None = None
    ) -> Checkpoint:
        """Write a checkpoint atomically, and return it exactly as `load` will."""
        stored_arrays = {}
        for key in sorted(arrays):
            array = np.asarray(arrays[key])
            # A copy in C order and native bytes, which is what safetensors gives back; and whoever
            # computed the array may reuse it.
            stored_arrays[key] = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        facts_json = json.dumps(dict(facts or {}), sort_keys=True)
        about = {
            "checkpoint": name,
            "run": self.run,
            "facts": facts_json,
            INHERITED_KEY: json.dumps(self.inherited, sort_keys=True),
        }
        about["digest"] = _content_digest(stored_arrays, about)
        raise_if_interrupted()
        write_atomically(self._path(name), save(stored_arrays, metadata=about))
        return Checkpoint(stored_arrays, json.loads(facts_json))

    def load(self, name: str) -> Checkpoint | None:
        """Return a checkpoint, or None if it is missing, damaged or of another run."""
        path = self._path(name)
        if not path.exists():
            return None
        content = _read(path)
        if content is None:
            self.note(f"{path.name} is damaged and is computed again.")
            return None
        arrays, about = content
        if about.get("checkpoint") != name or about.get("run") != self.run:
            self.note(f"{path.name} belongs to other work and is computed again.")
            return None
        return Checkpoint(arrays, json.loads(about["facts"]))

    def has(self, name: str) -> bool:
        """Return whether a checkpoint is there and intact."""
        return self.load(name) is not None

    def checkpoint(
        self, name: str, compute: Callable[[], tuple[Mapping[str, np.ndarray], Facts]]
    ) -> Checkpoint:
        """Return a checkpoint; compute and save it if it is missing."""
        stored = self.load(name)
        if stored is not None:
            return stored
        checkpoint = self.save(name, *compute())
        # What was freed since the last checkpoint would add to what the next one takes.
        return_freed_memory()
        return checkpoint

    def dataset(self, name: str, compute: Callable[[], xr.Dataset]) -> xr.Dataset:
        """Return labelled arrays that have a checkpoint; compute and save them if it is missing."""
        checkpoint = self.checkpoint(name, lambda: pack_dataset(compute()))
        return unpack_dataset(checkpoint.arrays, checkpoint.facts)

    def drop(self, name: str) -> None:
        """Delete a checkpoint."""
        self._path(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of the checkpoints that are there, intact or not, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.checkpoint"))

    def _inherited_by_checkpoints(self) -> object:
        """Return the inherited settings that a checkpoint of this run has; None without one."""
        for name in self.names():
            content = _read(self._path(name))
            if content is None:
                continue
            _, about = content
            if about.get("run") == self.run:
                return json.loads(about[INHERITED_KEY])
        return None


def as_json(facts: Facts) -> dict[str, Any]:
    """Return facts as they come back from a JSON file."""
    as_read: dict[str, Any] = json.loads(json.dumps(dict(facts), sort_keys=True, default=str))
    return as_read


def _read_run_file(path: Path) -> dict[str, Any] | None:
    """Return the identity of a run and what it inherited; None where the file is lost or damaged."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(about, dict) or not isinstance(about.get("identity"), dict):
        return None
    # A flipped bit must not make this another run: a damaged file counts as lost.
    digest = about.pop("digest", None)
    if digest is not None and digest != digest_of(about):
        return None
    return about


def stored_identity(folder: Path) -> dict[str, Any] | None:
    """Return the identity of the unfinished run in a folder; None if there is none to read."""
    about = _read_run_file(folder / RUN_FILE)
    if about is None:
        return None
    identity: dict[str, Any] = about["identity"]
    return identity


def delete_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of whatever run lies in a folder, and nothing else there. A folder in
    use is rejected."""
    if folder.is_dir():
        lock = Lock(folder / "lock")
        lock.take()
        _remove_checkpoints(folder)
        lock.release(remove=True)
        with suppress(OSError):
            folder.rmdir()


def _remove_checkpoints(folder: Path) -> None:
    for part in folder.glob("*.part"):
        _remove_checkpoints(part)
    half_written = folder.glob(f".*{TEMPORARY_ENDING}")
    for path in (*folder.glob("*.checkpoint"), *half_written, folder / RUN_FILE):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    if folder.suffix == ".part":
        with suppress(OSError):
            folder.rmdir()


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]] | None:
    """Return the arrays of a checkpoint and its metadata; None unless every byte is as it was
    written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OutputError(f"{path} cannot be read ({error.strerror or error}).") from error
    try:
        unordered = load(content)
        arrays = {key: unordered[key] for key in sorted(unordered)}  # else in random order
        header_length = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + header_length])["__metadata__"]
        digest = about.pop("digest")
        if digest != _content_digest(arrays, about):
            return None
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        SafetensorError,
    ):
        return None
    return arrays, about


def _content_digest(arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for key in sorted(arrays):
        array = arrays[key]
        digest.update(f"{key}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# --- labelled arrays as arrays and facts ----------------------------------------------------------


def pack_dataset(dataset: xr.Dataset) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return a dataset as numeric arrays and JSON: texts go into the JSON."""
    arrays: dict[str, np.ndarray] = {}
    variables: dict[str, dict[str, Any]] = {}
    for key, variable in dataset.variables.items():
        values = np.asarray(variable.values)
        about: dict[str, Any] = {
            "dims": [str(dim) for dim in variable.dims],
            "attrs": _attrs_to_json(variable.attrs),
            "coord": key in dataset.coords,
        }
        if values.dtype.kind in "OUST":
            about["text"] = [str(text) for text in values.ravel().tolist()]
            about["shape"] = list(values.shape)
        else:
            arrays[str(key)] = values
        variables[str(key)] = about
    facts = {
        "variables": variables,
        "attrs": _attrs_to_json(dataset.attrs),
        "order": list(variables),
    }
    return arrays, facts


def unpack_dataset(arrays: Mapping[str, np.ndarray], facts: Facts) -> xr.Dataset:
    """Return the dataset that `pack_dataset` took apart."""
    data: dict[str, xr.Variable] = {}
    coords: dict[str, xr.Variable] = {}
    for key in facts["order"]:
        about = facts["variables"][key]
        if "text" in about:
            values = np.array(about["text"], dtype=str).reshape(about["shape"])
        else:
            values = arrays[key]
        variable = xr.Variable(about["dims"], values, _attrs_from_json(about["attrs"]))
        if about["coord"]:
            coords[key] = variable
        else:
            data[key] = variable
    return xr.Dataset(data, coords, _attrs_from_json(facts["attrs"]))


def _attrs_to_json(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return attributes as JSON can hold them: numpy numbers as numbers, arrays with their dtype."""
    as_json: dict[str, Any] = {}
    for key, value in attrs.items():
        if isinstance(value, np.ndarray):
            as_json[str(key)] = {"array": value.tolist(), "dtype": value.dtype.str}
        elif isinstance(value, np.generic):
            as_json[str(key)] = value.item()
        else:
            as_json[str(key)] = value
    return as_json


def _attrs_from_json(attrs: Mapping[str, Any]) -> dict[str, Any]:
    restored: dict[str, Any] = {}
    for key, value in attrs.items():
        if isinstance(value, dict) and "dtype" in value:
            restored[key] = np.array(value["array"], dtype=value["dtype"])
        else:
            restored[key] = value
    return restored
