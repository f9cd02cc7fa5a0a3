"""`headwise atlas` and `headwise run`: analyses over a corpus."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import (
    SETTINGS_HELP,
    VARIANT,
    AnalysisOptions,
    ModelName,
    TextOptions,
    check_variant,
    parse_settings,
)
from headwise.core.options import option, part_of
from headwise.run.options import (
    AtlasOptions,
    GrowingAtlasOptions,
    GrowthOptions,
    RunOptions,
    SourceOptions,
)

if TYPE_CHECKING:
    import pandas as pd

    from headwise.analyses.contract import Analysis
    from headwise.atlas import Atlas
    from headwise.core.failures import Failure
    from headwise.explore.folder import FolderServer
    from headwise.page.sample import Sample
    from headwise.run import Job, Run, Source

# Variables whose mean over heads means nothing: p-values, selections, counts.
NOT_IN_SUMMARY = (
    r"(?:^|_)p(?:$|_(?:value|adjusted|family|holm|fdr))"
    r"|^best_|^given_|^few$|_few$|^count$|left_out|^possible$|^noop_"
)
SCREEN_ROWS = 80  # the longest table that is still read on a screen


@dataclass(frozen=True)
class SingleRunOptions(AtlasOptions):
    """The options of `headwise run`: a single analysis always reads every example."""

    full: bool = option(True, command_line=False, help="Every example is read.")


@command("atlas", workers=True)
def atlas(
    *,
    model: ModelName,
    text: TextOptions,
    analyses: AnalysisOptions,
    out_folder: Path = option(
        Path("atlas"), flag="out", metavar="DIR", help="The folder that the atlas is written to."
    ),
    options: GrowingAtlasOptions,
    serve: bool = option(
        False,
        help="Serve DIR to the browser of this machine: its page reloads itself while it grows.",
    ),
) -> None:
    """Run all analyses that apply to a model, and show what each head does.

    Writes DIR/atlas.nc, the page index.html, figures/ and tables/.

    The atlas grows: a first page is there after few examples, and more comes in the order of what
    is worth most for its cost. The finished atlas has the same bytes in any number of rounds. A run
    that was interrupted, or stopped by --minutes, leaves what it has; repeat the command to
    continue.

    [dim]Examples:[/dim]

      headwise atlas

      headwise atlas --serve

      headwise atlas gpt2 --corpus stories.txt --out gpt2 --minutes 5

      headwise atlas bert-base-uncased --corpus en_ewt-ud-dev.conllu --out ewt

      headwise atlas ./my-model --corpus pairs.tsv --analyses surface,offsets --limit 500

      headwise atlas --corpus crawl.jsonl.zst --text-field body --reader max_line=10000000

      headwise atlas --backend ray --workers 4
    """
    chosen_analyses = analyses.chosen()
    source = _source(model, text, options)
    if not serve:
        failures = _grow_atlas(source, chosen_analyses, out_folder, options)
        common.exit_if_failed(failures)
        return

    from headwise.core.interrupts import Interrupted
    from headwise.explore.folder import serve_folder

    with serve_folder(out_folder) as server:
        _say(f"The page of this atlas: {server.address} (this machine only)")
        failures = _grow_atlas(source, chosen_analyses, out_folder, options, server)
        _say("It is served until Ctrl-C.")
        with suppress(Interrupted):
            while True:
                time.sleep(1)
    common.exit_if_failed(failures)


def _source(model: ModelName, text: TextOptions, options: AtlasOptions) -> Source:
    from headwise.run import Source

    return Source(model.name, text.spec(), part_of(options, SourceOptions))


def _say(line: str) -> None:
    """Print a line at once, also into a pipe: whoever reads it waits for the address."""
    common.out.print(line, soft_wrap=True)
    common.out.file.flush()


def _grow_atlas(
    source: Source,
    analyses: Sequence[Analysis],
    folder: Path,
    options: GrowingAtlasOptions,
    server: FolderServer | None = None,
) -> list[Failure]:
    """Make an atlas and its page, in rounds, and return what failed unexpectedly."""
    from headwise.core.interrupts import TimeIsUp, raise_if_interrupted, stopping_at
    from headwise.page.report import write_report
    from headwise.run import Job

    sources = common.sources_of(source.model, source.corpus)
    with Job.for_report(folder, "atlas.nc", overwrite=options.overwrite, sources=sources) as job:
        growing = _GrowingAtlas(job, folder, server)
        with (
            common.run_and_write_atlas(
                job,
                analyses,
                source,
                part_of(options, RunOptions),
                part_of(options, GrowthOptions),
                growing.show,
            ) as (atlas, run),
            common.Watch() as watch,
        ):
            if "unfinished" in atlas.provenance:
                return list(run.failures.values())

            def report_figures(what: str, done: int, total: int) -> None:
                watch(what, done, total)
                raise_if_interrupted()

            growing.show_numbers(atlas)
            try:
                with stopping_at(run.deadline):
                    samples, failures = _samples(atlas, run, folder)
                    report = write_report(
                        atlas,
                        folder,
                        samples,
                        report_figures,
                        store=run.store,
                        overwrite=job.output.may_replace,
                    )
            except TimeIsUp:
                _say(
                    f"Stopped after {options.minutes:g} minutes: {folder / 'atlas.nc'} is finished, "
                    "its figures are not all drawn. Repeat the command to continue."
                )
                return list(run.failures.values())
        job.finish()
    if server is not None:
        server.version = f"{atlas.digest} with figures"
    _say(f"Atlas: {folder / 'atlas.nc'}\nPage:  {report.page}")
    return [*run.failures.values(), *failures, *report.failures]


class _GrowingAtlas:
    """Writes what is done so far: the atlas, and a page without figures."""

    def __init__(self, job: Job, folder: Path, server: FolderServer | None) -> None:
        self.job = job
        self.folder = folder
        self.server = server
        self._is_first = True

    def show(self, atlas: Atlas) -> None:
        """Write an unfinished atlas and its page, unless those of an earlier process have more."""
        about = atlas.provenance["unfinished"]
        if self.job.write_unfinished(atlas.to_bytes(), about["done"]):
            self._write_page(atlas, live=not about["stopped"])
        if about["stopped"]:
            n_whole = len(atlas) - len(about["partial"]) - len(about["first_parts"])
            n_all = len(atlas) + len(about["to_come"])
            _say(
                f"Stopped {about['stopped']}: {self.folder / 'index.html'} has {len(atlas)} of "
                f"{n_all} analyses, {n_whole} of them finished. The same command continues."
            )
        elif self._is_first:
            self._is_first = False
            _say(f"First page: {self.folder / 'index.html'}, which grows")

    def show_numbers(self, atlas: Atlas) -> None:
        """Write the page of the finished atlas, for the time in which its figures are drawn; only
        where the page of a round would otherwise be there."""
        if self.job.has_unfinished:
            self._write_page(atlas, live=True)

    def _write_page(self, atlas: Atlas, live: bool) -> None:
        from headwise.page.report import write_quick_page

        is_live = live and self.server is not None
        write_quick_page(atlas, self.folder, overwrite=self.job.output.may_replace, live=is_live)
        if self.server is not None:
            self.server.version = atlas.digest


def _samples(atlas: Atlas, run: Run, folder: Path) -> tuple[list[Sample], list[Failure]]:
    """Return the inputs that the page shows whole.

    They are those of the interrupted run that this one resumes, else some of the corpus."""
    from headwise.core.failures import isolated
    from headwise.page.sample import choose_samples, read_samples

    samples = read_samples(folder, atlas)
    if samples:
        return samples, []
    failures: list[Failure] = []
    with isolated("the samples on the page", failures.append):
        samples = choose_samples(run.model, run.rows)
    return samples, failures


@command("run", workers=True)
def run(
    *,
    analysis: str = option(argument=True, metavar="ANALYSIS", help="See `headwise list`."),
    model: ModelName,
    text: TextOptions,
    out_file: Path | None = option(
        None, flag="out", metavar="FILE", help="A NetCDF file; default: ANALYSIS.nc."
    ),
    settings: tuple[str, ...] = option((), flag="set", help=SETTINGS_HELP),
    heads_from: Path | None = option(
        None,
        help="Of dependency and coreference: a result on another text. Its best heads are tested "
        "on this one, so that none is selected on the text it is tested on.",
    ),
    variant: str = option("paper", **VARIANT),
    options: SingleRunOptions,
) -> None:
    """Run one analysis, and print a summary of its result.

    The result is written to one NetCDF file.

    [dim]Examples:[/dim]

      headwise run surface --set weighting=tokens

      headwise run offsets gpt2 --corpus stories.txt --reader split=lines --out gpt2-offsets.nc

      headwise run dependency --corpus en_ewt-ud-dev.conllu --out dev.nc

      headwise run dependency --corpus en_pud-ud-test.conllu --heads-from dev.nc --out pud.nc

      headwise run roles --corpus dev.tsv --variant released --out released.nc
    """
    from headwise.analyses.contract import choose_analyses
    from headwise.core.labels import interval_note
    from headwise.run import Job

    parameters = parse_settings(settings, [analysis])
    if heads_from is not None:
        parameters[analysis]["heads"] = _heads_from(heads_from, analysis)
    check_variant(variant, [analysis])
    chosen_analyses = choose_analyses([analysis], parameters, variant=variant)
    result_file = out_file or Path(f"{analysis}.nc")
    source = _source(model, text, options)
    sources = common.sources_of(source.model, source.corpus, heads_from)
    with Job.for_file(result_file, overwrite=options.overwrite, sources=sources) as job:
        with common.run_and_write_atlas(
            job, chosen_analyses, source, part_of(options, RunOptions)
        ) as (
            atlas,
            run,
        ):
            pass
        job.finish()
    result = atlas[analysis]
    lines = chosen_analyses[0].summary(result)
    # Analyses that count by document say so in their own summary.
    if "units" not in result.attrs:
        lines = [*lines, interval_note(result)]
    for line in lines:
        if line:
            common.out.print(line, markup=False, highlight=False, soft_wrap=True)
    _show_summary(atlas, analysis, result_file)
    common.exit_if_failed(run.failures.values())


def _heads_from(path: Path, analysis: str) -> tuple[str, ...]:
    """Return the best heads of a result of the same analysis."""
    from headwise.analyses.accuracy import best_heads_parameter
    from headwise.atlas import Atlas
    from headwise.core.errors import ParameterError

    atlas = Atlas.load(path)
    if analysis not in atlas or "best_layer" not in atlas[analysis]:
        raise ParameterError(
            f"--heads-from {path}: it holds no best heads of {analysis}; give a result of "
            "`headwise run dependency` or `headwise run coreference`."
        )
    return best_heads_parameter(atlas[analysis])


def _show_summary(atlas: Atlas, analysis: str, path: Path) -> None:
    """Print the table of heads and where the result is.

    A table longer than a screen shows its first measure only. p-values and counts, whose mean over
    heads means nothing, are left to the file.
    """
    rows = atlas.summary()
    if len(rows):
        rows = rows[~rows["variable"].str.contains(NOT_IN_SUMMARY)]
    names: list[str] = []
    if len(rows):
        names = list(dict.fromkeys(rows["variable"]))
    if names:
        shown_rows = rows
        if len(rows) > SCREEN_ROWS:
            shown_rows = rows[rows["variable"] == names[0]].head(SCREEN_ROWS // 2)
        common.out.print(_summary_table(shown_rows, f"{analysis} ({path})"))
        shown_names = set(shown_rows["variable"])
        names = [name for name in names if name not in shown_names]
    also = f"; for every head: {', '.join(names)}" if names else ""
    common.out.print(f"In {path}{also}", markup=False, highlight=False, soft_wrap=True)


def _summary_table(rows: pd.DataFrame, title: str) -> Table:
    """Return a table with the mean and the extremes of each measure over heads."""
    columns = ("measure", "item", "mean over heads", "lowest", "", "highest", "")
    table = Table(*columns, title=title)
    for row in rows.to_dict("records"):
        table.add_row(
            row["variable"],
            row["item"],
            f"{row['mean']:.3f}",
            row["lowest_head"],
            f"{row['lowest']:.3f}",
            row["highest_head"],
            f"{row['highest']:.3f}",
        )
    return table
