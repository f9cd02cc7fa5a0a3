"""Protection against damaged files: a seal over the bytes of a file, and a first reading in a
subprocess for files without one.

HDF5 crashes on some damaged files and never returns on others. A file that headwise wrote ends with
a digest of its bytes, behind the last byte that HDF5 reads; if it does not match, the file is
rejected unread."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from headwise.core.errors import AtlasError

MARK = b"\nheadwise atlas sealed, sha256 of all before: "
LENGTH = len(MARK) + 64
ENOUGH_SECONDS = 10  # of processor time for a file without a seal
SECONDS_PER_MEGABYTE = 3
SPARE_BYTES = 4 << 30  # of address space, in addition to the arrays
OUT_OF_MEMORY = 9  # exit code of the subprocess
_READ_FIRST = """
import os, sys
try:
    import resource
    for kind, most in ((resource.RLIMIT_CPU, int(sys.argv[3])), (resource.RLIMIT_AS, int(sys.argv[4]))):
        resource.setrlimit(kind, (most, most) if most else resource.getrlimit(kind))
except ImportError:
    pass
from pathlib import Path
from headwise.atlas.file import read_tree
try:
    read_tree(Path(sys.argv[1]), int(sys.argv[2]) or None, first=False)
except MemoryError:
    os._exit(9)
except Exception:
    pass  # reading ends: the calling process will say what is wrong
os._exit(0)
"""


def sealed(content: bytes) -> bytes:
    """Return the bytes of a file with their seal.

    >>> with_seal = sealed(b"content")
    >>> with_seal[:7], len(with_seal) - 7 == LENGTH
    (b'content', True)
    """
    return content + MARK + hashlib.sha256(content).hexdigest().encode()


def check_seal(path: Path) -> bool:
    """Return whether a file has a seal; raise `AtlasError` if it does not match the bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - LENGTH, 0))
        end = file.read()
        if len(end) < LENGTH or not end.startswith(MARK):
            return False
        file.seek(0)
        digest = hashlib.sha256()
        n_left = size - LENGTH
        while n_left:
            block = file.read(min(n_left, 1 << 20))
            if not block:  # the file has become shorter meanwhile
                break
            digest.update(block)
            n_left -= len(block)
    if digest.hexdigest().encode() != end[len(MARK) :]:
        raise AtlasError(
            f"{path} has been changed or damaged since it was written: its seal does not match its "
            "bytes; get an intact copy, or create it again with `headwise atlas`."
        )
    return True


def try_in_subprocess(path: Path, max_bytes: int | None) -> None:
    """Read a file without a seal in a subprocess, with limits on time and memory.

    A file that crashes the subprocess or exceeds its limits is rejected; any other can be read in
    this process afterwards."""
    seconds = ENOUGH_SECONDS + SECONDS_PER_MEGABYTE * (path.stat().st_size >> 20)
    memory = 0 if max_bytes is None else 3 * max_bytes + SPARE_BYTES
    arguments = [str(path), str(max_bytes or 0), str(seconds), str(memory)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-c", _READ_FIRST, *arguments],
        env=environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if process.returncode == 0:
        return
    if process.returncode == OUT_OF_MEMORY:
        reason = "takes more memory than allowed"
    else:
        reason = f"did not end within {seconds} seconds, or crashed"
    raise AtlasError(
        f"{path} is damaged: reading it {reason}; create it again with `headwise atlas`."
    )
