"""`headwise patch`: what each head carries from one input into another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import ModelName
from headwise.core.options import option
from headwise.experiments.patching.options import PatchOptions

if TYPE_CHECKING:
    import xarray as xr


@command("patch", workers=True)
def patch_command(
    *,
    model: ModelName,
    pairs: str = option(
        "agreement",
        help="A .jsonl with clean, corrupted, answer and wrong in each row, or a built-in set: "
        "agreement (subject and verb) or names (indirect objects).",
    ),
    options: PatchOptions,
    out_file: Path = option(
        Path("patching.nc"), flag="out", help="A NetCDF file with the group `patching`."
    ),
    figures: Path | None = option(None, help="A folder for figures."),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Find the heads that decide an answer, by activation patching.

    Replaces each head's output in a corrupted run by that of the clean run, and the reverse:
    exactly, and to first order for all heads at once.

    [dim]Examples:[/dim]

      headwise patch HuggingFaceTB/SmolLM2-135M --figures figures

      headwise patch gpt2 --pairs names --first-order --positions 8

      headwise patch gpt2 --pairs mine.jsonl --out mine.nc

    A row of the file: {"clean": "The keys near the door", "corrupted": "The key near the door",
    "answer": " are", "wrong": " is"}. Both inputs must have equally many tokens."""
    from headwise.experiments.patching import BUILTIN, patch_in_job
    from headwise.run import Job

    sources = common.sources_of(model.name, None if pairs in BUILTIN else pairs)
    with (
        common.Watch() as watch,
        Job.for_file(out_file, overwrite=overwrite, sources=sources, progress=watch) as job,
    ):
        result = patch_in_job(job, model.name, pairs, options)
        dataset, failures = common.write_and_draw(job, result, "patching", out_file, figures)
    _print_summary(dataset, out_file, max(5, options.ablate))
    common.exit_if_failed(failures)


def _print_summary(dataset: xr.Dataset, path: Path, n_heads: int) -> None:
    from headwise.analyses.contract import MIN_EXAMPLES
    from headwise.experiments.patching.result import describe_ablated_heads, describe_best_heads

    facts = dataset.attrs
    if facts["note"]:
        common.err.print(facts["note"], style="dim")
    common.out.print(
        f"{facts['pairs']} pairs ({facts['left_out_pairs']} left out): answer over wrong answer "
        f"{facts['clean']:+.2f} on clean inputs (right in {100 * facts['clean_right']:.0f} %), "
        f"{facts['corrupted']:+.2f} on corrupted ones (right in "
        f"{100 * facts['corrupted_right']:.0f} %); {path}"
    )
    if facts["duplicate_pairs"]:
        common.out.print(f"{facts['duplicate_pairs']} repeated pairs were counted once.")
    if facts["pairs"] < MIN_EXAMPLES:
        common.out.print(
            f"Fewer than {MIN_EXAMPLES} different pairs: no head is tested, there are no p-values."
        )
    common.out.print(f"Bring back most: {', '.join(describe_best_heads(dataset, n_heads))}")
    if "ablated" in dataset:
        heads = ", ".join(describe_ablated_heads(dataset))
        common.out.print(f"Zeroed in the clean run, they lose: {heads}")
    if "pearson" in facts:
        common.out.print(
            f"First order and exact over heads: Pearson {facts['pearson']:.2f} "
            f"({facts['pearson_low']:.2f} … {facts['pearson_high']:.2f}), Spearman "
            f"{facts['spearman']:.2f}"
        )
