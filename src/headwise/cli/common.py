"""What the commands share: options, the progress bar, how a model and a corpus are opened, how a run ends in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headwise.core.errors import OutputError, ParameterError

out = Console(width=None if sys.stdout.isatty() else 160)  # a pipe has no width to fit: names must not be cut
err = Console(stderr=True)

ModelArgument = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="A hub name or a folder; nothing for the built-in demo model.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="A hub name or a folder; nothing for the built-in demo model.")
]
CorpusOption = Annotated[
    str | None,
    typer.Option("--corpus", help="A file, `format:path` or `hf:dataset/config:split`; nothing for the demo corpus."),
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Use at most this many examples.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A parameter, `name=value` or `analysis.name=value`; may be given again."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps …; nothing for the best there is.")
]
StackOption = Annotated[
    str | None, typer.Option("--stack", help="Of an encoder-decoder: encoder (default) or decoder.")
]
MaxLengthOption = Annotated[
    int | None, typer.Option("--max-length", min=2, help="Cut inputs to this many tokens (special ones included).")
]
OverlongOption = Annotated[str, typer.Option("--overlong", help="What happens to longer inputs: truncate or skip.")]
ParserOption = Annotated[
    str | None, typer.Option("--parser", help="A spaCy pipeline (name or folder) that annotates plain text.")
]


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
            raise ParameterError(
                f"--set {item}: {owner} is not among the analyses of this run ({', '.join(analyses)})."
            )
        for analysis in [owner] if dot else analyses:
            settings[analysis][name if dot else key] = tuple(value) if isinstance(value, list) else value
    return settings


def _announce(plan: Any) -> None:
    found = plan.scan
    err.print(
        f"{found.examples:,} examples, {found.tokens:,} tokens; analyses: {', '.join(a.name for a in plan.analyses)}"
    )
    if found.truncated or found.skipped or found.unaligned:
        err.print(
            f"[dim]{found.truncated:,} cut, {found.skipped:,} skipped as too long, {found.unaligned:,} with words that do not align[/dim]"
        )
    for note, count in plan.scan.notes.items():
        err.print(f"[dim]{note}: {count:,}[/dim]")
    _name_left_out(plan.dropped)


def _name_left_out(
    dropped: Mapping[str, Mapping[str, str]], named: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> None:
    """Say what was left out and why, but for what has been named before."""
    for name, items in dropped.items():
        for item, reason in items.items():
            if item not in named.get(name, {}):
                err.print(f"[dim]left out: {name}{f' ({item})' if item else ''}: {reason}[/dim]")


@contextmanager
def running(target: Path, folder: Path, analyses: list[Any], source: Any, options: Any) -> Iterator[Finished]:
    """A run whose atlas is in its file; its folder is held until what is done with the atlas is done too, and then removed."""
    from headwise.run import Listener, Run

    if target.exists() and not options.overwrite:
        raise OutputError(f"{target} exists; give --overwrite to replace it, or choose another place with --out.")
    check_writable(target.parent)
    watch = Watch()
    listener = Listener(watch, _announce, lambda note: err.print(f"[dim]{note}[/dim]"))
    try:
        with Run(source, analyses, folder, options, listener) as run:
            with watch:
                result = run.atlas()
            _name_left_out(result.provenance["left_out"], run.plan.dropped)
            result.save(target, overwrite=options.overwrite)
            yield Finished(result, run.model, run.corpus)
            run.forget()
    except KeyboardInterrupt:
        err.print("\nStopped. Finished shards are kept: the same command goes on from there.")
        raise typer.Exit(130) from None


def check_writable(folder: Path) -> None:
    """Find out before any work that the results could not be written."""
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be written to ({error.strerror or error}); choose another place with --out."
        ) from error
