"""Limits of time and memory for the chat templates of tokenizers, which are programs of strangers."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_SECONDS = 10.0  # of one rendering; templates take milliseconds
MAX_MEMORY = 1 << 30  # bytes by which the process may grow meanwhile
MAX_CHARACTERS = 1 << 24  # of a rendered conversation
INTERVAL = 0.01  # seconds between two looks
_PAGE_BYTES = 4096
_STATM = Path("/proc/self/statm")


class TemplateLimitError(Exception):
    """A template takes too long, or too much memory."""


def _memory() -> int:
    """Return the memory of this process in bytes; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


@contextmanager
def limited(seconds: float = MAX_SECONDS, memory: int = MAX_MEMORY) -> Iterator[None]:
    """Raise `TemplateLimitError` in the block once it exceeds a limit.

    Another thread looks at the clock and at the memory, and raises the error between two steps of
    the Python code in the block: a template is such code, and its loops have many steps. The time
    is that of the wall, generous enough for a busy machine.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    finished = threading.Event()
    lock = threading.Lock()
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    first_memory = _memory()
    end = time.monotonic() + seconds

    def watch() -> None:
        while not finished.wait(INTERVAL):
            if time.monotonic() < end and _memory() - first_memory < memory:
                continue
            with lock:
                if not finished.is_set():
                    set_error(thread, ctypes.py_object(TemplateLimitError))
            return

    watcher = threading.Thread(target=watch, name="headwise-template", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with lock:
            finished.set()
            # An error that was set but not yet raised must not reach the code after the block.
            set_error(thread, None)
