"""`headwise atlas` and `headwise run`: analyses over a corpus."""

from __future__ import annotations

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
from headwise.core.options import option
from headwise.run.options import AtlasOptions

if TYPE_CHECKING:
    import pandas as pd

    from headwise.atlas import Atlas
    from headwise.core.failures import Failure
    from headwise.page.sample import Sample
    from headwise.run import Run

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
    options: AtlasOptions,
) -> None:
    """Run all analyses that apply to a model: DIR/atlas.nc, index.html, figures/, tables/.

    An interrupted run resumes: repeat the command.

    [dim]Examples:[/dim]

      headwise atlas

      headwise atlas bert-base-uncased --corpus en_ewt-ud-dev.conllu --out ewt

      headwise atlas ./my-model --corpus pairs.tsv --analyses surface,offsets --limit 500

      headwise atlas --corpus crawl.jsonl.zst --text-field body --reader max_line=10000000

      headwise atlas --backend ray --workers 4
    """
    from headwise.page.report import write_report
    from headwise.run import Job, Source

    chosen_analyses = analyses.chosen()
    source = Source(model.name, text.spec(), options.source_options())
    sources = common.sources_of(source.model, source.corpus)
    with Job.for_report(
        out_folder, "atlas.nc", overwrite=options.overwrite, sources=sources
    ) as job:
        with (
            common.run_and_write_atlas(job, chosen_analyses, source, options.run_options()) as (
                atlas,
                run,
            ),
            common.Watch() as watch,
        ):
            samples, failures = _samples(atlas, run, out_folder)
            report = write_report(
                atlas, out_folder, samples, watch, store=run.store, overwrite=job.may_replace
            )
        job.finish()
    common.out.print(f"Atlas: {out_folder / 'atlas.nc'}\nPage:  {report.page}")
    common.exit_if_failed([*run.failures.values(), *failures, *report.failures])


def _samples(atlas: Atlas, run: Run, folder: Path) -> tuple[list[Sample], list[Failure]]:
    """Return the inputs that the page shows whole.

    They are those of the interrupted run that this one resumes, else some of the corpus."""
    from headwise.core.failures import Failure
    from headwise.page.sample import choose_samples, read_samples

    samples = read_samples(folder, atlas)
    if samples:
        return samples, []
    try:
        with run.same_threads():
            return choose_samples(run.model, run.rows), []
    except Exception as error:
        return [], [Failure.of("the samples on the page", error)]


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
    """Run one analysis, write its result to one file and print a summary.

    [dim]Examples:[/dim]

      headwise run surface --set weighting=tokens

      headwise run offsets gpt2 --corpus stories.txt --reader split=lines --out gpt2-offsets.nc

      headwise run dependency --corpus en_ewt-ud-dev.conllu --out dev.nc

      headwise run dependency --corpus en_pud-ud-test.conllu --heads-from dev.nc --out pud.nc

      headwise run roles --corpus dev.tsv --variant released --out released.nc
    """
    from headwise.analyses.contract import choose_analyses
    from headwise.core.labels import interval_note
    from headwise.run import Job, Source

    parameters = parse_settings(settings, [analysis])
    if heads_from is not None:
        parameters[analysis]["heads"] = _heads_from(heads_from, analysis)
    check_variant(variant, [analysis])
    chosen_analyses = choose_analyses([analysis], parameters, variant=variant)
    result_file = out_file or Path(f"{analysis}.nc")
    source = Source(model.name, text.spec(), options.source_options())
    sources = common.sources_of(source.model, source.corpus, heads_from)
    with Job.for_file(result_file, overwrite=options.overwrite, sources=sources) as job:
        with common.run_and_write_atlas(job, chosen_analyses, source, options.run_options()) as (
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
