"""`headwise prune`: a model without some of its heads, as an ordinary folder."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command

if TYPE_CHECKING:
    from headwise.experiments.ablation.scored_models import ScoredModel


@command("prune")
def prune_command(
    *,
    model: options.ModelName,
    heads: Annotated[
        str,
        typer.Option(
            help="A list (L7H9,L8H1), a layer (L3), a rule on --atlas (ablation.harm:bottom10, "
            "ablation.importance:bottom2/layer …), or gates:N: the N that learned gates give up."
        ),
    ] = "",
    atlas: options.AtlasFile = None,
    out_folder: Annotated[Path, typer.Option("--out", help="Where the model goes.")] = Path(
        "pruned"
    ),
    zero: Annotated[
        bool,
        typer.Option(
            "--zero",
            help="Zero the heads instead of removing them: the same size, for every class of model.",
        ),
    ] = False,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove", help="Refuse where heads cannot be removed, instead of zeroing them."
        ),
    ] = False,
    tasks: options.TaskOptions,
    text: options.TextOptions,
    limit: options.Limit = None,
    max_length: options.MaxLength = 128,
    device: options.Device = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """Remove heads from a model's weights and write a smaller ordinary model folder; score and
    speed before and after.

    `ablation.harm:bottomN` are the heads whose loss harms least, be it a fall of a task's score or
    a rise of the language-model loss. `gates:N` learns a gate on every head on half of the data,
    and says what the choice is worth on the other half, against random sets. Heads are removed
    where plain transformers can load the smaller model, and zeroed, which is said, where not (BERT,
    GPT-2). Without a task or a text the score is the language-model loss on the built-in corpus.

    [dim]Examples:[/dim]

      headwise prune --heads L0H1,L1H3,L2H0 --out smaller

      headwise prune ./llama --heads L0H1,L1H3,L2H0 --corpus stories.txt --out smaller

      headwise prune ./model --atlas ablation.nc --heads ablation.importance:bottom20 --zero

      headwise prune ./llama --heads gates:24 --corpus stories.txt --out smaller
    """
    from rich.table import Table

    from headwise.cli.ablate import Scored
    from headwise.core.errors import ParameterError
    from headwise.experiments.ablation import PruneOptions, evaluate, pick_heads, prune
    from headwise.models import HeadModel
    from headwise.models.loading import model_path

    if not heads:
        raise ParameterError(
            "No heads are named; give --heads with a list (L7H9,L8H1) or a rule (with --atlas)."
        )
    source = model_path(model.name)
    ground = Scored(tasks, text, options.ModelOptions(device), limit, max_length, seed)
    subject = ground.open(source) if ground.named else None
    if zero and remove:
        raise ParameterError("Give either --zero or --remove, not both.")
    if heads.startswith("gates:"):
        chosen = _by_gates(heads, subject, seed)
    else:
        with (
            HeadModel.open(source, device="cpu")
            if subject is None
            else nullcontext(subject.model) as opened
        ):
            chosen = pick_heads(heads, opened.layers, opened.heads, common.load_atlas(atlas))

    def score(folder: Path) -> dict[str, float]:
        again = ground.open(folder)
        return again.score(evaluate(again, []).baseline)

    wanted = PruneOptions(
        mode="zero" if zero else "remove" if remove else "auto",
        batches=subject.batches[-3:] if subject is not None else (),
        score=score if ground.named else None,
        limit=limit or PruneOptions().limit,
        seed=seed,
        device=device,
        overwrite=overwrite,
    )
    result = prune(source, chosen, out_folder, wanted)
    title = f"{len(result.heads)} heads {'zeroed' if result.mode == 'zero' else 'removed'}: {result.folder}"
    shown = Table("", "before", "after", title=title)
    for name, before in result.table["before"].items():
        form = ",.0f" if name == "parameters" else ".4g"
        shown.add_row(name, format(before, form), format(result.table["after"][name], form))
    common.out.print(shown)
    common.out.print(f"{result.about[:1].upper()}{result.about[1:]}.")
    if result.note:
        common.out.print(result.note)
    common.out.print(
        f"Outputs differ from those with the heads disabled by {result.absolute:.1e} at most "
        f"({result.difference:.1e} of the largest output, where that is above 1)."
    )


def _by_gates(rule: str, subject: ScoredModel | None, seed: int) -> list[tuple[int, int]]:
    """The heads that learned gates give up, and what that is worth."""
    from headwise.core.errors import ParameterError
    from headwise.experiments.ablation import GateOptions, estimate_gate_cost, learn_gates

    number = rule.removeprefix("gates:")
    if not number.isdecimal():
        raise ParameterError(
            f"--heads {rule}: how many heads the gates give up must be a number, as in gates:20."
        )
    if subject is None:
        raise ParameterError(
            f"--heads {rule}: gates are learned on data; give --corpus, or --task with its files."
        )
    gate_options = GateOptions(int(number), seed=seed)
    cost = estimate_gate_cost(subject, gate_options)
    common.err.print(
        f"Learning gates: {cost.steps} steps on {cost.tokens_per_step:,} tokens each, then "
        f"{cost.passes} passes over {cost.tokens_per_pass:,} tokens; about "
        f"{common.shown_time(cost.seconds)}.",
        style="dim",
    )
    with common.Watch() as watch:
        found = learn_gates(subject, gate_options, report=watch)
    common.out.print(
        f"On the half that the gates did not see: {found.metric} {found.intact:.4f} intact, {found.without:.4f} without "
        f"these {number} heads, {found.random.mean():.4f} without random ones (mean of {len(found.random)} sets; "
        f"p = {found.p_value:.2g} of doing as well by chance)."
    )
    return found.heads
