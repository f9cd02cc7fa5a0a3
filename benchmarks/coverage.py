"""How often intervals hold the truth, and how often tests find what is not there: nominal against
measured, by simulation. Writes the tables of docs/levels.md.

    python benchmarks/coverage.py --runs 400 --write

Every interval that headwise prints has its rows. A row draws so many corpora (or test sets) with a
known truth, calls the functions that headwise calls, and counts. Each row has its own generator,
from the seed and its name: a row is the same whatever other rows there are. `--only WORD` runs the
rows whose name has the word."""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats as scipy_stats

from headwise.analyses.attribution.sketch import share_intervals
from headwise.analyses.probing.result import task_localisation
from headwise.experiments.patching.result import patching_shares
from headwise.stats.accumulators import Moments, Ratios, State
from headwise.stats.agreement import cohen_kappa
from headwise.stats.bootstrap import bootstrap_family_test
from headwise.stats.concentration import localisation
from headwise.stats.correlation import correlation
from headwise.stats.flips import sign_flip_test
from headwise.stats.intervals import median_interval, sample_interval, wilson_interval
from headwise.stats.metrics import METRICS
from headwise.stats.paired import flip_interval, paired_differences
from headwise.stats.picking import cross_fit, simultaneous_interval
from headwise.stats.units import share_interval, unit_key

PAGE = Path(__file__).parents[1] / "docs" / "levels.md"
ERROR_RATE = 0.05
N_POPULATION = 20_000
Generator = np.random.Generator
# Whether the interval of a draw holds the truth (a share of several intervals), or whether a test
# finds anything.
Draw = Callable[[Generator], float]


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes
    ----------
    printed : str
        What headwise prints with such an interval or test.
    how : str
        The method.
    data : str
        What was drawn.
    draw : callable
        Draws once.
    """

    printed: str
    how: str
    data: str
    draw: Draw


# --- means -----------------------------------------------------------------------------------------


def document_sizes(rng: Generator, n_documents: int, unevenness: float) -> np.ndarray:
    """Examples of each document, eight in the mean: lognormal with this spread, at least one."""
    mean_size = np.exp(rng.normal(np.log(8) - unevenness**2 / 2, unevenness, n_documents))
    return 1 + rng.poisson(mean_size)


def mean_draw(
    n_documents: int,
    unevenness: float = 0.3,
    kind: type[Moments] | type[Ratios] = Moments,
) -> Draw:
    """The mean of skewed values (exponential) of which half the variance is the document's."""

    def draw(rng: Generator) -> float:
        sizes = document_sizes(rng, n_documents, unevenness)
        document = np.repeat(np.arange(n_documents), sizes)
        of_document = rng.normal(size=n_documents)
        of_example = rng.exponential(size=len(document)) - 1
        values = torch.from_numpy(of_document[document] + of_example)[:, None]
        accumulator = kind(1)
        State(x=accumulator).of([unit_key(str(number), 0) for number in document])
        weight = torch.ones_like(values)
        accumulator.add_sums(values * weight, weight)
        summary = accumulator.summary()
        return float(summary["low"][0] <= 0 <= summary["high"][0])

    return draw


def plain_mean_draw(n_examples: int, shape: str) -> Draw:
    """The mean over examples without documents: of normal values, of skewed ones (lognormal,
    sigma 0.6, or exponential), or of shares most of which are near 0."""

    def draw(rng: Generator) -> float:
        if shape == "normal":
            values = rng.normal(1, 0.5, (n_examples, 20))
        elif shape == "skewed":
            values = rng.lognormal(-0.18, 0.6, (n_examples, 20))
        elif shape == "exponential":
            values = rng.exponential(1.0, (n_examples, 20))
        else:
            values = rng.beta(0.3, 2.0, (n_examples, 20)) / (0.3 / 2.3)
        moments = Moments(20)
        moments.add(torch.from_numpy(values))
        summary = moments.summary()
        return float(np.mean((summary["low"] <= 1) & (summary["high"] >= 1)))

    return draw


def ratio_draw(n_examples: int) -> Draw:
    """A ratio of totals: every token alike, examples of 5 to 40 tokens."""

    def draw(rng: Generator) -> float:
        weights = rng.integers(5, 41, n_examples).astype(float)
        shares = rng.beta(2, 6, n_examples)
        ratios = Ratios(1)
        ratios.add_sums(
            torch.from_numpy(weights * shares)[:, None], torch.from_numpy(weights)[:, None]
        )
        summary = ratios.summary()
        return float(summary["low"][0] <= 0.25 <= summary["high"][0])

    return draw


