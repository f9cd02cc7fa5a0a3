"""A run of analyses: plan, shards, merge, atlas. An interrupted run resumes when it is repeated.

An atlas grows in rounds (`run.growth`): the work is a list of steps, in the order of what they are
worth for their cost, and whenever a round ends, an atlas of all that is done is passed on. The
checkpoints are those of the steps, whatever the rounds are; so are the bytes of the finished atlas.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
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
from headwise.core.failures import Failure, UnexpectedError, isolated
from headwise.core.files import check_space
from headwise.core.interrupts import (
    Interrupted,
    TimeIsUp,
    concluding,
    raise_if_interrupted,
    stopping_at,
)
from headwise.core.memory import return_freed_memory
from headwise.core.options import part_of, takes_options
from headwise.core.store import Checkpoint, CheckpointStore, as_json
from headwise.core.workers import current
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import Failures, ShardFunction, ShardUnit, merge_checkpoint
from headwise.run.growth import RoundClock, Step, Unfinished, brief, in_order
from headwise.run.job import Job
from headwise.run.nulls import INPUTS, RandomModels
from headwise.run.options import (
    GrowingAtlasOptions,
    GrowthOptions,
    RunOptions,
    SourceOptions,
)
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
ROUND = "end of a round"
# Runs that show nothing before all is done.
ONE_ROUND = GrowthOptions(rounds=1)


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
    round : callable, optional
        Called with the atlas of all that is done, whenever a round ends before the last, and when
        the run is stopped.
    """

    progress: Progress = no_progress
    plan: Callable[[Plan], None] = _ignore
    note: Callable[[str], None] = logging.getLogger("headwise").warning
    stage: Callable[[str], None] = _ignore
    round: Callable[[Atlas], None] | None = None


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


