"""Options are declared once: the command line is generated from their dataclass."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headwise.cli import command as command_module
from headwise.core.errors import ParameterError
from headwise.core.options import (
    CheckedOptions,
    OptionSummary,
    list_options,
    option,
    part_of,
    takes_options,
)


@dataclass(frozen=True)
class CountOptions(CheckedOptions):
    limit: int | None = option(None, min=1, help="At most this many.")
    unit: str = option("word", choices=("word", "token"), aliases=("what",), help="The unit.")
    names: tuple[str, ...] = option((), flag="name", help="A name; repeatable.")
    heads: tuple[str, ...] | None = option(
        None, cli_type=str | None, parse=lambda text: tuple(text.split(",")), help="Heads."
    )
    layers: bool = option(True, flag="layers/no-layers", help="Layers too.")
    seed: int = option(0, help="The seed.")
    batch: int = option(8, command_line=False, help="Only in Python.")


@dataclass(frozen=True)
class SeedOptions:
    seed: int = option(0, help="The seed.")
    secret: bool = option(False, hidden=True, help="Not shown.")


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch):
    """A command line with one command, and the arguments that its calls received."""
    app = typer.Typer()
    app.callback()(lambda: None)
    monkeypatch.setattr(command_module, "app", app)
    calls = []

    @command_module.command("count")
    def count(
        *,
        model: str | None = option(None, argument=True, flag="model", help="The model."),
        options: CountOptions,
        seeds: SeedOptions,
        out: Path = option(Path("here"), help="Where."),
    ) -> None:
        """Count."""
        calls.append((model, options, seeds, out))

    def run(*arguments: str):
        return CliRunner().invoke(app, ["count", *arguments], env={"COLUMNS": "160"})

    return run, calls


def test_defaults_are_those_of_the_dataclass(counting) -> None:
    run, calls = counting
    assert run().exit_code == 0
    assert calls == [(None, CountOptions(), SeedOptions(), Path("here"))]


def test_every_kind_of_option_reaches_the_dataclass(counting) -> None:
    run, calls = counting
    arguments = "gpt2 --limit 3 --unit token --name a --name b --heads L1H2,L3H4 --no-layers"
    result = run(*arguments.split(), "--seed", "7", "--secret", "--out", "there")
    assert result.exit_code == 0, result.output
    expected = CountOptions(3, "token", ("a", "b"), ("L1H2", "L3H4"), False, 7)
    assert calls == [("gpt2", expected, SeedOptions(7, True), Path("there"))]


def test_a_model_and_an_option_have_two_spellings(counting) -> None:
    run, calls = counting
    run("--model", "gpt2", "--what", "token")
    model, options, *_ = calls[0]
    assert (model, options.unit) == ("gpt2", "token")
    result = run("bert", "--model", "gpt2")
    assert str(result.exception) == "Two values for model: 'bert' and 'gpt2'; give one of them."


def test_help_shows_what_is_not_hidden(counting) -> None:
    run, _ = counting
    shown = run("--help").output
    for flag in ("--limit", "--unit", "--name", "--heads", "--no-layers", "--seed", "--model"):
        assert flag in shown
    for flag in ("--what", "--secret", "--batch"):
        assert flag not in shown


def test_values_are_checked_by_the_dataclass(counting) -> None:
    run, _ = counting
    message = str(run("--unit", "line").exception)
    assert message == "`unit` must be one of word, token; it is 'line'."
    with pytest.raises(ParameterError, match="`limit` must be at least 1; it is 0"):
        CountOptions(limit=0)


def test_options_are_listed_for_docs() -> None:
    summaries = list_options(CountOptions)
    assert summaries[0] == OptionSummary("limit", "--limit", None, "At most this many.")
    assert summaries[-1] == OptionSummary("batch", None, 8, "Only in Python.")
    assert [each.name for each in list_options(SeedOptions)] == ["seed"]


def test_a_function_takes_its_options_as_keywords() -> None:
    @takes_options(CountOptions)
    def count(text: str, *, options: CountOptions) -> CountOptions:
        return options

    assert count("", limit=2) == CountOptions(limit=2)
    assert count("", options=CountOptions(limit=2), seed=1) == CountOptions(limit=2, seed=1)
    assert list(inspect.signature(count).parameters)[:3] == ["text", "limit", "unit"]
    with pytest.raises(ParameterError, match="There is no option of count 'limits'"):
        count("", limits=2)


def test_a_part_of_the_options() -> None:
    @dataclass(frozen=True)
    class BothOptions(CountOptions, SeedOptions):
        pass

    assert part_of(BothOptions(seed=3), SeedOptions) == SeedOptions(seed=3)
