"""Probing every head: all tables and figures but those of downstream tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from headwise.analyses.probing.analysis import default_settings, probe
from headwise.analyses.probing.fit import ProbingOptions
from headwise.core.labels import head_name
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.jo2020.reference import BASE, released
from headwise.experiments.reproduction.schema import NotRunError, Outcome, Row, Table, Verdict
from headwise.experiments.reproduction.shared import pictures, untried
from headwise.text.known_tasks import SENTEVAL
from headwise.text.tasks import read_tasks

SIZES, QUICK = (100_000, 10_000, 10_000), (240, 120, 240)
SHOWN = (
    "sentence_length",
    "tree_depth",
    "subj_number",
    "bigram_shift",
    "coordination_inversion",
    "odd_man_out",
)
POOLED = {"last": "last_layer", "best": "best_layer", "top": "top_heads"}


def settings(bench: Bench) -> tuple[ProbingOptions, list[str]]:
    """The paper's solver, five folds and no standardisation; with `quick` least squares on the
    given split."""
    own = default_settings(bench.model, bench.seed)
    if bench.options.quick:
        how = replace(own, solver="ridge")
        told = [
            "Least squares on standardised vectors and one split, in place of logistic regression and five folds."
        ]
    else:
        how = replace(own, solver="senteval", folds=5, standardize=False)
        told = []
    train, validation, test = (bench.count(*sizes) for sizes in zip(SIZES, QUICK, strict=True))
    limits = (train, validation, test)
    return ProbingOptions(
        how, limits=limits, greedy=False, control=False, curve=(), seed=bench.seed
    ), told


def given_tasks(bench: Bench) -> tuple[dict[str, Path], list[str]]:
    """The files of the probing tasks that were given, and a sentence on each other one."""
    found = {name: bench.data.find(f"senteval-{name}") for name in SENTEVAL}
    given = {name: path for name, path in found.items() if path is not None}
    lacking = {
        name: bench.data.missing(f"senteval-{name}") for name in SENTEVAL if name not in given
    }
    if not given:
        raise NotRunError(next(iter(lacking.values())))
    return given, [f"{SENTEVAL[name][0]}: {told}." for name, told in lacking.items()]


def probed(bench: Bench) -> tuple[xr.Dataset, list[str], dict[str, str]]:
    """All tasks that were given, probed once."""
    given, missing = given_tasks(bench)
    options, differs = settings(bench)
    about = {"tasks": list(given), "options": options.identity(), "limits": list(options.limits)}

    def make() -> xr.Dataset:
        return probe(
            bench.model, list(given.values()), options, store=bench.store, progress=bench.progress
        )

    found = bench.dataset("probing", about, make)
    sizes = found["train_n"].values
    if sizes.min() < SIZES[0]:
        differs.append(
            f"{sizes.min():,} to {sizes.max():,} training sentences a task in place of 100,000."
        )
    differs += missing
    tests = found["accuracy_n"].max(("layer", "head")).values
    return (
        found,
        differs,
        {
            "tasks": f"{len(given)} tasks, {int(tests.min()):,} to {int(tests.max()):,} test sentences"
        },
    )


def heads(bench: Bench, entry: str) -> Outcome:
    """Figures 3, 6 and 7: heat maps; Figure 3 has six of the tasks and the claims."""
    found, differs, seen = probed(bench)
    wanted = [task for task in map(str, found["task"].values) if entry != "fig3" or task in SHOWN]
    shown = found.sel(task=wanted)
    drawn = pictures("probing", shown, "heads" if entry == "fig7" else "heads-sorted")
    if entry != "fig3":
        return Outcome(pictures=drawn, differs=differs, seen=seen)
    drawn += pictures("probing", found, "localised")
    tables = [localised_table(found)]
    planes = {
        task: 100 * found["accuracy"].sel(task=task).values
        for task in map(str, found["task"].values)
    }
    claims = _layer_claims(planes) | {"few-heads": _few(found)}
    if bench.data.find("jo2020") is not None:
        tables += [_their_layers(bench), *_against(bench, planes)]
    return Outcome((), tables, drawn, claims, differs, seen)


def localised_table(found: xr.Dataset) -> Table:
    """How localised every task is."""
    rows = []
    for task in map(str, found["task"].values):
        one = found.sel(task=task)
        cells = [
            f"{float(one[n]):.3f} ({float(one[f'{n}_low']):.3f} to {float(one[f'{n}_high']):.3f})"
            for n in ("localisation", "layer_localisation")
        ]
        rows.append([str(one["paper_task"].values), *cells, float(one["effective_heads"])])
    columns = ["task", "among heads", "among layers", "effective heads"]
    return Table("How localised each task is (0: all alike, 1: a single one)", columns, rows)


def _halves(plane: np.ndarray) -> tuple[float, float]:
    half = len(plane) // 2
    return float(np.nanmean(plane[:half])), float(np.nanmean(plane[half:]))


def _layer_claims(planes: dict[str, np.ndarray]) -> dict[str, Verdict]:
    def compared(tasks: tuple[str, str], lower: bool) -> Verdict:
        known = {task: _halves(planes[task]) for task in tasks if task in planes}
        if len(known) < 2:
            return untried("a task was not given")
        told = "; ".join(
            f"{SENTEVAL[task][0]} {a:.1f} and {b:.1f} %" for task, (a, b) in known.items()
        )
        return Verdict(
            f"first and second half: {told}",
            all((a > b) is lower and a != b for a, b in known.values()),
        )

    middle = [task for task in ("subj_number", "coordination_inversion") if task in planes]
    best = {task: int(np.argmax(np.sort(planes[task], axis=1)[:, -3:].mean(1))) for task in middle}
    layers = len(next(iter(planes.values())))
    inside = [layers / 4 <= layer < 3 * layers / 4 for layer in best.values()]
    told = ", ".join(f"{SENTEVAL[task][0]} layer {layer}" for task, layer in best.items())
    return {
        "lower": compared(("sentence_length", "tree_depth"), True),
        "middle": Verdict(told, all(inside))
        if len(inside) == 2
        else untried("a task was not given"),
        "upper": compared(("bigram_shift", "odd_man_out"), False),
    }


def _few(found: xr.Dataset) -> Verdict:
    wanted = [
        task for task in ("subj_number", "coordination_inversion") if task in found["task"].values
    ]
    low = {task: float(found["localisation_low"].sel(task=task)) for task in wanted}
    if len(low) < 2 or not all(map(np.isfinite, low.values())):
        return untried(
            "no head is surely better than the most frequent label, or a task was not given"
        )
    told = ", ".join(f"{SENTEVAL[task][0]} {value:.2f}" for task, value in low.items())
    return Verdict(f"lower ends: {told}", all(value > 0.2 for value in low.values()))


def _their_layers(bench: Bench) -> Table:
    """The claims on layers tried on the authors' own figures."""
    theirs = released(bench)
    said = {True: "holds", False: "does not hold", None: "not tried"}
    rows = []
    for model in sorted({model for model, _ in theirs}):
        verdicts = _layer_claims(
            {task: one.test for (name, task), one in theirs.items() if name == model}
        )
        rows.append([model, *(said[verdicts[key].holds] for key in ("lower", "middle", "upper"))])
    columns = [
        "model",
        "Length, Depth: lower",
        "SubjNum, CoordInv: middle",
        "BShift, OddManOut: upper",
    ]
    return Table("The same rules on the authors' released accuracies", columns, rows)


