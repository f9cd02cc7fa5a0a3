"""What a run would take, before it is run: by analysis, from a calibration of a few seconds.

The calibration runs every stage on the smallest input that tells its cost: a few examples of all
lengths, through the first layers of the model (`models.first_layers`), analyses with fixed inputs on
few of these (`Experiment.smallest`). From there it extrapolates: linearly in examples, by the rise
from one to three layers in depth. Processor time is bounded: what it does not suffice for is estimated
from the model's pass, and said so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pandas as pd
from torch import nn

from headwise.analyses.contract import (
    FIT_POWER,
    Analysis,
    Experiment,
    Observer,
    OwnPassObserver,
    choose_analyses,
)
from headwise.analyses.nulls import RandomNull
from headwise.core.checks import at_least
from headwise.core.errors import HeadwiseError, ModelError
from headwise.core.options import part_of, takes_options
from headwise.models import HeadModel
from headwise.models.first_layers import first_layers
from headwise.models.session import BLOCK_BYTES
from headwise.models.sizes import layer_kinds
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batches
from headwise.run.extrapolation import CostLine, DepthLine, extrapolate_fit
from headwise.run.nulls import HALVINGS, SHARPNESS_INPUTS, RandomModels
from headwise.run.options import AtlasOptions, RunOptions, SourceOptions
from headwise.run.plan import CorpusPart, make_plan
from headwise.run.progress import (
    Clock,
    Progress,
    Usage,
    no_progress,
    peak_memory,
    reset_peak_memory,
    resident_memory,
    stage,
)
from headwise.run.runner import MODEL_PASS, RANDOM_MODELS, LocalContext, Run, RunCallbacks
from headwise.run.source import Source
from headwise.stats.accumulators import State
from headwise.text import Corpus, Spec
from headwise.text.encode import Encoded, batches

T = TypeVar("T")
SAMPLE = 16  # most examples of a calibration
# Processor time of a calibration in seconds. With imports and opening a small model, the command
# stays below twenty.
CPU_SECONDS = 11.0
PASS_SHARE = 0.25  # of that time, for the pass that all observers share
CUT_DEPTHS = (1, 3)  # layers of the cut models; less deep models are not cut
MOST_UNCUT = 4
OPENING = "opening"
# A state is merged with itself until it has so many times the examples, to see how the time of its
# result grows.
STATE_GROWTH = 8
# How far off an estimate may be, as a factor both ways: measured in the whole model; extrapolated
# from its first layers; of fits; from other work.
UNCUT_FACTOR = 1.25
CUT_FACTOR = 1.6
FIT_FACTOR = 2.0
UNMEASURED_FACTOR = 3.0
MACHINE_FACTOR = 1.15  # of all stages together: the machine is not always as fast
MIN_SHARE = 0.3  # seconds of processor time that every analysis may take
# The power of the number of layers with which the time of a random model grows: its embeddings are
# made whatever its depth is.
RANDOM_DEPTH_POWER = 0.75
FIT_SHARES = 4  # of that time, for a try of an experiment that fits something to examples
FIT_SECONDS = 3.0
# The part of an analysis that its `first_part` takes: that of `induction` is 25 sequences of 157.
FIRST_PART_SHARE = 0.2
NOT_MEASURED = "not measured: from the model's pass"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one stage of a run would take.

    `seconds` is wall-clock time as this machine is now, `cpu_seconds` processor time, which lies
    between `cpu_low` and `cpu_high` in most cases (12 of 18 stages of one run, and both totals that
    were compared); `memory` is the peak in bytes: of the GPU, or of the process with the model in
    it."""

    stage: str
    examples: int
    seconds: float
    cpu_seconds: float
    memory: int
    note: str = ""
    cpu_low: float = 0.0
    cpu_high: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run would take, by stage: `opening` the model and reading the corpus, the `model pass`
    that all analyses share, what each analysis adds to it, and the `random models` beside it. The
    page of an atlas is not included.

    `first_seconds` and `first_cpu_seconds` are what an atlas that grows takes until its first round
    is done, the opening included."""

    stages: tuple[Cost, ...]
    examples: int
    tokens: int
    first_seconds: float = 0.0
    first_cpu_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Wall-clock time of all stages."""
        return sum(cost.seconds for cost in self.stages)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all stages."""
        return sum(cost.cpu_seconds for cost in self.stages)

    @property
    def cpu_low(self) -> float:
        """The lower end of the range of the processor time."""
        return self._end_of_range([cost.cpu_low for cost in self.stages], 1 / MACHINE_FACTOR)

    @property
    def cpu_high(self) -> float:
        """The upper end of the range of the processor time."""
        return self._end_of_range([cost.cpu_high for cost in self.stages], MACHINE_FACTOR)

    def _end_of_range(self, ends: Sequence[float], machine_factor: float) -> float:
        """Return an end of the range of the sum: errors of stages are independent of each other,
        the speed of the machine is common to all."""
        squares = 0.0
        for cost, end in zip(self.stages, ends, strict=True):
            squares += (end - cost.cpu_seconds) ** 2
        sign = 1.0 if machine_factor > 1 else -1.0
        return max(0.0, (self.cpu_seconds + sign * math.sqrt(squares)) * machine_factor)

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
            "cpu_low": self.cpu_low,
            "cpu_high": self.cpu_high,
            "first_seconds": self.first_seconds,
            "first_cpu_seconds": self.first_cpu_seconds,
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
    progress: Progress = no_progress,
    options: AtlasOptions,
) -> Costs:
    """Return what `make_atlas` with the same arguments would take, from a calibration of a few
    seconds.

    Parameters
    ----------
    model, corpus, analyses, parameters, options
        As in `make_atlas`.
    sample : int, default 16
        Most examples that are run; fewer where they take long.
    progress : callable, optional
        Called as `progress(what, done, total)`.

    Examples
    --------
    >>> costs = plan(analyses=["surface"], limit=200, sample=2)
    >>> [cost.stage for cost in costs.stages]
    ['opening', 'model pass', 'surface']
    >>> costs.cpu_low < costs.cpu_seconds < costs.cpu_high
    True
    """
    source = Source(model, corpus, part_of(options, SourceOptions))
    chosen = choose_analyses(analyses, parameters)
    return estimate(source, chosen, part_of(options, RunOptions), sample, progress)


def estimate(
    source: Source,
    analyses: Sequence[Analysis],
    options: RunOptions,
    sample: int = SAMPLE,
    progress: Progress = no_progress,
) -> Costs:
    """Return what a `Run` with the same arguments would take; see `plan`."""
    at_least("sample", sample, 2)
    clock = Clock()
    quiet = RunCallbacks(note=lambda _: None)
    progress("calibration", 0, len(analyses))
    with clock.running():
        with stage(OPENING, memory=True):
            run = Run(source, analyses, None, options, quiet)
        with run:
            scan = run.plan.scan
            opening = _cost(OPENING, scan.examples, clock.usage[OPENING], UNCUT_FACTOR)
            stages = _Calibration(run, sample, progress).stages()
            first = _first_round(run, [opening, *stages])
            return Costs(
                (opening, *stages), scan.examples, scan.tokens, first.seconds, first.cpu_seconds
            )


def _first_round(run: Run, costs: Sequence[Cost]) -> Usage:
    """Return what the first round takes: the opening, the first shard of every pass that observers
    share, and the first parts of experiments."""
    analyses = {analysis.name: analysis for analysis in run.plan.analyses}
    n_parts = sum(1 for _, observers in run.plan.together(()) if observers)
    usage = Usage()
    for cost in costs:
        share = 0.0
        analysis = analyses.get(cost.stage)
        if cost.stage == OPENING:
            share = 1.0
        elif cost.stage == MODEL_PASS:
            share = min(1.0, n_parts * run.plan.shard_size / max(cost.examples, 1))
        elif isinstance(analysis, Observer) and not analysis.apart:
            share = min(1.0, run.plan.shard_size / max(cost.examples, 1))
        elif isinstance(analysis, Experiment) and analysis.first_part() is not None:
            share = FIRST_PART_SHARE
        usage = usage + Usage(cost.seconds, cost.cpu_seconds) * share
    return usage


def _cost(name: str, examples: int, usage: Usage, factor: float, note: str = "") -> Cost:
    return Cost(
        name,
        examples,
        usage.seconds,
        usage.cpu_seconds,
        usage.memory,
        note,
        cpu_low=usage.cpu_seconds / factor,
        cpu_high=usage.cpu_seconds * factor,
    )


class _EnoughMeasured(BaseException):
    """Stops work whose cost is known well enough."""


class _Calibration:
    """Runs every stage of a run on little, and extrapolates to all of it.

    Parameters
    ----------
    run : Run
        The run that is planned; nothing of it is computed.
    sample : int
        Most examples that are run.
    progress : callable
        Told how many analyses are done.
    """

    def __init__(self, run: Run, sample: int, progress: Progress) -> None:
        self.run = run
        self.model = run.model
        self.sample = sample
        self.progress = progress
        self.n_done = 0
        self.notes: dict[str, str] = {}
        self.own_corpora = run._own_corpora()
        self.deadline = time.process_time() + CPU_SECONDS
        self.depths = self._choose_depths()
        # What an example took in the pass of the whole model, with all observers.
        self.pass_per_example = Usage()

    @property
    def cpu_left(self) -> float:
        """Processor time that is left, in seconds."""
        return self.deadline - time.process_time()

    @property
    def factor(self) -> float:
        """How far off an extrapolation may be."""
        return UNCUT_FACTOR if self.depths[-1] == self.model.layers else CUT_FACTOR

    def _choose_depths(self) -> tuple[int, int]:
        """Return the layers of the models that are run: twice those of the model, if it is not
        cut."""
        uncut = (self.model.layers, self.model.layers)
        if self.model.layers <= MOST_UNCUT:
            return uncut
        try:
            for depth in CUT_DEPTHS:
                with first_layers(self.model, depth) as cut:
                    if cut.layers != depth:
                        return uncut
        except ModelError:
            return uncut
        return CUT_DEPTHS

    @contextmanager
    def _cut(self, depth: int, part: CorpusPart) -> Iterator[tuple[HeadModel, CorpusPart]]:
        """Yield the model with so many layers, and the part of the corpus as seen by it."""
        if depth == self.model.layers:
            yield self.model, part
            return
        with first_layers(self.model, depth) as cut:
            shape = replace(
                part.shape,
                layers=depth,
                extras={**part.shape.extras, "layer_kinds": layer_kinds(cut)},
            )
            yield cut, CorpusPart(part.rows, shape)

    def _finish(self, *names: str) -> None:
        self.n_done += len(names)
        self.progress("calibration", self.n_done, len(self.run.plan.analyses))

    def stages(self) -> list[Cost]:
        """Return the cost of every stage but the opening."""
        plan = self.run.plan
        pass_usage = Usage()
        pass_examples = 0
        observer_costs: list[Cost] = []
        for part, observers in plan.together(self.own_corpora):
            if not observers:
                continue
            counts = {a.name: self._n_examples(a.name, part.rows) for a in observers}
            part_usage, added = self._observe(part, observers, counts)
            pass_usage = pass_usage + part_usage
            pass_examples += max(counts.values())
            for observer in observers:
                name = observer.name
                note = self.notes.get(name, "")
                observer_costs.append(_cost(name, counts[name], added[name], self.factor, note))
            self._finish(*added)

        costs = []
        if pass_examples:
            costs.append(_cost(MODEL_PASS, pass_examples, pass_usage, self.factor))
        costs += observer_costs
        for observer in plan.streaming:
            if observer.name in self.own_corpora:
                costs.append(self._observe_own_corpus(observer))
                self._finish(observer.name)
        # Experiments come last, the longest at the end: a try of one may take what is left.
        random_models = self._random_models()
        for experiment in sorted(plan.experiments, key=_order_of_tries):
            costs.append(self._perform(experiment))
            self._finish(experiment.name)
        return costs + random_models

    # --- observers --------------------------------------------------------------------------------

    def _n_examples(self, name: str, rows: EncodedCorpus) -> int:
        """Return how many examples an observer reads: its budget, rounded up to whole shards."""
        limit = self.run.plan.limits[name]
        if limit is None:
            return len(rows)
        shard_size = self.run.plan.shard_size
        return min(len(rows), -(-limit // shard_size) * shard_size)

    def _choose_rows(self, rows: EncodedCorpus) -> list[Encoded]:
        """Return rows of all lengths, evenly."""
        by_length = sorted((len(row), row.index) for row in rows)
        sampled = [index for _, index in _evenly(by_length, self.sample)]
        row_at = rows.pick(set(sampled))
        return [row_at[index] for index in sampled]

    def _observe(
        self, part: CorpusPart, observers: Sequence[Observer], counts: Mapping[str, int]
    ) -> tuple[Usage, dict[str, Usage]]:
        """Return what the pass over a part takes, and what each observer adds to it: observing, and
        its result."""
        rows = self._choose_rows(part.rows)
        shallow, deep = self.depths
        with self._cut(shallow, part) as (model, shallow_part):
            # The first pass includes what is done only once.
            one_row = _evenly(rows, 1)
            row_cost = _measure(lambda: self._run_pass(model, shallow_part, observers, one_row))
            if row_cost.cpu_seconds * self.sample > self.cpu_left > 10 * row_cost.cpu_seconds:
                row_cost = _measure(lambda: self._run_pass(model, shallow_part, observers, one_row))
            # Half of the rows through few layers, then half of them and all through more.
            layers_per_row = shallow / 2 + 1.5 * deep
            cpu_per_row = row_cost.cpu_seconds / shallow * layers_per_row
            n_rows = int(PASS_SHARE * self.cpu_left / max(cpu_per_row, 1e-9))
            rows = _evenly(rows, max(1, min(len(rows), n_rows)))
            half = rows[::2]
            shallow_clock = Clock()
            if shallow < deep:
                with shallow_clock.running(), stage(MODEL_PASS):
                    shallow_states = self._run_pass(model, shallow_part, observers, half)
        with self._cut(deep, part) as (model, deep_part):
            reset_peak_memory()
            memory_before = resident_memory()
            half_clock = Clock()
            with half_clock.running(), stage(MODEL_PASS):
                states = self._run_pass(model, deep_part, observers, half)
            full_clock = half_clock
            if len(rows) > 1:
                full_clock = Clock()
                with full_clock.running(), stage(MODEL_PASS):
                    self._run_pass(model, deep_part, observers, rows)
            memory = self._extrapolate_memory(memory_before, observers, rows)
        if shallow == deep:
            shallow_clock = half_clock
            shallow_states = states

        # A batch takes some time whatever is in it, so what counts is how many rows the batches of
        # the run have.
        mean_length = part.rows.scan.tokens / part.rows.scan.examples
        rows_of_batch = int(self.run.options.batch_tokens / mean_length)
        rows_of_batch = max(1, min(self.run.plan.shard_size, rows_of_batch))

        def usage_of(name: str, n_examples: int) -> Usage:
            half_usage = half_clock.usage.get(name, Usage())
            by_depth = DepthLine(shallow, deep, shallow_clock.usage.get(name, Usage()), half_usage)
            line = CostLine(len(half), len(rows), half_usage, full_clock.usage.get(name, Usage()))
            if len(rows) == 1:
                per_batch = half_usage * n_examples
            else:
                per_batch = line.at(rows_of_batch) * (n_examples / rows_of_batch)
            return per_batch * by_depth.factor(self.model.layers)

        added: dict[str, Usage] = {}
        for observer in observers:
            name = observer.name
            added[name] = usage_of(name, counts[name])
            try:
                result = self._extrapolate_result(
                    observer,
                    {shallow: shallow_states[name], deep: states[name]},
                    part,
                    len(half),
                    counts[name],
                )
            except Exception:
                # So few examples may have nothing of what it looks for; the run itself will say
                # what is wrong.
                self.notes[name] = "without its result, for which the sample has too little"
            else:
                added[name] = added[name] + result
        pass_usage = usage_of(MODEL_PASS, max(counts.values()))
        pass_usage.memory = memory
        self.pass_per_example = pass_usage * (1 / max(counts.values()))
        return pass_usage, added

    def _extrapolate_memory(
        self, before: int, observers: Sequence[Observer], rows: Sequence[Encoded]
    ) -> int:
        """Return the peak memory of a pass over whole batches, from that over some rows.

        Observers that read one layer after the other need as much for the first as for the last;
        those with a pass of their own hold the maps of all layers."""
        grown = float(max(peak_memory() - before, 0))
        n_tokens = sum(map(len, rows))
        grown *= max(1.0, self.run.options.batch_tokens / max(n_tokens, 1))
        if any(isinstance(observer, OwnPassObserver) for observer in observers):
            grown *= self.model.layers / self.depths[-1]
        # Blocks of weights are bounded.
        return before + int(min(grown, 2 * BLOCK_BYTES))

    def _run_pass(
        self,
        model: HeadModel,
        part: CorpusPart,
        observers: Sequence[Observer],
        rows: Sequence[Encoded],
    ) -> Mapping[str, State]:
        states = {observer.name: observer.start(part.shape) for observer in observers}
        batch_tokens = self.run.options.batch_tokens
        pass_batches = batches(list(rows), batch_tokens, model.pad_id, model.device)
        return observe_batches(model, pass_batches, observers, states, failed={})

    def _extrapolate_result(
        self,
        observer: Observer,
        states: Mapping[int, State],
        part: CorpusPart,
        n_rows: int,
        n_examples: int,
    ) -> Usage:
        """Return the cost of a result for so many examples, from states of cut models by their
        depth."""
        shallow, deep = self.depths
        with self._cut(shallow, part) as (_, shallow_part):
            first = _measure(lambda: observer.result(states[shallow], shallow_part.shape))
        with self._cut(deep, part) as (_, deep_part):
            state = states[deep]
            shape = deep_part.shape
            second = first
            if shallow < deep:
                second = _measure(lambda: observer.result(state, shape))
            grown = n_rows
            while grown < STATE_GROWTH * n_rows and second.cpu_seconds < self.cpu_left / 4:
                copy = observer.start(shape)
                copy.load(state.arrays())
                state.merge(copy)  # as shards are merged: twice the examples
                grown *= 2
            line = CostLine(n_rows, grown, second, second)
            if grown > n_rows:
                line = replace(line, second=_measure(lambda: observer.result(state, shape)))
        by_depth = DepthLine(shallow, deep, first, second)
        return line.at(n_examples) * by_depth.factor(self.model.layers)

    def _observe_own_corpus(self, observer: Observer) -> Cost:
        """Return the cost of an observer with its own pass over its form of the corpus."""
        name = observer.name
        rows = EncodedCorpus(self.own_corpora[name].alone(), self.model.encoder)
        part = make_plan(self.model, rows, [observer]).parts[name]
        if self.cpu_left < 0:
            return self._unmeasured(name, len(rows), len(rows))
        pass_usage, added = self._observe(part, [observer], {name: len(rows)})
        return _cost(name, len(rows), pass_usage + added[name], self.factor, "a pass of its own")

    def _unmeasured(self, name: str, n_examples: int, n_passes: float) -> Cost:
        """Return the cost of a stage for which no time is left, in passes of one example."""
        usage = self.pass_per_example * n_passes
        return _cost(name, n_examples, usage, UNMEASURED_FACTOR, NOT_MEASURED)

    # --- experiments ------------------------------------------------------------------------------

    def _perform(self, experiment: Experiment) -> Cost:
        """Return the cost of an experiment, tried with as little work as tells its cost."""
        name = experiment.name
        part = self.run.plan.parts[name]
        limit = self.run.plan.limits[name]
        n_examples = len(part.rows)
        if limit is not None:
            n_examples = min(limit, n_examples)
        # A try of one that takes many passes for an example, or fits something, takes seconds.
        least = FIT_SECONDS if type(experiment).budget and experiment.typical_passes > 1 else 0.0
        is_cut = self.depths[-1] < self.model.layers
        if self.cpu_left < least or (is_cut and not experiment.tried_on_first_layers):
            return self._unmeasured(name, n_examples, experiment.passes(n_examples))
        try:
            if type(experiment).budget is None:
                usage = self._extrapolate_work(experiment, part, n_examples)
            else:
                usage = self._extrapolate_examples(experiment, part, n_examples)
        except HeadwiseError as error:
            note = f"cannot be done on this corpus: {error}"
            return _cost(name, n_examples, Usage(), 1.0, note)
        factor = FIT_FACTOR if experiment.fits else self.factor
        return _cost(name, n_examples, usage, factor)

    def _extrapolate_work(self, experiment: Experiment, part: CorpusPart, n_examples: int) -> Usage:
        """Return the cost of an experiment whose work does not depend on examples."""
        small, times = experiment.smallest()
        shallow, deep = self.depths
        in_fewer_layers = None
        if experiment.depth_power is None and shallow < deep:
            # First, so that what is done only once does not look like the cost of layers.
            in_fewer_layers = self._try(small, part, n_examples, shallow)
        usage = self._try(small, part, n_examples, deep)
        depth_factor = 1.0
        total = usage * times
        larger = experiment.larger()
        if larger is not None:
            more_work, times_more = larger
            growth = round(times / times_more)
            if growth * usage.cpu_seconds < self.cpu_left / 4:
                # What is done only once must not be multiplied.
                more_usage = self._try(more_work, part, n_examples, deep)
                total = CostLine(1, growth, usage, more_usage).at(round(times))
        if in_fewer_layers is not None:
            by_depth = DepthLine(shallow, deep, in_fewer_layers, usage)
            depth_factor = by_depth.factor(self.model.layers)
        elif experiment.depth_power is not None:
            depth_factor = (self.model.layers / deep) ** experiment.depth_power
        return total * float(depth_factor)

    def _extrapolate_examples(
        self, experiment: Experiment, part: CorpusPart, n_examples: int
    ) -> Usage:
        """Return the cost of an experiment that reads examples, tried on few and on more."""
        shallow, deep = self.depths
        small, times = experiment.smallest()
        deadline = time.process_time() + self._share()
        few = 1
        while True:
            try:
                first = self._try(small, part, few, deep)
                break
            except HeadwiseError:
                # Too few examples for what it does; with all of them the error is its own.
                if few >= n_examples:
                    raise
                few = min(2 * few, n_examples)
        if experiment.depth_power is not None:
            depth_factor = (self.model.layers / deep) ** experiment.depth_power
        elif shallow < deep:
            in_fewer_layers = self._try(small, part, few, shallow)
            depth_factor = DepthLine(shallow, deep, in_fewer_layers, first).factor(
                self.model.layers
            )
        else:
            depth_factor = 1.0
        # As many more as the time that is left allows, up to a quarter of all.
        cpu_left = deadline - time.process_time()
        n_affordable = int(few * cpu_left / max(first.cpu_seconds, 1e-9))
        more = min(n_examples, n_affordable, max(2 * few, n_examples // 4))
        if experiment.typical_passes <= 1:
            more = min(n_examples, max(more, 2 * few))  # it is cheap
        if more > few:
            second = self._try(small, part, more, deep)
            line = CostLine(few, more, first, second)
            usage = line.at(n_examples)
            if experiment.fits:
                usage = extrapolate_fit(line, n_examples)
        elif experiment.fits:
            usage = first * float((n_examples / few) ** FIT_POWER)
        else:
            usage = first * (n_examples / few)
        return usage * (times * float(depth_factor))

    def _share(self) -> float:
        """Return the processor time that the next analysis may take, in seconds: all have the same,
        and the random models one share more."""
        n_left = len(self.run.plan.analyses) - self.n_done + 1
        return max(self.cpu_left / n_left, MIN_SHARE)

    def _try(self, experiment: Experiment, part: CorpusPart, limit: int, depth: int) -> Usage:
        """Return what an experiment takes on so many examples in a model of so many layers.

        One that reports its progress is stopped after a while, and what it took from the first
        report on is multiplied by the work that was left then."""
        patience = self._share()
        if type(experiment).budget is not None:
            # Fits report steps that they need not take: what is left is not known from these.
            patience = max(FIT_SHARES * patience, FIT_SECONDS)
        deadline = time.process_time() + patience
        clock = Clock()
        # The reports on what is counted now: usage until then, and how much was done.
        counted = ""
        reports: list[tuple[Usage, int]] = []
        n_total = 0

        def progress(what: str, done: int, total: int) -> None:
            nonlocal counted, n_total
            if what != counted:
                counted = what
                reports.clear()
            reports.append((clock.so_far(), done))
            n_total = total
            if done < total and len(reports) > 2 and time.process_time() > deadline:
                raise _EnoughMeasured

        with self._cut(depth, part) as (model, cut_part):
            context = LocalContext(
                model=model,
                corpus=part.rows.corpus,
                rows=part.rows,
                shape=cut_part.shape,
                store=self.run.store.part(f"plan-{uuid4().hex}"),
                limit=limit,
                progress=progress,
            )
            with clock.running(), stage("all", memory=True, whole=True):
                try:
                    experiment.perform(context)
                except _EnoughMeasured:
                    stopped = True
                else:
                    stopped = False
        usage = clock.usage["all"]
        if stopped:
            before, first_done = reports[0]
            after, last_done = reports[-1]
            times_left = (n_total - last_done) / max(last_done - first_done, 1)
            seconds = after.seconds - before.seconds
            cpu_seconds = after.cpu_seconds - before.cpu_seconds
            usage = usage + Usage(seconds, cpu_seconds) * times_left
        return usage

    # --- random models ----------------------------------------------------------------------------

    def _random_models(self) -> list[Cost]:
        """Return the cost of the random-weights models beside the model."""
        plan = self.run.plan
        usage = Usage()
        n_models = 0
        measured = True
        for part, observers in plan.together(self.own_corpora):
            analyses = [observer for observer in observers if isinstance(observer, RandomNull)]
            models = RandomModels(self.model, part, plan.limits, self.run.options.seed)
            models_of = models.n_models(analyses)
            for rows, group in models.together(analyses):
                if not n_models:
                    # Sharpness is matched once for all of them, in several passes over a few rows.
                    n_passes = (HALVINGS + 1) * min(SHARPNESS_INPUTS, len(rows))
                    usage = self.pass_per_example * n_passes
                count = max(models_of[analysis.name] for analysis in group)
                if self.cpu_left < 0:
                    measured = False
                    usage = usage + self.pass_per_example * (len(rows) * count)
                else:
                    try:
                        usage = usage + self._random_model(part, rows, group) * count
                    except HeadwiseError:
                        continue  # none can be built of this model
                n_models += count
        if not n_models:
            return []
        if not measured:
            return [_cost(RANDOM_MODELS, n_models, usage, UNMEASURED_FACTOR, NOT_MEASURED)]
        return [_cost(RANDOM_MODELS, n_models, usage, self.factor)]

    def _random_model(
        self, part: CorpusPart, rows: Sequence[Encoded], analyses: Sequence[RandomNull]
    ) -> Usage:
        """Return the cost of one random-weights model on its rows."""
        depth = self.depths[-1]
        few = _evenly(rows, max(1, self.sample // 8))
        more = _evenly(rows, max(2, self.sample // 2))
        with self._cut(depth, part) as (model, cut_part):
            models = RandomModels(model, cut_part, self.run.plan.limits, self.run.options.seed)
            first = _measure(partial(models.alone, 1, few, analyses))
            second = first
            if len(more) > len(few):
                second = _measure(partial(models.alone, 1, more, analyses))
        line = CostLine(len(few), len(more), first, second)
        return line.at(len(rows)) * float((self.model.layers / depth) ** RANDOM_DEPTH_POWER)


def _order_of_tries(experiment: Experiment) -> tuple[bool, float]:
    """Return a key that sorts those with a small version of themselves first, the longest last."""
    return type(experiment).budget is not None, experiment.typical_passes


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
