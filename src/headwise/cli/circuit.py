"""`headwise circuit`: which edges between the parts of a model carry a behaviour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import ModelName
from headwise.core.options import option
from headwise.experiments.circuit.options import CircuitOptions

if TYPE_CHECKING:
    import xarray as xr

SHOWN_EDGES = 12


@command("circuit", workers=True)
def circuit_command(
    *,
    model: ModelName,
    pairs: str = option(
        "agreement",
        help="A .jsonl with clean, corrupted, answer and wrong in each row, or a built-in set: "
        "agreement, names, greater-than, pronouns, induction, docstring, capitals.",
    ),
    options: CircuitOptions,
    out_file: Path = option(
        Path("circuit.nc"), flag="out", help="A NetCDF file with the group `circuit`."
    ),
    figures: Path | None = option(None, help="A folder for figures."),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Find the circuit behind a behaviour: which heads work together.

    Scores every edge between heads, MLPs, embedding and logits, patches the best ones exactly, and
    finds the smallest circuit that does the task alone.

    [dim]Examples:[/dim]

      headwise circuit HuggingFaceTB/SmolLM2-135M --pairs induction --figures figures

      headwise circuit gpt2 --pairs names --faithfulness 0.9 --check 200

      headwise circuit gpt2 --pairs mine.jsonl --senders L4H11 --receivers L5H1.key,L5H5.key

    A row of the file: {"clean": "The keys near the door", "corrupted": "The key near the door",
    "answer": " are", "wrong": " is"}. Inputs of unequal length are aligned by marked spans:
    "I saw [[Tom]] run", "I saw [[Mary Ann]] run"."""
    from headwise.experiments.circuit import circuit_in_job
    from headwise.experiments.patching import BUILTIN
    from headwise.run import Job

    sources = common.sources_of(model.name, None if pairs in BUILTIN else pairs)
    with (
        common.Watch() as watch,
        Job.for_file(out_file, overwrite=overwrite, sources=sources, progress=watch) as job,
    ):
        result = circuit_in_job(job, model.name, pairs, options)
        dataset, failures = common.write_and_draw(job, result, "circuit", out_file, figures)
    _print_summary(dataset, out_file)
    common.exit_if_failed(failures)


def _print_summary(dataset: xr.Dataset, path: Path) -> None:
    from headwise.experiments.circuit.result import MIN_UNITS, describe_edges

    facts = dataset.attrs
    common.out.print(
        f"{facts['ranking_pairs']} pairs to rank edges, {facts['pairs']} others to judge them "
        f"({facts['left_out_pairs']} left out); the answer is preferred in "
        f"{100 * facts['right']:.0f} % ({100 * facts['right_low']:.0f} … "
        f"{100 * facts['right_high']:.0f} %); {path}"
    )
    if facts["note"]:
        common.out.print(facts["note"])
        return
    common.out.print(
        f"Metric {facts['clean']:+.2f} on clean inputs, {facts['corrupted']:+.2f} on corrupted "
        f"ones; {facts['all_edges']} edges. The best:"
    )
    for line in describe_edges(dataset, SHOWN_EDGES):
        common.out.print(f"  {line}")
    if facts["units"] < MIN_UNITS:
        common.out.print(
            f"The pairs that judge are of {facts['units']} units; with fewer than {MIN_UNITS} no edge "
            "is tested."
        )
    if facts["circuit_size"]:
        common.out.print(
            f"{facts['circuit_edges']} edges reach {facts['wanted_faithfulness']:.0%} on the pairs "
            f"they were ranked on, {facts['circuit_faithfulness']:.0%} on the others."
        )
    else:
        common.out.print(
            f"No part of the model reaches {facts['wanted_faithfulness']:.0%} without the rest."
        )
    if "random_area" in facts:
        common.out.print(
            f"Area under the curve {facts['area']:.2f}, of random rankings "
            f"{facts['random_area']:.2f} (at most {facts['random_area_most']:.2f}; p "
            f"{facts['area_p']:.2g})"
        )
    if "pearson" in facts:
        common.out.print(
            f"Estimate and exact over {facts['checked_edges']} edges: Pearson "
            f"{facts['pearson']:.2f} ({facts['pearson_low']:.2f} … {facts['pearson_high']:.2f}), "
            f"Spearman {facts['spearman']:.2f}"
        )
