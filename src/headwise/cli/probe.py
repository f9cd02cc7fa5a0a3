"""`headwise probe`: what each head's output knows of a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headwise.cli.common import DeviceOption, LimitOption, ModelOption, OverwriteOption, Watch, check_writable, err, out


def probe(
    tasks: Annotated[
        list[str],
        typer.Argument(metavar="TASK...", help="SentEval files, GLUE folders, folders of them, or labelled corpora."),
    ],
    model: ModelOption = None,
    out_folder: Annotated[Path, typer.Option("--out", help="Where the result goes.")] = Path("probing"),
    limit: LimitOption = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="How many heads are joined; nothing for as many as a layer has.")
    ] = None,
    solver: Annotated[
        str, typer.Option("--solver", help="lbfgs (full batch), senteval (the papers' protocol) or ridge.")
    ] = "lbfgs",
    folds: Annotated[
        int | None, typer.Option("--folds", min=2, help="Folds of cross-validation; nothing for the given split.")
    ] = None,
    pairs: Annotated[
        str, typer.Option("--pairs", help="Two sentences as one input (joint) or apart (features).")
    ] = "joint",
    token: Annotated[
        str, typer.Option("--token", help="Which token stands for the sentence: auto, first, last or mean.")
    ] = "auto",
    random_baseline: Annotated[
        bool, typer.Option("--random-baseline", help="Probe the same architecture with random weights too.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="For everything random.")] = 0,
    device: DeviceOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Probe every head and layer for some tasks: DIR/atlas.nc, figures/, tables/, index.html.

    [dim]Examples:[/dim]

      headwise probe senteval/tense.txt senteval/subj_number.txt

      headwise probe glue/MRPC --model bert-base-uncased --solver senteval --folds 5
    """
    from dataclasses import replace

    from headwise.analyses.probing.analysis import Probing, default_settings
    from headwise.analyses.probing.analysis import probe as probe_tasks
    from headwise.atlas import Atlas
    from headwise.core.errors import OutputError
    from headwise.core.papers import reference
    from headwise.models import HeadModel
    from headwise.page.report import write_report

    target = out_folder / "atlas.nc"
    if target.exists() and not overwrite:
        raise OutputError(f"{target} exists; give --overwrite to replace it, or choose another place with --out.")
    check_writable(out_folder)
    opened = HeadModel.open(model, device=device)
    settings = replace(default_settings(opened, seed), solver=solver, folds=folds)
    try:
        with Watch() as watch:
            dataset = probe_tasks(
                opened,
                list(tasks),
                settings=settings,
                token=token,
                pairs=pairs,
                top=top,
                random_baseline=random_baseline,
                limits=(limit, limit, limit),
                seed=seed,
                folder=out_folder / ".probing",
                progress=watch,
            )
    except KeyboardInterrupt:
        err.print("\nStopped. Finished tasks are kept: the same command goes on from there.")
        raise typer.Exit(130) from None
    paper = reference(Probing.paper.key)
    dataset.attrs.update(title=Probing.title, paper=paper.short, section=Probing.paper.section, citation=paper.citation)
    atlas = Atlas(
        {"probing": dataset},
        {"model": opened.identity(), "corpus": {"name": ", ".join(map(str, dataset["task"].values))}, "seed": seed},
    )
    atlas.save(target, overwrite=overwrite)
    page = write_report(atlas, out_folder)
    table = Table("task", "last layer", "best layer", "top heads", "best head", title="accuracy on the test part")
    for task in dataset["task"].values:
        part = dataset.sel(task=task)
        pooled = {str(p): float(part["pooled_accuracy"].sel(pooling=p)) for p in part["pooling"].values}
        values = part["accuracy"].values
        best = divmod(int(values.argmax()), values.shape[1])
        table.add_row(
            str(task),
            *(f"{pooled.get(p, float('nan')):.3f}" for p in ("last_layer", "best_layer", "top_heads")),
            f"L{best[0]}H{best[1]} {values.max():.3f}",
        )
    out.print(table)
    out.print(f"Atlas: {target}\nPage:  {page}")


def register(app: typer.Typer) -> None:
    app.command()(probe)
