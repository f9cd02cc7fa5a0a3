"""Output targets: one process at a time, nothing of others replaced, an interrupted command
resumes."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwise.cli.common import option_hint
from headwise.core.errors import OutputError
from headwise.core.files import RESERVE, check_space, claim, sweep
from headwise.core.folders import MANIFEST, new_folder
from headwise.core.output import OutputTarget
from headwise.core.store import CheckpointStore

DEAD = 999_999_999


def make_target(folder: Path, **options: Any) -> OutputTarget:
    return OutputTarget(folder / "a.nc", folder / ".a.nc.run", **options)


def open_store(target: OutputTarget, identity: dict[str, int]) -> CheckpointStore:
    return CheckpointStore(target.work, identity, lock=target.lock)


def test_an_existing_file_is_rejected_but_not_that_of_the_work_that_resumes(tmp_path: Path) -> None:
    with make_target(tmp_path) as first:
        open_store(first, {"run": 1}).save("sums", {})
        first.write(b"result")  # interrupted before it is finished
    with make_target(tmp_path) as again:
        again.write(b"result")
        with pytest.raises(OutputError, match="exists; pass overwrite=True"):
            again.write(b"another result")
        open_store(again, {"run": 1}).remove()
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]
    with pytest.raises(OutputError, match="exists; pass overwrite=True"):
        make_target(tmp_path)
    with make_target(tmp_path, overwrite=True) as replacing:
        open_store(replacing, {"run": 2})  # interrupted: the earlier result is still there
    assert (tmp_path / "a.nc").read_bytes() == b"result"
    with make_target(tmp_path) as consented:  # overwrite was passed once for this work
        consented.write(b"new")
        consented.forget_consent()
        open_store(consented, {"run": 2}).remove()
    assert (tmp_path / "a.nc").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]


def test_what_dead_processes_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    gone = [
        tmp_path / f".a.nc.{DEAD}.headwise-tmp",
        figures / f".x.svg.{DEAD}.headwise-tmp",
        tmp_path / f".index.html.{DEAD}.headwise-tmp",
        tmp_path / f".report.md.{DEAD}.headwise-tmp",
    ]
    kept = [
        tmp_path / f".b.xyz.{DEAD}.headwise-tmp",
        tmp_path / f".a.nc.{os.getppid()}.headwise-tmp",  # of a process that lives
        figures / ".x.svg.tmp",
        tmp_path / f".a.nc.{DEAD}.tmp",  # of another program
        figures / "x.svg",
    ]
    for path in gone + kept:
        path.touch()
    with make_target(tmp_path, around=tmp_path):
        pass
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)
    sweep(tmp_path / "nowhere")


RUN = """
import sys, time
from pathlib import Path
from headwise.core.errors import OutputError
from headwise.run.job import Job
folder, go = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
try:
    with Job.for_file(folder / "a.nc", overwrite=True) as job:
        store = job.begin({"who": sys.argv[3]})
        for number in range(20):
            store.save(f"part-{number}", {}, {"who": sys.argv[3]})
        owners = [store.load(f"part-{number}").facts["who"] for number in range(20)]
        job.write(" ".join(owners).encode())
        end = time.monotonic() + 60  # nobody may come after it: it stays until all others were rejected
        while len(list(go.parent.glob("rejected-*"))) < int(sys.argv[4]) - 1 and time.monotonic() < end:
            time.sleep(0.001)
        job.finish()
    print("won")
except OutputError as error:
    print(error)
    (go.parent / f"rejected-{sys.argv[3]}").touch()
"""


@pytest.mark.parametrize("count", [2, 4])
def test_of_several_jobs_at_once_one_wins_and_the_others_are_told_which(
    tmp_path: Path, count: int
) -> None:
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                RUN,
                str(tmp_path / "out"),
                str(tmp_path / "go"),
                str(number),
                str(count),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    outputs = [process.communicate()[0].strip() for process in started]
    winners = [number for number, text in enumerate(outputs) if text == "won"]
    assert len(winners) == 1, outputs
    winner = f"process {started[winners[0]].pid} on "
    for text in outputs:
        if text != "won":
            assert "a.nc is in use by" in text, outputs
            assert winner in text, outputs
    assert set((tmp_path / "out" / "a.nc").read_text().split()) == {str(winners[0])}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.nc"]


def test_room_is_looked_for_before_and_set_aside(tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "there" / "yet", 10, "Shards")
    with pytest.raises(OutputError, match=r"The shards need about \d.* GiB in .*free some space"):
        check_space(tmp_path, 2**60, "The shards")
    claim(tmp_path / "scratch", 10_000)
    assert os.stat(tmp_path / "scratch").st_blocks * 512 >= 10_000  # not a file with holes
    with pytest.raises(OutputError, match="scratch cannot hold"):
        claim(tmp_path / "scratch", 2**60)
    assert not (tmp_path / "scratch").exists()
    assert RESERVE > 0


def test_a_pipe_and_a_socket_are_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.nc"
    os.mkfifo(pipe)
    socket_path = tmp_path / "socket.nc"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(socket_path))
        for path in (pipe, socket_path, Path("/dev/null")):
            with pytest.raises(OutputError, match="is a device, a pipe or a socket, not a file"):
                OutputTarget(path, tmp_path / ".run", overwrite=True)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISSOCK(socket_path.stat().st_mode)


def test_a_folder_whose_swap_was_interrupted_half_way_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with new_folder(target) as beside:
        (beside / "weights").write_text("old")
    (target / "notes").write_text("mine")
    target.rename(tmp_path / f".model.{DEAD}.headwise-old")  # interrupted between the two renames
    (tmp_path / f".model.{DEAD}.headwise-tmp").mkdir()
    with new_folder(target, overwrite=True) as beside:
        (beside / "weights").write_text("new")
    assert sorted(path.name for path in target.iterdir()) == [MANIFEST, "notes", "weights"]
    assert (target / "weights").read_text() == "new"
    assert (target / "notes").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_command_line_spells_the_parameter_that_remedies_an_error() -> None:
    assert option_hint(OutputError("a exists.", option="overwrite")) == (
        " On the command line: --overwrite."
    )
    assert option_hint(OutputError("too many.", option="gpus_per_worker 0")) == (
        " On the command line: --gpus-per-worker 0."
    )
    assert option_hint(OutputError("no remedy.")) == ""
