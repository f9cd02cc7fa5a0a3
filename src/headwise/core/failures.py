"""Unexpected failures, which no user caused: named, isolated from the rest, ready to be
reported."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self

from headwise.core.errors import HeadwiseError, InputError, OutputError

HOW_TO_REPORT = "please report it with its traceback"
# Errors of a disk that is full, over a quota, broken or read-only: never a failure of the code that
# happened to write.
_DISK_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EFBIG,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
}

# Errors of a path that no program could open: a name that is too long, a link that leads to itself,
# bytes that the file system does not take.
_PATH_ERRORS = {errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ}
_SYMLINK_LOOP = re.compile(r"Symlink loop from (?P<path>.+)", re.DOTALL)


def error_of_user(error: Exception) -> HeadwiseError | None:
    """Return the error that a user caused, of which an exception is the symptom; None if there is
    none.

    Examples
    --------
    >>> str(error_of_user(OSError(errno.ELOOP, "Too many levels of symbolic links", "loop")))
    "The path 'loop' cannot be used (Too many levels of symbolic links); check it."
    >>> error_of_user(ValueError("no rows")) is None
    True
    """
    if isinstance(error, HeadwiseError):
        return error
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return OutputError(
            f"{error.strerror or error}; free some space or choose another output path.",
            option="out",
        )
    if isinstance(error, OSError) and error.errno in _PATH_ERRORS:
        # Of a name that is too long, the start.
        path = f" '{error.filename:.80}'" if error.filename else ""
        return InputError(f"The path{path} cannot be used ({error.strerror}); check it.")
    # Path.resolve raises this before Python 3.13.
    loop = _SYMLINK_LOOP.fullmatch(str(error)) if isinstance(error, RuntimeError) else None
    if loop is not None:
        return InputError(f"The path {loop['path']} is a link that leads to itself; check it.")
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # Python decodes the bytes of a file name that are no text to surrogates.
        return InputError(
            f"The name {error.object!r} holds bytes that are no text; give the file another name."
        )
    return None


@dataclass(frozen=True, slots=True)
class Failure:
    """An unexpected failure.

    Attributes
    ----------
    what : str
        What failed: `gradient`, `figure surface-entropy`.
    error : str
        The exception in one line.
    trace : str
        Its traceback.
    """

    what: str
    error: str
    trace: str

    @classmethod
    def of(cls, what: str, error: Exception) -> Self:
        """Return the failure behind an exception; errors of the user, of the disk or of a path are
        raised instead.

        Examples
        --------
        >>> Failure.of("gradient", ValueError("no rows")).error
        'ValueError: no rows'
        """
        users_error = error_of_user(error)
        if users_error is error:
            raise error
        if users_error is not None:
            raise users_error from error
        line = " ".join(f"{type(error).__name__}: {error}".split())
        line = re.sub(r" at 0x[0-9a-f]+", "", line)  # addresses differ from run to run
        return cls(what, line[:500], "".join(traceback.format_exception(error)))

    @property
    def sentence(self) -> str:
        """The message for a user."""
        return f"{self.what} failed unexpectedly ({self.error.rstrip('.')}); {HOW_TO_REPORT}."

    def facts(self) -> dict[str, Any]:
        """Return it as JSON can hold it; `Failure(**facts)` restores it."""
        return asdict(self)


@contextmanager
def isolated(what: str, on_failure: Callable[[Failure], object]) -> Iterator[None]:
    """Turn an exception of the block into a failure of `what` alone, and pass it on; the work around
    the block continues.

    Any exception: analyses and figures may come from other packages. Errors of the user, of the
    disk or of a path are raised all the same (`Failure.of`).

    Examples
    --------
    >>> failures = []
    >>> with isolated("gradient", failures.append):
    ...     raise ValueError("no rows")
    >>> [failure.what for failure in failures]
    ['gradient']
    """
    try:
        yield
    except Exception as error:
        on_failure(Failure.of(what, error))


class UnexpectedError(HeadwiseError):
    """All that was asked for failed unexpectedly; exit code 3."""

    def __init__(self, *failures: Failure) -> None:
        super().__init__(" ".join(failure.sentence for failure in failures))
        self.failures = failures

    def __reduce__(self) -> tuple[Any, ...]:
        return UnexpectedError, self.failures  # it may come from a worker
