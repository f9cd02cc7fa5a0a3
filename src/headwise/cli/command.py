"""How a function becomes a command: parameters that are dataclasses of options stand for all of
these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import Any

import typer

from headwise.cli.options import Work

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
WORK = "where_work_is_done"


def command(
    name: str, *, workers: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to the commands of headwise.

    Parameters
    ----------
    name : str
        Of the command.
    workers : bool, default False
        Whether its work can be done by workers: it then has the options of `Work` too.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        own = list(signature(function, eval_str=True).parameters.values())
        if workers:
            own.append(Parameter(WORK, Parameter.KEYWORD_ONLY, annotation=Work))
        together: dict[str, Any] = {
            one.name: one.annotation for one in own if is_dataclass(one.annotation)
        }
        single: list[Parameter] = []
        for one in own:
            group = together.get(one.name)
            single += (
                [one] if group is None else signature(group, eval_str=True).parameters.values()
            )
        single = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in single]

        @functools.wraps(function)
        def called(**given: Any) -> None:
            for parameter, group in together.items():
                given[parameter] = group(
                    **{option.name: given.pop(option.name) for option in fields(group)}
                )
            with given.pop(WORK).done() if workers else nullcontext():
                function(**given)

        called.__signature__ = signature(function).replace(parameters=single)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in single}
        app.command(name)(called)
        return called

    return add
