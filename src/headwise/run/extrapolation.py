"""How the cost of some work grows with examples and with layers, from tries on a few of them."""

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


@dataclass(frozen=True, slots=True)
class DepthLine:
    """What some work took in a model cut after `few` and after `more` layers.

    The time in the whole model lies on the line through both. The same number of layers twice stands
    for a model that was not cut.

    Examples
    --------
    >>> line = DepthLine(1, 3, Usage(2.0, 2.0), Usage(4.0, 4.0))
    >>> line.factor(30)
    7.75
    """

    few: int
    more: int
    first: Usage
    second: Usage

    def factor(self, layers: int) -> float:
        """Return how many times the time in `more` layers the time in so many is; by processor
        time, since the machine may be busy."""
        if self.more >= layers or self.second.cpu_seconds <= 0:
            return 1.0
        rise = max(self.second.cpu_seconds - self.first.cpu_seconds, 0.0)
        # No more than if all of it were spent in layers.
        per_layer = min(rise / max(self.more - self.few, 1), self.second.cpu_seconds / self.more)
        return 1.0 + per_layer * (layers - self.more) / self.second.cpu_seconds


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
