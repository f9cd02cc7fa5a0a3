"""Output on the terminal: the two consoles, and progress."""

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

# At most this many bars at a time: of more than fit, a terminal shows the first, and the work is at
# the last.
SHOWN = 12
SILENCE = 30.0  # seconds between lines of progress where output is not a terminal


def time_left(task: Task) -> float | None:
    """Return the estimated seconds that a task still takes, None where there is no estimate.

    The estimate ages: the time since the last update is subtracted. Once a step took longer than
    estimated, steps differ too much for any estimate."""
    if task.finished:
        return 0.0
    if task.time_remaining is None:
        return None
    left = task.time_remaining - (time.monotonic() - float(task.fields["heard"]))
    return left if left > 0 else None


class TimeLeftColumn(ProgressColumn):
    """The time left, or nothing where that is not known."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        left = time_left(task)
        text = ""
        if left is not None:
            text = f"{shown_time(left)} left"
        return Text(text, style="progress.remaining")


class Watch:
    """Progress: bars with rate and time left on a terminal, elsewhere a line every half minute."""

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
        if done < task.completed:
            # A phase that begins anew (the epochs of the next seed) has a new clock: rich would
            # call it finished from the end of the first time on, with no time left.
            self.progress.reset(task.id, start=False)
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
        """Note the stage that runs now."""
        self.now = stage
        if self.last is not None:
            self.progress.update(self.tasks[self.last], now=stage)

    def _lines(self) -> None:
        while not self._stop.wait(SILENCE):
            err.print(self.line(), style="dim", soft_wrap=True)

    def line(self) -> str:
        """Return the progress in one line."""
        parts = []
        for name, task_id in self.tasks.items():
            task = self.progress.tasks[task_id]
            if task.completed >= (task.total or 0):
                continue
            part = f"{name} {task.completed:,.0f} of {task.total:,.0f}"
            left = time_left(task)
            if left and name == self.last:
                part += f", about {shown_time(left)} left"
            parts.append(part)
        if self.now:
            parts.append(f"now {self.now}")
        parts.append(f"{shown_time(time.monotonic() - self._began)} so far")
        return "; ".join(parts)


def shown_time(seconds: float) -> str:
    """Return a duration as text.

    >>> shown_time(0.42), shown_time(75), shown_time(3 * 3600 + 60)
    ('0.4 s', '1 min 15 s', '3 h 1 min')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, left_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left_seconds} s"