def patching_draw(n_pairs: int) -> Draw:
    """The share of a difference of logits that a head brings back: 0.3, over pairs whose gap
    differs."""

    def draw(rng: Generator) -> float:
        gap = rng.normal(4.0, 1.5, n_pairs)
        recovered = 0.3 * gap + rng.normal(0.0, 0.6, n_pairs)
        summary = patching_shares(recovered[:, None], gap).summary()
        return float(summary["low"][0] <= 0.3 <= summary["high"][0])

    return draw


def needle_draw(n_needles: int, n_trials: int) -> Draw:
    """The retrieval score 0.3 of a head: shares of nine tokens, with the needle's own part."""

    def draw(rng: Generator) -> float:
        needle = np.arange(n_trials) % n_needles
        chance = rng.beta(3, 7, n_needles)[needle]
        scores = rng.binomial(9, chance) / 9
        moments = Moments(1)
        moments.batch_units = needle.tolist()
        moments.add(torch.from_numpy(scores)[:, None])
        summary = moments.summary()
        return float(summary["low"][0] <= 0.3 <= summary["high"][0])

    return draw


def top_draw(n_examples: int, spread: float) -> Draw:
    """The highest of 144 means, with an interval that holds for all heads at once."""

    def draw(rng: Generator) -> float:
        truth = spread * rng.normal(size=144)
        values = truth + rng.exponential(size=(n_examples, 144)) - 1
        mean, low, high = sample_interval(values)
        low, high = simultaneous_interval(mean, low, high, n_examples, 144)
        best = int(mean.argmax())
        return float(low[best] <= truth[best] <= high[best])

    return draw


# --- shares ----------------------------------------------------------------------------------------


def share_draw(n_documents: int, unevenness: float = 0.3, share: float = 0.7) -> Draw:
    """A share whose chance differs from document to document (design effect about 2)."""

    def draw(rng: Generator) -> float:
        tries = document_sizes(rng, n_documents, unevenness)
        concentration = share * (1 - share) / 0.19**2 - 1 if share > 0.1 else 30.0
        chance = rng.beta(share * concentration, (1 - share) * concentration, n_documents)
        hits = rng.binomial(tries, chance).astype(float)
        low, high = share_interval(hits, tries.astype(float))
        return float(low <= share <= high)

    return draw


def single_share_draw(n_examples: int, share: float) -> Draw:
    """A share of independent examples, as a probe's accuracy on its test part."""

    def draw(rng: Generator) -> float:
        low, high = wilson_interval(rng.binomial(n_examples, share, 20), np.full(20, n_examples))
        return float(np.mean((low <= share) & (share <= high)))

    return draw


def best_head_draw(n_units: int, chances: str, method: str = "halves") -> Draw:
    """The accuracy of the best of 200 heads whose answers hang together."""

    def draw(rng: Generator) -> float:
        truth = np.full(200, 0.4)
        if chances == "slightly better":
            truth[0] = 0.43
        elif chances == "spread":
            truth = 0.4 + 0.1 * rng.random(200)
        elif chances == "standing out":
            truth[0] = 0.75
        sizes = 1 + rng.poisson(4.0, n_units)
        unit = np.repeat(np.arange(n_units), sizes)
        n_tries = len(unit)
        ease = 0.4 * rng.normal(size=(n_units, 1))[unit] + 0.5 * rng.normal(size=(n_tries, 1))
        own = np.sqrt(1 - 0.4**2 - 0.5**2) * rng.normal(size=(n_tries, 200))
        right = ease + own < scipy_stats.norm.ppf(truth)
        hits = np.zeros((n_units, 200, 1))
        np.add.at(hits[..., 0], unit, right)
        tries = np.broadcast_to(sizes.astype(float)[:, None, None], hits.shape)
        best = int(hits.sum((0, 2)).argmax())
        if method == "halves":
            fit = cross_fit(hits, tries)
            low, high = share_interval(fit.take(hits), fit.take(tries))
        else:
            low, high = share_interval(hits[:, best], tries[:, best])
        return float(low[0] <= truth[best] <= high[0])

    return draw


# --- differences on the same examples --------------------------------------------------------------


