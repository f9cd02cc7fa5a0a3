"""What each head's output knows of a sentence: probes on all heads, and the best heads together (Jo
& Myaeng 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    one_of,
)
from headwise.analyses.probing.fit import PAIRS, ProbingOptions, fit_baseline, fit_task
from headwise.analyses.probing.result import PEARSON, Fitted, pooling_rows, probing_dataset
from headwise.core.errors import ParameterError
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.models.random_init import with_random_weights
from headwise.models.vectors import DTYPES, TOKENS, Vectors, collect_vectors, token_rule
from headwise.probes import ProbeSettings
from headwise.probes.settings import SOLVERS
from headwise.stats.corrections import CORRECTIONS
from headwise.text.targets import half
from headwise.text.tasks import Task, read_tasks, task_from_examples
from headwise.text.tasks.reading import Given

Report = Callable[[str, int, int], None]


def probe(
    model: HeadModel | str | Path,
    tasks: Given,
    options: ProbingOptions | None = None,
    *,
    store: CheckpointStore | None = None,
    progress: Report | None = None,
) -> xr.Dataset:
    """Probe every head and every layer of a model for some tasks.

    Three phases: sentence vectors of all layers and heads in one pass, all probes of a task, and
    the dataset, which is computed from those. The first two are kept in the store.

    Parameters
    ----------
    model : HeadModel, str or Path
        A model, or what `HeadModel.open` takes.
    tasks : Task, Corpus, str, Path, or a sequence or mapping of them
        SentEval files, GLUE folders, folders of them, labelled corpora.
    options : ProbingOptions, optional
        By default full-batch logistic regression on standardised vectors;
        `ProbingOptions(ProbeSettings(folds=5))` is the paper's.
    store : CheckpointStore, optional
        Where phases are kept; nothing is kept without it.
    progress : callable, optional
        Told what is counted (tasks, sentences, families of probes), how many are done, and how many
        there are.

    Returns
    -------
    Dataset
        `accuracy[task, layer, head]`, `layer_accuracy[task, layer]`, `pooled_accuracy[task,
        pooling]` and what `probing_dataset` lists.
    """
    opened = model if isinstance(model, HeadModel) else HeadModel.open(model)
    options = options or ProbingOptions()
    if options.settings is None:
        options = replace(options, settings=default_settings(opened, options.seed))
    top, curve = options.sizes(opened.layers, opened.heads)
    options = replace(options, token=token_rule(opened, options.token))
    read = [
        task.limit(*options.limits, seed=options.seed) for task in read_tasks(tasks, options.seed)
    ]
    untrained = with_random_weights(opened, options.seed) if options.random_baseline else None
    fits: list[Fitted] = []
    baselines: list[Fitted] = []
    tell = progress or (lambda what, done, total: None)
    for i, task in enumerate(read):
        tell("tasks", i, len(read))
        fits.append(_fitted(opened, task, options, "fit", store, tell))
        if untrained is not None:
            baselines.append(_fitted(untrained, task, options, "random", store, tell))
    tell("tasks", len(read), len(read))
    size = (opened.layers, opened.heads, opened.d_head, opened.hidden)
    shape = Shape(*size, opened.causal, opened.max_length, (), kv_groups=tuple(opened.kv_groups))
    dataset = probing_dataset(read, fits, shape, top, curve, baselines or None, options.correction)
    return dataset.assign_coords(layer_head_coords(shape)).assign_attrs(_attributes(options, top))


def default_settings(model: HeadModel, seed: int = 0) -> ProbeSettings:
    """Full-batch logistic regression on the model's device."""
    memory = 2**30 if model.device.type == "cpu" else 2**33
    return ProbeSettings(solver="lbfgs", seed=seed, device=str(model.device), memory=memory)


def _fitted(
    model: HeadModel,
    task: Task,
    options: ProbingOptions,
    kind: str,
    store: CheckpointStore | None,
    tell: Report,
) -> Fitted:
    """Collect and fit one task of one model; what the store holds of it already is taken from
    there."""

    def make() -> tuple[dict[str, Any], dict[str, Any]]:
        vectors = task_vectors(model, task, options, store, tell)
        fit = (
            fit_baseline(task, vectors, options)
            if kind == "random"
            else fit_task(task, vectors, options, tell)
        )
        return fit, {}

    if store is None:
        return make()[0]
    part = store.part(
        f"{kind}-{task.fingerprint()[:16]}", options.identity() | {"model": model.identity()}
    )
    return part.checkpoint("probes", make).arrays


def task_vectors(
    model: HeadModel,
    task: Task,
    options: ProbingOptions,
    store: CheckpointStore | None = None,
    report: Report | None = None,
) -> Vectors:
    """The vectors of a task's examples; for `pairs="features"` of all first sentences, then of all
    second ones."""
    examples = list(task.examples)
    if options.pairs == "features" and task.paired:
        examples = [
            half(example, second=second) for second in (False, True) for example in task.examples
        ]

    what = f"vectors of {task.name}"
    return collect_vectors(
        model, examples, store, token=options.token, dtype=options.dtype, report=report, what=what
    )


