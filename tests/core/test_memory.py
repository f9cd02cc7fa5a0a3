"""Memory that is freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
from headwise.core.memory import return_freed_memory

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

# Once a large array was freed, glibc takes arrays of up to its size from the heap.
del_me = np.ones(30 << 20, np.uint8)
del del_me
arrays = [np.ones(1 << 20, np.uint8) for _ in range(200)]
last = np.ones(1 << 20, np.uint8)  # lies above the others, and keeps the heap from shrinking
del arrays
before = resident()
return_freed_memory()
print((before - resident()) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory so")
def test_freed_memory_goes_back_to_the_system() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) > 150  # of 200 MiB