def flip_draw(n_examples: int, mean_gained: float, mean_lost: float) -> Draw:
    """A difference of accuracy by few flipped answers."""

    def draw(rng: Generator) -> float:
        rest = n_examples - mean_gained - mean_lost
        chances = np.array([mean_gained, mean_lost, rest]) / n_examples
        counts = rng.multinomial(n_examples, chances, 20)
        place = np.arange(n_examples)[:, None]
        gained = place < counts[:, 0]
        lost = (place >= counts[:, 0]) & (place < counts[:, 0] + counts[:, 1])
        low, high = flip_interval(gained, lost, np.ones((n_examples, 1)))
        truth = (mean_gained - mean_lost) / n_examples
        return float(np.mean((low <= truth) & (truth <= high)))

    return draw


def ablation_draw(metric: str, n_examples: int, which: str, share_changed: float = 1.0) -> Draw:
    """The difference that disabling a head makes, of single heads (24) or of the mean head.

    Test sets are drawn from a population of examples with a difficulty that all heads share.
    `share_changed` of the changes are kept: fewer flipped answers."""
    random = np.random.default_rng(7)
    shared = random.normal(size=N_POPULATION)
    strength = random.gamma(2.0, 0.05, 24)[:, None]
    harm = strength * (0.3 + shared + 0.5 * random.normal(size=(24, N_POPULATION)))
    truth: np.ndarray | None = None
    if metric == "loss":
        baseline = np.exp(0.5 * random.normal(size=N_POPULATION))
        values = baseline + harm * np.exp(0.5 * random.normal(size=N_POPULATION))
        expected = values.mean(1) - baseline.mean()
    else:
        if metric == "pearson":
            truth = random.normal(size=N_POPULATION)
            baseline = truth + 0.5 * random.normal(size=N_POPULATION)
            values = baseline + 2 * harm
        else:
            truth = (random.random(N_POPULATION) < 0.6).astype(int)
            margin = 1.5 + random.normal(size=N_POPULATION)
            baseline = np.where(margin > 0, truth, 1 - truth)
            values = np.where(margin - 2 * harm > 0, truth, 1 - truth)
            is_kept = random.random(values.shape) < share_changed
            values = np.where(is_kept, values, baseline)
        compute = METRICS[metric]
        expected = np.array([compute(truth, row) for row in values]) - compute(truth, baseline)

    def draw(rng: Generator) -> float:
        drawn = rng.choice(N_POPULATION, n_examples, replace=False)
        comparison = paired_differences(
            metric, baseline[drawn], values[:, drawn], None if truth is None else truth[drawn]
        )
        if which == "mean head":
            return float(comparison.mean_low <= expected.mean() <= comparison.mean_high)
        holds = (comparison.low <= expected) & (expected <= comparison.high)
        return float(holds.mean())

    return draw


def clustered_flip_draw(n_documents: int) -> Draw:
    """A difference of accuracy where answers flip document by document."""

    def draw(rng: Generator) -> float:
        sizes = document_sizes(rng, n_documents, 0.5)
        document = np.repeat(np.arange(n_documents), sizes)
        loss = rng.beta(0.5, 9.5, n_documents)[document]
        lost = rng.random(len(document)) < loss
        comparison = paired_differences(
            "accuracy",
            np.zeros(len(document)),
            lost[None].astype(float),
            np.zeros(len(document)),
            document,
        )
        return float(comparison.low[0] <= -0.05 <= comparison.high[0])

    return draw


# --- others ----------------------------------------------------------------------------------------


def correlation_draw(n_pairs: int, method: str) -> Draw:
    """A correlation over heads: 0.5 of normal values."""
    truth = 0.5 if method == "pearson" else 6 / np.pi * np.arcsin(0.25)

    def draw(rng: Generator) -> float:
        x = rng.normal(size=(20, n_pairs))
        y = 0.5 * x + np.sqrt(0.75) * rng.normal(size=(20, n_pairs))
        result = correlation(x, y, method)
        return float(np.mean((result.low <= truth) & (truth <= result.high)))

    return draw


def median_draw(n_values: int) -> Draw:
    """The median over runs of fine-tuning: of skewed values."""

    def draw(rng: Generator) -> float:
        interval = median_interval(list(rng.exponential(size=n_values)))
        return float(interval["low"] <= np.log(2) <= interval["high"])

    return draw


