"""What random weights are called, and whether intervals hold what they say: the tables of
docs/random-weights.md.

    python benchmarks/random_models.py [--runs 20] [--repeats 4000] [--keep FOLDER] [--write
    docs/random-weights.md]

The first table runs every analysis that tests heads on random-weights models (as transformers draws
them, with query and key weights six times as large, and with a factor that rises from one to eight
over the layers), and counts the runs in which any head is significant at a corrected p < 0.05. The
second simulates every interval and test in use there where the truth is known."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats

from headwise.stats.bootstrap import bootstrap_family_test, bootstrap_interval
from headwise.stats.corrections import benjamini_hochberg, holm
from headwise.stats.intervals import median_interval, sample_interval, wilson_interval
from headwise.stats.nulls import chance_bound
from headwise.stats.tests import mcnemar_exact, overlap_test, z_test
from headwise.testing.levels import OF_DECODERS, TESTED, RandomRuns, level_examples, random_calls

LARGE = "induction, 36 × 32 heads"
FIRST_SEED = (
    100  # lower ones were looked at while the bounds were made, and can say nothing of them
)
Row = tuple[str, str, float, float, int]  # what, on which data, nominal, measured, simulations


def calls(runs: int, keep: Path) -> pd.DataFrame:
    """What is called on random weights: encoders and decoders, three gains, `runs` seeds each; kept
    run by run."""
    found = []
    examples = level_examples()
    for seed in range(FIRST_SEED, FIRST_SEED + runs):
        for kind in ("encoder", "decoder"):
            file = keep / f"{kind}-{seed}.csv"
            if not file.exists():
                file.touch()  # taken: several processes may share the work
                setting = RandomRuns(seeds=(seed,), causal=kind == "decoder")
                one = random_calls(None, examples, setting).assign(model=kind)
                one.to_csv(file, index=False)
                said = one.loc[one["significant"] > 0, ["analysis", "gain", "significant", "what"]]
                print(f"{kind} {seed}: {said.to_dict('records')}", flush=True)
            found.append(file)
        file = keep / f"large-{seed}.csv"
        if not file.exists():
            file.touch()
            setting = RandomRuns(seeds=(seed,), causal=True, layers=36, heads=32, d_head=4)
            one = random_calls(["induction"], examples, setting).assign(
                model="decoder", analysis=LARGE
            )
            one.to_csv(file, index=False)
        found.append(file)
    return pd.concat([pd.read_csv(file) for file in found if file.stat().st_size])


def calls_table(found: pd.DataFrame) -> Iterator[str]:
    settings = []
    for model in ("encoder", "decoder"):
        for gain in found["gain"].unique():
            settings.append((model, gain))
    heads = [f"{model}, {gain}" for model, gain in settings]
    yield f"| analysis | {' | '.join(heads)} | all | at most, by chance |"
    yield "|---|" + "---|" * (len(heads) + 2)
    for name in (*TESTED, *OF_DECODERS, LARGE):
        own = found[found["analysis"] == name]
        cells = []
        for model, gain in settings:
            part = own[(own["model"] == model) & (own["gain"] == gain)]
            cells.append(f"{(part['significant'] > 0).sum()} of {len(part)}" if len(part) else "–")
        most = int(stats.binom.ppf(0.95, len(own), 0.05))
        yield f"| {name} | {' | '.join(cells)} | {(own['significant'] > 0).sum()} of {len(own)} | {most} |"


# --- simulations ----------------------------------------------------------------------------------


def samples(shape: str, size: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Values with mean 1: `normal`, or `skewed` as scores of heads are (lognormal, sigma 0.6)."""
    return rng.normal(1, 0.5, size) if shape == "normal" else rng.lognormal(-0.18, 0.6, size)


def covered(low: np.ndarray, high: np.ndarray, truth: float) -> float:
    return float(((low <= truth) & (truth <= high)).mean())


