"""How far the work is: bars on a terminal, lines elsewhere, whatever a stage takes."""

from __future__ import annotations

import io
import re
import time

import pytest

from headwise.cli import screen


def test_off_a_terminal_a_line_is_said_while_a_stage_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screen.err, "_file", io.StringIO())
    monkeypatch.setattr(screen, "SILENCE", 0.02)
    with screen.Watch() as watch:
        watch("results", 0, 5)
        watch("examples", 64, 500)
        watch.doing("patterns")
        time.sleep(0.2)
    said = screen.err.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(said) >= 2
    assert re.fullmatch(
        r"results 0 of 5; examples 64 of 500; now patterns; 0\.\d s so far", said[0]
    ), said[0]
    watch("examples", 500, 500)
    assert "examples" not in watch.line()


def test_a_short_command_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen.err, "_file", io.StringIO())
    with screen.Watch() as watch:
        watch("examples", 3, 3)
    assert not screen.err.file.getvalue()  # type: ignore[attr-defined]


def test_a_phase_to_come_is_in_sight_and_its_clock_stands() -> None:
    watch = screen.Watch()
    watch("results", 0, 5)
    watch("examples", 1, 2)
    results, examples = (
        watch.progress.tasks[watch.tasks[name]] for name in ("results", "examples")
    )
    assert (results.started, examples.started) == (False, True)
    watch.doing("surface")
    assert (results.fields["now"], examples.fields["now"]) == ("", "surface")


def test_time_left_runs_out_and_is_then_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    watch = screen.Watch()
    monkeypatch.setattr(watch.progress, "get_time", lambda: now[0])
    for done in range(1, 5):
        now[0] += 10
        watch("entries", done, 6)
        watch.progress.tasks[0].get_time = lambda: now[0]  # type: ignore[method-assign]
    column = screen.TimeLeftColumn()
    (task,) = watch.progress.tasks
    assert screen.time_left(task) == pytest.approx(20, abs=8)
    assert "left" in watch.line()
    assert str(column.render(task)).endswith("s left")
    now[0] += 60  # the next one takes longer than all the others
    assert "left" not in watch.line()
    assert str(column.render(task)) == ""


def test_a_phase_that_begins_anew_has_no_time_left_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    watch = screen.Watch()
    monkeypatch.setattr(watch.progress, "get_time", lambda: now[0])
    for seed in range(2):
        for done in range(1, 5):
            now[0] += 10
            watch("epochs", done, 4)
            watch.progress.tasks[0].get_time = lambda: now[0]  # type: ignore[method-assign]
            now[0] += 5  # off a terminal a line may come at any time between two updates
            assert "-" not in watch.line(), (seed, done, watch.line())
    (task,) = watch.progress.tasks
    assert screen.time_left(task) == 0
    watch("epochs", 1, 4)
    now[0] += 17.4
    assert not task.finished
    assert watch.line().startswith("epochs 1 of 4; ")


def test_bars_of_what_is_finished_give_way_to_those_at_work() -> None:
    watch = screen.Watch()
    watch("whole", 0, 60)
    for number in range(60):
        watch(f"phase {number}", 0, 2)
        watch(f"phase {number}", 2, 2)
        watch("whole", number + 1, 60)
    watch("last", 1, 2)
    shown = [task.description for task in watch.progress.tasks if task.visible]
    assert len(shown) == screen.SHOWN
    assert shown[-2:] == ["phase 59", "last"]
    for number in range(
        screen.SHOWN
    ):  # those at work are never hidden, and one that begins anew is seen
        watch(f"phase {number}", 1, 2)
    assert {f"phase {number}" for number in range(screen.SHOWN)} | {"last"} == {
        task.description for task in watch.progress.tasks if task.visible
    }
