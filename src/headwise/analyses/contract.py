"""The contract of an analysis: parameters in, a small mergeable state, labelled arrays out.

A subclass is its own registration. Whoever writes an analysis imports what it needs from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import wraps
from typing import Any, ClassVar, Protocol, Self

import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.registry import (
    REGISTRY,
    choose_analyses,
    has_reading,
    known_analyses,
    make_analysis,
    register,
)
from headwise.core.checks import at_least, check_types, one_of
from headwise.core.labels import Shape, layer_head_coords, mean_variables, variable_of
from headwise.core.papers import Paper
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.view import AttentionRows, Layer
from headwise.stats.accumulators import State
from headwise.text.corpus import Corpus
from headwise.text.encode import Batch, Encoded, Encoder

__all__ = [
    "REGISTRY",
    "WEIGHTINGS",
    "Analysis",
    "Experiment",
    "ExperimentContext",
    "Loss",
    "Observer",
    "Paper",
    "Shape",
    "at_least",
    "choose_analyses",
    "has_reading",
    "known_analyses",
    "layer_head_coords",
    "make_analysis",
    "mean_variables",
    "one_of",
    "relative_cost",
]

WEIGHTINGS = ("examples", "tokens")
Loss = Callable[
    [Any, Batch], Tensor
]  # (the model's output, the batch) -> one loss for each example

LEAST_EXAMPLES = 30  # fewer are too few for a test


def relative_cost(shape: Shape) -> float:
    """What an example costs in this model, as a multiple of BERT's (12 layers of 12 heads, 768
    wide); at least 1."""
    heads, weights = (
        shape.layers * shape.heads / 144,
        shape.layers * shape.hidden**2 / (12 * 768**2),
    )
    return max(1.0, heads, weights)


class Analysis:
    """What every question has, whichever way it is answered: parameters, needs, words for its
    result.

    Subclass `Observer` or `Experiment` as a frozen dataclass whose fields are the parameters; set
    `name`, `title`, `paper`. A field `seed: int | None = None` gets the run's seed. `requires`,
    annotations without which nothing can be computed, may be a class variable or a property."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[Paper]
    budget: ClassVar[int | None] = (
        None  # examples `headwise atlas` gives it for BERT's size; None for all
    )
    cross: ClassVar[bool] = (
        False  # whether it can look at cross-attention, from a target to its source
    )
    automatic: ClassVar[bool] = True  # part of `headwise atlas` where nothing else is said
    # Units of variables whose arrays do not carry one: unit -> names with spaces between.
    units: ClassVar[Mapping[str, str]] = {}
    # Variables whose value depends on the order of heads by convention (numbered clusters).
    order_dependent: ClassVar[frozenset[str]] = frozenset()

    def max_examples(self, shape: Shape) -> int | None:
        """How many examples `headwise atlas` gives it: its budget, or for a model that costs more
        than BERT by as much less, but never fewer than thirty. It depends on sizes alone, so that a
        run can go on elsewhere."""
        return (
            None
            if self.budget is None
            else max(min(self.budget, LEAST_EXAMPLES), int(self.budget / relative_cost(shape)))
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check = cls.__dict__.get("__post_init__")
        if check is not None and not hasattr(check, "__wrapped__"):

            @wraps(check)
            def checked(self: Analysis) -> None:
                Analysis.__post_init__(self)
                check(self)

            cls.__post_init__ = checked  # type: ignore[method-assign]
        if cls.name:
            register(cls)

    def __post_init__(self) -> None:
        """Refuse parameters that are not of the type their field says; it goes before a subclass's
        own checks, which need not look at types."""
        check_types(self)
        if self.parameters.get("seed") is not None:
            at_least("seed", self.parameters["seed"], 0)

    @property
    def parameters(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def seeded(self, seed: int) -> Self:
        """The same analysis with the run's seed, where it draws anything and was given no seed of
        its own."""
        return replace(self, seed=seed) if self.parameters.get("seed", 0) is None else self  # type: ignore[type-var]

    def planned(self, shape: Shape) -> Self:
        """The same analysis with what it leaves to the plan decided from the sizes of model and
        corpus."""
        return self

    @property
    def requires(self) -> frozenset[str]:
        """Annotations without which nothing can be computed."""
        return frozenset()

    def missing_items(self, shape: Shape) -> dict[str, str]:
        """Items (sieves, features, sources) that this corpus or model cannot give, with the reason:
        NaN, and named."""
        return {}

    def unsupported_reason(self, shape: Shape) -> str | None:
        """Why nothing of this analysis can be computed for such a model, or None."""
        return None

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        """Items of a result that turned out to match nothing, with the reason: known only after the
        pass, and named."""
        return {}

    def summary(self, dataset: xr.Dataset) -> list[str]:
        """What a result comes to, a line each: shown on screen after `headwise run`, before the
        table of heads."""
        return []

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        """Which heads a result calls anything, after correction: bool `[layer, head, ...]`; None
        where it tests none.

        `headwise.testing` holds this to random weights, of which nothing may be said.
        """
        p = variable_of(dataset, "p_adjusted")
        return None if p is None or not {"layer", "head"} <= set(p.dims) else p < 0.05

    def extend(self, datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """All groups of an atlas once every analysis is done, with what this one has to add to the
        groups of others."""
        return dict(datasets)


class Observer(Analysis):
    """A question answered by watching one pass.

    For every batch and layer the engine calls `reduce_rows` on each block of query rows, adds the
    returned tensors up, and hands the sums to `observe` once. Set `taps`; write `start`,
    `reduce_rows`, `observe`, `result`. What can be said in the language of `StatsRequest` (masses on sets of keys,
    entropies, diagonals, ...) is better asked for than reduced, since a GPU then never forms the
    weights: write `request` and `reduce` instead of `reduce_rows`. With scope `example` it gets all layers
    of a micro-batch at once: write `start`, `observe_example`, `result`."""

    taps: ClassVar[frozenset[str]] = frozenset({"attention"})
    scope: ClassVar[str] = "layer"  # or "example"

    def view(self, corpus: Corpus, encoder: Encoder, longest: int, truncated: int) -> Corpus | None:
        """The corpus as this analysis wants it, where that is not as it stands: it then gets a pass
        of its own.

        `longest` is the longest row of the corpus in tokens, `truncated` the number of examples
        that had to be cut."""
        return None

    def max_examples(self, shape: Shape) -> int | None:
        one_pass = (
            self.scope == "layer" and "attention_gradient" not in self.taps
        )  # costs as much as the model does
        return self.budget if one_pass else super().max_examples(shape)

    def start(self, shape: Shape) -> State:
        """An empty state."""
        raise NotImplementedError

    def request(self, batch: Batch) -> StatsRequest | None:
        """What it wants of the weights; None where it reduces rows itself."""
        return None

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        """From the answers of one layer, the sums that `update` gets once the pass is over.

        On a GPU these may be the heads of several layers side by side: dim 1 of every tensor is
        that of heads, or 1."""
        return {}

    def read_layer(self, layer: Layer, batch: Batch) -> Mapping[str, Tensor]:
        """For one that asks: what it takes of a layer itself, `[example, head (or 1), ...]`, each
        layer alone. `update` gets it beside what was reduced. Values are always there, hidden states
        and outputs where `taps` names them."""
        return {}

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        """Take some layers of one batch into the state. `sums` are what `reduce` and `read_layer` gave,
        `[example, layer, head, ...]` (both 1 for what is said of all heads alike). Unless written
        otherwise, `observe` gets them layer by layer."""
        for place, layer in enumerate(range(layers.start, layers.stop)):
            own = {name: value[:, min(place, value.shape[1] - 1)] for name, value in sums.items()}
            self.observe(state, own, Layer(layer), batch)

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        """Tensors that add up over query rows."""
        return {}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        """Take one layer of one batch into the state. `sums` are what `reduce_rows` gave, added over
        all rows (or what `reduce` gave)."""
        raise NotImplementedError

    def observe_example(self, state: State, maps: Tensor, visible: Tensor, batch: Batch) -> None:
        """For scope `example`: all maps `[example, layer, head, query, key]` of one micro-batch,
        and V(i), the same for all heads, as `visible[example, layer, 1, query, key]`."""
        raise NotImplementedError

    def observe_rows(
        self, state: State, maps: Tensor, visible: Tensor, batch: Batch, total: int
    ) -> None:
        """The same for one example too long to be held whole, where an analysis can see its rows
        apart: some rows of all layers, out of `total` that it is shown in turn. Without it such an
        example is held whole."""
        raise NotImplementedError

    def rows_wanted(self, batch: Batch, at_once: int) -> Tensor:
        """Which rows of such an example it is shown, `at_once` in a pass: all, or a sample in
        random order."""
        return torch.arange(int(batch.lengths[0]))

    def skip(self, state: State, count: int) -> None:
        """Told of examples that `prepare` left out."""

    def prepare(self, batch: Batch, model: HeadModel) -> tuple[Batch, Loss]:
        """For the tap `attention_gradient`: the batch to run (masked, say), and the loss."""
        raise NotImplementedError

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        """The labelled arrays."""
        raise NotImplementedError


class ExperimentContext(Protocol):
    """What an experiment works with.

    `rows` are the examples of `corpus` that are not too long, in order, encoded once for the whole
    run (`row.example`, `row.index`); `store` is its own part of the run's store and survives a
    kill."""

    @property
    def model(self) -> HeadModel: ...
    @property
    def corpus(self) -> Corpus: ...
    @property
    def rows(self) -> Iterable[Encoded]: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def store(self) -> CheckpointStore: ...
    @property
    def limit(self) -> int | None: ...  # examples it may use; None for all

    def progress(self, what: str, done: int, total: int) -> None: ...


class Experiment(Analysis):
    """A question answered in phases (collect, fit, score) instead of one stream: what is in
    `bench.store` is not made again."""

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        raise NotImplementedError
