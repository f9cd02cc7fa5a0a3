"""Random-weights models beside the model: of the same shape, as sharp as it is, on the same
inputs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import xarray as xr

from headwise.analyses.nulls import RandomNull
from headwise.core.errors import HeadwiseError
from headwise.core.failures import UnexpectedError
from headwise.core.labels import Shape
from headwise.core.store import CheckpointStore
from headwise.core.workers import UnitResult, current, raise_failures
from headwise.models import HeadModel
from headwise.models.random_init import with_random_weights
from headwise.models.tap import SHARPER
from headwise.models.view import AttentionRows, Watcher
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batches
from headwise.run.plan import Part
from headwise.run.shard import merge_checkpoint, pack_states
from headwise.stats.accumulators import State
from headwise.text.encode import Batch, Encoded, batches

PART = 32  # rows of a unit of work
INPUTS = 128  # rows that random-weights models see, spread over those the analysis sees
SHARPNESS_INPUTS = 6
HALVINGS = 7
RANGE = (-6.0, 10.0)  # powers of two that scores are multiplied by
SEED = 7_919_000  # far from the seeds that people give to models of their own
BATCH_TOKENS = 4096


class Sharpness(Watcher):
    """Watches a pass: the mean largest weight of a row, over all rows and heads."""

    needs = frozenset({"attention"})

    def __init__(self, batch: Batch) -> None:
        self.batch, self.total, self.count = batch, 0.0, 0.0

    def on_rows(self, rows: AttentionRows) -> None:
        real = self.batch.attention_mask[:, None, rows.start : rows.stop]
        self.total += float((rows.weights.amax(-1) * real).sum())
        self.count += float(real.sum()) * rows.weights.shape[1]


def sharpness(model: HeadModel, rows: Sequence[Encoded]) -> float:
    """The mean largest weight of a row of the model's maps on these inputs."""
    total = count = 0.0
    for batch in batches(list(rows), BATCH_TOKENS, model.pad_id, model.device):
        watcher = Sharpness(batch)
        model.forward(batch, watcher)
        total, count = total + watcher.total, count + watcher.count
    return total / max(count, 1.0)


def sharpen(model: HeadModel, factor: float) -> None:
    """Multiply all attention scores of a model by a factor."""
    for module in model.sites.by_module:
        setattr(module, SHARPER, factor)


def as_sharp(random: HeadModel, target: float, rows: Sequence[Encoded]) -> float:
    """The factor by which a random model's scores are multiplied to be as sharp as this, found by
    halving."""
    low, high = RANGE
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        sharpen(random, 2.0**middle)
        low, high = (middle, high) if sharpness(random, rows) < target else (low, middle)
    return float(2.0 ** ((low + high) / 2))


