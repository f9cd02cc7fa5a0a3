"""Random-weights models beside the model: of the same shape, every layer with attention as sharp as
the model's, on the same inputs."""

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
from headwise.models.tap import SCORE_FACTOR
from headwise.models.view import AttentionRows, Watcher
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import merge_checkpoint, observe_batches, pack_states
from headwise.run.plan import CorpusPart
from headwise.run.progress import Progress, no_progress
from headwise.stats.accumulators import State
from headwise.text.encode import Batch, Encoded, batches

UNIT_ROWS = 32  # rows of a unit of work
INPUTS = 128  # rows that random-weights models see, spread over those the analysis sees
SHARPNESS_INPUTS = 6
HALVINGS = 7
MIN_POWER, MAX_POWER = (-6.0, 10.0)  # powers of two that scores are multiplied by
SEED = 7_919_000  # far from the seeds that users give to models of their own
BATCH_TOKENS = 4096


class SharpnessWatcher(Watcher):
    """Measures a pass: for each layer the mean largest attention weight of a row, over all rows and
    heads."""

    needs = frozenset({"attention"})

    def __init__(self, batch: Batch, layers: int) -> None:
        self.batch = batch
        self.total = np.zeros(layers)
        self.count = np.zeros(layers)

    def on_rows(self, rows: AttentionRows) -> None:
        query_mask = self.batch.attention_mask[:, None, rows.start : rows.stop]
        n_heads = rows.weights.shape[1]
        self.total[rows.layer] += float((rows.weights.amax(-1) * query_mask).sum())
        self.count[rows.layer] += float(query_mask.sum()) * n_heads


def sharpness(model: HeadModel, rows: Sequence[Encoded]) -> np.ndarray:
    """Return the mean largest attention weight of a row in each layer, over all rows and heads, on
    some inputs."""
    total = np.zeros(model.layers)
    count = np.zeros(model.layers)
    for batch in batches(list(rows), BATCH_TOKENS, model.pad_id, model.device):
        watcher = SharpnessWatcher(batch, model.layers)
        model.forward(batch, watcher)
        total += watcher.total
        count += watcher.count
    return total / np.maximum(count, 1.0)


def sharpen(model: HeadModel, factors: np.ndarray) -> None:
    """Multiply the attention scores of each layer by its factor.

    A module that serves several layers gets their geometric mean."""
    for module, site in model.sites.by_module.items():
        factor = float(np.exp(np.log(factors[list(site.layers)]).mean()))
        setattr(module, SCORE_FACTOR, factor)


def matching_factors(random: HeadModel, target: np.ndarray, rows: Sequence[Encoded]) -> np.ndarray:
    """Return the factors on a random model's scores that make each of its layers as sharp as
    `target[layer]`.

    All layers are bisected at once: how sharp one is depends on its own factor above all."""
    low = np.full(len(target), MIN_POWER)
    high = np.full(len(target), MAX_POWER)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        sharpen(random, 2.0**middle)
        is_too_flat = sharpness(random, rows) < target
        low = np.where(is_too_flat, middle, low)
        high = np.where(is_too_flat, high, middle)
    return np.asarray(2.0 ** ((low + high) / 2))