def _against(bench: Bench, planes: dict[str, np.ndarray]) -> list[Table]:
    """Our accuracies of heads beside theirs, where the model is the same by its name."""
    theirs, model = released(bench), bench.model.name.lower().split("/")[-1].replace("google-", "")
    if model not in {name for name, _ in theirs}:
        return []
    rows = []
    for task, ours in planes.items():
        one = theirs.get((model, task))
        if one is not None and one.test.shape == ours.shape:
            r = float(np.corrcoef(ours.ravel(), one.test.ravel())[0, 1])
            rows.append([SENTEVAL[task][0], float(ours.mean()), float(np.nanmean(one.test)), r])
    return [
        Table(
            f"Heads of {model}: ours and released",
            ["task", "mean, ours", "mean, theirs", "Pearson's r"],
            rows,
        )
    ]


def poolings(bench: Bench) -> Outcome:
    """Table 3: last layer, best layer and top heads."""
    found, differs, seen = probed(bench)
    rows = []
    for task in map(str, found["task"].values):
        for name, pooling in POOLED.items():
            one = found.sel(task=task, pooling=pooling)
            note = f"layer {int(one['best_layer'])}" if name == "best" else ""
            rows.append(Row.of(f"{task}-{name}", one, "pooled_accuracy", note))
    last, best, top = (
        100 * found["pooled_accuracy"].sel(pooling=pooling).values for pooling in POOLED.values()
    )
    gain = float(np.median(100 * (top / best - 1)))
    rows.append(Row("gain", gain, note="over the tasks given, this model alone"))
    count = len(best)
    claims = {
        "last-not-best": Verdict(
            f"{int((best >= last).sum())} of {count} tasks", bool((best >= last).mean() >= 0.9)
        ),
        "top-better": Verdict(
            f"{int((top > best).sum())} of {count} tasks", bool((top > best).mean() >= 0.8)
        ),
    }
    differs.append(f"The printed figures are BERT-base's; ours are {bench.model.name}'s.")
    tables = [_selection_check(bench)] if bench.data.find("jo2020") is not None else []
    return Outcome(rows, tables, pictures("probing", found, "poolings"), claims, differs, seen)


