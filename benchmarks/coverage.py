"""How often intervals hold the truth, and how often tests find what is not there: nominal against
measured, by simulation. Writes the tables of docs/levels.md.

    python benchmarks/coverage.py --write
    python benchmarks/coverage.py --missing --write

Every interval that headwise prints has its rows. A row draws so many corpora (or test sets) with a
known truth, calls the functions that headwise calls, and counts. Each row has its own generator,
from the seed and its name: a row is the same whatever other rows there are. `--only WORD` runs the
rows whose name has the word, `--missing` those that the page lacks; the page keeps its other rows."""

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
from headwise.analyses.patterns.correct import ErrorModel, corrected_with_interval
from headwise.analyses.probing.result import task_localisation
from headwise.analyses.retrieval.analysis import score_interval
from headwise.experiments.circuit.result import _share_interval as circuit_interval
from headwise.experiments.circuit.result import does_task
from headwise.experiments.patching.result import patching_shares
from headwise.experiments.reproduction.estimates import Estimate, mean_difference
from headwise.experiments.reproduction.learning import DevPredictions, score_difference
from headwise.stats import depth
from headwise.stats.accumulators import Moments, Ratios, State
from headwise.stats.agreement import cohen_kappa
from headwise.stats.bootstrap import bootstrap_family_test
from headwise.stats.change_points import fit_step
from headwise.stats.concentration import localisation
from headwise.stats.correlation import correlation
from headwise.stats.flips import sign_flip_test
from headwise.stats.intervals import median_interval, sample_interval, wilson_interval
from headwise.stats.metrics import METRICS
from headwise.stats.paired import flip_interval, paired_differences
from headwise.stats.picking import cross_fit, simultaneous_interval
from headwise.stats.units import mean_over_units, share_interval, unit_key, unit_ratio

PAGE = Path(__file__).parents[1] / "docs" / "levels.md"
ERROR_RATE = 0.05
N_POPULATION = 20_000
MANY = 2_000  # draws of rows that cost little
FEW = 300  # of all others
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
    draws : int, default 300
        How many times.
    """

    printed: str
    how: str
    data: str
    draw: Draw
    draws: int = FEW

    @property
    def name(self) -> str:
        return f"{self.printed} | {self.how} | {self.data}"


# --- means -----------------------------------------------------------------------------------------


def document_sizes(rng: Generator, n_documents: int, unevenness: float) -> np.ndarray:
    """Examples of each document, eight in the mean: lognormal with this spread, at least one."""
    mean_size = np.exp(rng.normal(np.log(8) - unevenness**2 / 2, unevenness, n_documents))
    return 1 + rng.poisson(mean_size)


def values_about_one(rng: Generator, shape: str, size: tuple[int, ...] | int) -> np.ndarray:
    """Values of mean 1: normal, skewed (lognormal, sigma 0.6), very skewed (sigma 1), exponential,
    shares most of which are near 0, or values of which three quarters are near 0."""
    if shape == "normal":
        return rng.normal(1, 0.5, size)
    if shape == "skewed":
        return rng.lognormal(-0.18, 0.6, size)
    if shape == "very skewed":
        return rng.lognormal(-0.5, 1.0, size)
    if shape == "exponential":
        return rng.exponential(1.0, size)
    if shape == "shares near 0":
        return rng.beta(0.3, 2.0, size) / (0.3 / 2.3)
    assert shape == "three quarters near 0", shape
    is_large = rng.random(size) < 0.25
    return np.where(is_large, rng.exponential(4, size), 0.0) + rng.normal(0, 0.05, size)


def share_held(low: np.ndarray, truth: np.ndarray | float, high: np.ndarray) -> float:
    """Return the share of the intervals that hold the truth."""
    return float(np.mean((low <= truth) & (truth <= high)))


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
    """The mean over examples without documents: of normal or skewed values, or of shares most of
    which are near 0."""

    def draw(rng: Generator) -> float:
        moments = Moments(20)
        moments.add(torch.from_numpy(values_about_one(rng, shape, (n_examples, 20))))
        summary = moments.summary()
        return share_held(summary["low"], 1, summary["high"])

    return draw


def ratio_draw(n_examples: int, shape: str = "", third_moments: bool = True) -> Draw:
    """A ratio of totals: every token alike, examples of 5 to 40 tokens, of shares about 0.25, or of
    which most are near 0, or of skewed values (lognormal, sigma 0.6)."""

    def draw(rng: Generator) -> float:
        weights = rng.integers(5, 41, n_examples).astype(float)
        if shape:
            shares = 0.25 * values_about_one(rng, shape, n_examples)
        else:
            shares = rng.beta(2, 6, n_examples)
        ratios = Ratios(1, third_moments=third_moments)
        ratios.add_sums(
            torch.from_numpy(weights * shares)[:, None], torch.from_numpy(weights)[:, None]
        )
        summary = ratios.summary()
        return float(summary["low"][0] <= 0.25 <= summary["high"][0])

    return draw


def few_texts_draw(n_texts: int, shape: str) -> Draw:
    """The mean over few texts: of normal or skewed values, or of values three quarters of which are
    near 0."""

    def draw(rng: Generator) -> float:
        _, low, high = sample_interval(values_about_one(rng, shape, (n_texts, 20)))
        return share_held(low, 1, high)

    return draw


def skewed_documents_draw(n_documents: int) -> Draw:
    """The mean of values of which a part (exponential, too) is the document's, one side alike."""

    def draw(rng: Generator) -> float:
        document = np.repeat(np.arange(n_documents), document_sizes(rng, n_documents, 0.5))
        of_document = rng.exponential(0.7, n_documents)
        values = of_document[document] + rng.exponential(0.3, len(document))
        low, high = mean_over_units(values, document).interval()
        return float(low <= 1 <= high)

    return draw


