"""The fit phase of probing: every head, every layer, the best heads together, and the control task of one task, as plain named arrays."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import ParameterError
from headwise.core.files import write_atomically
from headwise.models.vectors import Vectors
from headwise.probes import (
    ArrayFeatures,
    Features,
    JoinedFeatures,
    PairFeatures,
    ProbeScores,
    ProbeSettings,
    fit_probes,
    fit_regressions,
    greedy_heads,
)
from headwise.probes.linear import pearson
from headwise.probes.ridge import one_hot
from headwise.probes.settings import encode_labels, encode_targets
from headwise.text.tasks import Task

PAIRS = ("joint", "features")
CURVE = (1, 2, 3, 4, 6, 8)  # with H, 3H/2, 2H and 3H: where the curve over n is measured unless said otherwise


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What is fitted beside every head and every layer.

    `top` heads are concatenated (H by default, so that the vector is as long as a layer's); `curve` lists the numbers of heads of the curve (None for a default up to
    3H, empty for none); `greedy` adds forward selection; `control` the control task; `pairs` says how two sentences become features.
    """

    settings: ProbeSettings = field(default_factory=lambda: ProbeSettings(solver="lbfgs"))
    top: int | None = None
    curve: tuple[int, ...] | None = None
    greedy: bool = True
    greedy_penalty: float = 1e-2
    control: bool = True
    pairs: str = "joint"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pairs not in PAIRS:
            raise ParameterError(f"`pairs` must be one of {', '.join(PAIRS)}; it is {self.pairs!r}.")
        if not self.greedy_penalty > 0:
            raise ParameterError(f"`greedy_penalty` must be greater than 0; it is {self.greedy_penalty!r}.")

    def sizes(self, layers: int, heads: int) -> tuple[int, tuple[int, ...]]:
        """How many heads are joined, and the points of the curve; refuses more heads than the model has."""
        total = layers * heads
        top = min(heads, total) if self.top is None else self.top
        curve = (*CURVE, heads, 3 * heads // 2, 2 * heads, 3 * heads) if self.curve is None else self.curve
        curve = tuple(sorted({n for n in curve if self.curve is not None or 1 <= n <= total}))
        for name, numbers in (("top", (top,)), ("curve", curve)):
            for n in numbers:
                if not 1 <= n <= total:
                    raise ParameterError(
                        f"`{name}` asks for {n} heads, but the model has {total}; give a number from 1 to {total}."
                    )
        return top, curve


def features_of(vectors: Vectors, task: Task) -> tuple[Features, Features]:
    """Features of heads and of layers: the vectors as they are, or `[u; v; |u−v|; u*v]` where first and second sentences lie one after the other."""
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
    """Random labels of the same shape: within each part the labels are dealt out anew, the same label to the same text."""
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
    task: Task, vectors: Vectors, options: FitOptions, report: Callable[[str], None] | None = None
) -> dict[str, np.ndarray]:
    """All probes of one task.

    Returns
    -------
    arrays by name: `heads/...` and `layers/...` (validation, test, penalty, predicted, spearman), `top/order`, `top/<n>/...`, `greedy/order`, `greedy/<n>/...`,
    `control/...`, and `truth`, `majority`.
    """
    layers, heads = vectors.heads.shape[:2]
    top, curve = options.sizes(layers, heads)
    say = report or (lambda what: None)
    fit = fit_regressions if task.kind == "regression" else fit_probes
    head_features, layer_features = features_of(vectors, task)
    labels, settings = task.labels, options.settings
    out: dict[str, np.ndarray] = {}

    say("heads")
    by_head = fit(head_features, labels, task.split, settings, task.name)
    _store(out, "heads", by_head)
    out["truth"] = by_head.truth
    out["majority"] = _majority(task)
    say("layers")
    _store(out, "layers", fit(layer_features, labels, task.split, settings, task.name))

    order = ranked(by_head.validation)
    out["top/order"] = order
    numbers = sorted({top, *curve})
    say("best heads together")
    for n in numbers:
        _store(
            out,
            f"top/{n}",
            fit(JoinedFeatures(head_features, order[:n].tolist()), labels, task.split, settings, task.name),
        )
    if options.greedy:
        say("greedy selection")
        chosen, scores = _greedy(task, head_features, order, max(numbers), options)
        out["greedy/order"], out["greedy/validation"] = np.array(chosen), np.array(scores)
        for n in numbers:
            if n <= len(chosen):
                _store(
                    out,
                    f"greedy/{n}",
                    fit(JoinedFeatures(head_features, chosen[:n]), labels, task.split, settings, task.name),
                )
    if options.control:
        say("control task")
        control = fit(
            head_features, control_labels(task, options.seed), task.split, settings, f"{task.name} (control task)"
        )
        _store(out, "control", control)
        out["control/truth"] = control.truth
    return out


