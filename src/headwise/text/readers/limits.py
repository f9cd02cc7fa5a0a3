"""Limits of readers, and the state of one pass over the files of a corpus that enforces them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeVar

from headwise.core.checks import at_least, check_types, one_of
from headwise.core.errors import HeadwiseError, InputError
from headwise.core.failures import error_of_user
from headwise.text.corpus import Notes
from headwise.text.example import Example

Value = TypeVar("Value")
BAD_ROWS = ("error", "skip")
BLANK_ROWS = "blank rows skipped"
# Bytes that may be unpacked whatever the ratio: a small file of one repeated row is no attack.
ALWAYS_ALLOWED = 1 << 20
# What the message says where a limit is exceeded.
EXCEEDED = {
    "max_words": "a sentence or document of more than {} words",
    "max_whole": "a sentence or document whose rows have more than {} characters",
    "max_marks": "an example of more than {} mentions or frame links",
    "max_text": "a text of more than {} characters",
    "max_depth": "brackets or elements more than {} deep",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of readers, far above what corpora have and below what exhausts a machine.

    A file beyond them is most likely damaged, of another format, or hostile. `open_corpus` takes
    each limit by its name.

    Parameters
    ----------
    max_line : int, default 1 MiB
        Bytes of a line.
    max_text : int, default 256 Ki
        Characters of the text, or of all words, of an example.
    max_words : int, default 100,000
        Words (rows) of a sentence or document, and comment lines above it.
    max_marks : int, default 100,000
        Mentions or frame links of an example.
    max_depth : int, default 200
        Brackets or elements within each other.
    max_whole : int, default 16 MiB
        Bytes of what must be held whole: the rows of a document, an XML file, a table of frames.
    max_expanded : int, default 64 GiB
        Bytes that one walk through a corpus unpacks from compressed files.
    max_ratio : int, default 250
        How many times its packed size a corpus may unpack to, once that is more than 1 MiB.
    """

    max_line: int = 1 << 20
    max_text: int = 1 << 18
    max_words: int = 100_000
    max_marks: int = 100_000
    max_depth: int = 200
    max_whole: int = 16 << 20
    max_expanded: int = 64 << 30
    max_ratio: int = 250

    def __post_init__(self) -> None:
        check_types(self)
        for entry in fields(self):
            at_least(entry.name, getattr(self, entry.name), 1)

    @classmethod
    def none(cls) -> Limits:
        """No limits, for files that headwise wrote itself."""
        return cls(**{entry.name: 1 << 62 for entry in fields(cls)})

    @classmethod
    def among(cls, options: Mapping[str, Any]) -> tuple[Limits, dict[str, Any]]:
        """Return the limits among the options of a user, and the other options."""
        names = {entry.name for entry in fields(cls)}
        limits = {}
        other_options = {}
        for name, value in options.items():
            if name in names:
                limits[name] = value
            else:
                other_options[name] = value
        return cls(**limits), other_options

    def refuse(self, where: str, what: str, name: str) -> NoReturn:
        """Raise the error for a limit that is exceeded; `{}` in `what` becomes the limit."""
        number = f"{getattr(self, name):,}"
        raise InputError(
            f"{where}: {what.format(number)} (the limit {name}); if this is intended, raise the "
            f"limit: {name}=NUMBER.",
            option=f"reader {name}=NUMBER",
        )

    def hold(self, name: str, count: int, where: str) -> None:
        """Raise an error where a count exceeds the limit of this name."""
        if count > getattr(self, name):
            self.refuse(where, EXCEEDED[name], name)

    def check(self, example: Example) -> None:
        """Raise an error for an example that exceeds a limit, whatever reader it comes from."""
        words = example.all_words
        n_marks = len(example.mentions or ()) + len(example.frames or ())
        longest_text = max(len(example.text or ""), len(example.pair or ""), sum(map(len, words)))
        self.hold("max_words", len(words), example.where)
        self.hold("max_marks", n_marks, example.where)
        self.hold("max_text", longest_text, example.where)


class BlankRowError(InputError):
    """A row is there, but has no text."""


