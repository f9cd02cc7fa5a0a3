"""Kill a run (SIGKILL) at random moments, resume it, and compare bytes with an undisturbed run.

    python benchmarks/kill_resume.py [--kills 30] [--examples 48]

Each trial starts the same command anew in an empty folder, kills it after a random time, then repeats the command until it ends; the atlas must be byte-identical to the
undisturbed one, and no shard that was finished before the kill may be made again.
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
import sys
from pathlib import Path
from headwise import Corpus, HeadModel, RunOptions, make_analysis
from headwise.run import run_analyses
from headwise.testing import planted_model
folder, target, examples, pause = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
import headwise.run.runner as runner
original = runner.RunFolder.save
def slowly(self, shard, arrays, facts):  # time to be killed in
    import time
    time.sleep(pause)
    original(self, shard, arrays, facts)
    print("made", shard, flush=True)
runner.RunFolder.save = slowly
words = ["the", "a", "cat", "dog", "saw", "sleeps", ".", ","]
planted = planted_model([["previous", "next", "uniform", "same_word"], ["sep", "cls", "self", "uniform"]], words=words)
model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
texts = [" ".join(words[(i * 7 + j * 3) % 8] for j in range(3 + i % 17)) for i in range(examples)]
print("start", flush=True)
atlas = run_analyses(model, Corpus.from_texts(texts), [make_analysis("surface"), make_analysis("offsets")], folder, RunOptions(shard_size=4, batch_tokens=64))
atlas.save(target, overwrite=True)
print("end", flush=True)
"""


def run(
    folder: Path, target: Path, examples: int, pause: float, kill_after: float | None = None
) -> tuple[list[int], bool]:
    """The shards made, and whether the run came to its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(target), str(examples), str(pause)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    lines = []
    if kill_after is not None:
        while (line := process.stdout.readline().strip()) != "start" and line:
            pass
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
    lines = process.stdout.read().split("\n")
    process.wait()
    made = [int(line.split()[1]) for line in lines if line.startswith("made")]
    return made, "end" in lines


def trials(kills: int, examples: int, pause: float, seed: int, show: bool = True) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        began = time.perf_counter()
        made, ended = run(base / "whole", base / "whole.nc", examples, pause)
        span = pause * len(made) + 0.3
        assert ended, "the undisturbed run did not end"
        expected = (base / "whole.nc").read_bytes()
        if show:
            print(f"undisturbed: {len(made)} shards, {time.perf_counter() - began:.1f} s")
        stopped = 0
        for trial in range(kills):
            folder, target = base / f"run{trial}", base / f"run{trial}.nc"
            before, early = run(folder, target, examples, pause, kill_after=rng.uniform(0, span))
            after, ended = run(folder, target, examples, 0)
            assert ended, f"trial {trial} did not end when repeated"
            assert target.read_bytes() == expected, f"trial {trial}: the bytes differ"
            # A kill between the rename and the print may hide one finished shard; a finished one is never made again.
            assert not set(before) & set(after), f"trial {trial}: shards {set(before) & set(after)} were made twice"
            stopped += not early
            if show:
                print(f"kill {trial + 1}: {len(before)} shards before, {len(after)} after, bytes equal", flush=True)
        print(
            f"{kills} kills, {stopped} of them before the end: every resumed result is byte-identical, no finished shard was repeated"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--examples", type=int, default=48)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trials(options.kills, options.examples, options.pause, options.seed)
