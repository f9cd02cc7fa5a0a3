"""What the commands share: options, the progress bar, one way to refuse, to run, to stop and to save."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from headwise.cli.screen import Watch as Watch
from headwise.cli.screen import err as err
from headwise.cli.screen import out as out
from headwise.cli.screen import shown_time as shown_time
from headwise.core.errors import HeadwiseError, OutputError, ParameterError
from headwise.core.folders import check_writable, refuse_sources

if TYPE_CHECKING:
    import xarray as xr

    from headwise.analyses.contract import Analysis
    from headwise.atlas import Atlas
    from headwise.core.failures import Failure
    from headwise.core.place import Place
    from headwise.core.store import Store
    from headwise.run import Plan, Run, RunOptions, Source
    from headwise.text import Spec

_MODEL = "A hub name or a folder; nothing for the built-in demo model."
# Commands are registered through `model_either_way`, so that each takes its model both ways where it can.
Model = Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL)]
ModelOption = Annotated[str | None, typer.Option("--model", help=_MODEL)]
CorpusSpec = Annotated[
    str | None,
    typer.Option(
        "--corpus", help="A file, `format:path` or `hf:dataset/config:split`; nothing for the built-in corpus."
    ),
]
Reader = Annotated[
    list[str] | None,
    typer.Option(
        "--reader",
        metavar="NAME=VALUE",
        help="An option of the corpus's reader, for instance split=lines (.txt), documents=true (.conllu), "
        "trees=gum:FILE (for documents with coreference), max_line=10000000; may be given again.",
    ),
]
TextField = Annotated[
    str | None,
    typer.Option(
        "--text-field", help="The field or column of a .jsonl, .csv or .tsv that holds the text, or TEXT,PAIR."
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Use at most this many examples, drawn at random by the seed.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A parameter, `name=value` or `analysis.name=value`; may be given again."),
]
As = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="paper|released",
        help="Compute what the papers print, or what the code released with them does where it differs (dependency, "
        "roles, and the maps of `compare`).",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps …; nothing for the best there is.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Precision of the weights: float32, bfloat16, float16; auto (default): the checkpoint's own on a GPU, at "
        "least float32 on a CPU.",
    ),
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        help="Of a model too large for one device: auto, balanced, sequential, or devices by module as JSON or a .json "
        "file; what does not fit lies in memory or on the disk. Needs the extra `big`.",
    ),
]
Stack = Annotated[
    str | None,
    typer.Option(
        "--stack",
        help="Of an encoder-decoder: encoder (default), decoder or cross; the last two need pairs of source and "
        "target (fields `source` and `target`, or --text-field SOURCE,TARGET).",
    ),
]
_CUT = "Cut inputs to this many tokens (special ones included)."
Longest = Annotated[int | None, typer.Option("--max-length", min=2, help=_CUT)]
MaxLength = Annotated[int, typer.Option("--max-length", min=2, help=_CUT)]
Overlong = Annotated[str, typer.Option("--overlong", help="What happens to longer inputs: truncate or skip.")]
Parser = Annotated[
    str | None, typer.Option("--parser", help="A spaCy pipeline (name or folder) that annotates plain text.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="For everything random.")]
TaskName = Annotated[
    str | None,
    typer.Option("--task", help="MRPC, STS-B, SST-2, RTE, CoLA, QNLI, QQP, MNLI, or a name for your own files."),
]
Data = Annotated[Path | None, typer.Option("--data", help="The task's folder, or GLUE's folder with the task's in it.")]
Dev = Annotated[str | None, typer.Option("--dev", help="The file that is scored, instead of the folder's.")]
AtlasFile = Annotated[
    list[Path] | None,
    typer.Option("--atlas", help="Results that heads are picked from: an atlas.nc, or its folder; may be given again."),
]
Figures = Annotated[Path | None, typer.Option("--figures", help="A folder for figures.")]
Correction = Annotated[str, typer.Option("--correction", help="holm, benjamini_hochberg or none.")]


def names_in(text: str | None) -> list[str]:
    """The names in a list with commas between."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse_settings(given: Sequence[str] | None, analyses: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`--set` values for each analysis. A value is read as JSON where it is JSON, else as a string."""
    settings: dict[str, dict[str, Any]] = {name: {} for name in analyses}
    for item in given or []:
        key, value = _named_value(item, "--set")
        owner, dot, name = key.partition(".")
        if dot and owner not in analyses:
            raise ParameterError(
                f"--set {item}: {owner} is not among the analyses of this run ({', '.join(analyses)})."
            )
        for analysis in [owner] if dot else analyses:
            settings[analysis][name if dot else key] = tuple(value) if isinstance(value, list) else value
    return settings


