"""The contract of an analysis: parameters in, a small mergeable state, labelled arrays out.

Subclassing registers an analysis. Authors of analyses import everything they need from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import wraps
from typing import Any, ClassVar, Protocol, Self

import xarray as xr
from torch import Tensor

from headwise.analyses.papers import Paper
from headwise.analyses.registry import (
    REGISTRY,
    choose_analyses,
    has_variant,
    known_analyses,
    make_analysis,
    register,
)
from headwise.core.checks import at_least, check_types, one_of
from headwise.core.labels import (
    SIGNIFICANCE_LEVEL,
    Shape,
    layer_head_coords,
    mean_variables,
    variable_of,
)
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
    "LayerObserver",
    "Observer",
    "OwnCorpusObserver",
    "OwnPassObserver",
    "Paper",
    "Shape",
    "at_least",
    "choose_analyses",
    "has_variant",
    "known_analyses",
    "layer_head_coords",
    "make_analysis",
    "mean_variables",
    "one_of",
    "relative_cost",
    "split_batch",
]

# How the examples of a corpus are weighted in a mean.
WEIGHTINGS = ("examples", "tokens")

# The power of the number of examples, with which the time of fits of all heads grows.
FIT_POWER = 0.3

# Fewer examples than this are too few for a test.
MIN_EXAMPLES = 30

# Size of BERT base, the unit in which the cost of a model is measured.
BERT_HEADS = 144
BERT_WEIGHTS = 12 * 768**2


def relative_cost(shape: Shape, logits: bool = False) -> float:
    """Return the cost of one example in this model, as a multiple of BERT base's; at least 1.

    Parameters
    ----------
    shape : Shape
        The model's size.
    logits : bool, default False
        Whether logits are computed, which cost as much as all layers where a small model has a
        large vocabulary.
    """
    n_heads = shape.layers * shape.heads
    n_weights = shape.layers * shape.hidden**2
    if logits:
        # A layer has about twelve matrices of this size.
        n_weights += shape.extras.get("vocabulary", 0) * shape.hidden // 12
    return max(1.0, n_heads / BERT_HEADS, n_weights / BERT_WEIGHTS)


class Analysis:
    """What all analyses share: parameters, requirements, and a summary of the result.

    Subclass `Observer` or `Experiment` as a frozen dataclass whose fields are the parameters, and
    set `name`, `title` and `paper`. A field `seed: int | None = None` receives the run's seed.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[Paper]
    # Number of examples `headwise atlas` uses for a model of BERT's size; None: all.
    budget: ClassVar[int | None] = None
    # Whether it computes logits of the whole vocabulary for each example: part of its cost.
    reads_logits: ClassVar[bool] = False
    # Whether it can analyse cross-attention, from a target to its source.
    cross: ClassVar[bool] = False
    # Whether `headwise atlas` runs it by default.
    automatic: ClassVar[bool] = True
    # What it is worth to a reader, compared with others: an atlas that grows does first what is
    # worth most for its cost.
    worth: ClassVar[float] = 1.0
    # Units of variables whose arrays have no unit: unit -> names separated by spaces.
    units: ClassVar[Mapping[str, str]] = {}
    # Variables whose value depends on the order of heads by convention (numbered clusters).
    order_dependent: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check = cls.__dict__.get("__post_init__")
        if check is not None and not hasattr(check, "__wrapped__"):
            # Types are checked before the subclass's own checks, which may then rely on them.
            @wraps(check)
            def check_types_first(self: Analysis) -> None:
                Analysis.__post_init__(self)
                check(self)

            cls.__post_init__ = check_types_first  # type: ignore[method-assign]
        if cls.name:
            register(cls)

    def __post_init__(self) -> None:
        """Reject parameters whose type is not that of their field."""
        check_types(self)
        if self.parameters.get("seed") is not None:
            at_least("seed", self.parameters["seed"], 0)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        parameters = {}
        for field in fields(self):  # type: ignore[arg-type]
            parameters[field.name] = getattr(self, field.name)
        return parameters

    @property
    def requires(self) -> frozenset[str]:
        """Annotations without which nothing can be computed; may also be a class variable."""
        return frozenset()

    def seeded(self, seed: int) -> Self:
        """Return the analysis with the run's seed, if it has a field `seed` that is not set."""
        if "seed" in self.parameters and self.parameters["seed"] is None:
            return replace(self, seed=seed)  # type: ignore[type-var]
        return self

    def planned(self, shape: Shape) -> Self:
        """Return the analysis with parameters chosen that depend on the model and the corpus."""
        return self

    def max_examples(self, shape: Shape) -> int | None:
        """Return how many examples `headwise atlas` uses; None: all.

        It is the budget, divided by the model's cost relative to BERT's, but at least thirty. It
        depends on sizes alone, never on measured time, so that an interrupted run can resume on
        another machine.
        """
        if self.budget is None:
            return None
        at_least_examples = min(self.budget, MIN_EXAMPLES)
        cost = relative_cost(shape, self.reads_logits)
        return max(at_least_examples, int(self.budget / cost))

    def unsupported_reason(self, shape: Shape) -> str | None:
        """Return why this analysis cannot run on such a model at all; None if it can."""
        return None

    def missing_items(self, shape: Shape) -> dict[str, str]:
        """Return the items (roles, features, sources) this corpus or model lacks, with the reason.

        Their values are NaN, and the result names them."""
        return {}

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        """Return the items of a result that occur nowhere in the corpus, with the reason."""
        return {}

    def summary(self, dataset: xr.Dataset) -> list[str]:
        """Return the lines that `headwise run` prints before the table of heads."""
        return []

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        """Return which heads are significant after correction, bool `[layer, head, ...]`.

        None if the analysis tests no heads. `headwise.testing` checks that models with random
        weights have no significant heads."""
        p_adjusted = variable_of(dataset, "p_adjusted")
        if p_adjusted is None or not {"layer", "head"} <= set(p_adjusted.dims):
            return None
        return p_adjusted < SIGNIFICANCE_LEVEL

    def extend(self, datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """Return all groups of an atlas, with what this analysis adds once the others are done."""
        return dict(datasets)


class Observer(Analysis):
    """An analysis that observes the forward pass, which it shares with other observers.

    For every batch and layer the engine calls `reduce_rows` on each block of query rows, adds up
    the returned tensors, and passes the sums to `observe`. Set `taps`; write `start`,
    `reduce_rows`, `observe` and `result`.

    What a `StatsRequest` can express (mass on sets of keys, entropies, diagonals, ...) is better
    requested: a GPU then never forms the weights. Write `request`, `reduce` and `update` instead of
    `reduce_rows` and `observe`.
    """

    taps: ClassVar[frozenset[str]] = frozenset({"attention"})
    # Whether it costs so much more than the model's pass that it has a pass of its own, after those
    # that others share: an atlas that grows can be read before.
    apart: ClassVar[bool] = False
    # What such an observer takes for an example, roughly, in passes of the model.
    typical_passes: ClassVar[float] = 1.0

    def max_examples(self, shape: Shape) -> int | None:
        # Observing the shared pass costs about as much as the model itself, however large it is.
        return self.budget

    def start(self, shape: Shape) -> State:
        """Return an empty state."""
        raise NotImplementedError

    def request(self, batch: Batch) -> StatsRequest | None:
        """Return the statistics it needs of the weights; None if it reduces rows itself."""
        return None

    def reduce(self, result: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        """Return the sums that `update` receives, from the requested statistics.

        On a GPU, `result` may hold the heads of several layers side by side: dim 1 of every tensor
        is heads, or 1."""
        return {}

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        """Add some layers of one batch to the state.

        `sums` are the tensors of `reduce`, `[example, layer, head, ...]` (layer and head are 1 if
        they are the same for all). By default `observe` receives them layer by layer."""
        for place, layer in enumerate(range(layers.start, layers.stop)):
            sums_of_layer = {}
            for name, value in sums.items():
                sums_of_layer[name] = value[:, min(place, value.shape[1] - 1)]
            self.observe(state, sums_of_layer, Layer(layer), batch)

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        """Return tensors that add up over query rows."""
        return {}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        """Add one layer of one batch to the state; `sums` are those of `reduce_rows`, or `reduce`,
        over all rows."""
        raise NotImplementedError

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        """Return the labelled arrays."""
        raise NotImplementedError


class OwnPassObserver(Observer):
    """An observer that runs the model itself, because it needs gradients or whole maps.

    Write `start`, `observe_batch` and `result`. States, shards and checkpoints are those of every
    observer."""

    apart: ClassVar[bool] = True
    typical_passes: ClassVar[float] = 3.0

    def max_examples(self, shape: Shape) -> int | None:
        return Analysis.max_examples(self, shape)

    def observe_batch(
        self, model: HeadModel, batch: Batch, state: State, block_rows: int | None = None
    ) -> None:
        """Run the model over one batch and add what it shows to the state.

        Parameters
        ----------
        model : HeadModel
            The model to run.
        batch : Batch
            The examples.
        state : State
            What is known so far; changed in place.
        block_rows : int, optional
            Query rows per block; default: as many as fit.
        """
        raise NotImplementedError


class OwnCorpusObserver(Observer):
    """An observer that may need the corpus in another form than the others (documents in windows).

    It then has a pass of its own over that form."""

    def own_corpus(
        self, corpus: Corpus, encoder: Encoder, longest: int, truncated: int
    ) -> Corpus | None:
        """Return the corpus in the form this analysis needs; None: as it is.

        Parameters
        ----------
        corpus : Corpus
            The examples it may use.
        encoder : Encoder
            The model's.
        longest : int
            Tokens of the longest example.
        truncated : int
            Number of examples that were truncated.
        """
        raise NotImplementedError


class LayerObserver(Observer):
    """An observer of requested statistics that also reads the values or hidden states of layers."""

    def read_layer(self, layer: Layer, batch: Batch) -> Mapping[str, Tensor]:
        """Return what it needs of one layer beside requested statistics, `[example, head, ...]`.

        The layer has its values, and hidden states and outputs if `taps` names them. `update`
        receives these tensors along with the sums."""
        raise NotImplementedError


def split_batch(batch: Batch, max_examples: int) -> list[Batch]:
    """Return the batch in parts of at most so many examples."""
    if max_examples >= len(batch):
        return [batch]
    parts = []
    for start in range(0, len(batch), max_examples):
        parts.append(batch.select(range(start, min(start + max_examples, len(batch)))))
    return parts


class ExperimentContext(Protocol):
    """What an experiment works with.

    `rows` are the examples of `corpus` that are not too long, in order, encoded once for the whole
    run (`row.example`, `row.index`). What is in `store` survives an interruption. `limit` is how
    many examples it may use; None: all."""

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
    def limit(self) -> int | None: ...

    def progress(self, what: str, done: int, total: int) -> None: ...


class Experiment(Analysis):
    """An analysis in several phases (collect, fit, score) instead of one pass.

    What is in `context.store` is not computed again when an interrupted run resumes."""

    # For `headwise plan`: the power of the number of layers with which its time grows, if it is
    # known (then it is tried in one depth, otherwise in two).
    depth_power: ClassVar[float | None] = None
    # Its time in passes of the model over an example, roughly, for where there is no time to try it:
    # for each example, for one example of fits, or for all of it if it has no budget.
    typical_passes: ClassVar[float] = 1.0
    # Whether the first layers of a model show its cost. They do not where it depends on what the
    # whole model can do.
    tried_on_first_layers: ClassVar[bool] = True
    # Whether most of its time goes into fits, which hardly grow with the number of examples.
    fits: ClassVar[bool] = False

    def smallest(self) -> tuple[Self, float]:
        """Return the analysis with as little work as shows its cost, for `headwise plan`, and how
        many times that work the whole analysis has.

        By default the analysis itself: one that reads a budget of examples is tried on few."""
        return self, 1.0

    def larger(self) -> tuple[Self, float] | None:
        """Return the analysis with a few times the work of `smallest`, and how many times that work
        the whole analysis has: two sizes tell what grows with the work from what is done once.

        By default None: the smallest tells enough."""
        return None

    def first_part(self) -> Self | None:
        """Return the analysis without what is dearest, for the first round of an atlas that grows.

        It works on the checkpoints of the whole analysis, which later computes none of it again.
        By default None: there is no such part."""
        return None

    def passes(self, n_examples: int) -> float:
        """Return what it takes with so many examples, roughly, in passes of the model over one."""
        if self.fits:
            return self.typical_passes * float(n_examples**FIT_POWER)
        if type(self).budget is not None:
            return self.typical_passes * n_examples
        return self.typical_passes

    def perform(self, context: ExperimentContext) -> xr.Dataset:
        """Do the work and return the labelled arrays."""
        raise NotImplementedError