def _attributes(options: ProbingOptions, top: int) -> dict[str, Any]:
    settings = options.fitting
    rate, batch, tenacity = settings.learning_rate, settings.batch_size, settings.tenacity
    solver = {
        "senteval": f"SentEval: {settings.optimizer}, learning rate {rate:g}, batch {batch}, tenacity {tenacity}",
        "lbfgs": "full-batch logistic regression to convergence",
        "ridge": "least squares on one-hot labels",
    }[settings.solver]
    penalties = ", ".join(f"{p:g}" for p in settings.penalties)
    standardised = "features standardised by mean and deviation of the training part"
    return {
        "solver": f"{solver}; L2 from {penalties} picked on validation; ridge regression for numeric labels",
        "folds": settings.folds or 0,
        "standardisation": standardised if settings.standardize else "none",
        "token": options.token,
        "pairs": options.pairs,
        "top": top,
        "stored_as": options.dtype,
        "correction": options.correction,
        "seed": options.seed,
    }


@dataclass(frozen=True)
class Probing(Experiment):
    """How well the label of an example can be told from one head's output vector (Jo & Myaeng 2020,
    §3-4, App. A).

    Logistic regression on the sentence's vector `O[l, h]` of each head and of each layer's output,
    fitted for all heads and penalties at once; the heads with the best validation score are
    concatenated and tested against the last and the best layer.

    Gives what `headwise.analyses.probing.result.probing_dataset` lists: `accuracy[task, layer,
    head]`, `layer_accuracy[task, layer]`, `pooled_accuracy[task, pooling]` and more.

    Parameters
    ----------
    tasks : str, default ""
        SentEval files, GLUE folders or folders of them, with commas between; by default the labels
        of the corpus (cut 60 / 20 / 20 by the digest of each example).
    solver : {"lbfgs", "senteval", "ridge"}, default "lbfgs"
        `senteval` is the paper's.
    folds : int, default 0
        0: the validation part picks penalties and ranks heads; k: k-fold cross-validation on
        training and validation part.
    token, pairs, greedy, control, random_baseline, correction, dtype
        As in `ProbingOptions`.
    top : int, default 0
        How many heads are joined; 0 for as many as a layer has.
    train, validation, test : int, default 0
        At most so many examples of each part of a task; 0 for all.
    standardize : bool, default True
        Features minus their mean, divided by their deviation, both of the training part.
    seed : int, optional
        For parts, samples, control tasks, folds and random weights; by default the run's.

    Notes
    -----
    Question: What does each head's output know about a sentence, and do the best heads together
    know more than a layer?

    Assumes: What a linear probe finds is there; what it does not find may be there in another form.

    Traps: A probe learns words as well as structure: selectivity (`control`) and random weights say
    how much. The best of many heads is picked on validation, never on test; do not pick on
    `accuracy` yourself. Few rows favour few dimensions: a head has fewer numbers than a layer.

    Cost: A pass that keeps one vector a head for each example, then fits for all heads and
    penalties at once (`benchmarks/bench_probing.py`)."""

    tasks: str = ""
    solver: str = "lbfgs"
    folds: int = 0
    token: str = "auto"
    pairs: str = "joint"
    top: int = 0
    greedy: bool = True
    control: bool = True
    random_baseline: bool = False
    correction: str = "holm"
    train: int = 0
    validation: int = 0
    test: int = 0
    standardize: bool = True
    dtype: str = "float32"
    seed: int | None = None

    name: ClassVar[str] = "probing"
    title: ClassVar[str] = "What heads know: probes on every head, best heads together"
    paper: ClassVar[Paper] = Paper("jo2020", "§3-4, §6.2, App. A; Table 2, 3, 5; Fig 3, 5-7")
    units: ClassVar[Mapping[str, str]] = {
        "score": "accuracy layer_accuracy validation layer_validation pooled_accuracy curve_accuracy majority "
        "control_accuracy selectivity random_accuracy random_layer_accuracy",
        "mean score": "syntactic_score semantic_score",
        "penalty": "penalty",
        "correlation": "task_correlation",
    }
    budget: ClassVar[int | None] = 3000
    cross: ClassVar[bool] = True

    def __post_init__(self) -> None:
        allowed = {
            "solver": SOLVERS,
            "token": TOKENS,
            "pairs": PAIRS,
            "correction": CORRECTIONS,
            "dtype": DTYPES,
        }
        for name, values in allowed.items():
            one_of(name, getattr(self, name), values)
        for name in ("folds", "top", "train", "validation", "test"):
            at_least(name, getattr(self, name), 0)
        if self.folds == 1:
            raise ParameterError("`folds` must be 0 (none) or at least 2; it is 1.")

    @property
    def requires(self) -> frozenset[str]:
        """Labels, unless tasks named by path bring their own."""
        return frozenset() if self.tasks else frozenset({"label"})

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        seed = self.seed or 0
        own = bench.corpus.limit(bench.limit)
        tasks: Given = self.tasks or [task_from_examples(own, bench.corpus.name, seed)]
        plain = default_settings(bench.model, seed)
        settings = replace(
            plain, solver=self.solver, folds=self.folds or None, standardize=self.standardize
        )
        limits = (self.train or None, self.validation or None, self.test or None)
        same = ("greedy", "control", "pairs", "token", "random_baseline", "correction", "dtype")
        given: dict[str, Any] = {name: getattr(self, name) for name in same}
        options = ProbingOptions(settings, top=self.top or None, limits=limits, seed=seed, **given)
        return probe(bench.model, tasks, options, store=bench.store, progress=bench.progress)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        rows = zip(pooling_rows(dataset), dataset["majority"].values, strict=True)
        for (name, metric, last, layer, heads, best), most in rows:
            chance = "" if metric == PEARSON else f"; the most frequent label {most:.3f}"
            lines.append(
                f"{name}, {metric} on the test part: last layer {last}, best layer {layer}, {dataset.attrs['top']} "
                f"best heads {heads}, best head {best} (picked on validation){chance}"
            )
        return lines
