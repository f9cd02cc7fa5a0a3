"""What a run would take, before it is run: a short calibration on a few examples, by analysis."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pandas as pd
from torch import nn

from headwise.analyses.contract import (
    Analysis,
    Experiment,
    Observer,
    OwnPassObserver,
    choose_analyses,
)
from headwise.analyses.nulls import RandomNull
from headwise.core.checks import at_least
from headwise.core.errors import HeadwiseError
from headwise.core.options import takes_options
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batches
from headwise.run.extrapolation import CostLine, extrapolate_fit
from headwise.run.nulls import RandomModels
from headwise.run.options import AtlasOptions, RunOptions
from headwise.run.plan import CorpusPart, make_plan
from headwise.run.progress import Clock, Usage, peak_memory, report_stages, reset_peak_memory, stage
from headwise.run.runner import MODEL_PASS, RANDOM_MODELS, LocalContext, Run, RunCallbacks
from headwise.run.source import Source
from headwise.stats.accumulators import State
from headwise.text import Corpus, Spec
from headwise.text.encode import Encoded, batches

T = TypeVar("T")
SAMPLE = 16  # examples of a calibration
PATIENCE = 20.0  # seconds after which work that reports its progress is stopped
# Seconds of the first try of an experiment from which on the second try is on an eighth of the
# examples, not on a quarter.
LONG = 60.0
OPENING = "opening"
# A state is merged with itself until it has so many times the examples, to see how the time of its
# result grows.
STATE_GROWTH = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """What one stage of a run would take.

    `seconds` is wall-clock time as this machine is now, `cpu_seconds` processor time; `memory` is
    the peak in bytes: of the GPU, or of the process with the model in it."""

    stage: str
    examples: int
    seconds: float
    cpu_seconds: float
    memory: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run would take, by stage: `opening` the model and reading the corpus, the `model pass`
    that all analyses share, what each analysis adds to it, and the `random models` beside it. The
    page of an atlas is not included."""

    stages: tuple[Cost, ...]
    examples: int
    tokens: int

    @property
    def seconds(self) -> float:
        """Wall-clock time of all stages."""
        return sum(cost.seconds for cost in self.stages)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all stages."""
        return sum(cost.cpu_seconds for cost in self.stages)

    @property
    def memory(self) -> int:
        """The largest peak memory of any stage, in bytes."""
        return max(cost.memory for cost in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        return {
            "examples": self.examples,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "memory": self.memory,
            "stages": [asdict(cost) for cost in self.stages],
        }

    def table(self) -> pd.DataFrame:
        """Return a row for each stage, the longest first."""
        longest_first = sorted(self.stages, key=lambda cost: -cost.seconds)
        return pd.DataFrame([asdict(cost) for cost in longest_first])


@takes_options(AtlasOptions)
def plan(
    model: HeadModel | nn.Module | str | Path | None = None,
    corpus: Corpus | Spec | str | Path | None = None,
    analyses: Sequence[str | Analysis] | None = None,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    sample: int = SAMPLE,
    options: AtlasOptions,
) -> Costs:
    """Return what `make_atlas` with the same arguments would take, from a calibration on a few
    examples.

    Parameters
    ----------
    model, corpus, analyses, parameters, options
        As in `make_atlas`.
    sample : int, default 16
        Examples that are run; more take longer and tell more.

    Examples
    --------
    >>> costs = plan(analyses=["surface"], limit=200, sample=2)
    >>> [cost.stage for cost in costs.stages]
    ['opening', 'model pass', 'surface']
    """
    source = Source(model, corpus, options.source_options())
    chosen = choose_analyses(analyses, parameters)
    return estimate(source, chosen, options.run_options(), sample)


def estimate(
    source: Source, analyses: Sequence[Analysis], options: RunOptions, sample: int = SAMPLE
) -> Costs:
    """Return what a `Run` with the same arguments would take; see `plan`."""
    at_least("sample", sample, 2)
    clock = Clock()
    quiet = RunCallbacks(note=lambda _: None)
    with clock.running():
        with stage(OPENING, memory=True):
            run = Run(source, analyses, None, options, quiet)
        with run, run.same_threads():
            scan = run.plan.scan
            opening = _cost(OPENING, scan.examples, clock.usage[OPENING])
            stages = _Calibration(run, sample).stages()
            return Costs((opening, *stages), scan.examples, scan.tokens)


def _cost(name: str, examples: int, usage: Usage, note: str = "") -> Cost:
    return Cost(name, examples, usage.seconds, usage.cpu_seconds, usage.memory, note)


class _EnoughMeasured(BaseException):
    """Stops work whose cost is known well enough."""


class _Calibration:
    """Runs every stage of a run on a few examples, and extrapolates to all of them."""

    def __init__(self, run: Run, sample: int) -> None:
        self.run = run
        self.model = run.model
        self.sample = sample
        self.notes: dict[str, str] = {}
        self.views = run._own_views()

    def stages(self) -> list[Cost]:
        """Return the cost of every stage but the opening."""
        plan = self.run.plan
        pass_usage = Usage()
        pass_examples = 0
        observer_costs: list[Cost] = []
        for part, observers in plan.together(self.views):
            if not observers:
                continue
            counts = {a.name: self._n_examples(a.name, part.rows) for a in observers}
            part_usage, added = self._observe(part, observers, counts)
            pass_usage = pass_usage + part_usage
            pass_examples += max(counts.values())
            for observer in observers:
                name = observer.name
                note = self.notes.get(name, "")
                observer_costs.append(_cost(name, counts[name], added[name], note))

        costs = []
        if pass_examples:
            costs.append(_cost(MODEL_PASS, pass_examples, pass_usage))
        costs += observer_costs
        for observer in plan.streaming:
            if observer.name in self.views:
                costs.append(self._observe_view(observer))
        for experiment in plan.experiments:
            costs.append(self._perform(experiment))
        return costs + self._random_models()

    # --- observers --------------------------------------------------------------------------------

    def _n_examples(self, name: str, rows: EncodedCorpus) -> int:
        """Return how many examples an observer reads: its budget, rounded up to whole shards."""
        limit = self.run.plan.limits[name]
        if limit is None:
            return len(rows)
        shard_size = self.run.plan.shard_size
        return min(len(rows), -(-limit // shard_size) * shard_size)

    def _choose_rows(self, rows: EncodedCorpus) -> tuple[list[Encoded], list[Encoded]]:
        """Return rows of all lengths, evenly, and the longest ones that fill a batch."""
        by_length = sorted((len(row), row.index) for row in rows)
        sampled = [index for _, index in _evenly(by_length, self.sample)]
        longest_length = by_length[-1][0]
        n_fitting = max(1, self.run.options.batch_tokens // longest_length)
        n_longest = min(n_fitting, self.run.plan.shard_size)
        longest = [index for _, index in by_length[-n_longest:]]
        row_at = rows.pick({*sampled, *longest})
        return [row_at[index] for index in sampled], [row_at[index] for index in longest]

    def _observe(
        self, part: CorpusPart, observers: Sequence[Observer], counts: Mapping[str, int]
    ) -> tuple[Usage, dict[str, Usage]]:
        """Return what the pass over a part takes, and what each observer adds to it: observing, and
        its result."""
        rows, longest = self._choose_rows(part.rows)
        one_row = _evenly(rows, 1)
        # The first pass includes what is done only once.
        seconds_per_row = _measure(lambda: self._run_pass(part, observers, one_row)).seconds
        if seconds_per_row * self.sample > PATIENCE:
            seconds_per_row = _measure(lambda: self._run_pass(part, observers, one_row)).seconds
        takes_long = seconds_per_row * len(longest) > PATIENCE
        memory = self._measure_peak(part, observers, longest, takes_long)

        n_affordable = int(PATIENCE / (1.5 * seconds_per_row))
        rows = _evenly(rows, max(2, min(len(rows), n_affordable)))
        half = rows[::2]
        half_clock = Clock()
        with half_clock.running(), stage(MODEL_PASS):
            self._run_pass(part, observers, half)
        full_clock = Clock()
        with full_clock.running(), stage(MODEL_PASS):
            states = self._run_pass(part, observers, rows)

        # A batch takes some time whatever is in it, so what counts is how many rows the batches of
        # the run have.
        mean_length = part.rows.scan.tokens / part.rows.scan.examples
        rows_of_batch = int(self.run.options.batch_tokens / mean_length)
        rows_of_batch = max(1, min(self.run.plan.shard_size, rows_of_batch))

        def usage_of(name: str, n_examples: int) -> Usage:
            line = CostLine(
                len(half),
                len(rows),
                half_clock.usage.get(name, Usage()),
                full_clock.usage.get(name, Usage()),
            )
            return line.at(rows_of_batch) * (n_examples / rows_of_batch)

        added: dict[str, Usage] = {}
        for observer in observers:
            n_examples = counts[observer.name]
            added[observer.name] = usage_of(observer.name, n_examples)
            try:
                line = self._measure_result(observer, states[observer.name], part, len(rows))
            except Exception:
                # So few examples may have nothing of what it looks for; the run itself will say
                # what is wrong.
                self.notes[observer.name] = (
                    "without its result, for which the sample has too little"
                )
            else:
                added[observer.name] = added[observer.name] + line.at(n_examples)
        pass_usage = usage_of(MODEL_PASS, max(counts.values()))
        pass_usage.memory = memory
        return pass_usage, added

    def _measure_peak(
        self,
        part: CorpusPart,
        observers: Sequence[Observer],
        rows: Sequence[Encoded],
        takes_long: bool,
    ) -> int:
        """Return the peak memory of a pass over some rows.

        A pass that takes long is stopped early: observers that read one layer after the other need
        as much for the first as for the last, and those that read whole examples hold all maps
        before they begin."""
        reset_peak_memory()
        if not takes_long:
            self._run_pass(part, observers, rows)
            return peak_memory()
        whole = [observer for observer in observers if isinstance(observer, OwnPassObserver)]
        by_layer = [observer for observer in observers if observer not in whole]
        for group in (whole, by_layer):
            deadline = time.perf_counter() + PATIENCE

            def stop_when_due(_: str, deadline: float = deadline) -> None:
                if time.perf_counter() > deadline:
                    raise _EnoughMeasured

            with suppress(_EnoughMeasured), report_stages(stop_when_due):
                self._run_pass(part, group, rows)
        return peak_memory()

    def _run_pass(
        self, part: CorpusPart, observers: Sequence[Observer], rows: Sequence[Encoded]
    ) -> Mapping[str, State]:
        model = self.model
        states = {observer.name: observer.start(part.shape) for observer in observers}
        batch_tokens = self.run.options.batch_tokens
        pass_batches = batches(list(rows), batch_tokens, model.pad_id, model.device)
        return observe_batches(model, pass_batches, observers, states, failed={})

    def _measure_result(
        self, observer: Observer, state: State, part: CorpusPart, examples: int
    ) -> CostLine:
        """Return the cost of a result, by the number of examples in its state."""

        def measure() -> Usage:
            return _measure(lambda: observer.result(state, part.shape))

        first = measure()
        grown = examples
        while grown < STATE_GROWTH * examples and (grown == examples or first.seconds < PATIENCE):
            copy = observer.start(part.shape)
            copy.load(state.arrays())
            state.merge(copy)  # as shards are merged: twice the examples
            grown *= 2
        return CostLine(examples, grown, first, measure())

    def _observe_view(self, observer: Observer) -> Cost:
        """Return the cost of an observer with its own pass over its form of the corpus."""
        name = observer.name
        rows = EncodedCorpus(self.views[name].alone(), self.model.encoder)
        part = make_plan(self.model, rows, [observer]).parts[name]
        pass_usage, added = self._observe(part, [observer], {name: len(rows)})
        return _cost(name, len(rows), pass_usage + added[name], "a pass of its own")

    # --- experiments ------------------------------------------------------------------------------

    def _perform(self, experiment: Experiment) -> Cost:
        """Return the cost of an experiment, tried on few examples and on more.

        One whose work does not depend on examples is stopped once it has reported its progress."""
        name = experiment.name
        part = self.run.plan.parts[name]
        limit = self.run.plan.limits[name]
        n_examples = len(part.rows)
        if limit is not None:
            n_examples = min(limit, n_examples)
        if type(experiment).budget is None:
            return _cost(name, n_examples, self._try(experiment, part, n_examples, stop=True))
        few = max(2, n_examples // 16)
        more = max(4, n_examples // 8)
        while more <= n_examples:
            try:
                usage = self._extrapolate(experiment, part, few, more, n_examples)
            except HeadwiseError:  # too few examples for what it does
                few *= 2
                more *= 2
            else:
                return _cost(name, n_examples, usage)
        try:
            return _cost(name, n_examples, self._try(experiment, part, n_examples))
        except HeadwiseError as error:
            note = f"cannot be done on this corpus: {error}"
            return _cost(name, n_examples, Usage(), note)

    def _extrapolate(
        self, experiment: Experiment, part: CorpusPart, few: int, more: int, n_examples: int
    ) -> Usage:
        first = self._try(experiment, part, few)
        # What takes long whatever it is given grows more slowly than two small tries suggest. The
        # smaller of both times counts: the machine may be busy.
        if min(first.seconds, first.cpu_seconds) <= LONG:
            more = max(more, n_examples // 4)
        second = self._try(experiment, part, more)
        return extrapolate_fit(CostLine(few, more, first, second), n_examples)

    def _try(
        self, experiment: Experiment, part: CorpusPart, limit: int, stop: bool = False
    ) -> Usage:
        """Return what an experiment takes on so many examples; with `stop` it is stopped after a
        while, and what it took is multiplied by the work that was left."""
        began = time.perf_counter()
        total_over_done = 0.0
        factor = 1.0

        def progress(what: str, done: int, total: int) -> None:
            nonlocal total_over_done
            total_over_done = total / max(done, 1)
            if stop and done and time.perf_counter() - began > PATIENCE:
                raise _EnoughMeasured

        context = LocalContext(
            model=self.model,
            corpus=part.rows.corpus,
            rows=part.rows,
            shape=part.shape,
            store=self.run.store.part(f"plan-{uuid4().hex}"),
            limit=limit,
            progress=progress,
        )

        def perform() -> None:
            nonlocal factor
            try:
                experiment.perform(context)
            except _EnoughMeasured:
                factor = total_over_done

        return _measure(perform) * factor

    # --- random models ----------------------------------------------------------------------------

    def _random_models(self) -> list[Cost]:
        """Return the cost of the random-weights models beside the model."""
        plan = self.run.plan
        usage = Usage()
        n_models = 0
        for part, observers in plan.together(self.views):
            analyses = [observer for observer in observers if isinstance(observer, RandomNull)]
            models = RandomModels(self.model, part, plan.limits, self.run.options.seed)
            models_of = models.n_models(analyses)
            try:
                for rows, group in models.together(analyses):
                    few = rows[:: max(1, 2 * len(rows) // self.sample)]
                    more = rows[:: max(1, len(rows) // self.sample)]
                    first = _measure(partial(models.alone, 1, few, group))
                    second = _measure(partial(models.alone, 1, more, group))
                    if not n_models:  # sharpness is measured once for all of them
                        usage = _measure(partial(models.sharpness, rows))
                    count = max(models_of[analysis.name] for analysis in group)
                    line = CostLine(len(few), len(more), first, second)
                    usage = usage + line.at(len(rows)) * count
                    n_models += count
            except HeadwiseError:
                continue  # none can be built of this model
        if not n_models:
            return []
        return [_cost(RANDOM_MODELS, n_models, usage)]


def _evenly(items: Sequence[T], count: int) -> list[T]:
    """Return so many items, spread evenly."""
    count = min(count, len(items))
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def _measure(work: Callable[[], object]) -> Usage:
    """Return what some work takes, all its stages together."""
    clock = Clock()
    with clock.running(), stage("all", memory=True, whole=True):
        work()
    return clock.usage["all"]
