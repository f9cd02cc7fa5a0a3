"""`headwise patch`: what each head carries from one input into another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command


@command("patch", workers=True)
def patch_command(
    *,
    model: options.ModelName,
    pairs: Annotated[
        str,
        typer.Option(
            help="A .jsonl with clean, corrupted, answer and wrong in each row, or a built-in set: agreement (subject "
            "and verb) or names (indirect objects)."
        ),
    ] = "agreement",
    limit: Annotated[int, typer.Option(min=2, help="Use at most this many pairs.")] = 32,
    first_order: Annotated[
        bool,
        typer.Option(
            "--first-order", help="The first-order estimate alone, instead of a run for every head."
        ),
    ] = False,
    positions: Annotated[
        int, typer.Option(min=0, help="Also patch so many positions, from the last, one at a time.")
    ] = 0,
    ablate: Annotated[
        int,
        typer.Option(
            min=0, help="Also zero so many of the best heads, one at a time, in the clean run."
        ),
    ] = 10,
    out_file: Annotated[
        Path, typer.Option("--out", help="A NetCDF file with the group `patching`.")
    ] = Path("patching.nc"),
    figures: options.Figures = None,
    placed: options.ModelOptions,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """Replace each head's output in a corrupted run by that of the clean run, and the reverse:
    which heads carry what decides the answer. Exactly, and to first order for all heads at once.

    [dim]Examples:[/dim]

      headwise patch HuggingFaceTB/SmolLM2-135M --figures figures

      headwise patch gpt2 --pairs names --first-order --positions 8

      headwise patch gpt2 --pairs mine.jsonl --out mine.nc

    A row of the file: {"clean": "The keys near the door", "corrupted": "The key near the door",
    "answer": " are", "wrong": " is"}. Both inputs must have as many tokens."""
    from headwise.analyses.contract import MIN_EXAMPLES
    from headwise.atlas import Atlas
    from headwise.core.errors import ModelError
    from headwise.experiments.patching import (
        BUILTIN,
        PatchOptions,
        patch,
        read_pairs,
        usable_pairs,
    )
    from headwise.experiments.patching.result import ablated_heads, best_heads
    from headwise.experiments.patching.run import provenance
    from headwise.run import Job

    built_in = pairs in BUILTIN
    read = common.sources_of(model.name, None if built_in else pairs)
    with Job.for_file(out_file, overwrite=overwrite, sources=read) as job:
        opened = placed.open(model.name)
        if opened.lm_kind != "causal":
            raise ModelError(
                f"'{opened.name}' has no head that predicts the next token; name a decoder (headwise patch MODEL)."
            )
        given = usable_pairs(opened, pairs, limit, seed) if built_in else read_pairs(pairs)[:limit]
        wanted = PatchOptions(exact=not first_order, positions=positions, ablate=ablate)
        with common.Watch() as job.progress:
            made = patch(
                opened,
                given,
                wanted,
                strict=not built_in,
                folder=job,
            )
        job.write(Atlas({"patching": made}, provenance(opened, given, wanted)).to_bytes())
        dataset = Atlas.load(out_file)["patching"]
        failures = common.draw_figures({"patching": dataset}, figures, job.begun)
        job.finish()
    facts = dataset.attrs
    if facts["note"]:
        common.err.print(facts["note"], style="dim")
    common.out.print(
        f"{facts['pairs']} pairs ({facts['left_out_pairs']} left out): answer over wrong answer "
        f"{facts['clean']:+.2f} on "
        f"clean inputs (right in {100 * facts['clean_right']:.0f} %), {facts['corrupted']:+.2f} on corrupted ones "
        "(right "
        f"in {100 * facts['corrupted_right']:.0f} %); {out_file}"
    )
    if facts["duplicate_pairs"]:
        common.out.print(f"{facts['duplicate_pairs']} repeated pairs were counted once.")
    if facts["pairs"] < MIN_EXAMPLES:
        common.out.print(
            f"Fewer than {MIN_EXAMPLES} different pairs: no head is tested, there are no p-values."
        )
    common.out.print(f"Bring back most: {', '.join(best_heads(dataset, max(5, ablate)))}")
    if "ablated" in dataset:
        common.out.print(f"Zeroed in the clean run, they lose: {', '.join(ablated_heads(dataset))}")
    if "pearson" in facts:
        common.out.print(
            f"First order and exact over heads: Pearson {facts['pearson']:.2f} ({facts['pearson_low']:.2f} … "
            f"{facts['pearson_high']:.2f}), Spearman {facts['spearman']:.2f}"
        )
    common.end(failures)
