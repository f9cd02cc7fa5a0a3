"""The results file: one JSON with a record for each finished training, and medians over seeds with
their intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headwise.core.errors import OutputError
from headwise.core.files import write_atomically
from headwise.stats.intervals import median_interval

FORMAT = 1
RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """One finished training: what was trained, from what, how, with which seed, and its scores on
    the dev part."""

    task: str
    pooling: str
    start: str
    recipe: str
    seed: int
    metrics: dict[str, float]
    history: list[dict[str, float]] = field(default_factory=list)
    identity: dict[str, Any] = field(
        default_factory=dict
    )  # model, data, settings: what makes two trainings the same
    detail: dict[str, Any] = field(
        default_factory=dict
    )  # the layer or heads of the pooling, and how they were chosen
    folder: str = ""  # where its predictions and model lie, relative to the results file

    @property
    def group(self) -> tuple[str, str, str, str]:
        return self.task, self.pooling, self.start, self.recipe


class ResultsFile:
    """The records in a folder's results file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS
        self.records: list[TrainingRecord] = []
        if self.path.exists():
            try:
                found = json.loads(self.path.read_text())
                if found["format"] > FORMAT:
                    raise OutputError(
                        f"{self.path} was written by a later headwise; upgrade it, or choose another folder with --out."
                    )
                for record in found["records"]:
                    # Files of earlier versions say how many seconds a training took.
                    record.pop("seconds", None)
                    self.records.append(TrainingRecord(**record))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise OutputError(
                    f"{self.path} is no results file of headwise ({type(error).__name__}: {error}); choose another "
                    "folder with --out."
                ) from error

    def find(self, group: tuple[str, str, str, str], seed: int) -> TrainingRecord | None:
        return next((r for r in self.records if r.group == group and r.seed == seed), None)

    def add(self, record: TrainingRecord) -> None:
        """Put a record in (in the place of one of the same group and seed) and write the file,
        whole or not at all."""
        self.records = [
            r for r in self.records if (r.group, r.seed) != (record.group, record.seed)
        ] + [record]
        content = {
            "format": FORMAT,
            "records": [asdict(r) for r in self.records],
            "summary": summary(self.records),
        }
        write_atomically(self.path, (json.dumps(content, indent=1) + "\n").encode())


def summary(records: Sequence[TrainingRecord]) -> list[dict[str, Any]]:
    """For each task, pooling, start and recipe, and each metric: median over seeds, its interval,
    and the seeds."""
    groups: dict[tuple[str, str, str, str], list[TrainingRecord]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record)
    rows = []
    for (task, pooling, start, recipe), found in groups.items():
        found = sorted(found, key=lambda record: record.seed)
        scores = {
            name: median_interval([r.metrics[name] for r in found]) for name in found[0].metrics
        }
        row = {
            "task": task,
            "pooling": pooling,
            "start": start,
            "recipe": recipe,
            "seeds": [r.seed for r in found],
        }
        rows.append({**row, "metrics": scores, "detail": found[0].detail})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The summary as rows of text: task, pooling, start, recipe, `median (low – high)` of each
    metric in hundredths, and the number of seeds."""

    def shown(name: str, score: Mapping[str, float]) -> str:
        interval = (
            f" ({100 * score['low']:.1f}–{100 * score['high']:.1f})" if score["n"] > 1 else ""
        )
        return f"{name} {100 * score['median']:.1f}{interval}"

    return [
        [
            *(row[key] for key in ("task", "pooling", "start", "recipe")),
            ", ".join(shown(name, score) for name, score in row["metrics"].items()),
            str(len(row["seeds"])),
        ]
        for row in rows
    ]
