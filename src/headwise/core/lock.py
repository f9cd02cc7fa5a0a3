"""One process at a time in a folder."""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

from headwise.core.errors import OutputError


class Lock:
    """A file that one process holds. The system lets go when the process ends, however it ends: no lock is stale."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def take(self) -> None:
        """Take it, or say who has it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while self._handle is None:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
                if not _lock(handle):
                    held = os.read(handle, 4096)
                    os.close(handle)
                    raise OutputError(
                        f"{self.path.parent} is in use by {_holder(held)}; wait for it to end, or choose another --out."
                    )
                if self.path.exists() and os.stat(self.path).st_ino == os.fstat(handle).st_ino:
                    self._handle = handle
                else:
                    os.close(handle)  # whoever had it removed the file meanwhile: there is a new one
            about = {
                "host": socket.gethostname(),
                "process": os.getpid(),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, json.dumps(about).encode(), 0)
        except OSError as error:
            raise OutputError(
                f"{self.path} cannot be written ({error.strerror or error}); choose another place with --out."
            ) from error

    def release(self) -> None:
        """Let others have it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _lock(handle: int) -> bool:
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

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
