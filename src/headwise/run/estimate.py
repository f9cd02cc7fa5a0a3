"""What a run would take, before it is run: from a short calibration on a few of its examples, by
analysis."""

from __future__ import annotations

import tempfile
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
from headwise.run.clock import Clock, Spent, forget_peak, peak_memory, stage, telling
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batches
from headwise.run.extrapolation import Line, fitted
from headwise.run.nulls import RandomModels
from headwise.run.options import AtlasOptions, RunOptions
from headwise.run.plan import Part, make_plan
from headwise.run.runner import PASS, RANDOM, Listener, LocalContext, Run
from headwise.run.source import Source
from headwise.stats.accumulators import State
from headwise.text import Corpus, Spec
from headwise.text.encode import Encoded, batches

T = TypeVar("T")
SAMPLE = 16  # examples of a calibration
PATIENCE = 20.0  # seconds after which work that tells how far it is need not end
LONG = 60.0  # seconds of a first try of an experiment from where the second is on an eighth, not a quarter
OPENING = "opening"
DOUBLED = 8  # a state is merged with itself until it has so many times the examples: how its result's time grows


@dataclass(frozen=True, slots=True)
class Cost:
    """What one stage of a run would take.

    `seconds` are those of the clock on the wall as this machine is now, `cpu_seconds` those of its
    processors; `memory` is the largest in bytes while it runs: of the GPU, or of the process with
    the model in it."""

    stage: str
    examples: int
    seconds: float
    cpu_seconds: float
    memory: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run would take, by stage: `opening` the model and reading the corpus, the `model pass`
    that all analyses watch, what each analysis adds to it, and the `random models` beside it. The
    page of an atlas is not in it."""

    stages: tuple[Cost, ...]
    examples: int
    tokens: int

    @property
    def seconds(self) -> float:
        """Of the clock on the wall, all stages together."""
        return sum(cost.seconds for cost in self.stages)

    @property
    def cpu_seconds(self) -> float:
        """Of processors, all stages together."""
        return sum(cost.cpu_seconds for cost in self.stages)

    @property
    def memory(self) -> int:
        """The largest of any stage, in bytes."""
        return max(cost.memory for cost in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        whole = {
            name: getattr(self, name)
            for name in ("examples", "tokens", "seconds", "cpu_seconds", "memory")
        }
        return whole | {"stages": [asdict(cost) for cost in self.stages]}

    def table(self) -> pd.DataFrame:
        """A row for each stage, the longest first."""
        return pd.DataFrame(
            [asdict(cost) for cost in sorted(self.stages, key=lambda cost: -cost.seconds)]
        )


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
    """What `make_atlas` with the same arguments would take, from a calibration on a few examples.

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
    """What a `Run` with the same arguments would take; see `plan`."""
    at_least("sample", sample, 2)
    clock = Clock()
    quiet = Listener(note=lambda _: None)
    with tempfile.TemporaryDirectory() as folder, clock.running():
        with stage(OPENING, memory=True):
            run = Run(source, analyses, folder, options, quiet)
        with run, run.same_threads():
            stages = [
                _cost(OPENING, run.plan.scan.examples, clock.spent[OPENING]),
                *_Calibration(run, sample).stages(),
            ]
            return Costs(tuple(stages), run.plan.scan.examples, run.plan.scan.tokens)


def _cost(name: str, examples: int, spent: Spent, note: str = "") -> Cost:
    return Cost(name, examples, spent.seconds, spent.cpu_seconds, spent.memory, note)


class _Enough(BaseException):
    """Work that has told how far it is need not end."""


