"""What a fine-tuned model learned, from its predictions of the dev part: whether it learned anything,
and how far two models differ on the same examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headwise.experiments.reproduction.estimates import Estimate, Outcome, correlation_estimate
from headwise.stats.bootstrap import percentile_interval, resampled_metric, resamples

PREDICTIONS = "predictions.tsv"  # beside a fine-tuned model
NOTHING_LEARNED = "nothing learned"


@dataclass(frozen=True, slots=True, eq=False)
class DevPredictions:
    """The true and the predicted labels of a dev part, in its order.

    Parameters
    ----------
    truth, predicted : np.ndarray
        Class numbers, or scores of a regression.
    regression : bool
        Which of them.
    """

    truth: np.ndarray
    predicted: np.ndarray
    regression: bool

    @classmethod
    def read(cls, path: Path, regression: bool) -> DevPredictions:
        """Read what `headwise finetune` wrote beside a model."""
        truths = []
        predictions = []
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            _, truth, predicted = line.split("\t")
            truths.append(truth)
            predictions.append(predicted)
        if regression:
            return cls(np.array(truths, float), np.array(predictions, float), True)
        classes = sorted({*truths, *predictions})
        return cls(
            np.array([classes.index(label) for label in truths]),
            np.array([classes.index(label) for label in predictions]),
            False,
        )

    def majority(self) -> DevPredictions:
        """Return the same examples with the most frequent class for all."""
        labels, counts = np.unique(self.truth, return_counts=True)
        constant = np.full_like(self.truth, labels[np.argmax(counts)])
        return DevPredictions(self.truth, constant, False)


def score_difference(first: DevPredictions, second: DevPredictions, metric: str) -> Estimate:
    """Return by how many points the first model scores higher, with an interval over examples.

    Both are scored on the same resamples of the dev part, so that what is hard for both cancels.
    """
    values = np.stack([first.predicted, second.predicted])
    whole = np.ones((1, len(first.truth)))
    draws = resamples(len(first.truth))
    score = resampled_metric(metric, whole, first.truth, values)
    resampled = resampled_metric(metric, draws, first.truth, values)
    low, high = percentile_interval(resampled[:, 0] - resampled[:, 1])
    difference = Estimate(float(score[0, 0] - score[0, 1]), float(low), float(high))
    return difference.times(100)


def why_nothing_learned(predictions: DevPredictions) -> str:
    """Say why a model counts as having learned nothing; empty where it learned something.

    A classifier must predict more than one class and beat the most frequent class with its whole
    interval; a regression must correlate with the truth with its whole interval.
    """
    if len(np.unique(predictions.predicted)) == 1:
        return (
            f"{NOTHING_LEARNED}: it predicts one {'value' if predictions.regression else 'class'}"
        )
    if predictions.regression:
        correlation = float(np.corrcoef(predictions.truth, predictions.predicted)[0, 1])
        estimate = correlation_estimate(correlation, len(predictions.truth))
        if estimate.above(0) is Outcome.TRUE:
            return ""
        return f"{NOTHING_LEARNED}: Pearson's r is {estimate.text()}"
    gain = score_difference(predictions, predictions.majority(), "accuracy")
    if gain.above(0) is Outcome.TRUE:
        return ""
    return f"{NOTHING_LEARNED}: {gain.text('+.1f')} points over the most frequent class"
