"""What each head's output knows of a sentence: probes on all heads, and the best heads together (Jo & Myaeng 2020)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import xarray as xr

from headwise.analyses.contract import Bench, Experiment, Paper, Shape, layer_head_coords, one_of
from headwise.analyses.probing.fit import PAIRS, FitOptions, cached, fit_baseline, fit_task, options_key
from headwise.analyses.probing.result import Fitted, probing_dataset
from headwise.core.errors import ModelError, ParameterError
from headwise.models.vectors import DTYPES, TOKENS, Vectors, collect_vectors, token_rule
from headwise.probes import PENALTIES, ProbeSettings
from headwise.probes.settings import SOLVERS
from headwise.stats.corrections import CORRECTIONS
from headwise.text.example import Example
from headwise.text.tasks import Task, read_tasks, task_from_examples

Report = Callable[[str, int, int], None]


def probe(
    model: Any,
    tasks: Any,
    *,
    settings: ProbeSettings | None = None,
    token: str = "auto",
    pairs: str = "joint",
    top: int | None = None,
    curve: tuple[int, ...] | None = None,
    greedy: bool = True,
    control: bool = True,
    random_baseline: bool = False,
    correction: str = "holm",
    limits: tuple[int | None, int | None, int | None] = (None, None, None),
    dtype: str = "float32",
    seed: int = 0,
    folder: str | Path | None = None,
    progress: Report | None = None,
) -> xr.Dataset:
    """Probe every head and every layer of a model for some tasks.

    Three phases, each resumable in `folder`: sentence vectors of all layers and heads in one pass (`<task>/vectors`), all probes of a task
    (`<task>/fit.npz`), and the dataset, which is computed from those.

    Parameters
    ----------
    model
        A `HeadModel`, or what `HeadModel.open` takes.
    tasks
        SentEval files, GLUE folders, folders of them, labelled corpora, `Task`s, or a list of such.
    settings
        How probes are fitted (`ProbeSettings`); by default full-batch logistic regression on standardised vectors. `ProbeSettings(solver="senteval", folds=5)` is the paper's.
    token
        Which token stands for the sentence: `first`, `last`, `mean`, or `auto` (first for encoders, last real one for decoders).
    pairs
        Two sentences as one input (`joint`), or apart, as `[u; v; |u−v|; u*v]` (`features`).
    top
        How many heads are joined; the number of heads in a layer by default.
    curve
        Numbers of heads of the curve over n; by default some up to three layers' worth; empty for none.
    greedy, control, random_baseline
        Forward selection of heads; control task and selectivity; the same architecture with random weights.
    correction
        `holm`, `benjamini_hochberg` or `none`, over the heads of a task.
    limits
        At most so many training, validation and test examples a task, labels in proportion.
    dtype
        Of the stored vectors: `float32` or `float16`.
    folder
        Where phases are kept; nothing is kept without it.

    Returns
    -------
    Dataset with `accuracy[task, layer, head]`, `layer_accuracy[task, layer]`, `pooled_accuracy[task, pooling]` and what `probing_dataset` lists.
    """
    from headwise.models import HeadModel

    opened = model if isinstance(model, HeadModel) else HeadModel.open(model)
    options = FitOptions(settings or default_settings(opened, seed), top, curve, greedy, 1e-2, control, pairs, seed)
    number, points = options.sizes(opened.layers, opened.heads)
    one_of("correction", correction, CORRECTIONS)
    rule = token_rule(opened, token)
    read = [task.limit(*limits, seed=seed) for task in read_tasks(tasks, seed)]
    place = None if folder is None else Path(folder)
    random_model = with_random_weights(opened, seed) if random_baseline else None
    fits: list[Fitted] = []
    baselines: list[Fitted | None] = []
    for i, task in enumerate(read):
        say = _reporter(progress, task.name, i, len(read))
        own = None if place is None else place / task.name
        key = (task.fingerprint(), options_key(options), rule, dtype)
        fits.append(_fit(opened, task, options, rule, dtype, own, "", key, say))
        baselines.append(
            None if random_model is None else _fit(random_model, task, options, rule, dtype, own, "random-", key, say)
        )
    shape = Shape(
        opened.layers,
        opened.heads,
        opened.d_head,
        opened.hidden,
        opened.causal,
        opened.max_length,
        (),
        kv_groups=tuple(opened.kv_groups),
    )
    dataset = probing_dataset(read, fits, shape, number, points, baselines if random_baseline else None, correction)
    dataset = dataset.assign_coords(layer_head_coords(shape))
    dataset.attrs.update(_attributes(options, rule, dtype, number, correction))
    return dataset


def default_settings(model: Any, seed: int = 0) -> ProbeSettings:
    """Full-batch logistic regression on the model's device."""
    return ProbeSettings(
        solver="lbfgs", seed=seed, device=str(model.device), memory=2**30 if model.device.type == "cpu" else 2**33
    )


def _fit(
    model: Any,
    task: Task,
    options: FitOptions,
    rule: str,
    dtype: str,
    folder: Path | None,
    prefix: str,
    key: tuple[str, ...],
    say: Callable[[str], None],
) -> Fitted:
    """Collect and fit one task of one model; what a folder holds of it already is taken from there."""
    vectors_of = prefix + "vectors"

    def make() -> dict[str, Any]:
        vectors = task_vectors(
            model, task, options.pairs, rule, dtype, None if folder is None else folder / vectors_of, say
        )
        return fit_baseline(task, vectors, options) if prefix else fit_task(task, vectors, options, say)

    return cached(None if folder is None else folder / f"{prefix}fit.npz", (*key, str(model.identity()), prefix), make)


