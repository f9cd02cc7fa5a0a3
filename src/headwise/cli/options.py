"""The options that commands share: single ones, and dataclasses of those that go together (see
`command`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.screen import err
from headwise.core.errors import ParameterError

if TYPE_CHECKING:
    from headwise.analyses.contract import Analysis
    from headwise.models import HeadModel
    from headwise.run import Source
    from headwise.text import Spec

_MODEL = "A hub name or a folder; nothing for the built-in demo model."
ModelOption = Annotated[str | None, typer.Option("--model", help=_MODEL)]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Use at most this many examples, drawn at random by the seed."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A parameter, `name=value` or `analysis.name=value`; may be given again."
    ),
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
    str | None, typer.Option(help="cpu, cuda, cuda:1, mps …; nothing for the best there is.")
]
_CUT = "Cut inputs to this many tokens (special ones included)."
MaxLength = Annotated[int, typer.Option(min=2, help=_CUT)]
Parser = Annotated[
    str | None, typer.Option(help="A spaCy pipeline (name or folder) that annotates plain text.")
]
Seed = Annotated[int, typer.Option(min=0, help="For everything random.")]
Data = Annotated[
    Path | None, typer.Option(help="The task's folder, or GLUE's folder with the task's in it.")
]
Dev = Annotated[str | None, typer.Option(help="The file that is scored, instead of the folder's.")]
AtlasFile = Annotated[
    list[Path] | None,
    typer.Option(
        help="Results that heads are picked from: an atlas.nc, or its folder; may be given again."
    ),
]
Figures = Annotated[Path | None, typer.Option(help="A folder for figures.")]
Correction = Annotated[str, typer.Option(help="holm, benjamini_hochberg or none.")]


@dataclass(frozen=True, slots=True)
class ModelName:
    """The name of a model, as an argument or with `--model`: for every command that has no list of
    arguments."""

    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL)] = None
    model_too: ModelOption = None

    def __post_init__(self) -> None:
        if None not in (self.model, self.model_too) and self.model != self.model_too:
            raise ParameterError(
                f"Two models are named, the argument '{self.model}' and --model '{self.model_too}'; give one of them."
            )

    @property
    def name(self) -> str | None:
        return self.model_too if self.model is None else self.model


@dataclass(frozen=True, slots=True)
class TextOptions:
    """A corpus by name, with the options of its reader."""

    corpus: Annotated[
        str | None,
        typer.Option(
            help="A file, `format:path` or `hf:dataset/config:split`; nothing for the built-in corpus."
        ),
    ] = None
    reader: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of the corpus's reader, for instance split=lines (.txt), documents=true (.conllu), "
            "trees=gum:FILE (for documents with coreference), max_line=10000000; may be given again.",
        ),
    ] = None
    text_field: Annotated[
        str | None,
        typer.Option(
            help="The field or column of a .jsonl, .csv or .tsv that holds the text, or TEXT,PAIR."
        ),
    ] = None

    def spec(self) -> str | Spec | None:
        """The corpus as `open_corpus` takes it."""
        from headwise.text import Spec

        options = dict(_named_value(item, "--reader") for item in self.reader or [])
        if self.text_field is not None:
            options["text_field"] = self.text_field
        if options and self.corpus is None:
            raise ParameterError(
                "--reader and --text-field are for a corpus of your own; name it with --corpus."
            )
        return Spec(self.corpus, options) if options and self.corpus is not None else self.corpus


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a model lies, and how precise it is."""

    device: Device = None
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Precision of the weights: float32, bfloat16, float16; auto (default): the checkpoint's own on a GPU, "
            "at least float32 on a CPU."
        ),
    ] = None
    device_map: Annotated[
        str | None,
        typer.Option(
            help="Of a model too large for one device: auto, balanced, sequential, or devices by module as JSON or a "
            ".json file; what does not fit lies in memory or on the disk. Needs the extra `big`."
        ),
    ] = None

    def open(self, model: str | Path | None) -> HeadModel:
        """A model, there."""
        from headwise.models import HeadModel

        return HeadModel.open(model, **asdict(self))


