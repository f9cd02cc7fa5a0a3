"""`headwise plan`: what an atlas would take, before it is made."""

from __future__ import annotations

from typing import Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command


@command("plan")
def plan(
    *,
    model: options.ModelName,
    text: options.TextOptions,
    asked: options.Asked,
    sample: Annotated[
        int,
        typer.Option(
            min=2, help="Examples that are run to find out; more take longer and tell more."
        ),
    ] = 16,
    json_too: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    opening: options.SourceOptions,
    seed: options.Seed = 0,
) -> None:
    """Time and memory of `headwise atlas` with the same options, by analysis, from a short
    calibration.

    Times are those of this machine as busy as it is now; the page is not in them.

    [dim]Examples:[/dim]

      headwise plan

      headwise plan gpt2 --corpus stories.txt --full

      headwise plan ./my-model --analyses surface,roles,distance --sample 32 --json
    """
    import json

    from rich.table import Table

    from headwise.run import RunOptions
    from headwise.run.estimate import estimate

    how = RunOptions(limit=asked.limit, full=asked.full, seed=seed)
    costs = estimate(opening.source(model, text), asked.chosen(), how, sample)
    if json_too:
        common.out.print(json.dumps(costs.to_dict(), indent=1), highlight=False, soft_wrap=True)
        return
    title = f"{costs.examples:,} examples, {costs.tokens:,} tokens"
    table = Table("stage", "examples", "time", "processor time", "memory", "", title=title)
    for cost in sorted(costs.stages, key=lambda cost: -cost.seconds):
        times = (common.shown_time(cost.seconds), common.shown_time(cost.cpu_seconds))
        table.add_row(
            cost.stage, f"{cost.examples:,}", *times, f"{cost.memory / 2**30:.1f} GiB", cost.note
        )
    times = (common.shown_time(costs.seconds), common.shown_time(costs.cpu_seconds))
    table.add_row("together", "", *times, f"{costs.memory / 2**30:.1f} GiB", "", style="bold")
    common.out.print(table)
