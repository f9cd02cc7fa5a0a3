"""`headwise track`: what every head does over the checkpoints of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import AnalysisOptions, TextOptions
from headwise.core.errors import OutputError
from headwise.core.options import option
from headwise.experiments.track.options import ANALYSES, TrackOptions

if TYPE_CHECKING:
    import xarray as xr

    from headwise.run import Job

RESULT = "track.nc"
MOST_LINES = 30  # births that are printed; the page and the file have all


@dataclass(frozen=True)
class TrackedAnalyses(AnalysisOptions):
    """Which analyses run on every model; by default the cheap ones."""

    analyses: str | None = option(
        ",".join(ANALYSES), help="Names separated by commas, as in `headwise atlas`."
    )


@command("track", workers=True)
def track_command(
    *,
    models: tuple[str, ...] = option(
        argument=True,
        metavar="MODEL...",
        help="Four or more models of one shape: folders, a pattern in quotes, hub names, hub "
        "revisions (NAME@REVISION).",
    ),
    text: TextOptions,
    analyses: TrackedAnalyses,
    options: TrackOptions,
    out_folder: Path = option(
        Path("track"), flag="out", metavar="DIR", help="The folder that the result is written to."
    ),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Follow every head through the checkpoints of a training run.

    Measures all models on one corpus and says at which step a head begins to do something, with an
    interval: DIR/track.nc, index.html (a page with a slider over steps), figures/.

    An interrupted run resumes: repeat the command.

    [dim]Examples:[/dim]

      headwise track 'runs/checkpoint-*' --corpus stories.txt --out growth

      headwise track EleutherAI/pythia-70m@step1 EleutherAI/pythia-70m@step512
      EleutherAI/pythia-70m@step1000 EleutherAI/pythia-70m@step143000

      headwise track early middle late final --steps 100,1000,5000,20000 --analyses surface,roles
    """
    from headwise.atlas import Atlas
    from headwise.core.files import write_atomically
    from headwise.experiments.track import births, track_in_job
    from headwise.page.track import render_track
    from headwise.run import Job

    sources = common.sources_of(list(models), text.spec())
    chosen = analyses.chosen()
    with (
        common.Watch() as watch,
        Job.for_report(
            out_folder, RESULT, overwrite=overwrite, sources=sources, progress=watch
        ) as job,
    ):
        _check_page(out_folder / "index.html", job)
        result = track_in_job(job, models, text.spec(), chosen, options)
        job.write(result.to_bytes())
        # What is drawn and printed is what is in the file.
        dataset = Atlas.load(out_folder / RESULT)["track"]
        figures = out_folder / "figures"
        failures = common.draw_figures({"track": dataset}, figures, job.started_store)
        table = births(dataset)
        page = render_track(dataset, table, figures)
        write_atomically(out_folder / "index.html", page.encode())
        job.finish()
    _print_births(dataset)
    common.out.print(f"Page: {out_folder / 'index.html'}", soft_wrap=True)
    common.exit_if_failed(failures)


def _check_page(index: Path, job: Job) -> None:
    """Reject a page that exists, unless it may be replaced or an interrupted job resumes."""
    if index.exists() and not (job.output.may_replace or job.output.unfinished):
        raise OutputError(
            f"{index} exists; replace it, or choose another folder.", option="overwrite"
        )


def _print_births(dataset: xr.Dataset) -> None:
    from rich.table import Table

    from headwise.experiments.track import births

    table = births(dataset)
    n_models = dataset.sizes["step"]
    if not len(table):
        common.out.print(
            f"{n_models} models: no head is born (no listed measure rises by "
            f"{dataset.attrs['least']:g} and by more than random weights differ, corrected p < 0.05)."
        )
        return
    columns = ("head", "behaviour", "born between", "95 % interval", "before", "after", "p")
    screen = Table(*columns, title=f"{len(table)} births in {n_models} models")
    for row in table.head(MOST_LINES).to_dict("records"):
        screen.add_row(
            row["head"],
            row["behaviour"],
            f"{row['born_after']:,g} and {row['born_by']:,g}",
            f"{row['earliest']:,g} to {row['latest']:,g}",
            f"{row['before']:.3f}",
            f"{row['after']:.3f}",
            f"{row['p']:.2g}",
        )
    common.out.print(screen)
    if len(table) > MOST_LINES:
        common.out.print(f"{len(table) - MOST_LINES} more are on the page.")
