"""The errors a user can cause: one sentence each that says what, where and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HeadwiseError(Exception):
    """Base of every error a user can cause; the command line prints its sentence and exits with code 2."""


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
    near = get_close_matches(str(given), names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"There is no {what} '{given}'.{hint} Known: {', '.join(names) or 'none'}."
