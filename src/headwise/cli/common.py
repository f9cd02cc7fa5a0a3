"""What the commands share: progress, errors, running analyses, reading atlases, figures."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from headwise.cli.screen import Watch as Watch
from headwise.cli.screen import err as err
from headwise.cli.screen import out as out
from headwise.cli.screen import shown_time as shown_time
from headwise.core.errors import HeadwiseError, ParameterError
from headwise.core.files import file_digest

if TYPE_CHECKING:
    import xarray as xr

    from headwise.analyses.contract import Analysis
    from headwise.atlas import Atlas
    from headwise.core.failures import Failure
    from headwise.core.store import CheckpointStore
    from headwise.run import GrowthOptions, Job, Plan, Run, RunOptions, Source


def sources_of(*inputs: object) -> list[Path]:
    """Return the files and folders that a command reads, as far as they are on this disk.

    Inputs are models, corpora (also with their format, `conllu:FILE`), paths, and lists of them.
    """
    from headwise.text import Spec
    from headwise.text.open import parse_spec

    sources: list[Path] = []
    for item in inputs:
        name = item.name if isinstance(item, Spec) else item
        if isinstance(name, list | tuple):
            sources += sources_of(*name)
        elif isinstance(name, str | Path) and not str(name).startswith("hf:"):
            # A name that is no path (too long, a null byte) is not on this disk.
            with suppress(OSError, ValueError, HeadwiseError):
                _, path_of_spec = parse_spec(name, {})[:2]
                for path in (Path(name), path_of_spec):
                    if path.exists():
                        sources.append(path)
    return sources


@contextmanager
def run_and_write_atlas(
    job: Job,
    analyses: Sequence[Analysis],
    source: Source,
    options: RunOptions,
    growth: GrowthOptions | None = None,
    on_round: Callable[[Atlas], None] | None = None,
) -> Iterator[tuple[Atlas, Run]]:
    """Yield the atlas of a run, written to the job's file, and the run itself.

    An atlas that is not finished when its minutes are over is left to `on_round`, which has got it
    too. Where an interrupted command has already written the atlas, it is read from the file: both have
    the same values, to the bit (`atlas_digest`)."""
    from headwise.atlas import Atlas
    from headwise.core.failures import Failure
    from headwise.run import Run, RunCallbacks
    from headwise.run.runner import ONE_ROUND

    watch = Watch()
    callbacks = RunCallbacks(
        watch, _print_plan, lambda note: err.print(note, style="dim"), watch.doing, on_round
    )
    with Run(source, analyses, job, options, callbacks, growth or ONE_ROUND) as run:
        written = job.written()
        if written is not None:
            for facts in written["failures"]:
                run.failures[facts["what"]] = Failure(**facts)
            atlas = Atlas.load(job.output.target)
        else:
            with watch:
                atlas = run.atlas()
            _print_left_out(atlas.provenance["left_out"], run.plan.left_out)
            if "unfinished" not in atlas.provenance:
                failures = [failure.facts() for failure in run.failures.values()]
                job.write(atlas.to_bytes(), facts={"failures": failures})
        yield atlas, run


def exit_if_failed(failures: Iterable[Failure]) -> None:
    """Print what failed unexpectedly, after everything else is saved, and exit with code 3."""
    failures = list(failures)
    for failure in failures:
        print_failure(failure)
    if failures:
        raise typer.Exit(3)


_debug = [False]


@contextmanager
def debugging(show_tracebacks: bool) -> Iterator[None]:
    """Show tracebacks of errors within this context, or not."""
    _debug[0] = show_tracebacks
    try:
        yield
    finally:
        _debug[0] = False


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of headwise as sentences within this context, without the file and the line of
    code that Python adds; those of other packages as ever."""
    package = str(Path(__file__).parents[1])
    usual = warnings.formatwarning

    def formatted(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if filename.startswith(package):
            return f"headwise: {message}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = usual


def print_error(error: Exception) -> int:
    """Print one sentence on an error and return the exit code."""
    from headwise.core.failures import Failure, UnexpectedError

    if isinstance(error, UnexpectedError):
        for failure in error.failures:
            print_failure(failure)
        return 3
    if not isinstance(error, HeadwiseError):
        try:
            failure = Failure.of("This command", error)
        except HeadwiseError as disk_error:
            # A full or broken disk is not a failure of headwise.
            error = disk_error
        else:
            print_failure(failure)
            return 3
    if _debug[0]:
        err.print(Text("".join(traceback.format_exception(error))), soft_wrap=True)
    sentence = str(error) + option_hint(error)
    err.print(Text("headwise:", style="bold red"), Text(sentence), soft_wrap=True)
    return 2


def option_hint(error: Exception) -> str:
    """Return the command line's spelling of the parameter that remedies an error, as a sentence."""
    option = getattr(error, "option", None)
    if not option:
        return ""
    name, *value = option.split(" ")
    flag = " ".join([f"--{name.replace('_', '-')}", *value])
    return f" On the command line: {flag}."


def print_failure(failure: Failure) -> None:
    """Print one sentence on an unexpected failure, after its traceback in debug mode."""
    hint = ""
    if _debug[0]:
        err.print(Text(failure.trace), soft_wrap=True)
    else:
        hint = " `headwise --debug` shows it."
    err.print(Text("headwise:", style="bold red"), Text(failure.sentence + hint), soft_wrap=True)


def _print_plan(plan: Plan) -> None:
    """Print what a run reads, which analyses it runs and what it leaves out."""
    scan = plan.scan
    names = ", ".join(analysis.name for analysis in plan.analyses)
    err.print(f"{scan.examples:,} examples, {scan.tokens:,} tokens; analyses: {names}")
    if scan.documents:
        err.print(
            f"{scan.documents:,} documents: intervals and tests are over documents", style="dim"
        )
    if scan.truncated or scan.skipped or scan.unaligned:
        err.print(
            f"{scan.truncated:,} cut, {scan.skipped:,} skipped as too long, "
            f"{scan.unaligned:,} with words that do not align",
            style="dim",
        )
    for note, count in scan.notes.items():
        err.print(f"{note}: {count:,}", style="dim")
    _print_left_out(plan.left_out, {})


def _print_left_out(
    left_out: Mapping[str, Mapping[str, str]], already_printed: Mapping[str, Mapping[str, str]]
) -> None:
    """Print what was left out and why, except what has been printed before."""
    for analysis, items in left_out.items():
        for item, reason in items.items():
            if item in already_printed.get(analysis, {}):
                continue
            # The item of a whole analysis has an empty name.
            of_item = f" ({item})" if item else ""
            err.print(f"left out: {analysis}{of_item}: {reason}", style="dim")


def load_atlas(paths: Sequence[Path] | None) -> dict[str, xr.Dataset] | None:
    """Return the results of all files, by group.

    A group in two of them is rejected, since a rule that selects heads could mean either."""
    from headwise.atlas import Atlas

    datasets: dict[str, xr.Dataset] = {}
    for path in paths or ():
        for group, dataset in Atlas.load(path).items():
            if group in datasets:
                raise ParameterError(
                    f"Two files of --atlas hold '{group}', the second is {path}; give one of them."
                )
            datasets[group] = dataset
    return datasets or None


def write_and_draw(
    job: Job, result: Atlas, group: str, out_file: Path, figures: Path | None
) -> tuple[xr.Dataset, list[Failure]]:
    """Write the result of a job, draw the figures of its one group, and end the job.

    Return the group as it is in the file, so that what is drawn and printed is what is there; and
    the figures that failed."""
    from headwise.atlas import Atlas

    job.write(result.to_bytes())
    dataset = Atlas.load(out_file)[group]
    failures = draw_figures({group: dataset}, figures, job.started_store)
    job.finish()
    return dataset, failures


def draw_figures(
    datasets: Mapping[str, xr.Dataset], folder: Path | None, store: CheckpointStore
) -> list[Failure]:
    """Draw every figure of every group into a folder; without a folder, draw none.

    Return the failures; a figure whose files are intact is skipped."""
    from headwise.core.failures import Failure
    from headwise.core.files import sweep
    from headwise.plots import figures_for, save_figure

    failures: list[Failure] = []
    if folder is None:
        return failures
    sweep(folder)
    checkpoints = store.part("figures", {"folder": str(folder.resolve())})
    for group, dataset in datasets.items():
        for spec in figures_for(group):
            name = f"{group}-{spec.name}"
            checkpoint = checkpoints.load(name)
            if checkpoint is not None:
                digests = checkpoint.facts["files"]
                if digests == _digests(folder / file_name for file_name in digests):
                    continue
            paths: list[Path] = []
            try:
                for drawn in spec.draw(dataset):
                    paths += save_figure(drawn.figure, folder, f"{group}-{drawn.name}")
            except Exception as error:
                failures.append(Failure.of(f"figure {name}", error))
            else:
                checkpoints.save(name, {}, {"files": _digests(paths)})
    return failures


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of the files that exist, by name."""
    return {path.name: file_digest(path) for path in paths if path.is_file()}
