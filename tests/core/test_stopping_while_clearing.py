"""A signal that comes while Python clears something away, where whatever is raised is dropped and
printed."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from headwise.core.interrupts import Interrupted, raise_if_interrupted, watching_signals


class Leaves:
    """Sends a signal as it goes."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # Python looks for signals between two steps
            pass


def test_it_stops_at_the_next_piece_without_a_traceback(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "unraisablehook", sys.__unraisablehook__
    )  # the one that prints, not pytest's
    before = sys.unraisablehook
    with watching_signals():
        held: list[Leaves] = [Leaves()]
        held.clear()
        with pytest.raises(Interrupted, match="Interrupted by SIGTERM"):
            raise_if_interrupted()
    assert sys.unraisablehook is before
    assert "Traceback" not in capfd.readouterr().err
