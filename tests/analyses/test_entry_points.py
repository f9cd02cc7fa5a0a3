"""A package that declares the group `headwise.analyses` and cannot be used is named and left out.

That one which can be used is found by list, run, atlas, page and battery is tested with the worked
example of the documents, in `tests/test_docs.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwise.__main__ import main
from headwise.analyses import registry
from headwise.analyses.registry import REGISTRY, known_analyses, make_analysis
from headwise.core.errors import ParameterError

TAKEN = """
from headwise.analyses.contract import Observer


class Mine(Observer):
    name = "surface"
"""


HALF = """
from headwise.analyses.contract import Observer


class Mine(Observer):
    name = "half_loaded"


raise ValueError("too late")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages of which the list of analyses is made anew; afterwards all is as
    before."""
    before = known_analyses()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    monkeypatch.undo()
    REGISTRY.clear()
    REGISTRY.update(before)
    sys.modules.pop("broken_analysis", None)
    registry.LEFT_OUT.clear()
    registry._load_all.cache_clear()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import no_such_module_at_all\n", "ModuleNotFoundError"),
        ("import sys\nsys.exit(7)\n", "SystemExit: 7"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        (TAKEN, "Two analyses are called 'surface'"),
        (HALF, "ValueError: too late"),
    ],
)
def test_a_broken_package_is_named_and_left_out(
    site: Path,
    content: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (site / "broken-1.dist-info").mkdir()
    (site / "broken-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken\nVersion: 1\n"
    )
    (site / "broken-1.dist-info" / "entry_points.txt").write_text(
        "[headwise.analyses]\nmine = broken_analysis\n"
    )
    (site / "broken_analysis.py").write_text(content)
    built_in = set(known_analyses())
    registry._load_all.cache_clear()
    monkeypatch.setattr(sys, "argv", ["headwise", "list"])
    left_out = "'mine' of an installed package is left out"
    with (
        pytest.warns(RuntimeWarning, match=left_out) as warned,
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert ended.value.code == 0
    assert reason in str(warned[0].message)
    assert "surface" in capsys.readouterr().out
    assert set(known_analyses()) == built_in
    with pytest.raises(ParameterError, match="is left out, because it cannot be loaded"):
        make_analysis("mine")
