"""Commands killed and stopped at random moments end in the same bytes when repeated
(`benchmarks/kill_resume.py` does it 160 times, with every figure)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kill_resume.py"


@pytest.mark.slow
def test_killed_and_stopped_commands_end_in_the_same_bytes() -> None:
    # A process of its own: it forks, which one that runs threads should not.
    few = [
        "--quick",
        "--kill",
        "3",
        "--term",
        "1",
        "--int",
        "1",
        "--commands",
        "atlas,finetune",
        "--seed",
        "1",
    ]
    done = subprocess.run([sys.executable, str(BENCHMARK), *few], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "every result has the bytes of an undisturbed run" in done.stdout
