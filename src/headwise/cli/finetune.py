"""`headwise finetune`: a model on a task, by a paper's recipe."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command

if TYPE_CHECKING:
    from headwise.experiments.finetuning import FinetuneOptions


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained: what `FinetuneOptions` has of the same name, heads as a text."""

    pooling: Annotated[str, typer.Option(help="last_layer, best_layer or top_heads.")] = (
        "last_layer"
    )
    start: Annotated[
        str,
        typer.Option(
            help="none (no training), random (weights drawn anew), pretrained, or frozen (only the head is trained)."
        ),
    ] = "pretrained"
    recipe: Annotated[
        str,
        typer.Option(
            help="kovaleva, jo or pande: optimizer, rate, batch size and epochs of the paper."
        ),
    ] = "kovaleva"
    seeds: Annotated[
        int, typer.Option(min=1, help="How many trainings, with seeds from --seed on.")
    ] = 5
    seed: options.Seed = 0
    layer: Annotated[
        int | None, typer.Option(help="For best_layer: this layer, instead of the best by a probe.")
    ] = None
    heads: Annotated[
        str | None,
        typer.Option(
            help="For top_heads: these heads (L7H9,L8H1), instead of the best by a probe."
        ),
    ] = None
    top: Annotated[
        int | None,
        typer.Option(min=1, help="For top_heads: how many; as many as a layer has by default."),
    ] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None
    batch_size: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None
    learning_rate: Annotated[
        float | None, typer.Option("--lr", help="Learning rate instead of the recipe's.")
    ] = None
    max_length: options.MaxLength = 128
    device: options.Device = None
    half: Annotated[bool, typer.Option("--half", help="bfloat16 where that is safe (GPU).")] = False
    save_models: Annotated[str, typer.Option(help="all, first or none.")] = "all"

    def chosen(self) -> FinetuneOptions:
        from headwise.experiments.finetuning import FinetuneOptions

        return FinetuneOptions(**asdict(self) | {"heads": options.names_in(self.heads) or None})


@command("finetune")
def finetune_command(
    *,
    model: options.ModelName,
    task: Annotated[
        str | None,
        typer.Option(
            help="MRPC, STS-B, SST-2, RTE, CoLA, QNLI, QQP, MNLI, or a name for your own files; several with commas."
        ),
    ] = None,
    data: options.Data = None,
    train: Annotated[
        str | None, typer.Option(help="The training file, instead of the folder's.")
    ] = None,
    dev: options.Dev = None,
    training: Training,
    probing: Annotated[
        Path | None,
        typer.Option(
            help="For top_heads and best_layer: a probing result of this task to take them from."
        ),
    ] = None,
    limit: options.Limit = None,
    out_folder: Annotated[
        Path,
        typer.Option(
            "--out",
            help="results.json, predictions and models go here; a killed run goes on from there.",
        ),
    ] = Path("finetuned"),
    figures: Annotated[
        Path | None, typer.Option(help="A folder for a figure of all scores in the results file.")
    ] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Fine-tune on a task: three poolings, four starts, several seeds, metrics as GLUE defines
    them.

    [dim]Examples:[/dim]

      headwise finetune --task MRPC --data glue --seeds 3 --out mrpc

      headwise finetune ./model --task RTE --train train.tsv --dev dev.tsv --start random

      headwise finetune --task MRPC,STS-B --data glue --pooling top_heads --recipe jo
    """
    from rich.table import Table

    from headwise.core.errors import ParameterError
    from headwise.core.files import sweep
    from headwise.core.folders import check_writable, refuse_sources
    from headwise.experiments.finetuning import ResultsFile, finetune
    from headwise.experiments.finetuning.results import summary, table
    from headwise.models.loading import model_path
    from headwise.text.tasks import read_task

    names: list[str | None] = [*options.names_in(task)] or [None]
    if len(names) > 1 and (train or dev):
        raise ParameterError("--train and --dev belong to one task; give --data for several.")
    source = model_path(model.name)
    check_writable(out_folder)
    refuse_sources(out_folder, common.sources_of(model.name, data, train, dev, probing))
    chosen = training.chosen()
    for name in names:
        called = name or (data.name if data else "task")
        own = chosen if probing is None else _from_probing(probing, called, chosen)
        with common.Watch() as watch:
            found = read_task(called, data=data, train=train, dev=dev, limit=limit)
            finetune(source, found, out_folder, own, overwrite=overwrite, report=watch)
    results = ResultsFile(out_folder)
    if figures is not None:
        from headwise.experiments.finetuning.figures import score_figure
        from headwise.plots import save_figure

        sweep(figures)
        save_figure(score_figure(summary(results.records)), figures, "finetune-scores")
    shown = Table(
        "task",
        "pooling",
        "start",
        "recipe",
        "median over seeds (interval)",
        "seeds",
        title=str(results.path),
    )
    for row in table(summary(results.records)):
        shown.add_row(*row)
    common.out.print(shown)


def _from_probing(path: Path, task: str, chosen: FinetuneOptions) -> FinetuneOptions:
    """With the best layer, or the best heads, of a probing result; what was given by hand stays."""
    from headwise.atlas import Atlas
    from headwise.core.errors import ParameterError
    from headwise.core.labels import head_name

    atlas = Atlas.load(path)
    if "probing" not in atlas:
        raise ParameterError(f"{path} holds no probing result; run `headwise probe` first.")
    dataset = atlas["probing"]
    known = [str(name) for name in dataset["task"].values]
    if task not in known:
        raise ParameterError(f"The probing result has no task '{task}'; it has {', '.join(known)}.")
    part = dataset.sel(task=task)
    if chosen.pooling == "best_layer" and chosen.layer is None:
        name = "layer_validation" if "layer_validation" in part else "layer_accuracy"
        return replace(chosen, layer=int(part[name].argmax("layer")))
    if chosen.pooling == "top_heads" and chosen.heads is None:
        layers, numbers = part["top_layer"].values, part["top_head"].values
        usable = int((layers >= 0).sum())
        count = chosen.top or int(dataset.attrs.get("top", usable))
        if count > usable:
            raise ParameterError(
                f"--top must be at most {usable}, the heads this result has ranked; it is {count}."
            )
        best = zip(layers[:count].tolist(), numbers[:count].tolist(), strict=True)
        return replace(chosen, heads=[head_name(layer, head) for layer, head in best], top=None)
    return chosen
