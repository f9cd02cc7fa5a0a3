"""`headwise gallery`: one page of many atlases."""

from __future__ import annotations

from pathlib import Path

from headwise.cli import common
from headwise.cli.command import command
from headwise.core.options import option
from headwise.page.options import GalleryOptions


@command("gallery")
def gallery_command(
    *,
    atlases: tuple[Path, ...] = option(
        argument=True, metavar="DIR...", help="Folders of `headwise atlas`, or NetCDF files."
    ),
    out_folder: Path = option(Path("gallery"), flag="out", help="The folder of the gallery."),
    options: GalleryOptions,
) -> None:
    """Make one page of many atlases, with a search over all heads.

    Each model has a card with its grid. The search answers questions like "best induction heads of
    all".

    The folder is static: put it on any web server, or open its index.html.

    [dim]Examples:[/dim]

      headwise gallery bert-atlas gpt2-atlas smollm2-atlas

      headwise gallery runs/*/atlas --title "Our models" --out public
    """
    from headwise.page.gallery import gallery

    with common.Watch() as watch:
        page = gallery(atlases, out_folder, progress=watch, options=options)
    common.out.print(f"Gallery: {page}", soft_wrap=True)