def sparse_draw(n_examples: int) -> Draw:
    """The mean over the examples that have a value: one in four, skewed."""

    def draw(rng: Generator) -> float:
        values = values_about_one(rng, "skewed", (n_examples, 20))
        values[rng.random(values.shape) > 0.25] = np.nan
        moments = Moments(20)
        moments.add(torch.from_numpy(values))
        summary = moments.summary()
        return share_held(summary["low"], 1, summary["high"])

    return draw


def task_draw(n_tasks: int, n_prompts: int, are_new: bool) -> Draw:
    """The gain of a head over the prompts of tasks: of these tasks, or of tasks in general."""
    fixed = np.abs(np.random.default_rng(1).normal(0, 0.03, n_tasks))

    def draw(rng: Generator) -> float:
        of_task = rng.exponential(0.03, n_tasks) if are_new else fixed
        gains = of_task[:, None] + 0.03 * (rng.lognormal(-0.5, 1.0, (n_tasks, n_prompts)) - 1)
        truth = 0.03 if are_new else fixed.mean()
        _, low, high = sample_interval(gains.ravel())
        return float(low <= truth <= high)

    return draw


def unit_sizes(rng: Generator, n_units: int, most: int) -> np.ndarray:
    """Return the unit of each pair: one to `most` pairs of each unit."""
    return np.repeat(np.arange(n_units), rng.integers(1, most + 1, n_units))


