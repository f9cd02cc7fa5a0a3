"""What heads of several models know of the same tasks, test example by test example (Jo & Myaeng 2020, Fig 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.probing.analysis import default_settings
from headwise.analyses.probing.fit import ProbingOptions, fit_baseline
from headwise.core.papers import reference
from headwise.experiments.ablation.significance import paired_differences
from headwise.models import HeadModel
from headwise.models.vectors import collect_vectors
from headwise.probes import ProbeSettings
from headwise.probes.settings import encode_labels, encode_targets
from headwise.stats.bootstrap import resamples
from headwise.stats.corrections import correct
from headwise.text.tasks import read_tasks

REPEATS = 500  # resamples behind an interval: one for each head of each model


def probing_change(
    models: Sequence[HeadModel],
    names: Sequence[str],
    tasks: Any,
    *,
    settings: ProbeSettings | None = None,
    limits: tuple[int | None, int | None, int | None] = (None, None, None),
    correction: str = "holm",
    seed: int = 0,
    report: Callable[[str, int, int], None] | None = None,
) -> xr.Dataset:
    """The group `change_probing`: `accuracy[model_all, task, layer, head]` of every model (Pearson's r for regressions), and `accuracy_change[model, task, layer, head]` against
    the first with interval (paired bootstrap over test examples), `_p` (McNemar's exact test, or the bootstrap's) and `_p_adjusted` over the heads of a task."""
    found = [task.limit(*limits, seed=seed) for task in read_tasks(tasks, seed)]
    options = ProbingOptions(settings or default_settings(models[0], seed))
    size = (models[0].layers, models[0].heads)
    scores = np.full((len(models), len(found), *size), np.nan)
    test_n, majority = np.zeros(len(found), dtype=np.int64), np.full(len(found), np.nan)
    changes = {
        key: np.full((len(models) - 1, len(found), *size), np.nan) for key in ("", "_low", "_high", "_p", "_p_adjusted")
    }
    for t, task in enumerate(found):
        said = []
        for m, model in enumerate(models):
            vectors = collect_vectors(model, task.examples, report=report, what=f"{task.name}: {names[m]}")
            fitted = fit_baseline(task, vectors, options)
            scores[m, t] = fitted["heads/test"].reshape(size)
            said.append(fitted["heads/predicted"])
        regression = task.regression
        labels = (
            encode_targets(task.labels, task.split, task.name)
            if regression
            else encode_labels(task.labels, task.split, task.name)[0]
        )
        truth = labels[task.split.test]
        test_n[t] = len(truth)
        if not regression:
            majority[t] = np.mean(truth == np.bincount(labels[task.split.train]).argmax())
        metric = "pearson" if regression else "accuracy"
        draws = resamples(len(truth), REPEATS, seed)
        for m, other in enumerate(said[1:]):
            for h in range(size[0] * size[1]):
                paired = paired_differences(metric, said[0][h], other[h][None], truth, draws=draws)
                place = (m, t, *divmod(h, size[1]))
                for key, value in (
                    ("", paired.difference),
                    ("_low", paired.low),
                    ("_high", paired.high),
                    ("_p", paired.p_value),
                ):
                    changes[key][place] = value[0]
            changes["_p_adjusted"][m, t] = correct(changes["_p"][m, t], correction)
    paper = reference("jo2020")
    heads = ("task", "layer", "head")
    variables: dict[str, Any] = {"accuracy": (("model_all", *heads), scores)}
    variables |= {f"accuracy_change{key}": (("model", *heads), value) for key, value in changes.items()}
    variables |= {"accuracy_n": (("task",), test_n), "majority": (("task",), majority)}
    coords = {
        "model_all": list(names),
        "model": list(names[1:]),
        "task": [task.name for task in found],
        "kind": ("task", [task.kind for task in found]),
        "layer": np.arange(size[0]),
        "head": np.arange(size[1]),
    }
    attrs = {
        "title": "Change of probing accuracy",
        "paper": paper.short,
        "section": "Fig 4",
        "citation": paper.citation,
        "reference_model": names[0],
        "solver": options.fitting.solver,
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs | {"correction": correction, "analysis": "probing"})
