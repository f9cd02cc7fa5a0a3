"""What is printed: nothing in it is markup, every flag it names exists, and the library names none."""

from __future__ import annotations

import ast
import io
import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer
from rich.table import Table

import headwise
from headwise.cli import common
from headwise.core.errors import MissingExtraError

SOURCE = Path(headwise.__file__).parent
main = import_module("headwise.cli.main")  # the package has a function of that name
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMMANDS = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]
# Flags of other programs, and those of `headwise` itself.
OTHER_FLAGS = {"--upgrade", "--debug", "--help", "--version"}


def flags_of(command: typer.core.TyperCommand) -> set[str]:
    """All flags of a command, hidden ones too."""
    flags = set()
    for parameter in command.params:
        flags.update(parameter.opts, parameter.secondary_opts)
    return flags


def texts_in(path: Path) -> Iterator[str]:
    """Every text of a module that is neither a docstring nor the flag of a declared option."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    excluded = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            excluded.add(id(node.value))
        elif isinstance(node, ast.keyword) and node.arg in ("flag", "aliases"):
            excluded.update(id(part) for part in ast.walk(node.value))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in excluded:
            yield node.value


def flags_in(text: str) -> list[str]:
    """The flags that a text names; names of CSS variables are none."""
    if "font" in text or text.startswith(("--hw-", "{")) or "var(" in text or len(text) > 1000:
        return []
    return [flag for flag in FLAG.findall(text) if flag not in OTHER_FLAGS]


LIBRARY = [path.parent.name for path in SOURCE.glob("*/__init__.py") if path.parent.name != "cli"]


@pytest.mark.parametrize("package", sorted(LIBRARY))
def test_the_library_names_no_flags(package: str) -> None:
    """A Python caller cannot follow advice with flags; the command line adds its own hint."""
    violations = []
    for path in sorted((SOURCE / package).rglob("*.py")):
        module = path.relative_to(SOURCE).as_posix()
        for text in texts_in(path):
            violations += [f"{module}: {flag} ({text[:80]!r})" for flag in flags_in(text)]
    assert not violations, "\n".join(violations)


def test_every_flag_that_a_command_names_exists() -> None:
    all_flags = set[str]().union(*map(flags_of, COMMANDS.values()))
    violations = []
    for path in sorted((SOURCE / "cli").glob("*.py")):
        # A module that is named like a command holds that command alone, `atlas` and `run` apart.
        known_flags = all_flags
        if path.stem in COMMANDS and path.stem != "atlas":
            known_flags = flags_of(COMMANDS[path.stem])
        for text in texts_in(path):
            for flag in flags_in(text):
                if flag not in known_flags:
                    violations.append(f"{path.name}: {flag} ({text[:80]!r})")
    assert not violations, "\n".join(violations)


HOSTILE = [
    "pip install 'headwise[parse]'",
    "a[/x]b",
    "[bold]x",
    ":smile:",
    "[link=file:///etc]x[/link]",
    "\\[x]",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_printed_is_printed_as_it_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for console in (common.out, common.err):
        monkeypatch.setattr(console, "_file", io.StringIO())
        table = Table(text, title=text)
        table.add_row(text)
        console.print(text)
        console.print(text, style="dim")
        console.print(table)
        assert console.file.getvalue().count(text) == 5  # type: ignore[attr-defined]


def test_no_command_turns_markup_on() -> None:
    for path in (SOURCE / "cli").glob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "markup=True" not in line
            assert not re.search(r"\[/?(dim|bold|red)[ \]]", line) or "Example" in line, (
                f"{path.name}: {line}"
            )


@pytest.mark.parametrize("text", HOSTILE)
def test_an_error_keeps_its_brackets(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common.err, "_file", io.StringIO())
    monkeypatch.setattr("sys.argv", ["headwise", "cite", text])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    shown = common.err.file.getvalue()  # type: ignore[attr-defined]
    assert f" '{text}'." in shown
    assert str(MissingExtraError("spacy", "parse", "A parser")).endswith(
        "pip install 'headwise[parse]'."
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["atlas", "--nope[/x]"],
        ["nope[/x]"],
        ["atlas", "--limit", "[/x]"],
        ["run"],
        ["explore", "--port", "[/z]"],
    ],
)
def test_a_wrong_command_line_is_no_traceback(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["headwise", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_warnings_of_headwise_are_sentences_and_those_of_others_as_ever() -> None:
    usual = warnings.formatwarning("hm", UserWarning, "/other.py", 7, "code()")
    with common.plain_warnings():
        ours = warnings.formatwarning("It is left out.", RuntimeWarning, common.__file__, 74)
        others = warnings.formatwarning("hm", UserWarning, "/other.py", 7, "code()")
    assert ours == "headwise: It is left out.\n"
    assert others == usual
    assert "/other.py:7: UserWarning: hm" in usual


def test_a_command_shows_a_warning_without_a_line_of_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(arguments: list[str]) -> None:
        text = warnings.formatwarning("It is left out.", RuntimeWarning, common.__file__, 74)
        print(text, end="")

    monkeypatch.setattr(main, "whole_command", lambda: warn)
    monkeypatch.setattr("sys.argv", ["headwise", "list"])
    main.main()
    assert capsys.readouterr().out == "headwise: It is left out.\n"