@dataclass(slots=True, eq=False)
class _ModelPass:
    """One pass of the model over a part of the corpus, and the observers that share it.

    It is made in one or more stretches of shards.

    Attributes
    ----------
    name : str
        What the names of its checkpoints begin with.
    what : str
        What progress counts.
    states : dict of str to State
        Of the observers that have not failed, after the shards so far.
    facts : list of dict
        Of every shard.
    shards_done : int
        How many shards are in the states.
    is_merging : bool
        Whether a shard is being added to the states: where that is interrupted, they are worth
        nothing.
    stored : set of str
        The names of the checkpoints that were there before.
    """

    part: CorpusPart
    observers: Sequence[Observer]
    plan: Plan
    store: CheckpointStore
    name: str = "shard"
    what: str = "examples"
    states: dict[str, State] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    shards_done: int = 0
    is_merging: bool = False
    stored: set[str] = field(default_factory=set)

    @property
    def passes_per_example(self) -> float:
        """What an example takes, roughly, in passes of the model."""
        return max(observer.typical_passes for observer in self.observers)

    @property
    def n_shards(self) -> int:
        """How many shards any of the observers reads."""
        return -(-self.n_examples // self.plan.shard_size)

    @property
    def n_examples(self) -> int:
        """How many examples any of the observers reads."""
        return max((self.examples_of(observer) for observer in self.observers), default=0)

    @property
    def examples_done(self) -> int:
        """How many examples are in the states."""
        return min(self.shards_done * self.plan.shard_size, self.n_examples)

    def examples_of(self, observer: Observer) -> int:
        """Return how many examples an observer reads: its budget, rounded up to whole shards."""
        limit = self.plan.limits[observer.name]
        if limit is None:
            return len(self.part.rows)
        size = self.plan.shard_size
        return min(-(-limit // size) * size, len(self.part.rows))


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
    growth : GrowthOptions, optional
        In how many rounds the atlas grows, and when it stops; by default in one.

    Attributes
    ----------
    model, corpus, rows, plan : HeadModel, Corpus, EncodedCorpus, Plan
        What it runs on (`rows`: the corpus as tokens), and what will be done.
    job, store : Job, CheckpointStore
        Its lifecycle and its checkpoints. `job.finish()` deletes them when the result is safe.
    deadline : float or None
        The `time.monotonic()` at which it stops, where it has so many minutes.
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
        callbacks: RunCallbacks = RunCallbacks(),
        growth: GrowthOptions = ONE_ROUND,
    ) -> None:
        self.options = options
        self.callbacks = callbacks
        self.growth = growth
        self.failures: Failures = {}
        self.deadline: float | None = None
        if growth.minutes is not None:
            self.deadline = time.monotonic() + 60 * growth.minutes
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
        # New modules draw their weights from torch's random generator: afterwards its state is as
        # before. (The job sees to the number of threads.)
        cuda_devices = [self.model.device] if self.model.device.type == "cuda" else []
        self._stack.enter_context(torch.random.fork_rng(devices=cuda_devices))

    def _make_plan(self, rows: EncodedCorpus, analyses: Sequence[Analysis], full: bool) -> Plan:
        return make_plan(self.model, rows, analyses, shard_size=self.options.shard_size, full=full)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder for other processes, and the model; finished work stays there."""
        self._stack.close()

    # --- the work ---------------------------------------------------------------------------------

    def atlas(self) -> Atlas:
        """Compute what has no checkpoint yet, and return the atlas of all results.

        After the minutes of `growth` it is the atlas of what is done by then, and says so
        (`provenance["unfinished"]`)."""
        plan = self.plan
        for failure in plan.failures.values():
            self._add_failure(failure)
        # Reported first, so that a display knows from the start all that is to come.
        self.callbacks.progress(RESULTS, 0, len(plan.analyses))
        with report_stages(self.callbacks.stage):
            self._prepare()
            try:
                self._work()
            except TimeIsUp as stopped:
                with concluding():
                    atlas = self._show(stopped)
                if atlas is None:
                    raise HeadwiseError(
                        f"Nothing can be shown after {self.growth.minutes:g} minutes; "
                        "allow more of them."
                    ) from None
                return atlas
            except (Interrupted, KeyboardInterrupt) as stopped:
                # The steps that are done are a result too.
                if self.callbacks.round is not None:
                    with concluding():
                        self._show(stopped)
                raise
            self._check_results()
            datasets = self._datasets
            for analysis in plan.analyses:
                datasets = self._extend(analysis, datasets, self._left_out)
        return self._atlas_of(datasets, self._analyses, self._left_out)

    def _atlas_of(
        self,
        datasets: Mapping[str, xr.Dataset],
        analyses: Mapping[str, Analysis],
        left_out: Mapping[str, Mapping[str, str]],
        unfinished: Unfinished | None = None,
    ) -> Atlas:
        """Return datasets as an atlas that says where they come from."""
        labelled = {}
        for name, dataset in datasets.items():
            labelled[name] = label(dataset, analyses[name], left_out.get(name, {}))
            labelled[name].attrs["corpus"] = self.plan.parts[name].name
        batch_tokens = []
        for model_pass in self._passes:
            batch_tokens += [shard["batch_tokens"] for shard in model_pass.facts]
        about = provenance(self.store, self.plan, left_out, batch_tokens)
        about["failed"] = {name: failure.error for name, failure in self.failures.items()}
        if unfinished is not None:
            about["unfinished"] = unfinished.facts()
        # As the file will hold it: a page is the same whether its atlas was just made or read.
        return Atlas(labelled, as_json(about))

    # --- steps ------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make the list of steps, with nothing done yet."""
        plan = self.plan
        self._clock = RoundClock(self.growth.rounds)
        self._in_first_round = True
        self._stored = set(self.store.names())
        self._analyses = {analysis.name: analysis for analysis in plan.analyses}
        self._datasets: dict[str, xr.Dataset] = {}
        self._first_parts: dict[str, tuple[Analysis, xr.Dataset]] = {}
        self._left_out = {name: dict(items) for name, items in plan.left_out.items()}
        self._compared: set[str] = set()
        self._n_results = 0
        own_corpora = self._own_corpora()
        self._passes = self._model_passes({*own_corpora, *self.failures})
        self._n_computations = len(own_corpora) + len(plan.experiments)
        self._n_computations += sum(len(each.observers) for each in self._passes)

        self._steps: list[Step] = []
        for model_pass in self._passes:
            self._add_pass(model_pass)
        for observer in plan.streaming:
            if observer.name in own_corpora:
                corpus = own_corpora[observer.name]
                compute = partial(self._observe_own_corpus, observer, corpus)
                cost = float(len(plan.parts[observer.name].rows))
                self._add_step(
                    partial(self._compute, observer.name, compute),
                    cost,
                    observer.worth,
                    checkpoint=f"result-{observer.name}",
                )
        for experiment in plan.experiments:
            self._add_experiment(experiment)

    def _add_step(
        self,
        perform: Callable[[], None],
        cost: float,
        worth: float = 1.0,
        after: Step | None = None,
        early: bool = False,
        checkpoint: str = "",
    ) -> Step:
        step = Step(perform, cost, worth, after, early, restored=checkpoint in self._stored)
        self._steps.append(step)
        return step

    def _add_pass(self, model_pass: _ModelPass) -> None:
        """Add the steps of a pass: its first shards, the others, results, random models."""
        if not model_pass.observers:
            return
        total = model_pass.n_examples
        apart = all(observer.apart for observer in model_pass.observers)
        step: Step | None = None
        n_first = 0
        if self._is_growing and not apart:
            # As many shards as are computed at the same time.
            first_shards = max(1, current().count)
            n_first = min(first_shards * self.plan.shard_size, total)
            observe = partial(self._observe, model_pass, first_shards)
            step = self._add_step(observe, n_first, early=True)
        if n_first < total:
            observe = partial(self._observe, model_pass)
            cost = model_pass.passes_per_example * (total - n_first)
            worth = sum(observer.worth for observer in model_pass.observers)
            step = self._add_step(observe, cost, worth, after=step)
        is_early = step is not None and step.early
        step = self._add_step(
            partial(self._compute_results, model_pass), 0.0, after=step, early=is_early
        )
        n_models = self._random_counts(model_pass)
        if any(n_models.values()):
            cost = float(max(n_models.values()) * min(INPUTS, total))
            compare = partial(self._compare_with_random_models, model_pass)
            self._add_step(compare, cost, worth=len(n_models), after=step)

    def _random_counts(self, model_pass: _ModelPass) -> dict[str, int]:
        """Return with how many random-weights models each analysis of a pass is compared."""
        analyses = [each for each in model_pass.observers if isinstance(each, RandomNull)]
        if not analyses:
            return {}
        models = RandomModels(self.model, model_pass.part, self.plan.limits, self.options.seed)
        return models.n_models(analyses)

    def _add_experiment(self, experiment: Experiment) -> None:
        """Add the steps of an experiment: its first part, where it has one, and all of it."""
        n_examples = len(self.plan.parts[experiment.name].rows)
        limit = self.plan.limits[experiment.name]
        if limit is not None:
            n_examples = min(limit, n_examples)
        first_part = experiment.first_part()
        if first_part is not None and self._is_growing:
            perform = partial(self._perform_first_part, experiment, first_part)
            self._add_step(perform, 0.0, early=True)
        compute = partial(self._perform, experiment)
        self._add_step(
            partial(self._compute, experiment.name, compute),
            experiment.passes(n_examples),
            experiment.worth,
            checkpoint=f"result-{experiment.name}",
        )

    @property
    def _is_growing(self) -> bool:
        """Whether there is a first round, before all is done."""
        has_rounds = self.callbacks.round is not None and self._clock.wanted
        return has_rounds or self.deadline is not None

    def _work(self) -> None:
        """Do the steps; after the first round not beyond the deadline."""
        for step in in_order(self._steps):
            if not step.early and self._has_something:
                self._in_first_round = False
                self._end_round()
            deadline = None
            if not self._in_first_round and self.deadline is not None:
                # What is done by then has to be written too.
                deadline = self.deadline - self._clock.cost
            work_before = self._clock.work_done
            with stopping_at(deadline):
                raise_if_interrupted()
                step.perform()
            # What a step has freed would stay with the process while the next one takes its own.
            return_freed_memory()
            # The shards of a pass have been counted one by one.
            rest = step.cost - (self._clock.work_done - work_before)
            self._clock.advance(max(rest, 0.0), step.restored)

    @property
    def _has_something(self) -> bool:
        """Whether there is anything to show."""
        any_shard = any(model_pass.shards_done for model_pass in self._passes)
        return any_shard or bool(self._datasets or self._first_parts)

    def _end_round(self) -> None:
        """Pass on the atlas of what is done, if it is time for that."""
        if self.callbacks.round is None or self._in_first_round:
            return
        if self._clock.is_due:
            self._show()

    def _show(self, stopped: BaseException | None = None) -> Atlas | None:
        """Pass on the atlas of what is done, and return it; None if there is nothing yet."""
        began = time.monotonic()
        with stage(ROUND, whole=True):
            atlas = self._unfinished_atlas(stopped)
            if atlas is None:
                return None
            if self.callbacks.round is not None:
                self.callbacks.round(atlas)
        self._clock.end_round(began)
        return atlas

    # --- what is done so far ----------------------------------------------------------------------

    def _unfinished_atlas(self, stopped: BaseException | None = None) -> Atlas | None:
        """Return the atlas of what is done so far; None if there is nothing yet."""
        datasets = dict(self._datasets)
        analyses = dict(self._analyses)
        about = self._unfinished(stopped)
        for model_pass in self._passes:
            if not model_pass.shards_done:
                continue
            for observer in model_pass.observers:
                if observer.name in datasets or observer.name not in model_pass.states:
                    continue
                dataset = self._result_so_far(model_pass, observer)
                if dataset is None:
                    continue
                datasets[observer.name] = dataset
                total = model_pass.examples_of(observer)
                if model_pass.examples_done < total:
                    about.partial[observer.name] = [model_pass.examples_done, total]
        for name, (first_part, dataset) in self._first_parts.items():
            if name not in datasets:
                datasets[name] = dataset
                analyses[name] = first_part
                about.first_parts[name] = brief(first_part.title)
        if not datasets:
            return None
        for analysis in self.plan.analyses:
            name = analysis.name
            left_out = self._left_out.get(name, {})
            if (
                name not in datasets
                and name not in self.failures
                and WHOLE_ANALYSIS not in left_out
            ):
                about.to_come[name] = brief(analysis.title)
        for model_pass in self._passes:
            for name, count in self._random_counts(model_pass).items():
                if count and name in datasets and name not in self._compared:
                    about.without_random_models.append(name)
        for analysis in self.plan.analyses:
            if analysis.name in datasets:
                # What others add needs them: it may not be there yet.
                with _ignoring_errors():
                    datasets = analysis.extend(datasets)
        return self._atlas_of(datasets, analyses, self._left_out, about)

    def _unfinished(self, stopped: BaseException | None) -> Unfinished:
        """Return how far the run is."""
        total = sum(step.cost for step in self._steps)
        about = Unfinished(
            round=self._clock.count + 1,
            done=min(self._clock.work_done / max(total, 1e-9), 1.0),
            seconds_left=self._clock.seconds_left(total),
        )
        for model_pass in self._passes:
            if model_pass.name == "shard" and model_pass.observers:
                counts = [model_pass.examples_done, model_pass.n_examples]
                about.examples[model_pass.part.name] = counts
        if isinstance(stopped, TimeIsUp):
            about.stopped = f"after {self.growth.minutes:g} minutes"
        elif stopped is not None:
            about.stopped = "by a signal"
        return about

    def _result_so_far(self, model_pass: _ModelPass, observer: Observer) -> xr.Dataset | None:
        """Return the result of an observer on the examples so far; None if they are too few."""
        shape = model_pass.part.shape
        # A result may sort or complete its state: it gets a copy.
        state = observer.start(shape)
        if model_pass.is_merging:
            for shard in range(model_pass.shards_done):
                active = {each.name for each in model_pass.plan.active(shard)}
                if observer.name not in active:
                    continue  # beyond its budget: the checkpoint holds nothing of it
                checkpoint = model_pass.store.load(_shard_name(model_pass, shard))
                if checkpoint is not None:
                    merge_checkpoint(state, observer, shape, checkpoint.arrays)
        else:
            arrays = model_pass.states[observer.name].arrays()
            state.load({name: array.copy() for name, array in arrays.items()})
        with _ignoring_errors():
            return observer.result(state, shape)
        return None

    def _add_failure(self, failure: Failure) -> None:
        self.failures[failure.what] = failure
        self.callbacks.note(
            f"{failure.what} failed unexpectedly ({failure.error}); the run continues without it"
        )

    # --- observers --------------------------------------------------------------------------------

    def _model_passes(self, without: set[str]) -> list[_ModelPass]:
        """Return the passes: those that observers share, and one for each observer that is dear;
        without the observers named in `without`."""
        passes = []
        for part, observers in self.plan.together(without):
            store = self.store
            of_part = ""
            if part.rows is not self.rows:
                store = self.store.part(f"corpus-{part.name}")
                of_part = f" of {part.name}"
            sharing = [observer for observer in observers if not observer.apart]
            passes.append(_ModelPass(part, sharing, self.plan, store, what=f"examples{of_part}"))
            for observer in observers:
                if observer.apart:
                    name = f"{observer.name}-shard"
                    what = f"examples{of_part} ({observer.name})"
                    passes.append(_ModelPass(part, [observer], self.plan, store, name, what))
        for model_pass in passes:
            self._start(model_pass)
        return passes

    def _start(self, model_pass: _ModelPass) -> None:
        model_pass.stored = set(model_pass.store.names())
        for observer in model_pass.observers:
            with isolated(observer.name, self._add_failure):
                model_pass.states[observer.name] = observer.start(model_pass.part.shape)

    def _observe(self, model_pass: _ModelPass, stop: int | None = None) -> None:
        """Observe the next shards of a pass, up to the shard `stop`, by default all.

        Shards are merged in their order, so that the sum is always the same. An observer that fails
        in a shard is left out from there on, and has no state in the end. A shard that ends every
        worker which tries it is a failure itself: the states are then those of the others."""
        n_shards = model_pass.n_shards
        stop = n_shards if stop is None else min(stop, n_shards)
        shards = range(model_pass.shards_done, stop)
        size = model_pass.plan.shard_size
        progress = ShardProgress(
            self._report, model_pass.what, model_pass.n_examples, size, model_pass.examples_done
        )
        function = ShardFunction(
            self.model,
            model_pass.part.shape,
            tuple(model_pass.observers),
            self.options.batch_tokens,
        )
        units = self._shard_units(model_pass, shards)
        with stage(MODEL_PASS, memory=True):
            results = current().run_units(model_pass.store, function, units)
            for shard, result in zip(shards, progress.counting(results), strict=True):
                done = min((shard + 1) * size, model_pass.n_examples)
                if isinstance(result, Failure):
                    span = f"examples {shard * size + 1:,} to {done:,} of '{model_pass.part.name}'"
                    self._add_failure(replace(result, what=f"Shard {shard} ({span})"))
                else:
                    if not model_pass.facts:
                        _check_space_for_shards(model_pass.store, result, n_shards - 1)
                    self._merge_shard(model_pass, shard, result)
                    model_pass.facts.append(result.facts)
                model_pass.shards_done = shard + 1
                progress.finish_shard(done)
                self._count_shard(model_pass, done - shard * size)
                if shard + 1 < stop:
                    self._end_round()

    def _count_shard(self, model_pass: _ModelPass, n_examples: int) -> None:
        """Count the work of the last shard of a pass."""
        name = _shard_name(model_pass, model_pass.shards_done - 1)
        work = n_examples * model_pass.passes_per_example
        self._clock.advance(work, restored=name in model_pass.stored)

    def _shard_units(
        self, model_pass: _ModelPass, shards: range
    ) -> Iterator[tuple[str, ShardUnit]]:
        """Yield the shards; observers that have failed by then (without a state) are not in them."""
        plan = model_pass.plan
        blocks = model_pass.part.rows.blocks(plan.shard_size)
        for shard, block in enumerate(islice(blocks, shards.start, shards.stop), shards.start):
            active = {observer.name for observer in plan.active(shard)}
            unit = ShardUnit(frozenset(active & model_pass.states.keys()), block)
            yield _shard_name(model_pass, shard), unit

    def _merge_shard(self, model_pass: _ModelPass, shard: int, checkpoint: Checkpoint) -> None:
        states = model_pass.states
        shape = model_pass.part.shape
        model_pass.is_merging = True
        for failure in checkpoint.facts["failed"]:
            # A shard that was computed at the same time may have had the same failure.
            if failure["what"] in states:
                self._add_failure(Failure(**failure))
                del states[failure["what"]]
        for observer in model_pass.plan.active(shard):
            if observer.name not in states:
                continue
            with isolated(observer.name, self._add_failure):
                merge_checkpoint(states[observer.name], observer, shape, checkpoint.arrays)
            if observer.name in self.failures:
                del states[observer.name]
        model_pass.is_merging = False

    def _compute_results(self, model_pass: _ModelPass) -> None:
        """Compute the results of the observers of a pass that is done."""
        shape = model_pass.part.shape
        for observer in model_pass.observers:
            if observer.name in model_pass.states:
                state = model_pass.states[observer.name]
                self._compute(observer.name, partial(observer.result, state, shape))

    def _own_corpora(self) -> dict[str, Corpus]:
        """Return the corpora of observers that need another form of it than the others, each within
        the observer's budget."""
        own_corpora = {}
        for observer in self.plan.streaming:
            if not isinstance(observer, OwnCorpusObserver):
                continue
            rows = self.plan.parts[observer.name].rows
            limited = rows.corpus.limit(self.plan.limits[observer.name])
            with isolated(observer.name, self._add_failure):
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
            what = f"examples of {part.name}"
            model_pass = _ModelPass(part, plan.streaming, plan, store, what=what)
            self._start(model_pass)
            self._observe(model_pass)
            if observer.name in self.failures:
                raise UnexpectedError(self.failures[observer.name])
            if len(self.failures) > n_failures:
                # A shard was left out: the checkpoint of an own pass is complete or not there.
                raise UnexpectedError(*list(self.failures.values())[n_failures:])
            return observer.result(model_pass.states[observer.name], part.shape)

        return self.store.dataset(f"result-{observer.name}", compute)

    # --- experiments, results, nulls --------------------------------------------------------------

    def _context(self, experiment: Experiment) -> LocalContext:
        """Return what an experiment works with."""
        part = self.plan.parts[experiment.name]
        parameters = describe(experiment.parameters)
        return LocalContext(
            model=self.model,
            corpus=part.rows.corpus,
            rows=part.rows,
            shape=part.shape,
            store=self.store.part(experiment.name, {"parameters": parameters}),
            limit=self.plan.limits[experiment.name],
            progress=self._report,
        )

    def _report(self, what: str, done: int, total: int) -> None:
        """Report progress; after the deadline, stop the work."""
        self.callbacks.progress(what, done, total)
        raise_if_interrupted()

    def _perform(self, experiment: Experiment) -> xr.Dataset:
        """Return the result of an experiment, performed now unless it has a checkpoint."""
        context = self._context(experiment)
        return self.store.dataset(f"result-{experiment.name}", lambda: experiment.perform(context))

    def _perform_first_part(self, experiment: Experiment, first_part: Experiment) -> None:
        """Perform the first part of an experiment on the checkpoints of the whole one.

        What goes wrong is left to the whole one."""
        if self.store.has(f"result-{experiment.name}"):
            return
        context = self._context(experiment)
        with _ignoring_errors(), stage(experiment.name, memory=True, whole=True):
            self._first_parts[experiment.name] = (first_part, first_part.perform(context))

    def _compute(self, name: str, compute: Callable[[], xr.Dataset]) -> None:
        """Compute the dataset of an analysis, or note why it is left out.

        An analysis that only now turns out not to apply is left out, unless it is the only one. One
        that fails unexpectedly is among the failures, and is not tried again when the run resumes."""
        self.callbacks.progress(RESULTS, self._n_results, self._n_computations)
        self._n_results += 1
        known_failure = self.store.load(f"failed-{name}")
        if known_failure is not None:
            self._add_failure(Failure(**known_failure.facts))
            return
        try:
            with stage(name, memory=True, whole=True):
                self._datasets[name] = compute()
        except (OutputError, AtlasError):
            raise
        except UnexpectedError:
            pass  # of its own pass, where it was noted
        except HeadwiseError as error:
            if self._n_computations == 1:
                raise
            self._left_out.setdefault(name, {})[WHOLE_ANALYSIS] = str(error).rstrip(".")
        except Exception as error:
            failure = Failure.of(name, error)
            self.store.save(f"failed-{name}", {}, failure.facts())
            self._add_failure(failure)

    def _check_results(self) -> None:
        """Raise an error if nothing has a result."""
        self.callbacks.progress(RESULTS, self._n_computations, self._n_computations)
        if not self._datasets and self.failures:
            raise UnexpectedError(*self.failures.values())
        if not self._datasets:
            reasons = []
            for name, items in self._left_out.items():
                if WHOLE_ANALYSIS in items:
                    reasons.append(f"{name}: {items[WHOLE_ANALYSIS]}")
            raise MissingAnnotationError("; ".join(reasons) + ".")

    def _compare_with_random_models(self, model_pass: _ModelPass) -> None:
        """Add the comparison with random-weights models to the results of a pass."""
        analyses = []
        for observer in model_pass.observers:
            if observer.name in self._datasets and isinstance(observer, RandomNull):
                analyses.append(observer)
        if not analyses:
            return
        what = "random-weights models"
        with stage(RANDOM_MODELS, memory=True, whole=True), isolated(what, self._add_failure):
            models = RandomModels(self.model, model_pass.part, self.plan.limits, self.options.seed)
            try:
                nulls = models.results(
                    analyses, model_pass.store, self.callbacks.note, self._report
                )
            except UnexpectedError as error:  # units that ended their workers
                for failure in error.failures:
                    self._add_failure(replace(failure, what=f"{what} ({failure.what})"))
                return
            compared: dict[str, xr.Dataset] = {}
            for analysis in analyses:
                name = analysis.name
                if nulls[name]:
                    compared[name] = analysis.apply_null(self._datasets[name], nulls[name])
            self._datasets |= compared
            self._compared |= nulls.keys()

    def _extend(
        self,
        analysis: Analysis,
        datasets: dict[str, xr.Dataset],
        left_out: dict[str, dict[str, str]],
    ) -> dict[str, xr.Dataset]:
        """Return the datasets with what an analysis adds to those of others; note in `left_out`
        what of it matched nothing."""
        with isolated(analysis.name, self._add_failure):
            if analysis.name in datasets:
                unmatched = analysis.unmatched(datasets[analysis.name])
                if unmatched:
                    left_out[analysis.name] = left_out.get(analysis.name, {}) | unmatched
            return analysis.extend(datasets)
        return datasets


def _shard_name(model_pass: _ModelPass, shard: int) -> str:
    """Return the name of the checkpoint of a shard."""
    return f"{model_pass.name}-{shard:06d}"


@contextmanager
def _ignoring_errors() -> Iterator[None]:
    """Ignore errors of a block that is tried before all its input is there: where something is
    wrong, the finished atlas will say so. Errors of the disk are raised."""
    try:
        yield
    except (OutputError, AtlasError):
        raise
    except Exception:
        logging.getLogger("headwise").debug("not in this round", exc_info=True)


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
    callbacks: RunCallbacks = RunCallbacks(),
) -> Atlas:
    """Run analyses over a corpus and return the atlas; see `Run`. Checkpoints stay in the folder."""
    with Run(Source(model, corpus), analyses, folder, options, callbacks) as run:
        return run.atlas()


@takes_options(GrowingAtlasOptions)
def make_atlas(
    model: HeadModel | nn.Module | str | Path | None = None,
    corpus: Corpus | Spec | str | Path | None = None,
    analyses: Sequence[str | Analysis] | None = None,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
    on_round: Callable[[Atlas], None] | None = None,
    options: GrowingAtlasOptions,
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
    on_round : callable, optional
        Called with an atlas of what is done so far, whenever a round ends before the last: few
        examples and the analyses of most worth for their cost come first. What it lacks is in its
        `provenance["unfinished"]`. The atlas that is returned is the same with and without it.
    options : GrowingAtlasOptions, optional
        Or each of its fields as a keyword: `rounds`, `minutes` as in `GrowthOptions`; `limit`,
        `full`, `seed`, `shard_size`, `batch_tokens`, `overwrite` as in `RunOptions`; `device`,
        `stack`, `dtype`, `device_map`, `max_length`, `overlong`, `parser` as in `SourceOptions`.

    Examples
    --------
    >>> atlas = make_atlas(analyses=["surface"], limit=2)
    >>> dict(atlas["surface"]["entropy"].mean("head").sizes)
    {'layer': 12}

    After so many minutes, what is done by then (with a folder, the same call continues):

    >>> atlas = make_atlas(minutes=5, folder="run")  # doctest: +SKIP
    >>> atlas.provenance.get("unfinished", {}).get("to_come")  # doctest: +SKIP
    """
    source = Source(model, corpus, part_of(options, SourceOptions))
    chosen = choose_analyses(analyses, parameters)
    with ExitStack() as stack:
        if progress is True:
            callbacks = RunCallbacks(stack.enter_context(ProgressBars()), round=on_round)
        elif progress:
            callbacks = RunCallbacks(progress, round=on_round)
        else:
            callbacks = RunCallbacks(round=on_round)
        growth = part_of(options, GrowthOptions)
        run = stack.enter_context(
            Run(source, chosen, folder, part_of(options, RunOptions), callbacks, growth)
        )
        return run.atlas()
