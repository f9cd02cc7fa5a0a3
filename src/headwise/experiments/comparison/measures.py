"""Any streaming analysis, example by example: what each example adds to a mean is kept, so that two
models can be compared on the same examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Observer, Shape
from headwise.models import HeadModel
from headwise.run.engine import observe_batch
from headwise.stats.accumulators import Moments, State
from headwise.text.encode import Batch


class PerExampleMoments(Moments):
    """Moments that also keep the value of each example of a batch.

    `values` is None where an analysis adds other values than one for each example."""

    def __init__(self, examples: int, *shape: int) -> None:
        super().__init__(*shape)
        self.values: np.ndarray | None = np.full((examples, *shape), np.nan, dtype=np.float32)

    def add(self, values: Tensor, where: tuple[int | slice, ...] = ()) -> None:
        super().add(values, where)
        if self.values is not None and len(values) == len(self.values):
            self.values[(slice(None), *where)] = values.detach().to("cpu", torch.float32).numpy()
        else:
            self.values = None


@dataclass(slots=True, eq=False)
class AnalysisValues:
    """One model's result of an analysis, with the values of each example behind some of its
    variables."""

    dataset: xr.Dataset
    values: dict[str, np.ndarray]  # variable -> [example, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BatchMeasurer:
    """Several analyses that observe one batch of one model: their states, and the values of its
    examples."""

    model: HeadModel
    analyses: Sequence[Observer]
    shape: Shape

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        states = {analysis.name: analysis.start(self.shape) for analysis in self.analyses}
        for state in states.values():
            for key, accumulator in state.items():
                if type(accumulator) is Moments:
                    state[key] = PerExampleMoments(len(batch), *accumulator.count.shape)
        observe_batch(self.model, batch, self.analyses, states)
        arrays: dict[str, np.ndarray] = {}
        for name, state in states.items():
            for key, array in state.arrays().items():
                arrays[f"state/{name}/{key}"] = array
            for key, accumulator in state.items():
                if isinstance(accumulator, PerExampleMoments) and accumulator.values is not None:
                    arrays[f"values/{name}/{key}"] = accumulator.values
        return arrays


class ModelMeasurements:
    """Adds up what several analyses measure of one model, batch by batch: `measure_batch` observes
    a batch, `update` adds its arrays."""

    def __init__(
        self, model: HeadModel, analyses: Sequence[Observer], shape: Shape, examples: int
    ) -> None:
        self.measure_batch = BatchMeasurer(model, analyses, shape)
        self.analyses = analyses
        self.shape = shape
        self.states: dict[str, State] = {}
        self.values: dict[str, np.ndarray] = {}  # analysis/variable -> [example, ...]
        for analysis in analyses:
            state = analysis.start(shape)
            self.states[analysis.name] = state
            for key, accumulator in state.items():
                if type(accumulator) is Moments:
                    values_shape = (examples, *accumulator.count.shape)
                    empty = np.full(values_shape, np.nan, dtype=np.float32)
                    self.values[f"{analysis.name}/{key}"] = empty

    def update(self, arrays: Mapping[str, np.ndarray], index: Sequence[int]) -> None:
        """Add what `measure_batch` returned for the examples at the positions `index`."""
        for analysis in self.analyses:
            batch_state: State = analysis.start(self.shape)
            prefix = f"state/{analysis.name}/"
            state_arrays = {}
            for key, array in arrays.items():
                if key.startswith(prefix):
                    state_arrays[key.removeprefix(prefix)] = array
            batch_state.load(state_arrays)
            self.states[analysis.name].merge(batch_state)
        for name in list(self.values):
            if f"values/{name}" in arrays:
                self.values[name][index] = arrays[f"values/{name}"]
            else:
                # The analysis adds other values than one for each example.
                del self.values[name]

    def results(self) -> dict[str, AnalysisValues]:
        """Return the result of each analysis; with values only for variables that are their mean
        over examples."""
        results = {}
        for analysis in self.analyses:
            dataset = analysis.result(self.states[analysis.name], self.shape)
            values_by_variable = {}
            for name in map(str, dataset.data_vars):
                values = self.values.get(f"{analysis.name}/{name}")
                if values is not None and dataset[name].shape == values.shape[1:]:
                    values_by_variable[name] = values
            results[analysis.name] = AnalysisValues(dataset, values_by_variable)
        return results
