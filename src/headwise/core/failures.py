"""What fails although no user caused it: named, kept apart from the rest, and told so that it can
be reported."""

from __future__ import annotations

import errno
import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any, Self

from headwise.core.errors import HeadwiseError, OutputError

HOW_TO_REPORT = "please report it with its traceback"
# What the disk says when it is full, over a quota, broken or read-only: never a failure of whoever
# happened to write.
_DISK = {
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
    """One unexpected failure: `what` failed (`gradient`, `figure surface-entropy`), with which
    `error`, and its `trace`."""

    what: str
    error: str
    trace: str

    @classmethod
    def of(cls, what: str, error: Exception) -> Self:
        """The failure behind an exception; one that is an answer to the user, or the disk's, is
        raised again instead.

        Examples
        --------
        >>> Failure.of("gradient", ValueError("no rows")).error
        'ValueError: no rows'
        """
        if isinstance(error, HeadwiseError):
            raise error
        if isinstance(error, OSError) and error.errno in _DISK:
            raise OutputError(
                f"{error.strerror or error}; free some space or choose another output path.",
                option="out",
            ) from error
        words = " ".join(f"{type(error).__name__}: {error}".split())
        # Where an object lies differs from run to run.
        return cls(
            what,
            re.sub(r" at 0x[0-9a-f]+", "", words)[:500],
            "".join(traceback.format_exception(error)),
        )

    @property
    def sentence(self) -> str:
        """What a user is told."""
        return f"{self.what} failed unexpectedly ({self.error.rstrip('.')}); {HOW_TO_REPORT}."

    def facts(self) -> dict[str, Any]:
        """As JSON can hold it; `Failure(**facts)` is the same again."""
        return asdict(self)


class UnexpectedError(HeadwiseError):
    """Nothing is left of what was asked because all of it failed unexpectedly; exit code 3."""

    def __init__(self, *failures: Failure) -> None:
        super().__init__(" ".join(failure.sentence for failure in failures))
        self.failures = failures

    def __reduce__(self) -> tuple[Any, ...]:
        return UnexpectedError, self.failures  # it may come from a worker
