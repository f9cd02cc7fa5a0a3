"""How the time of some work grows with examples: told from tries on a few of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headwise.models.session import BLOCK_BYTES
from headwise.run.clock import Spent

HALVINGS = 30


@dataclass(frozen=True, slots=True)
class Line:
    """What something took for some examples and for more of them: the time for any number lies on a line."""

    few: int
    more: int
    first: Spent
    second: Spent

    def at(self, examples: int) -> Spent:
        """For so many."""

        def line(low: float, high: float) -> float:
            # Noise must not make more examples cost less, nor many more than they do one by one.
            slope = min(max(high - low, 0.0) / max(self.more - self.few, 1), high / max(self.more, 1))
            return high + slope * (examples - self.more)

        seconds = line(self.first.seconds, self.second.seconds)
        cpu = line(self.first.cpu_seconds, self.second.cpu_seconds)
        grown = max(self.second.memory - self.first.memory, 0) / max(self.more - self.few, 1)
        memory = self.second.memory + min(grown * max(examples - self.more, 0), BLOCK_BYTES)  # batches are no larger
        return Spent(max(seconds, 0.0), max(cpu, 0.0), int(memory))


def curve(tries: Mapping[int, Spent], examples: int) -> Spent:
    """What work would take for more examples than it was tried on, by number of examples in rising order.

    Two tries make a line. Three tell too whether the time grows less and less, as that of fits does, which have a share
    that is the same for any number and one that grows with the rounds they need: it then follows the power of the
    number (or its logarithm, the power 0) that the three lie on.
    """
    few, more = min(tries), max(tries)
    line = Line(few, more, tries[few], tries[more]).at(examples)
    if len(tries) < 3:
        return line

    def grown(times: Mapping[int, float], straight: float) -> float:
        first, middle, last = (times[count] for count in sorted(times))
        if last <= first or middle <= first:
            return straight
        power = bending(sorted(times), (last - middle) / (middle - first))
        rise = (_raised(examples, power) - _raised(more, power)) / (_raised(more, power) - _raised(few, power))
        return min(straight, last + rise * (last - first))

    seconds = grown({count: spent.seconds for count, spent in tries.items()}, line.seconds)
    cpu = grown({count: spent.cpu_seconds for count, spent in tries.items()}, line.cpu_seconds)
    return Spent(seconds, cpu, line.memory)


def bending(counts: list[int], ratio: float) -> float:
    """The power, from 0 to 1, of three numbers whose steps have a ratio, the later to the earlier.

    Examples
    --------
    >>> bending([1, 4, 16], 4.0), bending([1, 4, 16], 0.5), round(bending([1, 4, 16], 2.0), 6)
    (1.0, 0.0, 0.5)
    """

    def steps(power: float) -> float:
        few, middle, more = (_raised(count, power) for count in counts)
        return (more - middle) / (middle - few)

    low, high = 0.0, 1.0
    if ratio >= steps(high) * (1 - 1e-9):
        return high
    if ratio <= steps(low):
        return low
    for _ in range(HALVINGS):
        power = (low + high) / 2
        low, high = (power, high) if steps(power) < ratio else (low, power)
    return (low + high) / 2


def _raised(count: int, power: float) -> float:
    return math.log(count) if power == 0 else float(count**power)
