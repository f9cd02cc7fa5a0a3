"""`headwise plan`: what an atlas would take, before it is made."""

from __future__ import annotations

from typing import Annotated

import typer

from headwise.cli import common
from headwise.cli.either import model_either_way


def plan(
    model: common.Model = None,
    corpus: common.CorpusSpec = None,
    reader: common.Reader = None,
    text_field: common.TextField = None,
    analyses: Annotated[
        str | None, typer.Option("--analyses", help="Names with commas between; nothing for all that apply.")
    ] = None,
    limit: common.Limit = None,
    full: Annotated[bool, typer.Option("--full", help="Lift the budgets: every analysis sees every example.")] = False,
    settings: common.Settings = None,
    sample: Annotated[
        int, typer.Option("--sample", min=2, help="Examples that are run to find out; more take longer and tell more.")
    ] = 16,
    json_too: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    device: common.Device = None,
    dtype: common.Dtype = None,
    device_map: common.DeviceMap = None,
    stack: common.Stack = None,
    max_length: common.Longest = None,
    overlong: common.Overlong = "truncate",
    parser: common.Parser = None,
    seed: common.Seed = 0,
) -> None:
    """Time and memory of `headwise atlas` with the same options, by analysis, from a short calibration.

    Times are those of this machine as busy as it is now; the page is not in them.

    [dim]Examples:[/dim]

      headwise plan

      headwise plan gpt2 --corpus stories.txt --full

      headwise plan ./my-model --analyses surface,roles,distance --sample 32 --json
    """
    import json

    from rich.table import Table

    from headwise.analyses.contract import choose_analyses, known_analyses
    from headwise.run import RunOptions, Source
    from headwise.run.estimate import estimate

    names = common.names_in(analyses) or [name for name, cls in known_analyses().items() if cls.automatic]
    chosen = choose_analyses(names, common.parse_settings(settings, names))
    text = common.corpus_of(corpus, reader, text_field)
    source = Source(
        model,
        text,
        device=device,
        dtype=dtype,
        device_map=device_map,
        stack=stack,
        max_length=max_length,
        overlong=overlong,
        parser=parser,
    )
    costs = estimate(source, chosen, RunOptions(limit=limit, full=full, seed=seed), sample)
    if json_too:
        common.out.print(json.dumps(costs.to_dict(), indent=1), highlight=False, soft_wrap=True)
        return
    title = f"{costs.examples:,} examples, {costs.tokens:,} tokens"
    table = Table("stage", "examples", "time", "processor time", "memory", "", title=title)
    for cost in sorted(costs.stages, key=lambda cost: -cost.seconds):
        times = (common.shown_time(cost.seconds), common.shown_time(cost.cpu_seconds))
        table.add_row(cost.stage, f"{cost.examples:,}", *times, f"{cost.memory / 2**30:.1f} GiB", cost.note)
    times = (common.shown_time(costs.seconds), common.shown_time(costs.cpu_seconds))
    table.add_row("together", "", *times, f"{costs.memory / 2**30:.1f} GiB", "", style="bold")
    common.out.print(table)


def register(app: typer.Typer) -> None:
    app.command()(model_either_way(plan))