def task_vectors(
    model: Any,
    task: Task,
    pairs: str = "joint",
    token: str = "auto",
    dtype: str = "float32",
    folder: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Vectors:
    """The vectors of a task's examples; for `pairs="features"` those of all first sentences, then of all second ones."""
    examples: list[Example] = list(task.examples)
    if pairs == "features" and task.paired:
        examples = [_half(example, second) for second in (False, True) for example in task.examples]

    def report(what: str, done: int, total: int) -> None:
        if say is not None:
            say(f"{what} {done}/{total}")

    return collect_vectors(
        model, examples, folder, token=token, dtype=dtype, report=report, what=f"vectors of {task.name}"
    )


def _half(example: Example, second: bool) -> Example:
    """One sentence of a pair, without annotations."""
    text, words = (example.pair, example.words_pair) if second else (example.text, example.words)
    return Example(text=text, words=None if text is not None else words, label=example.label, origin=example.origin)


def with_random_weights(model: Any, seed: int = 0) -> Any:
    """The same architecture and tokenizer with weights as its class initialises them, by seed."""
    from headwise.models import HeadModel

    config = copy.deepcopy(model.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = type(model.module)(config)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"{type(model.module).__name__} cannot be made anew from its config ({error}); run without the random-weights baseline."
            ) from error
    module = module.to(device=model.device, dtype=model.dtype).eval()
    return HeadModel.open(module, tokenizer=model.tokenizer, stack=model.stack)


def _reporter(progress: Report | None, task: str, index: int, total: int) -> Callable[[str], None]:
    def say(what: str) -> None:
        if progress is not None:
            progress(f"{task}: {what}", index, total)

    return say


def _attributes(options: FitOptions, rule: str, dtype: str, top: int, correction: str) -> dict[str, Any]:
    settings = options.settings
    solver = {
        "senteval": f"SentEval: {settings.optimizer}, learning rate {settings.learning_rate:g}, batch {settings.batch_size}, tenacity {settings.tenacity}",
        "lbfgs": "full-batch logistic regression to convergence",
        "ridge": "least squares on one-hot labels",
    }[settings.solver]
    return {
        "solver": f"{solver}; L2 from {', '.join(f'{p:g}' for p in settings.penalties)} picked on validation; ridge regression for numeric labels",
        "folds": settings.folds or 0,
        "standardisation": "features standardised by mean and deviation of the training part"
        if settings.standardize
        else "none",
        "token": rule,
        "pairs": options.pairs,
        "top": top,
        "stored_as": dtype,
        "correction": correction,
        "seed": options.seed,
    }


@dataclass(frozen=True)
class Probing(Experiment):
    """How well the label of an example can be told from one head's output vector (Jo & Myaeng 2020, §3-4, App. A).

    Logistic regression on the sentence's vector `O[l, h]` of each head and of each layer's output, fitted for all heads and penalties at once; the heads with the best validation
    score are concatenated and tested against the last and the best layer.

    Gives what `headwise.analyses.probing.result.probing_dataset` lists: `accuracy[task, layer, head]`, `layer_accuracy[task, layer]`, `pooled_accuracy[task, pooling]` and more.

    Parameters
    ----------
    tasks
        SentEval files, GLUE folders or folders of them, with commas between; by default the labels of the corpus (cut 60 / 20 / 20 by the digest of each example).
    solver
        `lbfgs` (default), `senteval` (the paper's) or `ridge`.
    folds
        0: the validation part picks penalties and ranks heads; k: k-fold cross-validation on training and validation part.
    token, pairs, top, greedy, control, random_baseline, correction, seed, dtype, standardize
        As in `headwise.analyses.probing.analysis.probe`.
    train, validation, test
        At most so many examples of each part of a task; 0 for all.
    """

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
    seed: int = 0

    name: ClassVar[str] = "probing"
    title: ClassVar[str] = "What heads know: probes on every head, best heads together"
    paper: ClassVar[Paper] = Paper("jo2020", "§3-4, §6.2, App. A; Table 2, 3, 5; Fig 3, 5-7")
    requires: ClassVar[frozenset[str]] = frozenset({"label"})
    budget: ClassVar[int | None] = 3000

    def __post_init__(self) -> None:
        for name, allowed in (
            ("solver", SOLVERS),
            ("token", TOKENS),
            ("pairs", PAIRS),
            ("correction", CORRECTIONS),
            ("dtype", DTYPES),
        ):
            one_of(name, getattr(self, name), allowed)
        for name in ("folds", "top", "train", "validation", "test"):
            if getattr(self, name) < 0:
                raise ParameterError(f"`{name}` must be at least 0; it is {getattr(self, name)!r}.")
        if self.folds == 1:
            raise ParameterError("`folds` must be 0 (none) or at least 2; it is 1.")
        if self.tasks:
            # Tasks named by path bring their own labels: the corpus needs none.
            object.__setattr__(self, "requires", frozenset())

    def perform(self, bench: Bench) -> xr.Dataset:
        seed = self.seed
        tasks = (
            read_tasks(self.tasks, seed)
            if self.tasks
            else [task_from_examples(bench.corpus.limit(bench.limit), bench.corpus.name, seed)]
        )
        settings = replace(
            default_settings(bench.model, seed),
            solver=self.solver,
            folds=self.folds or None,
            standardize=self.standardize,
            penalties=PENALTIES,
        )
        return probe(
            bench.model,
            tasks,
            settings=settings,
            token=self.token,
            pairs=self.pairs,
            top=self.top or None,
            greedy=self.greedy,
            control=self.control,
            random_baseline=self.random_baseline,
            correction=self.correction,
            limits=(self.train or None, self.validation or None, self.test or None),
            dtype=self.dtype,
            seed=seed,
            folder=bench.folder,
            progress=bench.progress,
        )