def check_reading(reading: str, analyses: Sequence[str]) -> None:
    """Refuse `--as released` where nothing is computed otherwise."""
    from headwise.analyses.contract import has_reading, known_analyses

    if reading == "released" and not any(map(has_reading, analyses)):
        known = ", ".join(name for name in known_analyses() if has_reading(name))
        raise ParameterError(f"--as released changes {known}, and none of them is among the analyses of this run.")


def corpus_of(name: str | None, reader: Sequence[str] | None, text_field: str | None) -> str | Spec | None:
    """The corpus as `open_corpus` takes it, with the options of its reader."""
    from headwise.text import Spec

    options = dict(_named_value(item, "--reader") for item in reader or [])
    if text_field is not None:
        options["text_field"] = text_field
    if options and name is None:
        raise ParameterError("--reader and --text-field are for a corpus of your own; name it with --corpus.")
    return Spec(name, options) if options and name is not None else name


def _named_value(item: str, option: str) -> tuple[str, Any]:
    """`name=value`; the value is read as JSON where it is JSON, else as a text."""
    import json

    key, equals, text = item.partition("=")
    if not equals:
        raise ParameterError(f"{option} takes name=value; it is '{item}'.")
    try:
        return key, json.loads(text)
    except (ValueError, RecursionError):
        return key, text


def refuse_existing(path: Path, overwrite: bool, sources: Iterable[Path] = ()) -> None:
    """Find out before any work that a file has no place."""
    refuse_sources(path, sources, working=False)
    if path.is_dir():
        raise OutputError(f"{path} is a folder, not a file; choose another place with --out.")
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists; give --overwrite to replace it, or choose another place with --out.")
    check_writable(path.parent)


def sources_of(*given: object) -> list[Path]:
    """What a command reads, as far as it lies on this disk: models, corpora with their format before them, folders."""
    from headwise.text import Spec
    from headwise.text.open import parse_spec

    found: list[Path] = []
    for item in given:
        name = item.name if isinstance(item, Spec) else item
        if isinstance(name, list | tuple):
            found += sources_of(*name)
        elif isinstance(name, str | Path) and not str(name).startswith("hf:"):
            with suppress(OSError, ValueError, HeadwiseError):
                found += [path for path in (Path(name), parse_spec(name, {})[1]) if path.exists()]
    return found


def work_of(target: Path) -> Path:
    """Where the finished pieces of a file's work lie until it is written."""
    return target.with_name(f".{target.name}.run")


@contextmanager
def running(
    place: Place, analyses: Sequence[Analysis], source: Source, options: RunOptions
) -> Iterator[tuple[Atlas, Run]]:
    """A run whose atlas is in its file, from where it is read again: what is drawn is what is in the file."""
    from headwise.atlas import Atlas
    from headwise.core.failures import Failure
    from headwise.run import Listener, Run

    watch = Watch()
    listener = Listener(watch, _announce, lambda note: err.print(note, style="dim"), watch.doing)
    with Run(source, analyses, place.work, options, listener) as run:
        saved = run.store.load("atlas")
        if saved is not None and place.holds(saved.facts["digest"]):
            run.failures.update({f["what"]: Failure(**f) for f in saved.facts["failures"]})
        else:
            with watch:
                result = run.atlas()
            _name_left_out(result.provenance["left_out"], run.plan.dropped)
            digest = place.write(result.to_bytes())
            facts = [failure.facts() for failure in run.failures.values()]
            run.store.save("atlas", {}, {"digest": digest, "failures": facts})
        yield Atlas.load(place.target), run


def end(failures: Iterable[Failure]) -> None:
    """Tell what failed unexpectedly, after everything else is safe: exit code 3."""
    failures = list(failures)
    for failure in failures:
        tell_failure(failure)
    if failures:
        raise typer.Exit(3)


