"""The fit phase of probing: every head, every layer, the best heads together and the control task,
as named arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.checks import above, check_types, one_of
from headwise.core.errors import ParameterError
from headwise.models.vectors import Vectors
from headwise.probes import (
    ArrayFeatures,
    Features,
    GreedyOptions,
    JoinedFeatures,
    PairFeatures,
    ProbeScores,
    ProbeSettings,
    fit_probes,
    fit_regressions,
    greedy_heads,
)
from headwise.probes.ridge import one_hot
from headwise.probes.settings import encode_labels, encode_targets
from headwise.stats.corrections import CORRECTIONS
from headwise.stats.correlation import pearson
from headwise.text.tasks import Task

PAIRS = ("joint", "features")
CURVE = (
    1,
    2,
    3,
    4,
    6,
    8,
)  # with H, 3H/2, 2H and 3H: where the curve over n is measured unless said otherwise


@dataclass(frozen=True, slots=True)
class ProbingOptions:
    """How heads are probed: what is fitted beside every head and every layer, on which vectors, and
    how it is tested.

    Parameters
    ----------
    settings : ProbeSettings, optional
        How probes are fitted; by default full-batch logistic regression on standardised vectors, on
        the model's device.
    top : int, optional
        How many heads are joined; by default as many as a layer has, so that the vector is as long
        as a layer's.
    curve : tuple of int, optional
        Numbers of heads of the curve over n; by default some up to three layers' worth; empty for
        none.
    greedy : bool, default True
        Forward selection of heads, by ridge regression with the penalty `greedy_penalty`.
    control : bool, default True
        The control task: labels dealt at random.
    random_baseline : bool, default False
        Probe the same architecture with random weights too.
    pairs : {"joint", "features"}, default "joint"
        Two sentences as one input, or apart, as `[u; v; |u−v|; u*v]`.
    token : {"auto", "first", "last", "mean"}, default "auto"
        Which token stands for the sentence; `auto` is the first for encoders, the last real one for
        decoders.
    dtype : {"float32", "float16"}, default "float32"
        Of the vectors kept.
    limits : tuple of int or None
        At most so many training, validation and test examples a task, labels in proportion.
    correction : {"holm", "benjamini_hochberg", "none"}, default "holm"
        Of p-values over the heads of a task.
    seed : int, default 0
        For parts, samples, control tasks and random weights.
    """

    settings: ProbeSettings | None = None
    top: int | None = None
    curve: tuple[int, ...] | None = None
    greedy: bool = True
    greedy_penalty: float = 1e-2
    control: bool = True
    random_baseline: bool = False
    pairs: str = "joint"
    token: str = "auto"
    dtype: str = "float32"
    limits: tuple[int | None, int | None, int | None] = (None, None, None)
    correction: str = "holm"
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        one_of("pairs", self.pairs, PAIRS)
        one_of("correction", self.correction, CORRECTIONS)
        above("greedy_penalty", self.greedy_penalty, 0)

    @property
    def fitting(self) -> ProbeSettings:
        """The settings of probes, where none were given those of a model on the CPU."""
        return self.settings or ProbeSettings(solver="lbfgs")

    def identity(self) -> dict[str, Any]:
        """Everything that changes a fit; memory and device do not."""
        plain = asdict(replace(self, settings=self.fitting))
        for name in ("random_baseline", "limits", "correction"):
            plain.pop(name)
        for name in ("memory", "device"):
            plain["settings"].pop(name)
        return plain

    def sizes(self, layers: int, heads: int) -> tuple[int, tuple[int, ...]]:
        """How many heads are joined, and the points of the curve; refuses more heads than the model
        has."""
        total = layers * heads
        top = min(heads, total) if self.top is None else self.top
        curve = (
            (*CURVE, heads, 3 * heads // 2, 2 * heads, 3 * heads)
            if self.curve is None
            else self.curve
        )
        curve = tuple(sorted({n for n in curve if self.curve is not None or 1 <= n <= total}))
        for name, numbers in (("top", (top,)), ("curve", curve)):
            for n in numbers:
                if not 1 <= n <= total:
                    raise ParameterError(
                        f"`{name}` asks for {n} heads, but the model has {total}; give a number from 1 to {total}."
                    )
        return top, curve


def features_of(vectors: Vectors, task: Task) -> tuple[Features, Features]:
    """Features of heads and of layers: the vectors, or those of pairs where all second sentences
    follow."""
    count = len(task.examples)
    if len(vectors) == count:
        return ArrayFeatures(vectors.heads), ArrayFeatures(vectors.layers)
    first, second = vectors.part(0, count), vectors.part(count, 2 * count)
    heads = PairFeatures(ArrayFeatures(first.heads), ArrayFeatures(second.heads))
    return heads, PairFeatures(ArrayFeatures(first.layers), ArrayFeatures(second.layers))


def ranked(validation: np.ndarray) -> np.ndarray:
    """Units from best to worst validation score; the lowest index first among equals."""
    return np.argsort(-validation, kind="stable")


def control_labels(task: Task, seed: int) -> list[Any]:
    """Random labels of the same shape: dealt out anew within each part, the same label to the same
    text."""
    labels, out = task.labels, list(task.labels)
    random = np.random.RandomState(seed + 1)
    by_text: dict[tuple[Any, ...], Any] = {}
    for rows in (task.split.train, task.split.validation, task.split.test):
        for row, source in zip(rows, random.permutation(rows), strict=True):
            example = task.examples[row]
            text = (example.text, example.pair, example.words, example.words_pair)
            out[row] = by_text.setdefault(text, labels[source])
    return out


def fit_task(
    task: Task,
    vectors: Vectors,
    options: ProbingOptions,
    report: Callable[[str, int, int], None] | None = None,
) -> dict[str, np.ndarray]:
    """All probes of one task.

    Returns
    -------
    dict of ndarray
        `heads/...` and `layers/...` (validation, test, penalty, predicted, spearman), `top/order`,
        `top/<n>/...`, `greedy/order`, `greedy/<n>/...`, `control/...`, `truth` and `majority`.
    """
    top, curve = options.sizes(*vectors.heads.shape[:2])
    said, families = 0, 3 + options.greedy + options.control

    def say() -> None:  # a family of probes begins, or the last one has ended
        nonlocal said
        if report is not None:
            report(f"probes of {task.name}", said, families)
        said += 1

    head_features, layer_features = features_of(vectors, task)
    fitter = _Fitter(task, options)
    say()
    by_head = fitter.fit("heads", head_features)
    fitter.out |= {"truth": by_head.truth, "majority": _majority(task)}
    say()
    fitter.fit("layers", layer_features)

    orders = {"top": ranked(by_head.validation)}
    numbers = sorted({top, *curve})
    if options.greedy:
        say()
        chosen, scores = _greedy(task, head_features, orders["top"], max(numbers), options)
        orders["greedy"] = np.array(chosen)
        fitter.out["greedy/validation"] = np.array(scores)
    say()
    for name, order in orders.items():
        fitter.out[f"{name}/order"] = order
        for n in numbers:
            if n <= len(order):
                fitter.fit(f"{name}/{n}", JoinedFeatures(head_features, order[:n].tolist()))
    if options.control:
        say()
        dealt = control_labels(task, options.seed)
        fitter.out["control/truth"] = fitter.fit(
            "control", head_features, dealt, " (control task)"
        ).truth
    say()
    return fitter.out


def fit_baseline(
    task: Task, vectors: Vectors, options: ProbingOptions, *, layers: bool = True
) -> dict[str, np.ndarray]:
    """Heads and layers (or not) alone, with `truth` and `majority`."""
    fitter = _Fitter(task, options)
    by_head, by_layer = features_of(vectors, task)
    truth = fitter.fit("heads", by_head).truth
    if layers:
        fitter.fit("layers", by_layer)
    return fitter.out | {"truth": truth, "majority": _majority(task)}


class _Fitter:
    """Fits families of probes of one task, and keeps their scores as named arrays."""

    def __init__(self, task: Task, options: ProbingOptions) -> None:
        self.task, self.settings = task, options.fitting
        self.out: dict[str, np.ndarray] = {}

    def fit(
        self, name: str, features: Features, labels: Sequence[object] | None = None, which: str = ""
    ) -> ProbeScores:
        task = self.task
        fit = fit_regressions if task.regression else fit_probes
        scores = fit(features, labels or task.labels, task.split, self.settings, task.name + which)
        for part in ("validation", "test", "penalty"):
            self.out[f"{name}/{part}"] = getattr(scores, part)
        predicted = scores.predicted
        self.out[f"{name}/predicted"] = predicted.astype(
            np.float32 if predicted.dtype.kind == "f" else np.int32
        )
        if scores.spearman is not None:
            self.out[f"{name}/spearman"] = scores.spearman
        return scores


def _majority(task: Task) -> np.ndarray:
    """The class that is most frequent in training (the first among equals); NaN for regression."""
    if task.regression:
        return np.array(np.nan)
    codes, _ = encode_labels(task.labels, task.split, task.name)
    return np.array(np.bincount(codes[task.split.train]).argmax())


def _greedy(
    task: Task, features: Features, order: np.ndarray, steps: int, options: ProbingOptions
) -> tuple[list[int], list[float]]:
    """Forward selection among the heads that are best singly, as many as memory leaves room for."""
    device = options.fitting.device
    room = int((options.fitting.memory / 24) ** 0.5) // features.size
    candidates = order[: max(min(steps, len(order)), min(len(order), room))].tolist()
    split = task.split
    if task.regression:
        values = encode_targets(task.labels, split, task.name)
        truth = torch.from_numpy(values[split.validation]).to(device)
        targets = values[split.train][:, None]

        def score(predicted: Tensor) -> Tensor:
            return pearson(predicted[..., 0], truth).nan_to_num(0.0)
    else:
        codes, names = encode_labels(task.labels, split, task.name)
        right = torch.from_numpy(codes[split.validation]).to(device)
        targets = one_hot(torch.from_numpy(codes[split.train]), len(names)).numpy()

        def score(predicted: Tensor) -> Tensor:
            return (predicted.argmax(-1) == right).double().mean(-1)

    settings = options.fitting
    number = min(steps, len(candidates))
    how = GreedyOptions(
        number, options.greedy_penalty, candidates, settings.standardize, settings.device
    )
    return greedy_heads(features, split, targets, score, how)
