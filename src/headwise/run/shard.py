"""One shard of a run: from some examples to the states of every analysis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headwise.analyses.contract import Observer, Shape
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.run.encoded import ExampleBlock
from headwise.run.engine import Failures, is_out_of_memory, observe_batch
from headwise.stats.accumulators import State
from headwise.text.encode import Encoded, batches


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


@contextmanager
def fixed_threads(threads: int, device: torch.device) -> Iterator[None]:
    """Use this many threads of torch within.

    On leaving, the number of threads and the state of torch's random generator, from which new
    modules draw their weights, are as before."""
    threads_before = torch.get_num_threads()
    cuda_devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda_devices):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads_before)
