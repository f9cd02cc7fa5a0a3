"""The commands, thin: each parses what it is given, calls the library, and says what happened."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headwise.errors import HeadwiseError, ParameterError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(width=None if sys.stdout.isatty() else 160)  # a pipe has no width to fit: names must not be cut
err = Console(stderr=True)

ModelArgument = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="A hub name or a folder; nothing for the built-in demo model.")
]
ModelOption = Annotated[str | None, typer.Option("--model", help="A hub name or a folder; nothing for the built-in demo model.")]
CorpusOption = Annotated[
    str | None, typer.Option("--corpus", help="A file, `format:path` or `hf:dataset/config:split`; nothing for the demo corpus.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Use at most this many examples.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="A parameter, `name=value` or `analysis.name=value`; may be given again.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps …; nothing for the best there is.")]
StackOption = Annotated[str | None, typer.Option("--stack", help="Of an encoder-decoder: encoder (default) or decoder.")]
MaxLengthOption = Annotated[int | None, typer.Option("--max-length", min=2, help="Cut inputs to this many tokens (special ones included).")]
OverlongOption = Annotated[str, typer.Option("--overlong", help="What happens to longer inputs: truncate or skip.")]
ParserOption = Annotated[str | None, typer.Option("--parser", help="A spaCy pipeline (name or folder) that annotates plain text.")]


class Finished(NamedTuple):
    """A run that is done, with what it ran on."""

    atlas: Any
    model: Any
    corpus: Any


class Watch:
    """A progress bar with rate and time left, on a terminal only."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self.progress = Progress(*columns, console=err, transient=False, disable=not err.is_terminal)
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Watch:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what, total=total, rate="")
        task = self.progress.tasks[self.tasks[what]]
        rate = f"{task.speed:.0f}/s" if task.speed else ""
        self.progress.update(self.tasks[what], completed=done, total=total, rate=rate)


def parse_settings(given: list[str] | None, analyses: list[str]) -> dict[str, dict[str, Any]]:
    """`--set` values for each analysis. A value is read as JSON where it is JSON, else as a string."""
    import json

    settings: dict[str, dict[str, Any]] = {name: {} for name in analyses}
    for item in given or []:
        key, equals, text = item.partition("=")
        if not equals:
            raise ParameterError(f"--set takes name=value; it is '{item}'.")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        owner, dot, name = key.partition(".")
        if dot and owner not in analyses:
            raise ParameterError(f"--set {item}: {owner} is not among the analyses of this run ({', '.join(analyses)}).")
        for analysis in [owner] if dot else analyses:
            settings[analysis][name if dot else key] = tuple(value) if isinstance(value, list) else value
    return settings


class Source(NamedTuple):
    """What a user named to run on, as the options have it."""

    model: str | None
    corpus: str | None
    limit: int | None
    device: str | None
    stack: str | None
    max_length: int | None
    overlong: str
    parser: str | None

    def open(self) -> tuple[Any, Any]:
        """The model and the corpus."""
        from headwise.analyses.base import one_of
        from headwise.models import HeadModel
        from headwise.text import annotate, open_corpus
        from headwise.text.encode import OVERLONG

        one_of("overlong", self.overlong, OVERLONG)
        model = HeadModel.open(self.model, device=self.device, stack=self.stack)
        for note in model.notes:
            err.print(f"[dim]{note}[/dim]")
        model.encoder.max_length, model.encoder.overlong = min(self.max_length or model.max_length, model.max_length), self.overlong
        # The limit comes before the parser: what is not used need not be parsed.
        corpus = open_corpus(self.corpus, tokenizer=model.tokenizer, limit=self.limit)
        return model, annotate(corpus, self.parser) if self.parser else corpus


def _announce(plan: Any) -> None:
    found = plan.scan
    err.print(f"{found.examples:,} examples, {found.tokens:,} tokens; analyses: {', '.join(a.name for a in plan.analyses)}")
    if found.truncated or found.skipped or found.unaligned:
        err.print(
            f"[dim]{found.truncated:,} cut, {found.skipped:,} skipped as too long, {found.unaligned:,} with words that do not align[/dim]"
        )
    for note, count in plan.scan.notes.items():
        err.print(f"[dim]{note}: {count:,}[/dim]")
    for name, items in plan.dropped.items():
        for item, reason in items.items():
            err.print(f"[dim]left out: {name}{f' ({item})' if item else ''}: {reason}[/dim]")


