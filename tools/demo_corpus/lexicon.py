"""The words of the demo grammar: what they mean, what they go with, and how they inflect."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Noun:
    """A common noun; `classes` say what it is (its own lemma among them), `compounds` which nouns
    may stand before it."""

    lemma: str
    plural: str
    classes: frozenset[str]
    gender: str | None = None
    place: str | None = None  # the preposition of being there
    followers: tuple[
        tuple[str, str], ...
    ] = ()  # preposition and class of a noun phrase that may follow
    compounds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """What may fill a place in a verb's frame, and the frame element it is."""

    classes: frozenset[str]
    element: str
    core: bool = True
    required: bool = False


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb in one of its uses."""

    lemma: str
    past: str
    participle: str
    frame: str | None
    subject: Slot
    object: Slot | None = None
    recipient: Slot | None = None
    oblique: tuple[str, Slot] | None = None  # preposition and filler
    particle: str | None = None
    clause: tuple[str, str] | None = (
        None  # kind of clausal complement (that, to-inf, obj-to) and its frame element
    )
    flags: frozenset[str] = frozenset()
    adverbs: tuple[str, ...] = ()

    @property
    def gerund(self) -> str:
        doubled = {"run", "put", "cut", "forget", "begin"}
        if self.lemma in doubled:
            return f"{self.lemma}{self.lemma[-1]}ing"
        return (
            f"{self.lemma[:-1]}ing"
            if self.lemma.endswith("e") and self.lemma != "see"
            else f"{self.lemma}ing"
        )

    @property
    def third(self) -> str:
        """The third person singular of the present."""
        if self.lemma.endswith(("s", "sh", "ch", "x", "z", "o")):
            return f"{self.lemma}es"
        if self.lemma.endswith("y") and self.lemma[-2] not in "aeiou":
            return f"{self.lemma[:-1]}ies"
        return f"{self.lemma}s"


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective, its rank in a stack of adjectives, and the classes of nouns it suits."""

    lemma: str
    rank: int
    classes: frozenset[str]
    predicative: bool


@dataclass(frozen=True, slots=True)
class Lexicon:
    """All words of the grammar."""

    nouns: tuple[Noun, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Adjective, ...]
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by gender
    surnames: tuple[str, ...] = ()
    cities: tuple[str, ...] = ()

    def nouns_of(self, classes: frozenset[str]) -> list[Noun]:
        return [noun for noun in self.nouns if noun.classes & classes]

    def adjectives_for(self, noun: Noun, predicative: bool = False) -> list[Adjective]:
        return [
            adjective
            for adjective in self.adjectives
            if adjective.classes & noun.classes and (adjective.predicative or not predicative)
        ]

    def verb(self, lemma: str) -> Verb:
        """The first use of a verb."""
        return next(verb for verb in self.verbs if verb.lemma == lemma)


def indefinite_article(next_word: str) -> str:
    """`a` or `an`, by the sound of the next word."""
    word = next_word.lower()
    if word.startswith(("hon", "hour", "heir")):
        return "an"
    if word.startswith(("uni", "use", "eu", "one")):
        return "a"
    return "an" if word[0] in "aeiou" else "a"


@cache
def lexicon() -> Lexicon:
    """The words of `lexicon.txt`, read once."""
    sections = _sections(Path(__file__).with_name("lexicon.txt").read_text(encoding="utf-8"))
    names = {
        gender: tuple(" ".join(sections[f"names {gender}"]).split()) for gender in ("Fem", "Masc")
    }
    return Lexicon(
        nouns=tuple(map(_noun, sections["nouns"])),
        verbs=tuple(map(_verb, sections["verbs"])),
        adjectives=tuple(map(_adjective, sections["adjectives"])),
        names=names,
        surnames=tuple(" ".join(sections["surnames"]).split()),
        cities=tuple(" ".join(sections["cities"]).split()),
    )


def _sections(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            current = found.setdefault(line.strip("[] "), [])
        elif line.strip() and not line.startswith("#"):
            current.append(line)
    return found


def _fields(line: str) -> list[str]:
    return [part.strip() for part in line.split("|")]


def _noun(line: str) -> Noun:
    forms, classes, options = _fields(line)
    lemma, plural = forms.split()
    words = options.split()
    return Noun(
        lemma,
        plural,
        frozenset(classes.split(",")) | {lemma},
        gender=next((word for word in words if word in ("Fem", "Masc")), None),
        place=next((word for word in words if word in ("in", "at", "on", "under")), None),
        followers=tuple(
            (p, c) for p, _, c in (word.partition(":") for word in words if ":" in word)
        ),
        compounds=tuple(word[1:] for word in words if word.startswith("+")),
    )


def _slot(value: str, required: bool = False) -> Slot:
    classes, _, element = value.partition(":")
    return Slot(
        frozenset(classes.split("+")), element.rstrip("-"), not element.endswith("-"), required
    )


def _verb(line: str) -> Verb:
    forms, frame, slots, flags, adverbs = _fields(line)
    lemma, past, participle = forms.split()
    given = dict(item.split("=", 1) for item in slots.split())
    object_, recipient = (given.pop(name, None) for name in ("obj", "iobj"))
    subject, particle = _slot(given.pop("subj")), given.pop("prt", None)
    clause = next(
        ((kind, given.pop(kind)) for kind in ("that", "to-inf", "obj-to") if kind in given), None
    )
    oblique = next(
        ((prep.rstrip("!"), _slot(value, prep.endswith("!"))) for prep, value in given.items()),
        None,
    )
    return Verb(
        lemma,
        past,
        participle,
        None if frame == "-" else frame,
        subject,
        object=_slot(object_) if object_ else None,
        recipient=_slot(recipient) if recipient else None,
        oblique=oblique,
        particle=particle,
        clause=clause,
        flags=frozenset(flag for flag in flags.split(",") if flag),
        adverbs=tuple(adverb for adverb in adverbs.split(",") if adverb),
    )


def _adjective(line: str) -> Adjective:
    head, classes, options = _fields(line)
    lemma, rank = head.split()
    return Adjective(lemma, int(rank), frozenset(classes.split(",")), options == "pred")
