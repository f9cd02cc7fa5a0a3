"""Who computes the units of a run: this process, one after the other, or workers elsewhere."""

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
# Computes one unit of work. It depends on nothing but the unit and what it holds itself, so that it
# can run in another process.
UnitFunction = Callable[[Any], UnitResult]


class Workers:
    """Computes units one after the other in this process; subclasses compute them elsewhere.

    Attributes
    ----------
    threads : int or None
        The number of torch's threads for a new run; None for as many as this process has.
    count : int
        How many units are computed at the same time; 0 as long as that is not known.

    Examples
    --------
    >>> import numpy
    >>> def square(number):
    ...     return {"square": numpy.array(number**2)}, {}
    >>> checkpoints = current().run_units(None, square, [("two", 2), ("three", 3)])
    >>> [int(checkpoint.arrays["square"]) for checkpoint in raise_failures(checkpoints)]
    [4, 9]
    """

    threads: int | None = None
    count: int = 1

    def run_units(
        self,
        store: CheckpointStore | None,
        function: UnitFunction,
        units: Iterable[tuple[str, Any]],
    ) -> Iterator[Checkpoint | Failure]:
        """Yield the result of each named unit, in their order.

        Parameters
        ----------
        store : CheckpointStore, optional
            Units with a checkpoint there are not computed again, results become checkpoints; nothing
            is kept without it.
        function : callable
            Computes a unit. It and the units may be sent to another process: they can be pickled.
        units : iterable of (str, object)
            Names and units, taken as they are needed, a little ahead of the results.

        Yields
        ------
        Checkpoint or Failure
            A unit that ends every worker which computes it is a `Failure`; the others are computed
            all the same.
        """
        for name, unit in units:
            compute = partial(function, unit)
            if store is not None:
                yield store.checkpoint(name, compute)
            else:
                arrays, facts = compute()
                yield Checkpoint(dict(arrays), dict(facts))


_this_process = Workers()
_current: ContextVar[Workers] = ContextVar("workers", default=_this_process)


def current() -> Workers:
    """Return who computes units now."""
    return _current.get()


def use_workers(workers: Workers) -> AbstractContextManager[Workers]:
    """Have these workers compute the units of every run and experiment within a block."""
    return temporarily(_current, workers)


def raise_failures(results: Iterable[Checkpoint | Failure]) -> Iterator[Checkpoint]:
    """Yield results for work that needs all of them; raise the failures after the last one, so that
    every other unit has its checkpoint."""
    failures: list[Failure] = []
    for result in results:
        if isinstance(result, Failure):
            failures.append(result)
        elif not failures:
            yield result
    if failures:
        raise UnexpectedError(*failures)
