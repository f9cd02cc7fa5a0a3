"""What an entry is computed from: the open model, data sets, fine-tuned models, and a store that
survives a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import xarray as xr

from headwise.analyses.contract import Analysis, make_analysis
from headwise.analyses.released import PAPER, check_reading
from headwise.core.checks import check_types
from headwise.core.errors import InputError
from headwise.core.failures import UnexpectedError
from headwise.core.store import CheckpointStore, digest_of
from headwise.experiments.finetuning import FinetuneOptions, TrainingRecord, finetune
from headwise.experiments.reproduction.data import DATA_SETS, DataSets
from headwise.experiments.reproduction.schema import NotRunError
from headwise.experiments.work import Report, silent
from headwise.models import HeadModel
from headwise.run import Listener, Run, RunOptions, Source
from headwise.run.provenance import describe
from headwise.text import Corpus, open_corpus
from headwise.text.known_tasks import known_task
from headwise.text.tasks import Task, read_task

Made = TypeVar("Made")
QUICK_ROWS = 256  # of each part of a task that is fine-tuned on with `quick`


@dataclass(frozen=True, slots=True)
class ReproductionOptions:
    """How a paper is reproduced.

    Parameters
    ----------
    data : str or Path, optional
        A folder with data sets, found by name (see `headwise.experiments.reproduction.data`).
    only : sequence of str, default ()
        Only these entries (`table1`, `fig2`); all by default.
    quick : bool, default False
        Small samples: minutes on two cores for the built-in model.
    reading : str, default "paper"
        `paper`, or `released`: as the authors' released code computes, where that differs.
    finetuned : mapping of str to str or Path
        Fine-tuned models by task; those that are not given are fine-tuned by the paper's recipe.
    scale : float, default 1
        A factor on the paper's sample sizes, for instance 0.1 for a tenth.
    device : str, optional
        Where to run; the best there is by default.
    seed : int, default 0
        For everything random.
    parser : str, optional
        A spaCy pipeline for the texts of tasks, where a paper parses them.
    """

    data: str | Path | None = None
    only: Sequence[str] = ()
    quick: bool = False
    reading: str = PAPER
    finetuned: Mapping[str, str | Path] = field(default_factory=dict)
    scale: float = 1.0
    device: str | None = None
    seed: int = 0
    parser: str | None = None

    def __post_init__(self) -> None:
        check_reading(self.reading)
        check_types(self)
        for task, folder in self.finetuned.items():
            if not Path(folder).is_dir():
                raise InputError(
                    f"There is no folder '{folder}' with a model of {task}; check --finetuned."
                )


class Bench:
    """What an entry works with.

    Attributes
    ----------
    model : HeadModel
        The model that is looked at.
    source : HeadModel, str, Path or None
        What it was opened from, for those who open it again (None for the built-in model); itself
        where it was given open.
    options : ReproductionOptions
        How the paper is reproduced.
    data : DataSets
        The data sets that were given.
    store : CheckpointStore
        For pieces of an entry's own; finished entries and runs are kept by the frame.
    """

    def __init__(
        self,
        model: HeadModel,
        source: HeadModel | str | Path | None,
        options: ReproductionOptions,
        store: CheckpointStore,
        trained: Path,
        report: Report = silent,
    ) -> None:
        self.model, self.source, self.options, self.store = model, source, options, store
        self.data, self.progress = DataSets(options.data), report
        self._trained = trained
        self._remembered: dict[str, Any] = {}

    @property
    def released(self) -> bool:
        """Whether the authors' released arithmetic is asked for."""
        return self.options.reading == "released"

    @property
    def seed(self) -> int:
        return self.options.seed

    def count(self, whole: int, quick: int) -> int:
        """A sample size: the paper's (times `scale`), or a small one with `quick`."""
        return quick if self.options.quick else max(1, round(whole * self.options.scale))

    def part(self, whole: int, quick: int) -> int | None:
        """The same of a data set that has so many; None for all of it."""
        return self.count(whole, quick) if self.options.quick or self.options.scale != 1 else None

    # --- data -------------------------------------------------------------------------------------

    def corpus(self, name: str, limit: int | None = None, **options: Any) -> Corpus:
        """A data set as a corpus, at most `limit` examples of it drawn at random; `options` are its
        reader's."""

        def read() -> Corpus:
            spec = self.data.spec(name)
            found = open_corpus(
                spec, tokenizer=self.model.tokenizer, limit=limit, seed=self.seed, **options
            )
            if limit is not None:  # read once: a draw walks through the whole file
                found = Corpus.from_examples(tuple(found), found.name)
            found.description = DATA_SETS[name].title
            return found

        return self.remember(f"corpus {name} {limit} {sorted(options.items())}", read)

    def built_in(self, limit: int | None = None) -> Corpus:
        """Sentences of the built-in corpus, where a data set was not given."""
        return open_corpus(None, limit=limit, seed=self.seed, prose=self.model.causal).alone()

    def text(
        self, name: str, limit: int | None, instead: str, **options: Any
    ) -> tuple[Corpus, list[str]]:
        """A data set as a corpus; where it was not given the built-in one, and the sentence that
        says so."""
        if self.data.find(name) is None:
            return self.built_in(limit), [instead]
        return self.corpus(name, limit, **options), []

    def task(self, name: str, *, train: bool = True) -> Task:
        """A GLUE task from its folder; `train=False` where its dev part suffices."""
        folder = self.data.path(f"glue-{name}" if train else f"glue-{name}-dev")
        return self.remember(
            f"task {folder} {train}", lambda: read_task(name, data=folder, needs_train=train)
        )

    def analysis(self, name: str, **parameters: Any) -> Analysis:
        """An analysis with a paper's settings, read as the paper or as the released code has it,
        where it knows the difference."""
        made = make_analysis(name, parameters)
        return replace(made, reading=self.options.reading) if "reading" in made.parameters else made  # type: ignore[type-var]

    # --- work that is kept ------------------------------------------------------------------------

    def watch(
        self, corpus: Corpus, analysis: Analysis, *, model: HeadModel | None = None
    ) -> xr.Dataset:
        """The result of an analysis over a corpus; what was finished before is not run again.

        Parameters
        ----------
        corpus : Corpus
            What is read; all of it.
        analysis : Analysis
            What is asked. One that cannot be had here is a `NotRunError` with its reason.
        model : HeadModel, optional
            Another open model than the bench's.
        """
        own, asked = model or self.model, analysis.seeded(self.seed)
        about = {
            "model": own.identity(),
            "corpus": corpus.fingerprint(),
            "longest": own.encoder.max_length,
        }
        about |= {"analysis": asked.name, "parameters": describe(asked.parameters)}
        folder = self.store.folder / f"under-way-{digest_of(about)[:16]}.part"
        return self.dataset(
            f"run-{asked.name}", about, partial(self._run, own, corpus, asked, folder)
        )

    def _run(
        self, model: HeadModel, corpus: Corpus, analysis: Analysis, folder: Path
    ) -> xr.Dataset:
        # With overwrite, an unfinished run of the same work resumes.
        options = RunOptions(full=True, seed=self.seed, overwrite=True)
        listener = Listener(self.progress, note=self.store.note)
        with Run(Source(model, corpus), [analysis], folder, options, listener) as run:
            if run.plan.dropped and (
                reasons := [items[""] for items in run.plan.dropped.values() if "" in items]
            ):
                run.forget()
                raise NotRunError("; ".join(reasons))
            atlas = run.atlas()
            if run.failures:
                raise UnexpectedError(*run.failures.values())
            run.forget()
        return atlas[analysis.name]

    def dataset(
        self, name: str, about: Mapping[str, Any], make: Callable[[], xr.Dataset]
    ) -> xr.Dataset:
        """Labelled arrays of an entry's own, made once; `about` tells them from others of the same
        name."""
        return self.store.dataset(f"{name}-{digest_of(about)[:16]}", make)

    def remember(self, name: str, make: Callable[[], Made]) -> Made:
        """Anything that several entries of this call need, made once and held in memory."""
        if name not in self._remembered:
            self._remembered[name] = make()
        found: Made = self._remembered[name]
        return found

    # --- fine-tuned models ------------------------------------------------------------------------

    def given_model(self, name: str) -> Path | None:
        """The folder that was given for a model fine-tuned on a task."""
        found = (
            path
            for key, path in self.options.finetuned.items()
            if known_task(key) is known_task(name)
        )
        return next((Path(path) for path in found), None)

    def model_folder(self, name: str, recipe: str) -> tuple[Path, str]:
        """The folder of the model fine-tuned on a task, given or trained here now, and a sentence
        on which it is."""
        if (given := self.given_model(name)) is not None:
            return given, f"{name}: fine-tuned model given ({given.name})"
        task = self.training_task(name)
        records, folder = self.train(task, recipe)
        scores = ", ".join(f"{key} {value:.3f}" for key, value in records[0].metrics.items())
        told = f"{name}: fine-tuned here on {len(task.train):,} rows, recipe {recipe} ({scores})"
        return folder / records[0].folder / "model", told

    def training_task(self, name: str) -> Task:
        """A task to train on: all of it, a part by `scale`, or a few rows with `quick`; its dev
        part is whole but for `quick`."""
        task = self.task(name)
        if self.options.quick:
            return task.limit(QUICK_ROWS, None, QUICK_ROWS, self.seed)
        return task.limit(self.count(len(task.train), QUICK_ROWS), None, None, self.seed)

    def train(
        self,
        task: Task,
        recipe: str,
        start: str = "pretrained",
        seeds: int = 1,
        pooling: str = "last_layer",
    ) -> tuple[list[TrainingRecord], Path]:
        """Fine-tunings of the model on a task, one for each seed, and the folder they lie in: below
        `finetuned` beside the report, where they stay."""
        if isinstance(self.source, HeadModel):
            raise NotRunError(
                "an open model cannot be fine-tuned; give its folder or name, or fine-tuned models"
            )
        about = {
            "model": self.model.identity(),
            "task": task.fingerprint(),
            "quick": self.options.quick,
        }
        folder = self._trained / f"{task.name}-{digest_of(about)[:8]}"
        options = FinetuneOptions(
            pooling=pooling,
            start=start,
            recipe=recipe,
            seeds=seeds,
            seed=self.seed,
            epochs=1 if self.options.quick else None,
            device=self.options.device,
            save_models="first" if start == "pretrained" else "none",
        )
        return finetune(self.source, task, folder, options, report=self.progress), folder

    @contextmanager
    def finetuned(self, name: str, recipe: str = "kovaleva") -> Iterator[tuple[HeadModel, str]]:
        """The model fine-tuned on a task, open, and a sentence on where it comes from: the folder
        given for it, or trained here by the paper's recipe."""
        where, told = self.model_folder(name, recipe)
        with HeadModel.open(where, device=self.options.device) as opened:
            yield opened, told
