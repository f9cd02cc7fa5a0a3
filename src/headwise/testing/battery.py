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

# Sums in another order differ by float32 rounding and no more.
RELATIVE = 2e-4
ABSOLUTE = 2e-5
MAX_TOKENS = 90  # of a batch of the usual size
ALL_TOKENS = 100_000  # everything in one batch
SHARD = 2
EXPERIMENT_COPIES = 5  # experiments learn from the corpus, and need more of it
# Variables that name the best head or say something of it: where heads tie, their order decides.
PICKED = re.compile(r"^(best|top)_|_(head|layer)$")

# Parameters of our analyses for the battery's corpus, where the defaults are for real ones.
SMALL: dict[str, dict[str, Any]] = {
    "attribution": {"length": 11, "patterns": 1},
    "distance": {"permutations": 99},
    # The battery's links lie side by side.
    "frames": {"min_distance": 1, "max_words": 40, "core": False, "permutations": 49},
    "function_vectors": {"prompts": 2},
    "induction": {"length": 8, "sequences": 4, "disable": 1, "draws": 2, "confirm": 2},
    "retrieval": {"lengths": (44,), "depths": 2, "needles": 1},
    "roles": {"bootstrap": 50},
    # With a learning rate there is no search for one, which takes most of the time.
    "tree_probe": {"epochs": 1, "learning_rate": 0.01},
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
        analysis = self.analysis.seeded(0)
        # The analysis as whole runs compute it.
        full_analysis = analysis
        if isinstance(analysis, RandomNull):
            # Invariances are checked on the model alone; only whole runs compare with a random one.
            analysis = replace(analysis, random_models=0)  # type: ignore[type-var]
            full_analysis = replace(analysis, random_models=1)  # type: ignore[type-var]
        self.module, self.tokenizer = random_model(causal=self.causal)
        self.model = HeadModel.open(self.module, tokenizer=self.tokenizer)
        if self.examples is None:
            copies = 1 if isinstance(analysis, Observer) else EXPERIMENT_COPIES
            examples = battery_examples(copies)
        else:
            examples = list(self.examples)
        self.corpus = Corpus.from_examples(examples, "battery")
        scan = EncodedCorpus(self.corpus, self.model.encoder).scan
        self.shape: Shape = model_shape(self.model, scan)
        self.analysis = analysis.planned(self.shape)
        self.full_analysis = full_analysis.planned(self.shape)
        self.rows: list[Encoded] = []
        for index, example in enumerate(examples):
            self.rows.append(self.model.encode(example, index))

    @property
    def unsupported_reason(self) -> str | None:
        """Why this analysis cannot run on this model and corpus; None if it can."""
        missing = sorted(self.analysis.requires - self.shape.annotations)
        if missing:
            return f"the corpus has no {', '.join(missing)}"
        return self.analysis.unsupported_reason(self.shape)

    @property
    def observer(self) -> Observer:
        assert isinstance(self.analysis, Observer)
        return self.analysis

    @property
    def streams(self) -> bool:
        """Whether the analysis is an observer, whose states are merged; experiments have none."""
        return isinstance(self.analysis, Observer)

    def batches(
        self, rows: Sequence[Encoded] | None = None, max_tokens: int = MAX_TOKENS
    ) -> list[Batch]:
        """Return rows (default: all) in batches of at most so many tokens."""
        if rows is None:
            rows = self.rows
        return batches(rows, max_tokens, self.model.pad_id, self.model.device)

    def batch(self, rows: Sequence[Encoded], pad_to: int = 0) -> Batch:
        """Return these rows as one batch, padded to at least so many tokens."""
        return collate(rows, self.model.pad_id, self.model.device, pad_to=pad_to)

    def observe(
        self,
        batches: Iterable[Batch],
        block_rows: int | None = None,
        model: HeadModel | None = None,
    ) -> State:
        """Return the state of the observer after these batches."""
        empty_states = {self.analysis.name: self.observer.start(self.shape)}
        states = observe_batches(
            model or self.model, batches, [self.observer], empty_states, block_rows=block_rows
        )
        return states[self.analysis.name]

    def result(self, state: State) -> xr.Dataset:
        """Return the observer's result of a state."""
        return self.observer.result(state, self.shape)

    def run(
        self, model: HeadModel | None = None, analysis: Analysis | None = None, **options: Any
    ) -> xr.Dataset:
        """Return the result of a whole run: plan, shards, merge, labels."""
        if model is None:
            model = self.model
        if analysis is None:
            analysis = self.analysis
        run_options = RunOptions(full=True, **options)
        with tempfile.TemporaryDirectory() as folder:
            atlas = run_analyses(model, self.corpus, [analysis], folder, run_options)
            return atlas[analysis.name]

    @cached_property
    def reference(self) -> xr.Dataset:
        """The result everything else is compared with: for observers, from rows one by one, without
        any padding."""
        if not self.streams:
            return self.run()
        single_rows = [self.batch([row]) for row in self.rows]
        return self.result(self.observe(single_rows))

    @cached_property
    def observed(self) -> State:
        """The state after all examples in batches of the usual size; copy before merging."""
        return self.observe(self.batches())

    @cached_property
    def parts(self) -> tuple[State, State, State]:
        """The states of two examples, of one, and of the others; copy before merging."""
        first_two = self.observe(self.batches(self.rows[:2]))
        third = self.observe(self.batches(self.rows[2:3]))
        others = self.observe(self.batches(self.rows[3:]))
        return first_two, third, others

    @cached_property
    def labelled(self) -> xr.Dataset:
        """The result of a whole run, with labels and attributes."""
        if not self.streams and self.full_analysis == self.analysis:
            return self.reference  # an experiment's reference is the result of a whole run too
        return self.run(analysis=self.full_analysis)


# --- invariances ----------------------------------------------------------------------------------


def check_batching(case: BatteryCase) -> None:
    """Batches of any size give the same numbers (those of one row are the reference)."""
    assert_same(case.result(case.observed), case.reference, f"batches of {MAX_TOKENS} tokens")
    for size in (40, ALL_TOKENS):
        state = case.observe(case.batches(max_tokens=size))
        assert_same(case.result(state), case.reference, f"batches of {size} tokens")


def check_padding(case: BatteryCase) -> None:
    """Padding, also far more than needed, gives the same numbers."""
    longest = max(len(row) for row in case.rows)
    width = min(case.model.max_length, longest + 9)
    state = case.observe([case.batch(case.rows, pad_to=width)])
    assert_same(case.result(state), case.reference, f"all examples padded to {width} tokens")


def check_order(case: BatteryCase) -> None:
    """The order of examples does not matter, neither of batches nor within them."""
    order = np.random.default_rng(3).permutation(len(case.rows))
    shuffled = [case.rows[index] for index in order]
    mixed = [case.batch(shuffled[start : start + 3]) for start in range(0, len(shuffled), 3)]
    assert_same(case.result(case.observe(mixed)), case.reference, "another order of examples")


def check_row_blocks(case: BatteryCase) -> None:
    """Weights observed a few query rows at a time give the same numbers."""
    one_batch = case.batches(max_tokens=ALL_TOKENS)
    for size in (1, 5):
        state = case.observe(one_batch, block_rows=size)
        assert_same(case.result(state), case.reference, f"blocks of {size} rows")


def check_sharding(case: BatteryCase) -> None:
    """A run in many shards equals the run in one."""
    # The last of the eleven examples is alone: shards of one and of several in one run.
    many_shards = case.run(shard_size=SHARD, batch_tokens=MAX_TOKENS)
    assert_same(many_shards, case.reference, f"shards of {SHARD} examples")
    if case.full_analysis == case.analysis:
        one_shard = case.labelled
    else:
        one_shard = case.run()
    assert_same(one_shard, case.reference, "one shard")


def check_merge(case: BatteryCase) -> None:
    """Merging is associative and commutative up to rounding, and an empty state changes nothing."""
    a, b, c = case.parts
    everything = case.observed
    nothing = case.observer.start(case.shape)

    def merged(*states: State) -> State:
        # Merging changes states, and these are needed again.
        first, *others = [deepcopy(state) for state in states]
        for state in others:
            first.merge(state)
        return first

    def check_same(state: State, how: str) -> None:
        assert_same(case.result(state), case.reference, how)

    check_same(merged(a, b, c), "(a + b) + c")
    check_same(merged(a, merged(b, c)), "a + (b + c)")
    check_same(merged(c, a, b), "c + a + b")
    check_same(merged(nothing, everything), "nothing + a")
    check_same(merged(everything, nothing), "a + nothing")


def check_saving(case: BatteryCase) -> None:
    """A state saved and loaded is the same state, to the last bit: alone, and when more is merged
    into it."""
    state = deepcopy(case.parts[2])
    loaded = case.observer.start(case.shape)
    saved = {name: np.array(array) for name, array in state.arrays().items()}
    loaded.load(saved)
    loaded_arrays = loaded.arrays()
    assert saved.keys() == loaded_arrays.keys(), (
        f"arrays change by saving: {sorted(saved.keys() ^ loaded_arrays.keys())}"
    )
    for name, array in saved.items():
        assert isinstance(array, np.ndarray), f"{name} is saved as no array"
        assert array.dtype.kind in "biuf", (
            f"{name} is saved as {array.dtype}, which no plain file holds"
        )
        assert array.dtype == loaded_arrays[name].dtype, f"{name} changes its type by saving"
        np.testing.assert_array_equal(array, loaded_arrays[name], err_msg=name)
    xr.testing.assert_identical(case.result(loaded), case.result(state))
    for merged in (loaded, state):
        merged.merge(deepcopy(case.parts[0]))
    xr.testing.assert_identical(case.result(loaded), case.result(state))


def check_empty(case: BatteryCase) -> None:
    """A state without examples gives a result with the same dims, and no error."""
    empty = case.result(case.observer.start(case.shape))
    assert empty.sizes == case.reference.sizes or set(empty.dims) <= set(case.reference.dims)


def check_permutation(case: BatteryCase) -> None:
    """A model with its heads in another order gives the same numbers in that order."""
    random = np.random.default_rng(7)
    order = [random.permutation(case.shape.heads).tolist() for _ in range(case.shape.layers)]
    if all(layer_order == sorted(layer_order) for layer_order in order):
        order = [layer_order[::-1] for layer_order in order]
    case.model.close()  # otherwise the copy of the module would hold the model's hooks
    permuted_model = HeadModel.open(permute_heads(case.module, order), tokenizer=case.tokenizer)
    case.model = HeadModel.open(case.module, tokenizer=case.tokenizer)
    if case.streams:
        result = case.result(case.observe(case.batches(), model=permuted_model))
    else:
        result = case.run(permuted_model)
    skipped = case.order_dependent | case.analysis.order_dependent
    compared = []
    for variable in case.reference.data_vars:
        name = str(variable)
        if not PICKED.search(name) and skipped.isdisjoint((name, _without_suffix(name))):
            compared.append(name)
    assert compared, "no variable is left to compare"
    expected = permuted(case.reference[compared], order)
    assert_same(result[compared], expected, "another order of heads")


def check_repetition(case: BatteryCase) -> None:
    """The same run again gives the same bytes."""
    xr.testing.assert_identical(case.run(analysis=case.full_analysis), case.labelled)


# --- what a result looks like ---------------------------------------------------------------------


def check_result(case: BatteryCase) -> None:
    """Dims come from one vocabulary, means have counts and intervals, and attributes name the
    paper."""
    check_names(case.analysis.name, case.labelled)
    for name in ("title", "paper", "section", "citation"):
        assert case.labelled.attrs.get(name), f"attribute `{name}` is missing"
    stored_parameters = json.loads(case.labelled.attrs["parameters"])
    parameters = json.loads(json.dumps(describe(case.full_analysis.parameters)))
    assert stored_parameters == parameters
    for name, value in case.labelled.attrs.items():
        assert isinstance(value, str | int | float | np.number), (
            f"attribute `{name}` is {type(value).__name__}; a file holds strings and numbers"
        )
    if not case.analysis.missing_items(case.shape):
        empty = []
        for name in VARIABLES.get(case.analysis.name, {}):
            if not case.labelled[name].notnull().any():
                empty.append(name)
        assert not empty, f"{', '.join(empty)}: all NaN, though no item is reported as missing"


def check_parameters(case: BatteryCase) -> None:
    """Parameters are stored untouched, are immutable and JSON-serialisable; unknown ones are
    rejected."""
    name = case.analysis.name
    parameters = case.analysis.parameters
    for parameter, value in parameters.items():
        copy = make_analysis(name, {parameter: value})
        assert getattr(copy, parameter) is value, f"`{parameter}` is changed at construction"
        try:
            setattr(case.analysis, parameter, value)
        except FrozenInstanceError:
            continue
        raise AssertionError(f"`{parameter}` can be changed after construction")
    json.dumps(describe(parameters))
    message = _rejection(name, {"no_such_parameter": 1})
    assert "no_such_parameter" in message, "an unknown parameter is accepted"
    for parameter in parameters:
        assert parameter in message, f"the message does not name the known `{parameter}`"


def _rejection(name: str, parameters: dict[str, Any]) -> str:
    """Return the message when these parameters are rejected; empty if they are accepted."""
    try:
        make_analysis(name, parameters)
    except ParameterError as error:
        return str(error)
    return ""


Check = Callable[[BatteryCase], None]
# Checks of observers only.
STREAM_CHECKS: dict[str, Check] = {
    "batching": check_batching,
    "padding": check_padding,
    "order": check_order,
    "row_blocks": check_row_blocks,
    "sharding": check_sharding,
    "merge": check_merge,
    "saving": check_saving,
    "empty": check_empty,
}
COMMON_CHECKS: dict[str, Check] = {
    "permutation": check_permutation,
    "repetition": check_repetition,
    "result": check_result,
    "parameters": check_parameters,
}
CHECKS = STREAM_CHECKS | COMMON_CHECKS


def check_analysis(
    analysis: Analysis,
    *,
    causal: bool = False,
    examples: Sequence[Example] | None = None,
    order_dependent: Iterable[str] = (),
) -> list[str]:
    """Run every check that applies and return their names.

    Parameters
    ----------
    analysis : Analysis
        The analysis.
    causal, examples, order_dependent
        As in `BatteryCase`.

    Raises
    ------
    AssertionError
        At the first check that fails, or where the analysis cannot run on this model and corpus.
    """
    case = BatteryCase(analysis, causal, examples, frozenset(order_dependent))
    assert case.unsupported_reason is None, f"{analysis.name} cannot run: {case.unsupported_reason}"
    checks = CHECKS if case.streams else COMMON_CHECKS
    for name, check in checks.items():
        try:
            check(case)
        except AssertionError as error:
            raise AssertionError(f"{analysis.name}, {name}: {error}") from error
    return list(checks)


# --- comparing ------------------------------------------------------------------------------------


def assert_same(result: xr.Dataset, expected: xr.Dataset, how: str) -> None:
    """Assert that two results have the same variables, labels and, up to rounding, numbers.

    Parameters
    ----------
    result, expected : Dataset
        The results.
    how : str
        How `result` was computed, for the message.
    """
    names = {str(name) for name in result.data_vars}
    expected_names = {str(name) for name in expected.data_vars}
    assert names == expected_names, f"{how}: variables differ: {sorted(names ^ expected_names)}"
    for name in result.data_vars:
        actual = result.variables[name]
        wanted = expected.variables[name]
        assert actual.dims == wanted.dims, (
            f"{how}: {name} has dims {actual.dims}, not {wanted.dims}"
        )
        assert actual.shape == wanted.shape, (
            f"{how}: {name} has shape {actual.shape}, not {wanted.shape}"
        )
        message = f"{how}: {name}"
        if actual.dtype.kind == "f":
            np.testing.assert_allclose(
                actual.values, wanted.values, rtol=RELATIVE, atol=ABSOLUTE, err_msg=message
            )
        else:
            np.testing.assert_array_equal(actual.values, wanted.values, err_msg=message)
    for name in result.coords:
        np.testing.assert_array_equal(
            result.variables[name].values,
            expected.variables[name].values,
            err_msg=f"{how}: labels of {name}",
        )


def permuted(dataset: xr.Dataset, order: Sequence[Sequence[int]]) -> xr.Dataset:
    """Return a result with its heads in another order.

    Variables with `[layer, head]` follow the order of each layer, those with `head` alone that of
    the last layer; `head_a` and `head_b` count heads over all layers."""
    n_heads = len(order[0])
    flat_order = []
    for layer, layer_order in enumerate(order):
        flat_order += [layer * n_heads + head for head in layer_order]
    reordered = dataset.copy(deep=True)
    for name, array in dataset.data_vars.items():
        values = array.values
        for dim in ("head_a", "head_b"):
            if dim in array.dims:
                values = np.take(values, flat_order, axis=array.dims.index(dim))
        if "head" in array.dims:
            head_axis = array.dims.index("head")
            if "layer" in array.dims:
                axes = (array.dims.index("layer"), head_axis)
                by_layer = np.moveaxis(values, axes, (0, 1))
                layers = [by_layer[layer][list(heads)] for layer, heads in enumerate(order)]
                values = np.moveaxis(np.stack(layers), (0, 1), axes)
            else:
                values = np.take(values, list(order[-1]), axis=head_axis)
        # In place: assigning a variable named like its dim would make it a coordinate.
        reordered[name].values = values
    return reordered


def _without_suffix(name: str) -> str:
    """Return the variable that a count or the bound of an interval belongs to."""
    for suffix in ("_n", "_low", "_high"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
