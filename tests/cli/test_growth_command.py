"""`headwise atlas` in rounds: what lies in the folder at any time, stopped by a signal, a kill or its
minutes, and what it never replaces."""

from __future__ import annotations

import json
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from headwise import Atlas
from headwise import plots as plots_module
from headwise.analyses.distance.analysis import Distance
from headwise.cli import atlas as atlas_command
from headwise.core import files as files_module
from headwise.core import output as output_module
from headwise.page import report as report_module
from headwise.page import sections as sections_module
from headwise.plots.registry import FigureSpec
from headwise.run import growth as growth_module
from headwise.run import job as job_module
from headwise.run import plan as plan_module
from headwise.run import runner as runner_module

LINES = [
    "the cat saw a dog .",
    "a dog sleeps .",
    "the dog saw the cat , the dog sleeps",
    "a cat saw the dog , a cat sleeps",
    "the cat sleeps .",
]
MACHINERY = ("unfinished", "status.json", "connect-src", "reload")


def everything(folder: Path) -> dict[str, bytes]:
    """All files below a folder, with their bytes."""
    contents = {}
    for path in folder.rglob("*"):
        if path.is_file():
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def plain_figure(*_: object, **__: object) -> Figure:
    return Figure(figsize=(1, 1))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of two examples, a round after each of them, and one empty figure of each analysis."""
    monkeypatch.setattr(plan_module, "SHARD_SIZE", 2)
    monkeypatch.setattr(growth_module, "MOST_TIME_IN_ROUNDS", 1.0)
    monkeypatch.setattr(sections_module, "FORMATS", ("svg",))
    plain = FigureSpec("", "plain", "Plain", "", "", plain_figure)
    for place in (sections_module, plots_module):
        monkeypatch.setattr(place, "figures_for", lambda group: [plain])
    for name in ("draw_heads", "draw_all_maps"):
        monkeypatch.setattr(sections_module, name, plain_figure)


@pytest.fixture
def atlas(headwise, model_folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """`headwise atlas` with three analyses into a folder of tmp_path."""
    corpus = tmp_path / "toy.txt"
    corpus.write_text("\n\n".join(LINES) + "\n")

    def call(folder: str, *more: object, analyses: str = "surface,offsets,distance") -> Any:
        place = ("--corpus", corpus, "--out", tmp_path / folder)
        return headwise("atlas", model_folder, *place, "--analyses", analyses, *more)

    return call


@pytest.fixture
def whole(atlas, tmp_path: Path) -> dict[str, bytes]:
    """The files of an atlas that was made in one round."""
    assert atlas("whole", "--rounds", 1).code == 0
    return everything(tmp_path / "whole")


class Killed(BaseException):
    """Ends a command as SIGKILL would: nothing is written after it."""


def stop_in(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, how: Any) -> None:
    """A signal comes, or the process ends, when a function is called."""
    original = getattr(owner, name)

    def stopping(*arguments: object, **more: object) -> object:
        if isinstance(how, signal.Signals):
            signal.raise_signal(how)
        else:
            raise how
        return original(*arguments, **more)

    monkeypatch.setattr(owner, name, stopping)


def test_the_finished_folder_is_the_same_in_any_number_of_rounds(
    atlas, whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []
    original = report_module.write_page

    def noting(path: Path, **content: Any) -> None:
        original(path, **content)
        pages.append(path.read_text())
        assert Atlas.load(path.parent).digest  # of every state

    monkeypatch.setattr(report_module, "write_page", noting)
    grown = atlas("grown")
    assert grown.code == 0
    assert f"First page: {tmp_path / 'grown' / 'index.html'}, which grows" in grown.out
    assert len(pages) >= 5
    for page in pages[:-2]:
        assert "This atlas is not finished" in page
    assert "2 of 5 examples of toy" in pages[0]
    assert "Still to come: Families of heads." in pages[0]
    assert "2 of 5 so far" in pages[0]
    assert "all numbers on this page are final" in pages[-2]
    for word in MACHINERY:
        assert word not in pages[-1]
    assert everything(tmp_path / "grown") == whole


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_an_atlas_and_its_page(
    atlas, whole, headwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any, code: int
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop_in(patch, Distance, "observe_batch", how)
        stopped = atlas("out")
    assert stopped.code == code
    assert stopped.err.count("repeat the command to resume") == 1
    assert "has 2 of 3 analyses, 2 of them finished. The same command continues." in stopped.out
    left = Atlas.load(out)
    assert list(left) == ["offsets", "surface"]
    assert left.provenance["unfinished"]["examples"] == {"toy": [5, 5]}
    page = (out / "index.html").read_text()
    assert "The run was stopped by a signal: repeat its command to continue." in page
    assert "status.json" not in page

    # What lies there can be drawn, and compared with others; the run is not put aside for it.
    assert headwise("page", out, "--overwrite").code == 0
    page = (out / "index.html").read_text()
    assert "This atlas is not finished" in page
    assert "Figures by paper" in page
    assert atlas("out").code == 0
    assert everything(out) == whole


def test_killed_at_any_write_it_resumes_to_the_same_bytes(
    atlas, whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after every file that gets its name."""
    out = tmp_path / "out"
    original = files_module.os.replace
    stops = 0
    for number in range(0, 400, 3):
        written = [0]

        def replace(source: Any, target: Any, written=written, number=number) -> None:
            if written[0] == number:
                if number % 2:
                    original(source, target)
                raise Killed
            written[0] += 1
            original(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(files_module.os, "replace", replace)
            # No clean-up either: what is half-written stays.
            try:
                ended = atlas("out")
            except Killed:
                stops += 1
                if (out / "atlas.nc").exists():
                    Atlas.load(out)
                continue
        assert ended.code == 0, ended.err
        break
    assert stops > 5
    assert everything(out) == whole


def test_after_its_minutes_the_command_ends_well_and_continues_when_repeated(
    atlas, whole, tmp_path: Path
) -> None:
    stopped = atlas("out", "--minutes", "0")
    assert stopped.code == 0
    assert "Stopped after 0 minutes" in stopped.out
    assert "has 2 of 3 analyses, 0 of them finished" in stopped.out
    assert Atlas.load(tmp_path / "out").provenance["unfinished"]["to_come"] == {
        "distance": "Families of heads"
    }
    assert "stopped after 0 minutes" in (tmp_path / "out" / "index.html").read_text()
    assert atlas("out").code == 0
    assert everything(tmp_path / "out") == whole


def test_minutes_that_are_over_while_figures_are_drawn(
    atlas, whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # The work is done, and then the time is up.
        original = runner_module.Run.atlas

        def until_now(self: Any) -> Atlas:
            finished = original(self)
            self.deadline = 0.0
            return finished

        patch.setattr(runner_module.Run, "atlas", until_now)
        stopped = atlas("out", "--minutes", "60")
    assert stopped.code == 0, stopped.err
    assert "its figures are not all drawn. Repeat the command to continue." in stopped.out
    assert (tmp_path / "out" / "atlas.nc").read_bytes() == whole["atlas.nc"]
    assert "all numbers on this page are final" in (tmp_path / "out" / "index.html").read_text()
    assert atlas("out").code == 0
    assert everything(tmp_path / "out") == whole


def test_a_finished_atlas_is_replaced_only_with_consent(
    atlas, whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert atlas("out", analyses="surface").code == 0
    before = everything(tmp_path / "out")
    refused = atlas("out")
    assert refused.code == 2
    assert "exists; pass overwrite=True" in refused.err
    assert everything(tmp_path / "out") == before

    with monkeypatch.context() as patch:
        stop_in(patch, Distance, "observe_batch", signal.SIGTERM)
        assert atlas("out", "--overwrite").code == 143
    assert "unfinished" in Atlas.load(tmp_path / "out").provenance
    assert not list((tmp_path / "out" / "figures").glob("*"))  # those of the atlas that was there
    # Another run does not take the place of an unfinished one unasked.
    other = atlas("out", analyses="offsets")
    assert other.code == 2
    assert "unfinished run that differs in analyses" in other.err
    # Consent was given once, for all of this run.
    assert atlas("out").code == 0
    assert everything(tmp_path / "out") == whole


def test_a_file_that_was_put_there_meanwhile_is_not_replaced(
    atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_in(patch, Distance, "observe_batch", signal.SIGTERM)
        assert atlas("out").code == 143
    target = tmp_path / "out" / "atlas.nc"
    target.write_bytes(b"mine")
    refused = atlas("out")
    assert refused.code == 2
    assert "exists; pass overwrite=True" in refused.err
    assert target.read_bytes() == b"mine"


def test_a_run_that_resumes_never_shows_less_than_before(
    atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_in(patch, Distance, "observe_batch", signal.SIGTERM)
        assert atlas("out").code == 143
    before = (tmp_path / "out" / "atlas.nc").read_bytes()
    written: list[float] = []
    original = job_module.Job.write_unfinished

    def noting(self: Any, content: bytes, done: float) -> bool:
        result = original(self, content, done)
        examples = Atlas.load(tmp_path / "out").provenance["unfinished"]["examples"]
        assert examples == {"toy": [5, 5]}
        written.append(done)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(job_module.Job, "write_unfinished", noting)
        stop_in(patch, Distance, "observe_batch", signal.SIGTERM)
        assert atlas("out").code == 143
    assert len(written) > 1  # rounds of what was there before
    assert Atlas.load(tmp_path / "out").digest
    assert len(before)


def test_the_note_of_what_is_written_comes_before_it(
    atlas, whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends between the two has left a file that it may replace."""
    with monkeypatch.context() as patch:
        calls = [0]
        original = output_module.OutputTarget.write

        def write(self: Any, *arguments: Any) -> str:
            digest = original(self, *arguments)
            calls[0] += 1
            if calls[0] == 2:
                raise Killed
            return digest

        patch.setattr(output_module.OutputTarget, "write", write)
        with pytest.raises(Killed):
            atlas("out")
    assert atlas("out").code == 0
    assert everything(tmp_path / "out") == whole


def test_a_served_atlas_tells_its_page_of_every_round(
    atlas, whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[str] = []
    versions: list[str] = []
    pages: list[str] = []

    def fetched(name: str) -> str:
        with urllib.request.urlopen(addresses[0] + name, timeout=10) as answer:
            return answer.read().decode()

    def say(line: str) -> None:
        found = re.search(r"http://\S+/", line)
        if found:
            addresses.append(found[0])
            assert "as soon as the first round is done" in fetched("")

    original = atlas_command._GrowingAtlas._write_page

    def write_page(self: Any, shown: Atlas, live: bool) -> None:
        original(self, shown, live)
        versions.append(json.loads(fetched("status.json"))["version"])
        pages.append(fetched(""))

    def after_the_end(_: float) -> None:
        if threading.current_thread() is threading.main_thread():
            versions.append(json.loads(fetched("status.json"))["version"])
            pages.append(fetched("index.html"))
            with pytest.raises(urllib.error.HTTPError):
                fetched(".run/run.json")
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(atlas_command, "_say", say)
    monkeypatch.setattr(atlas_command._GrowingAtlas, "_write_page", write_page)
    monkeypatch.setattr(atlas_command.time, "sleep", after_the_end)
    ended = atlas("out", "--serve")
    assert ended.code == 0, ended.err  # Ctrl-C after the end is no interruption
    assert len(set(versions)) == len(versions) >= 5
    for version, page in zip(versions[:-1], pages[:-1], strict=True):
        assert f'data-version="{version}"' in page
        assert "connect-src 'self'" in page
        assert 'fetch("status.json"' in page
    for word in MACHINERY:
        assert word not in pages[-1]
    assert everything(tmp_path / "out") == whole