def patching_draw(n_units: int, most: int = 1, skewed: bool = False) -> Draw:
    """The share of a difference of logits that a head brings back, over units of pairs whose gap
    differs: 0.3 of each with noise; or 0.05 on average, most of it in few pairs."""

    def draw(rng: Generator) -> float:
        unit = unit_sizes(rng, n_units, most)
        if skewed:
            truth = 0.05
            gap = rng.gamma(3.0, 1.4, len(unit))
            noise = rng.normal(0.0, 0.02, len(unit))
            recovered = truth * gap * rng.lognormal(-0.5, 1.0, n_units)[unit] + noise
        else:
            truth = 0.3
            gap = rng.normal(4.0, 1.5, len(unit))
            own_share = truth + rng.normal(0.0, 0.1, n_units)[unit]
            recovered = own_share * gap + rng.normal(0.0, 0.6, len(unit))
        summary = patching_shares(recovered[:, None], gap, unit.tolist()).summary()
        return float(summary["low"][0] <= truth <= summary["high"][0])

    return draw


def faithfulness_draw(n_units: int, most: int = 1) -> Draw:
    """The faithfulness 0.7 of a circuit: a share of the gap, which differs from pair to pair."""

    def draw(rng: Generator) -> float:
        unit = unit_sizes(rng, n_units, most)
        gap = rng.normal(4.0, 1.5, len(unit)) + rng.normal(0.0, 0.5, n_units)[unit]
        own_share = 0.7 + rng.normal(0.0, 0.15, n_units)[unit]
        values = own_share * gap + rng.normal(0.0, 0.6, len(unit))
        low, high = circuit_interval(
            values[:, None], gap, np.zeros(len(gap)), [str(number) for number in unit]
        )
        return float(low[0] <= 0.7 <= high[0])

    return draw


def task_check_draw(n_units: int, share: float) -> Draw:
    """In what share of the pairs a model prefers the answer; units differ in that."""
    concentration = 8.0

    def draw(rng: Generator) -> float:
        unit = unit_sizes(rng, n_units, 4)
        chance = rng.beta(share * concentration, (1 - share) * concentration, n_units)[unit]
        differences = np.where(rng.random(len(unit)) < chance, 1.0, -1.0)
        check = does_task(differences, [str(number) for number in unit])
        return float(check.right_low <= share <= check.right_high)

    return draw


def needle_draw(n_needles: int, n_trials: int, score: float) -> Draw:
    """The retrieval score of a head: shares of nine tokens, with the needle's own part."""

    def draw(rng: Generator) -> float:
        needle = np.arange(n_trials) % n_needles
        chance = rng.beta(10 * score, 10 * (1 - score), n_needles)[needle]
        scores = rng.binomial(9, chance) / 9
        low, high = score_interval(scores, needle.tolist(), 9.0)
        return float(low <= score <= high)

    return draw


def found_needles_draw(n_needles: int, share: float) -> Draw:
    """The share of the needles' tokens (nine each) that a short cache still predicts; most needles
    are predicted whole, or hardly."""

    def draw(rng: Generator) -> float:
        chance = rng.beta(3 * share, 3 * (1 - share), n_needles)
        found = rng.binomial(9, chance)
        low, high = share_interval(found, np.full(n_needles, 9.0))
        return float(low <= share <= high)

    return draw


def layers_draw(layers: int, heads: int, bins: int, likeness: float, what: str) -> Draw:
    """The share of heads with a label, at each depth or of the whole model, or the mean depth of
    such heads: heads of a layer have a chance in common that varies about that of its depth."""
    places = depth.relative_depth(layers)
    expected = np.stack([0.1 * (1.6 * places + 0.2), np.full(layers, 0.2)], axis=1)

    def draw(rng: Generator) -> float:
        chance = expected
        if likeness:
            concentration = 1 / likeness - 1
            chance = rng.beta(expected * concentration, (1 - expected) * concentration)
        counts = rng.binomial(heads, chance)
        if what == "mean depth":
            _, low, high = depth.mean_depth_interval(counts[:, 0])
            truth = (expected[:, 0] * places).sum() / expected[:, 0].sum()
            return float(low <= truth <= high) if np.isfinite(low) else np.nan
        low, high, total_low, total_high = depth.share_intervals(counts, heads, bins)
        if what == "over heads":
            total_low, total_high = wilson_interval(counts.sum(0), np.full(2, layers * heads))
        if what in ("model", "over heads"):
            truth = expected.mean(0)
            return share_held(total_low, truth, total_high)
        bin_of_layer = depth.depth_bins(layers, bins)
        by_bin = [expected[bin_of_layer == number].mean(0) for number in range(bins)]
        truth = np.stack(by_bin, 1)
        return share_held(low, truth, high)

    return draw


