"""`headwise page`: figures, tables and page again, from the numbers alone."""

from __future__ import annotations

from pathlib import Path

from headwise.cli import common
from headwise.cli.command import command
from headwise.core.options import option


@command("page")
def page(
    folder: Path = option(
        argument=True, metavar="DIR", help="The folder of an atlas.nc, or a NetCDF file."
    ),
    out_folder: Path | None = option(
        None, flag="out", help="The folder of the page; default: the atlas's own folder."
    ),
    overwrite: bool = option(False, help="Replace an existing page."),
) -> None:
    """Draw an atlas again, without its model and corpus: DIR/index.html, figures/, tables/.

    The inputs whose maps it shows are read from sample.safetensors beside the atlas. Files of the
    old page that the new one does not have are removed; other files in the folder stay.

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
    common.exit_if_failed(report.failures)
