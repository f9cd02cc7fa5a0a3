"""How far the work is: what is called with it, and what counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from tqdm.auto import tqdm

from headwise.core.context import temporarily

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is counted, how many are done, how many in all
# Called with the number of examples of every batch that was observed in this process.
EXAMPLES_SEEN: ContextVar[Callable[[int], None] | None] = ContextVar(
    "headwise_examples_seen", default=None
)


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore how far the work is."""


class ShardProgress:
    """Reports examples after every batch that is observed in this process, and after every shard,
    wherever it was computed.

    Parameters
    ----------
    progress : callable
        Called as `progress(what, done, total)`.
    what : str
        What is counted.
    total : int
        How many examples there are.
    shard_size : int
        Examples of a shard.
    """

    def __init__(self, progress: Progress, what: str, total: int, shard_size: int) -> None:
        self.progress = progress
        self.what = what
        self.total = total
        self.shard_size = shard_size
        self._done = 0  # in finished shards
        self._in_this_shard = 0

    def counting(self, shards: Iterable[T]) -> Iterator[T]:
        """Yield the same shards; count the batches that are observed while one is waited for."""
        remaining = iter(shards)
        while True:
            with temporarily(EXAMPLES_SEEN, self.add_batch):
                shard = next(remaining, None)
            if shard is None:
                return
            yield shard

    def add_batch(self, n_examples: int) -> None:
        """Count the examples of a batch of the shard that is under way."""
        self._in_this_shard = min(self._in_this_shard + n_examples, self.shard_size)
        done = min(self._done + self._in_this_shard, self.total)
        self.progress(self.what, done, self.total)

    def finish_shard(self, done: int) -> None:
        """Report that so many examples are done, with the last finished shard."""
        self._done = done
        self._in_this_shard = 0
        self.progress(self.what, done, self.total)


class ProgressBars:
    """A bar for each thing that is counted, in a notebook or a terminal."""

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._bars:
            self._bars[what] = tqdm(desc=what, total=total)
        bar = self._bars[what]
        bar.total = total
        bar.update(done - bar.n)
        bar.refresh()
