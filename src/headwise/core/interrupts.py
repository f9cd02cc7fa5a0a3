"""SIGINT and SIGTERM: whatever is under way stops at once, and one sentence says how to go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = {"SIGINT": 130, "SIGTERM": 143}  # and the exit codes a shell expects of them
SENTENCE = "Interrupted by {name}; finished work is kept: repeat the command to resume."


class Interrupted(BaseException):
    """A signal came. It is no `Exception`, so that nothing takes it for a failure of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(SENTENCE.format(name=name))
        self.code = SIGNALS[name]


_asked: list[Interrupted] = []  # what came and was raised


@contextmanager
def watching_signals() -> Iterator[None]:
    """Within, SIGINT and SIGTERM raise `Interrupted` in the main thread; a second one ends the
    process there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.signal(getattr(signal, name), _stop) for name in SIGNALS}
    hook = sys.unraisablehook

    def quiet(found: sys.UnraisableHookArgs) -> None:
        if not isinstance(
            found.exc_value, Interrupted
        ):  # which came while something was cleared away: `heed` raises it
            hook(found)

    sys.unraisablehook = quiet
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
        _asked.clear()


def _stop(number: int, frame: FrameType | None) -> None:
    stopped = Interrupted(signal.Signals(number).name)
    if _asked:  # whoever runs now did not let the first one through, or cleans up for too long
        say(str(stopped))
        os._exit(stopped.code)
    _asked.append(stopped)
    raise stopped


def raise_if_interrupted() -> None:
    """Stop here if a signal came and whatever ran then has swallowed it (a callback of a library,
    say)."""
    if _asked:
        raise _asked[0]


def say(sentence: str) -> None:
    """The sentence on a line of its own, also where the stream was interrupted while it wrote."""
    line = f"{chr(10) if sys.stderr.isatty() else ''}headwise: {sentence}\n"
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except RuntimeError:
        os.write(2, line.encode())
