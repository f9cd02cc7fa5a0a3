"""Fixtures shared by all tests: where the real models and data are, unpacked once for a session."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

# Before numpy and torch start their threads, and for every child: where processes share the cores,
# the threads of one spin while another works.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Children find compiled what was compiled once: some machines are set up not to keep it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import hypothesis
import pytest
from _pytest.doctest import DoctestModule

sys.path.insert(
    0, str(Path(__file__).parent)
)  # what several folders of tests share lies beside this file
sys.dont_write_bytecode = False
gc.disable()  # while all is imported and collected, nearly nothing is garbage
atexit.register(gc.freeze)  # a process that ends need not look for garbage first
# A busy machine is no fault; the fuzz targets, whose point is that nothing takes long, set a limit
# of their own.
hypothesis.settings.register_profile("headwise", deadline=None)
hypothesis.settings.load_profile("headwise")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: a file goes to one process, and the longest must not be the last
    to start. (Left to itself xdist starts with the files of most tests:
    `--no-loadscope-reorder`.)"""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector of garbage need not look through it again and
    again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 10, 5)  # not as often as Python thinks best: a tenth of all time
    # Here, not above: the process that hands out the tests collects none and does without torch.
    import torch

    torch.set_num_threads(1)  # two test processes share two cores


class WithExamples:
    """Looks for doctests only in files that have any: to look, a module is imported and gone
    through."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        if (
            any(isinstance(one, DoctestModule) for one in found)
            and b">>>" not in file_path.read_bytes()
        ):
            return [one for one in found if not isinstance(one, DoctestModule)]
        return found


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        WithExamples()
    )  # not as a hook of this file, which would see tests/ alone


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for all tests of a file."""
    from browsing import running_browser

    with running_browser() as browser:
        yield browser


@pytest.fixture
def not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures without finding where everything has room, which takes as long as all the rest of
    drawing them, where that is not what is tested."""
    from headwise.plots import style

    def plain(figure: Any) -> Any:
        figure.set_layout_engine(None)
        return figure

    monkeypatch.setattr(style, "finish", plain)


@pytest.fixture
def only_svg(monkeypatch: pytest.MonkeyPatch, not_laid_out: None) -> None:
    """Figures as SVG alone and not laid out, where all three formats would be most of a test's time
    and are not what is tested."""
    from headwise.page import sections
    from headwise.plots import save_figure

    for module in (sections, import_module("headwise.experiments.reproduction.run")):
        monkeypatch.setattr(module, "FORMATS", ("svg",))
    monkeypatch.setattr(save_figure, "__defaults__", (("svg",),))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real models and data; the test is skipped where there is none."""
    given = os.environ.get("HEADWISE_SHARED")
    if not given or not Path(given).is_dir():
        pytest.skip("HEADWISE_SHARED does not point at real models and data")
    return Path(given).resolve()


def _unpacked(shared: Path, name: str, folder: Path) -> Path:
    from headwise.models.demo import unpack

    unpack(shared / "models" / name, folder)
    return folder


@pytest.fixture(scope="session")
def wiki_bert(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _unpacked(shared, "wiki-bert", tmp_path_factory.mktemp("models") / "wiki-bert")


@pytest.fixture(scope="session")
def wiki_model(wiki_bert: Path) -> Any:
    """wiki-bert, opened once for all tests that only look at it."""
    from headwise.models import HeadModel

    return HeadModel.open(wiki_bert)


@pytest.fixture(scope="session")
def stories(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _unpacked(shared, "stories15M", tmp_path_factory.mktemp("models") / "stories15M")
