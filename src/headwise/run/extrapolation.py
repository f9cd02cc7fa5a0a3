"""How the cost of some work grows with the number of examples, from tries on a few of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headwise.models.session import BLOCK_BYTES
from headwise.run.progress import Usage

# The power of the number of examples below which most of the time does not grow with them.
GROWING_POWER = 0.5


@dataclass(frozen=True, slots=True)
class CostLine:
    """What some work took for `few` and for `more` examples; the time for any number lies on the
    line through both."""

    few: int
    more: int
    first: Usage
    second: Usage

    def at(self, examples: int) -> Usage:
        """Return what it takes for so many examples."""
        seconds = self._on_line(self.first.seconds, self.second.seconds, examples)
        cpu_seconds = self._on_line(self.first.cpu_seconds, self.second.cpu_seconds, examples)
        memory_growth = max(self.second.memory - self.first.memory, 0)
        memory_per_example = memory_growth / max(self.more - self.few, 1)
        # Batches are bounded, so memory does not grow for ever.
        added_memory = min(memory_per_example * max(examples - self.more, 0), BLOCK_BYTES)
        return Usage(
            max(seconds, 0.0), max(cpu_seconds, 0.0), int(self.second.memory + added_memory)
        )

    def _on_line(self, low: float, high: float, examples: int) -> float:
        slope = max(high - low, 0.0) / max(self.more - self.few, 1)
        # Noise must not make more examples cost less, nor more than the same number one by one.
        slope = min(slope, high / max(self.more, 1))
        return high + slope * (examples - self.more)


def extrapolate_fit(line: CostLine, examples: int) -> Usage:
    """Return what work that learns from examples takes for more of them than it was tried on.

    Where most of the time grows with examples, it lies on the line. Where most does not (fits of
    all heads, which need a few more rounds for more examples), two small tries cannot tell how the
    rest grows: it lies between the line and the power law through the tries, and the estimate is
    the geometric mean of these."""
    on_line = line.at(examples)
    return Usage(
        _between(line, line.first.seconds, line.second.seconds, on_line.seconds, examples),
        _between(
            line, line.first.cpu_seconds, line.second.cpu_seconds, on_line.cpu_seconds, examples
        ),
        on_line.memory,
    )


def _between(line: CostLine, low: float, high: float, on_line: float, examples: int) -> float:
    power = math.log(max(high, 1e-9) / max(low, 1e-9)) / math.log(line.more / line.few)
    if power >= GROWING_POWER:
        return on_line
    by_power_law = high * (examples / line.more) ** max(power, 0.0)
    return math.sqrt(on_line * by_power_law)
