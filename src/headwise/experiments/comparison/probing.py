"""Probe the heads of several models for the same tasks, and compare them test example by test
example (Jo & Myaeng 2020, Fig 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from headwise.analyses.papers import reference
from headwise.analyses.probing.fit import fit_baseline
from headwise.analyses.probing.options import ProbingOptions
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.models.vectors import collect_vectors
from headwise.run.job import Progress
from headwise.stats.corrections import correct
from headwise.stats.paired import paired_differences
from headwise.text.tasks import Task, read_tasks

if TYPE_CHECKING:
    from headwise.experiments.comparison.options import ComparisonOptions

# Fields of `PairedComparison` by what is put after `accuracy_change`.
CHANGE_FIELDS = {"": "difference", "_low": "low", "_high": "high", "_p": "p_value"}
FITTED = ("heads/test", "heads/predicted", "truth", "majority")


def probing_change(
    models: Sequence[HeadModel],
    names: Sequence[str],
    options: ComparisonOptions,
    *,
    store: CheckpointStore,
    report: Progress,
) -> xr.Dataset:
    """Return the group `change_probing`.

    It has `accuracy[model_all, task, layer, head]` of every model (Pearson's r for regressions),
    and `accuracy_change[model, task, layer, head]` against the first with interval (paired
    bootstrap over test examples), `_p` (McNemar's exact test, or the bootstrap's) and `_p_adjusted`
    over the heads of a task. The probes of each model and task have checkpoints in `store`."""
    seed = options.seed
    tasks = []
    for task in read_tasks(options.probing, seed):
        tasks.append(task.limit(*options.probing_limits, seed=seed))
    settings = ProbingOptions(seed=seed).probe_settings(models[0].device)
    checkpoints = store.part(
        "probing",
        {
            "tasks": [[task.name, task.fingerprint()] for task in tasks],
            "settings": asdict(settings),
        },
    )
    size = (models[0].layers, models[0].heads)
    n_heads = size[0] * size[1]
    scores = np.full((len(models), len(tasks), *size), np.nan)
    n_test = np.zeros(len(tasks), dtype=np.int64)
    majority = np.full(len(tasks), np.nan)
    changes = {}
    for suffix in (*CHANGE_FIELDS, "_p_adjusted"):
        changes[suffix] = np.full((len(models) - 1, len(tasks), *size), np.nan)
    for t, task in enumerate(tasks):
        predictions = []
        for m, model in enumerate(models):
            vectors_store = checkpoints.part(f"vectors-{t}-{m}")

            def fit(
                model: HeadModel = model,
                task: Task = task,
                title: str = f"{task.name}: {names[m]}",
                vectors_store: CheckpointStore = vectors_store,
            ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
                vectors = collect_vectors(
                    model, task.examples, vectors_store, report=report, what=title
                )
                fitted = fit_baseline(task, vectors, settings, layers=False)
                return {name: fitted[name] for name in FITTED}, {}

            fitted = checkpoints.checkpoint(f"task-{t}-model-{m}", fit).arrays
            vectors_store.remove()
            scores[m, t] = fitted["heads/test"].reshape(size)
            predictions.append(fitted["heads/predicted"])
        truth = fitted["truth"]
        metric = "pearson" if task.regression else "accuracy"
        n_test[t] = len(truth)
        if not task.regression:
            majority[t] = np.mean(truth == fitted["majority"])
        first = predictions[0]
        for m, other in enumerate(predictions[1:]):
            for number in range(n_heads):
                place = divmod(number, size[1])
                comparison = paired_differences(metric, first[number], other[number][None], truth)
                for suffix, field in CHANGE_FIELDS.items():
                    changes[suffix][(m, t, *place)] = getattr(comparison, field)[0]
            changes["_p_adjusted"][m, t] = correct(changes["_p"][m, t], options.correction)

    dims = ("task", "layer", "head")
    variables: dict[str, Any] = {"accuracy": (("model_all", *dims), scores)}
    for suffix, values in changes.items():
        variables[f"accuracy_change{suffix}"] = (("model", *dims), values)
    variables["accuracy_n"] = (("task",), n_test)
    variables["majority"] = (("task",), majority)
    coords: dict[str, Any] = {
        "model_all": list(names),
        "model": list(names[1:]),
        "task": [task.name for task in tasks],
        "kind": ("task", [task.kind for task in tasks]),
        "layer": np.arange(size[0]),
        "head": np.arange(size[1]),
    }
    attributes = {
        "title": "Change of probing accuracy",
        **reference("jo2020").attributes("Fig 4"),
        "reference_model": names[0],
        "solver": settings.solver,
        "correction": options.correction,
        "analysis": "probing",
    }
    return xr.Dataset(variables, coords=coords, attrs=attributes)
