"""`headwise label`: label attention maps by looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.command import command


@command("label")
def label(
    maps: Annotated[Path, typer.Argument(metavar="MAPS.npz", help="Maps by id.")],
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS.csv", help="The table of labels; only ever added to.")
    ],
    labeller: Annotated[
        str, typer.Option(help="Who labels; a second name gives the agreement (Cohen's kappa).")
    ] = "",
    round_number: Annotated[
        int, typer.Option("--pass", min=1, help="Which pass of this labeller.")
    ] = 1,
    port: Annotated[int, typer.Option(min=0, help="Port on this machine; 0 for any free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page at once.")
    ] = True,
) -> None:
    """A local page that shows one map at a time and takes one key: vertical, diagonal,
    vertical+diagonal, block, heterogeneous.

    [dim]Example:[/dim] headwise label maps.npz labels.csv --labeller anna
    """
    from headwise.analyses.patterns.label import serve_labels

    serve_labels(
        maps, labels, port=port, open_browser=browser, labeller=labeller, round=round_number
    )
