"""What each head's output knows of a sentence: probes on all heads, and the best heads together (Jo
& Myaeng 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import xarray as xr

from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    layer_head_coords,
)
from headwise.analyses.probing.fit import fit_baseline, fit_task
from headwise.analyses.probing.options import ProbingOptions
from headwise.analyses.probing.result import PEARSON, FittedArrays, pooling_rows, probing_dataset
from headwise.core.options import part_of
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.models.random_init import with_random_weights
from headwise.models.vectors import Vectors, collect_vectors, token_rule
from headwise.text.targets import half
from headwise.text.tasks import Task, read_tasks, task_from_examples
from headwise.text.tasks.reading import Given

Progress = Callable[[str, int, int], None]


def probe_tasks(
    model: HeadModel,
    tasks: Given,
    options: ProbingOptions,
    *,
    store: CheckpointStore | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Probe every head and every layer of an open model for some tasks.

    Three phases: sentence vectors of all layers and heads in one pass, all probes of a task, and
    the dataset made from them. The first two have checkpoints.

    Parameters
    ----------
    model : HeadModel
        An open model.
    tasks : Task, Corpus, str, Path, or a sequence or mapping of them
        SentEval files, GLUE folders, folders of them, labelled corpora.
    options : ProbingOptions
        How heads are probed.
    store : CheckpointStore, optional
        Where checkpoints go; without it there are none.
    progress : callable, optional
        Told what is counted (tasks, sentences, families of probes), how many are done, and how many
        there are.

    Returns
    -------
    Dataset
        `accuracy[task, layer, head]`, `layer_accuracy[task, layer]`, `pooled_accuracy[task,
        pooling]` and what `probing_dataset` lists.
    """
    seed = options.seed or 0
    top, curve = options.head_counts(model.layers, model.heads)
    options = replace(options, token=token_rule(model, options.token))
    limited_tasks = []
    for task in read_tasks(tasks, seed):
        limited_tasks.append(task.limit(*options.limits, seed=seed))
    random_model = with_random_weights(model, seed) if options.random_baseline else None

    fits: list[FittedArrays] = []
    baselines: list[FittedArrays] = []
    if progress is None:
        progress = _no_progress
    for number, task in enumerate(limited_tasks):
        progress("tasks", number, len(limited_tasks))
        fits.append(_fitted_arrays(model, task, options, "fit", store, progress))
        if random_model is not None:
            baselines.append(_fitted_arrays(random_model, task, options, "random", store, progress))
    progress("tasks", len(limited_tasks), len(limited_tasks))

    shape = Shape(
        model.layers,
        model.heads,
        model.d_head,
        model.hidden,
        model.causal,
        model.max_length,
        (),
        kv_groups=tuple(model.kv_groups),
    )
    dataset = probing_dataset(
        limited_tasks, fits, shape, top, curve, baselines or None, options.correction
    )
    dataset = dataset.assign_coords(layer_head_coords(shape))
    return dataset.assign_attrs(_attributes(options, top))


def _no_progress(what: str, done: int, total: int) -> None:
    pass


def _fitted_arrays(
    model: HeadModel,
    task: Task,
    options: ProbingOptions,
    kind: str,
    store: CheckpointStore | None,
    progress: Progress,
) -> FittedArrays:
    """Return the arrays of one task and model, from the checkpoint or computed now.

    `kind` is "fit" for all probes, "random" for the few of the baseline with random weights.
    """

    def compute() -> tuple[dict[str, Any], dict[str, Any]]:
        vectors = task_vectors(model, task, options, store, progress)
        settings = options.probe_settings(model.device)
        if kind == "random":
            return fit_baseline(task, vectors, settings), {}
        return fit_task(task, vectors, options, settings, progress), {}

    if store is None:
        return compute()[0]
    identity = options.identity() | {"model": model.identity()}
    part = store.part(f"{kind}-{task.fingerprint()[:16]}", identity)
    return part.checkpoint("probes", compute).arrays


def task_vectors(
    model: HeadModel,
    task: Task,
    options: ProbingOptions,
    store: CheckpointStore | None = None,
    progress: Progress | None = None,
) -> Vectors:
    """Return the vectors of a task's examples; for `pairs="features"` those of all first sentences,
    then of all second ones."""
    examples = list(task.examples)
    if options.pairs == "features" and task.paired:
        first_sentences = [half(example, second=False) for example in task.examples]
        second_sentences = [half(example, second=True) for example in task.examples]
        examples = first_sentences + second_sentences
    return collect_vectors(
        model,
        examples,
        store,
        token=options.token,
        dtype=options.dtype,
        report=progress,
        what=f"vectors of {task.name}",
    )


