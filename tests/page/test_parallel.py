"""Sections drawn beside each other: in order, whoever draws them, whatever becomes of who does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time

import pytest

from headwise.core.errors import OutputError
from headwise.page.parallel import FEWEST, drawn_beside
from headwise.page.sections import Drawing

NAMES = [f"section {number}" for number in range(FEWEST + 1)]
beside = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="drawn in one process here"
)


def by(name: str) -> Drawing:
    """A drawing that says who made it."""
    return Drawing(files={name: str(os.getpid()).encode()})


def makers(names: list[str], draw=by) -> list[int]:
    with drawn_beside(names, draw) as drawings:
        made = list(drawings)
    assert [list(drawing.files) for drawing in made] == [[name] for name in names]
    return [int(content) for drawing in made for content in drawing.files.values()]


@beside
def test_many_are_drawn_by_other_processes_and_few_by_this_one() -> None:
    assert os.getpid() not in makers(NAMES)
    assert set(makers(NAMES[: FEWEST - 1])) == {os.getpid()}
    assert makers([]) == []
    assert not multiprocessing.active_children()


@beside
def test_what_a_process_that_ends_should_have_drawn_is_drawn_here() -> None:
    here = os.getpid()

    def ending(name: str) -> Drawing:
        if name == NAMES[2] and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return by(name)

    assert here in makers(NAMES, ending)


@beside
def test_nobody_waits_for_what_is_under_way_when_it_is_stopped() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), drawn_beside(NAMES, lambda name: time.sleep(100)):
        raise KeyboardInterrupt
    assert time.monotonic() - began < 20
    assert not multiprocessing.active_children()


def test_what_is_said_to_the_user_comes_through() -> None:
    def refused(name: str) -> Drawing:
        raise OutputError("no space left")

    with (
        pytest.raises(OutputError, match="no space left"),
        drawn_beside(NAMES, refused) as drawings,
    ):
        next(drawings)