_debug = [False]


@contextmanager
def debugging(asked: bool) -> Iterator[None]:
    """Whether tracebacks are shown."""
    _debug[0] = asked
    try:
        yield
    finally:
        _debug[0] = False


def tell_error(error: Exception, debug: bool) -> int:
    """One sentence for whatever went wrong; gives the exit code."""
    from headwise.core.failures import Failure, UnexpectedError

    if isinstance(error, UnexpectedError):
        for failure in error.failures:
            tell_failure(failure, debug)
        return 3
    if not isinstance(error, HeadwiseError):
        try:
            failure = Failure.of("This command", error)
        except HeadwiseError as told:  # the disk's doing, not ours
            error = told
        else:
            tell_failure(failure, debug)
            return 3
    if debug:
        err.print(Text("".join(traceback.format_exception(error))), soft_wrap=True)
    err.print(Text("headwise:", style="bold red"), Text(str(error)), soft_wrap=True)
    return 2


def tell_failure(failure: Failure, debug: bool | None = None) -> None:
    """One sentence for what failed unexpectedly, after its traceback where that was asked for."""
    if _debug[0] if debug is None else debug:
        err.print(Text(failure.trace), soft_wrap=True)
    err.print(Text("headwise:", style="bold red"), Text(failure.sentence), soft_wrap=True)


def _announce(plan: Plan) -> None:
    found = plan.scan
    err.print(
        f"{found.examples:,} examples, {found.tokens:,} tokens; analyses: {', '.join(a.name for a in plan.analyses)}"
    )
    if found.documents:
        err.print(f"{found.documents:,} documents: intervals and tests are over documents", style="dim")
    if found.truncated or found.skipped or found.unaligned:
        err.print(
            f"{found.truncated:,} cut, {found.skipped:,} skipped as too long, "
            f"{found.unaligned:,} with words that do not align",
            style="dim",
        )
    for note, count in found.notes.items():
        err.print(f"{note}: {count:,}", style="dim")
    _name_left_out(plan.dropped, {})


def _name_left_out(dropped: Mapping[str, Mapping[str, str]], named: Mapping[str, Mapping[str, str]]) -> None:
    """Say what was left out and why, but for what has been named before."""
    for name, items in dropped.items():
        for item, reason in items.items():
            if item not in named.get(name, {}):
                err.print(f"left out: {name}{f' ({item})' if item else ''}: {reason}", style="dim")


def load_atlas(paths: Sequence[Path] | None) -> dict[str, xr.Dataset] | None:
    """The results of all files given; a group that two of them hold is refused, since a rule could mean either."""
    from headwise.atlas import Atlas

    found: dict[str, xr.Dataset] = {}
    for path in paths or ():
        for group, dataset in Atlas.load(path).items():
            if group in found:
                raise ParameterError(
                    f"Two of the files given with --atlas hold '{group}', the second is {path}; give one of them."
                )
            found[group] = dataset
    return found or None


def draw_figures(datasets: Mapping[str, xr.Dataset], folder: Path | None, store: Store) -> list[Failure]:
    """Write every figure of every group, where a folder for them was named; gives those that failed. The store knows
    which are drawn: those that are there, and whole, are not drawn again."""
    from headwise.core.failures import Failure
    from headwise.core.files import sweep
    from headwise.plots import figures_for, save_figure

    failures: list[Failure] = []
    if folder is None:
        return failures
    sweep(folder)
    kept = store.part("figures", {"folder": str(folder.resolve())})
    for group, dataset in datasets.items():
        for spec in figures_for(group):
            name = f"{group}-{spec.name}"
            piece = kept.load(name)
            if piece is not None and piece.facts["files"] == _digests(folder / own for own in piece.facts["files"]):
                continue
            try:
                paths = [
                    path
                    for drawn in spec.draw(dataset)
                    for path in save_figure(drawn.figure, folder, f"{group}-{drawn.name}")
                ]
            except Exception as error:
                failures.append(Failure.of(f"figure {name}", error))
            else:
                kept.save(name, {}, {"files": _digests(paths)})
    return failures


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """The digests of files by name; of one that is not there nothing."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}
