"""Sections drawn beside each other: as many processes as the machine has cores, where a process can
be doubled."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from headwise.core.loaders import FIGURES, load
from headwise.page.sections import Drawing

Draw = Callable[[str], Drawing]
FEWEST = 4  # sections; fewer are drawn before others would have begun
PATIENCE = 300.0  # seconds after which a section that does not come is drawn here
_PARENT_ENDS = (
    1  # PR_SET_PDEATHSIG of Linux: the signal that a process gets when the one it stems from ends
)
_given: list[Draw] = []  # what a hand draws with: it has it from the process it is a double of


@contextmanager
def drawn_beside(names: Sequence[str], draw: Draw) -> Iterator[Iterator[Drawing]]:
    """The drawings of all names, in their order, made by `draw`.

    Parameters
    ----------
    names : sequence of str
        What to draw.
    draw : callable
        Draws one; what it needs is in memory, and it changes nothing but what it returns.

    Examples
    --------
    >>> with drawn_beside(["a", "b"], lambda name: Drawing(files={name: b""})) as drawings:
    ...     [list(drawing.files) for drawing in drawings]
    [['a'], ['b']]
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    # Elsewhere a double of a process that has threads is not safe, or there is none.
    if min(cores, len(names) // 2) < 2 or len(names) < FEWEST or sys.platform != "linux":
        yield map(draw, names)
        return
    load(FIGURES)  # before the process is doubled: modules are read once
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("fork")
    coming: list[Future[Drawing]] = []
    with ProcessPoolExecutor(min(cores, len(names)), context, _begin, (os.getpid(), draw)) as pool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", DeprecationWarning
                )  # that there are threads: none of them is needed
                coming += [pool.submit(_one, name) for name in names]
            yield _each(coming, names, draw)
        finally:
            if not all(
                future.done() for future in coming
            ):  # stopped: nobody waits for what is under way
                for hand in set(multiprocessing.active_children()) - others:
                    hand.kill()


def _each(coming: Sequence[Future[Drawing]], names: Sequence[str], draw: Draw) -> Iterator[Drawing]:
    for name, future in zip(names, coming, strict=True):
        try:
            yield future.result(PATIENCE)
        except (
            BrokenProcessPool,
            TimeoutError,
        ):  # whoever drew it was ended, for lack of memory perhaps, or hangs
            yield draw(name)


def _begin(parent: int, draw: Draw) -> None:
    """One hand: it ends with the process it stems from, leaves signals to that, and has one
    thread."""
    _given.append(draw)
    ctypes.CDLL(None).prctl(_PARENT_ENDS, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)  # the threads of the process it stems from are not here
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _one(name: str) -> Drawing:
    return _given[-1](name)
