"""The contract of an analysis: parameters in, a small mergeable state, labelled arrays out. A subclass is its own registration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, Protocol

import numpy as np
import xarray as xr
from torch import Tensor

from headwise.core.errors import ParameterError, unknown
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import Moments, Ratios, State
from headwise.text.corpus import Corpus
from headwise.text.encode import Batch, Encoder


@dataclass(frozen=True, slots=True)
class Paper:
    """Where a method comes from."""

    key: str  # "clark2019"
    section: str  # "§3.1-3.3, Fig 2, 4"


@dataclass(frozen=True, slots=True)
class Shape:
    """What an analysis may know of a run before it starts: the model's size and what the corpus offers."""

    layers: int
    heads: int
    d_head: int
    hidden: int
    causal: bool
    max_length: int
    token_types: tuple[str, ...]  # those the tokenizer really has
    annotations: frozenset[str] = frozenset()  # those some example of the corpus has
    relations: tuple[str, ...] = ()  # those seen in the corpus, sorted
    kv_groups: tuple[int, ...] = ()  # key/value group of each head
    extras: Mapping[str, Any] = field(default_factory=dict)


WEIGHTINGS = ("examples", "tokens")
REGISTRY: dict[str, type[Analysis]] = {}


class Analysis:
    """One question a paper asks of every head.

    Subclass it as a frozen dataclass whose fields are the parameters; set `name`, `title`, `paper`, `taps`; write `start`, `reduce`, `observe`, `result`.
    The engine calls, for every batch and layer, `reduce` on each block of query rows, adds the returned tensors up, and hands the sums to `observe` once.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[Paper]
    taps: ClassVar[frozenset[str]] = frozenset({"attention"})
    requires: ClassVar[frozenset[str]] = frozenset()  # annotations without which nothing can be computed
    budget: ClassVar[int | None] = None  # examples `headwise atlas` gives it; None for all
    order_dependent: ClassVar[frozenset[str]] = (
        frozenset()
    )  # variables whose value depends on the order of heads by convention (numbered clusters)
    automatic: ClassVar[bool] = True  # part of `headwise atlas` where nothing else is said
    scope: ClassVar[str] = "layer"  # or "example": all layers of a micro-batch at once

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            REGISTRY[cls.name] = cls

    # --- parameters -------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    # --- what it needs ----------------------------------------------------------------------------------------------

    def missing(self, shape: Shape) -> dict[str, str]:
        """Items (sieves, features, sources) that this corpus or model cannot give, each with the reason. They are NaN in the result and named on screen."""
        return {}

    def refusal(self, shape: Shape) -> str | None:
        """Why nothing of this analysis can be computed for such a model, or None."""
        return None

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        """Items of a result that turned out to match nothing, each with the reason: known only after the pass, and named like those of `missing`."""
        return {}

    def view(self, corpus: Corpus, encoder: Encoder, longest: int, truncated: int) -> Corpus | None:
        """The corpus as this analysis wants it, where that is not as it stands: documents cut into windows, say. It then gets a pass of its own.

        `longest` is the longest row of the corpus in tokens, as encoded, `truncated` the number of examples that had to be cut.
        """
        return None

    # --- the pass ---------------------------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        """An empty state."""
        raise NotImplementedError

    def reduce(self, rows: Rows, batch: Batch) -> Mapping[str, Tensor]:
        """Tensors that add up over query rows."""
        return {}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        """Take one layer of one batch into the state. `sums` are what `reduce` gave, added over all rows."""
        raise NotImplementedError

    def observe_example(self, state: State, maps: Tensor, batch: Batch) -> None:
        """For scope `example`: all maps `[example, layer, head, query, key]` of one micro-batch at once."""
        raise NotImplementedError

    def prepare(self, batch: Batch, model: Any) -> tuple[Batch, Any]:
        """For `attention_gradient`: the batch to run (masked, say) and `loss(output, batch)` giving one loss for each example."""
        raise NotImplementedError

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        """The labelled arrays."""
        raise NotImplementedError

    def headline(self, dataset: xr.Dataset) -> list[str]:
        """What a result comes to, a line each: shown on screen after `headwise run`, before the table of heads."""
        return []

    def extend(self, datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """All groups of an atlas once every analysis is done, with what this one has to add to the groups of others."""
        return dict(datasets)


class Bench(Protocol):
    """What an experiment works with: the model, the corpus, a folder of its own that survives a kill, and a way to say how far it is."""

    model: Any
    corpus: Any
    shape: Shape
    folder: Path
    limit: int | None  # examples it may use; None for all

    def progress(self, what: str, done: int, total: int) -> None: ...


class Experiment(Analysis):
    """An analysis with phases (collect, fit, score) instead of one stream. `perform` may leave finished phases in `bench.folder` and go on from them."""

    taps: ClassVar[frozenset[str]] = frozenset()

    def perform(self, bench: Bench) -> xr.Dataset:
        raise NotImplementedError


def known_analyses() -> dict[str, type[Analysis]]:
    """Every analysis by name: the folders of this package are imported, which registers theirs, and those that others registered count too."""
    package = __name__.rpartition(".")[0]
    for module in iter_modules(import_module(package).__path__):
        if module.ispkg:
            import_module(f"{package}.{module.name}.analysis")
    return dict(sorted(REGISTRY.items()))


def make_analysis(name: str, parameters: Mapping[str, Any] | None = None) -> Analysis:
    """An analysis by name, with checked parameters."""
    registry = known_analyses()
    if name not in registry:
        raise ParameterError(unknown("analysis", name, registry))
    cls = registry[name]
    allowed = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for given in parameters or {}:
        if given not in allowed:
            raise ParameterError(unknown(f"parameter of {name}", given, allowed))
    return cls(**(parameters or {}))


def layer_head_coords(shape: Shape) -> dict[str, Any]:
    coords: dict[str, Any] = {"layer": np.arange(shape.layers), "head": np.arange(shape.heads)}
    if shape.kv_groups and shape.kv_groups != tuple(range(shape.heads)):
        coords["kv_group"] = ("head", np.array(shape.kv_groups))
    return coords


def tidy(dataset: xr.Dataset) -> xr.Dataset:
    """Make a dataset whose variable is named like one of its dims (`token_type[layer, head, token_type]`) behave: the labels of that dim live in `token_type_name`,
    by which it can be selected, and the variable is a data variable, not the coordinate that xarray takes it for."""
    misplaced = [name for name, coordinate in dataset.coords.items() if coordinate.ndim > 1]
    dataset = dataset.reset_coords(misplaced)
    labels = [str(name) for name in dataset.coords if str(name).endswith("_name") and name not in dataset.xindexes]
    for label in labels:
        dataset = dataset.set_xindex(label)
    return dataset


def mean_variables(name: str, dims: Sequence[str], moments: Moments | Ratios, **attrs: Any) -> dict[str, xr.Variable]:
    """`name`, `name_n`, `name_low`, `name_high`: a mean over examples with its count and 95 % interval."""
    summary = moments.summary()
    dims = tuple(dims)
    return {
        name: xr.Variable(dims, summary["mean"].astype(np.float32), attrs),
        f"{name}_n": xr.Variable(dims, summary["n"], {"long_name": f"examples behind {name}"}),
        f"{name}_low": xr.Variable(
            dims, summary["low"].astype(np.float32), {"long_name": f"lower end of the 95 % interval of {name}"}
        ),
        f"{name}_high": xr.Variable(
            dims, summary["high"].astype(np.float32), {"long_name": f"upper end of the 95 % interval of {name}"}
        ),
    }


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse a parameter that is not among the allowed values."""
    allowed = list(allowed)
    if value not in allowed:
        raise ParameterError(f"`{name}` must be one of {', '.join(map(str, allowed))}; it is {value!r}.")


def at_least(name: str, value: float, low: float) -> None:
    """Refuse a parameter below a limit."""
    if not value >= low:
        raise ParameterError(f"`{name}` must be at least {low}; it is {value!r}.")
