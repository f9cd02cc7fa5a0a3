"""`headwise explore`: type a sentence and see what every head does with it."""

from __future__ import annotations

from pathlib import Path

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import ModelName
from headwise.core.options import option
from headwise.models.options import StackOptions


@command("explore")
def explore(
    *,
    model: ModelName,
    atlas: Path | None = option(
        None, help="An atlas of the model (its folder, or the file), for the label of each head."
    ),
    second_model: str | None = option(
        None, flag="with", metavar="MODEL", help="A second model, side by side."
    ),
    options: StackOptions,
    port: int = option(0, min=0, help="Port on this machine; 0 for any free one."),
    browser: bool = option(True, flag="browser/no-browser", help="Open the page at once."),
) -> None:
    """Serve a local page: type a sentence and see what every head does with it.

    One head is shown large, beside what it collects. Disable heads and see what the model predicts
    without them; let a decoder write, and step through what each head looks at.

    The page is served on this machine only, at an address that only you know. Needs the extra
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
    labels_from = None
    if atlas is not None:
        labels_from = Atlas.load(atlas)
    models = [options.open(model.name)]
    if second_model is not None:
        models.append(options.open(second_model))
    serve(
        models,
        labels_from,
        port=port,
        open_browser=browser,
        say=_say,
        on_failure=common.print_failure,
    )


def _say(line: str) -> None:
    """Print a line at once, also into a pipe: whoever reads it waits for the address."""
    common.out.print(line, soft_wrap=True)
    common.out.file.flush()
