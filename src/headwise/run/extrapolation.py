"""How the time of some work grows with examples: told from tries on a few of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headwise.models.session import BLOCK_BYTES
from headwise.run.clock import Spent

HALF = (
    0.5  # the power of the number of examples below which most of the time does not grow with them
)


@dataclass(frozen=True, slots=True)
class Line:
    """What something took for some examples and for more of them: the time for any number lies on a
    line."""

    few: int
    more: int
    first: Spent
    second: Spent

    def at(self, examples: int) -> Spent:
        """For so many."""

        def line(low: float, high: float) -> float:
            # Noise must not make more examples cost less, nor many more than they do one by one.
            slope = min(
                max(high - low, 0.0) / max(self.more - self.few, 1), high / max(self.more, 1)
            )
            return high + slope * (examples - self.more)

        seconds = line(self.first.seconds, self.second.seconds)
        cpu = line(self.first.cpu_seconds, self.second.cpu_seconds)
        grown = max(self.second.memory - self.first.memory, 0) / max(self.more - self.few, 1)
        memory = self.second.memory + min(
            grown * max(examples - self.more, 0), BLOCK_BYTES
        )  # batches are no larger
        return Spent(max(seconds, 0.0), max(cpu, 0.0), int(memory))


def fitted(line: Line, examples: int) -> Spent:
    """What work that learns from examples would take for more of them than it was tried on.

    Where most of the time grows with examples, as on the line. Where most does not (fits of all
    heads, which need a few more rounds for more examples), two small tries cannot tell how the rest
    grows: it lies between the line and the power of the number that the tries lie on, and the
    geometric mean of these is said."""
    straight = line.at(examples)

    def between(low: float, high: float, along: float) -> float:
        power = math.log(max(high, 1e-9) / max(low, 1e-9)) / math.log(line.more / line.few)
        if power >= HALF:
            return along
        return math.sqrt(along * high * (examples / line.more) ** max(power, 0.0))

    seconds = between(line.first.seconds, line.second.seconds, straight.seconds)
    cpu = between(line.first.cpu_seconds, line.second.cpu_seconds, straight.cpu_seconds)
    return Spent(seconds, cpu, straight.memory)
