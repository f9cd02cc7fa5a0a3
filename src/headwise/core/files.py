"""Writing files so that a kill or a full disk never leaves half of one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from headwise.core.errors import OutputError

# What is being written lies beside its place under such a name until it is whole; the number is the
# process.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)\.tmp")
_ENDINGS = (
    ".nc",
    ".html",
    ".svg",
    ".pdf",
    ".png",
    ".csv",
    ".tsv",
    ".json",
    ".checkpoint",
    ".safetensors",
)
RESERVE = 32 * 2**20  # room for what is not in an estimate: the atlas, figures, a page


def temporary_name(path: Path) -> Path:
    """Where this process writes a file before it takes its place."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole or not at all: to a neighbour first, flushed to disk, then renamed."""
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:  # a signal too leaves nothing behind
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def file_digest(path: Path) -> str:
    """The sha256 of a file, in hex; "" where there is none, or none that can be read."""
    try:
        if not path.is_file():  # also a text that is too long for a name
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def cannot_write(path: Path, error: OSError) -> OutputError:
    """The sentence for a file that the system does not take."""
    return OutputError(
        f"{path} cannot be written ({error.strerror or error}); "
        "free some space or choose another output path.",
        option="out",
    )


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove what dead processes left half-written in a folder, of every file or of the one called
    `name`."""
    for path in folder.glob(".*.tmp"):
        found = _TEMPORARY.fullmatch(path.name)
        if found is None or path.is_dir() or alive(int(found["process"])):
            continue
        if found["name"] == name if name is not None else found["name"].endswith(_ENDINGS):
            path.unlink(missing_ok=True)


def alive(process: int) -> bool:
    """Whether a process of this machine is still there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


def check_space(folder: Path, needed: int, what: str) -> None:
    """Find out before some work that the disk has no room for what it will write.

    Parameters
    ----------
    folder : Path
        Where it goes; it need not exist yet.
    needed : int
        Bytes, as far as they are known.
    what : str
        What they are, for the sentence.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed + RESERVE:
        raise OutputError(
            f"{what} need about {_size(needed + RESERVE)} in {folder}, where {_size(free)} are free; "
            "free some space or choose another output path.",
            option="out",
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def claim(path: Path, size: int) -> None:
    """Make a file of a size whose bytes the disk has set aside, so that no write into it can fail
    for want of room."""
    try:
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            else:
                file.truncate(size)
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise OutputError(
            f"{path} cannot hold {_size(size)} ({error.strerror or error}); "
            "free some space or choose another output path.",
            option="out",
        ) from error
