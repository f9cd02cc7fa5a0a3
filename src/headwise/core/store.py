"""The one store of work under way: finished pieces that know which run they belong to and whether
they are whole."""

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
from headwise.core.files import write_atomically
from headwise.core.interrupts import raise_if_interrupted
from headwise.core.lock import Lock

Facts = Mapping[str, Any]
Say = Callable[[str], None]
CONSENT = "replace"  # a file that says that the run in a folder may replace a result


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A finished piece of work: arrays by name, and facts that JSON can hold."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


def digest_of(value: object) -> str:
    """A digest of anything JSON can hold, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


class CheckpointStore:
    """A folder of finished pieces of one run.

    A piece that is damaged, or of another run, counts as not there: it is made again, and that is
    said.

    Parameters
    ----------
    folder : Path
        Where the pieces lie. One run at a time may have it: a second is refused with who holds it.
    identity : Mapping
        What tells this run from others, as JSON can hold it. The same identity goes on with what is
        there, another one is refused where any piece is finished.
    fresh : bool, default False
        Start anew where another run's pieces lie there, instead of refusing.
    adopt : Mapping, optional
        What this run takes over from the run it goes on with (the number of threads, say); see
        `adopted`.
    say : callable, optional
        Told in a sentence of every piece that could not be used.

    Examples
    --------
    >>> import tempfile, numpy
    >>> with tempfile.TemporaryDirectory() as folder, CheckpointStore(Path(folder), {"model": "a"}) as store:
    ...     piece = store.piece("sums", lambda: ({"x": numpy.arange(3)}, {"n": 3}))
    >>> piece.arrays["x"].tolist(), piece.facts["n"]
    ([0, 1, 2], 3)
    """

    def __init__(
        self,
        folder: Path,
        identity: Facts,
        *,
        fresh: bool = False,
        adopt: Facts | None = None,
        say: Say | None = None,
    ) -> None:
        self.folder = folder
        self.identity = _as_json(identity)
        self.run = digest_of(self.identity)
        self.adopted: dict[str, Any] = dict(adopt or {})
        self.say: Say = say or (lambda _: None)
        self._lock = Lock(folder / "lock")
        self._owner = True
        self._lock.take()
        try:
            stored = _read_note(self._note)
            if stored is not None and stored.get("identity") != self.identity:
                if not fresh and self._in_the_way():
                    raise OutputError(self._another(stored.get("identity")), option="overwrite")
                _remove_pieces(self.folder)
                stored = None
            self._sweep()
            adopted = stored.get("adopted") if stored is not None else self._adopted_by_pieces()
            if isinstance(adopted, dict):
                self.adopted |= {
                    key: value for key, value in adopted.items() if key in self.adopted
                }
            note: dict[str, Any] = {"identity": self.identity, "adopted": self.adopted}
            note["digest"] = digest_of(note)
            write_atomically(self._note, json.dumps(note, indent=1, sort_keys=True).encode())
        except BaseException:
            self._lock.release()
            raise

    # --- opening and closing ----------------------------------------------------------------------

    def _in_the_way(self) -> bool:
        """Whether another run would lose something: finished pieces, or the consent to replace a
        result."""
        return any(self.folder.rglob("*.piece")) or (self.folder / CONSENT).exists()

    @property
    def _note(self) -> Path:
        return self.folder / "run.json"

    def _another(self, other: object) -> str:
        known = other if isinstance(other, dict) else {}
        changed = sorted(
            key
            for key in known.keys() | self.identity.keys()
            if known.get(key) != self.identity.get(key)
        )
        return (
            f"{self.folder} holds an unfinished run that differs in {', '.join(changed)}; "
            "repeat that command to finish it, or pass overwrite=True to start again."
        )

    def _sweep(self) -> None:
        """What a killed process left half-written, and what is never believed."""
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)

    def close(self) -> None:
        """Let others have the folder; the pieces stay."""
        if self._owner:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def remove(self) -> None:
        """Delete this run's files, and nothing else in the folder."""
        _remove_pieces(self.folder)
        if self._owner:
            self._lock.release(remove=True)
        with suppress(OSError):
            self.folder.rmdir()

    def part(self, name: str, identity: Facts | None = None) -> CheckpointStore:
        """A store within this one, for the phases of one experiment; pieces of another `identity`
        are made again."""
        inner = object.__new__(CheckpointStore)
        inner.folder, inner.adopted, inner.say = (
            self.folder / f"{name}.part",
            self.adopted,
            self.say,
        )
        inner.identity = {"run": self.run, "part": name, **_as_json(identity or {})}
        inner.run = digest_of(inner.identity)
        inner._lock, inner._owner = self._lock, False
        if inner.folder.is_dir():
            inner._sweep()
        return inner

    def scratch(self, name: str) -> Path:
        """The path of a file for what is too large for memory: gone whenever a run starts, so it is
        never believed."""
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

    # --- pieces -----------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.piece"

    def save(self, name: str, arrays: Mapping[str, np.ndarray], facts: Facts | None = None) -> None:
        """Write a piece, whole or not at all."""
        kept = {key: np.asarray(array, order="C") for key, array in arrays.items()}
        about = {
            "piece": name,
            "run": self.run,
            "facts": json.dumps(dict(facts or {}), sort_keys=True),
            "adopted": json.dumps(self.adopted, sort_keys=True),
        }
        raise_if_interrupted()
        write_atomically(
            self._path(name), save(kept, metadata=about | {"digest": _content_digest(kept, about)})
        )

    def load(self, name: str) -> Checkpoint | None:
        """A piece, or None where it is not there, is damaged or belongs to another run."""
        path = self._path(name)
        if not path.exists():
            return None
        found = _read(path)
        if found is None:
            self.say(f"{path.name} is damaged: it is made again.")
            return None
        arrays, about = found
        if about["piece"] != name or about["run"] != self.run:
            self.say(f"{path.name} belongs to another run or another place: it is made again.")
            return None
        return Checkpoint(arrays, json.loads(about["facts"]))

    def has(self, name: str) -> bool:
        """Whether a piece is there and whole."""
        return self.load(name) is not None

    def piece(
        self, name: str, make: Callable[[], tuple[Mapping[str, np.ndarray], Facts]]
    ) -> Checkpoint:
        """A piece, made now where it is not there."""
        found = self.load(name)
        if found is None:
            self.save(name, *make())
            found = self.load(name)
            if found is None:
                raise OutputError(
                    f"{self._path(name)} was changed while it was written; see what else writes to {self.folder}."
                )
        return found

    def dataset(self, name: str, make: Callable[[], xr.Dataset]) -> xr.Dataset:
        """Labelled arrays as a piece, made now where they are not there; either way what is
        returned was on disk."""
        piece = self.piece(name, lambda: pack_dataset(make()))
        return unpack_dataset(piece.arrays, piece.facts)

    def drop(self, name: str) -> None:
        """Forget a piece."""
        self._path(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """The pieces that are there, whole or not, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.piece"))

    def _adopted_by_pieces(self) -> object:
        """What a piece of this run says was adopted: a lost run.json is no loss."""
        found = (_read(self._path(name)) for name in self.names())
        return next(
            (
                json.loads(about["adopted"])
                for _, about in filter(None, found)
                if about["run"] == self.run
            ),
            None,
        )


def _as_json(facts: Facts) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dict(facts), sort_keys=True, default=str))
    return found


def _read_note(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("identity"), dict):
        return None
    digest = found.pop(
        "digest", None
    )  # a flipped bit makes no other run of this one: a note that is damaged is lost
    return found if digest in (None, digest_of(found)) else None


def stored_identity(folder: Path) -> dict[str, Any] | None:
    """The identity of the unfinished run in a folder, as its note says; None where there is none to
    read."""
    note = _read_note(folder / "run.json")
    return None if note is None else note["identity"]


def reopen(folder: Path) -> CheckpointStore:
    """The store of the work that lies in a folder, as it is: for what comes after the work, which
    goes on with it."""
    note = _read_note(folder / "run.json")
    if note is None:
        raise OutputError(
            f"{folder} holds no work that can be read; repeat the command that made it."
        )
    return CheckpointStore(folder, note["identity"], adopt=note.get("adopted"))


def delete_checkpoints(folder: Path) -> None:
    """Delete the pieces of whatever run lies in a folder, and nothing else there. A folder in use
    is refused."""
    if folder.is_dir():
        lock = Lock(folder / "lock")
        lock.take()
        _remove_pieces(folder)
        lock.release(remove=True)
        with suppress(OSError):
            folder.rmdir()


def _remove_pieces(folder: Path) -> None:
    for part in folder.glob("*.part"):
        _remove_pieces(part)
    for path in (*folder.glob("*.piece"), *folder.glob(".*.tmp"), folder / "run.json"):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    if folder.suffix == ".part":
        with suppress(OSError):
            folder.rmdir()


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]] | None:
    """The arrays of a piece and what it says of itself; None where not every byte is as it was
    written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OutputError(f"{path} cannot be read ({error.strerror or error}).") from error
    try:
        found = load(content)
        arrays = {
            key: found[key] for key in sorted(found)
        }  # safetensors gives them in another order every time
        length = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + length])["__metadata__"]
        digest = about.pop("digest")
        return (arrays, about) if digest == _content_digest(arrays, about) else None
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


