"""What a run spends its time and memory on, by stage: a clock that stages tell when they begin and
end."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from headwise.core.context import temporarily

CLOCK: ContextVar[Clock | None] = ContextVar("headwise_clock", default=None)
DOING: ContextVar[Callable[[str], None] | None] = ContextVar(
    "headwise_doing", default=None
)  # told of every stage
SEEN: ContextVar[Callable[[int], None] | None] = ContextVar(
    "headwise_seen", default=None
)  # told of examples watched
Piece = TypeVar("Piece")
STATUS, REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(slots=True)
class Spent:
    """What a stage took: seconds of the clock on the wall and of processors, and the largest memory
    while it ran."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory: int = 0


@dataclass(slots=True)
class Clock:
    """Seconds and memory by stage; a stage within another is its own, and not part of the other's.

    Examples
    --------
    >>> clock = Clock()
    >>> with clock.running(), stage("reading"):
    ...     pass
    >>> list(clock.spent)
    ['reading']
    """

    spent: dict[str, Spent] = field(default_factory=dict)
    closed: bool = False  # whether stages within the open one are part of it
    _open: list[str] = field(default_factory=list)
    _since: tuple[float, float] = (0.0, 0.0)

    def running(self) -> AbstractContextManager[Clock | None]:
        """Make this the clock of the current context."""
        return temporarily(CLOCK, self)

    def enter(self, name: str) -> None:
        self._turn()
        self._open.append(name)

    def leave(self) -> None:
        self._turn()
        self._open.pop()

    def _turn(self) -> None:
        """Add what has passed to the stage that is open, and note the time."""
        now = time.perf_counter(), time.process_time()
        if self._open:
            own = self.spent.setdefault(self._open[-1], Spent())
            own.seconds += now[0] - self._since[0]
            own.cpu_seconds += now[1] - self._since[1]
        self._since = now


@contextmanager
def stage(name: str, memory: bool = False, whole: bool = False) -> Iterator[None]:
    """Count what is done within as one stage of the current clock, where there is one: with its
    memory, and `whole` with the stages within it."""
    clock, doing = CLOCK.get(), DOING.get()
    if doing is not None:
        doing(name)
    if clock is None or clock.closed:
        yield
        return
    clock.closed = whole
    if memory:
        forget_peak()
    clock.enter(name)
    try:
        yield
    finally:
        if memory and _on_gpu():
            torch.cuda.synchronize()  # what was started here is counted here
        clock.leave()
        clock.closed = False
        if memory:
            clock.spent[name].memory = max(clock.spent[name].memory, peak_memory())


def telling(doing: Callable[[str], None]) -> AbstractContextManager[Callable[[str], None] | None]:
    """Within it, every stage that begins is told."""
    return temporarily(DOING, doing)


class Steps:
    """How far a walk over examples is: told after every batch that is watched here, and after every
    shard, wherever it was made.

    Parameters
    ----------
    report : callable
        Told what is counted, how many are done, and how many there are.
    what : str
        What is counted.
    total : int
        How many there are.
    shard_size : int
        Examples of a shard.
    """

    def __init__(
        self, report: Callable[[str, int, int], None], what: str, total: int, shard_size: int
    ) -> None:
        self.report, self.what, self.total, self.shard_size = report, what, total, shard_size
        self._done = self._within = 0

    def following(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The same pieces; while one is waited for, batches are counted."""
        walk = iter(pieces)
        while True:
            with temporarily(SEEN, self.seen):
                piece = next(walk, None)
            if piece is None:
                return
            yield piece

    def seen(self, examples: int) -> None:
        """So many examples of the shard that is being made were watched."""
        self._within = min(self._within + examples, self.shard_size)
        self.report(self.what, min(self._done + self._within, self.total), self.total)

    def after(self, done: int) -> None:
        """A shard is done, and so many examples with it."""
        self._done, self._within = done, 0
        self.report(self.what, done, self.total)


def _on_gpu() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def forget_peak() -> None:
    """Begin anew with the largest memory, where the system can."""
    if _on_gpu():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # elsewhere than on Linux the peak is that of the whole process
        REFS.write_text("5")


def peak_memory() -> int:
    """The largest memory in bytes since it was last forgotten: of the GPU where there is one, else
    of this process."""
    if _on_gpu():
        return int(torch.cuda.max_memory_allocated())
    try:
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
