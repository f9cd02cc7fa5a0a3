"""`headwise plan`: time and memory of an atlas, before it is made."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import AnalysisOptions, ModelName, TextOptions
from headwise.core.options import option, part_of
from headwise.run.options import AtlasOptions, RunOptions, SourceOptions


@dataclass(frozen=True)
class PlanOptions(AtlasOptions):
    """The options of `headwise atlas`, without those on output: nothing is written."""

    overwrite: bool = option(False, command_line=False, help="Nothing is written.")


@command("plan")
def plan(
    *,
    model: ModelName,
    text: TextOptions,
    analyses: AnalysisOptions,
    sample: int = option(
        16, min=2, help="Most examples of the calibration; fewer are run where they take long."
    ),
    as_json: bool = option(False, flag="json", help="Print JSON, for programs."),
    options: PlanOptions,
) -> None:
    """Estimate time and memory of `headwise atlas` before you run it.

    Takes the same options. The estimate, by analysis, rests on a calibration of a few seconds: a
    few examples and the first layers of the model.

    Processor time with its range (most runs lie in it; single stages may not), and the time it takes while this
    machine is as busy as it is now; the page is not included.

    [dim]Examples:[/dim]

      headwise plan

      headwise plan gpt2 --corpus stories.txt --full

      headwise plan ./my-model --analyses surface,roles,distance --sample 32 --json
    """
    import json

    from rich.table import Table

    from headwise.run import Source
    from headwise.run.estimate import estimate

    source = Source(model.name, text.spec(), part_of(options, SourceOptions))
    with common.Watch() as watch:
        costs = estimate(source, analyses.chosen(), part_of(options, RunOptions), sample, watch)
    if as_json:
        common.out.print(json.dumps(costs.to_dict(), indent=1), highlight=False, soft_wrap=True)
        return
    title = f"{costs.examples:,} examples, {costs.tokens:,} tokens"
    table = Table(
        "stage", "examples", "processor time", "range", "time now", "memory", "", title=title
    )
    for cost in sorted(costs.stages, key=lambda cost: -cost.cpu_seconds):
        table.add_row(
            cost.stage,
            f"{cost.examples:,}",
            common.shown_time(cost.cpu_seconds),
            _range(cost.cpu_low, cost.cpu_high),
            common.shown_time(cost.seconds),
            _gibibytes(cost.memory),
            cost.note,
        )
    table.add_row(
        "total",
        "",
        common.shown_time(costs.cpu_seconds),
        _range(costs.cpu_low, costs.cpu_high),
        common.shown_time(costs.seconds),
        _gibibytes(costs.memory),
        "",
        style="bold",
    )
    common.out.print(table)
    common.out.print(
        f"The first page of `headwise atlas` comes after about "
        f"{common.shown_time(costs.first_cpu_seconds)} of processor time, "
        f"{common.shown_time(costs.first_seconds)} now; the atlas grows from there.",
        soft_wrap=True,
    )


def _range(low: float, high: float) -> str:
    return f"{common.shown_time(low)} to {common.shown_time(high)}"


def _gibibytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
