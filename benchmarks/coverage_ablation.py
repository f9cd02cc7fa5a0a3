"""How often the interval of the mean head holds the truth: over heads (as it once was) and over
examples.

A population of examples is made, each with a difficulty that all heads share and harm of its own
for every head; test sets are drawn from it. The truth is the mean over heads on the whole
population. Prints a table: metric, size of the test set, coverage of both intervals, runs.

    python benchmarks/coverage_ablation.py --runs 400
"""

from __future__ import annotations

import argparse

import numpy as np

from headwise.stats.intervals import mean_interval
from headwise.stats.metrics import METRICS
from headwise.stats.paired import paired_differences

HEADS, POPULATION = 24, 20_000


def population(
    metric: str, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is so, what the whole model says, and what it says without each head, of every
    example."""
    difficulty = random.normal(size=POPULATION)
    shared = random.normal(size=POPULATION)  # what the loss of any head does to an example
    strength = random.gamma(2.0, 0.05, HEADS)[:, None]
    if metric == "loss":
        baseline = np.exp(0.5 * difficulty)
        own = random.normal(size=(HEADS, POPULATION))
        return np.zeros(POPULATION), baseline, baseline + strength * (0.3 + shared + 0.5 * own)
    score = 1.5 + difficulty  # above zero: right
    without = score - strength * (0.5 + 2 * shared + random.normal(size=(HEADS, POPULATION)))
    if metric == "pearson":
        truth = difficulty
        noise = 0.5 * random.normal(size=POPULATION)
        return truth, truth + noise, truth + noise + (score - without) * 2
    truth = (random.random(POPULATION) < 0.6).astype(int)
    said = [np.where(values > 0, truth, 1 - truth) for values in (score, without)]
    return truth, said[0], said[1]


def covered(metric: str, size: int, runs: int, seed: int) -> tuple[float, float]:
    """The share of test sets whose interval holds the truth: over heads, over examples."""
    random = np.random.default_rng(seed)
    truth, baseline, values = population(metric, random)
    if metric == "loss":
        right = float((values.mean(1) - baseline.mean()).mean())
    else:
        own = METRICS[metric]
        right = float(np.mean([own(truth, row) for row in values]) - own(truth, baseline))
    hits = np.zeros(2)
    for run in range(runs):
        chosen = random.choice(POPULATION, size, replace=False)
        told = None if metric == "loss" else truth[chosen]
        found = paired_differences(
            metric, baseline[chosen], values[:, chosen], told, seed=run, repeats=1000
        )
        change = found.difference
        low, high = mean_interval(change.mean(), change.var(ddof=1), np.array(HEADS))
        hits += [low <= right <= high, found.mean_low <= right <= found.mean_high]
    return float(hits[0] / runs), float(hits[1] / runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 277, 1000])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(
        f"{'metric':<10}{'examples':>9}{'over heads':>12}{'over examples':>15}{'runs':>6}   nominal 0.95"
    )
    for metric in ("accuracy", "f1", "pearson", "loss"):
        for size in args.sizes:
            heads, examples = covered(metric, size, args.runs, args.seed)
            print(f"{metric:<10}{size:>9}{heads:>12.3f}{examples:>15.3f}{args.runs:>6}", flush=True)


if __name__ == "__main__":
    main()
