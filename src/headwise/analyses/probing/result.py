"""The score phase of probing: fitted arrays of all tasks as one labelled dataset, with intervals, tests and readings of Jo & Myaeng 2020."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from scipy import stats as scipy_stats

from headwise.stats.corrections import correct
from headwise.stats.intervals import LEVEL, mean_interval, wilson_interval
from headwise.stats.tests import mcnemar_exact
from headwise.text.tasks import SENTEVAL, Task

if TYPE_CHECKING:
    from headwise.analyses.contract import Shape

POOLINGS = ("last_layer", "best_layer", "top_heads", "greedy_heads")
SELECTIONS = ("top", "greedy")
Fitted = Mapping[str, np.ndarray]


def probing_dataset(
    tasks: Sequence[Task],
    fits: Sequence[Fitted],
    shape: Shape,
    top: int,
    curve: Sequence[int],
    baselines: Sequence[Fitted | None] | None = None,
    correction: str = "holm",
) -> xr.Dataset:
    """All tasks as one dataset.

    Scores are accuracies, or Pearson's r for tasks of kind `regression` (coordinate `kind[task]`); each has `_n` (test examples), `_low` and `_high` (95 %: Wilson; Fisher's z
    for r) beside it.

    - `accuracy[task, layer, head]` and `layer_accuracy[task, layer]` on the test part, `validation[task, layer, head]`, `layer_validation[task, layer]` on the validation part;
    - `pooled_accuracy[task, pooling]`: last layer; best layer and best heads by *validation* score; heads chosen greedily;
      `pooled_f1`, `pooled_matthews`, `pooled_spearman` where GLUE defines them;
    - `curve_accuracy[task, n_heads, selection]`; `top_layer[task, rank]`, `top_head[task, rank]`, the same for `greedy_`;
    - `majority[task]`: test accuracy of the most frequent training label (0 for r); `p_value[task, layer, head]` of "better than that" (McNemar's exact test, one-sided; for r
      Student's t), `p_adjusted` over the heads of a task, `better` where it is under 0.05;
    - `control_accuracy[task, layer, head]` (labels dealt at random), `selectivity` = accuracy − control accuracy (for r: difference of both r);
    - `random_accuracy[task, layer, head]`, `random_layer_accuracy[task, layer]`: the same architecture with random weights;
    - `syntactic_score[layer, head]`, `semantic_score[layer, head]` (§6.2, Fig 5), `task_correlation[task, task_b]` (Pearson over heads).
    """
    builder = _Builder(tasks, fits, shape, top, tuple(curve))
    builder.single()
    builder.pooled()
    builder.tests(correction)
    builder.control()
    if baselines is not None:
        builder.random(baselines)
    builder.readings()
    return builder.dataset()


class _Builder:
    def __init__(
        self, tasks: Sequence[Task], fits: Sequence[Fitted], shape: Shape, top: int, curve: tuple[int, ...]
    ) -> None:
        self.tasks, self.fits, self.shape, self.top, self.curve = tasks, fits, shape, top, curve
        self.heads = (shape.layers, shape.heads)
        self.variables: dict[str, Any] = {}

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _stack(self, name: str, shape: tuple[int, ...], fits: Sequence[Fitted | None] | None = None) -> np.ndarray:
        """One array of all tasks; NaN where a task lacks it."""
        rows = [
            np.full(shape, np.nan) if f is None or name not in f else np.asarray(f[name], dtype=float).reshape(shape)
            for f in fits or self.fits
        ]
        return np.stack(rows)

    def _scored(self, variable: str, dims: tuple[str, ...], values: np.ndarray, long_name: str) -> None:
        """A score with its count and interval: Wilson for accuracies, Fisher's z for correlations."""
        counts = np.array([len(task.split.test) for task in self.tasks]).reshape(-1, *[1] * (values.ndim - 1))
        low, high = np.full_like(values, np.nan), np.full_like(values, np.nan)
        for i, task in enumerate(self.tasks):
            bounds = fisher_interval if task.kind == "regression" else accuracy_interval
            low[i], high[i] = bounds(values[i], int(counts[i].flat[0]))
        number = np.where(np.isnan(values), 0, np.broadcast_to(counts, values.shape)).astype(np.int64)
        self._put(variable, dims, values, long_name)
        self._put(f"{variable}_n", dims, number, f"test examples behind {variable}")
        self._put(f"{variable}_low", dims, low, f"lower end of the 95 % interval of {variable}")
        self._put(f"{variable}_high", dims, high, f"upper end of the 95 % interval of {variable}")

    def _put(self, name: str, dims: tuple[str, ...], values: np.ndarray, long_name: str) -> None:
        values = values.astype(np.float32) if values.dtype.kind == "f" and not name.startswith("p_") else values
        self.variables[name] = xr.Variable(dims, values, {"long_name": long_name})

    # --- parts ------------------------------------------------------------------------------------------------------

    def single(self) -> None:
        layers = (self.shape.layers,)
        dims, layer_dims = ("task", "layer", "head"), ("task", "layer")
        self._scored(
            "accuracy", dims, self._stack("heads/test", self.heads), "test score of a probe on the head's output"
        )
        self._scored(
            "layer_accuracy",
            layer_dims,
            self._stack("layers/test", layers),
            "test score of a probe on the layer's output",
        )
        self._put(
            "validation", dims, self._stack("heads/validation", self.heads), "validation score that ranks the heads"
        )
        self._put(
            "layer_validation",
            layer_dims,
            self._stack("layers/validation", layers),
            "validation score that ranks the layers",
        )
        self._put("penalty", dims, self._stack("heads/penalty", self.heads), "L2 penalty that validation picked")
        if any(task.kind == "regression" for task in self.tasks):
            self._put("spearman", dims, self._stack("heads/spearman", self.heads), "Spearman's rho on the test part")
            self._put(
                "layer_spearman", layer_dims, self._stack("layers/spearman", layers), "Spearman's rho on the test part"
            )

    def pooled(self) -> None:
        poolings = POOLINGS if any("greedy/order" in fit for fit in self.fits) else POOLINGS[:3]
        best = np.array([int(np.argmax(fit["layers/validation"])) for fit in self.fits])
        scores = np.full((len(self.tasks), len(poolings)), np.nan)
        extra = {name: np.full_like(scores, np.nan) for name in ("f1", "matthews", "spearman")}
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            places = [
                ("layers", self.shape.layers - 1),
                ("layers", best[i]),
                (f"top/{self.top}", 0),
                (f"greedy/{self.top}", 0),
            ]
            for j, (name, row) in enumerate(places[: len(poolings)]):
                if f"{name}/test" not in fit:
                    continue
                scores[i, j] = fit[f"{name}/test"][row]
                if task.second_metric:
                    extra[task.second_metric][i, j] = second_metric(task.second_metric, fit, name, row)
        self.poolings = poolings
        self._scored("pooled_accuracy", ("task", "pooling"), scores, "test score of a probe on the pooled vector")
        for name, values in extra.items():
            if np.isfinite(values).any():
                self._put(f"pooled_{name}", ("task", "pooling"), values, f"{name} on the test part")
        self._put("best_layer", ("task",), best, "layer with the best validation score")
        selections = SELECTIONS[: 2 if len(poolings) == 4 else 1]
        self.selections = selections
        if self.curve:
            values = np.full((len(self.tasks), len(self.curve), len(selections)), np.nan)
            for i, fit in enumerate(self.fits):
                for j, n in enumerate(self.curve):
                    for k, selection in enumerate(selections):
                        found = fit.get(f"{selection}/{n}/test")
                        values[i, j, k] = np.nan if found is None else found[0]
            self._scored(
                "curve_accuracy", ("task", "n_heads", "selection"), values, "test score of the n best heads together"
            )
        ranks = max([self.top, *self.curve])
        for selection in selections:
            order = np.stack([_padded(fit.get(f"{selection}/order"), ranks) for fit in self.fits])
            where = order >= 0
            self._put(
                f"{selection}_layer",
                ("task", "rank"),
                np.where(where, order // self.shape.heads, -1),
                "layer of the head with this rank (-1: none)",
            )
            self._put(
                f"{selection}_head",
                ("task", "rank"),
                np.where(where, order % self.shape.heads, -1),
                "head with this rank (-1: none)",
            )
        self.ranks = ranks

    def tests(self, correction: str) -> None:
        p = np.full((len(self.tasks), *self.heads), np.nan)
        adjusted, majority = p.copy(), np.zeros(len(self.tasks))
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            if task.kind == "regression":
                p[i] = correlation_test(fit["heads/test"].reshape(self.heads), len(task.split.test))
            else:
                correct_head = fit["heads/predicted"] == fit["truth"]
                correct_majority = fit["truth"] == fit["majority"]
                majority[i] = correct_majority.mean()
                only_head, only_majority = (
                    (correct_head & ~correct_majority).sum(1),
                    (~correct_head & correct_majority).sum(1),
                )
                p[i] = mcnemar_exact(only_head, only_majority).reshape(self.heads)
            adjusted[i] = correct(p[i], correction)
        dims = ("task", "layer", "head")
        self._put(
            "majority", ("task",), majority, "test score of the most frequent training label (0 for a correlation)"
        )
        self._put("p_value", dims, p, "p-value of 'no better than the majority label', one-sided")
        self._put("p_adjusted", dims, adjusted, f"p-value corrected over the heads of a task ({correction})")
        self._put("better", dims, adjusted < 0.05, "better than the majority label at 5 %, corrected")

    def control(self) -> None:
        if not any("control/test" in fit for fit in self.fits):
            return
        dims = ("task", "layer", "head")
        accuracy, control = self._stack("heads/test", self.heads), self._stack("control/test", self.heads)
        self._scored("control_accuracy", dims, control, "test score on the control task: labels dealt at random")
        low, high = np.full_like(control, np.nan), np.full_like(control, np.nan)
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            if task.kind == "classification" and "control/test" in fit:
                gain = (fit["heads/predicted"] == fit["truth"]).astype(float) - (
                    fit["control/predicted"] == fit["control/truth"]
                )
                count = np.array(float(gain.shape[1]))
                bounds = mean_interval(
                    gain.mean(1), gain.var(1, ddof=1) if gain.shape[1] > 1 else gain[:, 0] * np.nan, count
                )
                low[i], high[i] = (b.reshape(self.heads) for b in bounds)
        self._put("selectivity", dims, accuracy - control, "score minus score on the control task")
        self._put(
            "selectivity_n", dims, self.variables["control_accuracy_n"].values, "test examples behind selectivity"
        )
        self._put("selectivity_low", dims, low, "lower end of the 95 % interval of selectivity (paired over examples)")
        self._put(
            "selectivity_high", dims, high, "upper end of the 95 % interval of selectivity (paired over examples)"
        )

    def random(self, baselines: Sequence[Fitted | None]) -> None:
        dims = ("task", "layer", "head")
        self._scored(
            "random_accuracy",
            dims,
            self._stack("heads/test", self.heads, baselines),
            "test score of the head with random weights",
        )
        values = self._stack("layers/test", (self.shape.layers,), baselines)
        self._scored("random_layer_accuracy", dims[:2], values, "test score of the layer with random weights")

    def readings(self) -> None:
        accuracy = self.variables["accuracy"].values.astype(float)
        for group in ("syntactic", "semantic"):
            members = [i for i, task in enumerate(self.tasks) if task.group == group]
            values = accuracy[members].mean(0) if members else np.full(self.heads, np.nan)
            names = ", ".join(self.tasks[i].name for i in members) or "none of its tasks was run"
            self._put(f"{group}_score", ("layer", "head"), values, f"mean test accuracy over {names}")
        flat = accuracy.reshape(len(self.tasks), -1)
        centred = flat - flat.mean(1, keepdims=True)
        norm = np.linalg.norm(centred, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            correlation = centred @ centred.T / np.outer(norm, norm)
        self._put(
            "task_correlation",
            ("task", "task_b"),
            correlation,
            "Pearson correlation of two tasks' scores over all heads",
        )

    def dataset(self) -> xr.Dataset:
        names = [task.name for task in self.tasks]
        coords: dict[str, Any] = {
            "layer": np.arange(self.shape.layers),
            "head": np.arange(self.shape.heads),
            "task": names,
            "task_b": names,
            "pooling": list(self.poolings),
            "rank": np.arange(self.ranks),
            "kind": ("task", [task.kind for task in self.tasks]),
            "group": ("task", [task.group for task in self.tasks]),
            "paper_task": ("task", [SENTEVAL[name][0] if name in SENTEVAL else name for name in names]),
            "train_n": ("task", [len(task.split.train) for task in self.tasks]),
            "validation_n": ("task", [len(task.split.validation) for task in self.tasks]),
        }
        if self.curve:
            coords |= {"n_heads": np.array(self.curve), "selection": list(self.selections)}
        return xr.Dataset(self.variables, coords)


def _padded(order: np.ndarray | None, length: int) -> np.ndarray:
    out = np.full(length, -1, dtype=np.int64)
    if order is not None:
        out[: min(length, len(order))] = order[:length]
    return out


def accuracy_interval(accuracy: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    return wilson_interval(np.asarray(accuracy) * count, np.full(np.shape(accuracy), count))


def fisher_interval(r: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of Pearson's r by Fisher's z; NaN below four examples."""
    if count < 4:
        return np.full(np.shape(r), np.nan), np.full(np.shape(r), np.nan)
    z, half = np.arctanh(np.clip(r, -1 + 1e-15, 1 - 1e-15)), scipy_stats.norm.ppf(0.5 + LEVEL / 2) / np.sqrt(count - 3)
    return np.tanh(z - half), np.tanh(z + half)


def correlation_test(r: np.ndarray, count: int) -> np.ndarray:
    """One-sided p-value of `r ≤ 0` by Student's t."""
    r = np.clip(r, -1 + 1e-15, 1 - 1e-15)
    if count < 3:
        return np.full(np.shape(r), np.nan)
    return scipy_stats.t.sf(r * np.sqrt((count - 2) / (1 - r**2)), count - 2)


def second_metric(metric: str, fit: Fitted, name: str, row: int) -> float:
    """F1 of class 1, Matthews' correlation, or Spearman's rho of one fitted unit on the test part."""
    if metric == "spearman":
        return float(fit[f"{name}/spearman"][row])
    said, truth = fit[f"{name}/predicted"][row] == 1, fit["truth"] == 1
    tp, fp, fn, tn = (
        (a & b).sum(dtype=float) for a, b in ((said, truth), (said, ~truth), (~said, truth), (~said, ~truth))
    )
    if metric == "f1":
        return float(2 * tp / (2 * tp + fp + fn)) if tp + fp + fn else 0.0
    below = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return float((tp * tn - fp * fn) / below) if below else 0.0
