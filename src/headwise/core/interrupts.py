"""What stops work before its end: SIGINT and SIGTERM, at once, and a deadline. One sentence says
whether it can resume."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import FrameType

from headwise.core.context import temporarily

SIGNALS = {"SIGINT": 130, "SIGTERM": 143}  # and the exit codes a shell expects of them
_jobs_kept: list[object] = []  # the jobs under way whose finished work lies on disk


class Interrupted(BaseException):
    """A signal came. It is no `Exception`, so that no code takes it for a failure of its own.

    Its sentence promises that work is kept only while a job keeps some."""

    def __init__(self, name: str) -> None:
        sentence = f"Interrupted by {name}"
        if _jobs_kept:
            sentence += "; finished work is kept: repeat the command to resume"
        super().__init__(f"{sentence}.")
        self.code = SIGNALS[name]


@contextmanager
def keeping_work(job: object) -> Iterator[None]:
    """Say, within this block, that the finished work of a job survives an interruption."""
    _jobs_kept.append(job)
    try:
        yield
    finally:
        _jobs_kept.remove(job)


_received: list[Interrupted] = []  # the signal that came and was raised


@contextmanager
def watching_signals() -> Iterator[None]:
    """Raise `Interrupted` in the main thread on SIGINT and SIGTERM; end the process on a second
    one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.signal(getattr(signal, name), _stop) for name in SIGNALS}
    hook = sys.unraisablehook

    def ignore_interrupted(unraisable: sys.UnraisableHookArgs) -> None:
        # One that came in a destructor cannot be raised there: `raise_if_interrupted` does later.
        if not isinstance(unraisable.exc_value, Interrupted):
            hook(unraisable)

    sys.unraisablehook = ignore_interrupted
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
        _received.clear()


def _stop(number: int, frame: FrameType | None) -> None:
    interrupted = Interrupted(signal.Signals(number).name)
    if _received:  # the first one was swallowed, or cleaning up takes too long
        say(str(interrupted))
        os._exit(interrupted.code)
    _received.append(interrupted)
    raise interrupted


class TimeIsUp(BaseException):
    """The time that work was given has passed. Like `Interrupted` it is no `Exception`."""


_deadline: ContextVar[float | None] = ContextVar("headwise_deadline", default=None)
_concluding: ContextVar[bool] = ContextVar("headwise_concluding", default=False)


def stopping_at(deadline: float | None) -> AbstractContextManager[float | None]:
    """Have `raise_if_interrupted` raise `TimeIsUp` in a block, once `time.monotonic()` has come to a
    deadline; None for no deadline."""
    return temporarily(_deadline, deadline)


def concluding() -> AbstractContextManager[bool]:
    """Let a block, which writes what is finished after work was stopped, come to its end: neither
    the signal that came nor the deadline is raised again in it.

    A second signal ends the process all the same."""
    return temporarily(_concluding, True)


def raise_if_interrupted() -> None:
    """Raise `Interrupted` if a signal came and was swallowed, by a callback of a library, say; raise
    `TimeIsUp` after the deadline of `stopping_at`."""
    if _concluding.get():
        return
    if _received:
        raise _received[0]
    deadline = _deadline.get()
    if deadline is not None and time.monotonic() >= deadline:
        raise TimeIsUp


def say(sentence: str) -> None:
    """Write a sentence on a line of its own, also if stderr was interrupted while it wrote."""
    line = f"{chr(10) if sys.stderr.isatty() else ''}headwise: {sentence}\n"
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except RuntimeError:
        os.write(2, line.encode())
