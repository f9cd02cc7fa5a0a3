"""Load damaged atlases; print what was said, and what the worst took.

    python benchmarks/fuzz_atlas.py [--inputs 5000] [--start 0] [--unsealed]

A small atlas after one to four random edits of its bytes; with `--unsealed`, as headwise wrote it
before there were seals, so that HDF5 sees the damage (each in a process of its own, with a limit of
10 seconds: some have no end there). `Atlas.load` must give the atlas as it was or an AtlasError
(`faults` 0), take at most 5 seconds of processor time (unsealed: 15, with those 10), and 1 GB.
Batches run in a process of their own, so that a crash inside HDF5 is counted (`crashes`) and named
by the seed of its input: `--start SEED --inputs 1` makes one again."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fuzz.atlas_inputs import attack, edited, random_edits, seed_bytes, unsealed

SECONDS, BYTES = 5.0, 1 << 30
LIMIT = 10.0  # seconds after which the library ends the reading of an unsealed file


def batch(content: bytes, start: int, end: int, told: Connection) -> None:
    """Load the inputs of these numbers, and tell of each: number, what came of it, seconds,
    memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "atlas.nc"
        for seed in range(start, end):
            told.send(seed)
            path.write_bytes(edited(content, random_edits(random.Random(seed))))
            began = sum(os.times()[:4])
            try:
                said = attack(path)
            except Exception:
                said = f"FAULT {traceback.format_exc(limit=-4)[-1500:]}"
            held = (
                resource.getrusage(who).ru_maxrss
                for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            )
            told.send(
                (said.replace(str(path), "FILE"), sum(os.times()[:4]) - began, max(held) * 1024)
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument(
        "--wait", type=float, default=1800.0, help="Seconds after which a load has no end."
    )
    parser.add_argument("--unsealed", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        content = seed_bytes(Path(folder))
    content = unsealed(content) if options.unsealed else content
    allowed = SECONDS + LIMIT if options.unsealed else SECONDS
    context = multiprocessing.get_context("fork")
    counts = dict.fromkeys(
        ("as it was", "changed", "malformed", "not readable", "faults", "crashes", "endless"), 0
    )
    slow = large = 0
    longest, most = 0.0, 0
    seed, end = options.start, options.start + options.inputs
    while seed < end:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=batch, args=(content, seed, end, there))
        process.start()
        there.close()
        while seed < end:
            try:
                here.recv()
                if not here.poll(options.wait):
                    counts["endless"] += 1
                    print(f"  seed {seed}: no end", flush=True)
                    seed += 1
                    break
                said, seconds, memory = here.recv()
            except EOFError:
                process.join()
                counts["crashes"] += 1
                print(f"  seed {seed}: process ended with {process.exitcode}", flush=True)
                seed += 1
                break
            if said.startswith("FAULT"):
                print(f"  seed {seed}: {said}", flush=True)
            kind = (
                "as it was" if said == "read" else "faults" if said.startswith("FAULT")
                else "changed" if "changed or damaged since" in said else "malformed" if "damaged or no" in said
                else "not readable"
            )  # fmt: skip
            counts[kind] += 1
            slow += seconds > allowed
            large += memory > BYTES
            longest, most = max(longest, seconds), max(most, memory)
            seed += 1
            if seed % 500 == 0:
                print(f"  {seed:,} done: {counts}", flush=True)
        process.kill()
        process.join()
    print(f"{options.inputs:,} damaged atlases")
    for name, count in counts.items():
        print(f"{name:14} {count:6,}")
    print(
        f"over {allowed:.0f} s: {slow} (longest {longest:.2f}); over 1 GB: {large} (most {most / 1e6:.0f} MB)"
    )
    sys.exit(bool(counts["faults"] or counts["crashes"] or counts["endless"] or slow or large))


if __name__ == "__main__":
    main()
