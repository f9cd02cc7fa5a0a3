"""Random-weights models beside the model: of the same shape, as sharp as it is, on the same inputs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.nulls import RandomNull
from headwise.core.errors import HeadwiseError
from headwise.core.labels import Shape
from headwise.core.store import Store, pack_dataset, unpack_dataset
from headwise.core.workers import Made, current, whole
from headwise.models import HeadModel
from headwise.models.tap import SHARPER
from headwise.models.twins import with_random_weights
from headwise.models.view import Layer, Rows
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batches
from headwise.run.plan import Part
from headwise.text.encode import Batch, Encoded, batches

INPUTS = 128  # rows that random-weights models see, spread over those the analysis sees
SHARPNESS_INPUTS = 6
HALVINGS = 7
RANGE = (-6.0, 10.0)  # powers of two that scores are multiplied by
SEED = 7_919_000  # far from the seeds that people give to models of their own
BATCH_TOKENS = 4096


class Sharpness:
    """Watches a pass: the mean largest weight of a row, over all rows and heads."""

    needs = frozenset({"attention"})

    def __init__(self, batch: Batch) -> None:
        self.batch, self.total, self.count = batch, 0.0, 0.0

    def rows(self, rows: Rows) -> None:
        real = self.batch.real[:, None, rows.start : rows.stop]
        self.total += float((rows.weights.amax(-1) * real).sum())
        self.count += float(real.sum()) * rows.weights.shape[1]

    def layer(self, layer: Layer) -> None:
        pass


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
    """The factor by which a random model's scores are multiplied to be as sharp as this, found by halving."""
    low, high = RANGE
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        sharpen(random, 2.0**middle)
        low, high = (middle, high) if sharpness(random, rows) < target else (low, middle)
    return float(2.0 ** ((low + high) / 2))


def spread_rows(
    rows: EncodedCorpus, analyses: Sequence[RandomNull], limits: Mapping[str, int | None], most: int = INPUTS
) -> dict[str, list[Encoded]]:
    """For each analysis at most so many of the rows that it looks at, spread evenly over those it sees.

    Two walks, so that of a long corpus only the places of the rows are held, not the rows.
    """
    places = {a.name: array("q") for a in analyses}
    for number, row in enumerate(rows):
        asked = [a for a in analyses if (limit := limits.get(a.name)) is None or number < limit]
        if not asked:
            break
        for analysis in asked:
            if analysis.wants(row):
                places[analysis.name].append(row.index)
    chosen = {
        name: [own[place * len(own) // most] for place in range(most)] if len(own) > most else own.tolist()
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

    def __init__(self, model: HeadModel, part: Part, limits: Mapping[str, int | None], seed: int = 0) -> None:
        self.model, self.rows, self.shape, self.limits, self.seed = model, part.rows, part.shape, limits, seed

    def results(
        self,
        analyses: Sequence[RandomNull],
        store: Store,
        note: Callable[[str], None],
        progress: Callable[[str, int, int], None] = lambda *_: None,
    ) -> dict[str, list[xr.Dataset]]:
        """The results of each analysis on as many models as it wants, an empty list where there are none.

        A model that cannot be made anew from its config has none, which is said.
        """
        wanted = self.wanted(analyses)
        found: dict[str, list[xr.Dataset]] = {a.name: [] for a in analyses}
        together = self.together(analyses)
        every = max(wanted.values(), default=0) if together else 0
        if not every:
            return found
        units: list[tuple[str, RandomUnit]] = []
        for number in range(every):
            for group, (rows, alike) in enumerate(together):
                asked = tuple(a for a in alike if number < wanted[a.name])
                if asked:
                    units.append((f"random-{number}-{group}", RandomUnit(number, rows, asked)))
        progress("random models", 0, len(units))
        try:
            # The first says how sharp all are made; the others can be made beside each other.
            first = next(whole(current().pieces(store, self.job(None), iter(units[:1]))))
            others = current().pieces(store, self.job(first.facts["factor"]), iter(units[1:]))
            made = chain([first], whole(others))
            for done, ((_, unit), piece) in enumerate(zip(units, made, strict=True), 1):
                for a in unit.asked:
                    own = {key.split("/", 1)[1]: x for key, x in piece.arrays.items() if key.split("/", 1)[0] == a.name}
                    found[a.name].append(unpack_dataset(own, piece.facts[a.name]))
                progress("random models", done, len(units))
        except HeadwiseError as error:
            note(f"No random-weights model stands beside {', '.join(found)}: {error}")
            return {name: [] for name in found}
        return found

    def together(self, analyses: Sequence[RandomNull]) -> list[tuple[list[Encoded], list[RandomNull]]]:
        """The rows that random models see, each with the analyses that see them on the same ones."""
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

    def job(self, factor: float | None) -> RandomJob:
        """What makes their pieces; without a factor, it finds the one that makes them as sharp as the model."""
        return RandomJob(self.model, self.shape, self.seed, factor)


@dataclass(frozen=True, slots=True)
class RandomUnit:
    """Which random-weights model, what it reads, and who watches."""

    number: int
    rows: list[Encoded]
    asked: tuple[RandomNull, ...]


@dataclass(frozen=True, slots=True)
class RandomJob:
    """Makes a piece of a unit: what its analyses find on its model. Scores are multiplied by a factor; without one, by
    the factor that makes them as sharp as the model's."""

    model: HeadModel
    shape: Shape
    seed: int
    factor: float | None

    def __call__(self, unit: RandomUnit) -> Made:
        model, rows, factor = self.model, unit.rows, self.factor
        random = with_random_weights(model, SEED + 100 * self.seed + unit.number)
        if factor is None:
            sample = rows[:SHARPNESS_INPUTS]
            factor = as_sharp(random, sharpness(model, sample), sample)
        sharpen(random, factor)
        light = [analysis.lighter() for analysis in unit.asked]
        states = {a.name: a.start(self.shape) for a in light}
        observe_batches(random, batches(rows, BATCH_TOKENS, model.pad_id, model.device), light, states)
        random.close()
        arrays: dict[str, np.ndarray] = {}
        facts: dict[str, Any] = {"factor": factor}
        for a in light:
            own, facts[a.name] = pack_dataset(a.result(states[a.name], self.shape).assign_attrs(sharpness=factor))
            arrays |= {f"{a.name}/{key}": values for key, values in own.items()}
        return arrays, facts
