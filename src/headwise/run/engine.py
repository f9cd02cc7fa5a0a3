"""Run a model over batches while analyses observe it: from examples to the states of analyses.

`observe_batch` is the one loop of every observer: one forward pass that all observers share
(`SharedPass`), then the passes of those that run the model themselves. `ShardFunction` computes the
states of one shard, the unit of work of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.contract import LayerObserver, Observer, OwnPassObserver, Shape
from headwise.core.errors import ModelError
from headwise.core.failures import Failure
from headwise.models import HeadModel
from headwise.models.statistics import StatsRequest, StatsResult, can_join, join_layers
from headwise.models.view import AttentionRows, Layer
from headwise.run.encoded import ExampleBlock
from headwise.run.progress import EXAMPLES_SEEN, stage
from headwise.stats.accumulators import State
from headwise.text.encode import Batch, Encoded, batches, documents_of

# Results of layers are reduced together once they take this many bytes. A GPU takes as long for
# many small layers at once as for one; a processor gains nothing by waiting.
WAITING_BYTES = {"cpu": 0, "cuda": 256 * 2**20}

OUT_OF_MEMORY_MESSAGES = ("not enough memory", "can't allocate memory")

Failures = dict[str, Failure]  # by name of the analysis


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory was short, so that smaller batches may help."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(message in str(error) for message in OUT_OF_MEMORY_MESSAGES)


def record_failure(analysis: Observer, error: Exception, failed: Failures | None) -> None:
    """Record that an analysis failed, so that the others continue without it.

    Raises the error if there is nowhere to record it, or if smaller batches may help."""
    if failed is None or is_out_of_memory(error):
        raise error
    failed[analysis.name] = Failure.of(analysis.name, error)


# --- sums of several layers ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class LayerSums:
    """What an analysis reduced consecutive layers to: `sums[example, layer, head, ...]`, where
    layer and head are 1 for what is the same for all heads."""

    layers: slice
    sums: Mapping[str, Tensor]

    @classmethod
    def from_heads(cls, layers: slice, sums: Mapping[str, Tensor]) -> LayerSums:
        """From tensors `[example, head, ...]` with the heads of all layers side by side."""
        n_layers = layers.stop - layers.start
        by_layer = {}
        for name, value in sums.items():
            if value.shape[1] == 1:
                by_layer[name] = value[:, None]
            else:
                heads = value.shape[1] // n_layers
                by_layer[name] = value.reshape(len(value), n_layers, heads, *value.shape[2:])
        return cls(layers, by_layer)

    def is_followed_by(self, other: LayerSums) -> bool:
        """Return whether `other` is of the next layers and has tensors of the same shapes."""
        if self.layers.stop != other.layers.start or self.sums.keys() != other.sums.keys():
            return False
        return all(
            value.shape[2:] == other.sums[name].shape[2:] for name, value in self.sums.items()
        )


def _join_consecutive(parts: Sequence[LayerSums]) -> list[LayerSums]:
    """Join the sums of layers that follow each other: updating a state with many layers costs
    little more than with one."""
    groups: list[list[LayerSums]] = []
    for part in parts:
        if groups and groups[-1][-1].is_followed_by(part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [_join(group) for group in groups]


def _join(group: Sequence[LayerSums]) -> LayerSums:
    if len(group) == 1:
        return group[0]
    joined = {}
    for name in group[0].sums:
        tensors = []
        for part in group:
            value = part.sums[name]
            n_layers = part.layers.stop - part.layers.start
            tensors.append(value.expand(-1, n_layers, *value.shape[2:]))
        joined[name] = torch.cat(tensors, dim=1)
    return LayerSums(slice(group[0].layers.start, group[-1].layers.stop), joined)


# --- the shared pass ----------------------------------------------------------------------------


class SharedPass:
    """Watches one forward pass for several observers.

    Observers that reduce rows are updated as soon as a layer is done. Those that request statistics
    are updated after the pass, so that a GPU is never waited for between layers. An observer that
    fails is recorded in `failed` and not called again.
    """

    def __init__(
        self,
        analyses: Sequence[Observer],
        states: Mapping[str, State],
        batch: Batch,
        failed: Failures | None = None,
    ) -> None:
        self.states = states
        self.batch = batch
        self._failed = failed
        self.reducing_rows: list[Observer] = []
        self.requesting: list[Observer] = []
        self.reading_layers: list[LayerObserver] = []
        self.request = self._collect_requests(analyses)
        self.needs = self._collect_needs()
        self._row_sums: dict[str, dict[str, Tensor]] = {}
        self._waiting: list[StatsResult] = []
        self._reduced: dict[str, list[LayerSums]] = {}
        self._read: dict[str, dict[int, Mapping[str, Tensor]]] = {}

    def _collect_requests(self, analyses: Sequence[Observer]) -> StatsRequest | None:
        """Sort the observers by whether they request statistics; return all requests as one."""
        requests: list[StatsRequest] = []
        for analysis in analyses:
            with self._isolated(analysis):
                request = analysis.request(self.batch)
                if request is None:
                    self.reducing_rows.append(analysis)
                    continue
                self.requesting.append(analysis)
                requests.append(request)
                if isinstance(analysis, LayerObserver):
                    self.reading_layers.append(analysis)
        return StatsRequest.merge(requests)

    def _collect_needs(self) -> frozenset[str]:
        """Return what must be tapped: statistics need no weights."""
        needs: set[str] = set()
        for analysis in self.reducing_rows:
            needs |= analysis.taps
        for analysis in self.requesting:
            needs |= analysis.taps - {"attention"}
        return frozenset(needs)

    @contextmanager
    def _isolated(self, analysis: Observer) -> Iterator[None]:
        """Count the block as a stage of an observer; if it fails, the observer is recorded and not
        called again."""
        try:
            with stage(analysis.name):
                yield
        except Exception as error:  # an analysis may fail in any way
            record_failure(analysis, error, self._failed)
            # New lists: a loop over the old ones may be under way.
            self.reducing_rows = [a for a in self.reducing_rows if a is not analysis]
            self.requesting = [a for a in self.requesting if a is not analysis]
            self.reading_layers = [a for a in self.reading_layers if a is not analysis]

    def on_rows(self, rows: AttentionRows) -> None:
        """Add up what observers reduce a block of rows to."""
        for analysis in self.reducing_rows:
            with self._isolated(analysis):
                totals = self._row_sums.setdefault(analysis.name, {})
                add_sums(totals, analysis.reduce_rows(rows, self.batch))

    def on_statistics(self, result: StatsResult) -> None:
        """Collect the statistics of one layer, and reduce them once enough layers wait."""
        if self._waiting and not can_join(self._waiting[-1], result):
            self._reduce_waiting()
        self._waiting.append(result)
        waiting_bytes = result.nbytes * len(self._waiting)
        if waiting_bytes >= WAITING_BYTES[result.n_visible.device.type]:
            self._reduce_waiting()

    def _reduce_waiting(self) -> None:
        """Let every requesting observer reduce the waiting layers, all at once."""
        if not self._waiting:
            return
        layers = slice(self._waiting[0].layer, self._waiting[-1].layer + 1)
        joined = join_layers(self._waiting)
        self._waiting = []
        for analysis in self.requesting:
            with self._isolated(analysis):
                sums = analysis.reduce(joined, self.batch)
                parts = self._reduced.setdefault(analysis.name, [])
                parts.append(LayerSums.from_heads(layers, sums))

    def on_layer(self, layer: Layer) -> None:
        """Update the states of observers that reduce rows; let the others read the layer."""
        for analysis in self.reducing_rows:
            with self._isolated(analysis):
                sums = self._row_sums.pop(analysis.name, {})
                analysis.observe(self.states[analysis.name], sums, layer, self.batch)
        for reader in self.reading_layers:
            with self._isolated(reader):
                tensors = reader.read_layer(layer, self.batch)
                if tensors:
                    self._read.setdefault(reader.name, {})[layer.layer] = tensors

    def _read_of(self, analysis: Observer, layers: slice) -> dict[str, Tensor]:
        """Return what an observer read of these layers, `[example, layer, head, ...]`."""
        by_layer = self._read[analysis.name]
        stacked = {}
        for name in by_layer.get(layers.start, {}):
            tensors = [by_layer[layer][name] for layer in range(layers.start, layers.stop)]
            stacked[name] = torch.stack(tensors, dim=1)
        return stacked

    def finish(self) -> None:
        """Update the states of the observers that requested statistics."""
        self._reduce_waiting()
        for analysis in self.requesting:
            with self._isolated(analysis):
                for part in _join_consecutive(self._reduced.pop(analysis.name, [])):
                    sums = dict(part.sums)
                    if analysis.name in self._read:
                        sums |= self._read_of(analysis, part.layers)
                    analysis.update(self.states[analysis.name], sums, part.layers, self.batch)


def add_sums(totals: dict[str, Tensor], sums: Mapping[str, Tensor]) -> None:
    """Add tensors to totals of the same names."""
    for name, value in sums.items():
        if name in totals:
            totals[name] = totals[name] + value
        else:
            totals[name] = value


# --- batches ------------------------------------------------------------------------------------


def observe_batch(
    model: HeadModel,
    batch: Batch,
    analyses: Sequence[Observer],
    states: Mapping[str, State],
    block_rows: int | None = None,
    failed: Failures | None = None,
) -> None:
    """Run the model over one batch and update the state of every analysis.

    Parameters
    ----------
    model : HeadModel
        The model to run.
    batch : Batch
        The examples.
    analyses : sequence of Observer
        Who observes.
    states : mapping of str to State
        The state of each analysis by name; changed in place.
    block_rows : int, optional
        Query rows per block; default: as many as fit.
    failed : dict of str to Failure, optional
        Where failures are recorded: an analysis that fails is not called again, and its state is
        not to be used. Without it, errors are raised.
    """
    active = []
    for analysis in analyses:
        if failed is None or analysis.name not in failed:
            active.append(analysis)

    sharing = [a for a in active if not isinstance(a, OwnPassObserver)]
    if sharing:
        for analysis in sharing:
            states[analysis.name].of(documents_of(batch.rows))
        shared_pass = SharedPass(sharing, states, batch, failed)
        model.forward(batch, shared_pass, block_rows=block_rows)
        shared_pass.finish()

    for analysis in active:
        if isinstance(analysis, OwnPassObserver):
            try:
                with stage(analysis.name):
                    analysis.observe_batch(model, batch, states[analysis.name], block_rows)
            except Exception as error:  # an analysis may fail in any way
                record_failure(analysis, error, failed)

    batch.forget()
    report_examples = EXAMPLES_SEEN.get()
    if report_examples is not None:
        report_examples(len(batch))


def observe_batches(
    model: HeadModel,
    batches: Iterable[Batch],
    analyses: Sequence[Observer],
    states: Mapping[str, State],
    block_rows: int | None = None,
    failed: Failures | None = None,
) -> Mapping[str, State]:
    """Run the model over batches and return the updated states; see `observe_batch`."""
    for batch in batches:
        observe_batch(model, batch, analyses, states, block_rows, failed)
    return states


# --- shards -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ShardUnit:
    """The examples of a shard, and the names of the analyses that observe it."""

    active: frozenset[str]
    block: ExampleBlock


@dataclass(frozen=True, slots=True, eq=False)
class ShardFunction:
    """Computes the states of shards.

    It needs nothing but itself and the unit, so that any worker can do it."""

    model: HeadModel
    shape: Shape
    analyses: tuple[Observer, ...]
    batch_tokens: int

    def __call__(self, unit: ShardUnit) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the states of one shard as arrays, and facts about it.

        If memory does not suffice, the shard starts again with batches of half the size."""
        rows = unit.block.encoded(self.model.encoder)
        active = [analysis for analysis in self.analyses if analysis.name in unit.active]
        batch_tokens = self.batch_tokens
        while True:
            try:
                states, failed = self._observe(rows, active, batch_tokens)
                break
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                longest = max(map(len, rows))
                if batch_tokens <= longest:
                    raise ModelError(
                        f"One example of {longest} tokens does not fit into memory; "
                        f"set max_length to truncate inputs.",
                        option="max_length",
                    ) from error
                batch_tokens //= 2

        intact = {name: state for name, state in states.items() if name not in failed}
        facts = {
            "examples": len(rows),
            "tokens": sum(map(len, rows)),
            "batch_tokens": batch_tokens,
            "failed": [failure.facts() for failure in failed.values()],
        }
        return pack_states(intact), facts

    def _observe(
        self, rows: Sequence[Encoded], active: Sequence[Observer], batch_tokens: int
    ) -> tuple[dict[str, State], Failures]:
        """Return the states after these rows, and the analyses that failed."""
        states = {analysis.name: analysis.start(self.shape) for analysis in active}
        failed: Failures = {}
        for batch in batches(rows, batch_tokens, self.model.pad_id, self.model.device):
            observe_batch(self.model, batch, active, states, failed=failed)
        return states, failed


def pack_states(states: Mapping[str, State]) -> dict[str, np.ndarray]:
    """Return the states of analyses as the arrays of one checkpoint, `analysis/accumulator/part`."""
    arrays = {}
    for name, state in states.items():
        for key, array in state.arrays().items():
            arrays[f"{name}/{key}"] = array
    return arrays


def merge_checkpoint(
    state: State, analysis: Observer, shape: Shape, arrays: Mapping[str, np.ndarray]
) -> None:
    """Add the state of an analysis in a checkpoint to `state`."""
    prefix = f"{analysis.name}/"
    arrays_of_analysis = {}
    for key, array in arrays.items():
        if key.startswith(prefix):
            arrays_of_analysis[key.removeprefix(prefix)] = array
    loaded = analysis.start(shape)
    loaded.load(arrays_of_analysis)
    state.merge(loaded)
