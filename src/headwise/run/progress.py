"""How far the work is, and what time and memory its stages take."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from tqdm.auto import tqdm

from headwise.core.context import temporarily

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is counted, how many are done, how many in all
# Called with the number of examples of every batch that was observed in this process.
EXAMPLES_SEEN: ContextVar[Callable[[int], None] | None] = ContextVar(
    "headwise_examples_seen", default=None
)


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore how far the work is."""


@dataclass(slots=True, eq=False)
class ShardProgress:
    """Reports examples after every batch that is observed in this process, and after every shard,
    wherever it was computed.

    Parameters
    ----------
    progress : callable
        Called as `progress(what, done, total)`.
    what : str
        What is counted.
    total : int
        How many examples there are.
    shard_size : int
        Examples of a shard.
    done : int, default 0
        How many are done already.
    """

    progress: Progress
    what: str
    total: int
    shard_size: int
    done: int = 0  # in finished shards
    _in_this_shard: int = 0

    def counting(self, shards: Iterable[T]) -> Iterator[T]:
        """Yield the same shards; count the batches that are observed while one is waited for."""
        remaining = iter(shards)
        while True:
            with temporarily(EXAMPLES_SEEN, self.add_batch):
                shard = next(remaining, None)
            if shard is None:
                return
            yield shard

    def add_batch(self, n_examples: int) -> None:
        """Count the examples of a batch of the shard that is under way."""
        self._in_this_shard = min(self._in_this_shard + n_examples, self.shard_size)
        done = min(self.done + self._in_this_shard, self.total)
        self.progress(self.what, done, self.total)

    def finish_shard(self, done: int) -> None:
        """Report that so many examples are done, with the last finished shard."""
        self.done = done
        self._in_this_shard = 0
        self.progress(self.what, done, self.total)


class ProgressBars:
    """A bar for each thing that is counted, in a notebook or a terminal."""

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._bars:
            self._bars[what] = tqdm(desc=what, total=total)
        bar = self._bars[what]
        bar.total = total
        bar.update(done - bar.n)
        bar.refresh()


# --- stages: what a run spends its time and memory on ------------------------------------------

CLOCK: ContextVar[Clock | None] = ContextVar("headwise_clock", default=None)
# Called with the name of every stage that begins.
STAGE_CALLBACK: ContextVar[Callable[[str], None] | None] = ContextVar(
    "headwise_stage_callback", default=None
)
PROCESS_STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # what Linux takes in clear_refs as: forget the peak of the resident memory


@dataclass(slots=True)
class Usage:
    """What a stage took: seconds of wall-clock and processor time, and its peak memory in bytes.

    Examples
    --------
    >>> Usage(1.0, 0.5, 100) + Usage(2.0, 0.5, 50) * 3
    Usage(seconds=7.0, cpu_seconds=2.0, memory=100)
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory: int = 0

    def __add__(self, other: Usage) -> Usage:
        """Return the usage of one stage after the other."""
        return Usage(
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
            max(self.memory, other.memory),
        )

    def __mul__(self, factor: float) -> Usage:
        """Return the usage of the stage so many times, one after the other."""
        return Usage(self.seconds * factor, self.cpu_seconds * factor, self.memory)


@dataclass(slots=True)
class Clock:
    """Time and memory by stage; a stage within another one is not counted in the outer one.

    Examples
    --------
    >>> clock = Clock()
    >>> with clock.running(), stage("reading"):
    ...     pass
    >>> list(clock.usage)
    ['reading']
    """

    usage: dict[str, Usage] = field(default_factory=dict)
    closed: bool = False  # whether stages within the current one are counted in it
    _stages: list[str] = field(default_factory=list)
    _wall_time: float = 0.0
    _cpu_time: float = 0.0

    def running(self) -> AbstractContextManager[Clock | None]:
        """Make this the clock of the current context."""
        return temporarily(CLOCK, self)

    def enter(self, name: str) -> None:
        """Begin a stage."""
        self._count_until_now()
        self._stages.append(name)

    def leave(self) -> None:
        """End the current stage."""
        self._count_until_now()
        self._stages.pop()

    def so_far(self) -> Usage:
        """Return the time of all stages until now."""
        self._count_until_now()
        return sum(self.usage.values(), Usage())

    def _count_until_now(self) -> None:
        """Add the time since the last call to the current stage."""
        wall_time = time.perf_counter()
        cpu_time = time.process_time()
        if self._stages:
            usage = self.usage.setdefault(self._stages[-1], Usage())
            usage.seconds += wall_time - self._wall_time
            usage.cpu_seconds += cpu_time - self._cpu_time
        self._wall_time = wall_time
        self._cpu_time = cpu_time


@contextmanager
def stage(name: str, memory: bool = False, whole: bool = False) -> Iterator[None]:
    """Count the block as one stage of the current clock, if there is one.

    Parameters
    ----------
    name : str
        Of the stage.
    memory : bool, default False
        Measure its peak memory too.
    whole : bool, default False
        Count stages within it as part of it.
    """
    callback = STAGE_CALLBACK.get()
    if callback is not None:
        callback(name)
    clock = CLOCK.get()
    if clock is None or clock.closed:
        yield
        return
    clock.closed = whole
    if memory:
        reset_peak_memory()
    clock.enter(name)
    try:
        yield
    finally:
        if memory and _on_gpu():
            torch.cuda.synchronize()  # what was started in this stage is counted in it
        clock.leave()
        clock.closed = False
        if memory:
            usage = clock.usage[name]
            usage.memory = max(usage.memory, peak_memory())


def report_stages(
    callback: Callable[[str], None],
) -> AbstractContextManager[Callable[[str], None] | None]:
    """Call a function with the name of every stage that begins within a block."""
    return temporarily(STAGE_CALLBACK, callback)


def _on_gpu() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def reset_peak_memory() -> None:
    """Forget the peak memory so far, where the system can."""
    if _on_gpu():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # elsewhere than on Linux the peak is that of the whole process
        CLEAR_REFS.write_text(RESET_PEAK)


def resident_memory() -> int:
    """Return the memory in use now, in bytes: of the GPU if there is one, else of this process."""
    if _on_gpu():
        return int(torch.cuda.memory_allocated())
    return _process_status("VmRSS")


def peak_memory() -> int:
    """Return the peak memory in bytes since it was reset: of the GPU if there is one, else of this
    process."""
    if _on_gpu():
        return int(torch.cuda.max_memory_allocated())
    return _process_status("VmHWM")


def _process_status(field: str) -> int:
    """Return a number of bytes that Linux knows of this process; elsewhere the peak."""
    try:
        for line in PROCESS_STATUS.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
