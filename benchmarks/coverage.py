"""How often intervals hold the truth and tests call nothing something: nominal against measured, by
simulation.

    python benchmarks/coverage.py --runs 1000

Examples come in documents whose values hang together, as mentions of one text do. Each row draws so
many corpora, asks the functions that headwise uses, and counts. The last rows have no documents.
`docs/levels.md` holds the table."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch

from headwise.stats.accumulators import Moments, Ratios, State
from headwise.stats.bootstrap import bootstrap_family_test
from headwise.stats.flips import sign_flip_test
from headwise.stats.intervals import wilson_interval
from headwise.stats.units import share_interval, unit_key

LEVEL = 0.05
Draw = Callable[
    [np.random.Generator], bool
]  # whether an interval held the truth, or a test called anything


def documents(rng: np.random.Generator, count: int, mean: float = 8.0) -> np.ndarray:
    """The document of each example: `count` documents of one example and more."""
    return np.repeat(np.arange(count), 1 + rng.poisson(mean - 1, count))


def shares(count: int, spread: float, by_unit: bool) -> Draw:
    """The interval of a share of 70 % whose chance differs from document to document (beta,
    standard deviation)."""
    total = 0.7 * 0.3 / spread**2 - 1

    def once(rng: np.random.Generator) -> bool:
        tries = 1.0 + rng.poisson(7.0, count)
        hits = rng.binomial(tries.astype(int), rng.beta(0.7 * total, 0.3 * total, count)).astype(
            float
        )
        low, high = (
            share_interval(hits, tries) if by_unit else wilson_interval(hits.sum(), tries.sum())
        )
        return bool(low <= 0.7 <= high)

    return once


def means(
    count: int, spread: float, by_unit: bool, kind: type[Moments] | type[Ratios] = Moments
) -> Draw:
    """The interval of a mean of skewed values (exponential) with a document's own part of this
    standard deviation."""

    def once(rng: np.random.Generator) -> bool:
        document = documents(rng, count)
        values = (
            rng.exponential(size=len(document)) + rng.normal(scale=spread, size=count)[document]
        )
        found = kind(1)
        if by_unit:
            State(x=found).of([unit_key(str(d), 0) for d in document])
        weight = torch.ones(len(values), 1, dtype=torch.float64)
        found.add_sums(torch.from_numpy(values)[:, None] * weight, weight)
        summary = found.summary()
        return bool(summary["low"][0] <= 1 <= summary["high"][0])

    return once


def family(count: int, heads: int, correlated: float) -> Draw:
    """The sign-flip test of heads that are as good as the bar, some far worse: whether any is
    called better."""

    def once(rng: np.random.Generator) -> bool:
        pairs = 1 + rng.poisson(2.0, count)
        shared = rng.normal(size=(count, 1)) * correlated
        own = rng.normal(size=(count, heads)) * (1 - correlated**2) ** 0.5
        differences = np.rint((shared + own) * np.sqrt(pairs)[:, None])
        differences[:, heads // 2 :] -= pairs[:, None]  # half of the heads are far below
        return bool(
            (sign_flip_test(differences, 999, int(rng.integers(1 << 30))).p_adjusted < LEVEL).any()
        )

    return once


def bootstrap(count: int, spread: float, by_unit: bool) -> Draw:
    """The family test of roles over twenty heads whose scores have the threshold as their mean."""

    def once(rng: np.random.Generator) -> bool:
        document = documents(rng, count, 5.0)
        values = (
            rng.exponential(size=(len(document), 20))
            + rng.normal(scale=spread, size=(count, 20))[document]
        )
        seed = int(rng.integers(1 << 30))
        tests = bootstrap_family_test(values, 1.0, 500, seed, document if by_unit else None)
        return bool((tests.p_adjusted < LEVEL).any())

    return once


ROWS: tuple[tuple[str, str, float, Draw], ...] = (
    (
        "share, 81 documents, design effect 2.3",
        "Wilson's over items (as before)",
        0.95,
        shares(81, 0.19, False),
    ),
    ("share, 81 documents, design effect 2.3", "over documents", 0.95, shares(81, 0.19, True)),
    ("share, 20 documents, design effect 2.3", "over documents", 0.95, shares(20, 0.19, True)),
    ("mean, 81 documents", "t over examples (as before)", 0.95, means(81, 0.7, False)),
    ("mean, 81 documents", "t over documents", 0.95, means(81, 0.7, True)),
    ("ratio of totals, 81 documents", "t over documents", 0.95, means(81, 0.7, True, Ratios)),
    ("mean, 15 documents (flagged as few)", "t over documents", 0.95, means(15, 0.7, True)),
    ("heads no better than the bar, 288, alike", "sign-flip, max-T", LEVEL, family(300, 288, 0.7)),
    ("heads no better than the bar, 288, apart", "sign-flip, max-T", LEVEL, family(300, 288, 0.0)),
    (
        "heads no better than the bar, 288, 40 units",
        "sign-flip, max-T",
        LEVEL,
        family(40, 288, 0.3),
    ),
    (
        "scores at the threshold, 60 documents",
        "bootstrap over examples (as before)",
        LEVEL,
        bootstrap(60, 0.5, False),
    ),
    (
        "scores at the threshold, 60 documents",
        "bootstrap over documents",
        LEVEL,
        bootstrap(60, 0.5, True),
    ),
    ("share, 800 single examples", "over examples", 0.95, shares(800, 0.001, True)),
    ("mean, 200 single examples", "t over examples", 0.95, means(200, 0.0, False)),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=1000, help="corpora drawn for each row (default 1000)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| what | how | nominal | measured (± 2 standard errors) | runs |")
    print("|---|---|---|---|---|")
    for what, how, nominal, once in ROWS:
        rng = np.random.default_rng(args.seed)
        share = float(np.mean([once(rng) for _ in range(args.runs)]))
        error = 2 * (max(share * (1 - share), 1e-9) / args.runs) ** 0.5
        name = "coverage" if nominal > 0.5 else "error"
        print(
            f"| {what} | {how} | {name} {nominal:g} | {share:.3f} ± {error:.3f} | {args.runs:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
