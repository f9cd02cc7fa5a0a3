"""Every analysis on the GPU and on the CPU: the same numbers to rounding.

    python benchmarks/gpu_battery.py [--analyses surface,coreference]

On the battery's small encoder and decoder. What is trained (probes) ends elsewhere by more than
rounding: its largest difference is printed. Exit code 1 where an analysis fails on the GPU or a
computed number differs."""

from __future__ import annotations

import argparse
import copy
import sys
import time

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import Observer, known_analyses, make_analysis
from headwise.core.errors import HeadwiseError
from headwise.models import HeadModel
from headwise.testing.battery import SMALL, BatteryCase, assert_same


def largest(found: xr.Dataset, expected: xr.Dataset) -> tuple[float, str]:
    """The largest absolute difference of any number, and its variable."""
    worst = (0.0, "")
    for name in found.data_vars:
        a, b = found[name].values, expected[name].values
        if a.dtype.kind in "fiu" and a.shape == b.shape and a.size:
            known = np.isfinite(a.astype(float)) & np.isfinite(b.astype(float))
            if known.any():
                worst = max(
                    worst,
                    (float(np.abs(a.astype(float) - b.astype(float))[known].max()), str(name)),
                )
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--analyses", default=",".join(sorted(known_analyses())))
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    for name in asked.analyses.split(","):
        for causal in (False, True):
            began = time.perf_counter()
            analysis = make_analysis(name, SMALL.get(name, {}))
            case = BatteryCase(analysis, causal)
            kind = "decoder" if causal else "encoder"
            if case.unsupported_reason is not None:
                continue
            try:
                expected = case.run(analysis=case.full_analysis)
                other = HeadModel.open(
                    copy.deepcopy(case.module).to(asked.device),
                    tokenizer=case.tokenizer,
                    device=asked.device,
                )
                found = case.run(model=other, analysis=case.full_analysis)
            except (HeadwiseError, RuntimeError, TypeError, ValueError) as error:
                bad += 1
                print(
                    f"{name:<14}{kind}: FAILS: {type(error).__name__}: {str(error).splitlines()[0]}",
                    flush=True,
                )
                continue
            try:
                assert_same(found, expected, name)
                told = "same to rounding"
            except AssertionError as error:
                worst, variable = largest(found, expected)
                told = f"largest difference {worst:.2e} ({variable})"
                if isinstance(analysis, Observer):
                    bad += 1
                    told = f"DIFFERS: {told}: {' '.join(str(error).split())[:200]}"
            print(f"{name:<14}{kind}: {told} ({time.perf_counter() - began:.1f} s)", flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
