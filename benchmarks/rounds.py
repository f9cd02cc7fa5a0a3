"""An atlas in one round, in many, and killed in every round: the same bytes.

python benchmarks/rounds.py [--out FOLDER] [-- arguments of `headwise atlas`, such as a model]

Three folders are made: one with `--rounds 1`, one with the rounds that time allows, and one where
the command is killed (SIGKILL) whenever the page of a new round lies there, and repeated until it
ends. All files must be the same. At the end it prints what the rounds took in processor time."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNFINISHED = b"This atlas is not finished"


def files(folder: Path) -> dict[str, bytes]:
    contents = {}
    for path in folder.rglob("*"):
        if path.is_file():
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def command(folder: Path, arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "headwise", "atlas", *arguments, "--out", str(folder)]


def make(folder: Path, arguments: list[str]) -> tuple[float, int]:
    """Make an atlas without disturbing it.

    Returns the seconds of processor time, and how many pages of unfinished rounds were there."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    n_rounds = 0
    with subprocess.Popen(command(folder, arguments), stdout=subprocess.DEVNULL) as process:
        page_before = b""
        while process.poll() is None:
            page = _page(folder)
            if page != page_before and UNFINISHED in page:
                n_rounds += 1
            page_before = page
            time.sleep(0.02)
    assert process.returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, n_rounds


def make_with_kills(folder: Path, arguments: list[str]) -> int:
    """Make an atlas, killing the command after every new page; return how often it was killed."""
    n_kills = 0
    page_before = b""
    while True:
        process = subprocess.Popen(
            command(folder, arguments), stdout=subprocess.DEVNULL, start_new_session=True
        )
        killed = False
        while process.poll() is None:
            page = _page(folder)
            # The page of a finished atlas is written last: the command would refuse to replace it.
            if page != page_before and UNFINISHED in page:
                page_before = page
                # Its own group: workers that draw figures end with it.
                os.killpg(process.pid, signal.SIGKILL)
                killed = True
                break
            time.sleep(0.02)
        process.wait()
        if not killed:
            assert process.returncode == 0
            return n_kills
        n_kills += 1


def _page(folder: Path) -> bytes:
    """Return the page that lies in a folder; b"" where there is none."""
    try:
        return (folder / "index.html").read_bytes()
    except FileNotFoundError:
        return b""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where the three folders go")
    options, arguments = parser.parse_known_args()
    arguments = [argument for argument in arguments if argument != "--"]
    with tempfile.TemporaryDirectory() as temporary:
        base = options.out or Path(temporary)
        seconds_alone, _ = make(base / "alone", [*arguments, "--rounds", "1"])
        print(f"in one round: {seconds_alone:.1f} s of processor time", flush=True)
        seconds, n_rounds = make(base / "rounds", arguments)
        print(f"with {n_rounds} rounds before the last: {seconds:.1f} s", flush=True)
        whole = files(base / "alone")
        assert files(base / "rounds") == whole
        n_kills = make_with_kills(base / "killed", arguments)
        assert files(base / "killed") == whole
        print(f"killed {n_kills} times: the same {len(whole)} files")


if __name__ == "__main__":
    main()
