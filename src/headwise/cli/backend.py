"""Where a command's work is done: the same options for every command whose work can be done by workers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from headwise.cli import common

OPTIONS: dict[str, tuple[Any, Any]] = {
    "backend": (
        Annotated[
            str,
            typer.Option(
                "--backend",
                help="Where the work is done: local (in this process) or ray (by workers on this machine or a "
                "cluster); the result is the same.",
            ),
        ],
        "local",
    ),
    "address": (
        Annotated[
            str | None,
            typer.Option(
                "--address", help="A cluster of Ray that is there (HOST:6379, auto); nothing starts one here."
            ),
        ],
        None,
    ),
    "workers": (
        Annotated[
            int | None,
            typer.Option("--workers", min=1, help="How many workers; nothing for one on each core, or each GPU."),
        ],
        None,
    ),
    "gpus_per_worker": (
        Annotated[
            float | None,
            typer.Option("--gpus-per-worker", min=0, help="GPUs of each worker; below 1, several share one."),
        ],
        None,
    ),
}


def on_workers(command: Callable[..., None]) -> Callable[..., None]:
    """The same command with the options above: its work is done where they say."""
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in OPTIONS.items()
    ]
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in signature.parameters.values()
    ]

    @functools.wraps(command)
    def placed(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in OPTIONS}
        if chosen["backend"] == "local" and not any(chosen[name] for name in ("address", "workers", "gpus_per_worker")):
            command(**given)
            return
        from headwise.run import Backend, workers_of

        backend = Backend(chosen.pop("backend"), **chosen)
        with workers_of(backend, lambda said: common.err.print(said, style="dim")):
            command(**given)

    placed.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    placed.__annotations__ = hints | {name: kind for name, (kind, _) in OPTIONS.items()}
    return placed
