"""`headwise atlas` and `headwise run`: analyses over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from headwise.cli import common, options
from headwise.cli.command import command

if TYPE_CHECKING:
    from headwise.atlas import Atlas
    from headwise.core.failures import Failure
    from headwise.page.sample import Sample
    from headwise.run import Run

UNTOLD = r"(?:^|_)p(?:$|_(?:value|adjusted|family|holm|fdr))|^best_|^given_|^few$|_few$|^count$|left_out|^possible$|^noop_"
SCREEN = 80  # rows of a table that are still read on a screen; of a longer one the first measure is shown


@command("atlas", workers=True)
def atlas(
    *,
    model: options.ModelName,
    text: options.TextOptions,
    asked: options.Asked,
    out_folder: Annotated[Path, typer.Option("--out", help="Where the atlas goes.")] = Path(
        "atlas"
    ),
    opening: options.SourceOptions,
    reading: options.As = "paper",
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """Everything that applies to a model: DIR/atlas.nc, index.html, figures/, tables/.

    [dim]Examples:[/dim]

      headwise atlas

      headwise atlas bert-base-uncased --corpus en_ewt-ud-dev.conllu --out ewt

      headwise atlas ./my-model --corpus pairs.tsv --analyses surface,offsets --limit 500

      headwise atlas --corpus crawl.jsonl.zst --text-field body --reader max_line=10000000

      headwise atlas --backend ray --workers 4
    """
    from headwise.core.output import OutputTarget
    from headwise.page.report import write_report
    from headwise.run import RunOptions

    chosen, source = asked.chosen(reading), opening.source(model, text)
    how = RunOptions(limit=asked.limit, full=asked.full, seed=seed, overwrite=overwrite)
    read = common.sources_of(source.model, source.corpus)
    target = out_folder / "atlas.nc"
    with OutputTarget(
        target, out_folder / ".run", overwrite=overwrite, sources=read, around=out_folder
    ) as place:
        with common.running(place, chosen, source, how) as (made, run), common.Watch() as watch:
            samples, failures = _samples(made, run, out_folder)
            report = write_report(
                made, out_folder, samples, watch, store=run.store, overwrite=place.may_replace
            )
        place.done()
    common.out.print(f"Atlas: {target}\nPage:  {report.page}")
    common.end([*run.failures.values(), *failures, *report.failures])


def _samples(made: Atlas, run: Run, folder: Path) -> tuple[list[Sample], list[Failure]]:
    """Inputs to be shown whole: those of the run this one goes on with, else some of the corpus."""
    from headwise.core.failures import Failure
    from headwise.page.sample import choose_samples, read_samples

    kept = read_samples(folder, made)
    if kept:
        return kept, []
    try:
        with run.same_threads():
            return choose_samples(run.model, run.corpus), []
    except Exception as error:
        return [], [Failure.of("the samples on the page", error)]


@command("run", workers=True)
def run(
    *,
    analysis: Annotated[str, typer.Argument(metavar="ANALYSIS", help="See `headwise list`.")],
    model: options.ModelName,
    text: options.TextOptions,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="A NetCDF file; nothing for ANALYSIS.nc.")
    ] = None,
    limit: options.Limit = None,
    settings: options.Settings = None,
    heads_from: Annotated[
        Path | None,
        typer.Option(
            help="Of dependency and coreference: a result on another text. Its best heads are tested on this one, so "
            "that none is picked where it is tested."
        ),
    ] = None,
    opening: options.SourceOptions,
    reading: options.As = "paper",
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """One analysis, with its parameters, into one file; what it comes to is printed.

    [dim]Examples:[/dim]

      headwise run surface --set weighting=tokens

      headwise run offsets gpt2 --corpus stories.txt --reader split=lines --out gpt2-offsets.nc

      headwise run dependency --corpus en_ewt-ud-dev.conllu --out dev.nc

      headwise run dependency --corpus en_pud-ud-test.conllu --heads-from dev.nc --out pud.nc

      headwise run roles --corpus dev.tsv --as released --out released.nc
    """
    from headwise.analyses.contract import choose_analyses
    from headwise.core.labels import interval_note
    from headwise.core.output import OutputTarget
    from headwise.run import RunOptions

    given = options.parse_settings(settings, [analysis])
    if heads_from is not None:
        given[analysis]["heads"] = _heads_from(heads_from, analysis)
    options.check_reading(reading, [analysis])
    chosen = choose_analyses([analysis], given, reading=reading)
    target = out_file or Path(f"{analysis}.nc")
    source = opening.source(model, text)
    how = RunOptions(limit=limit, seed=seed, overwrite=overwrite)
    read = common.sources_of(source.model, source.corpus, heads_from)
    with OutputTarget(target, common.work_of(target), overwrite=overwrite, sources=read) as place:
        with common.running(place, chosen, source, how) as (made, running):
            pass
        place.done()
    found = made[analysis]
    note = (
        "" if "units" in found.attrs else interval_note(found)
    )  # those that count by unit say so themselves
    for line in filter(None, [*chosen[0].summary(found), note]):
        common.out.print(line, markup=False, highlight=False, soft_wrap=True)
    _show_summary(made, analysis, target)
    common.end(running.failures.values())


def _heads_from(path: Path, analysis: str) -> tuple[str, ...]:
    """The best heads of a result of the same analysis."""
    from headwise.analyses.accuracy import best_heads_parameter
    from headwise.atlas import Atlas
    from headwise.core.errors import ParameterError

    found = Atlas.load(path)
    if analysis not in found or "best_layer" not in found[analysis]:
        raise ParameterError(
            f"--heads-from {path}: it holds no best heads of {analysis}; give a result of `headwise run dependency` or "
            "`headwise run coreference`."
        )
    return best_heads_parameter(found[analysis])


def _show_summary(made: Atlas, analysis: str, target: Path) -> None:
    """Where the result is, the table of heads, or of the first measure alone where the whole would
    not be read.

    p-values and counts, whose mean over heads says nothing, are left to the file.
    """
    rows = made.summary()
    rows = rows[~rows["variable"].str.contains(UNTOLD)] if len(rows) else rows
    names = list(dict.fromkeys(rows["variable"])) if len(rows) else []
    if names:
        shown = (
            rows if len(rows) <= SCREEN else rows[rows["variable"] == names[0]].head(SCREEN // 2)
        )
        table = Table(
            "measure",
            "item",
            "mean over heads",
            "lowest",
            "",
            "highest",
            "",
            title=f"{analysis} ({target})",
        )
        for row in shown.to_dict("records"):
            ends = [
                text
                for end in ("lowest", "highest")
                for text in (row[f"{end}_head"], f"{row[end]:.3f}")
            ]
            table.add_row(row["variable"], row["item"], f"{row['mean']:.3f}", *ends)
        common.out.print(table)
        names = [name for name in names if name not in set(shown["variable"])]
    held = f"; for every head: {', '.join(names)}" if names else ""
    common.out.print(f"In {target}{held}", markup=False, highlight=False, soft_wrap=True)
