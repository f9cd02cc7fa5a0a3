"""`headwise page`: figures, tables and page again, from the numbers alone."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from headwise.cli import common
from headwise.cli.command import command
from headwise.core.options import option

PAGE_WORK_FOLDER = ".page"  # of a page beside the checkpoints of an unfinished run


@command("page")
def page(
    folder: Path = option(
        argument=True, metavar="DIR", help="The folder of an atlas.nc, or a NetCDF file."
    ),
    out_folder: Path | None = option(
        None, flag="out", help="The folder of the page; default: the atlas's own folder."
    ),
    joined: tuple[Path, ...] = option(
        (),
        flag="with",
        metavar="FILE",
        help="Another result on the same model (a cache.nc) whose section and card entries the page "
        "shows too; repeatable.",
    ),
    formats: tuple[str, ...] = option(
        (), flag="format", help="A format of the figures beside SVG: pdf or png; repeatable."
    ),
    overwrite: bool = option(False, help="Replace an existing page."),
) -> None:
    """Draw the page of an atlas again, without its model and corpus.

    Writes DIR/index.html, figures/ and tables/.

    The inputs whose maps it shows are read from sample.safetensors beside the atlas. An atlas that
    is not finished is drawn as it is; the command that makes it still resumes. Files of the old
    page that the new one does not have are removed; other files in the folder stay.

    [dim]Examples:[/dim]

      headwise page atlas --overwrite

      headwise page mrpc-ablation.nc --out mrpc-page

      headwise page atlas --with cache.nc --overwrite

      headwise page atlas --overwrite --format pdf --format png
    """
    from headwise.atlas import Atlas
    from headwise.cli.compare import write_family_page
    from headwise.core.lock import Lock
    from headwise.core.store import WORK_FOLDER, stored_identity
    from headwise.page.report import write_report
    from headwise.page.sample import read_samples
    from headwise.run import Job

    beside = folder if folder.is_dir() else folder.parent
    target = out_folder or beside
    inside = target.resolve() == beside.resolve()
    atlas = Atlas.load(folder)
    if joined:
        atlas = atlas.joined(*[Atlas.load(path) for path in joined])
    sources = [] if inside else [folder]
    with ExitStack() as stack:
        work = WORK_FOLDER
        unfinished = stored_identity(target / WORK_FOLDER)
        if unfinished is not None and "page" not in unfinished:
            # An unfinished run stays as it is, to be resumed; no process may be working on it.
            run_lock = Lock(target / WORK_FOLDER / "lock", named=target)
            run_lock.take()
            stack.callback(run_lock.release)
            work = PAGE_WORK_FOLDER
        job = stack.enter_context(
            Job.for_report(
                target,
                "index.html",
                work=work,
                overwrite=overwrite,
                sources=sources,
                inside=inside,
                note=common.err.print,
            )
        )
        # Unfinished work on the page of another atlas may go.
        store = job.begin({"page": atlas.digest}, fresh=overwrite)
        if "family" in atlas:
            failures = write_family_page(atlas, target, store)
        else:
            with common.Watch() as watch:
                samples = read_samples(beside, atlas)
                report = write_report(
                    atlas,
                    target,
                    samples,
                    watch,
                    store=store,
                    overwrite=job.output.may_replace,
                    formats=formats,
                )
            failures = list(report.failures)
        job.finish()
    common.out.print(f"Page: {target / 'index.html'}")
    common.exit_if_failed(failures)