def _attributes(options: ProbingOptions, top: int) -> dict[str, Any]:
    """Return how the probes were fitted, as attributes of the dataset."""
    settings = options.probe_settings()
    if settings.solver == "senteval":
        solver = (
            f"SentEval: {settings.optimizer}, learning rate {settings.learning_rate:g}, batch "
            f"{settings.batch_size}, tenacity {settings.tenacity}"
        )
    elif settings.solver == "lbfgs":
        solver = "full-batch logistic regression to convergence"
    else:
        solver = "least squares on one-hot labels"
    penalties = ", ".join(f"{penalty:g}" for penalty in settings.penalties)
    standardisation = "none"
    if settings.standardize:
        standardisation = "features standardised by mean and deviation of the training part"
    return {
        "solver": f"{solver}; L2 from {penalties} selected on validation; ridge regression for "
        "numeric labels",
        "folds": options.folds,
        "standardisation": standardisation,
        "token": options.token,
        "pairs": options.pairs,
        "top": top,
        "stored_as": options.dtype,
        "correction": options.correction,
        "seed": options.seed or 0,
    }


@dataclass(frozen=True)
class Probing(ProbingOptions, Experiment):
    """How well the label of an example can be told from one head's output vector (Jo & Myaeng 2020,
    §3-4, App. A).

    Logistic regression on the sentence's vector `O[l, h]` of each head and of each layer's output,
    fitted for all heads and penalties at once; the heads with the best validation score are
    concatenated and compared with the last and the best layer.

    Gives what `headwise.analyses.probing.result.probing_dataset` lists: `accuracy[task, layer,
    head]`, `layer_accuracy[task, layer]`, `pooled_accuracy[task, pooling]` and more.

    Parameters
    ----------
    tasks : str, default ""
        SentEval files, GLUE folders or folders of them, separated by commas; by default the labels
        of the corpus (split 60 / 20 / 20 by the digest of each example).
    solver : {"lbfgs", "senteval", "ridge"}, default "lbfgs"
        `senteval` is the paper's.
    folds : int, default 0
        0: the validation part selects penalties and ranks heads; k: k-fold cross-validation on
        training and validation part.
    standardize : bool, default True
        Features minus their mean, divided by their deviation, both of the training part.
    token, pairs, penalties, curve, greedy, greedy_penalty, control, random_baseline, correction, dtype
        As in `headwise.analyses.probing.options.ProbingOptions`.
    top : int, default 0
        How many heads are joined; 0 for as many as a layer has.
    train, validation, test : int, default 0
        The most examples of each part of a task; 0 for all.
    seed : int, optional
        For parts, samples, control tasks, folds and random weights; by default the run's.

    Notes
    -----
    Question: What does each head's output know about a sentence, and do the best heads together
    know more than a layer?

    Assumes: What a linear probe finds is there; what it does not find may be there in another form.

    Pitfalls: A probe learns words as well as structure: selectivity (`control`) and random weights
    say how much. The best of many heads is selected on validation, never on test; do not select on
    `accuracy` yourself. Few rows favour few dimensions: a head has fewer numbers than a layer.

    Cost: A pass that keeps one vector a head for each example, then fits for all heads and
    penalties at once (`benchmarks/bench_probing.py`)."""

    tasks: str = ""

    name: ClassVar[str] = "probing"
    title: ClassVar[str] = "What heads know: probes on every head, best heads together"
    paper: ClassVar[Paper] = Paper("jo2020", "§3-4, §6.2, App. A; Table 2, 3, 5; Fig 3, 5-7")
    units: ClassVar[Mapping[str, str]] = {
        "score": "accuracy layer_accuracy validation layer_validation pooled_accuracy "
        "curve_accuracy majority control_accuracy selectivity random_accuracy "
        "random_layer_accuracy",
        "mean score": "syntactic_score semantic_score",
        "penalty": "penalty",
        "correlation": "task_correlation",
    }
    budget: ClassVar[int | None] = 3000
    fits: ClassVar[bool] = True
    depth_power: ClassVar[float | None] = 0.75
    typical_passes: ClassVar[float] = 60.0
    cross: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ProbingOptions.__post_init__(self)

    @property
    def requires(self) -> frozenset[str]:
        """Labels, unless tasks named by path bring their own."""
        return frozenset() if self.tasks else frozenset({"label"})

    def perform(self, context: ExperimentContext) -> xr.Dataset:
        tasks: Given = self.tasks
        if not self.tasks:
            examples = context.corpus.limit(context.limit)
            tasks = [task_from_examples(examples, context.corpus.name, self.seed or 0)]
        return probe_tasks(
            context.model,
            tasks,
            part_of(self, ProbingOptions),
            store=context.store,
            progress=context.progress,
        )

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        majorities = dataset["majority"].values
        for row, majority in zip(pooling_rows(dataset), majorities, strict=True):
            name, metric, last_layer, best_layer, top_heads, best_head = row
            line = (
                f"{name}, {metric} on the test part: last layer {last_layer}, best layer "
                f"{best_layer}, {dataset.attrs['top']} best heads {top_heads}, best head "
                f"{best_head} (selected on validation)"
            )
            if metric != PEARSON:
                line += f"; the most frequent label {majority:.3f}"
            lines.append(line)
        return lines
