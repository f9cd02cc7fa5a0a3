"""Standard output and standard error that may be closed, full or unable to show a character.

A program that prints ends as `grep` does: quietly with the code of SIGPIPE where the reader of a pipe
has gone, with code 2 and one sentence where its output is closed or the disk is full. A character
that the terminal cannot show is spelled out and never ends a run.
"""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, TextIO

from headwise.core.errors import OutputError

READER_GONE = 141  # 128 + SIGPIPE, what a shell reports of programs that the signal ends
# How characters that headwise prints are spelled where only ASCII can be shown.
ASCII_SPELLINGS = {
    "…": "...",
    "→": "->",
    "–": "-",
    "—": "-",
    "−": "-",
    "×": "x",
    "≤": "<=",
    "≥": ">=",
    "±": "+-",
    "§": "sec. ",
    "’": "'",
    "“": '"',
    "”": '"',
}
ERRORS = "headwise_spelled_out"


def _spell_out(error: UnicodeError) -> tuple[bytes, int]:
    """Replace what an encoding lacks: bytes of file names as they are, the rest in ASCII."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    spelled = b""
    for character in error.object[error.start : error.end]:
        code = ord(character)
        if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is no text
            spelled += bytes([code - 0xDC00])
        else:
            text = ASCII_SPELLINGS.get(character, character)
            spelled += text.encode("ascii", "backslashreplace")
    return spelled, error.end


codecs.register_error(ERRORS, _spell_out)


class GuardedOutput:
    """Standard output whose end is the program's end, without a traceback.

    Everything but `write`, `writelines`, `flush`, `isatty` and `encoding` is that of the stream
    itself."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        # Raised at every write from the first that fails on: a library may have swallowed it there.
        self._end: SystemExit | OutputError | None = None
        if stream is None:
            self._end = _cannot_print(os.strerror(errno.EBADF))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._raise_end()
        assert self._stream is not None
        try:
            return self._stream.write(text)
        except OSError as error:
            self._note_end(error)
            raise self._end from error  # type: ignore[misc]

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self._stream is None:
            return  # nothing was written
        self._raise_end()
        try:
            self._stream.flush()
        except OSError as error:
            self._note_end(error)
            raise self._end from error  # type: ignore[misc]

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    @property
    def encoding(self) -> str:
        return "utf-8" if self._stream is None else self._stream.encoding

    def _raise_end(self) -> None:
        if self._end is not None:
            raise self._end

    def _note_end(self, error: OSError) -> None:
        # What is still in the buffer goes nowhere: Python flushes it once more when it ends.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
        if isinstance(error, BrokenPipeError):
            self._end = SystemExit(READER_GONE)
        else:
            self._end = _cannot_print(error.strerror or str(error))


def _cannot_print(reason: str) -> OutputError:
    return OutputError(f"Standard output cannot be written ({reason}); redirect it elsewhere.")


@contextmanager
def guarded_standard_streams() -> Iterator[None]:
    """Make standard output and standard error of this process fit to print anything to."""
    # A closed standard stream leaves its number to the next file that is opened, into which
    # libraries would then print.
    with suppress(OSError):
        number = os.open(os.devnull, os.O_RDWR)
        while number <= 2:
            number = os.open(os.devnull, os.O_RDWR)
        os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=ERRORS)
    stdout = sys.stdout
    sys.stdout = GuardedOutput(stdout)
    try:
        yield
    finally:
        # Python flushes it when it ends, where nothing could be raised any more.
        sys.stdout = stdout
