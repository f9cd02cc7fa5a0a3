"""What stands between a file from somewhere and the library that reads it: a seal over its bytes,
and for files without one a first reading in a process of its own.

HDF5 does not end on some damaged files, and crashes on others. A file that headwise wrote carries a
digest of its bytes behind the last byte that HDF5 looks at; one that does not fit is refused
unread."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from headwise.core.errors import AtlasError

MARK = b"\nheadwise atlas sealed, sha256 of all before: "
LENGTH = len(MARK) + 64
ENOUGH_SECONDS, PER_MEGABYTE = 10, 3  # processor time for a file without a seal
SPARE_BYTES = 4 << 30  # address space beside what the arrays may take
OUT_OF_MEMORY = 9
_FIRST = """
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
    pass  # it ended: whoever reads it next will say what is wrong
os._exit(0)
"""


def sealed(content: bytes) -> bytes:
    """The bytes of a file with their seal.

    >>> is_sealed = sealed(b"content")
    >>> is_sealed[:7], len(is_sealed) - 7 == LENGTH
    (b'content', True)
    """
    return content + MARK + hashlib.sha256(content).hexdigest().encode()


def check_seal(path: Path) -> bool:
    """Whether the file carries a seal; one that does not fit is refused."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - LENGTH, 0))
        end = file.read()
        if len(end) < LENGTH or not end.startswith(MARK):
            return False
        file.seek(0)
        digest, left = hashlib.sha256(), size - LENGTH
        while left and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    if digest.hexdigest().encode() != end[len(MARK) :]:
        raise AtlasError(
            f"{path} has been changed or damaged since it was written: its seal does not fit its bytes; get an intact "
            "copy, or make it again with `headwise atlas`."
        )
    return True


def try_elsewhere(path: Path, max_bytes: int | None) -> None:
    """Read a file without a seal in a process of its own, with limits on time and memory; refuse
    one that does not end there or takes the process with it. What it holds is then read here."""
    seconds = ENOUGH_SECONDS + PER_MEGABYTE * (path.stat().st_size >> 20)
    memory = 0 if max_bytes is None else 3 * max_bytes + SPARE_BYTES
    given = [str(path), str(max_bytes or 0), str(seconds), str(memory)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", _FIRST, *given],
        env=environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        how = (
            "takes more memory than it may"
            if done.returncode == OUT_OF_MEMORY
            else f"did not end within {seconds} seconds, or crashed"
        )
        raise AtlasError(
            f"{path} is damaged: reading it {how}; make it again with `headwise atlas`."
        )
