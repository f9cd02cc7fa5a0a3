"""One input to a model, with whatever is known about its words."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from headwise.core.errors import InputError, unknown

ROOT = -1  # the head of a word that has none
UNFIT = re.compile(
    "[\ud800-\udfff\0]"
)  # what cannot be encoded as UTF-8, or ends a text in other languages
ROLES = (
    "system",
    "user",
    "assistant",
    "tool",
    "template",
)  # of tokens of a conversation; the last is no message's
CYCLE = "the tree has a cycle through word {}; mend the HEAD column there."


@dataclass(frozen=True, slots=True)
class Mention:
    """A stretch of words `start..end` (end exclusive) that belongs to an entity; `head` is the
    index of its head word."""

    start: int
    end: int
    entity: str
    head: int | None = None  # where known

    def moved(self, by: int) -> Mention:
        """The same so many words further on."""
        head = None if self.head is None else self.head + by
        return Mention(self.start + by, self.end + by, self.entity, head)


@dataclass(frozen=True, slots=True)
class FrameLink:
    """A link from a frame's target words to one of its elements; spans are word indices, end
    exclusive."""

    frame: str
    element: str
    target: tuple[int, int]
    span: tuple[int, int]
    core: bool = True


@dataclass(frozen=True, slots=True)
class Example:
    """A text (or its words), an optional second segment, and annotations.

    Word indices are 0-based and run through both segments: the first word of the second segment has
    index `len(words)`.

    Three ways to say what the words are: `words` alone: each word is tokenized apart (the
    tokenizer's own word ids align pieces and words); `text` with `words` and `spans` (character
    offsets of each word, end exclusive, relative to its own segment's text): the text is tokenized
    as it stands and pieces are aligned by offsets; `text` alone: no words are known.

    A conversation has `messages`, pairs of a role (`system`, `user`, `assistant`, `tool`) and what
    is said. Its `text` is what is said, with a line feed between messages; the model reads it as
    its tokenizer's chat template renders it.

    Examples
    --------
    >>> example = Example(words=("Dogs", "bark"), words_pair=("Cats", "do", "not"))
    >>> example.has_pair, example.all_words.index("Cats"), sorted(example.annotations)
    (True, 2, ['segments', 'words'])
    """

    text: str | None = None
    pair: str | None = None
    words: tuple[str, ...] | None = None
    words_pair: tuple[str, ...] | None = None
    spans: tuple[tuple[int, int], ...] | None = None  # over both segments
    heads: tuple[int, ...] | None = None  # index of each word's syntactic head; ROOT for roots
    relations: tuple[str, ...] | None = None
    upos: tuple[str, ...] | None = None
    lemmas: tuple[str, ...] | None = None
    features: tuple[Mapping[str, str], ...] | None = None  # UD morphological features
    sentences: tuple[int, ...] | None = (
        None  # sentence number of each word, for examples of several sentences
    )
    mentions: tuple[Mention, ...] | None = None
    frames: tuple[FrameLink, ...] | None = None
    label: str | float | None = None
    messages: tuple[tuple[str, str], ...] | None = None  # (role, what is said)
    origin: str = ""  # file and line, for messages; not part of the fingerprint
    scheme: str = "ud"  # what relation names mean: "ud" or "stanford"
    document: str | None = (
        None  # what it is a part of, where known: examples of one are not independent
    )

    def __post_init__(self) -> None:
        if self.messages is not None:
            self._check_messages()
        if self.text is None and self.words is None:
            raise InputError(f"{self.where}: an example needs `text` or `words`.")
        if self.text is not None and self.words is not None and self.spans is None:
            raise InputError(
                f"{self.where}: an example with `text` and `words` needs `spans`, the places of the words."
            )
        count = len(self.all_words) if self.words is not None else None
        for name in ("spans", "heads", "relations", "upos", "lemmas", "features", "sentences"):
            value = getattr(self, name)
            if value is not None and len(value) != count:
                known = "no" if count is None else count
                raise InputError(
                    f"{self.where}: `{name}` has {len(value)} entries for {known} words."
                )
        written = self._written()
        if "\0" in written or not (written.isascii() or UNFIT.search(written) is None):
            raise InputError(
                f"{self.where}: it holds half of a surrogate pair, or NUL, which is no text; remove it or put U+FFFD "
                "in its place."
            )
        if self.heads is not None:
            check_tree(self.heads, self.where)
        stretches = [("mention", m.start, m.end) for m in self.mentions or ()]
        stretches += [
            ("frame span", *span) for link in self.frames or () for span in (link.target, link.span)
        ]
        for what, start, end in stretches:
            if not 0 <= start < end <= (count or 0):
                raise InputError(
                    f"{self.where}: {what} {start}..{end} lies outside the {count or 0} words."
                )

    def _check_messages(self) -> None:
        assert self.messages is not None
        for role, _ in self.messages:
            if role not in ROLES[:-1]:
                raise InputError(f"{self.where}: {unknown('role', role, ROLES[:-1])}")
        said = "\n".join(text for _, text in self.messages)
        if self.has_pair or (self.words is not None and self.spans is None):
            raise InputError(
                f"{self.where}: a conversation has `messages`, not pairs, and words only with `spans`."
            )
        if self.text is not None and self.text != said:
            raise InputError(
                f"{self.where}: the `text` of a conversation is what its messages say, a line for each."
            )
        object.__setattr__(self, "text", said)

    def _written(self) -> str:
        """Everything in it that is text, in one."""
        written = [
            x
            for x in (self.text, self.pair, self.label, self.scheme, self.document)
            if isinstance(x, str)
        ]
        for column in (self.words, self.words_pair, self.relations, self.upos, self.lemmas):
            written += column or ()
        written += [m.entity for m in self.mentions or ()]
        written += [name for link in self.frames or () for name in (link.frame, link.element)]
        for item in self.features or ():
            written += (*item, *item.values())
        return "".join(written)

    @property
    def where(self) -> str:
        """What messages call it."""
        return self.origin or "example"

    @property
    def all_words(self) -> tuple[str, ...]:
        """The words of both segments."""
        return (self.words or ()) + (self.words_pair or ())

    @property
    def has_pair(self) -> bool:
        """Whether there is a second segment."""
        return self.pair is not None or self.words_pair is not None

    @property
    def annotations(self) -> frozenset[str]:
        """Which of `words`, `dependencies`, `pos`, `coreference`, `frames`, `segments`, `roles`,
        `label` this example has."""
        has = {
            "words": self.words is not None,
            "dependencies": self.heads is not None and self.relations is not None,
            "pos": self.upos is not None,
            "coreference": self.mentions is not None,
            "frames": self.frames is not None,
            "segments": self.has_pair,
            "roles": self.messages is not None,
            "label": self.label is not None,
        }
        return frozenset(name for name, present in has.items() if present)

    def fingerprint(self) -> bytes:
        """A sha256 digest of everything but `origin`."""
        content = {
            name: value for name in _IN_FINGERPRINT if (value := getattr(self, name)) is not None
        }
        return hashlib.sha256(_ENCODER.encode(content).encode()).digest()


_IN_FINGERPRINT = tuple(f.name for f in fields(Example) if f.name != "origin")


def _plain(value: object) -> object:
    """What JSON holds of a part of an example that it does not know."""
    if isinstance(value, Mention | FrameLink):
        return [getattr(value, f.name) for f in fields(value)]
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} in an example")


_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=_plain)


def check_tree(heads: tuple[int, ...], where: str) -> None:
    """Refuse heads that point outside the words or go round in a circle."""
    if heads and not (min(heads) >= ROOT and max(heads) < len(heads)):
        word, head = next((w, h) for w, h in enumerate(heads) if not ROOT <= h < len(heads))
        raise InputError(
            f"{where}: word {word + 1} has head {head + 1}, but there are {len(heads)} words."
        )
    looped = word_in_cycle(heads)
    if looped is not None:
        raise InputError(f"{where}: {CYCLE.format(looped + 1)}")


def word_in_cycle(heads: Sequence[int]) -> int | None:
    """The first word from which following the heads never ends at a root.

    >>> word_in_cycle([1, ROOT, 3, 2]), word_in_cycle([1, ROOT])
    (2, None)
    """
    known = bytearray(
        len(heads) + 1
    )  # 1 for words that lead to a root, 2 for those on the way; the last is the root's
    known[ROOT] = 1
    for start in range(len(heads)):
        path, word = list[int](), start
        while not known[word]:
            known[word] = 2
            path.append(word)
            word = heads[word]
        if known[word] == 2:
            return word
        for passed in path:
            known[passed] = 1
    return None
