"""Run every entry of every paper with small samples on the built-in model, and fail on any failure.

    python benchmarks/reproduce_quick.py [--data FOLDER] [--papers clark2019,jo2020]
    [--model FOLDER] [--out FOLDER] [--device cpu]

The tests run the same entries on a tiny random model; this script runs them on real weights and,
with `--data`, on the real data sets. An entry whose data are missing is "not run" and no failure.
With `--out` finished entries are kept: the same command resumes an interrupted one."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from headwise.experiments.reproduction import ReproductionOptions, papers, reproduce


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--papers", default=",".join(papers()))
    parser.add_argument("--model", default=None)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--device", default=None)
    args = parser.parse_args()
    options = ReproductionOptions(data=args.data, quick=True, device=args.device)
    failed_entries = []
    with tempfile.TemporaryDirectory(prefix="headwise-") as temporary:
        out = args.out or Path(temporary)
        for paper in args.papers.split(","):
            start = time.perf_counter()
            report = reproduce(paper, args.model, options=options, folder=out / paper)
            seconds = time.perf_counter() - start
            print(f"{paper}: {seconds:.0f} s", flush=True)
            for entry in report.facts["entries"]:
                status = entry["status"]
                print(f"  {entry['key']:10} {status:8} {entry['reason']}", flush=True)
                if status == "failed":
                    failed_entries.append(f"{entry['key']} of {paper}")
            for failure in report.failures:
                print(failure.trace, flush=True)
    if failed_entries:
        sys.exit(f"Failed: {', '.join(failed_entries)}")
    print("No entry failed.")


if __name__ == "__main__":
    main()
