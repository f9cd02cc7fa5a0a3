"""Peak memory of a run over N examples and over ten times as many: under 10 % growth is wanted.

python benchmarks/bench_memory.py [--examples 64]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

RUN = """
import resource, sys, tempfile
from headwise import Corpus, HeadModel, make_analysis
from headwise.run import run_analyses
from headwise.text.example import Example
from headwise.text.demo import demo_examples
count = int(sys.argv[1])
base = demo_examples(50)
def stream(notes):  # examples are made as they are read: the corpus itself holds nothing
    for i in range(count):
        yield base[i % len(base)]
model = HeadModel.open()
with tempfile.TemporaryDirectory() as folder:
    run_analyses(model, Corpus("stream", stream), [make_analysis("surface"), make_analysis("offsets")], folder)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(examples: int) -> float:
    """Peak resident memory in MiB of a run in a process of its own."""
    done = subprocess.run([sys.executable, "-c", RUN, str(examples)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=64)
    options = parser.parse_args()
    small, large = peak(options.examples), peak(10 * options.examples)
    print(
        f"{options.examples} examples: {small:.0f} MiB; {10 * options.examples}: {large:.0f} MiB; growth "
        f"{large / small - 1:+.1%} (under +10 % wanted)"
    )
    print(json.dumps({"what": "peak memory", "small": small, "large": large, "growth": large / small - 1}))