def overall_shares_draw(n_examples: int) -> Draw:
    """Shares of five patterns over all heads and examples."""
    parameters = np.array([2.0, 4.0, 3.0, 0.3, 6.0])

    def draw(rng: Generator) -> float:
        shares = rng.dirichlet(parameters, n_examples)
        _, low, high = sample_interval(shares)
        truth = parameters / parameters.sum()
        return float(np.mean((low <= truth) & (truth <= high)))

    return draw


def localisation_draw(n_examples: int) -> Draw:
    """How localised a task is among 24 heads: accuracies of 0.55 to 0.9, 0.5 by chance."""
    accuracy = np.linspace(0.55, 0.9, 24)
    truth = float(localisation((accuracy - 0.5)[None])[0])

    def draw(rng: Generator) -> float:
        labels = rng.integers(0, 2, n_examples)
        is_right = rng.random((24, n_examples)) < accuracy[:, None]
        fit = {"truth": labels, "heads/predicted": np.where(is_right, labels, 1 - labels)}
        _, low, high = task_localisation(fit, (4, 6), 0.5, regression=False)["localisation"]
        return float(low <= truth <= high)

    return draw


def kappa_draw(n_items: int) -> Draw:
    """Cohen's kappa of two who label 80 % alike, four classes."""

    def draw(rng: Generator) -> float:
        first = rng.integers(0, 4, n_items)
        agrees = rng.random(n_items) < 0.8
        other = (first + rng.integers(1, 4, n_items)) % 4
        result = cohen_kappa(first.tolist(), np.where(agrees, first, other).tolist())
        truth = (0.8 - 0.25) / 0.75
        return float(result.low <= truth <= result.high)

    return draw


def sketch_draw(n_tangents: int) -> Draw:
    """Contributions of eight tokens estimated from random tangents."""

    def draw(rng: Generator) -> float:
        jacobians = rng.normal(size=(8, 12, 12)) * rng.gamma(1.0, 1.0, 8)[:, None, None]
        tangents = rng.normal(size=(n_tangents, 12))
        squares = (np.einsum("sij,kj->ksi", jacobians, tangents) ** 2).sum(-1)
        norms = np.sqrt((jacobians**2).sum((1, 2)))
        mean = torch.from_numpy(squares.mean(0)).reshape(1, 1, 1, 1, 8)
        variance = torch.from_numpy(squares.var(0, ddof=1)).reshape(1, 1, 1, 1, 8)
        mask = torch.ones_like(mean, dtype=torch.bool)
        _, _, low, high = share_intervals(mean, variance, torch.tensor([n_tangents]), mask)
        truth = norms / norms.sum()
        holds = (low.numpy().ravel() <= truth) & (truth <= high.numpy().ravel())
        return float(holds.mean())

    return draw


# --- tests -----------------------------------------------------------------------------------------