@dataclass
class Walk:
    """One pass over the files of a corpus: its limits, notes, position, and bytes unpacked.

    Attributes
    ----------
    bad_rows : {"error", "skip"}, optional
        What happens to rows (or sentences, or documents) that cannot be read. By default blank
        ones are skipped and counted, and malformed ones are errors; `error` makes both errors,
        `skip` skips and counts both.
    """

    limits: Limits = field(default_factory=Limits)
    notes: Notes = field(default_factory=Counter)
    label: str = ""
    line: int = 0
    packed: int = 0
    expanded: int = 0
    bad_rows: str | None = None
    first_bad: str = ""  # what was wrong with the first row that was skipped

    def __post_init__(self) -> None:
        if self.bad_rows is not None:
            one_of("bad_rows", self.bad_rows, BAD_ROWS)

    def attempt(self, read: Callable[[], Value], skip_bad: bool = False) -> Value | None:
        """Return what `read` gives; None for a row that is skipped and counted.

        Parameters
        ----------
        read : callable
            Reads one row, sentence or document; raises `BlankRowError` for a blank one, any other
            `InputError` for a malformed one.
        skip_bad : bool, default False
            Whether malformed rows are skipped unless the user asked for errors.
        """
        try:
            return read()
        except BlankRowError as error:
            if self.bad_rows == "error":
                sentence = str(error).rstrip(".")
                raise BlankRowError(
                    f"{sentence}; fill the row, or leave out bad_rows=error to skip blank rows."
                ) from error
            self.notes[BLANK_ROWS] += 1
        except InputError as error:
            if error.option is not None and error.option.startswith("reader max_"):
                raise  # a limit protects the machine, whatever is done with bad rows
            if not (self.bad_rows == "skip" or (skip_bad and self.bad_rows is None)):
                raise self._with_advice(error) from error
            self.first_bad = self.first_bad or str(error).rstrip(".")
            self.notes[f"broken rows left out (first: {self.first_bad})"] += 1
        return None

    @staticmethod
    def _with_advice(error: InputError) -> InputError:
        """Return the error of a row with the ways to go on."""
        sentence = str(error).rstrip(".")
        return InputError(
            f"{sentence}; fix the row, or skip such rows with bad_rows=skip.",
            option=error.option or "reader bad_rows=skip",
        )

    def where(self) -> str:
        """The file and line read last."""
        return f"{self.label}:{self.line}" if self.line else self.label

    def unpacked(self, taken: int, given: int) -> None:
        """Count bytes read from compressed files and bytes unpacked; raise an error for too many."""
        self.packed += taken
        self.expanded += given
        if self.expanded > self.limits.max_expanded:
            self.limits.refuse(self.where(), "it unpacks to more than {} bytes", "max_expanded")
        if self.expanded > max(ALWAYS_ALLOWED, self.limits.max_ratio * self.packed):
            self.limits.refuse(
                self.where(), "it unpacks to more than {} times its size", "max_ratio"
            )


@contextmanager
def reading(
    where: str | Callable[[], str],
    problem: str,
    kinds: tuple[type[Exception], ...] = (Exception,),
    advice: str = "",
) -> Iterator[None]:
    """Turn errors of parsers and decoders into an InputError: where, what is wrong, what to do.

    Parameters
    ----------
    where : str or callable
        File and line; a function where the line changes meanwhile.
    problem : str
        What is wrong there.
    kinds : tuple of exception types, default all
        The errors to turn; errors of headwise pass unchanged.
    advice : str, optional
        The end of the sentence, from its semicolon.
    """
    try:
        yield
    except HeadwiseError:
        raise
    except kinds as error:
        users_error = error_of_user(error)
        if users_error is not None:
            raise users_error from error
        reason = type(error).__name__
        message = shown(" ".join(str(error).split()), 200)
        if message:
            reason = f"{reason}: {message}"
        place = where if isinstance(where, str) else where()
        raise InputError(f"{place}: {problem} ({reason}){advice}.") from error


def guarded(examples: Iterable[Example], walk: Walk, about: str) -> Iterator[Example]:
    """Yield the examples of a reader: errors become sentences with file and line, and every example
    is checked against the limits."""
    problem = f"this cannot be read as {about}"
    with reading(walk.where, problem, advice="; fix it there, or name another format"):
        for example in examples:
            walk.limits.check(example)
            yield example


def shown(value: object, longest: int = 80) -> str:
    """Return a value from a file for a message: shortened, with control characters escaped.

    >>> shown("a\\x1b[31m" + "b" * 100, 12)
    'a\\\\x1b[31mbbbbbb…'
    """
    text = str(value)
    if len(text) > longest:
        text = text[:longest] + "…"
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def whole_number(text: str) -> int | None:
    """Return a number of at most 18 digits; None otherwise (Python rejects thousands of digits).

    >>> whole_number("12"), whole_number("-1"), whole_number("9" * 5000)
    (12, None, None)
    """
    if len(text) <= 18 and text.isdecimal():
        return int(text)
    return None
