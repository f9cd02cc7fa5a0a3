"""`headwise explore`: type a sentence, see what every head does with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command


@command("explore")
def explore(
    *,
    model: options.ModelName,
    atlas: Annotated[
        Path | None,
        typer.Option(help="An atlas of the model (its folder, or the file): each head's word."),
    ] = None,
    beside: Annotated[
        str | None, typer.Option("--with", metavar="MODEL", help="A second model, side by side.")
    ] = None,
    placed: options.StackOptions,
    port: Annotated[int, typer.Option(min=0, help="Port on this machine; 0 for any free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page at once.")
    ] = True,
) -> None:
    """A local page: type a sentence or a pair, see all heads at once, one of them large, its
    attention beside what it gathers; disable heads by a click and see what the model says then.

    The page is served on this machine alone, at an address that only you know. Needs the extra
    `explore`.

    [dim]Examples:[/dim]

      headwise explore

      headwise explore gpt2 --atlas gpt2-atlas

      headwise explore bert-base-uncased --with textattack/bert-base-uncased-MRPC
    """
    from headwise.atlas import Atlas
    from headwise.explore import serve
    from headwise.explore.server import check_extra

    check_extra()  # before a model is loaded for nothing
    known = None if atlas is None else Atlas.load(atlas)
    names = [model.name] if beside is None else [model.name, beside]
    opened = [placed.open(name) for name in names]
    serve(opened, known, port=port, open_browser=browser, say=_say, tell=common.tell_failure)


def _say(line: str) -> None:
    """At once, also into a pipe: whoever reads it waits for the address."""
    common.out.print(line, soft_wrap=True)
    common.out.file.flush()
