"""The errors a user can cause: one sentence each that says what, where and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_WORD = 400  # characters without a space, of a path say, that are repeated to the user
_LONG = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


class HeadwiseError(Exception):
    """Base of every error a user can cause; the command line prints its sentence and exits with
    code 2.

    As text it is one line that a screen can show, whatever was put into it: control characters are
    written out, and the middle of a very long word is left out."""

    def __str__(self) -> str:
        text = re.sub(r"[\n\r\t]+", " ", super().__str__())
        text = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
        return _LONG.sub(
            lambda found: f"{found[0][: LONGEST_WORD // 2]}…{found[0][-LONGEST_WORD // 4 :]}", text
        )


class InputError(HeadwiseError):
    """A corpus, a file or a row that cannot be read as what it is said to be."""


class ModelError(HeadwiseError):
    """A model that cannot be opened, is not served, or does not fit its tokenizer."""


class ParameterError(HeadwiseError):
    """A parameter outside what is allowed."""


class MissingAnnotationError(HeadwiseError):
    """Nothing of an analysis can be computed because the corpus lacks what it needs."""


class MissingExtraError(HeadwiseError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed: pip install 'headwise[{extra}]'."
        )


class OutputError(HeadwiseError):
    """Results that cannot be written, or a folder that holds something else."""


class AtlasError(HeadwiseError):
    """A file that is not an atlas this version can read."""


def unknown(what: str, given: object, known: Iterable[object]) -> str:
    """The sentence for a name that is not known, with the nearest known one and the whole list."""
    names = [str(name) for name in known]
    text = str(given)
    near = get_close_matches(text[:LONGEST_WORD], names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"There is no {what} '{text}'.{hint} Known: {', '.join(names) or 'none'}."
