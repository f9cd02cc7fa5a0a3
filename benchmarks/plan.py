"""What `headwise plan` says against what then happens, by stage: memory, and processor time, which
a busy machine disturbs least. Within a factor of 1.5 together is wanted.

python benchmarks/plan.py [MODEL] [--limit 200] [--sample 16] [--analyses surface,roles] [--threads
1]

The last line is a row of the table in docs/scale.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from headwise.analyses.contract import choose_analyses, known_analyses
from headwise.run import Run, RunOptions, Source
from headwise.run.estimate import OPENING, estimate
from headwise.run.progress import Clock, stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--corpus")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--sample", type=int, default=16)
    parser.add_argument("--analyses", default="")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    names = [name for name in given.analyses.split(",") if name]
    chosen = choose_analyses(
        names or [name for name, cls in known_analyses().items() if cls.automatic], {}
    )
    source, options = Source(given.model, given.corpus), RunOptions(limit=given.limit, full=False)
    began = time.process_time()
    costs = estimate(source, chosen, options, given.sample)
    spent = time.process_time() - began
    print(
        f"calibration: {spent:.0f} s of a processor; it says {costs.cpu_seconds:.0f} s", flush=True
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, clock.running():
        with stage(OPENING, memory=True, whole=True):
            run = Run(source, chosen, folder, options)
        with run:
            run.atlas()
    said = {cost.stage: cost for cost in costs.stages}
    print(f"{'stage':<16}{'said':>9}{'was':>9}{'ratio':>8}{'MiB said':>10}{'was':>8}")
    for name in sorted(
        said.keys() | clock.usage.keys(), key=lambda name: -clock.usage[name].cpu_seconds
    ):
        one, other = said[name].cpu_seconds if name in said else 0.0, clock.usage[name].cpu_seconds
        sizes = [
            f"{size / 2**20:.0f}"
            for size in (said[name].memory if name in said else 0, clock.usage[name].memory)
        ]
        print(
            f"{name:<16}{one:>9.2f}{other:>9.2f}{one / max(other, 1e-9):>8.2f}{sizes[0]:>10}{sizes[1]:>8}"
        )
    was = sum(one.cpu_seconds for one in clock.usage.values())
    print(f"{'together':<16}{costs.cpu_seconds:>9.2f}{was:>9.2f}{costs.cpu_seconds / was:>8.2f}")
    memory = " / ".join(
        f"{size / 2**30:.2f}"
        for size in (costs.memory, max(one.memory for one in clock.usage.values()))
    )
    seen = max(cost.examples for cost in costs.stages if cost.stage != OPENING)
    model = Path(given.model).name if given.model else "wiki-bert-3 (the built-in model)"
    print(
        f"| {model} | {', '.join(a.name for a in chosen)} | {seen} | {spent:.0f} s | {costs.cpu_seconds:.1f} s | "
        f"{was:.1f} s | {costs.cpu_seconds / was:.2f} | {memory} GiB |"
    )


if __name__ == "__main__":
    main()
