"""Fill the disk at every moment of a run: one sentence, nothing half-written, and the same command
goes on.

    sudo python benchmarks/full_disk.py [--trials 10]

Mounts a small tmpfs (which needs the right to) and runs `headwise atlas` there with less room each
time than an undisturbed run takes; then gives it room and repeats the command. Exit code 2 and one
sentence while there is none, no signal from inside HDF5 or a memory map, and in the end the bytes
of the undisturbed run."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import headwise.core.files
from headwise.experiments.all_figures import load_figures
from kill_resume import call, commands, files


def remount(folder: Path, size: int, *, again: bool = True) -> None:
    """A disk of so many bytes."""
    how = ["-o", f"{'remount,' if again else ''}size={size}"]
    subprocess.run(["mount", "-t", "tmpfs", *how, "tmpfs", str(folder)], check=True)


def trials(count: int, check_before: bool) -> Counter[str]:
    """So many sizes of the disk; an AssertionError at the first result that differs."""
    load_figures()
    if not check_before:
        headwise.core.files.RESERVE = -(
            2**60
        )  # the check before any work would end most trials at once
    ended: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        known = commands(base)["atlas"]
        disk = base / "disk"
        disk.mkdir()
        remount(disk, 2**30, again=False)
        try:
            asked = [argument.replace("OUT", str(disk / "whole")) for argument in known]
            assert call(asked, base / "log").code == 0
            expected = files(disk / "whole")
            total = sum(map(len, expected.values())) + 4096 * len(expected)
            for trial in range(count):
                out = disk / f"out{trial}"
                used = sum(entry.stat().st_blocks * 512 for entry in disk.rglob("*"))
                remount(disk, used + 8192 + total * trial // count)
                asked = [argument.replace("OUT", str(out)) for argument in known]
                full = call(asked, base / "log")
                assert full.code == 2, f"trial {trial}: exit code {full.code}: {full.said}"
                assert "free some space" in full.said, full.said
                assert not list(out.rglob("*.headwise-tmp")), (
                    f"trial {trial} left something half-written"
                )
                ended[full.phase] += 1
                remount(disk, 2**30)
                again = call(asked, base / "log")
                assert again.code == 0, again.said
                assert files(out / "atlas") == files(disk / "whole" / "atlas"), (
                    f"trial {trial}: the bytes differ"
                )
                subprocess.run(["rm", "-r", str(out)], check=True)
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    return ended


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10)
    options = parser.parse_args()
    found = trials(options.trials, check_before=False)
    print(
        "the disk was full after "
        + ", ".join(f"{phase}: {count}" for phase, count in found.items())
    )
    print(f"{options.trials} full disks: one sentence each, and the same bytes once there was room")
