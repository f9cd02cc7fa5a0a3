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
    """A file that one process holds. The system lets go when the process ends, however it ends: no
    lock is stale."""

    def __init__(self, path: Path, named: Path | None = None) -> None:
        self.path = path
        self.named = named or path.parent  # what it is about, for who is refused
        self._handle: int | None = None

    def take(self) -> None:
        """Take it, or say who has it."""
        try:
            while self._handle is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
                except FileNotFoundError:
                    continue  # whoever had it removed the folder just now
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
                    os.close(
                        handle
                    )  # whoever had it removed the file meanwhile: there is a new one
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
        """Let others have it; with `remove` the file goes too, while it is held: nobody else can
        have it then."""
        if self._handle is not None:
            if remove:
                with suppress(OSError):
                    self.path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None


@contextmanager
def held(path: Path, named: Path | None = None) -> Iterator[None]:
    """A lock for as long as a block runs; its file goes afterwards."""
    lock = Lock(path, named)
    lock.take()
    try:
        yield
    finally:
        lock.release(remove=True)


def _signed(handle: int) -> bytes:
    """What the holder wrote; it is given a moment, for it signs only after it has the lock."""
    for _ in range(SIGNING_TRIES):
        if found := os.pread(handle, 4096, 0):
            return found
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
