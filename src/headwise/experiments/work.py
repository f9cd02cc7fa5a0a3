"""What the experiments share: a store for finished pieces, the same threads after a kill, and a
random state that is given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from headwise.core.store import CheckpointStore
from headwise.core.version import __version__
from headwise.core.workers import UnitFunction, current, raise_failures
from headwise.models.forward_call import threads

Report = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Nobody is told how far the work is."""


@contextmanager
def kept_work(
    folder: str | Path | None, identity: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[CheckpointStore]:
    """The store of an experiment, with the number of threads that its first pieces were made with.

    Parameters
    ----------
    folder : str or Path, optional
        Where pieces lie. They stay there when the work is done, until
        `headwise.core.store.delete_checkpoints` removes them: the result is safe first. Without a
        folder they lie in a temporary one that is gone afterwards.
    identity : Mapping
        What tells this work from other work.
    overwrite : bool, default False
        Start anew where other work lies there, instead of refusing.
    """
    with ExitStack() as stack:
        where = Path(folder or stack.enter_context(TemporaryDirectory(prefix="headwise-")))
        adopt = {"threads": current().threads or torch.get_num_threads()}
        store = stack.enter_context(
            CheckpointStore(where, {**software(), **identity}, fresh=overwrite, adopt=adopt)
        )
        stack.enter_context(
            threads(store.adopted["threads"])
        )  # the same number of threads gives the same bytes
        yield store


def each_piece(
    store: CheckpointStore | None,
    name: str,
    job: UnitFunction,
    items: Sequence[Any],
    report: Report,
    what: str,
) -> Iterator[dict[str, np.ndarray]]:
    """The arrays of the pieces that a job makes of some items, in their order.

    Parameters
    ----------
    store : CheckpointStore, optional
        Where pieces are kept, as `name-000000` and so on; nothing is kept without it.
    name : str
        What the pieces are called.
    job : callable
        Makes a piece of an item.
    items : sequence
        What is worked on.
    report : callable
        Told after each piece how many of `what` are done.
    what : str
        What is counted.
    """
    units = [(f"{name}-{number:06d}", item) for number, item in enumerate(items)]
    for number, piece in enumerate(raise_failures(current().pieces(store, job, units)), 1):
        yield piece.arrays
        report(what, number, len(units))


def software() -> dict[str, str]:
    """The versions that numbers depend on."""
    return {
        "headwise": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[Callable[[int], object]]:
    """Gives what seeds torch for work on a device; afterwards torch's random state is what it was
    before."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(range(torch.cuda.device_count()) if on_gpu else []):
        yield torch.manual_seed if on_gpu else torch.default_generator.manual_seed
