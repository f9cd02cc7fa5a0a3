"""A run of analyses: plan, shards, merge, atlas. An interrupted run resumes when it is repeated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import xarray as xr
from torch import nn

from headwise.analyses.contract import (
    Analysis,
    Experiment,
    Observer,
    OwnCorpusObserver,
    Shape,
    choose_analyses,
)
from headwise.analyses.nulls import RandomNull
from headwise.atlas import Atlas
from headwise.core.errors import AtlasError, HeadwiseError, MissingAnnotationError, OutputError
from headwise.core.failures import Failure, UnexpectedError
from headwise.core.files import check_space
from headwise.core.options import takes_options
from headwise.core.store import Checkpoint, CheckpointStore, as_json
from headwise.core.workers import current
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import Failures, ShardFunction, ShardUnit, fixed_threads, merge_checkpoint
from headwise.run.job import Job
from headwise.run.nulls import RandomModels
from headwise.run.options import AtlasOptions, RunOptions
from headwise.run.plan import WHOLE_ANALYSIS, CorpusPart, Plan, make_plan
from headwise.run.progress import (
    Progress,
    ProgressBars,
    ShardProgress,
    no_progress,
    report_stages,
    stage,
)
from headwise.run.provenance import describe, identity, label, provenance
from headwise.run.source import Source
from headwise.stats.accumulators import State
from headwise.text import Corpus, Spec

# Stages of a run beside those of its analyses.
MODEL_PASS = "model pass"
RANDOM_MODELS = "random models"
RESULTS = "results"


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """Functions that a run calls on its way.

    Parameters
    ----------
    progress : callable, optional
        Called as `progress(what, done, total)`.
    plan : callable, optional
        Called with the `Plan` before the work starts.
    note : callable, optional
        Called with every other sentence a user should read; by default a warning in the log.
    stage : callable, optional
        Called with the name of every stage that begins.
    """

    progress: Progress = no_progress
    plan: Callable[[Plan], None] = _ignore
    note: Callable[[str], None] = logging.getLogger("headwise").warning
    stage: Callable[[str], None] = _ignore


@dataclass(frozen=True, slots=True)
class LocalContext:
    """What an experiment gets to work with."""

    model: HeadModel
    corpus: Corpus
    rows: EncodedCorpus
    shape: Shape
    store: CheckpointStore
    limit: int | None
    progress: Progress


@dataclass(frozen=True, slots=True)
class _ModelPass:
    """One pass of the model over a part of the corpus, and the observers that share it."""

    part: CorpusPart
    observers: list[Observer]
    store: CheckpointStore


class Run:
    """A run of analyses, open from before the work until its result is safe; no other run can use
    its folder in the meantime.

    Parameters
    ----------
    source : Source
        The model and the corpus.
    analyses : sequence of Analysis
        What is computed. Analyses that draw random numbers and have no seed get the run's.
    folder : Job, str, Path or None
        A job with its output target, or the folder of the checkpoints: an interrupted call resumes
        when it is repeated. None for a temporary folder.
    options : RunOptions, optional
        How to run.
    callbacks : RunCallbacks, optional
        What is called on the way.

    Attributes
    ----------
    model, corpus, rows, plan : HeadModel, Corpus, EncodedCorpus, Plan
        What it runs on (`rows`: the corpus as tokens), and what will be done.
    job, store : Job, CheckpointStore
        Its lifecycle and its checkpoints. `job.finish()` deletes them when the result is safe.
    failures : dict of str to Failure
        The analyses that failed unexpectedly, known after `atlas`, which holds all others.

    Examples
    --------
    >>> from headwise.analyses.contract import make_analysis
    >>> with Run(Source(), [make_analysis("surface")], None, RunOptions(limit=2)) as run:
    ...     atlas = run.atlas()
    >>> list(atlas)
    ['surface']
    """

    def __init__(
        self,
        source: Source,
        analyses: Sequence[Analysis],
        folder: Job | str | Path | None,
        options: RunOptions = RunOptions(full=True),
        callbacks: RunCallbacks = RunCallbacks(),  # noqa: B008  (frozen)
    ) -> None:
        self.options = options
        self.callbacks = callbacks
        self.failures: Failures = {}
        self._stack = ExitStack()
        try:
            self.job = self._stack.enter_context(Job.opened(folder, overwrite=options.overwrite))
            self.job.progress = callbacks.progress
            self.job.note = callbacks.note
            self._open(source, analyses)
        except BaseException:
            self.close()
            raise

    def _open(self, source: Source, analyses: Sequence[Analysis]) -> None:
        """Open the model, read the corpus, plan, and start the job or resume it."""
        options = self.options
        self.model = source.open_model()
        if source.opens_model:
            self._stack.callback(self.model.close)
            for note in self.model.notes:
                self.callbacks.note(note)
        self.rows = source.encode(self.model, options.limit, options.seed)
        self.corpus = self.rows.corpus
        seeded = [analysis.seeded(options.seed) for analysis in analyses]
        self.plan = self._make_plan(self.rows, seeded, options.full)
        self.callbacks.plan(self.plan)
        stored = self.job.stored_identity
        self.store = self.job.begin(identity(self.model, self.corpus, self.plan, options, stored))

    def _make_plan(self, rows: EncodedCorpus, analyses: Sequence[Analysis], full: bool) -> Plan:
        return make_plan(self.model, rows, analyses, shard_size=self.options.shard_size, full=full)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder for other processes, and the model; finished work stays there."""
        self._stack.close()

    def same_threads(self) -> AbstractContextManager[None]:
        """Use as many threads as the checkpoints were made with: the same number gives the same
        bytes."""
        return fixed_threads(int(self.store.inherited["threads"]), self.model.device)

    # --- the work ---------------------------------------------------------------------------------

    def atlas(self) -> Atlas:
        """Compute what has no checkpoint yet, and return the atlas of all results."""
        plan = self.plan
        for failure in plan.failures.values():
            self._add_failure(failure)
        # Reported first, so that a display knows from the start all that is to come.
        self.callbacks.progress(RESULTS, 0, len(plan.analyses))
        with self.same_threads(), report_stages(self.callbacks.stage):
            own_corpora = self._own_corpora()
            passes = self._model_passes({*own_corpora, *self.failures})
            computations: dict[str, Callable[[], xr.Dataset]] = {}
            batch_tokens: list[int] = []
            for model_pass in passes:
                with stage(MODEL_PASS, memory=True):
                    states, facts = self._observe(
                        model_pass.part, model_pass.observers, plan, model_pass.store
                    )
                batch_tokens += [shard["batch_tokens"] for shard in facts]
                for observer in model_pass.observers:
                    if observer.name in states:
                        computations[observer.name] = partial(
                            observer.result, states[observer.name], model_pass.part.shape
                        )
            for observer in plan.streaming:
                if observer.name in own_corpora:
                    computations[observer.name] = partial(
                        self._observe_own_corpus, observer, own_corpora[observer.name]
                    )
            for experiment in plan.experiments:
                computations[experiment.name] = partial(self._perform, experiment)

            datasets, left_out = self._compute_all(computations)
            for model_pass in passes:
                with stage(RANDOM_MODELS, memory=True, whole=True):
                    datasets |= self._apply_nulls(model_pass, datasets)
            for analysis in plan.analyses:
                datasets = self._extend(analysis, datasets, left_out)
        labelled = self._label(datasets, left_out)
        about = provenance(self.store, plan, left_out, batch_tokens)
        about["failed"] = {name: failure.error for name, failure in self.failures.items()}
        # As the file will hold it: a page is the same whether its atlas was just made or read.
        return Atlas(labelled, as_json(about))

    def _add_failure(self, failure: Failure) -> None:
        self.failures[failure.what] = failure
        self.callbacks.note(
            f"{failure.what} failed unexpectedly ({failure.error}); the run continues without it"
        )

    @contextmanager
    def _isolated(self, what: str) -> Iterator[None]:
        """Turn an exception of the block into a failure of `what` alone."""
        try:
            yield
        except Exception as error:
            self._add_failure(Failure.of(what, error))

    # --- observers --------------------------------------------------------------------------------

    def _model_passes(self, apart: set[str]) -> list[_ModelPass]:
        """Return the passes that observers share, but for the observers named in `apart`."""
        passes = []
        for part, observers in self.plan.together(apart):
            store = self.store
            if part.rows is not self.rows:
                store = self.store.part(f"corpus-{part.name}")
            passes.append(_ModelPass(part, observers, store))
        return passes

    def _observe(
        self, part: CorpusPart, observers: Sequence[Observer], plan: Plan, store: CheckpointStore
    ) -> tuple[dict[str, State], list[dict[str, Any]]]:
        """Return the states of observers after the whole corpus, and the facts of every shard.

        Shards are merged in their order, so that the sum is always the same. An observer that fails
        in a shard is left out from there on, and has no state in the end. A shard that ends every
        worker which tries it is a failure itself: the states are then those of the others."""
        states: dict[str, State] = {}
        for observer in observers:
            with self._isolated(observer.name):
                states[observer.name] = observer.start(part.shape)

        n_examples = len(part.rows)
        what = "examples"
        if part.rows is not self.rows:
            what = f"examples of {part.name}"
        progress = ShardProgress(self.callbacks.progress, what, n_examples, plan.shard_size)
        function = ShardFunction(
            self.model, part.shape, tuple(observers), self.options.batch_tokens
        )
        units = self._shard_units(part, observers, plan, states)
        results = progress.counting(current().run_units(store, function, units))
        facts: list[dict[str, Any]] = []
        for shard, result in enumerate(results):
            done = min((shard + 1) * plan.shard_size, n_examples)
            progress.finish_shard(done)
            if isinstance(result, Failure):
                first = shard * plan.shard_size + 1
                span = f"examples {first:,} to {done:,} of '{part.name}'"
                self._add_failure(replace(result, what=f"Shard {shard} ({span})"))
                continue
            if not facts:
                _check_space_for_shards(store, result, plan.shards - 1)
            facts.append(result.facts)
            self._merge_shard(shard, result, part, plan, states)
        return states, facts

    def _shard_units(
        self,
        part: CorpusPart,
        observers: Sequence[Observer],
        plan: Plan,
        states: Mapping[str, State],
    ) -> Iterator[tuple[str, ShardUnit]]:
        """Yield the shards; observers that have failed by then (without a state) are not in them."""
        if not observers:
            return
        for shard, block in enumerate(part.rows.blocks(plan.shard_size)):
            active = {observer.name for observer in plan.active(shard)}
            yield f"shard-{shard:06d}", ShardUnit(frozenset(active & states.keys()), block)

    def _merge_shard(
        self,
        shard: int,
        checkpoint: Checkpoint,
        part: CorpusPart,
        plan: Plan,
        states: dict[str, State],
    ) -> None:
        for failure in checkpoint.facts["failed"]:
            # A shard that was computed at the same time may have had the same failure.
            if failure["what"] in states:
                self._add_failure(Failure(**failure))
                del states[failure["what"]]
        for observer in plan.active(shard):
            if observer.name not in states:
                continue
            with self._isolated(observer.name):
                merge_checkpoint(states[observer.name], observer, part.shape, checkpoint.arrays)
            if observer.name in self.failures:
                del states[observer.name]

    def _own_corpora(self) -> dict[str, Corpus]:
        """Return the corpora of observers that need another form of it than the others, each within
        the observer's budget."""
        own_corpora = {}
        for observer in self.plan.streaming:
            if not isinstance(observer, OwnCorpusObserver):
                continue
            rows = self.plan.parts[observer.name].rows
            limited = rows.corpus.limit(self.plan.limits[observer.name])
            with self._isolated(observer.name):
                own_corpus = observer.own_corpus(
                    limited, self.model.encoder, rows.scan.longest, rows.scan.truncated
                )
                if own_corpus is not None:
                    own_corpora[observer.name] = own_corpus
        return own_corpora

    def _observe_own_corpus(self, observer: Observer, corpus: Corpus) -> xr.Dataset:
        """Return the result of an observer that has its own pass over its form of the corpus."""

        def compute() -> xr.Dataset:
            n_failures = len(self.failures)
            rows = EncodedCorpus(corpus.alone(), self.model.encoder)
            plan = self._make_plan(rows, [observer], full=True)
            part = plan.parts[observer.name]
            store = self.store.part(observer.name)
            states, _ = self._observe(part, plan.streaming, plan, store)
            if observer.name in self.failures:
                raise UnexpectedError(self.failures[observer.name])
            if len(self.failures) > n_failures:
                # A shard was left out: the checkpoint of an own pass is complete or not there.
                raise UnexpectedError(*list(self.failures.values())[n_failures:])
            return observer.result(states[observer.name], part.shape)

        return self.store.dataset(f"result-{observer.name}", compute)

    # --- experiments, results, nulls --------------------------------------------------------------

    def _perform(self, experiment: Experiment) -> xr.Dataset:
        """Return the result of an experiment, performed now unless it has a checkpoint."""
        part = self.plan.parts[experiment.name]
        parameters = describe(experiment.parameters)
        context = LocalContext(
            model=self.model,
            corpus=part.rows.corpus,
            rows=part.rows,
            shape=part.shape,
            store=self.store.part(experiment.name, {"parameters": parameters}),
            limit=self.plan.limits[experiment.name],
            progress=self.callbacks.progress,
        )
        return self.store.dataset(f"result-{experiment.name}", lambda: experiment.perform(context))

    def _compute_all(
        self, computations: Mapping[str, Callable[[], xr.Dataset]]
    ) -> tuple[dict[str, xr.Dataset], dict[str, dict[str, str]]]:
        """Return the dataset of every analysis, and what was left out with the reason.

        An analysis that only now turns out not to apply is left out, unless it is the only one. One
        that fails unexpectedly is among the failures, and is not tried again when the run resumes."""
        datasets: dict[str, xr.Dataset] = {}
        left_out = {name: dict(items) for name, items in self.plan.left_out.items()}
        for number, (name, compute) in enumerate(computations.items()):
            self.callbacks.progress(RESULTS, number, len(computations))
            known_failure = self.store.load(f"failed-{name}")
            if known_failure is not None:
                self._add_failure(Failure(**known_failure.facts))
                continue
            try:
                with stage(name, memory=True, whole=True):
                    datasets[name] = compute()
            except (OutputError, AtlasError):
                raise
            except UnexpectedError:
                pass  # of its own pass, where it was noted
            except HeadwiseError as error:
                if len(computations) == 1:
                    raise
                left_out.setdefault(name, {})[WHOLE_ANALYSIS] = str(error).rstrip(".")
            except Exception as error:
                failure = Failure.of(name, error)
                self.store.save(f"failed-{name}", {}, failure.facts())
                self._add_failure(failure)
        self.callbacks.progress(RESULTS, len(computations), len(computations))
        if not datasets and self.failures:
            raise UnexpectedError(*self.failures.values())
        if not datasets:
            reasons = []
            for name, items in left_out.items():
                if WHOLE_ANALYSIS in items:
                    reasons.append(f"{name}: {items[WHOLE_ANALYSIS]}")
            raise MissingAnnotationError("; ".join(reasons) + ".")
        return datasets, left_out

    def _apply_nulls(
        self, model_pass: _ModelPass, datasets: Mapping[str, xr.Dataset]
    ) -> dict[str, xr.Dataset]:
        """Return the results that are compared with random-weights models, with the comparison."""
        analyses = []
        for observer in model_pass.observers:
            if observer.name in datasets and isinstance(observer, RandomNull):
                analyses.append(observer)
        if not analyses:
            return {}
        what = "random-weights models"
        compared: dict[str, xr.Dataset] = {}
        with self._isolated(what):
            models = RandomModels(self.model, model_pass.part, self.plan.limits, self.options.seed)
            try:
                nulls = models.results(
                    analyses, model_pass.store, self.callbacks.note, self.callbacks.progress
                )
            except UnexpectedError as error:  # units that ended their workers
                for failure in error.failures:
                    self._add_failure(replace(failure, what=f"{what} ({failure.what})"))
                return {}
            for analysis in analyses:
                name = analysis.name
                if nulls[name]:
                    compared[name] = analysis.apply_null(datasets[name], nulls[name])
            return compared
        return {}

    def _extend(
        self,
        analysis: Analysis,
        datasets: dict[str, xr.Dataset],
        left_out: dict[str, dict[str, str]],
    ) -> dict[str, xr.Dataset]:
        """Return the datasets with what an analysis adds to those of others; note in `left_out`
        what of it matched nothing."""
        with self._isolated(analysis.name):
            if analysis.name in datasets:
                unmatched = analysis.unmatched(datasets[analysis.name])
                if unmatched:
                    left_out[analysis.name] = left_out.get(analysis.name, {}) | unmatched
            return analysis.extend(datasets)
        return datasets

    def _label(
        self, datasets: Mapping[str, xr.Dataset], left_out: Mapping[str, Mapping[str, str]]
    ) -> dict[str, xr.Dataset]:
        """Return the datasets with where they come from."""
        analyses = {analysis.name: analysis for analysis in self.plan.analyses}
        labelled = {}
        for name, dataset in datasets.items():
            labelled[name] = label(dataset, analyses[name], left_out.get(name, {}))
            labelled[name].attrs["corpus"] = self.plan.parts[name].name
        return labelled


