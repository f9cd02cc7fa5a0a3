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
Group = tuple[str, str, str, str]  # task, pooling, start, recipe


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """One finished training with its scores on the dev part.

    Attributes
    ----------
    task, pooling, start, recipe : str
        What was trained; together the `group`.
    seed : int
        The seed.
    metrics : dict
        The scores on the dev part.
    history : list of dict
        Loss and scores after each epoch.
    identity : dict
        Model, data and settings: what makes two trainings the same.
    detail : dict
        The layer or heads of the pooling, and how they were chosen.
    folder : str
        The folder of its predictions and model, relative to the results file.
    """

    task: str
    pooling: str
    start: str
    recipe: str
    seed: int
    metrics: dict[str, float]
    history: list[dict[str, float]] = field(default_factory=list)
    identity: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)
    folder: str = ""

    @property
    def group(self) -> Group:
        return self.task, self.pooling, self.start, self.recipe


class ResultsFile:
    """The records in a folder's results file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS
        self.records: list[TrainingRecord] = []
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        try:
            content = json.loads(self.path.read_text())
            if content["format"] > FORMAT:
                raise OutputError(
                    f"{self.path} was written by a later headwise; upgrade headwise, or choose "
                    "another folder.",
                    option="out",
                )
            for record in content["records"]:
                # Files of earlier versions say how many seconds a training took.
                record.pop("seconds", None)
                self.records.append(TrainingRecord(**record))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{self.path} is not a results file of headwise ({type(error).__name__}: {error}); "
                "choose another folder.",
                option="out",
            ) from error

    def find(self, group: Group, seed: int) -> TrainingRecord | None:
        """Return the record of a group and seed, None where there is none."""
        for record in self.records:
            if record.group == group and record.seed == seed:
                return record
        return None

    def add(self, record: TrainingRecord) -> None:
        """Add a record (in the place of one of the same group and seed) and write the file
        atomically."""
        earlier = self.find(record.group, record.seed)
        if earlier is not None:
            self.records.remove(earlier)
        self.records.append(record)
        content = {
            "format": FORMAT,
            "records": [asdict(each) for each in self.records],
            "summary": summary(self.records),
        }
        write_atomically(self.path, (json.dumps(content, indent=1) + "\n").encode())


def summary(records: Sequence[TrainingRecord]) -> list[dict[str, Any]]:
    """Return for each task, pooling, start and recipe the seeds, and for each metric the median
    over seeds with its interval."""
    groups: dict[Group, list[TrainingRecord]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record)
    rows = []
    for (task, pooling, start, recipe), members in groups.items():
        members.sort(key=lambda record: record.seed)
        metrics = {}
        for name in members[0].metrics:
            metrics[name] = median_interval([record.metrics[name] for record in members])
        rows.append(
            {
                "task": task,
                "pooling": pooling,
                "start": start,
                "recipe": recipe,
                "seeds": [record.seed for record in members],
                "metrics": metrics,
                "detail": members[0].detail,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the summary as rows of text: task, pooling, start, recipe, `median (low – high)` of
    each metric in hundredths, and the number of seeds."""
    lines = []
    for row in rows:
        scores = []
        for name, score in row["metrics"].items():
            text = f"{name} {100 * score['median']:.1f}"
            if score["n"] > 1:
                text += f" ({100 * score['low']:.1f}–{100 * score['high']:.1f})"
            scores.append(text)
        lines.append(
            [
                row["task"],
                row["pooling"],
                row["start"],
                row["recipe"],
                ", ".join(scores),
                str(len(row["seeds"])),
            ]
        )
    return lines