def step_draw(n_times: int, size: float, gradual: bool = False) -> Draw:
    """The place of a step of so many standard deviations, or of the middle of a rise that takes
    about four of the models."""

    def draw(rng: Generator) -> float:
        first_after = rng.integers(2, n_times - 1, 20)
        time = np.arange(n_times) - first_after[:, None]
        rise = 1 / (1 + np.exp(-(time + 0.5))) if gradual else time >= 0
        fit = fit_step(rng.normal(size=(20, n_times)) + size * rise)
        return share_held(fit.low, first_after, fit.high)

    return draw


def margin_draw(n_units: int, chances: str) -> Draw:
    """By how much the head picked on one half beats a baseline on the other."""

    def draw(rng: Generator) -> float:
        truth = np.full(50, 0.5)
        if chances == "standing out":
            truth[0] = 0.75
        unit = np.repeat(np.arange(n_units), 1 + rng.poisson(4.0, n_units))
        ease = 0.6 * rng.normal(size=(n_units, 1))[unit]
        right = ease + 0.8 * rng.normal(size=(len(unit), 50)) < scipy_stats.norm.ppf(truth)
        baseline = ease[:, 0] + 0.8 * rng.normal(size=len(unit)) < scipy_stats.norm.ppf(0.4)
        hits = np.zeros((n_units, 50, 1))
        np.add.at(hits[..., 0], unit, right)
        baseline_hits = np.zeros((n_units, 50, 1))
        np.add.at(baseline_hits[..., 0], unit, np.broadcast_to(baseline[:, None], right.shape))
        sizes = np.bincount(unit).astype(float)[:, None, None]
        tries = np.broadcast_to(sizes, hits.shape)
        fit = cross_fit(hits, tries)
        margin = unit_ratio(fit.take(hits) - fit.take(baseline_hits), fit.take(tries))
        low, high = margin.interval()
        return float(low[0] <= truth.max() - 0.4 <= high[0])

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
        return share_held(low, share, high)

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
        return share_held(low, truth, high)

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
        if metric in ("pearson", "spearman"):
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
        return share_held(comparison.low, expected, comparison.high)

    return draw


def skewed_loss_draw(n_examples: int, n_documents: int = 0) -> Draw:
    """A rise of the loss that is large in few examples, or in few documents."""

    def draw(rng: Generator) -> float:
        units = None
        of_document: np.ndarray | float = 0.0
        if n_documents:
            units = rng.integers(0, n_documents, n_examples)
            of_document = (rng.exponential(0.5, n_documents) - 0.5)[units]
        change = 0.3 * rng.lognormal(-0.5, 1.0, n_examples) + of_document
        comparison = paired_differences("loss", np.zeros(n_examples), change[None], None, units)
        return float(comparison.low[0] <= 0.3 <= comparison.high[0])

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
        return share_held(result.low, truth, result.high)

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
        return share_held(low, truth, high)

    return draw


def corrected_shares_draw(n_examples: int) -> Draw:
    """Shares of five patterns, corrected for a classifier whose errors are known from 40 heads."""
    shares = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    says = 0.8 * np.eye(5) + 0.2 / 5

    def draw(rng: Generator) -> float:
        tables = []
        for _ in range(40):
            by_truth = rng.multinomial(30, rng.dirichlet(10 * shares))
            tables.append(np.stack([rng.multinomial(n, says[c]) for c, n in enumerate(by_truth)]))
        truth = rng.dirichlet(10 * shares, n_examples)
        said = np.stack([rng.multinomial(144, row @ says) / 144 for row in truth])
        errors = ErrorModel(np.array(tables, dtype=float))
        corrected = corrected_with_interval(said, errors, seed=int(rng.integers(1 << 30)))
        return share_held(corrected.low, shares, corrected.high)

    return draw


