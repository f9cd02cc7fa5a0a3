"""`headwise probe`: what each head's output knows of a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headwise.cli import common, options
from headwise.cli.command import command


@command("probe", workers=True)
def probe(
    *,
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK...",
            help="SentEval files, GLUE folders, folders of them, or labelled corpora.",
        ),
    ],
    model: options.ModelOption = None,
    out_folder: Annotated[Path, typer.Option("--out", help="Where the result goes.")] = Path(
        "probing"
    ),
    limit: options.Limit = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="How many heads are joined; nothing for as many as a layer has."),
    ] = None,
    solver: Annotated[
        str, typer.Option(help="lbfgs (full batch), senteval (the papers' protocol) or ridge.")
    ] = "lbfgs",
    folds: Annotated[
        int | None,
        typer.Option(min=2, help="Folds of cross-validation; nothing for the given split."),
    ] = None,
    pairs: Annotated[
        str, typer.Option(help="Two sentences as one input (joint) or apart (features).")
    ] = "joint",
    token: Annotated[
        str, typer.Option(help="Which token stands for the sentence: auto, first, last or mean.")
    ] = "auto",
    standardize: Annotated[
        bool,
        typer.Option(
            "--standardize/--no-standardize",
            help="Features minus their mean, divided by their deviation (of the training part), or as they are.",
        ),
    ] = True,
    random_baseline: Annotated[
        bool,
        typer.Option(
            "--random-baseline", help="Probe the same architecture with random weights too."
        ),
    ] = False,
    seed: options.Seed = 0,
    placed: options.ModelOptions,
    overwrite: options.Overwrite = False,
) -> None:
    """Probe every head and layer for some tasks: DIR/atlas.nc, figures/, tables/, index.html.

    [dim]Examples:[/dim]

      headwise probe senteval/tense.txt senteval/subj_number.txt

      headwise probe glue/MRPC --model ./model --solver senteval --folds 5 --no-standardize
    """
    from dataclasses import asdict, replace

    from headwise.analyses.papers import reference
    from headwise.analyses.probing.analysis import Probing, default_settings
    from headwise.analyses.probing.analysis import probe as probe_tasks
    from headwise.analyses.probing.fit import ProbingOptions
    from headwise.analyses.probing.result import pooling_rows
    from headwise.atlas import Atlas
    from headwise.page.report import write_report
    from headwise.run import Job

    target = out_folder / "atlas.nc"
    read = common.sources_of(model, list(tasks))
    with Job.for_report(out_folder, target.name, overwrite=overwrite, sources=read) as job:
        opened = placed.open(model)
        wanted = ProbingOptions(
            replace(
                default_settings(opened, seed), solver=solver, folds=folds, standardize=standardize
            ),
            token=token,
            pairs=pairs,
            top=top,
            random_baseline=random_baseline,
            limits=(limit, limit, limit),
            seed=seed,
        )
        asked = {
            "experiment": "probing",
            "model": opened.identity(),
            "tasks": list(tasks),
            "options": asdict(wanted),
        }
        store = job.begin(asked)
        with common.Watch() as watch:
            dataset = probe_tasks(opened, list(tasks), wanted, store=store, progress=watch)
            paper = reference(Probing.paper.key)
            about = paper.attributes(Probing.paper.section)
            dataset.attrs.update(title=Probing.title, **about)
            names = [str(name) for name in dataset["task"].values]
            known = {"model": opened.identity(), "corpus": {"name": ", ".join(names)}, "seed": seed}
            job.write(Atlas({"probing": dataset}, known).to_bytes())
            atlas = Atlas.load(target)
            report = write_report(
                atlas, out_folder, report=watch, store=store, overwrite=job.may_replace
            )
        job.finish()
    columns = ("task", "score", "last layer", "best layer", "top heads", "best head")
    table = Table(*columns, title="test part; best layer and heads picked on the validation part")
    for row in pooling_rows(dataset):
        table.add_row(*row)
    common.out.print(table)
    common.out.print(f"Atlas: {target}\nPage:  {report.page}")
    common.end(report.failures)
