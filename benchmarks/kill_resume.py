"""Kill a run (SIGKILL) at random moments, resume it, and compare bytes with an undisturbed run.

    python benchmarks/kill_resume.py [--kills 30] [--copies 4]

The run streams, gives one analysis a pass of its own, and performs every experiment. Each trial starts the same command
anew in an empty folder, kills it after a random time, then repeats the command until it ends; the atlas must be
byte-identical to the undisturbed one, and no piece that was finished before the kill may be made again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = """
import sys, time
from pathlib import Path
from headwise import Corpus, HeadModel, RunOptions, make_analysis
from headwise.core.store import Store
from headwise.run import Run, Source
from headwise.testing import random_model
from headwise.testing.corpora import battery_examples
folder, target, copies, pause = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
original = Store.save
def slowly(self, name, *rest):  # time to be killed in
    time.sleep(pause)
    original(self, name, *rest)
    print("made", self.folder.name if self.folder != folder else "", name, sep="/", flush=True)
Store.save = slowly
module, tokenizer = random_model()
model = HeadModel.open(module, tokenizer=tokenizer)
analyses = [
    make_analysis("surface"),
    make_analysis("offsets"),
    make_analysis("coreference", {"max_tokens": 12, "overlap": 4, "documents": "windows"}),
    make_analysis("attribution", {"length": 11, "patterns": 1}),
    make_analysis("tree_probe", {"epochs": 2}),
    make_analysis("probing"),
]
corpus = Corpus.from_examples(battery_examples(copies), "battery")
print("start", flush=True)
with Run(Source(model, corpus), analyses, folder, RunOptions(shard_size=4, batch_tokens=64)) as run:
    run.atlas().save(target, overwrite=True)
print("end", flush=True)
"""


def run(
    folder: Path, target: Path, copies: int, pause: float, kill_after: float | None = None
) -> tuple[list[str], bool, float]:
    """The pieces made, whether the run came to its end, and the seconds since its start."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(target), str(copies), str(pause)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    while (line := process.stdout.readline()).strip() != "start" and line:
        pass
    began = time.perf_counter()
    if kill_after is not None:
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
    lines = process.stdout.read().split("\n")
    process.wait()
    made = [line.removeprefix("made/") for line in lines if line.startswith("made/")]
    return made, "end" in lines, time.perf_counter() - began


def trials(kills: int, copies: int, pause: float, seed: int, show: bool = True) -> None:
    """Kill and resume so many times; an AssertionError at the first result that differs."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        made, ended, span = run(base / "whole", base / "whole.nc", copies, pause)
        assert ended, "the undisturbed run did not end"
        expected = (base / "whole.nc").read_bytes()
        if show:
            print(f"undisturbed: {len(made)} pieces, {span:.1f} s")
        stopped, inside = 0, 0
        for trial in range(kills):
            folder, target = base / f"run{trial}", base / f"run{trial}.nc"
            before, early, _ = run(folder, target, copies, pause, kill_after=rng.uniform(0, span))
            after, ended, _ = run(folder, target, copies, 0)
            assert ended, f"trial {trial} did not end when repeated"
            assert target.read_bytes() == expected, f"trial {trial}: the bytes differ"
            # A kill between the rename and the print may hide one finished piece; a finished one is never made again.
            twice = set(before) & set(after)
            assert not twice, f"trial {trial}: {', '.join(sorted(twice))} made twice"
            stopped += not early
            inside += not early and any(not name.startswith("/shard-") for name in before)
            if show:
                print(f"kill {trial + 1}: {len(before)} pieces before, {len(after)} after, bytes equal", flush=True)
        print(
            f"{kills} kills, {stopped} of them before the end, {inside} among experiments: "
            "every resumed result is byte-identical, no finished piece was made again"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trials(options.kills, options.copies, options.pause, options.seed)
