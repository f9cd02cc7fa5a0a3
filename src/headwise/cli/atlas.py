"""`headwise atlas` and `headwise run`: analyses over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headwise.cli.common import (
    CorpusOption,
    DeviceOption,
    LimitOption,
    MaxLengthOption,
    ModelArgument,
    ModelOption,
    OverlongOption,
    OverwriteOption,
    ParserOption,
    SetOption,
    StackOption,
    Watch,
    out,
    parse_settings,
    running,
)

SCREEN = 80  # rows of a table that are still read on a screen; of a longer one the first measure is shown


def atlas(
    model: ModelArgument = None,
    corpus: CorpusOption = None,
    analyses: Annotated[
        str | None, typer.Option("--analyses", help="Names with commas between; nothing for all that apply.")
    ] = None,
    out_folder: Annotated[Path, typer.Option("--out", help="Where the atlas goes.")] = Path("atlas"),
    limit: LimitOption = None,
    full: Annotated[bool, typer.Option("--full", help="Lift the budgets: every analysis sees every example.")] = False,
    settings: SetOption = None,
    device: DeviceOption = None,
    stack: StackOption = None,
    max_length: MaxLengthOption = None,
    overlong: OverlongOption = "truncate",
    parser: ParserOption = None,
    seed: Annotated[int, typer.Option("--seed", help="For everything random.")] = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Everything that applies to a model: DIR/atlas.nc, index.html, figures/, tables/.

    [dim]Examples:[/dim]

      headwise atlas

      headwise atlas bert-base-uncased --corpus en_ewt-ud-dev.conllu --out ewt

      headwise atlas ./my-model --corpus pairs.tsv --analyses surface,offsets --limit 500
    """
    from headwise.analyses.contract import known_analyses, make_analysis
    from headwise.page.report import write_report
    from headwise.page.sample import choose_sample
    from headwise.run import RunOptions, Source

    names = (
        [n.strip() for n in analyses.split(",")]
        if analyses
        else [n for n, cls in known_analyses().items() if cls.automatic]
    )
    chosen_settings = parse_settings(settings, names)
    chosen = [make_analysis(name, chosen_settings[name]) for name in names]
    target = out_folder / "atlas.nc"
    source = Source(model, corpus, device, stack, None, max_length, overlong, parser)
    options = RunOptions(limit=limit, full=full, seed=seed, overwrite=overwrite)
    with running(target, out_folder / ".run", chosen, source, options) as result, Watch() as watch:
        page = write_report(result.atlas, out_folder, choose_sample(result.model, result.corpus), watch)
    out.print(f"Atlas: {target}\nPage:  {page}")


def run(
    analysis: Annotated[str, typer.Argument(metavar="ANALYSIS", help="See `headwise list`.")],
    model: ModelOption = None,
    corpus: CorpusOption = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="A NetCDF file; nothing for ANALYSIS.nc.")] = None,
    limit: LimitOption = None,
    settings: SetOption = None,
    device: DeviceOption = None,
    stack: StackOption = None,
    max_length: MaxLengthOption = None,
    overlong: OverlongOption = "truncate",
    parser: ParserOption = None,
    seed: Annotated[int, typer.Option("--seed", help="For everything random.")] = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """One analysis, with its parameters, into one file.

    [dim]Examples:[/dim]

      headwise run surface --set weighting=tokens

      headwise run offsets --model gpt2 --corpus stories.txt --out gpt2-offsets.nc
    """
    from headwise.analyses.contract import make_analysis
    from headwise.run import RunOptions, Source

    chosen = make_analysis(analysis, parse_settings(settings, [analysis])[analysis])
    target = out_file or Path(f"{analysis}.nc")
    source = Source(model, corpus, device, stack, None, max_length, overlong, parser)
    options = RunOptions(limit=limit, seed=seed, overwrite=overwrite)
    with running(target, target.with_name(f".{target.name}.run"), [chosen], source, options) as result:
        pass
    for line in chosen.headline(result.atlas[analysis]):
        out.print(line, markup=False, highlight=False)
    table = Table("measure", "item", "mean over heads", "lowest", "", "highest", "", title=f"{analysis} ({target})")
    rows = result.atlas.summary()
    shown = rows if len(rows) <= SCREEN else rows[rows["variable"] == rows["variable"].iloc[0]]
    for row in shown.itertuples(index=False):
        table.add_row(
            row.variable,
            row.item,
            f"{row.mean:.3f}",
            row.lowest_head,
            f"{row.lowest:.3f}",
            row.highest_head,
            f"{row.highest:.3f}",
        )
    out.print(table if table.row_count <= SCREEN else f"{analysis}: {target}")
    if 0 < len(shown) < len(rows):
        others = [name for name in dict.fromkeys(rows["variable"]) if name != rows["variable"].iloc[0]]
        out.print(f"Also in the file, for every head: {', '.join(others)}", markup=False, highlight=False)


def register(app: typer.Typer) -> None:
    app.command()(atlas)
    app.command()(run)
