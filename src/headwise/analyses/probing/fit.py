"""The fit phase of probing: every head, every layer, the best heads together and the control task,
as named arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.probing.options import ProbingOptions
from headwise.models.vectors import Vectors
from headwise.probes import (
    ArrayFeatures,
    GreedyOptions,
    JoinedFeatures,
    PairFeatures,
    ProbeFeatures,
    ProbeScores,
    ProbeSettings,
    fit_probes,
    fit_regressions,
    greedy_heads,
)
from headwise.probes.ridge import one_hot
from headwise.probes.settings import encode_labels, encode_targets
from headwise.stats.correlation import pearson
from headwise.text.tasks import Task

GREEDY_BYTES = 24  # per entry of the Gram matrix of all candidates: three float64 copies
Report = Callable[[str, int, int], None]


def task_features(vectors: Vectors, task: Task) -> tuple[ProbeFeatures, ProbeFeatures]:
    """Return the features of heads and of layers.

    Where there are twice as many vectors as examples, the second half is of the second sentences:
    features are then those of pairs.
    """
    n_examples = len(task.examples)
    if len(vectors) == n_examples:
        return ArrayFeatures(vectors.heads), ArrayFeatures(vectors.layers)
    first = vectors.part(0, n_examples)
    second = vectors.part(n_examples, 2 * n_examples)
    heads = PairFeatures(ArrayFeatures(first.heads), ArrayFeatures(second.heads))
    layers = PairFeatures(ArrayFeatures(first.layers), ArrayFeatures(second.layers))
    return heads, layers


def rank_units(validation: np.ndarray) -> np.ndarray:
    """Return units from best to worst validation score; of equal ones the lowest index first."""
    return np.argsort(-validation, kind="stable")


def control_labels(task: Task, seed: int) -> list[Any]:
    """Return random labels with the same frequencies: permuted within each part, the same label for
    the same text."""
    labels = task.labels
    permuted = list(task.labels)
    random = np.random.RandomState(seed + 1)
    label_of_text: dict[tuple[Any, ...], Any] = {}
    for rows in (task.split.train, task.split.validation, task.split.test):
        for row, source in zip(rows, random.permutation(rows), strict=True):
            example = task.examples[row]
            text = (example.text, example.pair, example.words, example.words_pair)
            permuted[row] = label_of_text.setdefault(text, labels[source])
    return permuted


def fit_task(
    task: Task,
    vectors: Vectors,
    options: ProbingOptions,
    settings: ProbeSettings | None = None,
    report: Report | None = None,
) -> dict[str, np.ndarray]:
    """Fit all probes of one task.

    Parameters
    ----------
    task : Task
        Examples with labels, in parts.
    vectors : Vectors
        Of its examples; see `task_features`.
    options : ProbingOptions
        What is fitted.
    settings : ProbeSettings, optional
        How; by default those of the options, on the CPU.
    report : callable, optional
        Told what is counted, how many are done, and how many there are.

    Returns
    -------
    dict of ndarray
        `heads/...` and `layers/...` (validation, test, penalty, predicted, spearman), `top/order`,
        `top/<n>/...`, `greedy/order`, `greedy/<n>/...`, `control/...`, `truth` and `majority`.
    """
    top, curve = options.head_counts(*vectors.heads.shape[:2])
    head_counts = sorted({top, *curve})
    head_features, layer_features = task_features(vectors, task)
    fitter = _TaskFitter(task, settings or options.probe_settings())
    n_families = 3 + options.greedy + options.control
    n_begun = 0

    def begin_family() -> None:  # also called once after the last family
        nonlocal n_begun
        if report is not None:
            report(f"probes of {task.name}", n_begun, n_families)
        n_begun += 1

    begin_family()
    head_scores = fitter.fit("heads", head_features)
    fitter.arrays["truth"] = head_scores.truth
    fitter.arrays["majority"] = _majority_class(task)
    begin_family()
    fitter.fit("layers", layer_features)

    orders = {"top": rank_units(head_scores.validation)}
    if options.greedy:
        begin_family()
        chosen, scores = _select_greedily(
            task, head_features, orders["top"], max(head_counts), options, fitter.settings
        )
        orders["greedy"] = np.array(chosen)
        fitter.arrays["greedy/validation"] = np.array(scores)
    begin_family()
    for name, order in orders.items():
        fitter.arrays[f"{name}/order"] = order
        for n in head_counts:
            if n <= len(order):
                fitter.fit(f"{name}/{n}", JoinedFeatures(head_features, order[:n].tolist()))
    if options.control:
        begin_family()
        labels = control_labels(task, options.seed or 0)
        control = fitter.fit("control", head_features, labels, " (control task)")
        fitter.arrays["control/truth"] = control.truth
    begin_family()
    return fitter.arrays


def fit_baseline(
    task: Task, vectors: Vectors, settings: ProbeSettings, *, layers: bool = True
) -> dict[str, np.ndarray]:
    """Fit only heads and, unless `layers` is False, layers; with `truth` and `majority`."""
    fitter = _TaskFitter(task, settings)
    head_features, layer_features = task_features(vectors, task)
    fitter.arrays["truth"] = fitter.fit("heads", head_features).truth
    fitter.arrays["majority"] = _majority_class(task)
    if layers:
        fitter.fit("layers", layer_features)
    return fitter.arrays


class _TaskFitter:
    """Fits families of probes of one task and collects their scores as named arrays."""

    def __init__(self, task: Task, settings: ProbeSettings) -> None:
        self.task = task
        self.settings = settings
        self.arrays: dict[str, np.ndarray] = {}

    def fit(
        self,
        name: str,
        features: ProbeFeatures,
        labels: Sequence[object] | None = None,
        suffix: str = "",
    ) -> ProbeScores:
        """Fit one family; `labels` are the task's own by default, `suffix` goes to its name in
        errors."""
        task = self.task
        fit = fit_regressions if task.regression else fit_probes
        scores = fit(features, labels or task.labels, task.split, self.settings, task.name + suffix)
        self.arrays[f"{name}/validation"] = scores.validation
        self.arrays[f"{name}/test"] = scores.test
        self.arrays[f"{name}/penalty"] = scores.penalty
        stored_type = np.float32 if scores.predicted.dtype.kind == "f" else np.int32
        self.arrays[f"{name}/predicted"] = scores.predicted.astype(stored_type)
        if scores.spearman is not None:
            self.arrays[f"{name}/spearman"] = scores.spearman
        return scores


def _majority_class(task: Task) -> np.ndarray:
    """Return the most frequent class of the training part (of equal ones the first); NaN for
    regression."""
    if task.regression:
        return np.array(np.nan)
    codes, _ = encode_labels(task.labels, task.split, task.name)
    return np.array(np.bincount(codes[task.split.train]).argmax())


def _select_greedily(
    task: Task,
    features: ProbeFeatures,
    ranking: np.ndarray,
    steps: int,
    options: ProbingOptions,
    settings: ProbeSettings,
) -> tuple[list[int], list[float]]:
    """Select heads one after the other, among as many of the best single heads as memory allows."""
    steps = min(steps, len(ranking))
    n_affordable = int((settings.memory / GREEDY_BYTES) ** 0.5) // features.size
    n_candidates = min(len(ranking), max(steps, n_affordable))
    split = task.split
    if task.regression:
        values = encode_targets(task.labels, split, task.name)
        truth = torch.from_numpy(values[split.validation]).to(settings.device)
        targets = values[split.train][:, None]

        def score(predicted: Tensor) -> Tensor:
            return pearson(predicted[..., 0], truth).nan_to_num(0.0)
    else:
        codes, names = encode_labels(task.labels, split, task.name)
        truth = torch.from_numpy(codes[split.validation]).to(settings.device)
        targets = one_hot(torch.from_numpy(codes[split.train]), len(names)).numpy()

        def score(predicted: Tensor) -> Tensor:
            return (predicted.argmax(-1) == truth).double().mean(-1)

    greedy_options = GreedyOptions(
        steps=steps,
        penalty=options.greedy_penalty,
        candidates=ranking[:n_candidates].tolist(),
        standardize=settings.standardize,
        device=settings.device,
    )
    return greedy_heads(features, split, targets, score, greedy_options)
