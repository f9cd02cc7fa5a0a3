"""The score phase of probing: fitted arrays of all tasks as one dataset, with intervals, tests and
readings; and how localised a task is, which Jo & Myaeng 2020, §3.2, see in heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from headwise.core.labels import Shape, head_name
from headwise.stats.bootstrap import percentile_interval, resampled_metric, resamples
from headwise.stats.concentration import effective_number, localisation
from headwise.stats.corrections import correct
from headwise.stats.correlation import correlation, correlation_p, fisher_interval
from headwise.stats.intervals import mean_interval, wilson_interval
from headwise.stats.metrics import METRICS
from headwise.stats.tests import mcnemar_exact
from headwise.text.tasks import SENTEVAL, Task

POOLINGS = ("last_layer", "best_layer", "top_heads", "greedy_heads")
SELECTIONS = ("top", "greedy")
HEADS = ("task", "layer", "head")
LAYERS = ("task", "layer")
PEARSON = "Pearson's r"
Fitted = Mapping[str, np.ndarray]
LOCALISED = {
    "localisation": "how localised the task is among heads: 0 all alike, 1 a single head",
    "effective_heads": "so many heads of equal gain would be as even",
    "layer_localisation": "how localised the task is among layers: 0 all alike, 1 a single layer",
}
RESAMPLES = 400


def probing_dataset(
    tasks: Sequence[Task],
    fits: Sequence[Fitted],
    shape: Shape,
    top: int,
    curve: Sequence[int],
    baselines: Sequence[Fitted] | None = None,
    correction: str = "holm",
) -> xr.Dataset:
    """All tasks as one dataset.

    Scores are accuracies, or Pearson's r for tasks of kind `regression` (coordinates `kind[task]`,
    `metric[task]`); each has `_n` (test examples), `_low` and `_high` (95 %: Wilson; Fisher's z for
    r) beside it.

    - `accuracy[task, layer, head]` and `layer_accuracy[task, layer]` on the test part, `validation[task, layer, head]`,
      `layer_validation[task, layer]` on the validation part;
    - `pooled_accuracy[task, pooling]`: last layer; best layer and best heads by *validation* score; heads chosen
      greedily; `pooled_f1`, `pooled_matthews`, `pooled_spearman` where GLUE defines them;
    - `curve_accuracy[task, n_heads, selection]`; `top_layer[task, rank]`, `top_head[task, rank]`, the same for
      `greedy_`;
    - `majority[task]`: test accuracy of the most frequent training label (0 for r); `p_value[task, layer, head]` of
      "better than that" (McNemar's exact test, one-sided; for r Student's t), `p_adjusted` over the
      heads of a task, `better` where it is under 0.05;
    - `control_accuracy[task, layer, head]` (labels dealt at random), `selectivity` = accuracy − control accuracy (for
      r: difference of both r);
    - `random_accuracy[task, layer, head]`, `random_layer_accuracy[task, layer]`: the same architecture with random
      weights;
    - `localisation[task]`: how localised the task is among heads, from 0 (all heads gain alike) to 1 (one head does):
      `1 − (e^H − 1) / (heads − 1)` with H the entropy of each head's share of the gain over
      `majority`; `effective_heads[task]` = e^H; `layer_localisation[task]` the same of the gains
      summed by layer. Intervals from a bootstrap over test examples (see `localised`); NaN where no
      head is `better`;
    - `syntactic_score[layer, head]`, `semantic_score[layer, head]` (§6.2, Fig 5), `task_correlation[task, task_b]`
      (Pearson over heads).
    """
    builder = _Builder(tasks, fits, shape, top, tuple(curve))
    builder.single()
    builder.pooled()
    builder.tests(correction)
    if any("control/test" in fit for fit in fits):
        builder.control()
    if baselines is not None:
        builder.scored(
            "random_accuracy",
            HEADS,
            "heads/test",
            "test score of the head with random weights",
            baselines,
        )
        long_name = "test score of the layer with random weights"
        builder.scored("random_layer_accuracy", LAYERS, "layers/test", long_name, baselines)
    builder.localised()
    builder.readings()
    return builder.dataset()


class _Builder:
    def __init__(
        self,
        tasks: Sequence[Task],
        fits: Sequence[Fitted],
        shape: Shape,
        top: int,
        curve: tuple[int, ...],
    ) -> None:
        self.tasks, self.fits, self.shape, self.top, self.curve = tasks, fits, shape, top, curve
        self.heads = (shape.layers, shape.heads)
        self.ranks = max([top, *curve])
        greedy = any("greedy/order" in fit for fit in fits)
        self.poolings: tuple[str, ...] = POOLINGS if greedy else POOLINGS[:3]
        self.selections: tuple[str, ...] = SELECTIONS if greedy else SELECTIONS[:1]
        self.variables: dict[str, Any] = {}

    # --- helpers ----------------------------------------------------------------------------------

    def stacked(
        self, name: str, dims: tuple[str, ...], fits: Sequence[Fitted] | None = None
    ) -> np.ndarray:
        """One array of all tasks; NaN where a task lacks it."""
        shape = self.heads[: len(dims) - 1]
        nothing = np.full(shape, np.nan)
        return np.stack(
            [
                np.asarray(fit.get(name, nothing), dtype=float).reshape(shape)
                for fit in fits or self.fits
            ]
        )

    def scored(
        self,
        variable: str,
        dims: tuple[str, ...],
        values: str | np.ndarray,
        long_name: str,
        fits: Sequence[Fitted] | None = None,
    ) -> None:
        """A score with its count and interval: Wilson for accuracies, Fisher's z for
        correlations."""
        values = self.stacked(values, dims, fits) if isinstance(values, str) else values
        counts = np.array([len(task.split.test) for task in self.tasks]).reshape(
            -1, *[1] * (values.ndim - 1)
        )
        counts = np.broadcast_to(counts, values.shape)
        regression = np.array([task.regression for task in self.tasks])
        bounds = np.full((2, *values.shape), np.nan)
        bounds[:, ~regression] = wilson_interval(
            (values * counts)[~regression], counts[~regression]
        )
        bounds[:, regression] = fisher_interval(values[regression], counts[regression])
        self.put(variable, dims, values, long_name)
        self.put(
            f"{variable}_n",
            dims,
            np.where(np.isnan(values), 0, counts),
            f"test examples behind {variable}",
        )
        self.bounds(variable, dims, bounds)

    def bounds(
        self, variable: str, dims: tuple[str, ...], bounds: np.ndarray, how: str = ""
    ) -> None:
        for side, end, values in zip(("lower", "upper"), ("low", "high"), bounds, strict=True):
            self.put(
                f"{variable}_{end}",
                dims,
                values,
                f"{side} end of the 95 % interval of {variable}{how}",
            )

    def put(self, name: str, dims: tuple[str, ...], values: np.ndarray, long_name: str) -> None:
        values = (
            values.astype(np.float32)
            if values.dtype.kind == "f" and not name.startswith("p_")
            else values
        )
        self.variables[name] = xr.Variable(dims, values, {"long_name": long_name})

    # --- parts ------------------------------------------------------------------------------------

    def single(self) -> None:
        self.scored("accuracy", HEADS, "heads/test", "test score of a probe on the head's output")
        self.scored(
            "layer_accuracy", LAYERS, "layers/test", "test score of a probe on the layer's output"
        )
        for name, dims, fitted, long_name in (
            ("validation", HEADS, "heads/validation", "validation score that ranks the heads"),
            (
                "layer_validation",
                LAYERS,
                "layers/validation",
                "validation score that ranks the layers",
            ),
            ("penalty", HEADS, "heads/penalty", "L2 penalty that validation picked"),
            ("spearman", HEADS, "heads/spearman", "Spearman's rho on the test part"),
            ("layer_spearman", LAYERS, "layers/spearman", "Spearman's rho on the test part"),
        ):
            if "spearman" not in name or any(task.regression for task in self.tasks):
                self.put(name, dims, self.stacked(fitted, dims), long_name)

    def pooled(self) -> None:
        best = np.array([int(np.argmax(fit["layers/validation"])) for fit in self.fits])
        scores = np.full((len(self.tasks), len(self.poolings)), np.nan)
        extra = {name: np.full_like(scores, np.nan) for name in ("f1", "matthews", "spearman")}
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            joined = [(f"{selection}/{self.top}", 0) for selection in self.selections]
            for j, (name, row) in enumerate(
                [("layers", self.shape.layers - 1), ("layers", best[i]), *joined]
            ):
                if f"{name}/test" in fit:
                    scores[i, j] = fit[f"{name}/test"][row]
                    if task.second_metric:
                        extra[task.second_metric][i, j] = second_metric(
                            task.second_metric, fit, name, row
                        )
        self.scored(
            "pooled_accuracy",
            ("task", "pooling"),
            scores,
            "test score of a probe on the pooled vector",
        )
        for name, values in extra.items():
            if np.isfinite(values).any():
                self.put(f"pooled_{name}", ("task", "pooling"), values, f"{name} on the test part")
        self.put("best_layer", ("task",), best, "layer with the best validation score")
        if self.curve:
            names = [[f"{selection}/{n}/test" for selection in self.selections] for n in self.curve]
            found = [
                [[fit.get(name, [np.nan])[0] for name in row] for row in names] for fit in self.fits
            ]
            dims = ("task", "n_heads", "selection")
            self.scored(
                "curve_accuracy", dims, np.array(found), "test score of the n best heads together"
            )
        for selection in self.selections:
            order = np.full((len(self.fits), self.ranks), -1, dtype=np.int64)
            for row, fit in zip(order, self.fits, strict=True):
                ranked = fit.get(f"{selection}/order", np.zeros(0))[: self.ranks]
                row[: len(ranked)] = ranked
            layer, head = (
                np.where(order < 0, -1, part) for part in np.divmod(order, self.shape.heads)
            )
            self.put(
                f"{selection}_layer",
                ("task", "rank"),
                layer,
                "layer of the head with this rank (-1: none)",
            )
            self.put(f"{selection}_head", ("task", "rank"), head, "head with this rank (-1: none)")

    def tests(self, correction: str) -> None:
        p = np.full((len(self.tasks), *self.heads), np.nan)
        adjusted, majority = p.copy(), np.zeros(len(self.tasks))
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            if task.regression:
                found = correlation_p(fit["heads/test"], len(task.split.test), "greater")
            else:
                by_head, by_majority = (
                    fit["heads/predicted"] == fit["truth"],
                    fit["truth"] == fit["majority"],
                )
                majority[i] = by_majority.mean()
                found = mcnemar_exact(
                    (by_head & ~by_majority).sum(1), (~by_head & by_majority).sum(1)
                )
            p[i] = found.reshape(self.heads)
            adjusted[i] = correct(p[i], correction)
        long_name = "test score of the most frequent training label (0 for a correlation)"
        self.put("majority", ("task",), majority, long_name)
        self.put("p_value", HEADS, p, "p-value of 'no better than the majority label', one-sided")
        self.put(
            "p_adjusted",
            HEADS,
            adjusted,
            f"p-value corrected over the heads of a task ({correction})",
        )
        self.put(
            "better", HEADS, adjusted < 0.05, "better than the majority label at 5 %, corrected"
        )

    def control(self) -> None:
        self.scored(
            "control_accuracy",
            HEADS,
            "control/test",
            "test score on the control task: labels dealt at random",
        )
        gain = self.stacked("heads/test", HEADS) - self.stacked("control/test", HEADS)
        bounds = np.full((2, *gain.shape), np.nan)
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            if not task.regression and "control/test" in fit:
                right = fit["heads/predicted"] == fit["truth"]
                control = fit["control/predicted"] == fit["control/truth"]
                bounds[:, i] = _paired_interval(right, control).reshape(2, *self.heads)
        self.put("selectivity", HEADS, gain, "score minus score on the control task")
        counts = self.variables["control_accuracy_n"].values
        self.put("selectivity_n", HEADS, counts, "test examples behind selectivity")
        self.bounds("selectivity", HEADS, bounds, " (paired over examples)")

    def localised(self) -> None:
        found = {name: np.full((3, len(self.tasks)), np.nan) for name in LOCALISED}
        for i, (task, fit) in enumerate(zip(self.tasks, self.fits, strict=True)):
            if self.variables["better"].values[i].any():
                chance = float(self.variables["majority"].values[i])
                for name, values in localised(
                    fit, self.heads, chance, regression=task.regression
                ).items():
                    found[name][:, i] = values
        for name, about in LOCALISED.items():
            self.put(name, ("task",), found[name][0], about)
            self.bounds(name, ("task",), found[name][1:], " (bootstrap over test examples)")

    def readings(self) -> None:
        accuracy = self.variables["accuracy"].values.astype(float)
        for group in ("syntactic", "semantic"):
            members = [i for i, task in enumerate(self.tasks) if task.group == group]
            values = accuracy[members].mean(0) if members else np.full(self.heads, np.nan)
            names = ", ".join(self.tasks[i].name for i in members) or "none of its tasks was run"
            self.put(
                f"{group}_score", ("layer", "head"), values, f"mean test accuracy over {names}"
            )
        flat = accuracy.reshape(len(self.tasks), -1)
        long_name = "Pearson correlation of two tasks' scores over all heads"
        self.put(
            "task_correlation",
            ("task", "task_b"),
            correlation(flat[:, None], flat[None]).r,
            long_name,
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
            "metric": ("task", [PEARSON if task.regression else "accuracy" for task in self.tasks]),
            "paper_task": (
                "task",
                [SENTEVAL[name][0] if name in SENTEVAL else name for name in names],
            ),
            "train_n": ("task", [len(task.split.train) for task in self.tasks]),
            "validation_n": ("task", [len(task.split.validation) for task in self.tasks]),
        }
        if self.curve:
            coords |= {"n_heads": np.array(self.curve), "selection": list(self.selections)}
        return xr.Dataset(self.variables, coords)


def pooling_rows(dataset: xr.Dataset) -> list[tuple[str, ...]]:
    """For every task its name, what its scores are, the test score of each pooling of
    `POOLINGS[:3]`, and the best head with its own: picked on the validation part, as layers and
    heads joined are."""
    rows = []
    for name in map(str, dataset["task"].values):
        part = dataset.sel(task=name)
        layer, head = (int(part[f"top_{what}"].isel(rank=0)) for what in ("layer", "head"))
        best = f"{head_name(layer, head)} {float(part['accuracy'].sel(layer=layer, head=head)):.3f}"
        pooled = (
            f"{value:.3f}"
            for value in part["pooled_accuracy"].reindex(pooling=list(POOLINGS[:3])).values
        )
        rows.append((name, str(part["metric"].values), *pooled, best))
    return rows


def _paired_interval(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The interval of the mean of `first − second` over examples, the last axis; NaN for a single
    example."""
    gain = first.astype(float) - second
    variance = gain.var(1, ddof=1) if gain.shape[1] > 1 else np.full(len(gain), np.nan)
    return np.array(mean_interval(gain.mean(1), variance, np.array(gain.shape[1])))


