"""Errors a user can cause: each is one sentence that says what happened, where and what to do.

Messages speak Python ("pass overwrite=True"). Where one parameter is the remedy, `option` names it,
and the command line appends its own spelling ("--overwrite")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

LONGEST_WORD = 400  # characters without a space (a path, say) that a message repeats in full
LONGEST_LIST = 300  # characters of known names that a message lists
ALIKE = 0.6  # likeness from which on a name is suggested, as in difflib
NEARLY = 0.05
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
    """Return the message for an unknown name, with the nearest known names.

    All known names are listed only where they are few: a reader of a typo wants one name, not
    hundreds.

    Examples
    --------
    >>> unknown("command", "atlsa", ["atlas", "page"])
    "There is no command 'atlsa'. Did you mean 'atlas'? Known: atlas, page."
    >>> unknown("measure", "entropi", ["surface.entropy", *(f"measure_{i}" for i in range(99))])
    "There is no measure 'entropi'. Did you mean 'surface.entropy'?"
    >>> unknown("measure", "xyz", [f"measure_{i}" for i in range(99)])
    "There is no measure 'xyz'. There are 99, such as measure_0, measure_1, measure_2."
    """
    known_names = [str(item) for item in known]
    text = str(name)
    similar = similar_names(text, known_names)
    sentences = [f"There is no {what} '{text}'."]
    if similar:
        quoted = " or ".join(f"'{candidate}'" for candidate in similar)
        sentences.append(f"Did you mean {quoted}?")
    listed = ", ".join(known_names)
    if len(listed) <= LONGEST_LIST:
        sentences.append(f"Known: {listed or 'none'}.")
    elif not similar:
        examples = ", ".join(known_names[:3])
        sentences.append(f"There are {len(known_names):,}, such as {examples}.")
    return " ".join(sentences)


def similar_names(name: str, known: Iterable[str], count: int = 2) -> list[str]:
    """Return the known names most like a name, the most alike first; none if none is.

    Upper and lower case count as alike, and a name may stand for the last part of a dotted one.

    Examples
    --------
    >>> similar_names("Entropi", ["surface.entropy", "surface.mass", "roles.bias"])
    ['surface.entropy']
    """
    text = name[:LONGEST_WORD].lower()
    scores: list[tuple[float, str]] = []
    for candidate in known:
        lowered = candidate.lower()
        spellings = [lowered]
        if "." not in text and "." in lowered:
            spellings.append(lowered.rpartition(".")[2])
        likeness = max(_likeness(text, spelling) for spelling in spellings)
        if likeness >= ALIKE:
            scores.append((likeness, candidate))
    scores.sort(key=lambda scored: -scored[0])
    # A second one is worth naming only if it is about as near as the first.
    near = [candidate for likeness, candidate in scores if likeness >= scores[0][0] - NEARLY]
    return near[:count]


def _likeness(first: str, second: str) -> float:
    """Return how alike two texts are, from 0 to 1."""
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    # The quick bounds come first: hundreds of names are compared.
    if matcher.real_quick_ratio() < ALIKE or matcher.quick_ratio() < ALIKE:
        return 0.0
    return matcher.ratio()
