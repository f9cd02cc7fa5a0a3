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
    """Moments that also keep the value of each example of a batch, unless an analysis hands in
    other examples than those."""

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
    """Several analyses watching one model: the states of one batch, and the values of its
    examples."""

    model: HeadModel
    analyses: Sequence[Observer]
    shape: Shape

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        states = {analysis.name: analysis.start(self.shape) for analysis in self.analyses}
        for state in states.values():
            for key, own in state.items():
                if type(own) is Moments:
                    state[key] = PerExampleMoments(len(batch), *own.count.shape)
        observe_batch(self.model, batch, self.analyses, states)
        found: dict[str, np.ndarray] = {}
        for name, state in states.items():
            found |= {f"state/{name}/{key}": array for key, array in state.arrays().items()}
            for key, own in state.items():
                if isinstance(own, PerExampleMoments) and own.values is not None:
                    found[f"values/{name}/{key}"] = own.values
        return found


class ModelMeasurements:
    """Adds up what several analyses see of one model, batch by batch: `watching` looks at a batch,
    `take` adds."""

    def __init__(
        self, model: HeadModel, analyses: Sequence[Observer], shape: Shape, examples: int
    ) -> None:
        self.watching = BatchMeasurer(model, analyses, shape)
        self.analyses, self.shape = analyses, shape
        self.states = {analysis.name: analysis.start(shape) for analysis in analyses}
        self.values = {
            f"{name}/{key}": np.full((examples, *own.count.shape), np.nan, dtype=np.float32)
            for name, state in self.states.items()
            for key, own in state.items()
            if type(own) is Moments
        }

    def take(self, found: Mapping[str, np.ndarray], index: Sequence[int]) -> None:
        """Add what `watching` gave for the examples that stand at `index`."""
        for analysis in self.analyses:
            part: State = analysis.start(self.shape)
            prefix = f"state/{analysis.name}/"
            part.load(
                {
                    key.removeprefix(prefix): array
                    for key, array in found.items()
                    if key.startswith(prefix)
                }
            )
            self.states[analysis.name].merge(part)
        for name in list(self.values):
            if f"values/{name}" in found:
                self.values[name][index] = found[f"values/{name}"]
            else:
                del self.values[name]

    def results(self) -> dict[str, AnalysisValues]:
        """What each analysis makes of all batches; values only of variables that are the mean over
        them."""
        measured = {}
        for analysis in self.analyses:
            dataset = analysis.result(self.states[analysis.name], self.shape)
            own = {
                str(name): self.values.get(f"{analysis.name}/{name}") for name in dataset.data_vars
            }
            kept = {
                n: v for n, v in own.items() if v is not None and dataset[n].shape == v.shape[1:]
            }
            measured[analysis.name] = AnalysisValues(dataset, kept)
        return measured
