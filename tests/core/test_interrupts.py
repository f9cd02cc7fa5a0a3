"""A signal that comes in a destructor, where Python prints exceptions instead of raising them."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from headwise.core.interrupts import Interrupted, raise_if_interrupted, watching_signals


class SignalsWhenDeleted:
    """Sends a signal when it is deleted."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # Python handles signals between two steps
            pass


def test_it_is_raised_at_the_next_checkpoint_without_a_traceback(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hook that prints, not pytest's.
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    before = sys.unraisablehook
    with watching_signals():
        objects = [SignalsWhenDeleted()]
        objects.clear()
        with pytest.raises(Interrupted, match="Interrupted by SIGTERM"):
            raise_if_interrupted()
    assert sys.unraisablehook is before
    assert "Traceback" not in capfd.readouterr().err