# Table 3's top-12 heads of BERT-base.
PRINTED_TOP = (95.0, 73.1, 38.3, 84.2, 88.3, 89.0, 88.2, 83.4, 65.1, 74.6)


def _selection_check(bench: Bench) -> Table:
    """What the selection by validation gives on the authors' own figures: Table 3's classifiers
    were not released, but the heads they join were."""
    theirs = released(bench)
    rows = []
    for task, printed in zip(SENTEVAL, PRINTED_TOP, strict=True):
        one = theirs.get((BASE, task))
        if one is None:
            continue
        by_test = float(np.nanmax(one.test))
        mean = float(np.mean([one.test[place] for place in one.top(12)]))
        beaten = "yes" if printed > by_test else "no"
        rows.append([SENTEVAL[task][0], one.told(), by_test, mean, printed, beaten])
    columns = ["task", "best head by validation", "best by test", "mean of the top 12"]
    columns += ["printed, top 12 joined", "joined beats every head"]
    note = (
        "BERT-base, test accuracy in %, from the released accuracies of single heads. Layers and joined heads were not "
        "released, so that Table 3 itself cannot be computed from them."
    )
    return Table("Our rule of selection on the authors' figures", columns, rows, note)


def scores(bench: Bench) -> Outcome:
    """Figure 5: syntactic against semantic scores."""
    found, differs, seen = probed(bench)
    syntactic, semantic = (
        100 * found[f"{name}_score"].values.ravel() for name in ("syntactic", "semantic")
    )
    if not np.isfinite(syntactic).all() or not np.isfinite(semantic).all():
        raise NotRunError("a syntactic and a semantic task are needed")
    heads_of = found.sizes["head"]
    r = float(np.corrcoef(syntactic, semantic)[0, 1])
    layer = np.repeat(np.arange(found.sizes["layer"]), heads_of)
    rises = float(spearmanr(layer, syntactic + semantic).statistic)
    claims = {
        "linear": Verdict(f"r = {r:.2f} over {len(syntactic)} heads", r > 0.5),
        "lower-less": Verdict(f"Spearman {rises:.2f}", rises > 0),
    }
    tables = [_their_scores(bench)] if bench.data.find("jo2020") is not None else []
    return Outcome(
        (), tables, pictures("probing", found, "syntactic-semantic"), claims, differs, seen
    )


