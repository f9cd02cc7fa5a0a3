"""`headwise probe`: what each head's output knows of a sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.table import Table

from headwise.analyses.probing.options import ProbingOptions
from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import MODEL_HELP, ModelOptions
from headwise.core.options import option


@command("probe", workers=True)
def probe(
    *,
    tasks: list[str] = option(
        argument=True,
        metavar="TASK...",
        help="SentEval files, GLUE folders, folders of them, or labelled corpora.",
    ),
    model: str | None = option(None, help=MODEL_HELP),
    out_folder: Path = option(
        Path("probing"),
        flag="out",
        metavar="DIR",
        help="The folder that the result is written to.",
    ),
    limit: int | None = option(
        None,
        min=1,
        help="Use at most this many examples of each part of a task, drawn at random by the seed.",
    ),
    options: ProbingOptions,
    model_options: ModelOptions,
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Find out what the output of each head and layer encodes, by probing.

    Writes DIR/atlas.nc, the page index.html, figures/ and tables/.

    [dim]Examples:[/dim]

      headwise probe senteval/tense.txt senteval/subj_number.txt

      headwise probe glue/MRPC --model ./model --solver senteval --folds 5 --no-standardize
    """
    from headwise.analyses.papers import reference
    from headwise.analyses.probing.analysis import Probing
    from headwise.analyses.probing.result import pooling_rows
    from headwise.atlas import Atlas
    from headwise.experiments.probe import probe as probe_model
    from headwise.page.report import write_report
    from headwise.run.job import Job

    if limit is not None:
        options = replace(
            options,
            train=options.train or limit,
            validation=options.validation or limit,
            test=options.test or limit,
        )
    job = Job.for_report(
        out_folder,
        "atlas.nc",
        overwrite=overwrite,
        sources=common.sources_of(model, list(tasks)),
    )
    with job:
        opened = model_options.open(model)
        with common.Watch() as watch:
            dataset = probe_model(opened, list(tasks), options=options, folder=job, progress=watch)
            citation = reference(Probing.paper.key).attributes(Probing.paper.section)
            dataset.attrs.update(title=Probing.title, **citation)
            task_names = ", ".join(str(name) for name in dataset["task"].values)
            provenance = {
                "model": opened.identity(),
                "corpus": {"name": task_names},
                "seed": options.seed or 0,
            }
            job.write(Atlas({"probing": dataset}, provenance).to_bytes())
            # What is drawn is what the file holds.
            atlas = Atlas.load(out_folder / "atlas.nc")
            report = write_report(
                atlas,
                out_folder,
                report=watch,
                store=job.checkpoints,
                overwrite=job.output.may_replace,
            )
        job.finish()
    columns = ("task", "score", "last layer", "best layer", "top heads", "best head")
    title = "test part; best layer and heads selected on the validation part"
    table = Table(*columns, title=title)
    for row in pooling_rows(dataset):
        table.add_row(*row)
    common.out.print(table)
    common.out.print(f"Atlas: {out_folder / 'atlas.nc'}\nPage:  {report.page}")
    common.exit_if_failed(report.failures)
