"""Writing files so that a kill or a full disk never leaves half of one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from headwise.core.errors import OutputError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: to a neighbour first, flushed to disk, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}); free some space or choose another place with --out."
        ) from error
