"""What the page of an atlas that grows says of what is done and what is still to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RUNNING = (
    "The work goes on: reload the page to see more. If its command no longer runs, repeat it to "
    "continue."
)
DRAWING = (
    "All analyses are done, and all numbers on this page are final. Its figures and sample inputs "
    "are being drawn."
)


@dataclass(frozen=True, slots=True)
class Banner:
    """The sentences at the top of a page that is not finished.

    `version` tells two such pages of the same folder apart. Of a page that is `live`, the last
    sentence is replaced where the page can reload itself."""

    lines: list[str]
    version: str = ""
    live: bool = False


def unfinished_lines(provenance: Mapping[str, Any]) -> list[str]:
    """Return what an atlas lacks, in sentences; none for a finished one."""
    about = provenance.get("unfinished")
    if not about:
        return []
    lines = []
    counts = []
    for name, (done, total) in about.get("examples", {}).items():
        counts.append(f"{done:,} of {total:,} examples of {name}")
    if counts:
        lines.append(
            f"This atlas is not finished: it has {' and '.join(counts)}. Every number and every "
            "interval is of the examples that its analysis has read so far."
        )
    else:
        lines.append("This atlas is not finished.")
    to_come = list(about.get("to_come", {}).values())
    if to_come:
        lines.append(f"Still to come: {'; '.join(to_come)}.")
    first_parts = list(about.get("first_parts", {}).values())
    if first_parts:
        lines.append(f"Without the dearest part so far: {'; '.join(first_parts)}.")
    without = about.get("without_random_models", [])
    if without:
        lines.append(
            "Not yet compared with random-weights models, which leaves fewer heads significant: "
            f"{', '.join(without)}."
        )
    if about.get("seconds_left") is not None:
        lines.append(f"Work left, roughly: {_minutes(about['seconds_left'])}, then the figures.")
    if about.get("stopped"):
        lines.append(f"The run was stopped {about['stopped']}: repeat its command to continue.")
    else:
        lines.append(RUNNING)
    return lines


def _minutes(seconds: float) -> str:
    """Return a rough time in words.

    >>> _minutes(20), _minutes(130), _minutes(9000)
    ('less than a minute', '2 minutes', '2.5 hours')
    """
    if seconds < 60:
        return "less than a minute"
    if seconds < 90:
        return "a minute"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"
