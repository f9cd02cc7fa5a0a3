"""Options that the commands on tasks share, and what they do with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.common import CorpusOption as CorpusSpec
from headwise.cli.common import DeviceOption as Device
from headwise.cli.common import LimitOption as Limit
from headwise.cli.common import ModelArgument as Model
from headwise.cli.common import OverwriteOption as Overwrite
from headwise.cli.common import check_writable, err
from headwise.core.errors import OutputError, ParameterError

TaskName = Annotated[
    str | None,
    typer.Option("--task", help="MRPC, STS-B, SST-2, RTE, CoLA, QNLI, QQP, MNLI, or a name for your own files."),
]
Data = Annotated[Path | None, typer.Option("--data", help="The task's folder, or GLUE's folder with the task's in it.")]
Dev = Annotated[str | None, typer.Option("--dev", help="The file that is scored, instead of the folder's.")]
MaxLength = Annotated[
    int, typer.Option("--max-length", min=2, help="Cut inputs to this many tokens (special ones included).")
]
AtlasFile = Annotated[
    list[Path] | None,
    typer.Option("--atlas", help="Results that heads are picked from: an atlas.nc, or its folder; may be given again."),
]
Seed = Annotated[int, typer.Option("--seed", help="For everything random.")]


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Find out before any work that the result has no place."""
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists; give --overwrite to replace it, or choose another place with --out.")
    check_writable(path.parent)


@contextmanager
def stoppable(kept: str) -> Iterator[None]:
    """Ctrl-C ends a command with one line that says what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"\nStopped. {kept}")
        raise typer.Exit(130) from None


def load_atlas(paths: Sequence[Path] | None) -> dict[str, Any] | None:
    """The results of all files given; a group that two of them hold is refused, since a rule could mean either."""
    from headwise.atlas import Atlas

    found: dict[str, Any] = {}
    for path in paths or ():
        for group, dataset in Atlas.load(path).items():
            if group in found:
                raise ParameterError(
                    f"Two of the files given with --atlas hold '{group}', the second is {path}; give one of them."
                )
            found[group] = dataset
    return found or None


__all__ = [
    "AtlasFile",
    "CorpusSpec",
    "Data",
    "Dev",
    "Device",
    "Limit",
    "MaxLength",
    "Model",
    "Overwrite",
    "Seed",
    "TaskName",
    "load_atlas",
    "refuse_existing",
    "stoppable",
]