def intervals(repeats: int, rng: np.random.Generator) -> Iterator[Row]:
    for shape in ("normal", "skewed"):
        for n in (10, 30, 100, 400):
            values = samples(shape, (n, repeats), rng)
            _, low, high = sample_interval(values)
            yield (
                "interval of a mean (Student's t, corrected for skewness)",
                f"{shape}, {n} inputs",
                0.95,
                covered(low, high, 1.0),
                repeats,
            )
        few = min(repeats, 500)
        found = bootstrap_interval(samples(shape, (100, few), rng), repeats=1000)
        yield (
            "interval of a mean (percentile bootstrap)",
            f"{shape}, 100 inputs",
            0.95,
            covered(*found, 1.0),
            few,
        )
        middle = 1.0 if shape == "normal" else float(np.exp(-0.18))
        held = [median_interval(list(samples(shape, (25,), rng))) for _ in range(few)]
        inside = [one["low"] <= middle <= one["high"] for one in held]
        yield (
            "interval of a median (order statistics)",
            f"{shape}, 25 values",
            0.95,
            float(np.mean(inside)),
            few,
        )
    for n, share in ((30, 0.5), (30, 0.1), (200, 0.02)):
        low, high = wilson_interval(rng.binomial(n, share, repeats), np.full(repeats, n))
        yield (
            "interval of a share (Wilson)",
            f"{share:g} of {n}",
            0.95,
            covered(low, high, share),
            repeats,
        )


