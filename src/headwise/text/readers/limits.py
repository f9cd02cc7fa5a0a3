"""How much a reader takes: stated limits, each a sentence that names file, line and limit and how
to raise it; and the walk through files that holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from headwise.core.checks import at_least, check_types
from headwise.core.errors import HeadwiseError, InputError
from headwise.text.corpus import Notes
from headwise.text.example import Example

FREE = (
    1 << 20
)  # bytes that may be unpacked from however little: a small file of one repeated row is no bomb
BEYOND = {  # what stands where a limit is passed
    "max_words": "a sentence or document of more than {} words",
    "max_whole": "a sentence or document whose rows have more than {} characters",
    "max_marks": "an example of more than {} mentions or frame links",
    "max_text": "a text of more than {} characters",
    "max_depth": "brackets or elements more than {} deep",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that readers take of each. They stand far above what corpora have and below what
    hurts: a file beyond them is most likely damaged, of another format, or meant to hurt.
    `open_corpus` takes each by its name.

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
        """The limits among the options that a user gives, and the other options."""
        names = {entry.name for entry in fields(cls)}
        own = {name: value for name, value in options.items() if name in names}
        return cls(**own), {name: value for name, value in options.items() if name not in names}

    def refuse(self, where: str, what: str, name: str) -> NoReturn:
        """Refuse what is beyond the limit of this name; `{}` in the sentence becomes its number."""
        number = f"{getattr(self, name):,}"
        raise InputError(
            f"{where}: {what.format(number)} (the limit {name}); if this is intended, raise the "
            f"limit: {name}=NUMBER.",
            option=f"reader {name}=NUMBER",
        )

    def hold(self, name: str, count: int, where: str) -> None:
        """Refuse more than the limit of this name allows, as soon as there is."""
        if count > getattr(self, name):
            self.refuse(where, BEYOND[name], name)

    def check(self, example: Example) -> None:
        """Refuse an example beyond a limit, whatever reader it comes from."""
        words, where = example.all_words, example.where
        self.hold("max_words", len(words), where)
        self.hold("max_marks", len(example.mentions or ()) + len(example.frames or ()), where)
        self.hold(
            "max_text",
            max(len(example.text or ""), len(example.pair or ""), sum(map(len, words))),
            where,
        )


@dataclass
class Walk:
    """One walk through the files of a corpus: its limits, what it notes, how much it unpacked and
    where it is."""

    limits: Limits = field(default_factory=Limits)
    notes: Notes = field(default_factory=Counter)
    label: str = ""
    line: int = 0
    packed: int = 0
    expanded: int = 0

    def where(self) -> str:
        """The file and line read last."""
        return f"{self.label}:{self.line}" if self.line else self.label

    def unpacked(self, taken: int, given: int) -> None:
        """Count bytes taken from packed files and bytes they gave; refuse too many."""
        self.packed += taken
        self.expanded += given
        if self.expanded > self.limits.max_expanded:
            self.limits.refuse(self.where(), "it unpacks to more than {} bytes", "max_expanded")
        if self.expanded > max(FREE, self.limits.max_ratio * self.packed):
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
    """What parsers and decoders raise, as one sentence of headwise's own: where, what is wrong,
    what was said, what to do.

    Parameters
    ----------
    where : str or callable
        File and line; a function where the line moves on meanwhile.
    problem : str
        What is wrong with what stands there.
    kinds : tuple of exception types, default all
        Errors that mean it. Errors of headwise pass as they are.
    advice : str, optional
        What ends the sentence, from its semicolon on.
    """
    try:
        yield
    except HeadwiseError:
        raise
    except kinds as error:
        said = shown(" ".join(str(error).split()), 200)
        place = where if isinstance(where, str) else where()
        raise InputError(
            f"{place}: {problem} ({type(error).__name__}{': ' if said else ''}{said}){advice}."
        ) from error


def guarded(examples: Iterable[Example], walk: Walk, about: str) -> Iterator[Example]:
    """The examples of a reader: the one place where any error of a parser becomes a sentence with
    file and line, and where every example is held to the limits."""
    with reading(
        walk.where,
        f"this cannot be read as {about}",
        advice="; mend it there, or name another format",
    ):
        for example in examples:
            walk.limits.check(example)
            yield example


def shown(value: object, longest: int = 80) -> str:
    """A value from a file as a message shows it: cut, and without characters that a terminal would
    obey.

    >>> shown("a\\x1b[31m" + "b" * 100, 12)
    'a\\\\x1b[31mbbbbbb…'
    """
    text = str(value)
    cut = text[:longest] + "…" if len(text) > longest else text
    return cut if cut.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in cut)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def whole_number(text: str) -> int | None:
    """A number written in at most 18 digits, None for all else: Python refuses to read thousands of
    them.

    >>> whole_number("12"), whole_number("-1"), whole_number("9" * 5000)
    (12, None, None)
    """
    return int(text) if len(text) <= 18 and text.isdecimal() else None
