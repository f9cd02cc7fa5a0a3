"""The command line: errors a user can cause are one sentence and exit code 2."""

from __future__ import annotations

import sys

import typer

from headwise.commands import register_all
from headwise.commands.common import err
from headwise.errors import HeadwiseError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="What each attention head of a transformer language model does.",
)
register_all(app)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except HeadwiseError as error:
        err.print(f"[bold red]headwise:[/bold red] {error}", soft_wrap=True, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
