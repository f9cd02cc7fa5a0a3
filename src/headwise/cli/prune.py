"""`headwise prune`: a model without some of its heads, as an ordinary folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import AtlasFile, ModelName, TextOptions
from headwise.core.errors import ParameterError
from headwise.core.options import option
from headwise.experiments.ablation.options import PruneOptions

if TYPE_CHECKING:
    from rich.table import Table

    from headwise.experiments.ablation import GateResult, PruneResult


@command("prune")
def prune_command(
    *,
    model: ModelName,
    heads: str = option(
        "",
        help="A list (L7H9,L8H1), a layer (L3), a rule on --atlas (ablation.harm:bottom10, "
        "ablation.importance:bottom2/layer …), or gates:N: the N heads that learned gates remove.",
    ),
    atlas: AtlasFile = None,
    out_folder: Path = option(Path("pruned"), flag="out", help="The folder of the model."),
    zero: bool = option(
        False,
        help="Zero the heads instead of removing them: the same size, for every class of model.",
    ),
    remove: bool = option(
        False, help="Fail where heads cannot be removed, instead of zeroing them."
    ),
    text: TextOptions,
    options: PruneOptions,
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Remove heads from a model and write a smaller, ordinary model folder.

    Shows score and speed before and after.

    `ablation.harm:bottomN` are the heads without which the model is least worse, by a task's score
    or by the language-modelling loss. `gates:N` learns a gate on every head on half of the data,
    and scores the choice on the other half, against random sets. Heads are removed where plain
    transformers can load the smaller model, else zeroed, with a note (BERT, GPT-2). Without a task
    or a text the score is the language-modelling loss on the built-in corpus.

    [dim]Examples:[/dim]

      headwise prune --heads L0H1,L1H3,L2H0 --out smaller

      headwise prune ./llama --heads L0H1,L1H3,L2H0 --corpus stories.txt --out smaller

      headwise prune ./model --atlas mrpc-ablation.nc --heads ablation.importance:bottom20 --zero
      --task MRPC --data glue

      headwise prune ./llama --heads gates:24 --corpus stories.txt --out smaller
    """
    from dataclasses import replace

    from headwise.experiments.ablation import prune_in_job
    from headwise.models.loading import model_path
    from headwise.run import Job

    if not heads:
        raise ParameterError(
            "No heads are named; give --heads with a list (L7H9,L8H1) or a rule (with --atlas)."
        )
    if zero and remove:
        raise ParameterError("Give either --zero or --remove, not both.")
    if zero:
        options = replace(options, mode="zero")
    elif remove:
        options = replace(options, mode="remove")
    sources = common.sources_of(
        model_path(model.name), text.spec(), options.data, options.dev, atlas
    )
    with (
        common.Watch() as watch,
        Job.for_folder(
            out_folder,
            overwrite=overwrite,
            sources=sources,
            progress=watch,
            note=lambda sentence: common.err.print(sentence, style="dim"),
        ) as job,
    ):
        options = replace(options, atlas=common.load_atlas(atlas))
        result = prune_in_job(job, model.name, heads, text.spec(), options)
    if result.gates is not None:
        common.out.print(_describe_gates(result.gates))
    common.out.print(_result_table(result))
    common.out.print(f"{result.about[:1].upper()}{result.about[1:]}.")
    if result.note:
        common.out.print(result.note)
    common.out.print(
        f"Outputs differ from those with the heads disabled by {result.absolute:.1e} at most "
        f"({result.difference:.1e} of the largest output, where that is above 1)."
    )


def _describe_gates(gates: GateResult) -> str:
    n_sets = len(gates.random)
    return (
        f"On the half that the gates did not see: {gates.metric} {gates.intact:.4f} intact, "
        f"{gates.without:.4f} without these {len(gates.heads)} heads, {gates.random.mean():.4f} "
        f"without random ones (mean of {n_sets} sets; p = {gates.p_value:.2g} of doing as well "
        "by chance)."
    )


def _result_table(result: PruneResult) -> Table:
    """Return parameters, score and seconds before and after."""
    from rich.table import Table

    action = "zeroed" if result.mode == "zero" else "removed"
    heads = "1 head" if len(result.heads) == 1 else f"{len(result.heads)} heads"
    title = f"{heads} {action}: {result.folder}"
    table = Table("", "before", "after", title=title)
    for name, before in result.table["before"].items():
        number_format = ",.0f" if name == "parameters" else ".4g"
        after = result.table["after"][name]
        table.add_row(name, format(before, number_format), format(after, number_format))
    return table
