"""`headwise finetune`: a model on a task, by a paper's recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli import common
from headwise.cli.either import model_either_way


def finetune_command(
    model: common.Model = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help="MRPC, STS-B, SST-2, RTE, CoLA, QNLI, QQP, MNLI, or a name for your own files; several with commas.",
        ),
    ] = None,
    data: common.Data = None,
    train: Annotated[str | None, typer.Option("--train", help="The training file, instead of the folder's.")] = None,
    dev: common.Dev = None,
    pooling: Annotated[str, typer.Option("--pooling", help="last_layer, best_layer or top_heads.")] = "last_layer",
    start: Annotated[
        str,
        typer.Option(
            "--start",
            help="none (no training), random (weights drawn anew), pretrained, or frozen (only the head is trained).",
        ),
    ] = "pretrained",
    recipe: Annotated[
        str,
        typer.Option("--recipe", help="kovaleva, jo or pande: optimizer, rate, batch size and epochs of the paper."),
    ] = "kovaleva",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many trainings, with seeds from --seed on.")] = 5,
    seed: common.Seed = 0,
    out_folder: Annotated[
        Path,
        typer.Option("--out", help="results.json, predictions and models go here; a killed run goes on from there."),
    ] = Path("finetuned"),
    layer: Annotated[
        int | None, typer.Option("--layer", help="For best_layer: this layer, instead of the best by a probe.")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option("--heads", help="For top_heads: these heads (L7H9,L8H1), instead of the best by a probe."),
    ] = None,
    probing: Annotated[
        Path | None,
        typer.Option(
            "--probing", help="For top_heads and best_layer: a probing result of this task to take them from."
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="For top_heads: how many; as many as a layer has by default.")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Instead of the recipe's.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Instead of the recipe's.")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate instead of the recipe's.")] = None,
    max_length: common.MaxLength = 128,
    device: common.Device = None,
    half: Annotated[bool, typer.Option("--half", help="bfloat16 where that is safe (GPU).")] = False,
    limit: common.Limit = None,
    save_models: Annotated[str, typer.Option("--save-models", help="all, first or none.")] = "all",
    figures: Annotated[
        Path | None, typer.Option("--figures", help="A folder for a figure of all scores in the results file.")
    ] = None,
    overwrite: common.Overwrite = False,
) -> None:
    """Fine-tune on a task: three poolings, four starts, several seeds, metrics as GLUE defines them.

    [dim]Examples:[/dim]

      headwise finetune --task MRPC --data glue --seeds 3 --out mrpc

      headwise finetune bert-base-uncased --task RTE --train train.tsv --dev dev.tsv --start random --recipe kovaleva

      headwise finetune --task MRPC,STS-B --data glue --pooling top_heads --recipe jo
    """
    from rich.table import Table

    from headwise.core.errors import ParameterError
    from headwise.core.files import sweep
    from headwise.core.folders import check_writable, refuse_sources
    from headwise.experiments.finetuning import FinetuneOptions, Results, finetune
    from headwise.experiments.finetuning.results import summary, table
    from headwise.models.opening import model_path
    from headwise.text.tasks import read_task

    names: list[str | None] = [*common.names_in(task)] or [None]
    if len(names) > 1 and (train or dev):
        raise ParameterError("--train and --dev belong to one task; give --data for several.")
    source = model_path(model)
    check_writable(out_folder)
    refuse_sources(out_folder, common.sources_of(model, data, train, dev, probing))
    chosen_heads = common.names_in(heads) or None
    for name in names:
        own_layer, own_heads, own_top = layer, chosen_heads, top
        if probing is not None:
            own_layer, own_heads, own_top = _from_probing(probing, name, pooling, layer, chosen_heads, top)
        with common.Watch() as watch:
            chosen = FinetuneOptions(
                pooling=pooling,
                start=start,
                recipe=recipe,
                seeds=seeds,
                seed=seed,
                layer=own_layer,
                heads=own_heads,
                top=own_top,
                epochs=epochs,
                batch_size=batch_size,
                learning_rate=lr,
                max_length=max_length,
                device=device,
                half=half,
                save_models=save_models,
            )
            called = name or (data.name if data else "task")
            found = read_task(called, data=data, train=train, dev=dev, limit=limit)
            finetune(source, found, out_folder, chosen, overwrite=overwrite, report=watch)
    results = Results(out_folder)
    if figures is not None:
        from headwise.experiments.finetuning.figures import score_figure
        from headwise.plots import save_figure

        sweep(figures)
        save_figure(score_figure(summary(results.records)), figures, "finetune-scores")
    shown = Table(
        "task", "pooling", "start", "recipe", "median over seeds (interval)", "seeds", title=str(results.path)
    )
    for row in table(summary(results.records)):
        shown.add_row(*row)
    common.out.print(shown)


def _from_probing(
    path: Path, task: str | None, pooling: str, layer: int | None, heads: list[str] | None, top: int | None
) -> tuple[int | None, list[str] | None, int | None]:
    """The best layer, or the best heads, of a probing result; what was given by hand stays."""
    from headwise.atlas import Atlas
    from headwise.core.errors import ParameterError

    atlas = Atlas.load(path)
    if "probing" not in atlas:
        raise ParameterError(f"{path} holds no probing result; run `headwise probe` first.")
    dataset = atlas["probing"]
    known = [str(name) for name in dataset["task"].values]
    if task not in known:
        raise ParameterError(f"The probing result has no task '{task}'; it has {', '.join(known)}.")
    part = dataset.sel(task=task)
    if pooling == "best_layer" and layer is None:
        name = "layer_validation" if "layer_validation" in part else "layer_accuracy"
        return int(part[name].argmax("layer")), heads, top
    if pooling == "top_heads" and heads is None:
        layers, numbers = part["top_layer"].values, part["top_head"].values
        count = top or int(dataset.attrs.get("top", (layers >= 0).sum()))
        usable = int((layers >= 0).sum())
        if count > usable:
            raise ParameterError(f"--top must be at most {usable}, the heads this result has ranked; it is {count}.")
        return layer, [f"L{int(a)}H{int(b)}" for a, b in zip(layers[:count], numbers[:count], strict=True)], None
    return layer, heads, top


def register(app: typer.Typer) -> None:
    app.command("finetune")(model_either_way(finetune_command))