@app.command()
def atlas(
    model: ModelArgument = None,
    corpus: CorpusOption = None,
    analyses: Annotated[str | None, typer.Option("--analyses", help="Names with commas between; nothing for all that apply.")] = None,
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
    from headwise.analyses.base import known_analyses, make_analysis
    from headwise.page.report import write_report
    from headwise.page.sample import choose_sample

    names = [n.strip() for n in analyses.split(",")] if analyses else [n for n, cls in known_analyses().items() if cls.automatic]
    chosen_settings = parse_settings(settings, names)
    chosen = [make_analysis(name, chosen_settings[name]) for name in names]
    target = out_folder / "atlas.nc"
    result = _run_to_file(
        target,
        out_folder / ".run",
        chosen,
        Source(model, corpus, limit, device, stack, max_length, overlong, parser),
        full,
        seed,
        overwrite,
    )
    with Watch() as watch:
        page = write_report(result.atlas, out_folder, choose_sample(result.model, result.corpus), watch)
    out.print(f"Atlas: {target}\nPage:  {page}")


@app.command()
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
    from headwise.analyses.base import make_analysis

    chosen = make_analysis(analysis, parse_settings(settings, [analysis])[analysis])
    target = out_file or Path(f"{analysis}.nc")
    result = _run_to_file(
        target,
        target.with_name(f".{target.name}.run"),
        [chosen],
        Source(model, corpus, limit, device, stack, max_length, overlong, parser),
        True,
        seed,
        overwrite,
    )
    table = Table("measure", "item", "mean over heads", "lowest", "", "highest", "", title=f"{analysis} ({target})")
    for row in result.atlas.summary().itertuples(index=False):
        table.add_row(
            row.variable, row.item, f"{row.mean:.3f}", row.lowest_head, f"{row.lowest:.3f}", row.highest_head, f"{row.highest:.3f}"
        )
    out.print(table if table.row_count <= 80 else f"{analysis}: {target}")


def _run_to_file(target: Path, folder: Path, analyses: list[Any], source: Source, full: bool, seed: int, overwrite: bool) -> Finished:
    from headwise.errors import OutputError
    from headwise.run import RunOptions, run_analyses
    from headwise.run.shards import RunFolder

    if target.exists() and not overwrite:
        raise OutputError(f"{target} exists; give --overwrite to replace it, or choose another place with --out.")
    _check_writable(target.parent)
    model, corpus = source.open()
    try:
        with Watch() as watch:
            result = run_analyses(
                model, corpus, analyses, folder, RunOptions(limit=source.limit, full=full, seed=seed, overwrite=overwrite), watch, _announce
            )
    except KeyboardInterrupt:
        err.print("\nStopped. Finished shards are kept: the same command goes on from there.")
        raise typer.Exit(130) from None
    result.save(target, overwrite=overwrite)
    RunFolder(folder).remove()
    return Finished(result, model, corpus)


def _check_writable(folder: Path) -> None:
    """Find out before any work that the results could not be written."""
    import tempfile

    from headwise.errors import OutputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"{folder} cannot be written to ({error.strerror or error}); choose another place with --out.") from error


@app.command()
def draw(
    heads: Annotated[list[str], typer.Argument(metavar="HEAD...", help="Heads like L7H9, or `all` for every map on one page.")],
    text: Annotated[str, typer.Option("--text", help="The sentence.")] = "The old teacher saw the cat that slept under the tree.",
    pair: Annotated[str | None, typer.Option("--pair", help="A second sentence.")] = None,
    model: ModelOption = None,
    out_file: Annotated[Path, typer.Option("--out", help="A .svg, .pdf or .png file.")] = Path("heads.svg"),
    device: DeviceOption = None,
    stack: StackOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Draw heads on a sentence: tokens left and right, a line as dark as its weight.

    [dim]Examples:[/dim]

      headwise draw L4H0 L6H1 --text "She gave the old book to her sister."

      headwise draw all --model gpt2 --text "Once upon a time" --out maps.pdf
    """
    from headwise.atlas import HEAD_NAME
    from headwise.errors import OutputError
    from headwise.models import HeadModel
    from headwise.page.sample import draw_all_maps, draw_heads, sample_of
    from headwise.plots import save_figure
    from headwise.plots.save import FORMATS
    from headwise.text import Example

    ending = out_file.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise ParameterError(f"--out must end in {', '.join('.' + f for f in FORMATS)}; it is '{out_file}'.")
    if out_file.exists() and not overwrite:
        raise OutputError(f"{out_file} exists; give --overwrite to replace it, or choose another name with --out.")
    chosen = []
    for name in heads if heads != ["all"] else []:
        found = HEAD_NAME.match(name)
        if not found:
            raise ParameterError(f"A head is named like 'L7H9' (layer 7, head 9, counted from 0); it is '{name}'.")
        chosen.append((int(found[1]), int(found[2])))
    sample = sample_of(HeadModel.open(model, device=device, stack=stack), Example(text=text, pair=pair))
    figure = draw_heads(sample, chosen) if chosen else draw_all_maps(sample)
    save_figure(figure, out_file.parent, out_file.stem, [ending])
    out.print(f"Drawn: {out_file}")


@app.command("list")
def list_analyses() -> None:
    """The analyses, the paper behind each, and what they need."""
    from headwise.analyses.base import known_analyses
    from headwise.papers import reference

    table = Table("analysis", "what it tells", "paper", "needs", "parameters")
    for name, cls in known_analyses().items():
        paper = reference(cls.paper.key)
        parameters = ", ".join(f"{key}={value}" for key, value in cls().parameters.items())
        table.add_row(name, cls.title, f"{paper.short} {cls.paper.section}", ", ".join(sorted(cls.requires)) or "any text", parameters)
    out.print(table)


@app.command()
def cite(
    analyses: Annotated[list[str] | None, typer.Argument(help="Analyses; nothing for all.")] = None,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="As BibTeX.")] = False,
) -> None:
    """How to cite the papers behind analyses, and headwise.

    [dim]Example:[/dim] headwise cite surface --bibtex
    """
    from headwise.analyses.base import known_analyses
    from headwise.errors import unknown
    from headwise.papers import reference

    registry = known_analyses()
    for name in analyses or []:
        if name not in registry:
            raise ParameterError(unknown("analysis", name, registry))
    keys = dict.fromkeys(registry[name].paper.key for name in (analyses or registry))
    for key in keys:
        paper = reference(key)
        out.print(paper.bibtex if bibtex else paper.citation, markup=False, soft_wrap=True)


def _guarded(command: Callable[[], None]) -> int:
    try:
        command()
    except HeadwiseError as error:
        err.print(f"[bold red]headwise:[/bold red] {error}", soft_wrap=True, highlight=False)
        return 2
    return 0


def main() -> None:
    """Run the command line: errors a user can cause are one sentence and exit code 2."""
    sys.exit(_guarded(app))


if __name__ == "__main__":
    main()
