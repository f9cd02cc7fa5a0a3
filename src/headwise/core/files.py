"""Writing files so that an interruption or a full disk never leaves half of one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from headwise.core.errors import OutputError, similar_names

# A file that is being written has such a name, beside its final one, until it is complete; the
# number is the process. The ending is headwise's own: names like `.x.json.77.tmp` are others'.
TEMPORARY_ENDING = ".headwise-tmp"
_TEMPORARY = re.compile(rf"\.(?P<name>.+)\.(?P<process>\d+){re.escape(TEMPORARY_ENDING)}")
_ENDINGS = (
    ".nc",
    ".html",
    ".md",
    ".svg",
    ".pdf",
    ".png",
    ".csv",
    ".tsv",
    ".json",
    ".checkpoint",
    ".safetensors",
)
RESERVE = 32 * 2**20  # space for what is not in an estimate: the atlas, figures, a page


def temporary_name(path: Path) -> Path:
    """Return the path where this process writes a file before it is renamed."""
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_ENDING}")


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file completely or not at all: to a temporary file, flushed to disk, then renamed."""
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
    """Return the sha256 of a file, in hex; "" if there is none, or none that can be read."""
    try:
        if not path.is_file():  # also a text that is too long for a name
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def cannot_write(path: Path, error: OSError) -> OutputError:
    """Return the error for a file that cannot be written."""
    return OutputError(
        f"{path} cannot be written ({error.strerror or error}); "
        "free some space or choose another output path.",
        option="out",
    )


def similar_path(path: Path) -> str:
    """Return a sentence that names the most similar file or folder beside a path that does not
    exist; "" if there is none."""
    try:
        # The name itself is there if it is a link that leads nowhere.
        names = [beside.name for beside in path.parent.iterdir() if beside.name != path.name]
    except (OSError, ValueError):
        return ""
    similar = similar_names(path.name, names, count=1)
    return f" Did you mean '{path.with_name(similar[0])}'?" if similar else ""


def sweep(folder: Path, name: str | None = None) -> None:
    """Delete what dead processes left half-written in a folder, of every file or of the one called
    `name`."""
    for path in folder.glob(f".*{TEMPORARY_ENDING}"):
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or path.is_dir() or alive(int(match["process"])):
            continue
        if name is None:
            ours = match["name"].endswith(_ENDINGS)
        else:
            ours = match["name"] == name
        if ours:
            path.unlink(missing_ok=True)


def alive(process: int) -> bool:
    """Return whether a process of this machine is running."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to another user
    return True


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raise an error before some work if the disk has no space for what it will write.

    Parameters
    ----------
    folder : Path
        Where it goes; it need not exist yet.
    needed : int
        Bytes, as far as they are known.
    what : str
        What they are, for the message.
    """
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed + RESERVE:
        raise OutputError(
            f"{what} need about {_size(needed + RESERVE)} in {folder}, where {_size(free)} are free; "
            "free some space or choose another output path.",
            option="out",
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def claim(path: Path, size: int) -> None:
    """Create a file of a size whose bytes the disk has reserved, so that no write into it can fail
    for lack of space."""
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


# --- the cache folder: unpacked models, parses, downloads, all of which can be made again ---------

CACHE_VARIABLE = "HEADWISE_CACHE"


def cache_dir() -> Path:
    """Return the cache folder, which need not exist yet.

    It is `HEADWISE_CACHE` if that is set, else `headwise` in `XDG_CACHE_HOME`, else
    `~/.cache/headwise`."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    user_cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not user_cache.is_absolute():  # the specification has relative paths ignored
        user_cache = Path.home() / ".cache"
    return user_cache / "headwise"
