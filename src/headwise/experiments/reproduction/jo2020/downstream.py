"""Downstream tasks: table 4 and figure 4."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from headwise.analyses.probing.analysis import probe
from headwise.experiments.reproduction.bench import QUICK_ROWS, Bench
from headwise.experiments.reproduction.jo2020.probed import POOLED, settings
from headwise.experiments.reproduction.schema import Outcome, Row, Table, Verdict
from headwise.experiments.reproduction.shared import judged, of_each, pictures
from headwise.models import HeadModel
from headwise.text.tasks import read_tasks

TASKS = {"MRPC": ("accuracy", "f1"), "STS-B": ("pearson", "spearman"), "SST-2": ("accuracy",)}
SEEDS = 5


def fine_tuned(bench: Bench) -> Outcome:
    """Table 4: three poolings, fine-tuned end to end; medians over seeds."""
    rows: list[Row] = []
    gains: list[float] = []
    seeds = 1 if bench.options.quick else SEEDS

    def ask(name: str) -> tuple[None, tuple[str, ...]]:
        task, metrics = bench.training_task(name), TASKS[name]
        scores: dict[str, dict[str, float]] = {}
        for key, pooling in POOLED.items():
            records, _ = bench.train(task, "jo", seeds=seeds, pooling=pooling)
            scores[key] = {
                m: 100 * float(np.median([r.metrics[m] for r in records])) for m in metrics
            }
        note = f"{len(task.train):,} training rows, {seeds} seed{'s' if seeds > 1 else ''}"
        rows.extend(
            Row(f"{name}-{m}-{key}", scores[key][m], note=note) for m in metrics for key in POOLED
        )
        gains.extend(scores["top"][m] - scores["last"][m] for m in metrics)
        return None, ()

    _, differs = of_each(TASKS, ask)
    gain = float(np.mean(gains))
    if seeds < SEEDS:
        differs.append("One seed in place of five; one epoch on a few rows, to save time.")
    claims = {"downstream": Verdict(f"{gain:+.2f} points over {len(gains)} scores", gain > 0)}
    return Outcome(rows, claims=judged(bench, claims), differs=differs)


def states(bench: Bench) -> Outcome:
    """Figure 4: probing accuracy of heads before and after fine-tuning."""

    def ask(name: str) -> tuple[dict[str, xr.Dataset], tuple[str, ...]]:
        task = bench.training_task(name)
        states = {"pre-trained": _probed(bench, bench.model, name)}
        for key, pooling in (("last layer", "last_layer"), ("top heads", "top_heads")):
            records, folder = bench.train(task, "jo", pooling=pooling)
            with HeadModel.open(
                folder / records[0].folder / "model", device=bench.options.device
            ) as model:
                states[key] = _probed(bench, model, name)
        return states, ()

    found, differs = of_each(TASKS, ask)
    drawn, rows, ups, ranks = [], [], [], []
    for name, states in found.items():
        scores = [one[["accuracy", "accuracy_n"]] for one in states.values()]
        joined = xr.concat(scores, "model_all", coords="minimal", compat="override")
        joined = joined.assign_coords(model_all=list(states)).assign(
            majority=states["pre-trained"]["majority"]
        )
        drawn += [
            replace(p, name=f"{name.lower()}-{p.name}")
            for p in pictures("change_probing", joined, "states")
        ]
        planes = {key: 100 * one["accuracy"].isel(task=0).values for key, one in states.items()}
        before = planes["pre-trained"]
        for key, plane in planes.items():
            told = ""
            if key != "pre-trained":
                ups.append(plane.mean() - before.mean())
                ranks.append(float(spearmanr(before.ravel(), plane.ravel()).statistic))
                told = "" if np.isnan(ranks[-1]) else f"{ranks[-1]:.2f}"
            rows.append([name, key, float(plane.mean()), float(plane.max()), *_thirds(plane), told])
    told = f"mean change {np.mean(ups):+.1f} points, least rank correlation {min(ranks):.2f}"
    claims = judged(bench, {"amplified": Verdict(told, bool(min(ups) > 0 and min(ranks) > 0.3))})
    if "SST-2" in found:
        thirds = _thirds(100 * found["SST-2"]["pre-trained"]["accuracy"].isel(task=0).values)
        shares = ", ".join(f"{value:.1f} %" for value in thirds)
        claims["sst-upper"] = Verdict(f"thirds: {shares}", int(np.argmax(thirds)) == 2)
    columns = [
        "task",
        "state",
        "mean head",
        "best head",
        "initial",
        "middle",
        "final",
        "rank correlation with before",
    ]
    table = Table("Scores of heads (%, STS-B: Pearson's r × 100)", columns, rows)
    return Outcome((), [table], drawn, claims, differs)


def _thirds(plane: np.ndarray) -> list[float]:
    """The mean of each third of the layers; NaN where a model of few layers has none there."""
    return [float(part.mean()) if len(part) else float("nan") for part in np.array_split(plane, 3)]


def _probed(bench: Bench, model: HeadModel, name: str) -> xr.Dataset:
    """All heads of a model on a task: a part of its training rows validates."""
    (task,) = read_tasks([bench.data.path(f"glue-{name}")], bench.seed)
    options, _ = settings(bench)
    rows, others = (
        bench.count(len(task.split.train), QUICK_ROWS),
        QUICK_ROWS if bench.options.quick else None,
    )
    options = replace(options, limits=(rows, others, others))
    return probe(model, task, options, store=bench.store, progress=bench.progress)