def _content_digest(arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for key in sorted(arrays):
        array = arrays[key]
        digest.update(f"{key}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# --- labelled arrays as arrays and facts ----------------------------------------------------------


def pack_dataset(dataset: xr.Dataset) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A dataset as numeric arrays and JSON: texts go into the JSON."""
    arrays: dict[str, np.ndarray] = {}
    variables = {}
    for key, variable in dataset.variables.items():
        values = np.asarray(variable.values)
        about: dict[str, Any] = {
            "dims": list(map(str, variable.dims)),
            "attrs": _plain(variable.attrs),
            "coord": key in dataset.coords,
        }
        if values.dtype.kind in "OUST":
            about |= {
                "text": [str(text) for text in values.ravel().tolist()],
                "shape": list(values.shape),
            }
        else:
            arrays[str(key)] = values
        variables[str(key)] = about
    return arrays, {
        "variables": variables,
        "attrs": _plain(dataset.attrs),
        "order": list(variables),
    }


def unpack_dataset(arrays: Mapping[str, np.ndarray], facts: Facts) -> xr.Dataset:
    """The dataset that `pack_dataset` took apart."""
    data: dict[str, xr.Variable] = {}
    coords: dict[str, xr.Variable] = {}
    for key in facts["order"]:
        about = facts["variables"][key]
        values = (
            np.array(about["text"], dtype=str).reshape(about["shape"])
            if "text" in about
            else arrays[key]
        )
        (coords if about["coord"] else data)[key] = xr.Variable(
            about["dims"], values, _lively(about["attrs"])
        )
    return xr.Dataset(data, coords, _lively(facts["attrs"]))


def _plain(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as JSON: numbers of numpy as numbers, arrays with their type."""
    found: dict[str, Any] = {}
    for key, value in attrs.items():
        if isinstance(value, np.ndarray):
            found[str(key)] = {"array": value.tolist(), "dtype": value.dtype.str}
        else:
            found[str(key)] = value.item() if isinstance(value, np.generic) else value
    return found


def _lively(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: np.array(value["array"], dtype=value["dtype"])
        if isinstance(value, dict) and "dtype" in value
        else value
        for key, value in attrs.items()
    }