def second_metric(metric: str, fit: Fitted, name: str, row: int) -> float:
    """F1 of class 1, Matthews' correlation, or Spearman's rho of one fitted unit on the test
    part."""
    if metric == "spearman":
        return float(fit[f"{name}/spearman"][row])
    return METRICS[metric](fit["truth"] == 1, fit[f"{name}/predicted"][row] == 1)


def localised(
    fit: Fitted, heads: tuple[int, int], chance: float, *, regression: bool
) -> dict[str, np.ndarray]:
    """Value, lower and upper end of each of `LOCALISED`, `[3]`.

    The gain of a head is its test score less `chance` (the most frequent label; 0 for a
    correlation), at least 0. Noise makes gains uneven, in a resample once more than in the sample;
    so the interval is the pivotal one (twice the value, less the quantiles of the resamples), which
    takes that out, within the range of the index and widened to hold the value.

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
    own, again = (
        np.clip(resampled_metric(metric, one, truth, predicted) - chance, 0, None)
        for one in (whole, draws)
    )
    out = {}
    for name, (low, high), measure in (
        ("localisation", (0.0, 1.0), localisation),
        ("effective_heads", (1.0, float(own.shape[1])), effective_number),
        (
            "layer_localisation",
            (0.0, 1.0),
            lambda gain: localisation(gain.reshape(-1, *heads).sum(-1)),
        ),
    ):
        value, resampled = float(measure(own)[0]), measure(again)
        ends = percentile_interval(resampled)
        pivotal = 2 * value - float(ends[1]), 2 * value - float(ends[0])
        out[name] = np.array(
            [value, *np.clip((min(value, pivotal[0]), max(value, pivotal[1])), low, high)]
        )
    return out
