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
    from headwise.page.report import write_report
    from headwise.page.sample import read_samples
    from headwise.run import Job

    beside = folder if folder.is_dir() else folder.parent
    target = out_folder or beside
    inside = target.resolve() == beside.resolve()
    atlas = Atlas.load(folder)
    sources = [] if inside else [folder]
    with Job.for_report(
        target,
        "index.html",
        overwrite=overwrite,
        sources=sources,
        inside=inside,
        note=common.err.print,
    ) as job:
        # Unfinished work on the page of another atlas may go; an unfinished run never does.
        page_under_way = "page" in (job.stored_identity or {})
        store = job.begin({"page": atlas.digest}, fresh=overwrite and page_under_way)
        with common.Watch() as watch:
            samples = read_samples(beside, atlas)
            report = write_report(
                atlas, target, samples, watch, store=store, overwrite=job.may_replace
            )
        job.finish()
    common.out.print(f"Page: {report.page}")
    common.end(report.failures)
