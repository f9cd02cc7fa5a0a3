"""`headwise reproduce`: a paper's tables and figures on a model, the printed numbers beside
ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import ModelName
from headwise.core.errors import ParameterError
from headwise.core.options import option
from headwise.experiments.reproduction.options import ReproductionOptions

if TYPE_CHECKING:
    from headwise.experiments.reproduction import ReproductionReport
    from headwise.page.report import ReportFiles
    from headwise.run import Job

PAPERS = "clark2019, kovaleva2019, pascual2021, pande2021 or jo2020"
REPORT = "report.json"
MARKDOWN = "report.md"
PAGE = "index.html"
SUMMARY = "claims.json"
SUMMARY_MARKDOWN = "claims.md"


@command("reproduce")
def reproduce_command(
    *,
    paper: str | None = option(None, argument=True, metavar="PAPER", help=f"{PAPERS}."),
    model: ModelName,
    list_entries: bool = option(
        False, flag="list", help="Name the tables and figures, and what they need."
    ),
    summary: tuple[Path, ...] = option(
        (),
        cli_type=list[Path] | None,
        metavar="REPORT",
        help="Instead of a paper: the folders of finished reports (repeatable), of several papers "
        "or models; their claims in one table, by models.",
    ),
    out_folder: Path | None = option(
        None,
        flag="out",
        help="A folder for the report; default: PAPER-report, or claims for a summary.",
    ),
    options: ReproductionOptions,
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Reproduce one of the five papers on your model.

    Every numbered table and figure in its order, the printed numbers beside ours, and a verdict on
    each claim.

    The report is a page (index.html), Markdown (report.md) and data (report.json). An interrupted
    command resumes: repeat it. Repeated after a failure, it tries the failed entries again. Models
    that are fine-tuned on the way are kept in `finetuned`.

    [dim]Examples:[/dim]

      headwise reproduce clark2019 --list

      headwise reproduce clark2019 --data data --quick

      headwise reproduce clark2019 --model bert-base-uncased --data data --only table1,fig2 --out
      clark

      headwise reproduce kovaleva2019 --data data --finetuned MRPC=mrpc-model --device cuda

      headwise reproduce --summary clark2019-report --summary mpnet/clark2019-report
    """
    if summary:
        if paper is not None:
            raise ParameterError(
                "A summary is of finished reports: name no paper.", option="summary"
            )
        _write_summary(summary, out_folder or Path("claims"), overwrite)
        return
    if paper is None:
        raise ParameterError(f"Name a paper to reproduce: {PAPERS}.")
    from headwise.core.folders import written_before
    from headwise.experiments.reproduction import reproduce, reproduction_of
    from headwise.experiments.reproduction.run import WORK_FOLDER
    from headwise.page.report import ReportFiles
    from headwise.run import Job

    if list_entries:
        _print_entries(paper)
        return
    reproduction_of(paper)  # rejects an unknown paper before any folder is made
    folder = out_folder or Path(f"{paper}-report")
    sources = common.sources_of(model.name, options.data, list(options.finetuned.values()))
    # A report in which entries failed still has its checkpoints: the same command, which tries those
    # entries again, may replace it.
    is_unfinished = (folder / WORK_FOLDER / "run.json").exists()
    retries = is_unfinished and REPORT in written_before(folder)
    with Job.for_report(
        folder, REPORT, work=WORK_FOLDER, overwrite=overwrite or retries, sources=sources
    ) as job:
        files = ReportFiles(folder, job.output.may_replace)
        for name in (MARKDOWN, PAGE):
            files.check(name)  # before the work, not after it
        with common.Watch() as job.progress:
            report = reproduce(paper, model.name, options=options, folder=job, overwrite=overwrite)
        _write_report(job, files, report)
        if not report.failures:
            job.finish()
    common.out.print(report.facts["summary"], soft_wrap=True)
    if options.data is None and report.facts["counts"]["entries"]["not run"]:
        common.out.print("Give the folder of the data sets with --data to run more.")
    common.out.print(f"Report: {folder / PAGE}", soft_wrap=True)
    common.exit_if_failed(report.failures)


def _write_report(job: Job, files: ReportFiles, report: ReproductionReport) -> None:
    """Write figures, Markdown and page, and the data last: it says that the report is whole."""
    from headwise.page.reproduction import render_reproduction

    page = render_reproduction(report.facts, report.files)
    texts = {MARKDOWN: report.markdown().encode(), PAGE: page.encode()}
    files.write({**report.files, **texts})
    files.note([REPORT])
    job.write(report.to_json())
    files.close()


def _write_summary(reports: tuple[Path, ...], folder: Path, overwrite: bool) -> None:
    """Write the claims of finished reports as Markdown, page and data."""
    from headwise.experiments.reproduction.rules import VERDICT_MEANINGS, VERDICTS
    from headwise.experiments.reproduction.summary import read_reports, summarize_reports
    from headwise.page.report import ReportFiles
    from headwise.page.reproduction import render_claims
    from headwise.run import Job

    claims = summarize_reports(read_reports(reports))
    sections = []
    for key, short in claims.papers.items():
        rows = claims.claim_rows(key)
        sections.append({"key": key, "title": short, "columns": claims.claim_columns, "rows": rows})
    counts = {"columns": ["paper", "model", "samples", *VERDICTS], "rows": claims.count_rows()}
    page = render_claims(counts, sections, VERDICT_MEANINGS, claims.text())
    with Job.for_report(folder, SUMMARY, overwrite=overwrite, sources=reports) as job:
        files = ReportFiles(folder, job.output.may_replace)
        files.write({SUMMARY_MARKDOWN: claims.markdown().encode(), PAGE: page.encode()})
        files.note([SUMMARY])
        job.write(claims.to_json())
        files.close()
        job.finish()
    common.out.print(claims.text(), soft_wrap=True)
    common.out.print(f"Table: {folder / PAGE}", soft_wrap=True)


def _print_entries(paper: str) -> None:
    """Print the tables and figures of a paper, and the data sets they need."""
    from rich.table import Table

    from headwise.experiments.reproduction import reproduction_of
    from headwise.experiments.reproduction.printed import printed_paper

    reproduction = reproduction_of(paper)
    printed = printed_paper(paper)
    table = Table("entry", "in the paper", "what it shows", "needs", title=paper)
    for entry in reproduction.entries:
        where = printed.entries[entry.key].where
        table.add_row(entry.key, where, entry.title, ", ".join(entry.needs) or "–")
    common.out.print(table)
