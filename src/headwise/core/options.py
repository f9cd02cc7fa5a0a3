"""Options that are declared once: for Python, for the command line, for provenance and for docs.

A task has one frozen dataclass of options. Each field is made by `option`, which keeps the help
text, the limits and the name on the command line beside the default:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class CountOptions(CheckedOptions):
...     '''How to count.'''
...
...     limit: int | None = option(None, min=1, help="Use at most this many examples.")
...     unit: str = option("word", choices=("word", "token"), help="What is counted.")

From this declaration come

- the check of values (types, limits, choices), by the base class `CheckedOptions`;
- the keywords of a public function, with `takes_options`:

  >>> @takes_options(CountOptions)
  ... def count(text, *, options):
  ...     return len(text.split()[: options.limit])
  >>> count("one two three", limit=2)
  2
  >>> count("one two three", limits=2)
  Traceback (most recent call last):
  headwise.core.errors.ParameterError: There is no option of count 'limits'. Did you mean 'limit'? Known: limit, unit.

- the command line: a command function with a parameter annotated with the dataclass gets one
  option for each field (`headwise.cli.command`);
- the identity of a job and the provenance of its result: `recorded_options`. Every field is part of
  them, unless it is declared with `in_identity=False`; so a new option cannot be forgotten, and a
  command repeated with another value does not resume the checkpoints of the first;
- a table of options: `list_options` (name, flag, default, help).

A dataclass that a command uses lives in a module that imports neither torch nor transformers
(usually `options.py` of its package, see `headwise.core.lazy`), so that `headwise --help` is
quick. Such dataclasses have no slots: classes with slots cannot be combined by inheritance
(`class AtlasOptions(SourceOptions, RunOptions)`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from inspect import Parameter, signature
from typing import Any, TypeVar

from headwise.core.checks import at_least, check_types, one_of
from headwise.core.errors import ParameterError, unknown

_METADATA_KEY = "headwise_option"
Result = TypeVar("Result")
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """What is known of an option apart from its name, its type and its default; see `option`."""

    help: str
    flag: str | Sequence[str] | None = None
    aliases: tuple[str, ...] = ()
    hidden: bool = False
    min: float | None = None
    choices: tuple[Any, ...] | None = None
    metavar: str | None = None
    argument: bool = False
    command_line: bool = True
    parse: Callable[[Any], Any] | None = None
    cli_type: Any = None
    in_identity: bool = True

    def flags(self, name: str) -> list[str]:
        """Return the flags of the option called `name`, its usual one first."""
        if self.flag is None:
            return [spell_flag(name.replace("_", "-"))]
        if isinstance(self.flag, str):
            return [spell_flag(self.flag)]
        return [spell_flag(flag) for flag in self.flag]

    def alias_flags(self) -> list[str]:
        """Return the older flags of the option."""
        return [spell_flag(alias) for alias in self.aliases]


def spell_flag(name: str) -> str:
    """Return the flag of a name; two names with a slash switch a boolean on and off.

    >>> spell_flag("limit"), spell_flag("layers/no-layers")
    ('--limit', '--layers/--no-layers')
    """
    return "/".join(f"--{part}" for part in name.split("/"))


def option(
    default: Any = MISSING,
    *,
    help: str,
    default_factory: Any = MISSING,
    flag: str | Sequence[str] | None = None,
    aliases: Sequence[str] = (),
    hidden: bool = False,
    min: float | None = None,
    choices: Sequence[Any] | None = None,
    metavar: str | None = None,
    argument: bool = False,
    command_line: bool = True,
    parse: Callable[[Any], Any] | None = None,
    cli_type: Any = None,
    in_identity: bool = True,
) -> Any:
    """Declare one option: a field of a frozen dataclass, or a parameter of a command function.

    Parameters
    ----------
    default : object, optional
        Without one, the option is required.
    help : str
        One or two sentences for users of Python and of the command line.
    default_factory : callable, optional
        Instead of `default`, for values that cannot be shared.
    flag : str or sequence of str, optional
        The name on the command line, without dashes, where it is not that of the field; several
        are synonyms. A boolean option is switched on by its flag; `layers/no-layers` gives both
        directions.
    aliases : sequence of str, default ()
        Older names that still work and that help does not show.
    hidden : bool, default False
        Accept the option on the command line without showing it in the help.
    min : float, optional
        The lowest value allowed.
    choices : sequence, optional
        The values allowed (None is always allowed where it is the default).
    metavar : str, optional
        How the value is shown in the command line's help.
    argument : bool, default False
        A positional argument on the command line. With `flag` too, both forms are accepted.
    command_line : bool, default True
        False for an option that only Python has.
    parse : callable, optional
        Turns the text of the command line (a list of texts for a field that is a tuple or a list)
        into the value of the field.
    cli_type : type, optional
        The type on the command line, where the field's own type is wider.
    in_identity : bool, default True
        False for an option that `recorded_options` leaves out: it does not change the numbers (a
        choice of what is saved), or the job records what it stands for (the identity of the model
        and of the examples instead of their names).
    """
    info = OptionInfo(
        help=help,
        flag=flag,
        aliases=tuple(aliases),
        hidden=hidden,
        min=min,
        choices=None if choices is None else tuple(choices),
        metavar=metavar,
        argument=argument,
        command_line=command_line,
        parse=parse,
        cli_type=cli_type,
        in_identity=in_identity,
    )
    metadata = {_METADATA_KEY: info}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def option_info(declared: Field[Any]) -> OptionInfo | None:
    """Return what `option` noted of a field, None for a field that is no option."""
    return declared.metadata.get(_METADATA_KEY)


def default_of(declared: Field[Any]) -> Any:
    """Return the default of a field, `dataclasses.MISSING` where it is required."""
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return declared.default


class CheckedOptions:
    """Base class of dataclasses of options: a value that is not allowed raises ParameterError.

    Types are checked against the annotations, values against `min` and `choices`. None passes the
    last two: whether it is allowed is a matter of the type.
    """

    def __post_init__(self) -> None:
        check_types(self)
        for declared in fields(self):  # type: ignore[arg-type]  # its subclasses are dataclasses
            info = option_info(declared)
            value = getattr(self, declared.name)
            if info is None or value is None:
                continue
            if info.min is not None:
                at_least(declared.name, value, info.min)
            if info.choices is not None:
                one_of(declared.name, value, info.choices)


def part_of(options: Any, part: type[Part]) -> Part:
    """Return the options that a dataclass of options has from one of its bases.

    >>> @dataclass(frozen=True)
    ... class Small:
    ...     seed: int = 0
    >>> @dataclass(frozen=True)
    ... class Large(Small):
    ...     limit: int = 3
    >>> part_of(Large(seed=1), Small)
    Small(seed=1)
    """
    names = [declared.name for declared in fields(part)]  # type: ignore[arg-type]
    return part(**{name: getattr(options, name) for name in names})


def recorded_options(options: Any) -> dict[str, Any]:
    """Return the options that belong to the identity of a job and the provenance of its result.

    These are all fields of the dataclass except those declared with `in_identity=False`.

    >>> @dataclass(frozen=True)
    ... class CountOptions:
    ...     unit: str = option("word", help="What is counted.")
    ...     report: bool = option(True, in_identity=False, help="Print a report.")
    >>> recorded_options(CountOptions())
    {'unit': 'word'}
    """
    recorded = {}
    for declared in fields(options):
        info = option_info(declared)
        if info is not None and not info.in_identity:
            continue
        value = getattr(options, declared.name)
        if isinstance(value, Mapping):
            # JSON has no other mappings.
            value = dict(value)
        recorded[declared.name] = value
    return recorded


@dataclass(frozen=True, slots=True)
class OptionSummary:
    """One line of a table of options; `flag` is None for an option that only Python has."""

    name: str
    flag: str | None
    default: Any
    help: str


def list_options(options: type) -> list[OptionSummary]:
    """Return name, flag, default and help of every option of a dataclass.

    For tables of options in notebooks and documents; within headwise only tests call it."""
    summaries = []
    for declared in fields(options):
        info = option_info(declared)
        if info is None or info.hidden:
            continue
        flag = None
        if info.command_line:
            flag = info.flags(declared.name)[0]
        summaries.append(OptionSummary(declared.name, flag, default_of(declared), info.help))
    return summaries


def takes_options(
    options_class: type,
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Let a function with a parameter `options` take each option as a keyword too.

    The decorated function accepts `options=...` (an instance of the dataclass), the fields of the
    dataclass as keywords, or both (then the keywords replace fields). `help` shows all of them.

    Parameters
    ----------
    options_class : type
        The frozen dataclass.
    """
    option_names = [declared.name for declared in fields(options_class)]

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        function_signature = signature(function)
        own_parameters = [
            parameter
            for parameter in function_signature.parameters.values()
            if parameter.name != "options"
        ]
        own_names = {parameter.name for parameter in own_parameters}

        @functools.wraps(function)
        def call(*args: Any, options: Any = None, **keywords: Any) -> Result:
            values = {}
            for name in list(keywords):
                if name in own_names:
                    continue
                if name not in option_names:
                    message = unknown(f"option of {function.__name__}", name, option_names)
                    raise ParameterError(message)
                values[name] = keywords.pop(name)
            if options is None:
                options = options_class(**values)
            elif values:
                options = replace(options, **values)
            return function(*args, options=options, **keywords)

        parameters = [*own_parameters]
        for declared in fields(options_class):
            default = default_of(declared)
            parameters.append(
                Parameter(
                    declared.name,
                    Parameter.KEYWORD_ONLY,
                    default=Parameter.empty if default is MISSING else default,
                    annotation=declared.type,
                )
            )
        parameters.append(Parameter("options", Parameter.KEYWORD_ONLY, default=None))
        call.__signature__ = function_signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate
