"""Two ways of answering the same examples: intervals of the difference of their scores.

Differences of accuracy come from flipped answers, which are few; differences of other metrics from
a jackknife. Both take units (documents) as the sample where examples belong to some."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwise.stats.bootstrap import resampled_metric
from headwise.stats.flips import sign_flip_test
from headwise.stats.intervals import mean_interval, wilson_interval
from headwise.stats.metrics import METRICS
from headwise.stats.tests import mcnemar_exact, z_test
from headwise.stats.units import effective_count, sum_by_unit, unit_ratio

MAX_GROUPS = 400  # of units that a jackknife leaves out one by one
BINARY_METRICS = ("f1", "matthews")
# For metrics of two classes, one more example of each kind of flip, as (truth, before, after). With
# half a weight each, one gained and one lost answer are added in all, as Bonett and Price (2012) do.
PSEUDO_FLIPS = np.array([(1, 0, 1), (1, 1, 0), (0, 1, 0), (0, 0, 1)])
PSEUDO_WEIGHT = 0.5


def flip_interval(
    gained: np.ndarray, lost: np.ndarray, tries: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence interval of a difference of paired proportions, `(gained − lost) / n`.

    Wilson's limits of the share of gained and of the share of lost answers, joined by squaring and
    adding (Newcombe 1998), with the correlation of two shares of one multinomial sample (Zou and
    Donner 2008). Unlike a resampling interval it has a width where no answer flipped, and unlike
    Tango's score interval (whose ends it nearly has) its coverage does not fall below 0.94 where
    about five answers flip. The shares are taken of the effective sample size over units, as in
    `share_interval`; where nothing flipped, that is the number of units.

    Parameters
    ----------
    gained, lost : ndarray
        `[unit, ...]`: answers that only the second way, and only the first way gets right.
    tries : ndarray
        `[unit, ...]`: answers in all.

    Examples
    --------
    Fagerland et al. (2014) print −0.517 to −0.026 for these by Tango's method:

    >>> gained, lost = np.zeros(21), np.zeros(21)
    >>> gained[:1], lost[1:8] = 1, 1
    >>> [float(end.round(3)) for end in flip_interval(gained, lost, np.ones(21))]
    [-0.527, -0.001]
    """
    gained = np.asarray(gained, dtype=float)
    lost = np.asarray(lost, dtype=float)
    tries = np.asarray(tries, dtype=float)
    total = np.broadcast_to(tries, gained.shape).sum(0)
    net = unit_ratio(gained - lost, tries)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = gained.sum(0) / total
        loss = lost.sum(0) / total
        independent_variance = (gain + loss - (gain - loss) ** 2) / total
    n = effective_count(net, independent_variance, total)
    gain_low, gain_high = wilson_interval(gain * n, n)
    loss_low, loss_high = wilson_interval(loss * n, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = -np.sqrt(gain * loss / ((1 - gain) * (1 - loss)))
    # Every answer flipped: the two shares are the two sides of one coin.
    correlation = np.where(gain + loss >= 1, -1.0, correlation)

    def distance(below_gain: np.ndarray, above_loss: np.ndarray) -> np.ndarray:
        squares = below_gain**2 + above_loss**2 - 2 * correlation * below_gain * above_loss
        return np.asarray(np.sqrt(np.maximum(squares, 0.0)))

    low = gain - loss - distance(gain - gain_low, loss_high - loss)
    high = gain - loss + distance(gain_high - gain, loss - loss_low)
    return np.clip(low, -1.0, 1.0), np.clip(high, -1.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class PairedComparison:
    """For each condition: score minus baseline, its 95 % interval, and a two-sided p-value.

    `mean_low`, `mean_high` are the interval of the mean over all conditions: these conditions,
    other examples. Intervals are NaN where no example's value changed, and no spread can be
    estimated (losses and correlations)."""

    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    test: str
    mean_low: float
    mean_high: float


def paired_differences(
    metric: str,
    baseline: np.ndarray,
    values: np.ndarray,
    truth: np.ndarray | None,
    units: np.ndarray | None = None,
) -> PairedComparison:
    """Compare conditions with a baseline on the same examples.

    Parameters
    ----------
    metric : str
        A name of `METRICS`, or `loss` (the mean of the values themselves).
    baseline, values : ndarray
        What the model says of each example, `[example]` and `[condition, example]`.
    truth : ndarray, optional
        The true values; None for `loss`.
    units : ndarray, optional
        A number for each example: its document (see `unit_key`). By default each example is a unit.

    Notes
    -----
    - accuracy: `flip_interval`; McNemar's exact test, over documents the sign-flip test.
    - loss: Student's t over units, interval (corrected for skewness) and test.
    - others: jackknife over units with Student's t, interval and test. For F1 and Matthews'
      correlation one more example of each kind of flip is added (with half a weight), so that an interval has a width
      where no answer flipped.
    """
    n_examples = len(baseline)
    if units is None:
        units = np.arange(n_examples)
    _, unit_of_example = np.unique(units, return_inverse=True)
    if metric == "accuracy":
        assert truth is not None
        return _compare_accuracy(baseline == truth, values == truth, unit_of_example)
    if metric == "loss":
        return _compare_losses(values - baseline, unit_of_example)
    assert truth is not None
    return _compare_scores(metric, baseline, values, truth, unit_of_example)


def _compare_accuracy(
    was_right: np.ndarray, is_right: np.ndarray, unit_of_example: np.ndarray
) -> PairedComparison:
    gained = sum_by_unit((is_right & ~was_right).T, unit_of_example)  # [unit, condition]
    lost = sum_by_unit((~is_right & was_right).T, unit_of_example)
    tries = sum_by_unit(np.ones((len(was_right), 1)), unit_of_example)
    low, high = flip_interval(gained, lost, tries)
    if len(tries) == len(was_right):
        p = mcnemar_exact(gained.sum(0), lost.sum(0), "two-sided")
        test = "McNemar's exact test"
    else:
        better = sign_flip_test(gained - lost).p_value
        worse = sign_flip_test(lost - gained).p_value
        p = np.minimum(1.0, 2 * np.minimum(better, worse))
        test = "sign-flip test over documents"
    mean_low = mean_high = np.array(np.nan)
    n_conditions = len(is_right)
    if n_conditions:
        # A unit's answers under all conditions stand or fall together.
        mean_low, mean_high = flip_interval(gained.sum(1), lost.sum(1), n_conditions * tries[:, 0])
    return PairedComparison(
        difference=is_right.mean(1) - was_right.mean(),
        low=low,
        high=high,
        p_value=p,
        test=test,
        mean_low=float(mean_low),
        mean_high=float(mean_high),
    )


def _compare_losses(change: np.ndarray, unit_of_example: np.ndarray) -> PairedComparison:
    # The mean over conditions is one more column.
    columns = change.T
    if len(change):
        columns = np.concatenate([columns, change.mean(0)[:, None]], 1)
    # Sums about the mean: rounding must not pass for a spread.
    mean = columns.mean(0)
    number = sum_by_unit(np.ones((len(columns), 1)), unit_of_example)
    deviation = unit_ratio(sum_by_unit(columns - mean, unit_of_example), number)
    varies = np.ptp(columns, axis=0) > 0
    variance = np.where(varies, deviation.variance, np.nan) * deviation.effective_units
    low, high = mean_interval(mean, variance, deviation.effective_units, deviation.skewness)
    two_sided = _two_sided_p(mean, np.where(varies, variance, 0.0), deviation.effective_units)
    n_conditions = len(change)
    mean_low = mean_high = float("nan")
    if n_conditions:
        mean_low, mean_high = float(low[-1]), float(high[-1])
    is_clustered = len(number) < len(columns)
    return PairedComparison(
        difference=mean[:n_conditions],
        low=low[:n_conditions],
        high=high[:n_conditions],
        p_value=two_sided[:n_conditions],
        test="paired t-test over documents" if is_clustered else "paired t-test",
        mean_low=mean_low,
        mean_high=mean_high,
    )


def _compare_scores(
    metric: str,
    baseline: np.ndarray,
    values: np.ndarray,
    truth: np.ndarray,
    unit_of_example: np.ndarray,
) -> PairedComparison:
    compute = METRICS[metric]
    scores = np.array([compute(truth, row) for row in values])
    difference = scores - compute(truth, baseline)
    changes = (values != baseline).any(1)
    if metric in BINARY_METRICS:
        pseudo_truth, pseudo_before, pseudo_after = PSEUDO_FLIPS.T
        truth = np.concatenate([truth == 1, pseudo_truth])
        baseline = np.concatenate([baseline == 1, pseudo_before])
        repeated = np.broadcast_to(pseudo_after, (len(values), len(pseudo_after)))
        values = np.concatenate([values == 1, repeated], 1)
        first_new = unit_of_example.max(initial=-1) + 1
        new_units = first_new + np.arange(len(PSEUDO_FLIPS))
        unit_of_example = np.concatenate([unit_of_example, new_units])
        changes = np.ones(len(values), dtype=bool)
    # Row 0 leaves nothing out, each other row one group of units.
    weights = _left_out_weights(unit_of_example)
    if metric in BINARY_METRICS:
        weights[:, -len(PSEUDO_FLIPS) :] *= PSEUDO_WEIGHT
    estimates = resampled_metric(metric, weights, truth, values)
    estimates -= resampled_metric(metric, weights, truth, baseline[None])
    # The mean over conditions is one more column.
    estimates = np.concatenate([estimates, estimates.mean(1, keepdims=True)], 1)
    changes = np.append(changes, changes.any())
    left_out = estimates[1:]
    n_groups = len(left_out)
    deviations = left_out - left_out.mean(0)
    variance = (n_groups - 1) / n_groups * (deviations**2).sum(0)
    # Predictions that change without changing any rank leave no spread either.
    changes &= variance > 0
    one_unit = np.where(changes, variance * n_groups, np.nan)
    low, high = mean_interval(estimates[0], one_unit, np.array(n_groups))
    # The added flips pull the estimate towards 0: the interval holds the plain one all the same.
    plain = np.append(difference, difference.mean() if len(difference) else np.nan)
    low = np.minimum(low, plain)
    high = np.maximum(high, plain)
    p = _two_sided_p(plain, np.where(changes, one_unit, 0.0), np.full(len(plain), n_groups))
    return PairedComparison(
        difference=difference,
        low=low[:-1],
        high=high[:-1],
        p_value=p[:-1],
        test="jackknife t-test",
        mean_low=float(low[-1]),
        mean_high=float(high[-1]),
    )


def _left_out_weights(unit_of_example: np.ndarray) -> np.ndarray:
    """Return weights `[1 + group, example]`: all examples, then all but those of one group.

    A group is a unit; where there are many, units are dealt out to `MAX_GROUPS` groups."""
    group = unit_of_example
    if group.max(initial=0) >= MAX_GROUPS:
        # Neighbouring examples are alike: the dealing is random, and always the same.
        n_units = int(group.max()) + 1
        group = np.random.default_rng(0).permutation(n_units)[group] % MAX_GROUPS
    _, group = np.unique(group, return_inverse=True)
    n_groups = int(group.max(initial=-1)) + 1
    weights = np.ones((1 + n_groups, len(group)))
    weights[1 + group, np.arange(len(group))] = 0.0
    return weights


def _two_sided_p(mean: np.ndarray, variance: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return p-values of a mean of zero by Student's t; 1 or 0 where there is no spread."""
    one_sided = z_test(np.abs(mean), variance, count, 0.0, student=True).p_value
    p = np.minimum(1.0, 2 * one_sided)
    return np.asarray(p)
