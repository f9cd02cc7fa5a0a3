"""`headwise page`: figures, tables and page once more, from the numbers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command


@command("page")
def page(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of an atlas.nc, or a NetCDF file.")
    ],
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where the page goes; nothing for the atlas's own folder."),
    ] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Draw an atlas again, without its model and corpus: DIR/index.html, figures/, tables/.

    The inputs whose maps it shows are taken from sample.safetensors beside the atlas. Files of the
    old page that the new one has not go, what else is in the folder stays.

    [dim]Examples:[/dim]

      headwise page atlas --overwrite

      headwise page mrpc-ablation.nc --out mrpc-page
    """
    from headwise.atlas import Atlas
    from headwise.core.output import OutputTarget
    from headwise.core.store import CheckpointStore, stored_identity
    from headwise.core.version import __version__
    from headwise.page.report import write_report
    from headwise.page.sample import read_samples

    beside = folder if folder.is_dir() else folder.parent
    target = out_folder or beside
    inside = target.resolve() == beside.resolve()
    atlas = Atlas.load(folder)
    place = OutputTarget(
        target / "index.html",
        target / ".run",
        overwrite=overwrite,
        sources=[] if inside else [folder],
        around=target,
        inside=inside,
    )
    with place:
        identity = {"headwise": __version__, "page": atlas.digest}
        # The pages of another atlas may go; an unfinished run is never put aside for a page.
        fresh = overwrite and "page" in (stored_identity(place.work) or {})
        with (
            CheckpointStore(place.work, identity, fresh=fresh, note=common.err.print) as store,
            common.Watch() as watch,
        ):
            samples = read_samples(beside, atlas)
            report = write_report(
                atlas, target, samples, watch, store=store, overwrite=place.may_replace
            )
        place.done()
    common.out.print(f"Page: {report.page}")
    common.end(report.failures)