def welch_draw(n_first: int, n_second: int) -> Draw:
    """The difference of two means over heads: of skewed values (exponential)."""

    def draw(rng: Generator) -> float:
        estimate = mean_difference(rng.exponential(size=n_first), rng.exponential(size=n_second))
        return float(estimate.low <= 0 <= estimate.high)

    return draw


def two_estimates_draw(n_examples: int, together: float) -> Draw:
    """The difference of two shares by their own intervals, of the same examples."""

    def draw(rng: Generator) -> float:
        shared = rng.normal(size=n_examples)
        estimates = []
        for share in (0.6, 0.5):
            own = rng.normal(size=n_examples)
            score = together**0.5 * shared + (1 - together) ** 0.5 * own
            n_right = float((score < scipy_stats.norm.ppf(share)).sum())
            low, high = wilson_interval(n_right, n_examples)
            estimates.append(Estimate(n_right / n_examples, float(low), float(high)))
        difference = estimates[0].minus(estimates[1])
        return float(difference.low <= 0.1 <= difference.high)

    return draw


def fine_tuned_draw(n_examples: int) -> Draw:
    """By how many points one fine-tuned model scores higher than another on the same examples."""

    def draw(rng: Generator) -> float:
        truth = rng.integers(0, 2, n_examples)
        first_ease = rng.random(n_examples)
        second_ease = np.where(rng.random(n_examples) < 0.7, first_ease, rng.random(n_examples))
        first = np.where(first_ease < 0.8, truth, 1 - truth)
        second = np.where(second_ease < 0.78, truth, 1 - truth)
        estimate = score_difference(
            DevPredictions(truth, first, False), DevPredictions(truth, second, False), "accuracy"
        )
        return float(estimate.low - 1e-9 <= 2 <= estimate.high + 1e-9)

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
        return share_held(low.numpy().ravel(), truth, high.numpy().ravel())

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
OVER_EXAMPLES = "Student's t over examples, corrected for skewness"
OVER_DOCUMENTS = "jackknife over documents, Student's t, corrected for skewness"
RATIO_OVER_UNITS = "linearised ratio of totals, Student's t over units, corrected for skewness"
SHARE_OVER_DOCUMENTS = "Wilson's, effective number over documents"
SHARE_OVER_NEEDLES = "Wilson's, effective number of tokens over needles"
HALF_ANSWERS = "jackknife, Student's t, half an answer of each kind added"
STEP = "`track`: the step at which a measure changes"
FITTING_STEPS = "steps that fit nearly as well (F test)"
FLIPS = "Wilson's limits of gained and lost answers, squared and added"
HALVES = "picked on one half, scored on the other"


