"""`headwise finetune`: a model on a task, by a paper's recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import ModelName, names_in
from headwise.core.options import option
from headwise.experiments.finetuning.options import FinetuneOptions

if TYPE_CHECKING:
    from rich.table import Table

    from headwise.experiments.finetuning import ResultsFile


@command("finetune")
def finetune_command(
    *,
    model: ModelName,
    task: str | None = option(
        None,
        help="MRPC, STS-B, SST-2, RTE, CoLA, QNLI, QQP, MNLI, or a name for your own files; "
        "several with commas.",
    ),
    options: FinetuneOptions,
    out_folder: Path = option(
        Path("finetuned"),
        flag="out",
        help="The folder of results.json, predictions and models; an interrupted run resumes there.",
    ),
    figures: Path | None = option(
        None, help="A folder for a figure of all scores in the results file."
    ),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Fine-tune a model on a task, with the best heads or without.

    Three poolings, four starts, several seeds; metrics as GLUE defines them.

    [dim]Examples:[/dim]

      headwise finetune --task MRPC --data glue --seeds 3 --out mrpc

      headwise finetune bert-base-uncased --task RTE --train train.tsv --dev dev.tsv --start random
      --recipe kovaleva

      headwise finetune --task MRPC,STS-B --data glue --pooling top_heads --recipe jo
    """
    from headwise.core.files import sweep
    from headwise.core.folders import reject_sources
    from headwise.experiments.finetuning import ResultsFile, finetune
    from headwise.experiments.finetuning.results import summary

    sources = common.sources_of(
        model.name, options.data, options.train, options.dev, options.probing
    )
    reject_sources(out_folder, sources)
    with common.Watch() as watch:
        finetune(
            model.name,
            names_in(task) or None,
            out_folder,
            options=options,
            overwrite=overwrite,
            progress=watch,
        )
    results = ResultsFile(out_folder)
    if figures is not None:
        from headwise.experiments.finetuning.figures import score_figure
        from headwise.plots import save_figure

        sweep(figures)
        save_figure(score_figure(summary(results.records)), figures, "finetune-scores")
    common.out.print(_score_table(results))


def _score_table(results: ResultsFile) -> Table:
    from rich.table import Table

    from headwise.experiments.finetuning.results import summary, table

    columns = ("task", "pooling", "start", "recipe", "median over seeds (interval)", "seeds")
    score_table = Table(*columns, title=str(results.path))
    for row in table(summary(results.records)):
        score_table.add_row(*row)
    return score_table
