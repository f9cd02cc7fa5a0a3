"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from headwise.core.errors import OutputError

SIGNING_TRIES = 200  # of ten milliseconds


class Lock:
    """A file that one process holds. The system releases it when the process ends, however it ends:
    no lock is stale.

    Parameters
    ----------
    path : Path
        The file.
    named : Path, optional
        What the lock is about, for the message to a second process; by default its folder.
    """

    def __init__(self, path: Path, named: Path | None = None) -> None:
        self.path = path
        self.named = named or path.parent
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock, or raise an error that says who holds it."""
        try:
            while self._handle is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
                except FileNotFoundError:
                    continue  # another process removed the folder just now
                if not _lock(handle):
                    held = _signed(handle)
                    os.close(handle)
                    raise OutputError(
                        f"{self.named} is in use by {_holder(held)}; wait for it to end, "
                        "or choose another output path.",
                        option="out",
                    )
                if _is_at(self.path, handle):
                    self._handle = handle
                else:
                    os.close(handle)  # another process removed the file: there is a new one
            about = {
                "host": socket.gethostname(),
                "process": os.getpid(),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, json.dumps(about).encode(), 0)
        except OSError as error:
            raise OutputError(
                f"{self.path} cannot be written ({error.strerror or error}); "
                "choose another output path.",
                option="out",
            ) from error

    def release(self, remove: bool = False) -> None:
        """Release the lock; with `remove` delete its file first, while nobody else can hold it."""
        if self._handle is not None:
            if remove:
                with suppress(OSError):
                    self.path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None


@contextmanager
def hold_lock(path: Path, named: Path | None = None) -> Iterator[None]:
    """Hold a lock for the time of a block, and delete its file afterwards."""
    lock = Lock(path, named)
    lock.take()
    try:
        yield
    finally:
        lock.release(remove=True)


def _signed(handle: int) -> bytes:
    """Return what the holder wrote into the file; it does so only after it has the lock, so this
    waits a moment."""
    for _ in range(SIGNING_TRIES):
        signature = os.pread(handle, 4096, 0)
        if signature:
            return signature
        time.sleep(0.01)
    return b""


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(held: bytes) -> str:
    try:
        about = json.loads(held)
        return f"process {about['process']} on {about['host']} since {about['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
