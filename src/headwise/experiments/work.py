"""What the experiments shared before `headwise.run.job`; it goes once every experiment uses a
`Job`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.core.store import CheckpointStore
from headwise.core.workers import UnitFunction
from headwise.run.job import Job, Progress, no_progress, software_versions

Report = Progress
silent = no_progress
software = software_versions


@contextmanager
def kept_work(
    folder: str | Path | None, identity: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[CheckpointStore]:
    """Yield the checkpoints of an experiment; see `Job.in_folder` and `Job.begin`."""
    with Job.in_folder(folder, overwrite=overwrite) as job:
        yield job.begin(identity)


def each_piece(
    store: CheckpointStore | None,
    name: str,
    job: UnitFunction,
    items: Sequence[Any],
    report: Report,
    what: str,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the arrays of each unit of work; see `Job.each`."""
    holder = Job(progress=report)
    holder.checkpoints = store
    return holder.each(name, job, items, what)


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[Callable[[int], object]]:
    """Yield the function that seeds torch for work on a device; restore torch's random state
    afterwards."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(range(torch.cuda.device_count()) if on_gpu else []):
        yield torch.manual_seed if on_gpu else torch.default_generator.manual_seed
