"""Unexpected failures, which no user caused: named, isolated from the rest, ready to be
reported."""

from __future__ import annotations

import errno
import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any, Self

from headwise.core.errors import HeadwiseError, OutputError

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
        """Return the failure behind an exception; errors of the user or of the disk are raised
        instead.

        Examples
        --------
        >>> Failure.of("gradient", ValueError("no rows")).error
        'ValueError: no rows'
        """
        if isinstance(error, HeadwiseError):
            raise error
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise OutputError(
                f"{error.strerror or error}; free some space or choose another output path.",
                option="out",
            ) from error
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


class UnexpectedError(HeadwiseError):
    """All that was asked for failed unexpectedly; exit code 3."""

    def __init__(self, *failures: Failure) -> None:
        super().__init__(" ".join(failure.sentence for failure in failures))
        self.failures = failures

    def __reduce__(self) -> tuple[Any, ...]:
        return UnexpectedError, self.failures  # it may come from a worker
