"""What a person at the command line sees: where lines go, and how far the work is."""

from __future__ import annotations

import sys
import threading
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

# What is printed may hold anything, so nothing in it is markup. A pipe has no width to fit: names
# must not be cut.
out = Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)

SHOWN = 12  # bars at a time: of more than a screen holds the first are shown, and the work is at the last
SILENCE = 30.0  # seconds after which a run that is read from a file says how far it is


def time_left(task: Task) -> float | None:
    """What a task says is left, less the time since it was last heard of; None once it took longer
    than it said: steps that differ foretell nothing."""
    if task.time_remaining is None:
        return None
    left = task.time_remaining - (time.monotonic() - float(task.fields["heard"]))
    return left if left > 0 or task.finished else None


class TimeLeftColumn(ProgressColumn):
    """The time left, or nothing where that is not known."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        left = time_left(task)
        return Text(
            "" if left is None else f"{shown_time(max(left, 0.0))} left", style="progress.remaining"
        )


class Watch:
    """How far it is: bars with rate and time left on a terminal, elsewhere a line every half
    minute."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description:<12}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),  # moves whatever a stage takes
            TimeLeftColumn(),
            TextColumn("{task.fields[now]}", markup=False),
        )
        self.progress = Progress(
            *columns, console=err, transient=False, disable=not err.is_terminal
        )
        self.tasks: dict[str, TaskID] = {}
        self.last: str | None = None
        self.now = ""
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._timer: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self.progress.start()
        if not err.is_terminal:
            self._timer = threading.Thread(target=self._lines, daemon=True)
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._timer is not None:
            self._timer.join()
        for task in self.progress.tasks:
            self.progress.update(task.id, now="")
        self.progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            # A phase that is yet to come is shown without its clock going.
            self.tasks[what] = self.progress.add_task(
                what, start=False, total=total, rate="", now="", heard=0.0
            )
        task = self.progress.tasks[self.tasks[what]]
        if done and not task.started:
            self.progress.start_task(task.id)
        rate = f"{task.speed:.0f}/s" if task.speed and task.speed >= 1 else ""
        heard = time.monotonic()
        self.progress.update(
            task.id, completed=done, total=total, rate=rate, now="", heard=heard, visible=True
        )
        self._make_room()
        if done or self.last is None:
            self.last = what

    def _make_room(self) -> None:
        """Hide what is finished, the oldest first, where there are many."""
        shown = [task for task in self.progress.tasks if task.visible]
        finished = [task for task in shown if task.completed >= (task.total or 0)]
        for task in finished[: max(0, len(shown) - SHOWN)]:
            self.progress.update(task.id, visible=False)

    def doing(self, stage: str) -> None:
        """The stage that is at work now."""
        self.now = stage
        if self.last is not None:
            self.progress.update(self.tasks[self.last], now=stage)

    def _lines(self) -> None:
        while not self._stop.wait(SILENCE):
            err.print(self.line(), style="dim", soft_wrap=True)

    def line(self) -> str:
        """How far it is, in a line."""
        spent = f"{shown_time(time.monotonic() - self._began)} so far"
        told = []
        for what, number in self.tasks.items():
            task = self.progress.tasks[number]
            if task.completed < (task.total or 0):
                left = time_left(task)
                about = f", about {shown_time(left)} left" if left and what == self.last else ""
                told.append(f"{what} {task.completed:,.0f} of {task.total:,.0f}{about}")
        return "; ".join([*told, *([f"now {self.now}"] if self.now else []), spent])


def shown_time(seconds: float) -> str:
    """A time as people say it.

    >>> shown_time(0.42), shown_time(75), shown_time(3 * 3600 + 60)
    ('0.4 s', '1 min 15 s', '3 h 1 min')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
