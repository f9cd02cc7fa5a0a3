"""What the entries of a paper work with: the open model, data sets, fine-tuned models, and a store
of finished work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import xarray as xr

from headwise.analyses.contract import Analysis, make_analysis
from headwise.analyses.released import RELEASED
from headwise.core.failures import UnexpectedError
from headwise.core.store import digest_of
from headwise.experiments.finetuning import FinetuneOptions, TrainingRecord, finetune
from headwise.experiments.reproduction.data import DATA_SETS, DataFolder
from headwise.experiments.reproduction.learning import (
    PREDICTIONS,
    DevPredictions,
    why_nothing_learned,
)
from headwise.experiments.reproduction.options import ReproductionOptions
from headwise.experiments.reproduction.schema import NotRunError
from headwise.models import HeadModel
from headwise.run import Job, Run, RunCallbacks, RunOptions, Source
from headwise.run.plan import WHOLE_ANALYSIS
from headwise.run.provenance import describe
from headwise.text import Corpus, open_corpus
from headwise.text.known_tasks import known_task
from headwise.text.tasks import Task, read_task

Value = TypeVar("Value")
QUICK_ROWS = 256  # rows of each part of a task that a quick run fine-tunes on


class ReproductionContext:
    """What an entry works with.

    Attributes
    ----------
    model : HeadModel
        The open model.
    source : HeadModel, str, Path or None
        What it was opened from, for code that opens it again: a hub name or folder, None for the
        built-in model, or the open model itself.
    options : ReproductionOptions
        The options of the reproduction.
    data : DataFolder
        The data sets.
    job : Job
        The job of the paper: its checkpoints, and who is told about progress.
    """

    def __init__(
        self,
        model: HeadModel,
        source: HeadModel | str | Path | None,
        options: ReproductionOptions,
        job: Job,
        finetuned_models: Path,
    ) -> None:
        self.model = model
        self.source = source
        self.options = options
        self.job = job
        self.data = DataFolder(options.data, options.sources)
        self._finetuned_models = finetuned_models
        self._computed: dict[str, Any] = {}

    @property
    def released(self) -> bool:
        """Whether to compute as the authors' released code does."""
        return self.options.variant == RELEASED

    @property
    def seed(self) -> int:
        return self.options.seed

    def sample_size(self, paper_size: int, quick_size: int) -> int:
        """Return the paper's sample size times `scale`, or the small one of a quick run."""
        if self.options.quick:
            return quick_size
        return max(1, round(paper_size * self.options.scale))

    def sample_limit(self, full_size: int, quick_size: int) -> int | None:
        """Return how much of a data set of `full_size` examples to use; None for all of it."""
        if self.options.quick or self.options.scale != 1:
            return self.sample_size(full_size, quick_size)
        return None

    # --- data -------------------------------------------------------------------------------------

    def corpus(self, name: str, limit: int | None = None, **reader_options: Any) -> Corpus:
        """Return a data set as a corpus, at most `limit` examples drawn at random."""

        def read() -> Corpus:
            corpus = open_corpus(
                self.data.spec(name),
                tokenizer=self.model.tokenizer,
                limit=limit,
                seed=self.seed,
                **reader_options,
            )
            if limit is not None:
                # Drawing reads the whole file: keep the drawn examples in memory.
                corpus = Corpus.from_examples(tuple(corpus), corpus.name)
            corpus.description = self.data.source(name) or DATA_SETS[name].title
            return corpus

        return self.compute_once(f"corpus {name} {limit} {sorted(reader_options.items())}", read)

    def built_in_corpus(self, limit: int | None = None) -> Corpus:
        """Return the sentences of the built-in corpus, one or two an example, without its generated
        part."""
        return open_corpus(None, limit=limit, seed=self.seed, prose=self.model.causal).alone()

    def corpus_or_built_in(
        self, name: str, limit: int | None, substitution: str, **reader_options: Any
    ) -> tuple[Corpus, list[str]]:
        """Return a data set as a corpus, or the built-in corpus where the data set is missing.

        The second value is the list of deviations: empty, or the sentence `substitution`.
        """
        if self.data.find(name) is None:
            return self.built_in_corpus(limit), [substitution]
        return self.corpus(name, limit, **reader_options), []

    def task(self, name: str, *, train: bool = True) -> Task:
        """Read a GLUE task from its folder; `train=False` where its dev part suffices."""
        folder = self.data.path(f"glue-{name}" if train else f"glue-{name}-dev")
        read = partial(read_task, name, data=folder, needs_train=train)
        return self.compute_once(f"task {folder} {train}", read)

    def analysis(self, name: str, **parameters: Any) -> Analysis:
        """Make an analysis with a paper's parameters, in the variant of the options where the
        analysis has variants."""
        analysis = make_analysis(name, parameters)
        if "reading" not in analysis.parameters:
            return analysis
        return replace(analysis, reading=self.options.variant)  # type: ignore[type-var]

    # --- stored work ------------------------------------------------------------------------------

    def run_analysis(
        self, corpus: Corpus, analysis: Analysis, *, model: HeadModel | None = None
    ) -> xr.Dataset:
        """Return the result of an analysis over a corpus; a finished run is not repeated.

        Parameters
        ----------
        corpus : Corpus
            The text; all of it is used.
        analysis : Analysis
            The analysis. One that does not apply here raises `NotRunError` with the reason.
        model : HeadModel, optional
            An open model other than the context's.
        """
        model = model or self.model
        seeded = analysis.seeded(self.seed)
        identity = {
            "model": model.identity(),
            "corpus": corpus.fingerprint(),
            "longest": model.encoder.max_length,
            "analysis": seeded.name,
            "parameters": describe(seeded.parameters),
        }
        folder = self.job.started_store.folder / f"under-way-{digest_of(identity)[:16]}.part"
        run = partial(self._run, model, corpus, seeded, folder)
        return self.stored_dataset(f"run-{seeded.name}", identity, run)

    def _run(
        self, model: HeadModel, corpus: Corpus, analysis: Analysis, folder: Path
    ) -> xr.Dataset:
        # The folder's name holds the identity: an unfinished run there is the same run, and resumes.
        options = RunOptions(full=True, seed=self.seed, overwrite=True)
        callbacks = RunCallbacks(self.job.progress, note=self.job.note)
        with Run(Source(model, corpus), [analysis], folder, options, callbacks) as run:
            # The reason under the empty name is that of the whole analysis.
            reasons = []
            for items in run.plan.left_out.values():
                if WHOLE_ANALYSIS in items:
                    reasons.append(items[WHOLE_ANALYSIS])
            if reasons:
                run.job.finish()
                raise NotRunError("; ".join(reasons))
            atlas = run.atlas()
            if run.failures:
                raise UnexpectedError(*run.failures.values())
            run.job.finish()
        return atlas[analysis.name]

    def stored_dataset(
        self, name: str, identity: Mapping[str, Any], make: Callable[[], xr.Dataset]
    ) -> xr.Dataset:
        """Return a dataset from the store, made on the first call; `identity` distinguishes
        datasets of the same name."""
        return self.job.dataset(f"{name}-{digest_of(identity)[:16]}", make)

    def compute_once(self, name: str, make: Callable[[], Value]) -> Value:
        """Return a value that several entries need, computed on the first call and kept in
        memory."""
        if name not in self._computed:
            self._computed[name] = make()
        value: Value = self._computed[name]
        return value

    # --- fine-tuned models ------------------------------------------------------------------------

    def provided_model(self, task: str) -> Path | None:
        """Return the folder that the options give for a model fine-tuned on a task, or None."""
        for name, path in self.options.finetuned.items():
            if known_task(name) is known_task(task):
                return Path(path)
        return None

    def finetuned_folder(self, name: str, recipe: str) -> tuple[Path, str]:
        """Return the folder of the model fine-tuned on a task, provided or trained now, and a
        sentence on which it is."""
        provided = self.provided_model(name)
        if provided is not None:
            return provided, f"{name}: fine-tuned model given ({provided.name})"
        task = self.training_task(name)
        records, folder = self.train(task, recipe)
        record = records[0]
        scores = ", ".join(f"{metric} {value:.3f}" for metric, value in record.metrics.items())
        origin = f"{name}: fine-tuned here on {len(task.train):,} rows, recipe {recipe} ({scores})"
        return folder / record.folder / "model", origin

    def why_nothing_learned(self, name: str, recipe: str = "kovaleva") -> str:
        """Say why the model of a task counts as having learned nothing; empty where it learned
        something, or where a provided model has no predictions beside it."""

        def find_reason() -> str:
            model_folder, _ = self.finetuned_folder(name, recipe)
            path = model_folder.parent / PREDICTIONS
            if not path.is_file():
                return ""
            regression = self.task(name, train=False).regression
            return why_nothing_learned(DevPredictions.read(path, regression))

        return self.compute_once(f"learned {name} {recipe}", find_reason)

    def training_task(self, name: str) -> Task:
        """Return a task to train on: all training rows, the share `scale` of them, or few rows of
        both parts in a quick run."""
        task = self.task(name)
        if self.options.quick:
            return task.limit(QUICK_ROWS, None, QUICK_ROWS, self.seed)
        n_rows = self.sample_size(len(task.train), QUICK_ROWS)
        return task.limit(n_rows, None, None, self.seed)

    def train(
        self,
        task: Task,
        recipe: str,
        start: str = "pretrained",
        seeds: int = 1,
        pooling: str = "last_layer",
    ) -> tuple[list[TrainingRecord], Path]:
        """Fine-tune the model on a task once for each seed; return the records and their folder.

        The folder lies below `finetuned` beside the report and is kept.
        """
        if isinstance(self.source, HeadModel):
            raise NotRunError(
                "an open model cannot be fine-tuned; pass its folder or name, or fine-tuned models",
                option="model",
            )
        identity = {
            "model": self.model.identity(),
            "task": task.fingerprint(),
            "quick": self.options.quick,
        }
        folder = self._finetuned_models / f"{task.name}-{digest_of(identity)[:8]}"
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
        records = finetune(self.source, task, folder, options=options, progress=self.job.progress)
        return records, folder

    @contextmanager
    def open_finetuned(
        self, name: str, recipe: str = "kovaleva"
    ) -> Iterator[tuple[HeadModel, str]]:
        """Open the model fine-tuned on a task; yield it with a sentence on where it comes from."""
        folder, origin = self.finetuned_folder(name, recipe)
        with HeadModel.open(folder, device=self.options.device) as model:
            yield model, origin
