"""Exit codes of `headwise` as a shell sees them: streams that are closed, full or ASCII, and paths
that no program could open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwise.cli  # noqa: F401
from headwise.core.failures import Failure, error_of_user
from headwise.core.streams import READER_GONE

HEADWISE = [sys.executable, "-m", "headwise"]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command: list[Any] = [*HEADWISE, *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, timeout=300, check=False, **options)


def test_a_pipe_whose_reader_has_gone_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = run("--help", stdout=writer)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (READER_GONE, b"")


def test_closed_output_is_one_sentence() -> None:
    ended = run("--version", stdout=None, preexec_fn=lambda: os.close(1))
    assert ended.returncode == 2
    assert ended.stderr == (
        b"headwise: Standard output cannot be written (Bad file descriptor); redirect it "
        b"elsewhere.\n"
    )


def test_closed_standard_error_is_no_failure() -> None:
    ended = run("--version", stderr=None, preexec_fn=lambda: os.close(2))
    assert ended.returncode == 0
    assert ended.stdout.startswith(b"headwise ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_behind_the_output_is_named() -> None:
    with open("/dev/full", "wb") as full:
        ended = run("--version", stdout=full)
    assert ended.returncode == 2
    assert b"Standard output cannot be written (No space left on device)" in ended.stderr
    assert b"--out" not in ended.stderr


def test_an_ascii_terminal_gets_everything_in_ascii() -> None:
    environment = os.environ | {
        "LC_ALL": "C",
        "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    ended = run("cite", "surface", env=environment)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"Manning" in ended.stdout
    assert ended.stdout.isascii()


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    link = tmp_path / "loop"
    link.symlink_to(link)
    return link


@pytest.mark.parametrize("arguments", [("page",), ("atlas", "--limit", "2", "--out")])
@pytest.mark.parametrize(
    "path_of",
    [lambda loop: loop, lambda loop: loop.with_name("x" * 300), lambda loop: f"{loop}/x"],
    ids=["link to itself", "long name", "under a link to itself"],
)
def test_a_path_that_cannot_be_opened_is_an_error_of_the_user(
    headwise, loop: Path, arguments: tuple[str, ...], path_of: Callable[[Path], object]
) -> None:
    ended = headwise(*arguments, path_of(loop))
    assert ended.code == 2
    assert "unexpectedly" not in ended.err
    assert len(ended.err) < 900


def test_undecodable_names_are_read_and_printed_as_they_are(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/a\xff\xfe"
    ended = run("page", name)
    assert ended.returncode == 2
    assert b"There is no file" in ended.stderr
    error = UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed")
    assert "holds bytes that are no text" in str(error_of_user(error))


def test_other_errors_stay_failures() -> None:
    for error in (OSError(2, "No such file"), RuntimeError("dictionary changed"), ValueError("x")):
        assert error_of_user(error) is None
        assert Failure.of("it", error).what == "it"


def test_a_signal_that_a_library_answers_with_an_error_is_said_as_a_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped_import(_: list[str]) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            raise ImportError("half a module") from None

    # The package's `main` is the function, not the module.
    main_module = sys.modules["headwise.cli.main"]
    monkeypatch.setattr(main_module, "whole_command", lambda: stopped_import)
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "headwise: Interrupted by SIGINT.\n"