def spread_rows(
    rows: EncodedCorpus,
    analyses: Sequence[RandomNull],
    limits: Mapping[str, int | None],
    most: int = INPUTS,
) -> dict[str, list[Encoded]]:
    """Return for each analysis at most so many of the rows that it applies to, spread evenly.

    The corpus is iterated twice, so that of a long one only the indices of rows are held in memory,
    not the rows."""
    indices = {analysis.name: array("q") for analysis in analyses}
    for number, row in enumerate(rows):
        reading = []
        for analysis in analyses:
            limit = limits.get(analysis.name)
            if limit is None or number < limit:
                reading.append(analysis)
        if not reading:
            break
        for analysis in reading:
            if analysis.applies_to(row):
                indices[analysis.name].append(row.index)

    chosen: dict[str, list[int]] = {}
    for name, candidates in indices.items():
        if len(candidates) > most:
            chosen[name] = [candidates[i * len(candidates) // most] for i in range(most)]
        else:
            chosen[name] = candidates.tolist()
    row_at = rows.pick(set(chain.from_iterable(chosen.values())))
    return {name: [row_at[index] for index in picked] for name, picked in chosen.items()}


@dataclass(frozen=True, slots=True)
class RandomUnit:
    """A unit of work: which random-weights model, what it reads, and the analyses that observe."""

    number: int
    rows: list[Encoded]
    analyses: tuple[RandomNull, ...]


class RandomModels:
    """Random-weights models of the shape of a model, and the results of analyses on them.

    Parameters
    ----------
    model : HeadModel
        The model whose shape and sharpness they have.
    part : CorpusPart
        What it reads, and its shape there.
    limits : mapping of str to int or None
        How many examples each analysis reads.
    seed : int, default 0
        Of the run.
    """

    def __init__(
        self, model: HeadModel, part: CorpusPart, limits: Mapping[str, int | None], seed: int = 0
    ) -> None:
        self.model = model
        self.rows = part.rows
        self.shape = part.shape
        self.limits = limits
        self.seed = seed

    def results(
        self,
        analyses: Sequence[RandomNull],
        store: CheckpointStore,
        note: Callable[[str], None],
        progress: Progress = no_progress,
    ) -> dict[str, list[xr.Dataset]]:
        """Return the results of each analysis on its random models; an empty list where there are
        none.

        A model that cannot be built from its config has no random models, which is noted."""
        results: dict[str, list[xr.Dataset]] = {analysis.name: [] for analysis in analyses}
        groups = self.together(analyses)
        series = self._units(groups, self.n_models(analyses))
        if not series:
            return results
        done = 0
        total = sum(map(len, series))
        progress("random models", done, total)
        cache = _ModelCache()
        try:
            # The same factors make all of them as sharp, so that all units can be computed in
            # parallel.
            factors = self.sharpness(groups[0][0], store, cache)
            units = chain.from_iterable(series)
            checkpoints = raise_failures(
                current().run_units(store, self.function(factors, cache), units)
            )
            for model_units in series:
                observing = model_units[0][1].analyses
                states = self._start(observing)
                for _ in model_units:
                    self._merge(states, observing, next(checkpoints).arrays)
                    done += 1
                    progress("random models", done, total)
                for analysis in observing:
                    results[analysis.name].append(
                        self._result(analysis, states[analysis.name], factors)
                    )
            # `raise_failures` raises after the last result: exhaust it.
            assert next(checkpoints, None) is None
        except UnexpectedError:
            raise  # a unit that ended its workers: a failure of the run
        except HeadwiseError as error:
            note(f"No random-weights model for {', '.join(results)}: {error}")
            return {name: [] for name in results}
        finally:
            cache.clear()
        return results

    def _units(
        self,
        groups: Sequence[tuple[list[Encoded], list[RandomNull]]],
        n_models: Mapping[str, int],
    ) -> list[list[tuple[str, RandomUnit]]]:
        """Return the named units, one list for each model and each group of analyses."""
        series = []
        for number in range(max(n_models.values(), default=0)):
            for group_number, (rows, alike) in enumerate(groups):
                observing = tuple(a for a in alike if number < n_models[a.name])
                if not observing:
                    continue
                units = []
                for start in range(0, len(rows), UNIT_ROWS):
                    name = f"random-{number}-{group_number}-{start // UNIT_ROWS}"
                    unit_rows = rows[start : start + UNIT_ROWS]
                    units.append((name, RandomUnit(number, unit_rows, observing)))
                series.append(units)
        return series

    def sharpness(
        self,
        rows: Sequence[Encoded],
        store: CheckpointStore | None = None,
        cache: _ModelCache | None = None,
    ) -> np.ndarray:
        """Return the factors that make the layers of random models as sharp as those of the model on
        the first rows."""
        unit = RandomUnit(0, list(rows[:SHARPNESS_INPUTS]), ())
        function = self.function(None, cache or _ModelCache())
        results = current().run_units(store, function, iter([("random-sharpness", unit)]))
        (checkpoint,) = raise_failures(results)
        return np.asarray(checkpoint.arrays["factors"])

    def _start(self, analyses: Sequence[RandomNull]) -> dict[str, State]:
        return {analysis.name: analysis.reduced().start(self.shape) for analysis in analyses}

    def _merge(
        self,
        states: Mapping[str, State],
        analyses: Sequence[RandomNull],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        for analysis in analyses:
            merge_checkpoint(states[analysis.name], analysis.reduced(), self.shape, arrays)

    def _result(self, analysis: RandomNull, state: State, factors: np.ndarray) -> xr.Dataset:
        return analysis.reduced().result(state, self.shape).assign_attrs(sharpness=factors)

    def alone(
        self, number: int, rows: Sequence[Encoded], analyses: Sequence[RandomNull]
    ) -> dict[str, xr.Dataset]:
        """Return the results on some rows of one model whose scores are as they are; without
        checkpoints."""
        states = self._start(analyses)
        unit = RandomUnit(number, list(rows), tuple(analyses))
        as_they_are = np.ones(self.shape.layers)
        arrays, _ = self.function(as_they_are, _ModelCache())(unit)
        self._merge(states, analyses, arrays)
        return {a.name: self._result(a, states[a.name], as_they_are) for a in analyses}

    def together(
        self, analyses: Sequence[RandomNull]
    ) -> list[tuple[list[Encoded], list[RandomNull]]]:
        """Return the rows that random models read, each with the analyses that share them."""
        n_models = self.n_models(analyses)
        with_models = [analysis for analysis in analyses if n_models[analysis.name]]
        rows_of = spread_rows(self.rows, with_models, self.limits)
        groups: dict[tuple[int, ...], tuple[list[Encoded], list[RandomNull]]] = {}
        for analysis in with_models:
            rows = rows_of[analysis.name]
            key = tuple(row.index for row in rows)
            if key:
                groups.setdefault(key, (rows, []))[1].append(analysis)
        return list(groups.values())

    def n_models(self, analyses: Sequence[RandomNull]) -> dict[str, int]:
        """Return how many random models each analysis is compared with."""
        n_heads = self.shape.layers * self.shape.heads
        n_parameters = sum(parameter.numel() for parameter in self.model.module.parameters())
        return {a.name: a.random_count(n_heads, n_parameters) for a in analyses}

    def function(self, factors: np.ndarray | None, cache: _ModelCache) -> RandomModelFunction:
        """Return the function that computes units; without factors it finds the factors."""
        return RandomModelFunction(self.model, self.shape, self.seed, factors, cache)


class _ModelCache:
    """The random-weights model that was built last: its units follow each other. It is pickled
    empty."""

    def __init__(self) -> None:
        self._seed = -1
        self._model: HeadModel | None = None

    def __reduce__(self) -> tuple[type[_ModelCache], tuple[()]]:
        return _ModelCache, ()

    def model(self, like: HeadModel, seed: int) -> HeadModel:
        """Return the random-weights model of a seed."""
        if self._model is None or self._seed != seed:
            self.clear()
            self._seed = seed
            self._model = with_random_weights(like, seed)
        return self._model

    def clear(self) -> None:
        """Close the model."""
        if self._model is not None:
            self._model.close()
        self._model = None


@dataclass(frozen=True, slots=True)
class RandomModelFunction:
    """Computes the states of a unit's analyses on its rows, with the scores of each layer multiplied
    by its factor.

    Without factors the result is the factors that make the random model as sharp as the model."""

    model: HeadModel
    shape: Shape
    seed: int
    factors: np.ndarray | None
    cache: _ModelCache

    def __call__(self, unit: RandomUnit) -> UnitResult:
        model = self.model
        random = self.cache.model(model, SEED + 100 * self.seed + unit.number)
        if self.factors is None:
            target = sharpness(model, unit.rows)
            return {"factors": matching_factors(random, target, unit.rows)}, {}
        sharpen(random, self.factors)
        observers = [analysis.reduced() for analysis in unit.analyses]
        states = {observer.name: observer.start(self.shape) for observer in observers}
        unit_batches = batches(unit.rows, BATCH_TOKENS, model.pad_id, model.device)
        observe_batches(random, unit_batches, observers, states)
        return pack_states(states), {}