def _check_space_for_shards(store: CheckpointStore, shard: Checkpoint, remaining: int) -> None:
    """Raise an error if the disk has no room for the shards to come, which are as large as one."""
    size = sum(array.nbytes for array in shard.arrays.values())
    check_space(store.folder, size * remaining, f"The other {remaining} shards of this run")


def run_analyses(
    model: HeadModel,
    corpus: Corpus,
    analyses: Sequence[Analysis],
    folder: Job | str | Path | None,
    options: RunOptions = RunOptions(full=True),
    callbacks: RunCallbacks = RunCallbacks(),  # noqa: B008  (frozen)
) -> Atlas:
    """Run analyses over a corpus and return the atlas; see `Run`. Checkpoints stay in the folder."""
    with Run(Source(model, corpus), analyses, folder, options, callbacks) as run:
        return run.atlas()


@takes_options(AtlasOptions)
def make_atlas(
    model: HeadModel | nn.Module | str | Path | None = None,
    corpus: Corpus | Spec | str | Path | None = None,
    analyses: Sequence[str | Analysis] | None = None,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
    options: AtlasOptions,
) -> Atlas:
    """Return an atlas of a model's heads.

    Parameters
    ----------
    model : HeadModel, module of transformers, str, Path or None, default None
        An open model, or a hub name or folder; None for the built-in model.
    corpus : Corpus, str, Path, Spec or None, default None
        An open corpus, or a SPEC as on the command line; None for the built-in corpus.
    analyses : sequence of str or Analysis, optional
        Names or analyses; None for all that apply.
    parameters : mapping, optional
        Parameters by analysis: `{"offsets": {"reach": 20}}`.
    folder : str or Path, optional
        Where checkpoints are kept, so that an interrupted call resumes when it is repeated; None for
        a temporary folder.
    progress : bool or callable, default False
        True for progress bars in a notebook or a terminal, or a function that is called as
        `progress(what, done, total)`.
    options : AtlasOptions, optional
        Or each of its fields as a keyword: `limit`, `full`, `seed`, `shard_size`, `batch_tokens`,
        `overwrite` as in `RunOptions`; `device`, `stack`, `dtype`, `device_map`, `max_length`,
        `overlong`, `parser` as in `SourceOptions`.

    Examples
    --------
    >>> atlas = make_atlas(analyses=["surface"], limit=2)
    >>> dict(atlas["surface"]["entropy"].mean("head").sizes)
    {'layer': 12}
    """
    source = Source(model, corpus, options.source_options())
    chosen = choose_analyses(analyses, parameters)
    with ExitStack() as stack:
        if progress is True:
            callbacks = RunCallbacks(stack.enter_context(ProgressBars()))
        elif progress:
            callbacks = RunCallbacks(progress)
        else:
            callbacks = RunCallbacks()
        run = stack.enter_context(Run(source, chosen, folder, options.run_options(), callbacks))
        return run.atlas()
