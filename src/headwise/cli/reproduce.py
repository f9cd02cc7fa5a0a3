"""`headwise reproduce`: a paper's tables and figures on a model, the printed numbers beside
ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command
from headwise.core.errors import ParameterError

PAPERS = "clark2019, kovaleva2019, pascual2021, pande2021 or jo2020"


@command("reproduce")
def reproduce_command(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help=f"{PAPERS}.")],
    model: options.ModelName,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A folder with data sets, as their owners ship them, up to four folders deep: GLUE's folders, "
            "SentEval's files, FrameNet, UD treebanks, CoNLL-2012 or OntoGUM, XNLI, Wikipedia paragraphs, GloVe. What "
            "is missing is named in the report with where to get it."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Only these, with commas between: table1,fig2. See --list.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small samples: minutes on two cores.")
    ] = False,
    scale: Annotated[
        float, typer.Option(min=0.001, max=1000.0, help="A factor on the paper's sample sizes.")
    ] = 1.0,
    finetuned: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK=FOLDER",
            help="A model fine-tuned on a task, instead of one that is fine-tuned here; may be given again.",
        ),
    ] = None,
    reading: Annotated[
        str,
        typer.Option(
            "--as", help="paper, or released: as the authors' code computes, where that differs."
        ),
    ] = "paper",
    listed: Annotated[
        bool, typer.Option("--list", help="Name the tables and figures, and what they need.")
    ] = False,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="A folder for the report; nothing for PAPER-report."),
    ] = None,
    parser: options.Parser = None,
    device: options.Device = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """Reproduce a paper: every numbered table and figure in its order, printed numbers beside ours,
    claims checked.

    The report is a page (index.html), Markdown (report.md) and data (report.json). A killed command
    goes on where it stopped, and one in which an entry failed tries that entry again; models that
    are fine-tuned on the way stay in `finetuned`.

    [dim]Examples:[/dim]

      headwise reproduce clark2019 --list

      headwise reproduce clark2019 --data data --quick

      headwise reproduce clark2019 --model ./model --data data --only table1,fig2 --out clark

      headwise reproduce kovaleva2019 --data data --finetuned MRPC=mrpc-model --device cuda
    """
    from rich.table import Table

    from headwise.core.folders import written_before
    from headwise.core.output import OutputTarget
    from headwise.experiments.reproduction import ReproductionOptions, reproduce, reproduction_of
    from headwise.experiments.reproduction.printed import printed_paper
    from headwise.page.files import ReportFiles
    from headwise.page.reproduction import render_reproduction

    asked = reproduction_of(paper)
    if listed:
        shown = Table("entry", "in the paper", "what it shows", "needs", title=paper)
        for entry in asked.entries:
            shown.add_row(
                entry.key,
                printed_paper(paper).entries[entry.key].where,
                entry.title,
                ", ".join(entry.needs) or "–",
            )
        common.out.print(shown)
        return
    wanted = ReproductionOptions(
        data=data,
        only=options.names_in(only),
        quick=quick,
        reading=reading,
        finetuned=_folders(finetuned),
        scale=scale,
        device=device,
        seed=seed,
        parser=parser,
    )
    folder = out_folder or Path(f"{paper}-report")
    read = common.sources_of(model.name, data, list(wanted.finetuned.values()))
    target, work = folder / "report.json", folder / ".reproduction"
    # A report in which entries failed is replaced by the same command, which tries those again.
    again = (work / "run.json").exists() and target.name in written_before(folder)
    with OutputTarget(
        target, work, overwrite=overwrite or again, sources=read, around=folder
    ) as place:
        files = ReportFiles(folder, place.may_replace)
        for name in ("report.md", "index.html"):
            files.check(name)
        with common.Watch() as watch:
            made = reproduce(
                paper, model.name, wanted, folder=folder, overwrite=overwrite, report=watch
            )
        page = render_reproduction(made.facts, made.files)
        files.write(
            {**made.files, "report.md": made.markdown().encode(), "index.html": page.encode()}
        )
        files.note([target.name])
        place.write(made.to_json())
        files.close()
        if not made.failures:
            place.done()
    common.out.print(made.facts["summary"], soft_wrap=True)
    common.out.print(f"Report: {folder / 'index.html'}", soft_wrap=True)
    common.end(made.failures)


def _folders(given: list[str] | None) -> dict[str, str]:
    """`TASK=FOLDER` items."""
    found = {}
    for item in given or []:
        task, equals, folder = item.partition("=")
        if not equals or not folder:
            raise ParameterError(f"--finetuned takes TASK=FOLDER; it is '{item}'.")
        found[task] = folder
    return found
