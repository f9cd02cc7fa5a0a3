"""§4.3, §4.6 and §5: scores of fine-tuning from three starts, and what disabling does; Table 1,
Figures 8 and 9."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from headwise.core.errors import HeadwiseError
from headwise.core.labels import head_name
from headwise.experiments.ablation import AblationOptions, ScoredClassifier, ablate
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.kovaleva2019.frames import frame_heads_of
from headwise.experiments.reproduction.kovaleva2019.tasks import RECIPE, Found, available, dev_of
from headwise.experiments.reproduction.schema import Outcome, Picture, Row, Table, Verdict
from headwise.experiments.reproduction.shared import best_head, by_head, judged, untried
from headwise.plots import heatmap_panels

STARTS = ("none", "random", "pretrained")
METRICS = {"MRPC": ("f1", "accuracy"), "QQP": ("f1", "accuracy"), "STS-B": ("pearson",)}
LEVEL = 0.05
DISABLED = 64  # dev examples of a quick run


def scores(bench: Bench) -> Outcome:
    """Table 1."""
    names, reasons = available(bench)
    rows, got, seen = [], {}, {}
    for name in names:
        if bench.data.find(f"glue-{name}") is None:
            reasons.append(
                f"{name}: {bench.data.missing(f'glue-{name}')}, so its rows are left out."
            )
            continue
        task = bench.training_task(name)
        seen[name] = f"{len(task.train):,} training and {len(task.dev):,} dev rows"
        for start in STARTS:
            (record,), _ = bench.train(task, RECIPE, start)
            for metric in METRICS.get(name, ("accuracy",)):
                value = 100 * record.metrics[metric]
                got[name, metric, start] = value
                rows.append(Row(f"{name}-{metric}-{start}", value, note=f"seed {record.seed}"))
    main = {name: METRICS.get(name, ("accuracy",))[-1] for name in seen}
    verdicts = {}
    if main:
        gains = {
            name: got[name, metric, "pretrained"] - got[name, metric, "none"]
            for name, metric in main.items()
        }
        lower = {
            name: got[name, metric, "random"] - got[name, metric, "pretrained"]
            for name, metric in main.items()
        }
        told = f"{np.mean(list(gains.values())):+.1f} points on average over {len(gains)} tasks"
        verdicts["better"] = Verdict(told, all(gain > 0 for gain in gains.values()))
        told = ", ".join(f"{name} {value:+.1f}" for name, value in lower.items())
        verdicts["random-lower"] = Verdict(told, all(value < 0 for value in lower.values()))
    both = [(name, main[name]) for name in ("STS-B", "QNLI") if name in main]
    worse = {name: got[name, metric, "random"] - got[name, metric, "none"] for name, metric in both}
    verdicts["random-worse"] = untried("neither STS-B nor QNLI was run")
    if worse:
        told = ", ".join(f"{name} {value:+.1f}" for name, value in worse.items())
        verdicts["random-worse"] = Verdict(told, any(value < 0 for value in worse.values()))
    differs = [
        *reasons,
        "One seed each; the paper does not say how many. MRPC is scored on its labelled test file.",
    ]
    if bench.options.quick:
        differs.append("A quick run: 256 rows, one epoch.")
    elif bench.options.scale < 1:
        differs.append(f"Trained on {bench.options.scale:g} of the rows.")
    return Outcome(rows, claims=judged(bench, verdicts), differs=differs, seen=seen)


def _disabled(bench: Bench) -> Found:
    """Every head and every layer of every task's model disabled, and the two best frame heads as
    sets."""

    def make() -> Found:
        names, reasons = available(bench)
        found = Found(differs=reasons)
        sets: dict[str, Any] = {}
        try:
            sets = {f"frames {head_name(*head)}": [head] for head in frame_heads_of(bench)}
        except HeadwiseError as error:
            found.differs.append(f"Frame heads were not disabled: {str(error).rstrip('.')}.")
        for name in names:
            folder, told = bench.model_folder(name, RECIPE)
            task = dev_of(
                bench, name, DISABLED if bench.options.quick else bench.count(10_000, DISABLED)
            )
            subject = ScoredClassifier.open(folder, task, device=bench.options.device)
            options = AblationOptions(
                "uniform", sets=sets, importance=False, sinks=False, seed=bench.seed
            )
            about = {
                "model": subject.model.identity(),
                "task": subject.identity(),
                "sets": list(sets),
            }

            def ask(
                subject: ScoredClassifier = subject, options: AblationOptions = options
            ) -> xr.Dataset:
                return ablate(subject, options, report=bench.progress)

            found.results[name] = bench.dataset(f"ablation-{name}", about, ask)
            found.seen[name] = f"{told.partition(': ')[2]}, {subject.examples:,} dev inputs"
        return found

    return bench.remember("disabled", make)


def one_head(bench: Bench) -> Outcome:
    """Figure 8."""
    found = _disabled(bench)
    rows, lines, gains, means, idle = [], [], {}, {}, []
    for task, one in found.results.items():
        gain = 100 * by_head(one["difference"])
        layer, head = best_head(gain)
        best = one.isel(layer=layer, head=head)
        note = f"{head_name(layer, head)}, corrected p {float(best['p_adjusted']):.3g}, {one.attrs['metric']}"
        label = f"best gain by disabling one head, {task}"
        rows.append(
            replace(Row.of(f"{task}-gain", best, "difference", note, label=label), unit="points")
        )
        gains[task] = int(one.attrs["improving"])
        means[task] = tuple(
            100 * float(one.attrs[f"mean_difference{end}"]) for end in ("", "_low", "_high")
        )
        worst = best_head(-gain)
        counts = (
            one.attrs[name]
            for name in ("improving", "improving_significant", "harming", "harming_significant")
        )
        random = "{:+.2f} ({:+.2f} to {:+.2f})".format(*means[task])
        lost = f"{head_name(*worst)} {gain[worst]:+.1f}"
        lines.append([task, 100 * float(one.attrs["baseline"]), *counts, random, lost])
        for name in map(str, one["set"].values) if "set" in one.dims else ():
            own = one.sel(set=name)
            drop = float(own["set_difference"]) < 0 and float(own["set_p_adjusted"]) < LEVEL
            idle.append((f"{name} on {task} {100 * float(own['set_difference']):+.1f}", drop))
    told = ", ".join(f"{task} {count} heads" for task, count in gains.items())
    random = ", ".join(
        "{} {:+.2f} ({:+.2f} to {:+.2f})".format(task, *own) for task, own in means.items()
    )
    verdicts = {
        "some-gain": Verdict(told, all(count > 0 for count in gains.values())),
        "random-head": Verdict(random, any(low > 0 for _, low, _ in means.values())),
    }
    if idle:
        verdicts["frames-idle"] = Verdict(
            "; ".join(words for words, _ in idle), not any(drop for _, drop in idle)
        )
    columns = [
        "task",
        "baseline",
        "better without",
        "sure",
        "worse without",
        "sure",
        "a random head",
        "worst loss",
    ]
    table = Table(
        "Disabling one head at a time", columns, lines, "Points; sure: after correction over heads."
    )
    planes = {task: 100 * one["difference"] for task, one in found.results.items()}
    figure = heatmap_panels(
        planes,
        title="Score without one head",
        label="change of score",
        unit="points",
        centre=0.0,
        annotate="none",
    )
    caption = (
        "Each cell is one head: the score without it minus that of the whole model, for each task."
    )
    picture = Picture("heads", "What disabling one head does, by task", caption, figure)
    return Outcome(
        rows, [table], [picture], judged(bench, verdicts, found.results), found.differs, found.seen
    )


def one_layer(bench: Bench) -> Outcome:
    """Figure 9."""
    found = _disabled(bench)
    rows, lines, better = [], [], {}
    verdicts = {"first-layer": untried("RTE was not run")}
    for task, one in found.results.items():
        gain, low, high = (
            100 * one[f"layer_difference{end}"].values for end in ("", "_low", "_high")
        )
        p = one["layer_p_adjusted"].values
        sure = ["*" if value < LEVEL else "" for value in p]
        lines.append(
            [task, *(f"{value:+.1f}{mark}" for value, mark in zip(gain, sure, strict=True))]
        )
        better[task] = int((gain > 0).sum())
        key = f"{task}-first-layer"
        note = f"corrected p {p[0]:.3g}"
        rows.append(
            Row(
                key,
                gain[0],
                low[0],
                high[0],
                note,
                f"gain by disabling the first layer, {task}",
                "points",
            )
        )
        if task == "RTE":
            verdicts["first-layer"] = Verdict(
                f"{gain[0]:+.1f} ({low[0]:+.1f} to {high[0]:+.1f})", bool(low[0] > 0)
            )
    told = ", ".join(f"{task} {count} layers" for task, count in better.items())
    verdicts["layer-gain"] = Verdict(told, any(better.values()))
    columns = ["task", *(f"L{i}" for i in range(len(lines[0]) - 1))]
    table = Table(
        "Change of the score without a layer", columns, lines, "Points; a star: corrected p < 0.05."
    )
    claims = judged(bench, verdicts, found.results)
    return Outcome(rows, [table], claims=claims, differs=found.differs, seen=found.seen)
