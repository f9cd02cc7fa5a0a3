"""The score phase of probing: the fitted arrays of all tasks as one dataset, with intervals, tests and
summaries; and how localised a task is, which Jo & Myaeng 2020, §3.2, see in heat maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from headwise.core.labels import SIGNIFICANCE_LEVEL, Shape, head_name
from headwise.stats.bootstrap import percentile_interval, resampled_metric, resamples
from headwise.stats.concentration import effective_number, localisation
from headwise.stats.corrections import correct
from headwise.stats.correlation import correlation, correlation_p, fisher_interval
from headwise.stats.intervals import wilson_interval
from headwise.stats.metrics import METRICS
from headwise.stats.paired import flip_interval
from headwise.stats.tests import mcnemar_exact
from headwise.text.tasks import SENTEVAL, Task

POOLINGS = ("last_layer", "best_layer", "top_heads", "greedy_heads")
SELECTIONS = ("top", "greedy")
HEAD_DIMS = ("task", "layer", "head")
LAYER_DIMS = ("task", "layer")
PEARSON = "Pearson's r"
RESAMPLES = 400
LOCALISATION = {
    "localisation": "how localised the task is among heads: 0 all alike, 1 a single head",
    "effective_heads": "number of heads of equal gain that would be as even",
    "layer_localisation": "how localised the task is among layers: 0 all alike, 1 a single layer",
}
FittedArrays = Mapping[str, np.ndarray]  # what `fit_task` returns


def probing_dataset(
    tasks: Sequence[Task],
    fits: Sequence[FittedArrays],
    shape: Shape,
    top: int,
    curve: Sequence[int],
    baselines: Sequence[FittedArrays] | None = None,
    correction: str = "holm",
) -> xr.Dataset:
    """Return the scores of all tasks as one dataset.

    Scores are accuracies, or Pearson's r for tasks of kind `regression` (coordinates `kind[task]`,
    `metric[task]`); each has `_n` (test examples), `_low` and `_high` (95 %: Wilson; Fisher's z for
    r) beside it.

    - `accuracy[task, layer, head]` and `layer_accuracy[task, layer]` on the test part, `validation[task, layer, head]`,
      `layer_validation[task, layer]` on the validation part;
    - `pooled_accuracy[task, pooling]`: last layer; best layer and best heads by *validation* score; heads selected
      greedily; `pooled_f1`, `pooled_matthews`, `pooled_spearman` where GLUE defines them;
    - `curve_accuracy[task, n_heads, selection]`; `top_layer[task, rank]`, `top_head[task, rank]`, the same for
      `greedy_`;
    - `majority[task]`: test accuracy of the most frequent training label (0 for r); `p_value[task, layer, head]` of
      "better than that" (McNemar's exact test, one-sided; for r Student's t), `p_adjusted` over the
      heads of a task, `better` where it is under 0.05;
    - `control_accuracy[task, layer, head]` (random labels), `selectivity` = accuracy − control accuracy (for
      r: difference of both r);
    - `random_accuracy[task, layer, head]`, `random_layer_accuracy[task, layer]`: the same architecture with random
      weights;
    - `localisation[task]`: how localised the task is among heads, from 0 (all heads gain alike) to 1 (one head does):
      `1 − (e^H − 1) / (heads − 1)` with H the entropy of each head's share of the gain over
      `majority`; `effective_heads[task]` = e^H; `layer_localisation[task]` the same of the gains
      summed by layer. Intervals from a bootstrap over test examples (see `task_localisation`); NaN where no
      head is `better`;
    - `syntactic_score[layer, head]`, `semantic_score[layer, head]` (§6.2, Fig 5), `task_correlation[task, task_b]`
      (Pearson over heads).
    """
    builder = _DatasetBuilder(tasks, fits, shape, top, tuple(curve))
    builder.add_heads_and_layers()
    builder.add_pooled_scores()
    builder.add_curves()
    builder.add_rankings()
    builder.add_significance(correction)
    if any("control/test" in fit for fit in fits):
        builder.add_control()
    if baselines is not None:
        builder.add_random_baseline(baselines)
    builder.add_localisation()
    builder.add_task_groups()
    builder.add_task_correlation()
    return builder.dataset()


class _DatasetBuilder:
    """Collects the variables of the dataset, one topic a method.

    Parameters
    ----------
    tasks : sequence of Task
        The tasks, in the order of the dataset.
    fits : sequence of mapping
        The fitted arrays of each.
    shape : Shape
        Of the model.
    top : int
        How many heads were joined.
    curve : tuple of int
        The numbers of heads of the curve.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        fits: Sequence[FittedArrays],
        shape: Shape,
        top: int,
        curve: tuple[int, ...],
    ) -> None:
        self.tasks = tasks
        self.fits = fits
        self.shape = shape
        self.top = top
        self.curve = curve
        self.head_shape = (shape.layers, shape.heads)
        self.n_ranks = max([top, *curve])
        self.poolings: tuple[str, ...] = POOLINGS
        self.selections: tuple[str, ...] = SELECTIONS
        if not any("greedy/order" in fit for fit in fits):
            self.poolings = POOLINGS[:3]
            self.selections = SELECTIONS[:1]
        self.variables: dict[str, Any] = {}

    # --- helpers ----------------------------------------------------------------------------------

    def stack(
        self, name: str, dims: tuple[str, ...], fits: Sequence[FittedArrays] | None = None
    ) -> np.ndarray:
        """Return one array of all tasks; NaN where a task lacks it."""
        shape = self.head_shape[: len(dims) - 1]
        missing = np.full(shape, np.nan)
        arrays = []
        for fit in fits or self.fits:
            arrays.append(np.asarray(fit.get(name, missing), dtype=float).reshape(shape))
        return np.stack(arrays)

    def add(self, name: str, dims: tuple[str, ...], values: np.ndarray, long_name: str) -> None:
        """Add a variable; floats as float32, but p-values in full."""
        if values.dtype.kind == "f" and not name.startswith("p_"):
            values = values.astype(np.float32)
        self.variables[name] = xr.Variable(dims, values, {"long_name": long_name})

    def add_bounds(
        self, name: str, dims: tuple[str, ...], bounds: np.ndarray, method: str = ""
    ) -> None:
        """Add the ends of a 95 % interval, `bounds[low or high, ...]`."""
        interval = f"end of the 95 % interval of {name}{method}"
        self.add(f"{name}_low", dims, bounds[0], f"lower {interval}")
        self.add(f"{name}_high", dims, bounds[1], f"upper {interval}")

    def add_scores(
        self, name: str, dims: tuple[str, ...], scores: np.ndarray, long_name: str
    ) -> None:
        """Add scores with their count and interval: Wilson's for accuracies, Fisher's z for
        correlations."""
        test_counts = np.array([len(task.split.test) for task in self.tasks])
        test_counts = test_counts.reshape(-1, *[1] * (scores.ndim - 1))
        counts = np.broadcast_to(test_counts, scores.shape)
        regression = np.array([task.regression for task in self.tasks])
        classification = ~regression
        bounds = np.full((2, *scores.shape), np.nan)
        bounds[:, classification] = wilson_interval(
            (scores * counts)[classification], counts[classification]
        )
        bounds[:, regression] = fisher_interval(scores[regression], counts[regression])
        self.add(name, dims, scores, long_name)
        known_counts = np.where(np.isnan(scores), 0, counts)
        self.add(f"{name}_n", dims, known_counts, f"test examples behind {name}")
        self.add_bounds(name, dims, bounds)

    # --- topics -----------------------------------------------------------------------------------

    def add_heads_and_layers(self) -> None:
        self.add_scores(
            "accuracy",
            HEAD_DIMS,
            self.stack("heads/test", HEAD_DIMS),
            "test score of a probe on the head's output",
        )
        self.add_scores(
            "layer_accuracy",
            LAYER_DIMS,
            self.stack("layers/test", LAYER_DIMS),
            "test score of a probe on the layer's output",
        )
        self.add(
            "validation",
            HEAD_DIMS,
            self.stack("heads/validation", HEAD_DIMS),
            "validation score that ranks the heads",
        )
        self.add(
            "layer_validation",
            LAYER_DIMS,
            self.stack("layers/validation", LAYER_DIMS),
            "validation score that ranks the layers",
        )
        self.add(
            "penalty",
            HEAD_DIMS,
            self.stack("heads/penalty", HEAD_DIMS),
            "L2 penalty selected on validation",
        )
        if any(task.regression for task in self.tasks):
            long_name = "Spearman's rho on the test part"
            self.add("spearman", HEAD_DIMS, self.stack("heads/spearman", HEAD_DIMS), long_name)
            self.add(
                "layer_spearman", LAYER_DIMS, self.stack("layers/spearman", LAYER_DIMS), long_name
            )

    def add_pooled_scores(self) -> None:
        """Scores of the last layer, the best layer and the joined heads."""
        dims = ("task", "pooling")
        scores = np.full((len(self.tasks), len(self.poolings)), np.nan)
        second_scores = {
            name: np.full_like(scores, np.nan) for name in ("f1", "matthews", "spearman")
        }
        best_layers = np.array([int(np.argmax(fit["layers/validation"])) for fit in self.fits])
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            # The family of probes and the unit in it, in the order of `poolings`.
            units = [("layers", self.shape.layers - 1), ("layers", int(best_layers[i]))]
            for selection in self.selections:
                units.append((f"{selection}/{self.top}", 0))
            for j, (family, unit) in enumerate(units):
                if f"{family}/test" not in fit:
                    continue
                scores[i, j] = fit[f"{family}/test"][unit]
                if task.second_metric:
                    second_scores[task.second_metric][i, j] = second_metric(
                        task.second_metric, fit, family, unit
                    )
        self.add_scores(
            "pooled_accuracy", dims, scores, "test score of a probe on the pooled vector"
        )
        for name, values in second_scores.items():
            if np.isfinite(values).any():
                self.add(f"pooled_{name}", dims, values, f"{name} on the test part")
        self.add("best_layer", ("task",), best_layers, "layer with the best validation score")

    def add_curves(self) -> None:
        """Scores of the n best heads together."""
        if not self.curve:
            return
        scores = np.full((len(self.fits), len(self.curve), len(self.selections)), np.nan)
        for i, fit in enumerate(self.fits):
            for j, n in enumerate(self.curve):
                for k, selection in enumerate(self.selections):
                    name = f"{selection}/{n}/test"
                    if name in fit:
                        scores[i, j, k] = fit[name][0]
        self.add_scores(
            "curve_accuracy",
            ("task", "n_heads", "selection"),
            scores,
            "test score of the n best heads together",
        )

    def add_rankings(self) -> None:
        """The heads of each rank, by each selection."""
        for selection in self.selections:
            order = np.full((len(self.fits), self.n_ranks), -1, dtype=np.int64)
            for row, fit in zip(order, self.fits, strict=True):
                ranked = fit.get(f"{selection}/order", np.zeros(0))[: self.n_ranks]
                row[: len(ranked)] = ranked
            layer, head = np.divmod(order, self.shape.heads)
            empty = order < 0
            self.add(
                f"{selection}_layer",
                ("task", "rank"),
                np.where(empty, -1, layer),
                "layer of the head with this rank (-1: none)",
            )
            self.add(
                f"{selection}_head",
                ("task", "rank"),
                np.where(empty, -1, head),
                "head with this rank (-1: none)",
            )

    def add_significance(self, correction: str) -> None:
        """Tests of each head against the most frequent label."""
        p_values = np.full((len(self.tasks), *self.head_shape), np.nan)
        adjusted = p_values.copy()
        majority = np.zeros(len(self.tasks))
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            if task.regression:
                p = correlation_p(fit["heads/test"], len(task.split.test), "greater")
            else:
                head_correct = fit["heads/predicted"] == fit["truth"]
                majority_correct = fit["truth"] == fit["majority"]
                majority[i] = majority_correct.mean()
                only_head = (head_correct & ~majority_correct).sum(1)
                only_majority = (~head_correct & majority_correct).sum(1)
                p = mcnemar_exact(only_head, only_majority)
            p_values[i] = p.reshape(self.head_shape)
            adjusted[i] = correct(p_values[i], correction)
        self.add(
            "majority",
            ("task",),
            majority,
            "test score of the most frequent training label (0 for a correlation)",
        )
        self.add(
            "p_value",
            HEAD_DIMS,
            p_values,
            "p-value of 'no better than the majority label', one-sided",
        )
        self.add(
            "p_adjusted",
            HEAD_DIMS,
            adjusted,
            f"p-value corrected over the heads of a task ({correction})",
        )
        self.add(
            "better",
            HEAD_DIMS,
            adjusted < SIGNIFICANCE_LEVEL,
            "better than the majority label at 5 %, corrected",
        )

    def add_control(self) -> None:
        """Scores on the control task, and selectivity."""
        control_scores = self.stack("control/test", HEAD_DIMS)
        self.add_scores(
            "control_accuracy",
            HEAD_DIMS,
            control_scores,
            "test score on the control task: random labels",
        )
        selectivity = self.stack("heads/test", HEAD_DIMS) - control_scores
        bounds = np.full((2, *selectivity.shape), np.nan)
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            if task.regression or "control/test" not in fit:
                continue
            correct_answers = fit["heads/predicted"] == fit["truth"]
            control_correct = fit["control/predicted"] == fit["control/truth"]
            gained = (correct_answers & ~control_correct).T  # [example, head]
            lost = (~correct_answers & control_correct).T
            interval = np.stack(flip_interval(gained, lost, np.ones_like(gained)))
            bounds[:, i] = interval.reshape(2, *self.head_shape)
        self.add("selectivity", HEAD_DIMS, selectivity, "score minus score on the control task")
        counts = self.variables["control_accuracy_n"].values
        self.add("selectivity_n", HEAD_DIMS, counts, "test examples behind selectivity")
        self.add_bounds("selectivity", HEAD_DIMS, bounds, " (paired over examples)")

    def add_random_baseline(self, baselines: Sequence[FittedArrays]) -> None:
        self.add_scores(
            "random_accuracy",
            HEAD_DIMS,
            self.stack("heads/test", HEAD_DIMS, baselines),
            "test score of the head with random weights",
        )
        self.add_scores(
            "random_layer_accuracy",
            LAYER_DIMS,
            self.stack("layers/test", LAYER_DIMS, baselines),
            "test score of the layer with random weights",
        )

    def add_localisation(self) -> None:
        """How localised each task is; NaN where no head is better than the majority label."""
        values = {name: np.full((3, len(self.tasks)), np.nan) for name in LOCALISATION}
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            if not self.variables["better"].values[i].any():
                continue
            chance = float(self.variables["majority"].values[i])
            indices = task_localisation(fit, self.head_shape, chance, regression=task.regression)
            for name, value_and_bounds in indices.items():
                values[name][:, i] = value_and_bounds
        for name, long_name in LOCALISATION.items():
            self.add(name, ("task",), values[name][0], long_name)
            self.add_bounds(name, ("task",), values[name][1:], " (bootstrap over test examples)")

    def add_task_groups(self) -> None:
        """Mean accuracy over the syntactic and the semantic tasks (§6.2, Fig 5)."""
        accuracy = self.variables["accuracy"].values.astype(float)
        for group in ("syntactic", "semantic"):
            members = [i for i, task in enumerate(self.tasks) if task.group == group]
            if members:
                mean_accuracy = accuracy[members].mean(0)
                names = ", ".join(self.tasks[i].name for i in members)
            else:
                mean_accuracy = np.full(self.head_shape, np.nan)
                names = "none of its tasks was run"
            long_name = f"mean test accuracy over {names}"
            self.add(f"{group}_score", ("layer", "head"), mean_accuracy, long_name)

    def add_task_correlation(self) -> None:
        accuracy = self.variables["accuracy"].values.astype(float)
        flat = accuracy.reshape(len(self.tasks), -1)
        self.add(
            "task_correlation",
            ("task", "task_b"),
            correlation(flat[:, None], flat[None]).r,
            "Pearson correlation of two tasks' scores over all heads",
        )

    def dataset(self) -> xr.Dataset:
        names = [task.name for task in self.tasks]
        metrics = [PEARSON if task.regression else "accuracy" for task in self.tasks]
        paper_names = [SENTEVAL[name][0] if name in SENTEVAL else name for name in names]
        coords: dict[str, Any] = {
            "layer": np.arange(self.shape.layers),
            "head": np.arange(self.shape.heads),
            "task": names,
            "task_b": names,
            "pooling": list(self.poolings),
            "rank": np.arange(self.n_ranks),
            "kind": ("task", [task.kind for task in self.tasks]),
            "group": ("task", [task.group for task in self.tasks]),
            "metric": ("task", metrics),
            "paper_task": ("task", paper_names),
            "train_n": ("task", [len(task.split.train) for task in self.tasks]),
            "validation_n": ("task", [len(task.split.validation) for task in self.tasks]),
        }
        if self.curve:
            coords["n_heads"] = np.array(self.curve)
            coords["selection"] = list(self.selections)
        return xr.Dataset(self.variables, coords)


