"""Where a result goes: one process at a time, nothing of others replaced, a killed command goes
on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwise.cli.common import option_hint
from headwise.core.errors import OutputError
from headwise.core.files import RESERVE, check_space, claim, sweep
from headwise.core.folders import MANIFEST, new_folder
from headwise.core.output import OutputTarget
from headwise.core.store import CheckpointStore

DEAD = 999_999_999


def place(folder: Path, **given: object) -> OutputTarget:
    return OutputTarget(folder / "a.nc", folder / ".a.nc.run", **given)  # type: ignore[arg-type]


def test_an_existing_file_is_refused_but_not_that_of_the_work_that_goes_on(tmp_path: Path) -> None:
    with place(tmp_path) as first:
        store = CheckpointStore(first.work, {"run": 1})
        store.save("piece", {})
        first.write(b"result")  # and killed before it is done
        store.close()
    with place(tmp_path) as again:
        again.write(b"result")
        with pytest.raises(OutputError, match="exists; pass overwrite=True"):
            again.write(b"another result")
        again.done()
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]
    with pytest.raises(OutputError, match="exists; pass overwrite=True"):
        place(tmp_path)
    with place(tmp_path, overwrite=True) as replacing:
        CheckpointStore(
            replacing.work, {"run": 2}
        ).close()  # killed before its result: what was there is there
    assert (tmp_path / "a.nc").read_bytes() == b"result"
    with place(tmp_path) as consented:  # --overwrite was given once for this work
        consented.write(b"new")
        consented.done()
    assert (tmp_path / "a.nc").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]


def test_what_dead_processes_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    gone = [
        tmp_path / f".a.nc.{DEAD}.tmp",
        figures / f".x.svg.{DEAD}.tmp",
        tmp_path / f".index.html.{DEAD}.tmp",
    ]
    kept = [
        tmp_path / f".b.xyz.{DEAD}.tmp",
        tmp_path / f".a.nc.{os.getppid()}.tmp",  # of a process that lives
        figures / ".x.svg.tmp",
        figures / "x.svg",
    ]
    for path in gone + kept:
        path.touch()
    with place(tmp_path, around=tmp_path):
        pass
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)
    sweep(tmp_path / "nowhere")


RUN = """
import sys, time
from pathlib import Path
from headwise.cli.common import option_hint
from headwise.core.errors import OutputError
from headwise.core.output import OutputTarget
from headwise.core.store import CheckpointStore
folder, go = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
try:
    with OutputTarget(folder / "a.nc", folder / ".a.nc.run", overwrite=True) as place:
        with CheckpointStore(place.work, {"who": sys.argv[3]}, fresh=True) as store:
            for number in range(20):
                store.save(f"piece-{number}", {}, {"who": sys.argv[3]})
            whose = [store.load(f"piece-{number}").facts["who"] for number in range(20)]
        place.write(" ".join(whose).encode())
        end = time.monotonic() + 60  # nobody may come after it: it stays until all others have been refused
        while len(list(go.parent.glob("refused-*"))) < int(sys.argv[4]) - 1 and time.monotonic() < end:
            time.sleep(0.001)
        place.done()
    print("won")
except OutputError as error:
    print(error)
    (go.parent / f"refused-{sys.argv[3]}").touch()
"""


@pytest.mark.parametrize("count", [2, 4])
def test_of_several_runs_at_once_one_wins_and_the_others_are_refused_by_name(
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
    said = [process.communicate()[0].strip() for process in started]
    winners = [number for number, text in enumerate(said) if text == "won"]
    assert len(winners) == 1, said
    winner = f"process {started[winners[0]].pid} on "
    assert all("a.nc is in use by" in text and winner in text for text in said if text != "won"), (
        said
    )
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


def test_a_folder_whose_swap_was_killed_half_way_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with new_folder(target) as beside:
        (beside / "weights").write_text("old")
    (target / "notes").write_text("mine")
    target.rename(tmp_path / f".model.{DEAD}.old")  # killed between the two renames
    (tmp_path / f".model.{DEAD}.tmp").mkdir()
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
