"""Tests that compare two models of different shapes by relative depth; a layer is the unit.

Heads of one layer are alike, so heads are not exchangeable between models: whole layers are permuted.
"""

from __future__ import annotations

import numpy as np
from scipy import stats as scipy_stats

from headwise.stats.intervals import LEVEL, share, wilson_interval
from headwise.stats.units import unit_ratio

STRATA = 3  # parts of the depth within which layers are taken as exchangeable
DRAWS = 19_999  # permutations; small p-values must survive the correction over labels and pairs
GRID = 240  # steps of relative depth at which two distributions are compared


def relative_depth(layers: int) -> np.ndarray:
    """Return the relative depth of each layer, the middle of its part of the model.

    >>> relative_depth(4).tolist()
    [0.125, 0.375, 0.625, 0.875]
    """
    return (np.arange(layers) + 0.5) / layers


def depth_bins(layers: int, bins: int) -> np.ndarray:
    """Return the bin of equal relative depth that each layer lies in; no bin is empty if there are
    at least as many layers as bins.

    >>> depth_bins(6, 3).tolist(), depth_bins(7, 3).tolist()
    ([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 2, 2])
    """
    # In whole numbers: a layer in the middle of two bins must not depend on rounding.
    return (2 * np.arange(layers) + 1) * bins // (2 * layers)


