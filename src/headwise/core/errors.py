"""Errors a user can cause: each is one sentence that says what happened, where and what to do.

Messages speak Python ("pass overwrite=True"). Where one parameter is the remedy, `option` names it,
and the command line appends its own spelling ("--overwrite")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_WORD = 400  # characters without a space (a path, say) that a message repeats in full
_LONG = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


class HeadwiseError(Exception):
    """Base class of every error a user can cause; the command line prints it and exits with code 2.

    As text it is one line that a terminal can show, whatever the message contains: control
    characters are escaped, and the middle of a very long word is left out.

    Parameters
    ----------
    message : str
        What happened, where, and what to do.
    option : str, optional
        The Python parameter that remedies it, `overwrite`, with a value where one is meant,
        `backend ray`. The command line derives its hint from it.

    Examples
    --------
    >>> OutputError("atlas.nc exists; pass overwrite=True to replace it.", option="overwrite").option
    'overwrite'
    """

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option

    def __str__(self) -> str:
        text = re.sub(r"[\n\r\t]+", " ", super().__str__())
        text = _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)
        return _LONG.sub(lambda match: _shorten(match[0]), text)


def _shorten(word: str) -> str:
    beginning = word[: LONGEST_WORD // 2]
    end = word[-LONGEST_WORD // 4 :]
    return f"{beginning}…{end}"


class InputError(HeadwiseError):
    """A corpus, a file or a row cannot be read."""


class ModelError(HeadwiseError):
    """A model cannot be opened, is not supported, or does not fit its tokenizer."""


class ParameterError(HeadwiseError):
    """A parameter has a value that is not allowed."""


class MissingAnnotationError(HeadwiseError):
    """The corpus lacks the annotation that an analysis needs."""


class MissingExtraError(HeadwiseError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed: "
            f"pip install 'headwise[{extra}]'."
        )


class OutputError(HeadwiseError):
    """Results cannot be written, or the output folder holds something else."""


class AtlasError(HeadwiseError):
    """A file is not an atlas that this version can read."""


def unknown(what: str, name: object, known: Iterable[object]) -> str:
    """Return the message for an unknown name, with the nearest known name and the whole list.

    Examples
    --------
    >>> unknown("command", "atlsa", ["atlas", "page"])
    "There is no command 'atlsa'. Did you mean 'atlas'? Known: atlas, page."
    """
    known_names = [str(item) for item in known]
    text = str(name)
    nearest = get_close_matches(text[:LONGEST_WORD], known_names, n=1)
    hint = ""
    if nearest:
        hint = f" Did you mean '{nearest[0]}'?"
    return f"There is no {what} '{text}'.{hint} Known: {', '.join(known_names) or 'none'}."
