"""A run killed with SIGKILL ends in the same bytes when repeated (`benchmarks/kill_resume.py` does it thirty times)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_killed_runs_end_in_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    sys.modules.pop("kill_resume", None)
    import kill_resume

    kill_resume.trials(kills=3, copies=3, pause=0.1, seed=1, show=False)
