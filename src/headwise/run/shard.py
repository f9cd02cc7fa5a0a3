"""One shard of a run: the model over some examples, the states of every analysis out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headwise.analyses.contract import Observer, Shape
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.run.encoded import Block
from headwise.run.engine import Failures, is_out_of_memory, observe_batch
from headwise.stats.accumulators import State
from headwise.text.encode import batches


@dataclass(frozen=True, slots=True, eq=False)
class ShardUnit:
    """The examples of a shard, and the names of the analyses that see it."""

    active: frozenset[str]
    block: Block


@dataclass(frozen=True, slots=True, eq=False)
class ShardJob:
    """Makes the states of shards; it needs nothing but itself and the unit, so it may be done
    anywhere."""

    model: HeadModel
    shape: Shape
    analyses: tuple[Observer, ...]
    batch_tokens: int

    def __call__(self, unit: ShardUnit) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The states of one shard, from scratch; smaller batches are tried where memory does not
        suffice."""
        model, batch_tokens = self.model, self.batch_tokens
        rows = unit.block.encoded(model.encoder)
        active = [a for a in self.analyses if a.name in unit.active]
        while True:
            states = {a.name: a.start(self.shape) for a in active}
            failed: Failures = {}
            try:
                for batch in batches(rows, batch_tokens, model.pad_id, model.device):
                    observe_batch(model, batch, active, states, failed=failed)
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
        arrays = pack_states({name: state for name, state in states.items() if name not in failed})
        facts = {"examples": len(rows), "tokens": sum(map(len, rows)), "batch_tokens": batch_tokens}
        return arrays, {**facts, "failed": [failure.facts() for failure in failed.values()]}


def pack_states(states: Mapping[str, State]) -> dict[str, np.ndarray]:
    """The states of analyses as the arrays of one piece."""
    return {
        f"{name}/{key}": array
        for name, state in states.items()
        for key, array in state.arrays().items()
    }


def merge_checkpoint(
    state: State, analysis: Observer, shape: Shape, arrays: Mapping[str, np.ndarray]
) -> None:
    """Add what a piece holds of an analysis to its state."""
    prefix = f"{analysis.name}/"
    own = analysis.start(shape)
    own.load(
        {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
    )
    state.merge(own)


@contextmanager
def fixed_threads(threads: int, device: torch.device) -> Iterator[None]:
    """So many threads for torch; they and torch's generator, from which new modules draw, come back
    as found."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