def interval_rows() -> Iterator[Row]:
    for n_examples in (10, 30, 200):
        for shape in ("normal", "skewed", "exponential", "shares near 0"):
            yield Row(
                MEANS,
                OVER_EXAMPLES,
                f"{n_examples} examples, {shape}",
                plain_mean_draw(n_examples, shape),
                MANY,
            )
    for n_documents in (10, 27, 81):
        for unevenness, lengths in ((0.3, "like"), (1.0, "differing")):
            yield Row(
                MEANS,
                OVER_DOCUMENTS,
                f"{n_documents} documents of {lengths} length",
                mean_draw(n_documents, unevenness),
                MANY,
            )
    for n_documents in (10, 27, 81):
        yield Row(
            MEANS,
            OVER_DOCUMENTS,
            f"{n_documents} documents, themselves skewed",
            skewed_documents_draw(n_documents),
            MANY,
        )
    for n_examples in (60, 200):
        yield Row(
            "means over the examples that have a value (`copy_suppression`, `features`, `frames`, ...)",
            OVER_EXAMPLES,
            f"{n_examples} examples, of which a quarter have a value, skewed",
            sparse_draw(n_examples),
            MANY,
        )
    for n_texts in (4, 8, 16):
        for shape in ("normal", "skewed", "very skewed", "three quarters near 0"):
            yield Row(
                "`cache`: loss, divergence, output error, distant attention; effects of `circuit`; "
                "`knockout`; `induction`",
                "Student's t over texts, units or sequences, corrected for skewness",
                f"{n_texts} texts, {shape}",
                few_texts_draw(n_texts, shape),
                MANY,
            )
    for n_tasks, n_prompts in ((4, 3), (8, 10)):
        for are_new, which in ((False, "these tasks"), (True, "tasks in general, for comparison")):
            yield Row(
                "gains of `function_vectors`",
                "Student's t over prompts, corrected for skewness",
                f"{n_tasks} tasks of {n_prompts} prompts; {which}",
                task_draw(n_tasks, n_prompts, are_new),
                MANY,
            )
    for n_examples in (10, 30, 200):
        for shape in ("", "skewed", "shares near 0"):
            yield Row(
                "means over tokens",
                "ratio of totals, Student's t over examples, corrected for skewness",
                f"{n_examples} examples of 5 to 40 tokens{', ' if shape else ''}{shape}",
                ratio_draw(n_examples, shape),
                MANY,
            )
    for n_examples in (30, 200):
        yield Row(
            "UAS of `tree_probe`",
            "ratio of totals, Student's t over sentences",
            f"{n_examples} sentences of 5 to 40 tokens",
            ratio_draw(n_examples, third_moments=False),
            MANY,
        )
    yield Row(
        "means over tokens",
        OVER_DOCUMENTS,
        "27 documents of differing length",
        mean_draw(27, 1.0, Ratios),
        MANY,
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
            SHARE_OVER_DOCUMENTS,
            f"0.7, {n_documents} documents of like length",
            share_draw(n_documents),
        )
    yield Row(
        SHARES,
        SHARE_OVER_DOCUMENTS,
        "0.7, 27 documents of differing length",
        share_draw(27, 1.0),
    )
    yield Row(
        SHARES,
        SHARE_OVER_DOCUMENTS,
        "0.05, 40 documents",
        share_draw(40, share=0.05),
    )
    for chances, heads in (("equal", "50 equal heads"), ("standing out", "one 25 points better")):
        yield Row(
            f"{BEST}: its margin over the baseline",
            f"{HALVES}, Student's t over documents",
            f"{heads}, 100 documents",
            margin_draw(100, chances),
        )
    for share in (0.6, 0.95):
        yield Row(
            "`circuit`: how often the answer is preferred",
            "Wilson's, effective number over units",
            f"{share}, 30 units of 1 to 4 pairs",
            task_check_draw(30, share),
            MANY,
        )
    for n_pairs, share in ((7, 0.5), (26, 0.1), (26, 0.5)):
        yield Row(
            "`successors`: shares of pairs of words",
            "Wilson's over pairs",
            f"{share} of {n_pairs}",
            single_share_draw(n_pairs, share),
        )
    for layers, heads, bins in ((12, 12, 4), (36, 32, 6)):
        for likeness, alike in ((0.0, "apart"), (0.15, "alike")):
            for what, printed in (
                ("depth", "shares of labels by depth"),
                ("model", "shares of labels of a model"),
                ("over heads", "shares of labels of a model"),
                ("mean depth", "mean depths of labels"),
            ):
                how = "Wilson's, effective number over layers"
                if what == "over heads":
                    how = "Wilson's over heads, for comparison"
                elif what == "mean depth":
                    how = "jackknife over layers, Student's t, corrected for skewness"
                yield Row(
                    f"`compare` by depth: {printed}",
                    how,
                    f"{layers} × {heads} heads, those of a layer {alike}",
                    layers_draw(layers, heads, bins, likeness, what),
                )
    for n_times in (12, 60):
        for size in (0.7, 1.5, 3.0):
            yield Row(
                STEP,
                FITTING_STEPS,
                f"{n_times} models, a step of {size:g} standard deviations",
                step_draw(n_times, size),
            )
        yield Row(
            STEP,
            FITTING_STEPS,
            f"{n_times} models, the middle of a gradual rise of 5 standard deviations",
            step_draw(n_times, 5.0, gradual=True),
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
        ("f1", HALF_ANSWERS),
        ("matthews", HALF_ANSWERS),
        ("pearson", "jackknife, Student's t"),
        ("spearman", "jackknife, Student's t"),
        ("loss", "Student's t, corrected for skewness"),
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
    for n_examples, n_documents in ((50, 0), (277, 0), (200, 25), (600, 60)):
        where = f"{n_examples} examples"
        if n_documents:
            where += f" of {n_documents} documents"
        yield Row(
            f"{ABLATE}, loss",
            "Student's t, corrected for skewness",
            f"{where}, a rise in few of them",
            skewed_loss_draw(n_examples, n_documents),
            MANY,
        )
    for n_units, most, skewed, data in (
        (30, 1, False, "30 pairs"),
        (100, 1, False, "100 pairs"),
        (20, 3, False, "20 units of 1 to 3 pairs"),
        (30, 1, True, "30 pairs, a few bring back most"),
        (100, 1, True, "100 pairs, a few bring back most"),
    ):
        yield Row(
            "`patch`: shares of the difference of logits",
            RATIO_OVER_UNITS,
            data,
            patching_draw(n_units, most, skewed),
            MANY,
        )
    for n_units, most, data in (
        (8, 1, "8 pairs"),
        (32, 1, "32 pairs"),
        (10, 5, "10 units of 1 to 5 pairs"),
        (32, 5, "32 units of 1 to 5 pairs"),
    ):
        yield Row(
            "`circuit`: faithfulness and completeness",
            RATIO_OVER_UNITS,
            data,
            faithfulness_draw(n_units, most),
            MANY,
        )
    for n_needles, n_trials in ((12, 12), (12, 24), (24, 72)):
        for score in (0.01, 0.3):
            yield Row(
                "scores of `retrieval`",
                SHARE_OVER_NEEDLES,
                f"{score}, {n_needles} needles, {n_trials} trials",
                needle_draw(n_needles, n_trials, score),
                MANY,
            )
    for share in (0.5, 0.9, 0.99):
        yield Row(
            "`cache`: needles' tokens that are still predicted",
            SHARE_OVER_NEEDLES,
            f"{share}, 8 needles",
            found_needles_draw(8, share),
            MANY,
        )
    for n_pairs, method in ((30, "pearson"), (144, "pearson"), (144, "spearman")):
        yield Row(
            "correlations over heads (`ablate`, `patch`, `induction`, `roles`)",
            "Fisher's z",
            f"{method.title()}'s, {n_pairs} heads",
            correlation_draw(n_pairs, method),
            MANY,
        )
    for n_runs in (9, 25):
        yield Row(
            "`finetune`: medians over runs",
            "order statistics",
            f"{n_runs} runs",
            median_draw(n_runs),
            MANY,
        )
    for n_examples in (30, 200):
        yield Row(
            "`patterns`: shares over all heads",
            OVER_EXAMPLES,
            f"five patterns, {n_examples} examples",
            overall_shares_draw(n_examples),
            MANY,
        )
    for n_examples in (30, 200):
        yield Row(
            "`patterns`: shares over all heads, corrected for the classifier's errors",
            "percentile bootstrap over examples and labelled heads",
            f"five patterns, {n_examples} examples",
            corrected_shares_draw(n_examples),
        )
    yield Row(
        "`probing`: how localised a task is",
        "pivotal bootstrap",
        "24 heads, 500 examples",
        localisation_draw(500),
        MANY,
    )
    yield Row("kappa of two raters", "percentile bootstrap", "100 items", kappa_draw(100), MANY)
    for n_tangents in (16, 64):
        yield Row(
            "`attribution`: contributions from random tangents",
            "log-normal, Welch's degrees of freedom",
            f"eight tokens, {n_tangents} tangents",
            sketch_draw(n_tangents),
        )
    for n_first, n_second in ((12, 132), (40, 104)):
        yield Row(
            "`reproduce`: differences of means over heads",
            "Welch's",
            f"{n_first} and {n_second} heads, exponential",
            welch_draw(n_first, n_second),
            MANY,
        )
    for together, data in ((0.0, "apart"), (0.5, "alike")):
        yield Row(
            "`reproduce`: differences of two printed numbers",
            "Newcombe's, squared and added",
            f"shares of 200 examples, {data}",
            two_estimates_draw(200, together),
            MANY,
        )
    for n_examples in (100, 800):
        yield Row(
            "`reproduce`: differences of fine-tuned models",
            "percentile bootstrap",
            f"{n_examples} examples, accuracy",
            fine_tuned_draw(n_examples),
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


def measured(row: Row, seed: int) -> str:
    """Return the line of a row: the measured rate with two standard errors, and the draws."""
    # The name as it was when the first rows were drawn: their numbers stay.
    name = f"{row.printed}|{row.how}|{row.data}"
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    rates = np.array([row.draw(rng) for _ in range(row.draws)])
    error = 2 * np.nanstd(rates) / np.sqrt(np.isfinite(rates).sum())
    return f"| {row.name} | {row.draws:,} | {np.nanmean(rates):.3f} ± {error:.3f} |"


def lines_of(section: str) -> dict[str, str]:
    """Return the lines of a table in the page, by the name of the row."""
    lines = {}
    for line in _around(section)[1].splitlines():
        name = " | ".join(line.strip("| ").split(" | ")[:3])
        lines[name] = line
    return lines


def table(
    section: str, rows: Iterator[Row], heading: str, seed: int, only: str, missing: bool
) -> str:
    """Return a table: the rows that are asked for drawn, all others as they stand in the page."""
    lines = [f"| printed | how | simulated | draws | {heading} |", "|---|---|---|---|---|"]
    present = lines_of(section)
    for row in rows:
        is_asked_for = only in row.name and not (missing and row.name in present)
        if is_asked_for:
            line = measured(row, seed)
            print(line, flush=True)
            lines.append(line)
        elif row.name in present:
            lines.append(present[row.name])
    return "\n".join(lines)


def _around(section: str) -> tuple[str, str, str]:
    """Return the page up to a table, the table with what introduces it, and the page after it."""
    mark = f"<!-- made by benchmarks/coverage.py: {section} -->\n"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(mark)
    assert rest, f"{PAGE} has no mark {mark!r}"
    end = rest.index("<!-- end -->")
    return before + mark, rest[:end], rest[end:]


def write(section: str, text: str) -> None:
    """Put a table between its marks in the page."""
    before, _, after = _around(section)
    PAGE.write_text(f"{before}\n{text}\n\n{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="rows that have this text")
    parser.add_argument("--missing", action="store_true", help="rows that the page lacks")
    parser.add_argument("--write", action="store_true", help="into docs/levels.md")
    options = parser.parse_args()
    for section, rows, heading in (
        ("intervals", interval_rows(), "holds the truth (nominal 0.95)"),
        ("tests", test_rows(), "finds something (nominal 0.05)"),
    ):
        text = table(section, rows, heading, options.seed, options.only, options.missing)
        if options.write:
            write(section, text)


if __name__ == "__main__":
    main()
