"""A package that declares the group `headwise.analyses` and cannot be used is named.

That one which can be used is found by list, run, atlas, page and battery is tested with the worked
example of the documents, in `tests/test_docs.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwise.__main__ import main
from headwise.analyses import registry
from headwise.analyses.registry import REGISTRY, known_analyses

TAKEN = """
from headwise.analyses.contract import Observer


class Mine(Observer):
    name = "surface"
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
    registry._load_all.cache_clear()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "import no_such_module_at_all\n",
            "The analysis 'mine' of an installed package cannot be loaded",
        ),
        (TAKEN, "Two analyses are called 'surface'"),
    ],
)
def test_a_broken_package_is_named(
    site: Path,
    content: str,
    said: str,
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
    registry._load_all.cache_clear()
    monkeypatch.setattr(sys, "argv", ["headwise", "list"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
