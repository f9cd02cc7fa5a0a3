"""The common battery: checks of the contract that hold for every analysis.

`check_analysis(analysis, ...)` runs all; `CHECKS` has them by name, for a test's parameters. Each
raises an AssertionError that names the variable and the property it violates."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import FrozenInstanceError, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.contract import Analysis, Observer, Shape, make_analysis
from headwise.analyses.nulls import RandomNull
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batches
from headwise.run.options import RunOptions
from headwise.run.plan import model_shape
from headwise.run.provenance import describe
from headwise.run.runner import run_analyses
from headwise.stats.accumulators import State
from headwise.testing.corpora import battery_examples
from headwise.testing.models import permute_heads, random_model
from headwise.testing.names import VARIABLES, check_names
from headwise.text import Corpus
from headwise.text.encode import Batch, Encoded, batches, collate
from headwise.text.example import Example

RELATIVE, ABSOLUTE = 2e-4, 2e-5  # sums in another order: float32 rounding and no more
MAX_TOKENS = 90
WHOLE = 100_000  # tokens: everything in one batch
SHARD = 2
EXPERIMENT_COPIES = 5  # something is learned from the corpus: it needs more of it
# Names a picked head or says something of it: where heads tie, their order decides.
PICKED = re.compile(r"^(best|top)_|_(head|layer)$")

# Parameters of our analyses for the battery's corpus, where the defaults are for real ones.
SMALL: dict[str, dict[str, Any]] = {
    "attribution": {"length": 11, "patterns": 1},
    "distance": {"permutations": 99},
    # The battery's links lie side by side.
    "frames": {"min_distance": 1, "max_words": 40, "core": False, "permutations": 49},
    "induction": {"length": 8, "sequences": 4, "disable": 1, "draws": 2, "confirm": 2},
    "retrieval": {"lengths": (44,), "depths": 2, "needles": 1},
    "roles": {"bootstrap": 50},
    "tree_probe": {
        "epochs": 1,
        "learning_rate": 0.01,
    },  # the search of a rate is what takes the time
}


@dataclass(eq=False)
class BatteryCase:
    """An analysis on a small model and corpus, to be checked.

    Parameters
    ----------
    analysis : Analysis
        The analysis.
    causal : bool, default False
        Use a decoder instead of an encoder.
    examples : sequence of Example, optional
        The corpus; default: eleven examples with every annotation (five times as many for
        experiments).
    order_dependent : frozenset of str, optional
        Variables that depend on the order of heads by convention (numbers of clusters, random
        permutations) and are not compared under a permutation; added to the analysis's own
        `order_dependent`, where it has one.
    """

    analysis: Analysis
    causal: bool = False
    examples: Sequence[Example] | None = None
    order_dependent: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.analysis = self.whole = self.analysis.seeded(0)
        if isinstance(
            self.analysis, RandomNull
        ):  # invariances are the model's own; the whole way has a random one too
            self.analysis = replace(self.analysis, random_models=0)  # type: ignore[type-var]
            self.whole = replace(self.analysis, random_models=1)  # type: ignore[type-var]
        self.module, self.tokenizer = random_model(causal=self.causal)
        self.model = HeadModel.open(self.module, tokenizer=self.tokenizer)
        copies = 1 if self.streams else EXPERIMENT_COPIES
        given = battery_examples(copies) if self.examples is None else list(self.examples)
        self.corpus = Corpus.from_examples(given, "battery")
        self.shape: Shape = model_shape(
            self.model, EncodedCorpus(self.corpus, self.model.encoder).scan
        )
        self.analysis, self.whole = (
            self.analysis.planned(self.shape),
            self.whole.planned(self.shape),
        )
        self.rows: list[Encoded] = [
            self.model.encode(example, index) for index, example in enumerate(given)
        ]

    @property
    def unsupported_reason(self) -> str | None:
        """Why this analysis cannot run on this model and corpus; None if it can."""
        lacking = sorted(self.analysis.requires - self.shape.annotations)
        return (
            f"the corpus has no {', '.join(lacking)}"
            if lacking
            else self.analysis.unsupported_reason(self.shape)
        )

    @property
    def observer(self) -> Observer:
        assert isinstance(self.analysis, Observer)
        return self.analysis

    @property
    def streams(self) -> bool:
        return isinstance(self.analysis, Observer)

    def batches(
        self, rows: Sequence[Encoded] | None = None, max_tokens: int = MAX_TOKENS
    ) -> list[Batch]:
        return batches(
            self.rows if rows is None else rows, max_tokens, self.model.pad_id, self.model.device
        )

    def observe(
        self, given: Iterable[Batch], block_rows: int | None = None, model: HeadModel | None = None
    ) -> State:
        states = {self.analysis.name: self.observer.start(self.shape)}
        return observe_batches(
            model or self.model, given, [self.observer], states, block_rows=block_rows
        )[self.analysis.name]

    def result(self, state: State) -> xr.Dataset:
        return self.observer.result(state, self.shape)

    def run(
        self, model: HeadModel | None = None, analysis: Analysis | None = None, **options: Any
    ) -> xr.Dataset:
        """Return the result of a whole run: plan, shards, merge, labels."""
        asked = analysis or self.analysis
        with tempfile.TemporaryDirectory() as folder:
            return run_analyses(
                model or self.model, self.corpus, [asked], folder, RunOptions(full=True, **options)
            )[asked.name]

    @cached_property
    def reference(self) -> xr.Dataset:
        """The result everything else is compared with: for observers, from rows one by one, without
        any padding."""
        if not self.streams:
            return self.run()
        return self.result(
            self.observe(
                [collate([row], self.model.pad_id, self.model.device) for row in self.rows]
            )
        )

    @cached_property
    def observed(self) -> State:
        """The state after all examples in batches of the usual size; copy before merging."""
        return self.observe(self.batches())

    @cached_property
    def parts(self) -> tuple[State, State, State]:
        """The states of two examples, of one, and of the others; copy before merging."""
        first, second, third = (
            self.observe(self.batches(rows))
            for rows in (self.rows[:2], self.rows[2:3], self.rows[3:])
        )
        return first, second, third

    @cached_property
    def labelled(self) -> xr.Dataset:
        same = (
            not self.streams and self.whole == self.analysis
        )  # the reference came the whole way too
        return self.reference if same else self.run(analysis=self.whole)


# --- invariances ----------------------------------------------------------------------------------


def check_batching(case: BatteryCase) -> None:
    """Batches of any size give the same numbers (those of one row are the reference)."""
    assert_same(case.result(case.observed), case.reference, f"batches of {MAX_TOKENS} tokens")
    for size in (40, WHOLE):
        assert_same(
            case.result(case.observe(case.batches(max_tokens=size))),
            case.reference,
            f"batches of {size} tokens",
        )


def check_padding(case: BatteryCase) -> None:
    """Padding, also far more than needed, gives the same numbers."""
    width = min(case.model.max_length, max(map(len, case.rows)) + 9)
    whole = collate(case.rows, case.model.pad_id, case.model.device, pad_to=width)
    assert_same(
        case.result(case.observe([whole])), case.reference, f"all examples padded to {width} tokens"
    )


def check_order(case: BatteryCase) -> None:
    """The order in which examples come by does not matter, neither of batches nor within them."""
    shuffled = [case.rows[i] for i in np.random.default_rng(3).permutation(len(case.rows))]
    mixed = [
        collate(shuffled[i : i + 3], case.model.pad_id, case.model.device)
        for i in range(0, len(shuffled), 3)
    ]
    assert_same(case.result(case.observe(mixed)), case.reference, "another order of examples")


def check_row_blocks(case: BatteryCase) -> None:
    """Weights shown a few query rows at a time give the same numbers."""
    whole = case.batches(max_tokens=WHOLE)
    for size in (1, 5):
        assert_same(
            case.result(case.observe(whole, block_rows=size)),
            case.reference,
            f"blocks of {size} rows",
        )


def check_sharding(case: BatteryCase) -> None:
    """A run in many shards equals the run in one."""
    # Of eleven examples the last stands alone: shards of one and of several in one run.
    assert_same(
        case.run(shard_size=SHARD, batch_tokens=MAX_TOKENS),
        case.reference,
        f"shards of {SHARD} examples",
    )
    one = case.labelled if case.whole == case.analysis else case.run()
    assert_same(one, case.reference, "one shard")


def check_merge(case: BatteryCase) -> None:
    """Merging is associative and commutative up to rounding, and an empty state changes nothing."""
    a, b, c, whole = (*case.parts, case.observed)
    nothing = case.observer.start(case.shape)

    def merged(*states: State) -> State:
        first, *rest = (
            deepcopy(state) for state in states
        )  # merging changes them, and they are needed again
        for other in rest:
            first.merge(other)
        return first

    assert_same(case.result(merged(a, b, c)), case.reference, "(a + b) + c")
    assert_same(case.result(merged(a, merged(b, c))), case.reference, "a + (b + c)")
    assert_same(case.result(merged(c, a, b)), case.reference, "c + a + b")
    assert_same(case.result(merged(nothing, whole)), case.reference, "nothing + a")
    assert_same(case.result(merged(whole, nothing)), case.reference, "a + nothing")


def check_saving(case: BatteryCase) -> None:
    """A state saved and loaded is the same state, to the last bit: alone, and when more is merged
    into it."""
    second, _, first = (deepcopy(part) for part in case.parts)
    loaded = case.observer.start(case.shape)
    saved = {name: np.array(array) for name, array in first.arrays().items()}
    loaded.load(saved)
    again = loaded.arrays()
    assert saved.keys() == again.keys(), (
        f"arrays change by saving: {sorted(saved.keys() ^ again.keys())}"
    )
    for name, array in saved.items():
        assert isinstance(array, np.ndarray), f"{name} is saved as no array"
        assert array.dtype.kind in "biuf", (
            f"{name} is saved as {array.dtype}, which no plain file holds"
        )
        assert array.dtype == again[name].dtype, f"{name} changes its type by saving"
        np.testing.assert_array_equal(array, again[name], err_msg=name)
    xr.testing.assert_identical(case.result(loaded), case.result(first))
    loaded.merge(deepcopy(second))
    first.merge(second)
    xr.testing.assert_identical(case.result(loaded), case.result(first))


def check_empty(case: BatteryCase) -> None:
    """A state that has seen nothing gives NaN, no crash."""
    empty = case.result(case.observer.start(case.shape))
    assert empty.sizes == case.reference.sizes or set(empty.dims) <= set(case.reference.dims)


def check_permutation(case: BatteryCase) -> None:
    """A model with its heads in another order gives the same numbers in that order."""
    generator = np.random.default_rng(7)
    order = [generator.permutation(case.shape.heads).tolist() for _ in range(case.shape.layers)]
    if all(new == sorted(new) for new in order):
        order = [new[::-1] for new in order]
    case.model.close()  # a copy must not carry the tap along
    other = HeadModel.open(permute_heads(case.module, order), tokenizer=case.tokenizer)
    case.model = HeadModel.open(case.module, tokenizer=case.tokenizer)
    found = (
        case.result(case.observe(case.batches(), model=other)) if case.streams else case.run(other)
    )
    skipped = case.order_dependent | case.analysis.order_dependent
    keep = [
        name
        for name in case.reference.data_vars
        if not PICKED.search(str(name)) and not {_stem(str(name)), str(name)} & skipped
    ]
    assert keep, "no variable is left to compare"
    assert_same(found[keep], permuted(case.reference[keep], order), "another order of heads")


def check_repetition(case: BatteryCase) -> None:
    """The same run again gives the same bytes."""
    xr.testing.assert_identical(case.run(analysis=case.whole), case.labelled)


# --- what a result looks like ---------------------------------------------------------------------


def check_result(case: BatteryCase) -> None:
    """Dims come from one vocabulary, means have counts and intervals, and attributes name the paper."""
    check_names(case.analysis.name, case.labelled)
    for name in ("title", "paper", "section", "citation"):
        assert case.labelled.attrs.get(name), f"attribute `{name}` is missing"
    assert json.loads(case.labelled.attrs["parameters"]) == json.loads(
        json.dumps(describe(case.whole.parameters))
    )
    for name, value in case.labelled.attrs.items():
        assert isinstance(value, str | int | float | np.number), (
            f"attribute `{name}` is {type(value).__name__}; a file holds strings and numbers"
        )
    if not case.analysis.missing_items(case.shape):
        empty = [
            name
            for name in VARIABLES.get(case.analysis.name, {})
            if not case.labelled[name].notnull().any()
        ]
        assert not empty, (
            f"{', '.join(empty)}: nothing but NaN, though nothing is said to be missing"
        )


def check_parameters(case: BatteryCase) -> None:
    """Parameters are stored untouched, are immutable and JSON-serialisable; unknown ones are
    rejected."""
    name, given = case.analysis.name, case.analysis.parameters
    for parameter, value in given.items():
        again = make_analysis(name, {parameter: value})
        assert getattr(again, parameter) is value, f"`{parameter}` is changed at construction"
        try:
            setattr(case.analysis, parameter, value)
        except FrozenInstanceError:
            continue
        raise AssertionError(f"`{parameter}` can be changed after construction")
    json.dumps(describe(given))
    message = _rejection(name, {"no_such_parameter": 1})
    assert "no_such_parameter" in message, "an unknown parameter is taken without a word"
    assert all(parameter in message for parameter in given), "the known parameters are not named"


def _rejection(name: str, parameters: dict[str, Any]) -> str:
    """Return the message when these parameters are rejected; empty if they are accepted."""
    try:
        make_analysis(name, parameters)
    except ParameterError as error:
        return str(error)
    return ""


def _named(*checks: Callable[[BatteryCase], None]) -> dict[str, Callable[[BatteryCase], None]]:
    return {check.__name__.removeprefix("check_"): check for check in checks}


STREAM_CHECKS = _named(check_batching, check_padding, check_order, check_row_blocks)
STREAM_CHECKS |= _named(check_sharding, check_merge, check_saving, check_empty)
COMMON_CHECKS = _named(check_permutation, check_repetition, check_result, check_parameters)
CHECKS = STREAM_CHECKS | COMMON_CHECKS


def check_analysis(
    analysis: Analysis,
    *,
    causal: bool = False,
    examples: Sequence[Example] | None = None,
    order_dependent: Iterable[str] = (),
) -> list[str]:
    """Run every check that applies and return their names.

    Raises AssertionError at the first that fails, or where the analysis cannot run here.
    """
    case = BatteryCase(analysis, causal, examples, frozenset(order_dependent))
    assert case.unsupported_reason is None, f"{analysis.name} cannot run: {case.unsupported_reason}"
    run = CHECKS if case.streams else COMMON_CHECKS
    for name, check in run.items():
        try:
            check(case)
        except AssertionError as error:
            raise AssertionError(f"{analysis.name}, {name}: {error}") from error
    return list(run)


# --- comparing ------------------------------------------------------------------------------------


def assert_same(found: xr.Dataset, expected: xr.Dataset, what: str) -> None:
    """Two results with the same variables, labels and, up to rounding, numbers."""
    assert set(found.data_vars) == set(expected.data_vars), (
        f"{what}: variables differ: {sorted(map(str, set(found.data_vars) ^ set(expected.data_vars)))}"
    )
    for name in found.data_vars:
        a, b = found.variables[name], expected.variables[name]
        assert a.dims == b.dims, f"{what}: {name} has dims {a.dims}, not {b.dims}"
        assert a.shape == b.shape, f"{what}: {name} has shape {a.shape}, not {b.shape}"
        if a.dtype.kind == "f":
            np.testing.assert_allclose(
                a.values, b.values, rtol=RELATIVE, atol=ABSOLUTE, err_msg=f"{what}: {name}"
            )
        else:
            np.testing.assert_array_equal(a.values, b.values, err_msg=f"{what}: {name}")
    for name in found.coords:
        labels = found.variables[name].values, expected.variables[name].values
        np.testing.assert_array_equal(*labels, err_msg=f"{what}: labels of {name}")


def permuted(dataset: xr.Dataset, order: Sequence[Sequence[int]]) -> xr.Dataset:
    """A result with its heads in another order.

    `[layer, head]` by layer, `head` alone as the last layer's, `head_a` and `head_b` as layer ·
    heads + head."""
    heads = len(order[0])
    flat = [layer * heads + h for layer, new in enumerate(order) for h in new]
    out = dataset.copy(deep=True)
    for name, array in dataset.data_vars.items():
        values = array.values
        for dim in ("head_a", "head_b"):
            if dim in array.dims:
                values = np.take(values, flat, axis=array.dims.index(dim))
        if "head" in array.dims:
            axis = array.dims.index("head")
            if "layer" in array.dims:
                moved = np.moveaxis(values, (array.dims.index("layer"), axis), (0, 1))
                moved = np.stack([moved[layer][list(new)] for layer, new in enumerate(order)])
                values = np.moveaxis(moved, (0, 1), (array.dims.index("layer"), axis))
            else:
                values = np.take(values, list(order[-1]), axis=axis)
        out[
            name
        ].values = (
            values  # in place: assigning a variable named like its dim would make it a coordinate
        )
    return out


def _stem(name: str) -> str:
    return next(
        (name.removesuffix(suffix) for suffix in ("_n", "_low", "_high") if name.endswith(suffix)),
        name,
    )