def fit_baseline(task: Task, vectors: Vectors, options: FitOptions) -> dict[str, np.ndarray]:
    """Heads and layers alone, for a model with random weights."""
    fit = fit_regressions if task.kind == "regression" else fit_probes
    head_features, layer_features = features_of(vectors, task)
    out: dict[str, np.ndarray] = {}
    _store(out, "heads", fit(head_features, task.labels, task.split, options.settings, task.name))
    _store(out, "layers", fit(layer_features, task.labels, task.split, options.settings, task.name))
    return out


def _store(out: dict[str, np.ndarray], name: str, scores: ProbeScores) -> None:
    for part in ("validation", "test", "penalty"):
        out[f"{name}/{part}"] = getattr(scores, part)
    predicted = scores.predicted
    out[f"{name}/predicted"] = predicted.astype(np.float32 if predicted.dtype.kind == "f" else np.int32)
    if scores.spearman is not None:
        out[f"{name}/spearman"] = scores.spearman


def _majority(task: Task) -> np.ndarray:
    """The class that is most frequent in training (the first among equals); NaN for regression."""
    if task.kind == "regression":
        return np.array(np.nan)
    codes, _ = encode_labels(task.labels, task.split, task.name)
    return np.array(np.bincount(codes[task.split.train]).argmax())


def _greedy(
    task: Task, features: Features, order: np.ndarray, steps: int, options: FitOptions
) -> tuple[list[int], list[float]]:
    """Forward selection among the heads that are best singly, as many as the Gram matrix of their vectors leaves room for."""
    device = options.settings.device
    room = int((options.settings.memory / 24) ** 0.5) // features.size
    candidates = order[: max(min(steps, len(order)), min(len(order), room))].tolist()
    split = task.split
    if task.kind == "regression":
        values = encode_targets(task.labels, split, task.name)
        truth = torch.from_numpy(values[split.validation]).to(device)
        targets = values[split.train][:, None]

        def score(predicted: Tensor) -> Tensor:
            return pearson(predicted[..., 0], truth)
    else:
        codes, names = encode_labels(task.labels, split, task.name)
        right = torch.from_numpy(codes[split.validation]).to(device)
        targets = one_hot(torch.from_numpy(codes[split.train]), len(names)).numpy()

        def score(predicted: Tensor) -> Tensor:
            return (predicted.argmax(-1) == right).double().mean(-1)

    return greedy_heads(
        features,
        split.train,
        split.validation,
        targets,
        score,
        min(steps, len(candidates)),
        penalty=options.greedy_penalty,
        candidates=candidates,
        standardize=options.settings.standardize,
        device=device,
    )


def cached(
    path: Path | None, key: Sequence[object], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """What `make` gives, kept in a file; a file made with the same key is read instead, one with another key is made anew."""
    if path is None:
        return make()
    digest = hashlib.sha256(json.dumps([str(part) for part in key]).encode()).hexdigest()
    if path.exists():
        with np.load(path, allow_pickle=False) as found:
            if str(found["key"]) == digest:
                return {name: found[name] for name in found.files if name != "key"}
    arrays = make()
    content = io.BytesIO()
    kept: dict[str, Any] = {"key": np.array(digest), **arrays}
    np.savez(content, **kept)
    write_atomically(path, content.getvalue())
    return arrays


def options_key(options: FitOptions) -> str:
    """Everything that changes a fit, as text; memory and device do not."""
    plain = asdict(options)
    for name in ("memory", "device"):
        plain["settings"].pop(name)
    return json.dumps(plain, sort_keys=True)
