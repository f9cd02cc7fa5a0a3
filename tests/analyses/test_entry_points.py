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
# Both in forks of one process: importing torch takes longer than all the rest.
BOTH = """
import os, sys
from pathlib import Path
import headwise.models
from headwise.__main__ import main

module, *contents = sys.argv[1:]
sys.argv[1:] = ["list"]
for content in contents:
    Path(module).write_text(content)
    child = os.fork()
    if not child:
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_broken_package_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "broken-1.dist-info").mkdir(parents=True)
    (site / "broken-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (site / "broken-1.dist-info" / "entry_points.txt").write_text("[headwise.analyses]\nmine = broken_analysis\n")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", BOTH, str(site / "broken_analysis.py"), "import no_such_module_at_all\n", TAKEN],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.split() == ["2", "2"], done.stderr
    said = " ".join(done.stderr.split())
    assert "The analysis 'mine' of an installed package cannot be loaded" in said
    assert "Two analyses are called 'surface'" in said
