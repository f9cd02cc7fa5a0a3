"""How localised a task is: whether few heads know it or all do (which Jo & Myaeng 2020, §3.2, see in heat maps)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headwise.stats.bootstrap import percentile_interval, resampled_metric, resamples
from headwise.stats.concentration import effective_number, localisation

LOCALISED = {
    "localisation": "how localised the task is among heads: 0 all alike, 1 a single head",
    "effective_heads": "so many heads of equal gain would be as even",
    "layer_localisation": "how localised the task is among layers: 0 all alike, 1 a single layer",
}
RESAMPLES = 400


def localised(
    fit: Mapping[str, np.ndarray], heads: tuple[int, int], chance: float, *, regression: bool
) -> dict[str, np.ndarray]:
    """Value, lower and upper end of each of `LOCALISED`, `[3]`.

    The gain of a head is its test score less `chance` (the most frequent label; 0 for a correlation), at least 0. Noise
    makes gains uneven, in a resample once more than in the sample; so the interval is the pivotal one (twice the value,
    less the quantiles of the resamples), which takes that out, within the range of the index and widened to hold the
    value.

    Parameters
    ----------
    fit : mapping
        `heads/predicted[head, example]` and `truth[example]` of the test part.
    heads : tuple of int
        Layers, and heads of each.
    chance : float
        What no knowledge gives.
    regression : bool
        Whether scores are Pearson's r.
    """
    truth, predicted = fit["truth"], fit["heads/predicted"]
    metric = "pearson" if regression else "accuracy"
    whole, draws = np.ones((1, len(truth))), resamples(len(truth), RESAMPLES)
    own, again = (np.clip(resampled_metric(metric, one, truth, predicted) - chance, 0, None) for one in (whole, draws))
    out = {}
    for name, (low, high), measure in (
        ("localisation", (0.0, 1.0), localisation),
        ("effective_heads", (1.0, float(own.shape[1])), effective_number),
        ("layer_localisation", (0.0, 1.0), lambda gain: localisation(gain.reshape(-1, *heads).sum(-1))),
    ):
        value, resampled = float(measure(own)[0]), measure(again)
        ends = percentile_interval(resampled)
        pivotal = 2 * value - float(ends[1]), 2 * value - float(ends[0])
        out[name] = np.array([value, *np.clip((min(value, pivotal[0]), max(value, pivotal[1])), low, high)])
    return out
