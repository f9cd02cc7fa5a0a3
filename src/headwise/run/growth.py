"""How an atlas grows: the order of a run's work, when a round ends, and what is still to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

# The part of the work from which on its speed is known well enough to tell the time left: what the
# first examples take says little of analyses to come.
LEAST_WORK_FOR_SPEED = 0.1
# Rounds together take at most this part of the time; the first one comes at once, and those after it
# wait until that is true of all of them.
MOST_TIME_IN_ROUNDS = 0.1
# A round shows more than the one before; it is expected to take at most this many times as long.
COST_GROWTH = 1.25


@dataclass(slots=True, eq=False)
class Step:
    """A part of a run's work, after which there is more to show.

    Parameters
    ----------
    perform : callable
        Does it.
    cost : float
        What it takes, roughly, in passes of the model over one example.
    worth : float, default 1.0
        What it is worth to a reader: what is worth most for its cost comes first.
    after : Step, optional
        What must be done before.
    early : bool, default False
        Whether it belongs to the first round.
    restored : bool, default False
        Whether it has a checkpoint already.
    """

    perform: Callable[[], None]
    cost: float
    worth: float = 1.0
    after: Step | None = None
    early: bool = False
    restored: bool = False
    done: bool = field(default=False, init=False)


def in_order(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield steps in the order in which they are to be done; the caller does each before the next.

    The order depends on sizes alone, never on measured time: a run that resumes does the same work
    in the same order.

    >>> steps = [Step(lambda: None, cost=9.0), Step(lambda: None, cost=1.0)]
    >>> [step.cost for step in in_order(steps)]
    [1.0, 9.0]
    """
    waiting = list(steps)
    while waiting:
        ready = [step for step in waiting if step.after is None or step.after.done]
        step = min(ready, key=lambda each: (not each.early, each.cost / each.worth))
        yield step
        step.done = True
        waiting.remove(step)


class RoundClock:
    """Decides when a round ends, and knows how much of the work is done and how fast it goes.

    Work is counted in passes of the model over one example.

    Parameters
    ----------
    rounds : int, optional
        At most so many rounds, the finished atlas counted as one; None for as many as take up no
        more than a tenth of the time.

    Attributes
    ----------
    count : int
        Rounds that have ended.
    cost : float
        Seconds that the end of the last round took.
    spent : float
        Seconds that the ends of all rounds took.
    work_done : float
        The work that is done.
    """

    def __init__(self, rounds: int | None) -> None:
        self.count = 0
        self.cost = 0.0
        self.spent = 0.0
        self.work_done = 0.0
        self._most = None if rounds is None else rounds - 1
        self._began = time.monotonic()
        self._measured_from = self._began
        self._measured_work = 0.0
        self._measured_seconds = 0.0

    @property
    def wanted(self) -> bool:
        """Whether there is another round before the finished atlas."""
        return self._most is None or self.count < self._most

    @property
    def is_due(self) -> bool:
        """Whether the round may end now: the first one as soon as there is anything to show, later
        ones once all of them, this one counted, take up no more than their share of the time."""
        if not self.wanted:
            return False
        if self.count == 0:
            return True
        expected = COST_GROWTH * self.cost
        seconds = time.monotonic() - self._began + expected
        return self.spent + expected <= MOST_TIME_IN_ROUNDS * seconds

    def end_round(self, began: float) -> None:
        """Count a round that has ended.

        Parameters
        ----------
        began : float
            The `time.monotonic()` at which its end began.
        """
        self.cost = time.monotonic() - began
        self.spent += self.cost
        self._measured_from += self.cost
        self.count += 1

    def advance(self, work: float, restored: bool = False) -> None:
        """Count work that is done; `restored` work has a checkpoint and tells nothing of speed."""
        now = time.monotonic()
        if not restored:
            self._measured_work += work
            self._measured_seconds += now - self._measured_from
        self._measured_from = now
        self.work_done += work

    def seconds_left(self, work: float) -> float | None:
        """Return how long the rest of some work takes, at the speed so far; None as long as that is
        not known."""
        if not self._measured_work or self._measured_work < LEAST_WORK_FOR_SPEED * work:
            return None
        seconds_per_pass = self._measured_seconds / self._measured_work
        return max(work - self.work_done, 0.0) * seconds_per_pass


def brief(title: str) -> str:
    """Return the title of an analysis without what follows its colon.

    >>> brief("How far heads look: relative positions")
    'How far heads look'
    """
    return title.partition(":")[0]


@dataclass(slots=True)
class Unfinished:
    """What an atlas says of itself before it is finished, as `provenance["unfinished"]`.

    Attributes
    ----------
    round : int
        How many rounds have ended, this one counted.
    done : float
        About which part of the work is done, 0 to 1.
    seconds_left : float or None
        How long the rest takes, roughly; the page is not counted.
    examples : dict
        Of each corpus, how many examples were read so far, and how many will be.
    partial : dict
        The same of each analysis that will read more.
    to_come : dict
        Analyses that are not in the atlas yet, with their titles.
    first_parts : dict
        Analyses of which only the first part is done, with their titles.
    without_random_models : list
        Analyses that are not yet compared with random-weights models: more of their heads are
        significant than will be.
    stopped : str
        What stopped the run; "" while it runs.
    """

    round: int
    done: float
    seconds_left: float | None
    examples: dict[str, list[int]] = field(default_factory=dict)
    partial: dict[str, list[int]] = field(default_factory=dict)
    to_come: dict[str, str] = field(default_factory=dict)
    first_parts: dict[str, str] = field(default_factory=dict)
    without_random_models: list[str] = field(default_factory=list)
    stopped: str = ""

    def facts(self) -> dict[str, Any]:
        """Return it as the provenance holds it."""
        facts: dict[str, Any] = {
            "round": self.round,
            "done": round(self.done, 4),
            "examples": self.examples,
            "partial": self.partial,
            "to_come": self.to_come,
            "first_parts": self.first_parts,
            "without_random_models": self.without_random_models,
            "stopped": self.stopped,
        }
        if self.seconds_left is not None:
            facts["seconds_left"] = round(self.seconds_left)
        return facts
