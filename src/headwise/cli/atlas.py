"""`headwise atlas` and `headwise run`: analyses over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from headwise.cli import common

if TYPE_CHECKING:
    from headwise.atlas import Atlas

SCREEN = 80  # rows of a table that are still read on a screen; of a longer one the first measure is shown


def atlas(
    model: common.Model = None,
    corpus: common.CorpusSpec = None,
    reader: common.Reader = None,
    text_field: common.TextField = None,
    analyses: Annotated[
        str | None, typer.Option("--analyses", help="Names with commas between; nothing for all that apply.")
    ] = None,
    out_folder: Annotated[Path, typer.Option("--out", help="Where the atlas goes.")] = Path("atlas"),
    limit: common.Limit = None,
    full: Annotated[bool, typer.Option("--full", help="Lift the budgets: every analysis sees every example.")] = False,
    settings: common.Settings = None,
    device: common.Device = None,
    stack: common.Stack = None,
    max_length: common.Longest = None,
    overlong: common.Overlong = "truncate",
    parser: common.Parser = None,
    seed: common.Seed = 0,
    overwrite: common.Overwrite = False,
) -> None:
    """Everything that applies to a model: DIR/atlas.nc, index.html, figures/, tables/.

    [dim]Examples:[/dim]

      headwise atlas

      headwise atlas bert-base-uncased --corpus en_ewt-ud-dev.conllu --out ewt

      headwise atlas ./my-model --corpus pairs.tsv --analyses surface,offsets --limit 500

      headwise atlas --corpus crawl.jsonl.zst --text-field body --reader max_line=10000000
    """
    from headwise.analyses.contract import choose_analyses, known_analyses
    from headwise.page.report import write_report
    from headwise.page.sample import choose_sample
    from headwise.run import RunOptions, Source

    names = common.names_in(analyses) or [name for name, cls in known_analyses().items() if cls.automatic]
    chosen = choose_analyses(names, common.parse_settings(settings, names))
    target = out_folder / "atlas.nc"
    source = Source(
        model, common.corpus_of(corpus, reader, text_field), device, stack, None, max_length, overlong, parser
    )
    options = RunOptions(limit=limit, full=full, seed=seed, overwrite=overwrite)
    with common.running(target, out_folder / ".run", chosen, source, options) as (made, run), common.Watch() as watch:
        page = write_report(made, out_folder, choose_sample(run.model, run.corpus), watch)
    common.out.print(f"Atlas: {target}\nPage:  {page}")


def run(
    analysis: Annotated[str, typer.Argument(metavar="ANALYSIS", help="See `headwise list`.")],
    model: common.ModelOption = None,
    corpus: common.CorpusSpec = None,
    reader: common.Reader = None,
    text_field: common.TextField = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="A NetCDF file; nothing for ANALYSIS.nc.")] = None,
    limit: common.Limit = None,
    settings: common.Settings = None,
    device: common.Device = None,
    stack: common.Stack = None,
    max_length: common.Longest = None,
    overlong: common.Overlong = "truncate",
    parser: common.Parser = None,
    seed: common.Seed = 0,
    overwrite: common.Overwrite = False,
) -> None:
    """One analysis, with its parameters, into one file.

    [dim]Examples:[/dim]

      headwise run surface --set weighting=tokens

      headwise run offsets --model gpt2 --corpus stories.txt --reader split=lines --out gpt2-offsets.nc
    """
    from headwise.analyses.contract import choose_analyses
    from headwise.run import RunOptions, Source

    chosen = choose_analyses([analysis], common.parse_settings(settings, [analysis]))
    target = out_file or Path(f"{analysis}.nc")
    source = Source(
        model, common.corpus_of(corpus, reader, text_field), device, stack, None, max_length, overlong, parser
    )
    options = RunOptions(limit=limit, seed=seed, overwrite=overwrite)
    with common.running(target, target.with_name(f".{target.name}.run"), chosen, source, options) as (made, _):
        pass
    for line in chosen[0].headline(made[analysis]):
        common.out.print(line, markup=False, highlight=False)
    _show_summary(made, analysis, target)


def _show_summary(made: Atlas, analysis: str, target: Path) -> None:
    """The table of heads, or of the first measure alone where the whole would not be read."""
    rows = made.summary()
    first = rows[rows["variable"] == rows["variable"].iloc[0]] if len(rows) else rows
    shown = rows if len(rows) <= SCREEN else first
    table = Table("measure", "item", "mean over heads", "lowest", "", "highest", "", title=f"{analysis} ({target})")
    for row in shown.to_dict("records"):
        ends = [text for end in ("lowest", "highest") for text in (row[f"{end}_head"], f"{row[end]:.3f}")]
        table.add_row(row["variable"], row["item"], f"{row['mean']:.3f}", *ends)
    common.out.print(table if table.row_count <= SCREEN else f"{analysis}: {target}")
    others = (
        [name for name in dict.fromkeys(rows["variable"]) if name not in set(shown["variable"])] if len(rows) else []
    )
    if others:
        common.out.print(f"Also in the file, for every head: {', '.join(others)}", markup=False, highlight=False)


def register(app: typer.Typer) -> None:
    app.command()(atlas)
    app.command()(run)
