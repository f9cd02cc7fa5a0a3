"""What heads of several models know of the same tasks, test example by test example (Jo & Myaeng
2020, Fig 4)."""

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
from headwise.experiments.ablation.significance import paired_differences
from headwise.experiments.work import Report
from headwise.models import HeadModel
from headwise.models.vectors import collect_vectors
from headwise.stats.bootstrap import resamples
from headwise.stats.corrections import correct
from headwise.text.tasks import Task, read_tasks

if TYPE_CHECKING:
    from headwise.experiments.comparison.run import ComparisonOptions

Made = tuple[dict[str, np.ndarray], dict[str, Any]]
REPEATS = 500  # resamples behind an interval: one for each head of each model


def probing_change(
    models: Sequence[HeadModel],
    names: Sequence[str],
    wanted: ComparisonOptions,
    *,
    store: CheckpointStore,
    report: Report,
) -> xr.Dataset:
    """The group `change_probing`: `accuracy[model_all, task, layer, head]` of every model
    (Pearson's r for regressions), and `accuracy_change[model, task, layer, head]` against the first
    with interval (paired bootstrap over test examples), `_p` (McNemar's exact test, or the
    bootstrap's) and `_p_adjusted` over the heads of a task. The probes of each model and task are
    kept in `store`."""
    seed = wanted.seed
    found = [
        task.limit(*wanted.probing_limits, seed=seed) for task in read_tasks(wanted.probing, seed)
    ]
    settings = ProbingOptions(seed=seed).probe_settings(models[0].device)
    kept = store.part(
        "probing",
        {
            "tasks": [[task.name, task.fingerprint()] for task in found],
            "settings": asdict(settings),
        },
    )
    size = (models[0].layers, models[0].heads)
    scores = np.full((len(models), len(found), *size), np.nan)
    test_n, majority = np.zeros(len(found), dtype=np.int64), np.full(len(found), np.nan)
    keys = {"": "difference", "_low": "low", "_high": "high", "_p": "p_value"}
    changes = {
        key: np.full((len(models) - 1, len(found), *size), np.nan) for key in (*keys, "_p_adjusted")
    }
    for t, task in enumerate(found):
        said = []
        for m, model in enumerate(models):
            part = kept.part(f"vectors-{t}-{m}")

            def make(
                model: HeadModel = model,
                task: Task = task,
                name: str = names[m],
                part: CheckpointStore = part,
            ) -> Made:
                vectors = collect_vectors(
                    model, task.examples, part, report=report, what=f"{task.name}: {name}"
                )
                fitted = fit_baseline(task, vectors, settings, layers=False)
                return {
                    name: fitted[name]
                    for name in ("heads/test", "heads/predicted", "truth", "majority")
                }, {}

            fitted = kept.checkpoint(f"task-{t}-model-{m}", make).arrays
            part.remove()
            scores[m, t] = fitted["heads/test"].reshape(size)
            said.append(fitted["heads/predicted"])
        truth, metric = fitted["truth"], "pearson" if task.regression else "accuracy"
        test_n[t] = len(truth)
        if not task.regression:
            majority[t] = np.mean(truth == fitted["majority"])
        draws = resamples(len(truth), REPEATS, seed)
        for m, other in enumerate(said[1:]):
            for h in range(size[0] * size[1]):
                paired = paired_differences(metric, said[0][h], other[h][None], truth, draws=draws)
                for key, field in keys.items():
                    changes[key][(m, t, *divmod(h, size[1]))] = getattr(paired, field)[0]
            changes["_p_adjusted"][m, t] = correct(changes["_p"][m, t], wanted.correction)
    heads = ("task", "layer", "head")
    variables: dict[str, Any] = {"accuracy": (("model_all", *heads), scores)}
    variables |= {
        f"accuracy_change{key}": (("model", *heads), value) for key, value in changes.items()
    }
    variables |= {"accuracy_n": (("task",), test_n), "majority": (("task",), majority)}
    coords: dict[str, Any] = {
        "model_all": list(names),
        "model": list(names[1:]),
        "task": [task.name for task in found],
    }
    coords |= {"kind": ("task", [task.kind for task in found])}
    coords |= {"layer": np.arange(size[0]), "head": np.arange(size[1])}
    about = {"title": "Change of probing accuracy", **reference("jo2020").attributes("Fig 4")}
    how = {"solver": settings.solver, "correction": wanted.correction, "analysis": "probing"}
    return xr.Dataset(variables, coords=coords, attrs={**about, "reference_model": names[0], **how})
