"""`headwise why`: why a head attends where it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import ModelName, TextOptions
from headwise.core.options import option
from headwise.experiments.why.options import WhyOptions

if TYPE_CHECKING:
    import xarray as xr

SHOWN = 8  # rows of a table


@command("why", workers=True)
def why_command(
    *,
    head: str = option(argument=True, metavar="HEAD", help="The head, like L5H1."),
    model: ModelName,
    source: TextOptions,
    options: WhyOptions,
    out_file: Path | None = option(None, flag="out", help="A NetCDF file with the group `why`."),
    figures: Path | None = option(None, help="A folder for figures."),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Explain why a head attends to a token.

    Splits the head's score over the components (embedding, heads, MLPs) that wrote the residual
    stream at the query and at the key.

    With --text, one score. Otherwise, on a corpus, rows in which one token has at least half of the
    attention that is not on the first token, against all others.

    [dim]Examples:[/dim]

      headwise why L5H1 gpt2 --text "Mary met John. Mary met" --key John

      headwise why L18H6 HuggingFaceTB/SmolLM2-135M --text "one two three one" --query 3 --key 1

      headwise why L5H1 gpt2 --corpus wiki.txt --limit 100 --figures figures

    A number is a position; a token that is a number is written with its space, " 5"."""
    from headwise.atlas import Atlas
    from headwise.experiments.why import why_in_job
    from headwise.run import Job

    sources = common.sources_of(model.name, source.corpus)
    with common.Watch() as watch:
        if out_file is None:
            job = Job.in_folder(None, progress=watch)
        else:
            job = Job.for_file(out_file, overwrite=overwrite, sources=sources, progress=watch)
        with job:
            result = why_in_job(job, head, model.name, source.spec(), options)
            dataset = result["why"]
            if out_file is not None:
                job.write(result.to_bytes())
                # What is drawn and printed is what is in the file.
                dataset = Atlas.load(out_file)["why"]
            failures = common.draw_figures({"why": dataset}, figures, job.started_store)
            job.finish()
    if options.text:
        _print_score(dataset)
    else:
        _print_margins(dataset)
    common.exit_if_failed(failures)


def _print_score(dataset: xr.Dataset) -> None:
    """Print one score: its largest pairs of components, and the margins of both sides."""
    from headwise.experiments.why.result import OTHERS, largest_margins, largest_pairs

    facts = dataset.attrs
    common.out.print(
        f"{facts['head']}: from '{facts['query'].strip()}' ({facts['query_position']}) to "
        f"'{facts['key'].strip()}' ({facts['key_position']}): score {facts['score']:+.2f} (mean of "
        f"the visible tokens {facts['mean_visible_score']:+.2f}), attention {facts['weight']:.2f}"
    )
    for name in ("position_bias", "soft_capping"):
        if name in facts:
            common.out.print(f"{name.replace('_', ' ')} {facts[name]:+.2f}, not split")
    table = Table("wrote at the query", "wrote at the key", "part of the score")
    for query_component, key_component, part in largest_pairs(dataset, SHOWN):
        table.add_row(query_component, key_component, f"{part:+.2f}")
    common.out.print(table)
    names = [str(name) for name in dataset["query_component"].values]
    table = Table("wrote at the query", "part", "wrote at the key", "part")
    sides = []
    for side in ("query_margin", "key_margin"):
        margins = dataset[side].values
        rows = []
        for name in largest_margins(margins, names, SHOWN):
            rows.append((name, float(margins[names.index(name)])))
        left = float(margins.sum()) - sum(part for _, part in rows)
        rows.append((OTHERS, left))
        sides.append(rows)
    for (query_name, query_part), (key_name, key_part) in zip(*sides, strict=True):
        table.add_row(query_name, f"{query_part:+.2f}", key_name, f"{key_part:+.2f}")
    common.out.print(table)


def _print_margins(dataset: xr.Dataset) -> None:
    """Print the mean margins of a corpus, the components with the largest differences first."""
    from headwise.experiments.why.result import SIDES, largest_margins

    facts = dataset.attrs
    score = dataset["mean_score"].values
    common.out.print(
        f"{facts['head']}: its role fires in {facts['firing_rows']} rows of {facts['examples']} "
        f"examples (mean score {score[0]:+.2f}), not in {facts['other_rows']} ({score[1]:+.2f})"
    )
    if facts["note"]:
        common.out.print(facts["note"])
    names = [str(name) for name in dataset["component"].values]
    for side in SIDES:
        table = Table(f"wrote at the {side}", "role fires", "other rows", "difference", "p")
        differences = dataset[f"{side}_difference"]
        for name in largest_margins(differences.values, names, SHOWN):
            row = dataset.sel(component=name)
            margin = row[f"{side}_margin"].values
            low = float(row[f"{side}_difference_low"])
            high = float(row[f"{side}_difference_high"])
            p = float(row[f"{side}_difference_p_adjusted"])
            table.add_row(
                name,
                f"{margin[0]:+.2f}",
                f"{margin[1]:+.2f}",
                f"{float(row[f'{side}_difference']):+.2f} ({low:+.2f} … {high:+.2f})",
                f"{p:.2g}" if p == p else "",
            )
        common.out.print(table)