class _Calibration:
    """Runs every stage of a run on a few examples, and says what all of them would take."""

    def __init__(self, run: Run, sample: int) -> None:
        self.run, self.model, self.sample = run, run.model, sample
        self.notes: dict[str, str] = {}
        self.views = {
            a.name: view for a in run.plan.streaming if (view := run._view(a)) is not None
        }

    def stages(self) -> list[Cost]:
        plan, found = self.run.plan, []
        passes, added = Spent(), dict[str, tuple[int, Spent]]()
        most = 0
        for part, together in plan.together(self.views):
            if together:
                counts = {a.name: self._seen(a.name, part.rows) for a in together}
                own, others = self._observed(part, together, counts)
                passes = _plus(passes, own)
                most += max(counts.values())
                added |= {a.name: (counts[a.name], others[a.name]) for a in together}
        if most:
            found.append(_cost(PASS, most, passes))
        found += [
            _cost(name, count, spent, self.notes.get(name, ""))
            for name, (count, spent) in added.items()
        ]
        found += [self._alone(a) for a in plan.streaming if a.name in self.views]
        found += [self._performed(e) for e in plan.experiments]
        found += self._random()
        return found

    def _seen(self, name: str, rows: EncodedCorpus) -> int:
        """How many examples an analysis sees: its budget is rounded up to whole shards."""
        limit, size = self.run.plan.limits[name], self.run.plan.shard_size
        return len(rows) if limit is None else min(len(rows), -(-limit // size) * size)

    def _chosen(self, rows: EncodedCorpus) -> tuple[list[Encoded], list[Encoded]]:
        """Rows of all lengths, evenly, and the longest ones that fill a batch."""
        lengths = sorted((len(row), row.index) for row in rows)
        even = [index for _, index in _evenly(lengths, self.sample)]
        fitting = max(1, self.run.options.batch_tokens // lengths[-1][0])
        longest = [index for _, index in lengths[-min(fitting, self.run.plan.shard_size) :]]
        found = rows.pick({*even, *longest})
        return [found[index] for index in even], [found[index] for index in longest]

    def _observed(
        self, part: Part, analyses: Sequence[Observer], counts: Mapping[str, int]
    ) -> tuple[Spent, dict[str, Spent]]:
        """What the pass over a part takes, and what each analysis adds to it: watching, and its
        result."""
        rows, longest = self._chosen(part.rows)
        middle = _evenly(rows, 1)
        each = _timed(
            lambda: self._watch(part, analyses, middle)
        ).seconds  # with what is only done once
        if each * self.sample > PATIENCE:
            each = _timed(lambda: self._watch(part, analyses, middle)).seconds
        memory = self._peak(part, analyses, longest, each * len(longest) > PATIENCE)
        rows = _evenly(rows, max(2, min(len(rows), int(PATIENCE / (1.5 * each)))))
        clocks = Clock(), Clock()
        half = rows[::2]
        for clock, some in zip(clocks, (half, rows), strict=True):
            with clock.running(), stage(PASS):
                states = self._watch(part, analyses, some)
        # A batch takes some time whatever is in it, so what counts is how many rows the batches of
        # the run have.
        mean = part.rows.scan.tokens / part.rows.scan.examples
        size = max(1, min(self.run.plan.shard_size, int(self.run.options.batch_tokens / mean)))

        def whole(name: str, count: int) -> Spent:
            few, more = (clock.spent.get(name, Spent()) for clock in clocks)
            return _times(Line(len(half), len(rows), few, more).at(size), count / size)

        added: dict[str, Spent] = {}
        for analysis in analyses:
            count, added[analysis.name] = (
                counts[analysis.name],
                whole(analysis.name, counts[analysis.name]),
            )
            try:
                result = self._result(analysis, states[analysis.name], part, len(rows)).at(count)
                added[analysis.name] = _plus(added[analysis.name], result)
            except (
                Exception
            ):  # so few may have nothing of what it looks for; the run itself says what is wrong
                self.notes[analysis.name] = (
                    "without its result, for which the sample has too little"
                )
        own = whole(PASS, max(counts.values()))
        own.memory = memory
        return own, added

    def _peak(
        self, part: Part, analyses: Sequence[Observer], rows: Sequence[Encoded], long: bool
    ) -> int:
        """The largest memory of a pass over these rows.

        Where that would take long, it ends once it has: what looks at one layer after the other
        takes as much for the first as for the last, and what looks at whole examples holds all maps
        before it begins with them."""
        forget_peak()
        if not long:
            self._watch(part, analyses, rows)
            return peak_memory()
        whole = [a for a in analyses if isinstance(a, OwnPassObserver)]
        for some in (whole, [a for a in analyses if a not in whole]):
            began = time.perf_counter()

            def stop(_: str, began: float = began) -> None:
                if time.perf_counter() - began > PATIENCE:
                    raise _Enough

            with suppress(_Enough), telling(stop):
                self._watch(part, some, rows)
        return peak_memory()

    def _watch(
        self, part: Part, analyses: Sequence[Observer], rows: Sequence[Encoded]
    ) -> Mapping[str, State]:
        model, states = self.model, {a.name: a.start(part.shape) for a in analyses}
        given = batches(list(rows), self.run.options.batch_tokens, model.pad_id, model.device)
        return observe_batches(model, given, analyses, states, failed={})

    def _result(self, analysis: Observer, state: State, part: Part, examples: int) -> Line:
        """The time for a result, by the number of examples in its state."""

        def timed() -> Spent:
            return _timed(lambda: analysis.result(state, part.shape))

        first, more = timed(), examples
        while more < DOUBLED * examples and (more == examples or first.seconds < PATIENCE):
            own = analysis.start(part.shape)
            own.load(state.arrays())
            state.merge(own)  # as shards are: twice the examples
            more *= 2
        return Line(examples, more, first, timed())

    def _alone(self, analysis: Observer) -> Cost:
        """An analysis with a pass of its own over its form of the corpus."""
        rows = EncodedCorpus(self.views[analysis.name].alone(), self.model.encoder)
        part = make_plan(self.model, rows, [analysis]).parts[analysis.name]
        own, added = self._observed(part, [analysis], {analysis.name: len(rows)})
        return _cost(
            analysis.name, len(rows), _plus(own, added[analysis.name]), "a pass of its own"
        )

    def _performed(self, experiment: Experiment) -> Cost:
        """An experiment on few examples and on more; one whose work does not depend on them is
        stopped once it has told how far it is."""
        part = self.run.plan.parts[experiment.name]
        limit = self.run.plan.limits[experiment.name]
        every = len(part.rows) if limit is None else min(limit, len(part.rows))
        few, more = max(2, every // 16), max(4, every // 8)
        if type(experiment).budget is None:
            spent = self._try(experiment, part, every, stop=True)
            return _cost(experiment.name, every, spent)
        while more <= every:
            try:
                first = self._try(experiment, part, few)
                # What takes long whatever it is given grows more slowly than two small tries say.
                long = min(first.seconds, first.cpu_seconds) > LONG  # however busy the machine is
                second = more if long else max(more, every // 4)
                line = Line(few, second, first, self._try(experiment, part, second))
                return _cost(experiment.name, every, fitted(line, every))
            except HeadwiseError:  # too few for what it does
                few, more = few * 2, more * 2
        try:
            return _cost(experiment.name, every, self._try(experiment, part, every))
        except HeadwiseError as error:
            return _cost(experiment.name, every, Spent(), f"cannot be done on this corpus: {error}")

    def _try(self, experiment: Experiment, part: Part, limit: int, stop: bool = False) -> Spent:
        began, told, factor = time.perf_counter(), 0.0, 1.0

        def progress(what: str, done: int, total: int) -> None:
            nonlocal told
            told = total / max(done, 1)
            if stop and done and time.perf_counter() - began > PATIENCE:
                raise _Enough

        inner = self.run.store.part(f"plan-{uuid4().hex}")
        bench = LocalContext(
            self.model, part.rows.corpus, part.rows, part.shape, inner, limit, progress
        )

        def perform() -> None:
            nonlocal factor
            try:
                experiment.perform(bench)
            except _Enough:
                factor = told

        return _times(_timed(perform), factor)

    def _random(self) -> list[Cost]:
        """The random-weights models beside the model."""
        plan, found = self.run.plan, Spent()
        count = 0
        for part, together in plan.together(self.views):
            asked = [a for a in together if isinstance(a, RandomNull)]
            models = RandomModels(self.model, part, plan.limits, self.run.options.seed)
            wanted = models.wanted(asked)
            try:
                for rows, some in models.together(asked):
                    few, more = (
                        rows[:: max(1, 2 * len(rows) // self.sample)],
                        rows[:: max(1, len(rows) // self.sample)],
                    )
                    first, second = (
                        _timed(partial(models.alone, 1, own, some)) for own in (few, more)
                    )
                    if not count:  # the first one of all is made as sharp as the model
                        found = _timed(partial(models.sharpness, rows))
                    number = max(wanted[a.name] for a in some)
                    found = _plus(
                        found,
                        _times(Line(len(few), len(more), first, second).at(len(rows)), number),
                    )
                    count += number
            except HeadwiseError:
                continue  # none can be made of this model
        return [_cost(RANDOM, count, found)] if count else []


def _evenly(rows: Sequence[T], count: int) -> list[T]:
    """So many of them, evenly."""
    count = min(count, len(rows))
    return [rows[(2 * place + 1) * len(rows) // (2 * count)] for place in range(count)]


def _timed(work: Callable[[], object]) -> Spent:
    """What some work takes, all its stages together."""
    clock = Clock()
    with clock.running(), stage("all", memory=True, whole=True):
        work()
    return clock.spent["all"]


def _plus(one: Spent, other: Spent) -> Spent:
    return Spent(
        one.seconds + other.seconds,
        one.cpu_seconds + other.cpu_seconds,
        max(one.memory, other.memory),
    )


def _times(one: Spent, factor: float) -> Spent:
    return Spent(one.seconds * factor, one.cpu_seconds * factor, one.memory)