def share_intervals(
    counts: np.ndarray, heads: int, bins: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return 95 % intervals of the share of heads with each label: low and high by bin of depth
    `[label, bin]`, and of the whole model `[label]`.

    Wilson's, with the effective number of heads: the number divided by the design effect, which is
    how much more the layers of the same third of the depth differ than they would if heads were
    independent. It is the larger one of the label's own and that of all labels together, since that
    of a single label comes from few layers; and the quantile is Student's t for their number.

    Parameters
    ----------
    counts : array
        `[layer, label]`: how many heads of each layer have the label.
    heads : int
        Heads of a layer.
    bins : int
        Parts of the depth.
    """
    n_layers = len(counts)
    strata = depth_bins(n_layers, min(STRATA, n_layers))
    squares = np.zeros(counts.shape[1])
    expected = np.zeros(counts.shape[1])
    for stratum in np.unique(strata):
        shares = counts[strata == stratum] / heads
        mean = shares.mean(0)
        squares += heads * ((shares - mean) ** 2).sum(0)
        expected += (len(shares) - 1) * mean * (1 - mean)
    own = share(squares, expected)
    together = share(squares.sum(), expected.sum())
    # NaN where a label has no heads, or all; 1 where no layer differs from another.
    design_effect = np.fmax(np.fmax(own, together), 1.0)
    freedom = max(n_layers - len(np.unique(strata)), 1)
    tail = 0.5 + LEVEL / 2
    widening = (scipy_stats.t.ppf(tail, freedom) / scipy_stats.norm.ppf(tail)) ** 2
    effective_share = 1 / (design_effect * widening)

    bin_of_layer = depth_bins(n_layers, bins)
    by_bin = np.zeros((counts.shape[1], bins))
    n_heads = np.zeros(bins)
    for layer, depth_bin in enumerate(bin_of_layer):
        by_bin[:, depth_bin] += counts[layer]
        n_heads[depth_bin] += heads
    low, high = wilson_interval(
        by_bin * effective_share[:, None], n_heads * effective_share[:, None]
    )
    total_low, total_high = wilson_interval(
        counts.sum(0) * effective_share, n_layers * heads * effective_share
    )
    return low, high, total_low, total_high


def mean_depth_interval(counts: np.ndarray) -> tuple[float, float, float]:
    """Return the mean relative depth of one label's heads with its 95 % interval over the layers
    that have such heads: those of one layer are all at the same depth.

    Parameters
    ----------
    counts : array
        `[layer]`: how many heads of each layer have the label.
    """
    weights = np.asarray(counts, dtype=float)
    if not weights.any():
        return float("nan"), float("nan"), float("nan")
    ratio = unit_ratio(weights * relative_depth(len(weights)), weights)
    low, high = ratio.interval()
    return float(ratio.value), float(np.clip(low, 0, 1)), float(np.clip(high, 0, 1))


def share_difference_p(
    first: np.ndarray,
    second: np.ndarray,
    first_strata: np.ndarray,
    second_strata: np.ndarray,
    seed: int = 0,
) -> np.ndarray:
    """Return the two-sided p-value of a difference in share, for each label.

    The null: layers of equal relative depth are exchangeable between the models. The statistic is
    the difference of the mean shares within a stratum of depth, averaged over strata.

    Parameters
    ----------
    first, second : array
        `[layer, label]`: the share of each layer's heads that have the label.
    first_strata, second_strata : array
        The stratum of each layer.
    seed : int, default 0
        Of the permutations.
    """
    shares = np.concatenate([first, second])
    strata = np.concatenate([first_strata, second_strata])
    in_second = np.zeros(len(shares))
    in_second[len(first) :] = 1.0
    memberships = _permuted_within(in_second, strata, seed)  # [draw, layer], 1: second model
    # The statistic is linear in the shares: each layer has a weight, positive in the second model
    # and negative in the first. A stratum without layers of one of them has no difference.
    contrast = np.zeros_like(memberships)
    stratum_names = np.unique(strata)
    for stratum in stratum_names:
        here = strata == stratum
        n_second = in_second[here].sum()
        n_first = here.sum() - n_second
        if n_first and n_second:
            weights = memberships[:, here] / n_second - (1 - memberships[:, here]) / n_first
            contrast[:, here] = weights / len(stratum_names)
    return _two_sided(contrast @ shares)  # [draw, label]


def depth_difference_p(first: np.ndarray, second: np.ndarray, seed: int = 0) -> float:
    """Return the two-sided p-value of a difference in the mean relative depth of one label's heads.

    The null: the layers that have such heads, with all of them, are exchangeable between the
    models. NaN where a model has the label in fewer than two layers.

    Parameters
    ----------
    first, second : array
        `[layer]`: how many heads of each layer have the label.
    seed : int, default 0
        Of the permutations.
    """
    first_layers = np.flatnonzero(first)
    second_layers = np.flatnonzero(second)
    if len(first_layers) < 2 or len(second_layers) < 2:
        return float("nan")
    depths = np.concatenate(
        [relative_depth(len(first))[first_layers], relative_depth(len(second))[second_layers]]
    )
    counts = np.concatenate([first[first_layers], second[second_layers]]).astype(float)
    in_second = np.zeros(len(depths))
    in_second[len(first_layers) :] = 1.0
    one_stratum = np.zeros(len(depths))
    memberships = _permuted_within(in_second, one_stratum, seed)  # [draw, layer], 1: second model
    second_mean = memberships @ (counts * depths) / (memberships @ counts)
    first_mean = (1 - memberships) @ (counts * depths) / ((1 - memberships) @ counts)
    return float(_two_sided((second_mean - first_mean)[:, None])[0])


def depth_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return how far apart in relative depth the heads of the same labels lie in two models.

    For each label that both models have: the Wasserstein distance of the two distributions over
    relative depth (each head covers the depth of its layer); then the mean over labels, weighted by
    the heads of both models. NaN where no label is in both.

    Parameters
    ----------
    first, second : array
        `[layer, label]`: how many heads of each layer have the label.
    """
    return float(_distances(first, second[None])[0])


def depth_distance_test(
    first: np.ndarray, second: np.ndarray, seed: int = 0, draws: int = 1_999
) -> tuple[float, float, float]:
    """Return `depth_distance`, its mean when the layers of the second model are in random order,
    and the p-value: how often random order comes as near.

    Small p: labels lie at the same relative depth in both models."""
    distance = depth_distance(first, second)
    if not np.isfinite(distance):
        return float("nan"), float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    orders = generator.permuted(np.tile(np.arange(len(second)), (draws, 1)), axis=1)
    by_chance = _distances(first, second[orders])
    slack = 1e-12
    p = (1 + int((by_chance <= distance + slack).sum())) / (1 + draws)
    return distance, float(by_chance.mean()), p


def _distances(first: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return the distance of one model from several, `seconds[draw, layer, label]`.

    The Wasserstein distance of two distributions on a line is the area between their cumulative
    curves; here depth runs from 0 to 1, so that it is their mean difference."""
    # The order of layers changes nothing about which labels a model has: that of the first draw.
    in_both = (first.sum(0) > 0) & (seconds[0].sum(0) > 0)
    if not in_both.any():
        return np.full(len(seconds), np.nan)
    weights = (first.sum(0) + seconds[0].sum(0))[in_both].astype(float)
    first_curve = _cumulative(first[None][:, :, in_both])
    second_curves = _cumulative(seconds[:, :, in_both])
    per_label = np.abs(second_curves - first_curve).mean(1)
    return np.asarray(per_label @ weights / weights.sum())


def _cumulative(counts: np.ndarray) -> np.ndarray:
    """Return the share of a label's heads up to each step of depth, `[draw, step, label]`; a layer's
    heads are spread over its part of the model."""
    n_layers = counts.shape[1]
    up_to_layer = np.cumsum(counts, axis=1) / counts.sum(1, keepdims=True)
    edges = np.concatenate([np.zeros_like(up_to_layer[:, :1]), up_to_layer], axis=1)
    steps = (np.arange(GRID) + 0.5) / GRID * n_layers
    layer = np.minimum(steps.astype(int), n_layers - 1)
    within = (steps - layer)[None, :, None]  # how far into its layer a step is, 0 to 1
    return np.asarray(edges[:, layer] * (1 - within) + edges[:, layer + 1] * within)


def _permuted_within(members: np.ndarray, strata: np.ndarray, seed: int) -> np.ndarray:
    """Return the membership as it is, then permuted within strata: `[1 + DRAWS, unit]`."""
    generator = np.random.default_rng(seed)
    permuted = np.tile(members, (1 + DRAWS, 1))  # the first row stays as it is
    for stratum in np.unique(strata):
        here = np.flatnonzero(strata == stratum)
        permuted[1:, here] = generator.permuted(permuted[1:, here], axis=1)
    return permuted


def _two_sided(statistics: np.ndarray) -> np.ndarray:
    """Return the share of draws at least as far from 0 as the first, which is what was observed and
    counts as a draw."""
    sizes = np.abs(statistics)
    # Differences that are equal but for rounding count as equal.
    return np.asarray((sizes >= sizes[:1] - 1e-12).mean(0))
