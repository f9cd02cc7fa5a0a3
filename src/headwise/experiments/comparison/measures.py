"""Any streaming analysis, example by example: what each example adds to a mean is kept, so that two models can be compared on the same examples."""

from __future__ import annotations

from collections.abc import Sequence
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


class _Current:
    """The examples of the batch that is being observed."""

    index: Sequence[int] = ()


class Kept(Moments):
    """Moments that also keep the value of each example."""

    def __init__(self, current: _Current, examples: int, *shape: int) -> None:
        super().__init__(*shape)
        self._current = current
        self.values = np.full((examples, *shape), np.nan, dtype=np.float32)
        self.aligned = True  # False once an analysis has handed in other examples than those of the batch

    def add(self, values: Tensor, where: tuple[int | slice, ...] = ()) -> None:
        super().add(values, where)
        if len(values) != len(self._current.index):
            self.aligned = False
            return
        rows = np.asarray(self._current.index)
        part = self.values[rows]
        part[(slice(None), *where)] = values.detach().to("cpu", torch.float32).numpy()
        self.values[rows] = part


@dataclass(slots=True, eq=False)
class Measured:
    """One model's result of an analysis, with the values of each example behind some of its variables."""

    dataset: xr.Dataset
    values: dict[str, np.ndarray]  # variable -> [example, ...]


class Measuring:
    """Several analyses watching one model."""

    def __init__(self, model: HeadModel, analyses: Sequence[Observer], shape: Shape, examples: int) -> None:
        self.model, self.analyses, self.shape = model, analyses, shape
        self._current = _Current()
        self.states = {analysis.name: self._keeping(analysis.start(shape), examples) for analysis in analyses}

    def _keeping(self, state: State, examples: int) -> State:
        for name, accumulator in state.items():
            if type(accumulator) is Moments:
                state[name] = Kept(self._current, examples, *accumulator.count.shape)
        return state

    def observe(self, batch: Batch) -> None:
        self._current.index = batch.index
        observe_batch(self.model, batch, self.analyses, self.states)

    def results(self) -> dict[str, Measured]:
        found = {}
        for analysis in self.analyses:
            dataset = analysis.result(self.states[analysis.name], self.shape)
            values = {
                name: kept.values
                for name, kept in self.states[analysis.name].items()
                if isinstance(kept, Kept)
                and kept.aligned
                and name in dataset.data_vars
                and dataset[name].shape == kept.values.shape[1:]
            }
            found[analysis.name] = Measured(dataset, values)
        return found
