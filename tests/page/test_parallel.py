"""Sections drawn in parallel come in order, also where a worker process ends or fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time

import pytest

from headwise.core.errors import OutputError
from headwise.page.parallel import FEWEST, draw_parallel
from headwise.page.sections import Drawing

NAMES = [f"section {number}" for number in range(FEWEST + 1)]
needs_workers = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="drawn in one process here"
)


def drawn_with_process_id(name: str) -> Drawing:
    """Return a drawing that contains the id of the process that made it."""
    return Drawing(files={name: str(os.getpid()).encode()})


def process_ids(names: list[str], draw=drawn_with_process_id) -> list[int]:
    with draw_parallel(names, draw) as drawings:
        results = list(drawings)
    ids = []
    for name, drawing in zip(names, results, strict=True):
        assert list(drawing.files) == [name]
        ids.append(int(drawing.files[name]))
    return ids


@needs_workers
def test_many_are_drawn_by_other_processes_and_few_by_this_one() -> None:
    assert os.getpid() not in process_ids(NAMES)
    assert set(process_ids(NAMES[: FEWEST - 1])) == {os.getpid()}
    assert process_ids([]) == []
    assert not multiprocessing.active_children()


@needs_workers
def test_sections_of_a_killed_worker_are_drawn_here() -> None:
    here = os.getpid()

    def ending(name: str) -> Drawing:
        if name == NAMES[2] and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return drawn_with_process_id(name)

    assert here in process_ids(NAMES, ending)


@needs_workers
def test_an_interruption_does_not_wait_for_sections_under_way() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), draw_parallel(NAMES, lambda name: time.sleep(100)):
        raise KeyboardInterrupt
    assert time.monotonic() - began < 20
    assert not multiprocessing.active_children()


def test_errors_of_workers_are_raised_here() -> None:
    def fail(name: str) -> Drawing:
        raise OutputError("no space left")

    with (
        pytest.raises(OutputError, match="no space left"),
        draw_parallel(NAMES, fail) as drawings,
    ):
        next(drawings)