@dataclass(frozen=True, slots=True)
class PlacedStack(Placed):
    """Also which stack of it."""

    stack: Annotated[
        str | None,
        typer.Option(
            help="Of an encoder-decoder: encoder (default), decoder or cross; the last two need pairs of source and "
            "target (fields `source` and `target`, or --text-field SOURCE,TARGET)."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SourceOptions(PlacedStack):
    """Also how it reads a corpus: all that a run needs beside the names of both."""

    max_length: Annotated[int | None, typer.Option(min=2, help=_CUT)] = None
    overlong: Annotated[
        str, typer.Option(help="What happens to longer inputs: truncate or skip.")
    ] = "truncate"
    parser: Parser = None

    def source(self, model: ModelName, text: TextOptions) -> Source:
        """The model and the corpus of a run."""
        from headwise.run import Source

        return Source(model.name, text.spec(), **asdict(self))


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The dev set of a task."""

    task: Annotated[
        str | None,
        typer.Option(
            help="MRPC, STS-B, SST-2, RTE, CoLA, QNLI, QQP, MNLI, or a name for your own files."
        ),
    ] = None
    data: Data = None
    dev: Dev = None

    @property
    def named(self) -> bool:
        """Whether there is one."""
        return bool(self.task or self.data or self.dev)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which analyses, and on how much."""

    analyses: Annotated[
        str | None, typer.Option(help="Names with commas between; nothing for all that apply.")
    ] = None
    limit: Limit = None
    full: Annotated[
        bool, typer.Option("--full", help="Lift the budgets: every analysis sees every example.")
    ] = False
    settings: Settings = None

    def chosen(self, reading: str = "paper") -> list[Analysis]:
        """The analyses with their parameters."""
        from headwise.analyses.contract import choose_analyses, known_analyses

        names = names_in(self.analyses) or [
            name for name, cls in known_analyses().items() if cls.automatic
        ]
        check_reading(reading, names)
        return choose_analyses(names, parse_settings(self.settings, names), reading=reading)


@dataclass(frozen=True, slots=True)
class Work:
    """Where the work of a command is done."""

    backend: Annotated[
        str,
        typer.Option(
            help="Where the work is done: local (in this process) or ray (by workers on this machine or a cluster); "
            "the result is the same."
        ),
    ] = "local"
    address: Annotated[
        str | None,
        typer.Option(
            help="A cluster of Ray that is there (HOST:6379, auto); nothing starts one here."
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="How many workers; nothing for one on each core, or each GPU."),
    ] = None
    gpus_per_worker: Annotated[
        float | None, typer.Option(min=0, help="GPUs of each worker; below 1, several share one.")
    ] = None

    @contextmanager
    def done(self) -> Iterator[None]:
        """Within, work is done there."""
        if self == Work():  # nothing of it need be imported
            yield
            return
        from headwise.run import Backend, workers_of

        chosen = Backend(self.backend, self.address, self.workers, self.gpus_per_worker)
        with workers_of(chosen, lambda said: err.print(said, style="dim")):
            yield


def names_in(text: str | None) -> list[str]:
    """The names in a list with commas between."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse_settings(
    given: Sequence[str] | None, analyses: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """`--set` values for each analysis. A value is read as JSON where it is JSON, else as a
    string."""
    settings: dict[str, dict[str, Any]] = {name: {} for name in analyses}
    for item in given or []:
        key, value = _named_value(item, "--set")
        owner, dot, name = key.partition(".")
        if dot and owner not in analyses:
            raise ParameterError(
                f"--set {item}: {owner} is not among the analyses of this run ({', '.join(analyses)})."
            )
        for analysis in [owner] if dot else analyses:
            settings[analysis][name if dot else key] = (
                tuple(value) if isinstance(value, list) else value
            )
    return settings


def check_reading(reading: str, analyses: Sequence[str]) -> None:
    """Refuse `--as released` where nothing is computed otherwise."""
    from headwise.analyses.contract import has_reading, known_analyses

    if reading == "released" and not any(map(has_reading, analyses)):
        known = ", ".join(name for name in known_analyses() if has_reading(name))
        raise ParameterError(
            f"--as released changes {known}, and none of them is among the analyses of this run."
        )


def _named_value(item: str, option: str) -> tuple[str, Any]:
    """`name=value`; the value is read as JSON where it is JSON, else as a text."""
    key, equals, text = item.partition("=")
    if not equals:
        raise ParameterError(f"{option} takes name=value; it is '{item}'.")
    try:
        return key, json.loads(text)
    except (ValueError, RecursionError):
        return key, text
