"""`headwise draw`: heads on a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.commands.common import DeviceOption, ModelOption, OverwriteOption, StackOption, out
from headwise.errors import ParameterError


def draw(
    heads: Annotated[list[str], typer.Argument(metavar="HEAD...", help="Heads like L7H9, or `all` for every map on one page.")],
    text: Annotated[str, typer.Option("--text", help="The sentence.")] = "The old teacher saw the cat that slept under the tree.",
    pair: Annotated[str | None, typer.Option("--pair", help="A second sentence.")] = None,
    model: ModelOption = None,
    out_file: Annotated[Path, typer.Option("--out", help="A .svg, .pdf or .png file.")] = Path("heads.svg"),
    device: DeviceOption = None,
    stack: StackOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Draw heads on a sentence: tokens left and right, a line as dark as its weight.

    [dim]Examples:[/dim]

      headwise draw L4H0 L6H1 --text "She gave the old book to her sister."

      headwise draw all --model gpt2 --text "Once upon a time" --out maps.pdf
    """
    from headwise.atlas import HEAD_NAME
    from headwise.errors import OutputError
    from headwise.models import HeadModel
    from headwise.page.sample import draw_all_maps, draw_heads, sample_of
    from headwise.plots import save_figure
    from headwise.plots.save import FORMATS
    from headwise.text import Example

    ending = out_file.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise ParameterError(f"--out must end in {', '.join('.' + f for f in FORMATS)}; it is '{out_file}'.")
    if out_file.exists() and not overwrite:
        raise OutputError(f"{out_file} exists; give --overwrite to replace it, or choose another name with --out.")
    chosen = []
    for name in heads if heads != ["all"] else []:
        found = HEAD_NAME.match(name)
        if not found:
            raise ParameterError(f"A head is named like 'L7H9' (layer 7, head 9, counted from 0); it is '{name}'.")
        chosen.append((int(found[1]), int(found[2])))
    sample = sample_of(HeadModel.open(model, device=device, stack=stack), Example(text=text, pair=pair))
    figure = draw_heads(sample, chosen) if chosen else draw_all_maps(sample)
    save_figure(figure, out_file.parent, out_file.stem, [ending])
    out.print(f"Drawn: {out_file}")


def register(app: typer.Typer) -> None:
    app.command()(draw)
