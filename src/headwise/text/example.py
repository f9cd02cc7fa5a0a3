"""One input to a model, with whatever is known about its words."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from headwise.core.errors import InputError, unknown

ROOT = -1  # the head of a word that has none
# Characters that UTF-8 cannot encode (unpaired surrogates), and NUL, which ends a C string.
UNFIT = re.compile("[\ud800-\udfff\0]")
# The roles of tokens in a conversation; `template` is for tokens that belong to no message.
ROLES = ("system", "user", "assistant", "tool", "template")
# The universal parts of speech.
UPOS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
)
CYCLE = "the tree has a cycle through word {}; correct the HEAD column there."


@dataclass(frozen=True, slots=True)
class Mention:
    """A span of words `start..end` (end exclusive) that refers to an entity; `head` is the index
    of its head word."""

    start: int
    end: int
    entity: str
    head: int | None = None  # where known

    def moved(self, by: int) -> Mention:
        """Return the mention moved by this many words."""
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

    There are three ways to give words. `words` alone: each word is tokenized separately, and the
    tokenizer's word ids align subwords and words. `text` with `words` and `spans` (character
    offsets of each word, end exclusive, relative to the text of its segment): the original text is
    tokenized, and subwords are aligned by offsets. `text` alone: no words are known.

    A conversation has `messages`, pairs of a role (`system`, `user`, `assistant`, `tool`) and a
    content. Its `text` is the contents, with a line feed between messages; the model reads the
    conversation as its tokenizer's chat template renders it.

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
    sentences: tuple[int, ...] | None = None  # the sentence of each word, where there are several
    mentions: tuple[Mention, ...] | None = None
    frames: tuple[FrameLink, ...] | None = None
    label: str | float | None = None
    messages: tuple[tuple[str, str], ...] | None = None  # (role, content)
    origin: str = ""  # file and line, for messages; not part of the fingerprint
    scheme: str = "ud"  # what relation names mean: "ud" or "stanford"
    document: str | None = None  # examples of one document are not independent

    def __post_init__(self) -> None:
        if self.messages is not None:
            self._check_messages()
        if self.text is None and self.words is None:
            raise InputError(f"{self.where}: an example needs `text` or `words`.")
        if self.text is not None and self.words is not None and self.spans is None:
            raise InputError(
                f"{self.where}: an example with `text` and `words` needs `spans`, the character "
                "offsets of the words."
            )
        self._check_columns()
        all_text = self._all_text()
        # `isascii` is much faster than the search, and true for most texts.
        if "\0" in all_text or not (all_text.isascii() or UNFIT.search(all_text) is None):
            raise InputError(
                f"{self.where}: it contains an unpaired surrogate or NUL, which is not text; "
                "remove it or replace it by U+FFFD."
            )
        if self.heads is not None:
            check_tree(self.heads, self.where)
        for mention in self.mentions or ():
            self._check_span("mention", mention.start, mention.end)
        for link in self.frames or ():
            self._check_span("frame span", *link.target)
            self._check_span("frame span", *link.span)

    def _check_columns(self) -> None:
        """Reject annotations that do not have one entry per word."""
        n_words = len(self.all_words) if self.words is not None else None
        for name in ("spans", "heads", "relations", "upos", "lemmas", "features", "sentences"):
            value = getattr(self, name)
            if value is not None and len(value) != n_words:
                words = "no" if n_words is None else n_words
                raise InputError(
                    f"{self.where}: `{name}` has {len(value)} entries for {words} words."
                )

    def _check_span(self, name: str, start: int, end: int) -> None:
        n_words = len(self.all_words) if self.words is not None else 0
        if not 0 <= start < end <= n_words:
            raise InputError(
                f"{self.where}: {name} {start}..{end} lies outside the {n_words} words."
            )

    def _check_messages(self) -> None:
        assert self.messages is not None
        for role, _ in self.messages:
            if role not in ROLES[:-1]:
                raise InputError(f"{self.where}: {unknown('role', role, ROLES[:-1])}")
        contents = "\n".join(content for _, content in self.messages)
        if self.has_pair or (self.words is not None and self.spans is None):
            raise InputError(
                f"{self.where}: a conversation has `messages`, no pair, and words only with "
                "`spans`."
            )
        if self.text is not None and self.text != contents:
            raise InputError(
                f"{self.where}: the `text` of a conversation must be the contents of its messages, "
                "one line each."
            )
        object.__setattr__(self, "text", contents)

    def _all_text(self) -> str:
        """Return all text of the example, concatenated."""
        texts: list[str] = []
        for value in (self.text, self.pair, self.label, self.scheme, self.document):
            if isinstance(value, str):
                texts.append(value)
        for column in (self.words, self.words_pair, self.relations, self.upos, self.lemmas):
            texts += column or ()
        for mention in self.mentions or ():
            texts.append(mention.entity)
        for link in self.frames or ():
            texts += (link.frame, link.element)
        for features in self.features or ():
            texts += (*features, *features.values())
        return "".join(texts)

    @property
    def where(self) -> str:
        """File and line, or "example", for error messages."""
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
        """The annotations of this example, out of `words`, `dependencies`, `pos`, `coreference`,
        `frames`, `segments`, `roles` and `label`."""
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
        """Return a SHA-256 digest of everything except `origin`."""
        content = {}
        for name in _IN_FINGERPRINT:
            value = getattr(self, name)
            if value is not None:
                content[name] = value
        return hashlib.sha256(_ENCODER.encode(content).encode()).digest()


_IN_FINGERPRINT = tuple(f.name for f in fields(Example) if f.name != "origin")


def _plain(value: object) -> object:
    """Return mentions, frame links and features as JSON values, for the encoder below."""
    if isinstance(value, Mention | FrameLink):
        return [getattr(value, f.name) for f in fields(value)]
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} in an example")


_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=_plain)


def check_tree(heads: tuple[int, ...], where: str) -> None:
    """Reject heads that point outside the words or form a cycle."""
    if heads and not (min(heads) >= ROOT and max(heads) < len(heads)):
        word, head = next((w, h) for w, h in enumerate(heads) if not ROOT <= h < len(heads))
        raise InputError(
            f"{where}: word {word + 1} has head {head + 1}, but there are {len(heads)} words."
        )
    cyclic_word = word_in_cycle(heads)
    if cyclic_word is not None:
        raise InputError(f"{where}: {CYCLE.format(cyclic_word + 1)}")


def word_in_cycle(heads: Sequence[int]) -> int | None:
    """Return the first word from which following the heads never reaches a root.

    >>> word_in_cycle([1, ROOT, 3, 2]), word_in_cycle([1, ROOT])
    (2, None)
    """
    unknown_word, leads_to_root, on_path = 0, 1, 2
    state = bytearray(len(heads) + 1)  # of each word; the last entry, at index ROOT, is the root's
    state[ROOT] = leads_to_root
    for start in range(len(heads)):
        path: list[int] = []
        word = start
        while state[word] == unknown_word:
            state[word] = on_path
            path.append(word)
            word = heads[word]
        if state[word] == on_path:
            return word
        for visited in path:
            state[visited] = leads_to_root
    return None
