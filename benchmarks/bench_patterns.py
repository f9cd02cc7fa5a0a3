"""Classifying maps all at once against one at a time, and the cost of `patterns` per map: the same
maps, the same run.

python benchmarks/bench_patterns.py [--maps 288] [--length 96]
"""

from __future__ import annotations

import argparse

import torch

from common import best_time, report_ratio
from headwise.analyses.patterns import classify_maps, shipped_classifier
from headwise.analyses.patterns.maps import map_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", type=int, default=288)
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    maps = (
        3
        * torch.randn(
            options.maps, options.length, options.length, generator=torch.Generator().manual_seed(0)
        )
    ).softmax(-1)
    few = maps[: max(options.maps // 8, 1)]  # one at a time is slow: an eighth of them, scaled up
    classifier = shipped_classifier()
    together = best_time(lambda: classify_maps(maps, False, classifier), options.repeats)
    alone = best_time(
        lambda: [classify_maps(one, False, classifier) for one in few], options.repeats
    )
    alone *= len(maps) / len(few)
    shrinking = best_time(lambda: map_images(maps, causal=False), options.repeats)
    report_ratio(
        f"{options.maps} maps of {options.length} tokens classified at once",
        together,
        "one at a time",
        alone,
    )
    rates = f"{options.maps / together:.0f} maps/s at once, {options.maps / alone:.0f} maps/s one at a time"
    print(f"{rates}; bringing them to one size takes {shrinking / together:.0%} of it")


if __name__ == "__main__":
    main()
