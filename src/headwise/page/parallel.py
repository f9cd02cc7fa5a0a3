"""Draw the sections of a page in parallel: one forked process per core, where forking is safe."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from headwise.core.lazy import FIGURES, load
from headwise.page.sections import Drawing

Draw = Callable[[str], Drawing]
FEWEST = 4  # sections; fewer are drawn before worker processes would have started
PATIENCE = 300.0  # seconds; a section that takes longer is drawn in this process
# New objects after which a worker looks for garbage; Python's 700 are few for figures, of which a
# worker makes dozens: a seventh of its time would go there.
GARBAGE_THRESHOLD = 20_000
_PR_SET_PDEATHSIG = 1  # of Linux: send a process this signal when its parent ends
_draw_functions: list[Draw] = []  # of a worker, which inherits the function and its data by forking


@contextmanager
def draw_parallel(names: Sequence[str], draw: Draw) -> Iterator[Iterator[Drawing]]:
    """Draw all sections and iterate over the drawings, in the order of their names.

    Parameters
    ----------
    names : sequence of str
        The sections to draw.
    draw : callable
        Draws one section. Its data is in memory already, and it has no effect but its result.

    Examples
    --------
    >>> with draw_parallel(["a", "b"], lambda name: Drawing(files={name: b""})) as drawings:
    ...     [list(drawing.files) for drawing in drawings]
    [['a'], ['b']]
    """
    n_cores = 1
    if hasattr(os, "sched_getaffinity"):
        n_cores = len(os.sched_getaffinity(0))
    # Outside Linux, forking a process that has threads is unsafe or impossible.
    if min(n_cores, len(names) // 2) < 2 or len(names) < FEWEST or sys.platform != "linux":
        yield map(draw, names)
        return
    load(FIGURES)  # before forking, so that each module is imported once
    children_before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("fork")
    futures: list[Future[Drawing]] = []
    n_workers = min(n_cores, len(names))
    with ProcessPoolExecutor(n_workers, context, _start_worker, (os.getpid(), draw)) as pool:
        try:
            with warnings.catch_warnings():
                # Python warns that this process has threads; workers need none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                for name in names:
                    futures.append(pool.submit(_draw_one, name))
            yield _results(futures, names, draw)
        finally:
            # After an interruption nobody waits for the sections under way.
            if not all(future.done() for future in futures):
                for worker in set(multiprocessing.active_children()) - children_before:
                    worker.kill()


def _results(
    futures: Sequence[Future[Drawing]], names: Sequence[str], draw: Draw
) -> Iterator[Drawing]:
    for name, future in zip(names, futures, strict=True):
        try:
            yield future.result(PATIENCE)
        except (BrokenProcessPool, TimeoutError):
            # The worker was killed, perhaps for lack of memory, or hangs.
            yield draw(name)


def _start_worker(parent: int, draw: Draw) -> None:
    """Prepare a worker: it ends with its parent, leaves signals to it, and uses one thread."""
    # What the parent has made is no garbage: looking through it would also copy its memory.
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)
    _draw_functions.append(draw)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the line above took effect
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from threadpoolctl import threadpool_limits

    # Forking does not copy threads: a pool that the parent started would wait for ever.
    threadpool_limits(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _draw_one(name: str) -> Drawing:
    return _draw_functions[-1](name)