def spread_rows(
    rows: EncodedCorpus,
    analyses: Sequence[RandomNull],
    limits: Mapping[str, int | None],
    most: int = INPUTS,
) -> dict[str, list[Encoded]]:
    """For each analysis at most so many of the rows that it looks at, spread evenly over those it
    sees.

    Two walks, so that of a long corpus only the places of the rows are held, not the rows.
    """
    places = {a.name: array("q") for a in analyses}
    for number, row in enumerate(rows):
        asked = [a for a in analyses if (limit := limits.get(a.name)) is None or number < limit]
        if not asked:
            break
        for analysis in asked:
            if analysis.applies_to(row):
                places[analysis.name].append(row.index)
    chosen = {
        name: [own[place * len(own) // most] for place in range(most)]
        if len(own) > most
        else own.tolist()
        for name, own in places.items()
    }
    found = rows.pick({index for own in chosen.values() for index in own})
    return {name: [found[index] for index in own] for name, own in chosen.items()}


class RandomModels:
    """Random-weights models of the shape of a model, and what analyses find on them.

    Parameters
    ----------
    model : HeadModel
        The model whose shape and sharpness they have.
    part : Part
        What it reads, and its shape there.
    limits : mapping of str to int or None
        How many examples each analysis sees.
    seed : int, default 0
        Of the run.
    """

    def __init__(
        self, model: HeadModel, part: Part, limits: Mapping[str, int | None], seed: int = 0
    ) -> None:
        self.model, self.rows, self.shape, self.limits, self.seed = (
            model,
            part.rows,
            part.shape,
            limits,
            seed,
        )

    def results(
        self,
        analyses: Sequence[RandomNull],
        store: CheckpointStore,
        note: Callable[[str], None],
        progress: Callable[[str, int, int], None] = lambda *_: None,
    ) -> dict[str, list[xr.Dataset]]:
        """The results of each analysis on as many models as it wants, an empty list where there are
        none.

        A model that cannot be made anew from its config has none, which is said.
        """
        wanted = self.wanted(analyses)
        found: dict[str, list[xr.Dataset]] = {a.name: [] for a in analyses}
        together = self.together(analyses)
        every = max(wanted.values(), default=0) if together else 0
        if not every:
            return found
        groups: list[
            list[tuple[str, RandomUnit]]
        ] = []  # the units of one model and those that watch it together
        for number in range(every):
            for group, (rows, alike) in enumerate(together):
                if asked := tuple(a for a in alike if number < wanted[a.name]):
                    parts = [rows[start : start + PART] for start in range(0, len(rows), PART)]
                    named = [(f"random-{number}-{group}-{i}", part) for i, part in enumerate(parts)]
                    groups.append([(name, RandomUnit(number, part, asked)) for name, part in named])
        total, done = sum(map(len, groups)), 0
        progress("random models", done, total)
        made = _Made()
        try:
            # One number says how sharp all are made; all units can then be made beside each other.
            factor = self.sharpness(together[0][0], store, made)
            pieces = raise_failures(
                current().run_units(store, self.job(factor, made), chain.from_iterable(groups))
            )
            for units in groups:
                asked = units[0][1].asked
                states = {a.name: a.reduced().start(self.shape) for a in asked}
                for _ in units:
                    self._add(states, asked, next(pieces).arrays)
                    done += 1
                    progress("random models", done, total)
                for a in asked:
                    found[a.name].append(self._result(a, states[a.name], factor))
            assert next(pieces, None) is None
        except UnexpectedError:
            raise  # a unit that ended its workers: a failure of the run
        except HeadwiseError as error:
            note(f"No random-weights model stands beside {', '.join(found)}: {error}")
            return {name: [] for name in found}
        finally:
            made.forget()
        return found

    def sharpness(
        self,
        rows: Sequence[Encoded],
        store: CheckpointStore | None = None,
        made: _Made | None = None,
    ) -> float:
        """The factor that makes random models as sharp as the model on the first of these rows."""
        sample = RandomUnit(0, list(rows[:SHARPNESS_INPUTS]), ())
        job = self.job(None, made or _Made())
        (piece,) = raise_failures(
            current().run_units(store, job, iter([("random-sharpness", sample)]))
        )
        return float(piece.facts["factor"])

    def _add(
        self,
        states: Mapping[str, State],
        asked: Sequence[RandomNull],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        for analysis in asked:
            merge_checkpoint(states[analysis.name], analysis.reduced(), self.shape, arrays)

    def _result(self, analysis: RandomNull, state: State, factor: float) -> xr.Dataset:
        return analysis.reduced().result(state, self.shape).assign_attrs(sharpness=factor)

    def alone(
        self, number: int, rows: Sequence[Encoded], asked: Sequence[RandomNull]
    ) -> dict[str, xr.Dataset]:
        """The results on some rows of one model that is not made sharp; nothing is kept."""
        states = {a.name: a.reduced().start(self.shape) for a in asked}
        self._add(
            states, asked, self.job(1.0, _Made())(RandomUnit(number, list(rows), tuple(asked)))[0]
        )
        return {a.name: self._result(a, states[a.name], 1.0) for a in asked}

    def together(
        self, analyses: Sequence[RandomNull]
    ) -> list[tuple[list[Encoded], list[RandomNull]]]:
        """The rows that random models see, each with the analyses that see them on the same
        ones."""
        wanted = self.wanted(analyses)
        found: dict[tuple[int, ...], tuple[list[Encoded], list[RandomNull]]] = {}
        some = [a for a in analyses if wanted[a.name]]
        spread = spread_rows(self.rows, some, self.limits)
        for analysis in some:
            chosen = spread[analysis.name]
            found.setdefault(tuple(row.index for row in chosen), (chosen, []))[1].append(analysis)
        found.pop((), None)
        return list(found.values())

    def wanted(self, analyses: Sequence[RandomNull]) -> dict[str, int]:
        """How many models each analysis wants."""
        heads = self.shape.layers * self.shape.heads
        parameters = sum(p.numel() for p in self.model.module.parameters())
        return {a.name: a.random_count(heads, parameters) for a in analyses}

    def job(self, factor: float | None, made: _Made) -> RandomJob:
        """What makes their pieces; without a factor, it finds the one that makes them as sharp as
        the model."""
        return RandomJob(self.model, self.shape, self.seed, factor, made)


class _Made:
    """The random-weights model that was made last: its units follow each other. It does not
    travel."""

    def __init__(self) -> None:
        self._seed, self._model = -1, None  # type: int, HeadModel | None

    def __reduce__(self) -> tuple[type[_Made], tuple[()]]:
        return _Made, ()

    def model(self, like: HeadModel, seed: int) -> HeadModel:
        """The one of this seed."""
        if self._model is None or self._seed != seed:
            self.forget()
            self._seed, self._model = seed, with_random_weights(like, seed)
        return self._model

    def forget(self) -> None:
        """Let it go."""
        if self._model is not None:
            self._model.close()
        self._model = None


@dataclass(frozen=True, slots=True)
class RandomUnit:
    """Which random-weights model, what it reads, and who watches."""

    number: int
    rows: list[Encoded]
    asked: tuple[RandomNull, ...]


@dataclass(frozen=True, slots=True)
class RandomJob:
    """Makes a piece of a unit: the states of its analyses after its rows, scores multiplied by a
    factor. Without one, the piece is the factor that makes them as sharp as the model's."""

    model: HeadModel
    shape: Shape
    seed: int
    factor: float | None
    made: _Made

    def __call__(self, unit: RandomUnit) -> UnitResult:
        model = self.model
        random = self.made.model(model, SEED + 100 * self.seed + unit.number)
        if self.factor is None:
            return {}, {"factor": as_sharp(random, sharpness(model, unit.rows), unit.rows)}
        sharpen(random, self.factor)
        light = [analysis.reduced() for analysis in unit.asked]
        states = {a.name: a.start(self.shape) for a in light}
        observe_batches(
            random, batches(unit.rows, BATCH_TOKENS, model.pad_id, model.device), light, states
        )
        return pack_states(states), {}