def levels(repeats: int, rng: np.random.Generator) -> Iterator[Row]:
    def z(values: np.ndarray) -> np.ndarray:
        return z_test(
            values.mean(0), values.var(0, ddof=1), np.full(values.shape[1:], len(values)), 1.0
        ).p_value

    for shape in ("normal", "skewed"):
        for n in (30, 100, 400):
            p = z(samples(shape, (n, repeats), rng))
            yield (
                "z-test, one-tailed",
                f"{shape}, {n} inputs",
                0.05,
                float((p < 0.05).mean()),
                repeats,
            )
        few = min(repeats, 400)
        families = [z(samples(shape, (100, 200), rng)) for _ in range(few)]
        some = np.mean([(holm(p) < 0.05).any() for p in families])
        yield "z-test with Holm, any of 200 tests", f"{shape}, 100 inputs", 0.05, float(some), few
        shares = []
        for _ in range(few):
            values = samples(shape, (100, 200), rng)
            values[:, :50] += 0.3
            said = benjamini_hochberg(z(values)) < 0.05
            shares.append(said[50:].sum() / max(said.sum(), 1))
        about = f"{shape}, 100 inputs, 50 of 200 true"
        yield (
            "z-test with Benjamini-Hochberg, false share",
            about,
            0.05,
            float(np.mean(shares)),
            few,
        )
        tested = [
            bootstrap_family_test(samples(shape, (60, 40), rng), 1.0, 300, k)
            for k in range(few // 2)
        ]
        one = np.mean([(found.p_value < 0.05).mean() for found in tested])
        yield "studentized bootstrap", f"{shape}, 60 inputs", 0.05, float(one), 40 * len(tested)
        some = np.mean([(found.p_adjusted < 0.05).any() for found in tested])
        yield (
            "studentized bootstrap, any of 40 (max-t)",
            f"{shape}, 60 inputs",
            0.05,
            float(some),
            len(tested),
        )
    for n in (20, 100):
        first = rng.binomial(n, 0.5, repeats)
        p = mcnemar_exact(first, n - first)
        yield (
            "McNemar's exact test",
            f"{n} items that differ",
            0.05,
            float((p < 0.05).mean()),
            repeats,
        )
    few = min(repeats, 500)
    p = np.array([overlap_test(rng.random((144, 2)) < 0.2)[0, 1] for _ in range(few)])
    yield (
        "overlap of two roles (hypergeometric)",
        "144 heads, 20 % each",
        0.05,
        float((p < 0.05).mean()),
        few,
    )
    for tail, draw in (("normal", rng.standard_normal), ("exponential", rng.standard_exponential)):
        for heads, models in ((144, 1), (12, 4)):
            passed = []
            for _ in range(few):
                bound = chance_bound(draw(size=(heads * models, 8)), heads * 8, tail=tail)
                passed.append(bool((draw(size=(heads, 8)) > bound).any()))
            about = (
                f"{heads} heads, {models} random model{'s' if models > 1 else ''}, 8 items, {tail}"
            )
            yield (
                f"bound from random heads ({tail} tail), any head passes",
                about,
                0.05,
                float(np.mean(passed)),
                few,
            )


def simulated_table(
    simulate: Callable[[int, np.random.Generator], Iterator[Row]], repeats: int
) -> Iterator[str]:
    yield "| what | data | nominal | measured | simulations |"
    yield "|---|---|---|---|---|"
    for what, data, nominal, measured, count in simulate(repeats, np.random.default_rng(16)):
        yield f"| {what} | {data} | {nominal:g} | {measured:.3f} | {count:,} |"


TEXT = """# Random weights: how often headwise finds something where there is nothing

Made by `python benchmarks/random_models.py --runs {runs} --write docs/random-weights.md`;
nothing here is written by hand.

A model with random weights has no heads that do anything. So an analysis run on it should find no
significant head, beyond what a test at level 0.05 finds by chance. This page counts what each
analysis finds. The same for the labels of heads:
[labels.md](labels.md#what-was-tried-on-random-weights).

## Analyses on random weights

A *run* is one model of 3 × 4 heads (in the last row 36 × 32) on {examples} examples of the
built-in corpus. The models have weights

- *as drawn*: as transformers initialises them;
- *× 6*: with query and key weights six times as large, so that attention is far from uniform;
- *× 1 to × 8*: with a factor that rises over the layers, so that layers differ in sharpness.

Each cell counts the runs in which any head was significant (corrected p < 0.05). The last column
is the number that a test at level 0.05 does not exceed in 95 of 100 such rows. Seeds start at 100;
lower seeds were used while the thresholds were chosen.

{calls}

What counts as significant:

| analysis | rule |
|---|---|
| roles | `has_role_adjusted`; in decoders also `has_role_rest` (excluding the first token) |
| frames, token_pairs, features | `stands_out` |
| dependency, coreference | better than the baselines |
| patterns (no test) | more than half of a head's maps have one pattern, by the lower end of the interval |
| induction, circuits (decoders only) | any of their scores |
| sinks, logits, copy_suppression (decoders only) | `first`, `specific`, `suppression` |

To check an analysis of your own in the same way, use `headwise.testing.random_calls` and
`check_random_models`.

## Intervals: how often they contain the true value

{intervals}

## Tests: how often they reject a true hypothesis

{levels}

Notes:

- Results from fewer than 30 inputs are flagged, and no role is assigned from them.
- The z-test uses the normal distribution instead of Student's t. From 30 to 100 inputs it
  therefore rejects slightly too often.
- Means of heads are usually skewed to the right. For these the z-test rejects too rarely, which is
  the safe side.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=20, help="seeds for each kind of model (default 20)"
    )
    parser.add_argument("--repeats", type=int, default=4000, help="simulations (default 4000)")
    parser.add_argument(
        "--keep", type=Path, help="keep finished runs here; several processes may share it"
    )
    parser.add_argument("--write", type=Path, help="write the page here instead of printing it")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep = asked.keep or Path(tempfile.mkdtemp())
    keep.mkdir(parents=True, exist_ok=True)
    page = TEXT.format(
        runs=asked.runs,
        examples=len(level_examples()),
        calls="\n".join(calls_table(calls(asked.runs, keep))),
        intervals="\n".join(simulated_table(intervals, asked.repeats)),
        levels="\n".join(simulated_table(levels, asked.repeats)),
    )
    if asked.write:
        asked.write.write_text(page, encoding="utf-8")
    else:
        print(page)


if __name__ == "__main__":
    main()
