"""The command line: errors a user can cause are one sentence and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

import typer

from headwise.cli import common
from headwise.cli.command import GROUPS
from headwise.cli.command import app as app
from headwise.core.interrupts import Interrupted, raise_if_interrupted, say, watching_signals
from headwise.core.version import __version__


def add_commands() -> None:
    """Import every module of commands, and put the commands in the order of their groups; modules
    import what they need only when called, so that `headwise --help` is quick."""
    names = {module.name for module in iter_modules([str(Path(__file__).parent)])}
    for name in sorted(names - {"main", "__main__"}):
        import_module(f"headwise.cli.{name}")
    order = [name for group in GROUPS.values() for name in group]
    app.registered_commands.sort(key=lambda added: order.index(str(added.name)))


add_commands()


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headwise {__version__}")
        raise typer.Exit


@app.callback(
    help="What each attention head of a transformer language model does.\n\n"
    "Start with `headwise atlas`: all analyses of the built-in model on the built-in corpus, in "
    "minutes, as a page to open."
)
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show the traceback behind an error, for reports; with any command."
        ),
    ] = False,
) -> None:
    """Read the options that stand before a command."""


@cache
def whole_command() -> Callable[[list[str]], Any]:
    """The command with all that it can do; made of the functions' parameters, and so once a
    process."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line: 0 where all went well, 2 for what a user can fix, 3 for what failed
    unexpectedly, 130 and 143 where a signal stopped it, 141 where the reader of a pipe has gone."""
    debug = "--debug" in sys.argv[1:]  # wherever it stands, so that it can be added to any command
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    with common.debugging(debug), common.plain_warnings():
        try:
            with watching_signals():
                try:
                    whole_command()(arguments)
                except Exception:
                    # A library may answer a signal with an error of its own, as an import that
                    # was stopped halfway does.
                    raise_if_interrupted()
                    raise
                finally:
                    sys.stdout.flush()  # what is not yet written may fail, and must do so here
        except Interrupted as stopped:
            say(str(stopped))
            sys.exit(stopped.code)
        except Exception as error:  # what no command foresaw is one sentence too
            sys.exit(common.print_error(error))
