"""Who makes the pieces of a run: this process, one after the other, or workers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from headwise.core.context import temporarily
from headwise.core.failures import Failure, UnexpectedError
from headwise.core.store import Checkpoint, CheckpointStore, Facts

UnitResult = tuple[Mapping[str, np.ndarray], Facts]
UnitFunction = Callable[
    [Any], UnitResult
]  # one unit of work in, a piece out; it depends on nothing else


class Workers:
    """Makes pieces one after the other in this process; others make them elsewhere and override
    `pieces`.

    Attributes
    ----------
    threads : int or None
        The threads of torch that a new run is made with; None for as many as this process has.

    Examples
    --------
    >>> import numpy
    >>> made = current().pieces(None, lambda n: ({"square": numpy.array(n * n)}, {}), [("two", 2), ("three", 3)])
    >>> [int(piece.arrays["square"]) for piece in whole(made)]
    [4, 9]
    """

    threads: int | None = None

    def pieces(
        self, store: CheckpointStore | None, job: UnitFunction, units: Iterable[tuple[str, Any]]
    ) -> Iterator[Checkpoint | Failure]:
        """The piece of each named unit, in their order; those the store holds are not made again.

        Parameters
        ----------
        store : CheckpointStore, optional
            Where pieces are kept as they come; nothing is kept without it.
        job : callable
            Makes a piece of a unit. It and the units may have to travel: what they hold can be
            pickled.
        units : iterable of (str, object)
            Names and units. They are asked for as they are needed, a little ahead of what is given.

        Yields
        ------
        Checkpoint or Failure
            A unit that could not be made because it ends whoever makes it is a failure; all others
            go on.
        """
        for name, unit in units:
            make = partial(job, unit)
            if store is not None:
                yield store.piece(name, make)
            else:
                arrays, facts = make()
                yield Checkpoint(dict(arrays), dict(facts))


_here = Workers()
_current: ContextVar[Workers] = ContextVar("workers", default=_here)


def current() -> Workers:
    """Who makes pieces now."""
    return _current.get()


def use_workers(workers: Workers) -> AbstractContextManager[Workers]:
    """Within, these workers make the pieces of every run and every experiment."""
    return temporarily(_current, workers)


def raise_failures(pieces: Iterable[Checkpoint | Failure]) -> Iterator[Checkpoint]:
    """The pieces, for work that needs every one of them: what failed is raised, after all the
    others are safe."""
    failed: list[Failure] = []
    for piece in pieces:
        if isinstance(piece, Failure):
            failed.append(piece)
        elif not failed:
            yield piece
    if failed:
        raise UnexpectedError(*failed)
