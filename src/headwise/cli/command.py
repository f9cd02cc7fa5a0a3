"""How a function becomes a command.

A command is a function with `@command`. Its parameters are

- dataclasses of options (see `headwise.core.options`): each field becomes an option on the command
  line, and the function receives the dataclass, already checked;
- single options: `out_folder: Path = option(Path("atlas"), flag="out", help="...")`;
- typer's own `Annotated[..., typer.Option(...)]`, for what `option` does not cover.

An option that two dataclasses of a command declare (a seed, say) is one option whose value both
receive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from headwise.cli.options import WorkerOptions
from headwise.core.errors import ParameterError
from headwise.core.options import OptionInfo, default_of, option_info

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The groups of `headwise --help`, in its order. A command of no group stands under "Commands".
GROUPS = {
    "What each head does": ("atlas", "run", "draw", "find", "explore", "page", "plan", "list"),
    "How heads work together": ("circuit", "why", "knockout", "patch"),
    "What heads are good for": ("ablate", "prune", "probe", "finetune", "cache"),
    "Several models": ("compare", "track", "gallery"),
    "The papers": ("reproduce", "cite"),
}
WORKER_PARAMETER = "worker_options"
# What the names of the other spellings of an option end in, among what typer parsed.
BY_FLAG = "_by_flag"
BY_ALIAS = "_by_alias"


def command(
    name: str, *, workers: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to the commands of headwise.

    Parameters
    ----------
    name : str
        The name of the command.
    workers : bool, default False
        Whether workers can do its work: the command then has the options of `WorkerOptions` too.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        function_parameters = list(signature(function, eval_str=True).parameters.values())
        if workers:
            function_parameters.append(
                Parameter(WORKER_PARAMETER, Parameter.KEYWORD_ONLY, annotation=WorkerOptions)
            )
        groups: dict[str, type] = {}
        options: dict[str, CommandOption] = {}
        for parameter in function_parameters:
            if is_dataclass(parameter.annotation):
                group: Any = parameter.annotation
                groups[parameter.name] = group
                parameter_options = _options_of_group(group)
            else:
                parameter_options = [_single_option(parameter)]
            for command_option in parameter_options:
                options.setdefault(command_option.name, command_option)

        @functools.wraps(function)
        def run_command(**parsed: Any) -> None:
            values = {}
            for option_name, command_option in options.items():
                values[option_name] = command_option.value(parsed)
            arguments: dict[str, Any] = {}
            for parameter in function_parameters:
                if parameter.name in groups:
                    group = groups[parameter.name]
                    arguments[parameter.name] = _make_group(group, values)
                else:
                    arguments[parameter.name] = values[parameter.name]
            context: Any = nullcontext()
            if workers:
                context = arguments.pop(WORKER_PARAMETER).use()
            with context:
                function(**arguments)

        typer_parameters = []
        for command_option in options.values():
            typer_parameters += command_option.typer_parameters()
        run_command.__signature__ = signature(function).replace(  # type: ignore[attr-defined]
            parameters=typer_parameters
        )
        run_command.__annotations__ = {each.name: each.annotation for each in typer_parameters}
        help_text = _fold_paragraphs(function.__doc__ or "")
        app.command(name, help=help_text, rich_help_panel=_group_of(name))(run_command)
        return run_command

    return add


def _group_of(name: str) -> str | None:
    """Return the group of a command in `headwise --help`."""
    for group, names in GROUPS.items():
        if name in names:
            return group
    return None


def _fold_paragraphs(docstring: str) -> str:
    """Return a docstring with each paragraph on one line, so that the help wraps at the width of
    the terminal and not at that of the source too. Indented lines (examples) stay."""
    paragraphs = []
    for paragraph in cleandoc(docstring).split("\n\n"):
        indented = paragraph.startswith(" ")
        paragraphs.append(paragraph if indented else paragraph.replace("\n", " "))
    return "\n\n".join(paragraphs)


@dataclass(frozen=True, slots=True)
class CommandOption:
    """One option of a command, as it is declared and as typer sees it.

    `info` is None for an option whose annotation is already typer's own.
    """

    name: str
    annotation: Any
    default: Any
    info: OptionInfo | None

    def typer_parameters(self) -> list[Parameter]:
        """Return the parameters that typer makes options of: one, and one for other spellings."""
        info = self.info
        if info is None:
            return [self._parameter(self.name, self.annotation, self.default)]
        cli_type: Any = self._cli_type(info)
        limits: dict[str, Any] = {}
        if info.min is not None:
            limits["min"] = info.min
        if info.argument:
            declaration: Any = typer.Argument(metavar=info.metavar, help=info.help, **limits)
        else:
            declaration = typer.Option(
                *info.flags(self.name),
                metavar=info.metavar,
                help=info.help,
                hidden=info.hidden,
                **limits,
            )
        main_type: Any = Annotated[cli_type, declaration]
        parameters = [self._parameter(self.name, main_type, self._cli_default())]

        optional_type = cli_type
        if NoneType not in get_args(cli_type):
            optional_type = cli_type | None
        if info.argument and info.flag is not None:
            flag = typer.Option(*info.flags(self.name), help=info.help, **limits)
            flag_type: Any = Annotated[optional_type, flag]
            parameters.append(self._parameter(self.name + BY_FLAG, flag_type, None))
        if info.aliases:
            alias = typer.Option(*info.alias_flags(), hidden=True, **limits)
            alias_type: Any = Annotated[optional_type, alias]
            parameters.append(self._parameter(self.name + BY_ALIAS, alias_type, None))
        return parameters

    def value(self, parsed: dict[str, Any]) -> Any:
        """Return the option's value from what typer parsed, whichever spelling was used."""
        value = parsed[self.name]
        if self.info is None:
            return value
        for spelling in (BY_FLAG, BY_ALIAS):
            other_value = parsed.get(self.name + spelling)
            if other_value is None:
                continue
            if value not in (self._cli_default(), other_value):
                raise ParameterError(
                    f"Two values for {self.name}: '{value}' and '{other_value}'; give one of them."
                )
            value = other_value
        if value is None or value == []:
            return None if self.default is MISSING else self.default
        if self.info.parse is not None:
            return self.info.parse(value)
        if isinstance(value, list):
            return tuple(value)
        return value

    def _cli_default(self) -> Any:
        """Return the default that typer knows; other values are put in by `value`."""
        if self.default is MISSING:
            return Parameter.empty
        if isinstance(self.default, bool | int | float | str | Path):
            return self.default
        return None

    def _cli_type(self, info: OptionInfo) -> Any:
        """Return the type on the command line: lists for tuples, text for what is parsed."""
        if info.cli_type is not None:
            return info.cli_type
        required = self.default is MISSING
        for hint in (self.annotation, *get_args(self.annotation)):
            if get_origin(hint) in (tuple, list):
                item_type = get_args(hint)[0]
                repeated = list[item_type]  # type: ignore[valid-type]
                return repeated if required else repeated | None
        if info.parse is not None:
            return str if isinstance(self._cli_default(), str) or required else str | None
        return self.annotation

    @staticmethod
    def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
        return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _options_of_group(group: Any) -> Iterable[CommandOption]:
    """Return the options of a dataclass that the command line has."""
    annotations = get_type_hints(group, include_extras=True)
    for declared in fields(group):
        info = option_info(declared)
        annotation = annotations[declared.name]
        if info is None and get_origin(annotation) is not Annotated:
            continue
        if info is not None and not info.command_line:
            continue
        default = default_of(declared)
        if info is None and default is MISSING:
            default = Parameter.empty
        yield CommandOption(declared.name, annotation, default, info)


def _single_option(parameter: Parameter) -> CommandOption:
    """Return the option that is a parameter of its own."""
    if isinstance(parameter.default, Field):
        info = option_info(parameter.default)
        default = default_of(parameter.default)
        return CommandOption(parameter.name, parameter.annotation, default, info)
    return CommandOption(parameter.name, parameter.annotation, parameter.default, None)


def _make_group(group: Any, values: dict[str, Any]) -> Any:
    """Return the dataclass with the values of the command line; the rest has its defaults."""
    group_values = {}
    for declared in fields(group):
        info = option_info(declared)
        # An option that only Python has may share its name with an option of another group.
        only_python = info is not None and not info.command_line
        if declared.name in values and not only_python:
            group_values[declared.name] = values[declared.name]
    return group(**group_values)
