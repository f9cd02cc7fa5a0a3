"""What is said on screen: nothing in it is markup, and every option it names exists where it is
said."""

from __future__ import annotations

import ast
import io
import re
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
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMMANDS = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]
OPTIONS = {
    name: {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for name, command in COMMANDS.items()
}
# The commands whose user may be told by a room: all of these must have the option it names.
RUNS = ("atlas", "run")
TOLD = {
    "analyses/patterns/label": ("label",),
    "analyses": RUNS,
    "run": RUNS,
    "page/report": ("atlas",),
    "experiments/finetuning": ("finetune",),
    "experiments/ablation/prune": ("prune",),
    "experiments/ablation": ("ablate", "prune"),
    "experiments/comparison": ("compare",),
    "cli/atlas": (),  # it holds two commands
    "cli/main": (),
}
OTHERS = {
    "--upgrade": "pip install --upgrade",
    "--debug": "--debug",
}  # pip's own; for every command


def said() -> Iterator[tuple[str, str]]:
    """Every text in the source that is no docstring, with its module."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        module = path.relative_to(SOURCE).with_suffix("").as_posix()
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in docs
            ):
                yield module, node.value


def commands_of(module: str) -> tuple[str, ...]:
    found = next(
        (commands for room, commands in TOLD.items() if f"{module}/".startswith(f"{room}/")), None
    )
    own = module.removeprefix("cli/")
    return found if found is not None else (own,) if own in COMMANDS else ()


def test_every_option_that_is_named_exists_where_it_is_said() -> None:
    known = {"--help", "--version"}.union(*OPTIONS.values())
    wrong = []
    for module, text in said():
        for option in OPTION.findall(text):
            if option in OTHERS:
                assert OTHERS[option] in text
            elif (
                "font" not in text
                and "var(" not in text
                and "{" not in text[:1]
                and len(text) < 1000
            ):
                lacking = [name for name in commands_of(module) if option not in OPTIONS[name]]
                wrong += [
                    f"{module}: {option} is no option of {lacking or 'any command'} ({text[:80]!r})"
                ] * (option not in known or bool(lacking))
    assert not wrong, "\n".join(wrong)


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
    assert f"There is no analysis '{text}'." in shown
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
        ["label", "[/x]", "[/y]", "--port", "[/z]"],
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
