"""The command line: errors a user can cause are one sentence and exit code 2."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

import typer
from rich.text import Text

from headwise.cli.common import err
from headwise.core.errors import HeadwiseError
from headwise.core.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
FIRST = ("atlas", "draw", "info")


def register_all(app: typer.Typer) -> None:
    """Add every command, those a newcomer needs first; modules import what they need only when called, so that
    `headwise --help` is quick."""
    modules = (
        module.name for module in iter_modules([str(Path(__file__).parent)]) if module.name not in ("main", "__main__")
    )
    for name in sorted(modules, key=lambda name: (name not in FIRST, name)):
        register = getattr(import_module(f"headwise.cli.{name}"), "register", None)
        if register is not None:
            register(app)


register_all(app)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headwise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What each attention head of a transformer language model does.

    Start with `headwise atlas`: everything that applies to the built-in model on the built-in corpus, in minutes, as a
    page to open.
    """


def main() -> None:
    """Run the command line."""
    try:
        app()
    except HeadwiseError as error:
        err.print(Text("headwise:", style="bold red"), str(error), soft_wrap=True, highlight=False)
        sys.exit(2)
