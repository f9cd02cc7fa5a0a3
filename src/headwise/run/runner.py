"""One run on one machine: plan, shards, merge, atlas; killed at any moment, the same call goes
on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import xarray as xr

from headwise.analyses.contract import Analysis, Experiment, Observer, Shape
from headwise.analyses.nulls import RandomNull
from headwise.atlas import Atlas
from headwise.core.errors import AtlasError, HeadwiseError, MissingAnnotationError, OutputError
from headwise.core.failures import Failure, UnexpectedError
from headwise.core.files import check_space
from headwise.core.store import CheckpointStore
from headwise.core.workers import current
from headwise.models import HeadModel
from headwise.run.clock import Steps, stage, telling
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import Failures
from headwise.run.job import Job, Progress, no_progress
from headwise.run.nulls import RandomModels
from headwise.run.options import RunOptions
from headwise.run.plan import Part, Plan, make_plan
from headwise.run.provenance import describe, identity, label, provenance
from headwise.run.shard import ShardJob, ShardUnit, fixed_threads, merge_checkpoint
from headwise.run.source import Source
from headwise.stats.accumulators import State
from headwise.text import Corpus

Report = Progress
PASS, RANDOM, RESULTS = (
    "model pass",
    "random models",
    "results",
)  # stages of a run beside those of its analyses


def _silent(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Listener:
    """Whom a run tells how far it is (what, done, total), what is about to be done, whatever else
    must be said, and which stage is at work now."""

    progress: Report = no_progress
    plan: Callable[[Plan], None] = _silent
    note: Callable[[str], None] = logging.getLogger("headwise").warning
    doing: Callable[[str], None] = _silent


@dataclass(frozen=True, slots=True)
class LocalContext:
    """What an experiment gets to work with."""

    model: HeadModel
    corpus: Corpus
    rows: EncodedCorpus
    shape: Shape
    store: CheckpointStore
    limit: int | None
    progress: Report


class Run:
    """One run, open from before the work until its result is safe; as long no other run can have
    its folder.

    Parameters
    ----------
    source : Source
        The model and the corpus.
    analyses : sequence of Analysis
        What is asked; those that draw anything and have no seed of their own get the run's.
    folder : Job, str, Path or None
        A job with its output target, or the folder of the checkpoints: an interrupted call resumes
        when it is repeated. None for a temporary folder. `forget` deletes the checkpoints.
    options : RunOptions, optional
        How to run.
    listener : Listener, optional
        Whom to tell how it goes.

    Attributes
    ----------
    model, corpus, plan, store
        What it runs on (the examples are read once), what will be done, and where its finished
        pieces are kept.
    failures : dict of str to Failure
        The analyses that failed unexpectedly, once `atlas` has been made: it holds the others.

    Examples
    --------
    >>> import tempfile
    >>> from headwise.analyses.contract import make_analysis
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Run(Source(), [make_analysis("surface")], folder, RunOptions(limit=2)) as run:
    ...         atlas = run.atlas()  # save it, draw it: then the pieces are not needed any more
    ...         run.forget()
    >>> list(atlas)
    ['surface']
    """

    def __init__(
        self,
        source: Source,
        analyses: Sequence[Analysis],
        folder: Job | str | Path | None,
        options: RunOptions = RunOptions(full=True),
        listener: Listener = Listener(),  # noqa: B008  (frozen)
    ) -> None:
        self.options, self.listener = options, listener
        if isinstance(folder, Job):
            self.job = folder
        else:
            self.job = Job.in_folder(folder, overwrite=options.overwrite)
        self._job_opened_here = self.job is not folder
        self.job.progress = listener.progress
        self.job.note = listener.note
        self.failures: Failures = {}
        self.model = source.open_model()
        self._opened_here = source.opens_model
        try:
            for note in self.model.notes if self._opened_here else ():
                listener.note(note)
            self._rows = EncodedCorpus(
                source.open_corpus(self.model, options.limit, options.seed), self.model.encoder
            )
            self.corpus = self._rows.corpus
            seeded = [analysis.seeded(options.seed) for analysis in analyses]
            self.plan = self._planned(self._rows, seeded, options.full)
            listener.plan(self.plan)
            self.store = self.job.begin(
                identity(self.model, self.corpus, self.plan, options, self.job.stored_identity)
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others have the folder; what is finished stays there."""
        if self._job_opened_here:
            self.job.close()
        self._close_model()

    def forget(self) -> None:
        """Delete the checkpoints: the result is safe elsewhere."""
        self.job.finish()

    def same_threads(self) -> AbstractContextManager[None]:
        """So many threads as the finished pieces were made with: the same number gives the same
        bytes."""
        return fixed_threads(int(self.store.adopted["threads"]), self.model.device)

    def _close_model(self) -> None:
        if self._opened_here:
            self.model.close()

    def _planned(self, rows: EncodedCorpus, analyses: Sequence[Analysis], full: bool) -> Plan:
        return make_plan(self.model, rows, analyses, shard_size=self.options.shard_size, full=full)

    # --- the work ---------------------------------------------------------------------------------

    def atlas(self) -> Atlas:
        """Do what is not done yet, and label it."""
        plan = self.plan
        for failure in plan.failures.values():
            self._fail(failure)
        self.listener.progress(
            RESULTS, 0, len(plan.analyses)
        )  # all that is to come is in sight from the start
        with self.same_threads(), telling(self.listener.doing):
            views = {a.name: view for a in plan.streaming if (view := self._view(a)) is not None}
            makers: dict[str, Callable[[], xr.Dataset]] = {}
            facts: list[dict[str, Any]] = []
            watched: list[tuple[Part, list[Observer], CheckpointStore]] = []
            for part, together in plan.together({*views, *self.failures}):
                own = (
                    self.store
                    if part.rows is self._rows
                    else self.store.part(f"corpus-{part.name}")
                )
                with stage(PASS, memory=True):
                    states, told = self._stream(part, together, plan, own)
                facts += told
                watched.append((part, together, own))
                makers |= {
                    a.name: partial(a.result, states[a.name], part.shape)
                    for a in together
                    if a.name in states
                }
            makers |= {
                a.name: partial(self._apart, a, views[a.name])
                for a in plan.streaming
                if a.name in views
            }
            makers |= {e.name: partial(self._perform, e) for e in plan.experiments}
            datasets, left_out = self._make_all(makers)
            for part, together, own in watched:
                with stage(RANDOM, memory=True, whole=True):
                    datasets |= self._against_random(
                        part, [a for a in together if a.name in datasets], datasets, own
                    )
            for analysis in plan.analyses:
                datasets = self._finished(analysis, datasets, left_out)
        asked = {a.name: a for a in plan.analyses}
        labelled = {
            name: label(dataset, asked[name], left_out.get(name, {}))
            for name, dataset in datasets.items()
        }
        for name, dataset in labelled.items():
            dataset.attrs["corpus"] = plan.parts[name].name
        about = provenance(self.store, plan, left_out, [fact["batch_tokens"] for fact in facts])
        return Atlas(
            labelled,
            about | {"failed": {name: failure.error for name, failure in self.failures.items()}},
        )

    def _fail(self, failure: Failure) -> None:
        self.failures[failure.what] = failure
        self.listener.note(
            f"{failure.what} failed unexpectedly ({failure.error}); the others go on"
        )

    @contextmanager
    def _apart_from_others(self, what: str) -> Iterator[None]:
        """What fails within is a failure of that alone, and the others go on."""
        try:
            yield
        except Exception as error:
            self._fail(Failure.of(what, error))

    def _finished(
        self,
        analysis: Analysis,
        datasets: dict[str, xr.Dataset],
        left_out: dict[str, dict[str, str]],
    ) -> dict[str, xr.Dataset]:
        """The datasets with what an analysis adds to those of others; what matched nothing goes
        into `left_out`."""
        with self._apart_from_others(analysis.name):
            if analysis.name in datasets and (
                unmatched := analysis.unmatched(datasets[analysis.name])
            ):
                left_out[analysis.name] = left_out.get(analysis.name, {}) | unmatched
            return analysis.extend(datasets)
        return datasets

    def _against_random(
        self,
        part: Part,
        analyses: Sequence[Observer],
        datasets: Mapping[str, xr.Dataset],
        store: CheckpointStore,
    ) -> dict[str, xr.Dataset]:
        """The results of those that want random-weights models beside the model, with these beside
        them."""
        asked = [a for a in analyses if isinstance(a, RandomNull)]
        what = "random-weights models"
        with self._apart_from_others(what):
            models = RandomModels(self.model, part, self.plan.limits, self.options.seed)
            try:
                found = models.results(asked, store, self.listener.note, self.listener.progress)
            except UnexpectedError as error:  # units that ended their workers
                for failure in error.failures:
                    self._fail(replace(failure, what=f"{what} ({failure.what})"))
            else:
                return {
                    a.name: a.apply_null(datasets[a.name], found[a.name])
                    for a in asked
                    if found[a.name]
                }
        return {}

    def _view(self, analysis: Observer) -> Corpus | None:
        """The form of the corpus that an analysis wants for itself; what it may see is limited
        before."""
        rows = self.plan.parts[analysis.name].rows
        scan, limited = rows.scan, rows.corpus.limit(self.plan.limits[analysis.name])
        with self._apart_from_others(analysis.name):
            return analysis.view(limited, self.model.encoder, scan.longest, scan.truncated)
        return None

    def _apart(self, analysis: Observer, view: Corpus) -> xr.Dataset:
        """A pass of its own over its form of the corpus."""

        def make() -> xr.Dataset:
            before = len(self.failures)
            plan = self._planned(
                EncodedCorpus(view.alone(), self.model.encoder), [analysis], full=True
            )
            part = plan.parts[analysis.name]
            states, _ = self._stream(part, plan.streaming, plan, self.store.part(analysis.name))
            if analysis.name in self.failures:
                raise UnexpectedError(self.failures[analysis.name])
            if (
                len(self.failures) > before
            ):  # a shard was set aside: what is kept of an own pass is whole or not there
                raise UnexpectedError(*list(self.failures.values())[before:])
            return analysis.result(states[analysis.name], part.shape)

        return self.store.dataset(f"result-{analysis.name}", make)

    def _perform(self, experiment: Experiment) -> xr.Dataset:
        """Perform an experiment once; a finished one is kept until the run is forgotten."""
        seen = self.plan.parts[experiment.name]
        bench = LocalContext(
            model=self.model,
            corpus=seen.rows.corpus,
            rows=seen.rows,
            shape=seen.shape,
            store=self.store.part(experiment.name, {"parameters": describe(experiment.parameters)}),
            limit=self.plan.limits[experiment.name],
            progress=self.listener.progress,
        )
        return self.store.dataset(f"result-{experiment.name}", lambda: experiment.perform(bench))

    def _stream(
        self, part: Part, analyses: Sequence[Observer], plan: Plan, store: CheckpointStore
    ) -> tuple[dict[str, State], list[dict[str, Any]]]:
        """The states after the whole corpus: shards are added up in their order, so that the sum is
        always the same.

        An analysis that fails in a shard is out from there on, and has no state in the end. A shard
        that ends every worker that tries it is a failure itself: the states are then those of the
        others."""
        rows, shape = part.rows, part.shape
        states: dict[str, State] = {}
        for analysis in analyses:
            with self._apart_from_others(analysis.name):
                states[analysis.name] = analysis.start(shape)

        def units() -> Iterator[tuple[str, ShardUnit]]:
            for shard, block in enumerate(rows.blocks(plan.shard_size) if analyses else ()):
                active = frozenset(a.name for a in plan.active(shard) if a.name in states)
                yield f"shard-{shard:06d}", ShardUnit(active, block)

        job = ShardJob(self.model, shape, tuple(analyses), self.options.batch_tokens)
        facts: list[dict[str, Any]] = []
        what = "examples" if rows is self._rows else f"examples of {part.name}"
        steps = Steps(self.listener.progress, what, len(rows), plan.shard_size)
        for shard, piece in enumerate(steps.following(current().run_units(store, job, units()))):
            done = min((shard + 1) * plan.shard_size, len(rows))
            steps.after(done)
            if isinstance(piece, Failure):
                span = f"examples {shard * plan.shard_size + 1:,} to {done:,} of '{part.name}'"
                self._fail(replace(piece, what=f"Shard {shard} ({span})"))
                continue
            if not facts:
                size = sum(array.nbytes for array in piece.arrays.values())
                check_space(
                    store.folder,
                    size * (plan.shards - 1),
                    f"The other {plan.shards - 1} shards of this run",
                )
            facts.append(piece.facts)
            for failure in piece.facts["failed"]:
                if (
                    failure["what"] in states
                ):  # a shard that was made at the same time may have failed too
                    self._fail(Failure(**failure))
                    del states[failure["what"]]
            for analysis in [a for a in plan.active(shard) if a.name in states]:
                with self._apart_from_others(analysis.name):
                    merge_checkpoint(states[analysis.name], analysis, shape, piece.arrays)
                if analysis.name in self.failures:
                    del states[analysis.name]
        return states, facts

    def _make_all(
        self, makers: Mapping[str, Callable[[], xr.Dataset]]
    ) -> tuple[dict[str, xr.Dataset], dict[str, dict[str, str]]]:
        """The labelled arrays of every analysis, and what was left out.

        One that finds only now that it cannot be done is left out with its reason, unless it is the
        only one; one that fails unexpectedly is among the failures, and is not tried again when the
        run goes on."""
        datasets = {}
        left_out = {name: dict(items) for name, items in self.plan.dropped.items()}
        for number, (name, make) in enumerate(makers.items()):
            self.listener.progress(RESULTS, number, len(makers))
            known = self.store.load(f"failed-{name}")
            if known is not None:
                self._fail(Failure(**known.facts))
                continue
            try:
                with stage(name, memory=True, whole=True):
                    datasets[name] = make()
            except (OutputError, AtlasError):
                raise
            except UnexpectedError:
                pass  # in its own pass, where it is noted
            except HeadwiseError as error:
                if len(makers) == 1:
                    raise
                left_out.setdefault(name, {})[""] = str(error).rstrip(".")
            except Exception as error:
                failure = Failure.of(name, error)
                self.store.save(f"failed-{name}", {}, failure.facts())
                self._fail(failure)
        self.listener.progress(RESULTS, len(makers), len(makers))
        if not datasets and self.failures:
            raise UnexpectedError(*self.failures.values())
        if not datasets:
            reasons = (f"{name}: {items['']}" for name, items in left_out.items() if "" in items)
            raise MissingAnnotationError("; ".join(reasons) + ".")
        return datasets, left_out


def run_analyses(
    model: HeadModel,
    corpus: Corpus,
    analyses: Sequence[Analysis],
    folder: Job | str | Path | None,
    options: RunOptions = RunOptions(full=True),
    listener: Listener = Listener(),  # noqa: B008  (frozen)
) -> Atlas:
    """Run analyses over a corpus and return the atlas; see `Run`. What is finished stays in the
    folder."""
    with Run(Source(model, corpus), analyses, folder, options, listener) as run:
        return run.atlas()