def pooling_rows(dataset: xr.Dataset) -> list[tuple[str, ...]]:
    """Return a row for every task: its name, its metric, the test score of each pooling of
    `POOLINGS[:3]`, and the best head with its score.

    The best head is selected on the validation part, like the best layer and the joined heads.
    """
    rows = []
    for name in map(str, dataset["task"].values):
        task = dataset.sel(task=name)
        layer = int(task["top_layer"].isel(rank=0))
        head = int(task["top_head"].isel(rank=0))
        score = float(task["accuracy"].sel(layer=layer, head=head))
        pooled = task["pooled_accuracy"].reindex(pooling=list(POOLINGS[:3])).values
        pooled_texts = [f"{value:.3f}" for value in pooled]
        best_head = f"{head_name(layer, head)} {score:.3f}"
        rows.append((name, str(task["metric"].values), *pooled_texts, best_head))
    return rows


def second_metric(metric: str, fit: FittedArrays, family: str, unit: int) -> float:
    """Return F1 of class 1, Matthews' correlation, or Spearman's rho of one fitted unit on the test
    part."""
    if metric == "spearman":
        return float(fit[f"{family}/spearman"][unit])
    return METRICS[metric](fit["truth"] == 1, fit[f"{family}/predicted"][unit] == 1)


def task_localisation(
    fit: FittedArrays, head_shape: tuple[int, int], chance: float, *, regression: bool
) -> dict[str, np.ndarray]:
    """Return value, lower and upper end, `[3]`, of each index in `LOCALISATION`.

    The gain of a head is its test score minus `chance` (the most frequent label; 0 for a
    correlation), at least 0. Noise makes gains uneven, in a resample even more than in the sample;
    so the interval is the pivotal one (twice the value minus the quantiles of the resamples), which
    removes that bias, limited to the range of the index and widened to contain the value.

    Parameters
    ----------
    fit : mapping
        `heads/predicted[head, example]` and `truth[example]` of the test part.
    head_shape : tuple of int
        Layers, and heads of each.
    chance : float
        The score without any knowledge.
    regression : bool
        Whether scores are Pearson's r.
    """
    truth = fit["truth"]
    metric = "pearson" if regression else "accuracy"

    def gains(weights: np.ndarray) -> np.ndarray:
        scores = resampled_metric(metric, weights, truth, fit["heads/predicted"])
        return np.clip(scores - chance, 0, None)

    sample_gains = gains(np.ones((1, len(truth))))
    resampled_gains = gains(resamples(len(truth), RESAMPLES))

    def among_layers(head_gains: np.ndarray) -> np.ndarray:
        return localisation(head_gains.reshape(-1, *head_shape).sum(-1))

    n_heads = float(sample_gains.shape[1])
    indices: list[tuple[str, Callable[[np.ndarray], np.ndarray], float, float]] = [
        ("localisation", localisation, 0.0, 1.0),
        ("effective_heads", effective_number, 1.0, n_heads),
        ("layer_localisation", among_layers, 0.0, 1.0),
    ]
    intervals = {}
    for name, index, lowest, highest in indices:
        value = float(index(sample_gains)[0])
        low_quantile, high_quantile = percentile_interval(index(resampled_gains))
        low = min(value, 2 * value - float(high_quantile))
        high = max(value, 2 * value - float(low_quantile))
        intervals[name] = np.array([value, *np.clip((low, high), lowest, highest)])
    return intervals
