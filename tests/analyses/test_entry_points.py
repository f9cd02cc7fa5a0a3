"""A package that declares the group `headwise.analyses` and cannot be used is named.

That one which can be used is found by list, run, atlas, page and battery is tested with the worked example of the
documents, in `tests/test_docs.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TAKEN = """
from headwise.analyses.contract import Observer


class Mine(Observer):
    name = "surface"
"""
COMMAND = "from headwise.cli.main import main; main()"


def python(installed: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)


def test_a_broken_package_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "broken-1.dist-info").mkdir(parents=True)
    (site / "broken-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (site / "broken-1.dist-info" / "entry_points.txt").write_text("[headwise.analyses]\nmine = broken_analysis\n")
    (site / "broken_analysis.py").write_text("import no_such_module_at_all\n")
    done = python(site, COMMAND, "list")
    assert done.returncode == 2
    assert "The analysis 'mine' of an installed package cannot be loaded" in " ".join(done.stderr.split())
    (site / "broken_analysis.py").write_text(TAKEN)
    done = python(site, COMMAND, "list")
    assert done.returncode == 2
    assert "Two analyses are called 'surface'" in " ".join(done.stderr.split())
