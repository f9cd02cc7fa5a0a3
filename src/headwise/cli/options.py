"""The options that commands share: single ones, and dataclasses of those that go together.

The options of a task itself are declared in the library (see `headwise.core.options`); here are
those that only a command line needs, such as a corpus written as a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.screen import err
from headwise.core.errors import ParameterError
from headwise.core.options import option
from headwise.models.options import ModelOptions as ModelOptions
from headwise.models.options import StackOptions as StackOptions

if TYPE_CHECKING:
    from headwise.analyses.contract import Analysis
    from headwise.text import Spec

MODEL_HELP = "A hub name or a folder; default: built-in model."
SETTINGS_HELP = "A parameter, `name=value` or `analysis.name=value`; repeatable."
VARIANT: dict[str, Any] = {
    "choices": ("paper", "released"),
    "aliases": ("as",),
    "metavar": "paper|released",
    "help": "Compute what the papers print, or what the code released with them does where it "
    "differs (dependency, roles, and the maps of `compare`).",
}
ModelOption = Annotated[str | None, typer.Option("--model", help=MODEL_HELP)]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Use at most this many examples, drawn at random by the seed."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help=SETTINGS_HELP),
]
As = Annotated[
    str,
    typer.Option("--variant", "--as", metavar=VARIANT["metavar"], help=VARIANT["help"]),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing results.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, mps ...; default: the best available.")
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
        help="Results that heads are picked from: an atlas.nc, or its folder; repeatable."
    ),
]
Figures = Annotated[Path | None, typer.Option(help="A folder for figures.")]
Correction = Annotated[str, typer.Option(help="holm, benjamini_hochberg or none.")]


@dataclass(frozen=True)
class ModelName:
    """The model of a command, as an argument or with `--model`; for commands without a list of
    arguments."""

    model: str | None = option(None, argument=True, flag="model", metavar="MODEL", help=MODEL_HELP)

    @property
    def name(self) -> str | None:
        """The name or folder of the model; None for the built-in one."""
        return self.model


@dataclass(frozen=True)
class TextOptions:
    """A corpus by name, with the options of its reader."""

    corpus: str | None = option(
        None,
        help="A file, `format:path` or `hf:dataset/config:split`; default: built-in corpus.",
    )
    reader: tuple[str, ...] = option(
        (),
        metavar="NAME=VALUE",
        help="An option of the corpus's reader, for instance split=lines (.txt), documents=true "
        "(.conllu), trees=gum:FILE (for documents with coreference), max_line=10000000; "
        "repeatable.",
    )
    text_field: str | None = option(
        None,
        help="The field or column of a .jsonl, .csv or .tsv that holds the text, or TEXT,PAIR.",
    )

    def spec(self) -> str | Spec | None:
        """Return the corpus as `open_corpus` takes it."""
        from headwise.text import Spec

        reader_options = {}
        for item in self.reader:
            name, value = _named_value(item, "--reader")
            reader_options[name] = value
        if self.text_field is not None:
            reader_options["text_field"] = self.text_field
        if not reader_options:
            return self.corpus
        if self.corpus is None:
            raise ParameterError(
                "--reader and --text-field are for a corpus of your own; name it with --corpus."
            )
        return Spec(self.corpus, reader_options)


@dataclass(frozen=True)
class TaskOptions:
    """The dev set of a task."""

    task: str | None = option(
        None,
        help="MRPC, STS-B, SST-2, RTE, CoLA, QNLI, QQP, MNLI, or a name for your own files.",
    )
    data: Path | None = option(
        None, help="The task's folder, or GLUE's folder with the task's in it."
    )
    dev: str | None = option(None, help="The file that is scored, instead of the folder's.")

    @property
    def named(self) -> bool:
        """Whether a task is named at all."""
        return bool(self.task or self.data or self.dev)


@dataclass(frozen=True)
class AnalysisOptions:
    """Which analyses run, and with which parameters."""

    analyses: str | None = option(None, help="Names separated by commas; default: all that apply.")
    settings: tuple[str, ...] = option((), flag="set", help=SETTINGS_HELP)
    variant: str = option("paper", **VARIANT)

    def chosen(self) -> list[Analysis]:
        """Return the analyses with their parameters."""
        from headwise.analyses.contract import choose_analyses, known_analyses

        names = names_in(self.analyses)
        if not names:
            names = [name for name, cls in known_analyses().items() if cls.automatic]
        check_variant(self.variant, names)
        settings = parse_settings(self.settings, names)
        return choose_analyses(names, settings, variant=self.variant)


@dataclass(frozen=True)
class WorkerOptions:
    """Where the work of a command is done."""

    backend: str = option(
        "local",
        help="Where the work is done: local (in this process) or ray (by workers on this machine "
        "or a cluster); the result is the same.",
    )
    address: str | None = option(
        None, help="An existing Ray cluster (HOST:6379, auto); default: start one here."
    )
    workers: int | None = option(
        None, min=1, help="How many workers; default: one for each core, or each GPU."
    )
    gpus_per_worker: float | None = option(
        None, min=0, help="GPUs of each worker; below 1, several workers share one."
    )

    @contextmanager
    def use(self) -> Iterator[None]:
        """Do the work of this context there."""
        if self == WorkerOptions():
            # Work in this process: nothing of the cluster code needs to be imported.
            yield
            return
        from headwise.run import Backend, workers_of

        backend = Backend(self.backend, self.address, self.workers, self.gpus_per_worker)
        with workers_of(backend, lambda message: err.print(message, style="dim")):
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


def check_variant(variant: str, analyses: Sequence[str]) -> None:
    """Reject `--variant released` where nothing is computed otherwise."""
    from headwise.analyses.contract import has_variant, known_analyses

    if variant == "released" and not any(map(has_variant, analyses)):
        known = ", ".join(name for name in known_analyses() if has_variant(name))
        raise ParameterError(
            f"--variant released changes {known}, and none of them is among the analyses of this run."
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