def family_draw(n_units: int, n_heads: int, correlated: float) -> Draw:
    """Heads that are as good as the bar, half of them far worse: whether any is found better."""

    def draw(rng: Generator) -> float:
        pairs = 1 + rng.poisson(2.0, n_units)
        shared = rng.normal(size=(n_units, 1)) * correlated
        own = rng.normal(size=(n_units, n_heads)) * (1 - correlated**2) ** 0.5
        differences = np.rint((shared + own) * np.sqrt(pairs)[:, None])
        differences[:, n_heads // 2 :] -= pairs[:, None]
        tests = sign_flip_test(differences, 999, int(rng.integers(1 << 30)))
        return float((tests.p_adjusted < ERROR_RATE).any())

    return draw


def threshold_draw(n_documents: int, by_document: bool) -> Draw:
    """Scores of twenty heads whose mean is the threshold: whether any is found above it."""

    def draw(rng: Generator) -> float:
        document = np.repeat(np.arange(n_documents), 1 + rng.poisson(4.0, n_documents))
        of_document = rng.normal(scale=0.5, size=(n_documents, 20))[document]
        values = rng.exponential(size=(len(document), 20)) + of_document
        seed = int(rng.integers(1 << 30))
        units = document if by_document else None
        tests = bootstrap_family_test(values, 1.0, 500, seed, units)
        return float((tests.p_adjusted < ERROR_RATE).any())

    return draw


# --- tables ----------------------------------------------------------------------------------------

MEANS = "means of `surface`, `offsets`, `sinks`, `induction`, `logits`, `gradient`, ..."
SHARES = "accuracies of `dependency` and `coreference`, shares of `patterns`"
BEST = "the best head of `dependency` and `coreference`"
ABLATE = "`ablate`, `compare --probing`: one head"
MEAN_HEAD = "`ablate`: the mean head"
OVER_DOCUMENTS = "jackknife over documents, Student's t, corrected for skewness"
FLIPS = "Wilson's limits of gained and lost answers, squared and added"
HALVES = "picked on one half, scored on the other"


def interval_rows() -> Iterator[Row]:
    for n_examples in (10, 30, 200):
        for shape in ("normal", "skewed", "exponential", "shares near 0"):
            yield Row(
                MEANS,
                "Student's t over examples, corrected for skewness",
                f"{n_examples} examples, {shape}",
                plain_mean_draw(n_examples, shape),
            )
    for n_documents in (10, 27, 81):
        for unevenness, lengths in ((0.3, "like"), (1.0, "differing")):
            yield Row(
                MEANS,
                OVER_DOCUMENTS,
                f"{n_documents} documents of {lengths} length",
                mean_draw(n_documents, unevenness),
            )
    for n_examples in (30, 200):
        yield Row(
            "means over tokens, UAS of `tree_probe`",
            "ratio of totals, Student's t over examples",
            f"{n_examples} examples of 5 to 40 tokens",
            ratio_draw(n_examples),
        )
    yield Row(
        "means over tokens",
        OVER_DOCUMENTS,
        "27 documents of differing length",
        mean_draw(27, 1.0, Ratios),
    )
    for n_examples, spread in ((30, 0.0), (200, 0.0), (200, 0.1)):
        heads = "equal heads" if not spread else "heads that differ little"
        yield Row(
            "highest heads of summaries and of the page",
            "Student's t, for all heads at once",
            f"144 {heads}, {n_examples} examples",
            top_draw(n_examples, spread),
        )
    for n_documents in (10, 20, 81):
        yield Row(
            SHARES,
            "Wilson's, effective number over documents",
            f"0.7, {n_documents} documents of like length",
            share_draw(n_documents),
        )
    yield Row(
        SHARES,
        "Wilson's, effective number over documents",
        "0.7, 27 documents of differing length",
        share_draw(27, 1.0),
    )
    yield Row(
        SHARES,
        "Wilson's, effective number over documents",
        "0.05, 40 documents",
        share_draw(40, share=0.05),
    )
    for n_examples, share in ((30, 0.5), (200, 0.9), (1000, 0.98)):
        yield Row(
            "accuracies of `probing`",
            "Wilson's over test examples",
            f"{share} of {n_examples}",
            single_share_draw(n_examples, share),
        )
    yield Row(
        BEST,
        "on the text it was picked on",
        "200 equal heads, 100 documents",
        best_head_draw(100, "equal", "same text"),
    )
    for n_units, chances in (
        (30, "equal"),
        (100, "equal"),
        (100, "slightly better"),
        (100, "spread"),
        (100, "standing out"),
        (300, "equal"),
    ):
        heads = {
            "equal": "200 equal heads",
            "slightly better": "200 heads, one 3 points better",
            "spread": "200 heads, spread over 10 points",
            "standing out": "200 heads, one 35 points better",
        }[chances]
        yield Row(BEST, HALVES, f"{heads}, {n_units} documents", best_head_draw(n_units, chances))
    for n_examples in (50, 277, 1000):
        for gained, lost in ((0.0, 0.2), (0.5, 2.0), (1.0, 5.7), (8.0, 12.0)):
            yield Row(
                f"{ABLATE}, accuracy; selectivity of `probing`",
                FLIPS,
                f"{n_examples} examples, {gained:g} gained and {lost:g} lost in the mean",
                flip_draw(n_examples, gained, lost),
            )
    yield Row(
        f"{ABLATE}, accuracy",
        f"{FLIPS}, over documents",
        "40 documents, 5 % lost, whole documents alike",
        clustered_flip_draw(40),
    )
    for n_examples in (50, 277):
        for share_changed, changed in ((1.0, ""), (0.2, ", few flipped answers")):
            yield Row(
                f"{MEAN_HEAD}, accuracy",
                FLIPS,
                f"24 heads, {n_examples} examples{changed}",
                ablation_draw("accuracy", n_examples, "mean head", share_changed),
            )
    for metric, how in (
        ("f1", "jackknife, Student's t, half an answer of each kind added"),
        ("pearson", "jackknife, Student's t"),
        ("loss", "Student's t"),
    ):
        for which in ("one head", "mean head"):
            for n_examples in (50, 277):
                printed = ABLATE if which == "one head" else MEAN_HEAD
                yield Row(
                    f"{printed}, {metric}",
                    how,
                    f"24 heads, {n_examples} examples",
                    ablation_draw(metric, n_examples, which),
                )
    for n_pairs in (30, 100):
        yield Row(
            "`patch`, `circuit`: shares of the difference of logits",
            "ratio of totals, Student's t over pairs",
            f"{n_pairs} pairs",
            patching_draw(n_pairs),
        )
    for n_needles, n_trials in ((12, 12), (12, 24), (24, 72)):
        yield Row(
            "scores of `retrieval`",
            "jackknife over needles, Student's t, corrected for skewness",
            f"{n_needles} needles, {n_trials} trials",
            needle_draw(n_needles, n_trials),
        )
    for n_pairs, method in ((30, "pearson"), (144, "pearson"), (144, "spearman")):
        yield Row(
            "correlations over heads (`ablate`, `patch`, `induction`, `roles`)",
            "Fisher's z",
            f"{method.title()}'s, {n_pairs} heads",
            correlation_draw(n_pairs, method),
        )
    yield Row("`finetune`: medians over runs", "order statistics", "9 runs", median_draw(9))
    yield Row("`finetune`: medians over runs", "order statistics", "25 runs", median_draw(25))
    for n_examples in (30, 200):
        yield Row(
            "`patterns`: shares over all heads",
            "Student's t over examples, corrected for skewness",
            f"five patterns, {n_examples} examples",
            overall_shares_draw(n_examples),
        )
    yield Row(
        "`probing`: how localised a task is",
        "pivotal bootstrap",
        "24 heads, 500 examples",
        localisation_draw(500),
    )
    yield Row("kappa of two raters", "percentile bootstrap", "100 items", kappa_draw(100))
    for n_tangents in (16, 64):
        yield Row(
            "`attribution`: contributions from random tangents",
            "log-normal, Welch's degrees of freedom",
            f"eight tokens, {n_tangents} tangents",
            sketch_draw(n_tangents),
        )


def test_rows() -> Iterator[Row]:
    for n_units, correlated, data in (
        (300, 0.7, "288 heads, alike, 300 documents"),
        (300, 0.0, "288 heads, apart, 300 documents"),
        (40, 0.3, "288 heads, 40 documents"),
    ):
        yield Row(
            "`dependency`, `coreference`: any head better than the bar",
            "sign-flip test, max-T",
            data,
            family_draw(n_units, 288, correlated),
        )
    for by_document, how in ((False, "over examples, for comparison"), (True, "over documents")):
        yield Row(
            "`roles`: any score above the threshold",
            f"studentized bootstrap {how}",
            "20 heads, 60 documents",
            threshold_draw(60, by_document),
        )


def measured(row: Row, n_runs: int, seed: int) -> str:
    """Return the measured rate with two standard errors."""
    name = f"{row.printed}|{row.how}|{row.data}"
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    rates = np.array([row.draw(rng) for _ in range(n_runs)])
    error = 2 * rates.std() / np.sqrt(n_runs)
    return f"{rates.mean():.3f} ± {error:.3f}"


def table(rows: Iterator[Row], heading: str, n_runs: int, seed: int, only: str) -> str:
    lines = [f"| printed | how | simulated | {heading} |", "|---|---|---|---|"]
    for row in rows:
        line = f"| {row.printed} | {row.how} | {row.data} | "
        if only in line:
            lines.append(f"{line}{measured(row, n_runs, seed)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def write(section: str, text: str) -> None:
    """Put a table between its marks in the page."""
    mark = f"<!-- made by benchmarks/coverage.py: {section} -->\n"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(mark)
    assert rest, f"{PAGE} has no mark {mark!r}"
    after = rest[rest.index("<!-- end -->") :]
    PAGE.write_text(f"{before}{mark}\n{text}\n\n{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=400, help="draws for each row (default 400)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="rows that have this text")
    parser.add_argument("--write", action="store_true", help="into docs/levels.md")
    options = parser.parse_args()
    made_by = f"{options.runs} draws for each row, seed {options.seed}."
    for section, rows, heading in (
        ("intervals", interval_rows(), "holds the truth (nominal 0.95)"),
        ("tests", test_rows(), "finds something (nominal 0.05)"),
    ):
        text = table(rows, heading, options.runs, options.seed, options.only)
        if options.write and not options.only:
            write(section, f"{made_by}\n\n{text}")


if __name__ == "__main__":
    main()