def _their_scores(bench: Bench) -> Table:
    """Figure 5 of every model from the released accuracies."""
    theirs = released(bench)
    rows = []
    for model in sorted({model for model, _ in theirs}):
        means = []
        for group in ("syntactic", "semantic"):
            names = [name for name, (_, own) in SENTEVAL.items() if own == group]
            parts = [theirs[model, name].test for name in names if (model, name) in theirs]
            means.append(np.mean(parts, axis=0))
        known = np.isfinite(means[0]) & np.isfinite(means[1])
        r = float(np.corrcoef(means[0][known], means[1][known])[0, 1])
        rows.append(
            [
                model,
                int(known.sum()),
                float(means[0][known].mean()),
                float(means[1][known].mean()),
                r,
            ]
        )
    columns = ["model", "heads", "syntactic, mean", "semantic, mean", "Pearson's r over heads"]
    return Table("Figure 5 from the authors' released accuracies", columns, rows)


def every_encoder(bench: Bench) -> Outcome:
    """Table 5: what the released file says of each encoder."""
    theirs = released(bench)
    rows = []
    for (model, task), one in theirs.items():
        if task in SENTEVAL:
            rows.append([model, SENTEVAL[task][0], one.told(), float(np.nanmean(one.test))])
    title = "Best head (by validation) and mean head, released accuracies (%)"
    differs = (
        "Table 5 is of classifiers on layers and joined heads, which were not released; the model given here "
        "stands in Table 3. Printed increments are relative to the last layer."
    )
    return Outcome(
        tables=[Table(title, ["encoder", "task", "best head", "mean head"], rows)],
        differs=[differs],
    )


def drawing(bench: Bench, what: str) -> Outcome:
    """A drawing of the method: nothing is measured in it."""
    model = bench.model
    token = "the last token" if model.causal else "the first token"
    facts = {
        "vectors": f"{model.layers} layers of {model.hidden}, {model.layers * model.heads} heads of {model.d_head}"
    }
    return Outcome(
        differs=[f"A drawing of the method ({what}); it has no numbers."],
        seen=facts | {"token": token},
    )


def selection(bench: Bench) -> Outcome:
    """Figure 2: the heads that validation picks, task by task."""
    found, differs, seen = probed(bench)
    rows = []
    for task in map(str, found["task"].values):
        one = found.sel(task=task)
        count = min(int(one.attrs["top"]), one.sizes["rank"])
        picked = [
            head_name(int(one["top_layer"][i]), int(one["top_head"][i])) for i in range(count)
        ]
        rows.append([str(one["paper_task"].values), " ".join(picked)])
    table = Table("Heads picked on validation, best first", ["task", "heads"], rows)
    return Outcome(tables=[table], differs=differs, seen=seen)


def encoders(bench: Bench) -> Outcome:
    """Table 1: the model that is looked at here."""
    model = bench.model
    size = f"{model.module.num_parameters() / 1e6:.0f}M"
    row = [model.name, model.layers, model.heads, model.layers * model.heads, size]
    table = Table("The encoder", ["encoder", "L", "H", "L × H", "parameters"], [row])
    return Outcome(
        tables=[table], differs=["One encoder, the one that was given, in place of seven."]
    )


def tasks(bench: Bench) -> Outcome:
    """Table 2: the tasks as they were given."""
    given, missing = given_tasks(bench)
    rows, sizes = [], []
    for name, path in given.items():
        (task,) = read_tasks([path], bench.seed)
        rows.append(Row(name, len({str(label) for label in task.labels})))
        parts = [len(part) for part in (task.split.train, task.split.validation, task.split.test)]
        sizes.append([SENTEVAL[name][0], *parts])
    table = Table("Sentences given", ["task", "train", "validation", "test"], sizes)
    return Outcome(rows, [table], differs=missing)
