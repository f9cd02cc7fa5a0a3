"""Which unit is to blame for workers that end: told apart from ends that come from elsewhere."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

KILLS = 3  # workers that a unit may end before it is set aside, where none end otherwise
TRIES = 12  # workers that may end with a unit, whoever ends them
SLACK, LOOSE = (
    3.0,
    0.25,
)  # seconds, and share of the time, that ends at the same place may lie apart


@dataclass(slots=True)
class Blame:
    """The ends of workers: with the units of the job at hand, and all that no unit is to blame for.

    What ends its worker does so at the same place, every time. Ends well before the last place that
    a unit came to are accidents, as are those of workers with nothing to do, and those with a unit
    that was made in the end. Each accident allows a unit three more ends, for where workers end by
    other hands they may end with the same unit again and again.

    Parameters
    ----------
    accidents : int, default 0
        Ends that no unit is to blame for, as known so far.

    Examples
    --------
    >>> blame = Blame()
    >>> [blame.ended("shard-1", seconds) for seconds in (4.0, 4.5, 4.2)]
    [False, False, True]
    >>> [blame.ended("shard-2", seconds) for seconds in (4.0, 20.0, 11.0)]
    [False, False, False]
    """

    accidents: int = 0
    _ends: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def begin(self) -> None:
        """Another job: its units may have the names of others."""
        self._ends.clear()

    def ended(self, unit: str, seconds: float) -> bool:
        """A worker ended so many seconds into a unit; whether that is to be set aside."""
        ends = self._ends[unit]
        ends.append(seconds)
        last = max(ends)
        there = sum(end >= last - max(SLACK, LOOSE * last) for end in ends)
        return there >= KILLS * (1 + self.accidents + len(ends) - there) or len(ends) >= TRIES

    def made(self, unit: str) -> None:
        """A unit was made: what ended its workers was something else."""
        self.accidents += len(self._ends.pop(unit, ()))

    def ends(self, unit: str) -> int:
        """How many workers ended with a unit."""
        return len(self._ends[unit])
