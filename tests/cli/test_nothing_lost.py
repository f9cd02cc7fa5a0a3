"""Results are not lost: a command that was stopped after its result was written ends well when
repeated, two commands do not write to one place, and links stay links."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headwise.core.output import work_folder
from headwise.run import Job

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kill_resume.py"


def everything(folder: Path) -> dict[str, bytes]:
    """All files below a folder, with their bytes."""
    contents = {}
    for path in folder.rglob("*"):
        if path.is_file():
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The commands on tiny models that `benchmarks/kill_resume.py` kills."""
    spec = importlib.util.spec_from_file_location("kill_resume", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kill_resume"] = module  # dataclasses look up the module they are defined in
    spec.loader.exec_module(module)
    return module.commands(tmp_path_factory.mktemp("models"))


@pytest.fixture
def run_into(headwise, commands: dict[str, list[str]], tmp_path: Path) -> Callable[..., object]:
    """Run one of the commands with its results in a folder of tmp_path, without figures."""

    def run(name: str, folder: str):
        arguments = [part.replace("OUT", str(tmp_path / folder)) for part in commands[name]]
        if "--figures" in arguments:
            place = arguments.index("--figures")
            del arguments[place : place + 2]
        return headwise(*arguments)

    return run


@pytest.mark.parametrize("name", ["patch", "prune", "circuit", "knockout", "cache"])
def test_stopped_after_the_result_was_written_it_ends_well_with_the_same_bytes(
    name: str, run_into, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_into(name, "whole").code == 0
    whole = everything(tmp_path / "whole")
    written: list[dict[str, bytes]] = []

    def stop(job: Job) -> None:
        written.append(everything(tmp_path / "out"))
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "finish", stop)
        stopped = run_into(name, "out")
    assert stopped.code == 143, stopped.err
    assert "repeat the command to resume" in stopped.err
    assert whole.items() <= written[0].items()  # the result was there, and checkpoints beside it
    again = run_into(name, "out")
    assert again.code == 0, again.err
    assert everything(tmp_path / "out") == whole
    # It is a result like any other now: it is not replaced without being asked.
    refused = run_into(name, "out")
    assert refused.code == 2
    assert "--overwrite" in refused.err
    assert everything(tmp_path / "out") == whole


@pytest.mark.parametrize("name", ["prune", "draw"])
def test_of_two_commands_at_once_one_is_refused_by_name(
    name: str, headwise, model_folder: Path, tmp_path: Path
) -> None:
    if name == "prune":
        out = tmp_path / "pruned"
        arguments = ("prune", model_folder, "--heads", "L0H1", "--zero", "--out", out)
        holder = Job.for_folder(out)
    else:
        out = tmp_path / "heads.svg"
        sentence = ("--text", "the cat saw a dog .")
        arguments = ("draw", "L0H1", "--model", model_folder, *sentence, "--out", out)
        holder = Job.for_file(out)
    with holder:
        refused = headwise(*arguments)
    assert refused.code == 2
    assert f"{out} is in use by process {os.getpid()}" in refused.err
    assert "choose another output path" in refused.err
    assert not out.exists()
    assert not work_folder(out).exists()
    assert headwise(*arguments).code == 0
    assert out.exists()


def test_a_link_to_a_folder_stays_a_link_when_prune_writes_there(
    headwise, model_folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere" / "pruned"
    place.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(place)
    arguments = ("prune", model_folder, "--zero", "--device", "cpu", "--out", link)
    assert headwise(*arguments, "--heads", "L0H1").code == 0
    first = everything(place)
    assert link.is_symlink()
    assert "config.json" in first
    assert headwise(*arguments, "--heads", "L1H2", "--overwrite").code == 0
    assert link.is_symlink()
    assert link.resolve() == place
    assert everything(place).keys() == first.keys()
    assert everything(place) != first
    names = sorted(path.name for path in tmp_path.rglob("*") if path.parent != place)
    assert names == ["elsewhere", "link", "pruned"]
