"""Penn Treebank tags and phrases: tags as UPOS, and the head word of a phrase, for files that have
no dependency tree."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwise.core.errors import InputError
from headwise.text.readers.limits import Limits, shown

# The Penn tags of each universal part of speech.
_TAGS = {
    "CCONJ": "CC",
    "NUM": "CD",
    "DET": "DT PDT WDT",
    "PRON": "EX PRP PRP$ WP WP$",
    "X": "FW LS ADD",
    "ADP": "IN RP",
    "ADJ": "JJ JJR JJS AFX",
    "AUX": "MD",
    "NOUN": "NN NNS",
    "PROPN": "NNP NNPS",
    "PART": "POS TO",
    "ADV": "RB RBR RBS WRB",
    "SYM": "SYM $ #",
    "INTJ": "UH",
    "VERB": "VB VBD VBG VBN VBP VBZ",
    "PUNCT": "HYPH NFP , . : `` '' -LRB- -RRB-",
}
_UPOS = {tag: upos for upos, tags in _TAGS.items() for tag in tags.split()}
_NUMBER = {"NN": "Sing", "NNP": "Sing", "NNS": "Plur", "NNPS": "Plur"}


def upos_of(tag: str) -> str:
    """The universal part of speech of a Penn tag (auxiliaries, which the tag does not tell, are
    verbs)."""
    return _UPOS.get(tag, "X")


def number_of(tag: str) -> dict[str, str]:
    """The number that a noun's tag tells, as a UD feature."""
    return {"Number": _NUMBER[tag]} if tag in _NUMBER else {}


@dataclass
class Phrase:
    """A constituent: its label, its words `start..end` (end exclusive) and the constituents and
    words in it, in order."""

    label: str
    start: int
    end: int = 0
    parts: list[Phrase | int] = field(default_factory=list)
    head: int = -1  # its head word, once known


DEFAULT = Limits()
_BIT = re.compile(r"\([^()*\s]*|\*|\)")


def phrases(
    bits: Sequence[str], places: Sequence[str], sentences: Sequence[int], limits: Limits = DEFAULT
) -> list[Phrase]:
    """All constituents, from the parse column of CoNLL-2012 (`(NP*`, `*)`, ...), the outer ones
    first. No parse (`-`) gives none; a tree ends with its sentence."""
    found: list[Phrase] = []
    standing: list[Phrase] = []
    for word, bit in enumerate(bits):
        if standing and sentences[word] != sentences[word - 1]:
            break
        if bit in ("-", "_"):
            continue
        pieces = _BIT.findall(bit)
        if "".join(pieces) != bit or bit.count("*") != 1:
            problem = (
                f"the parse column holds '{shown(bit)}', which is no piece of a bracketed tree"
            )
            raise InputError(f"{places[word]}: {problem}.")
        for piece in pieces:
            if piece == "*":
                if standing:
                    standing[-1].parts.append(word)
            elif piece == ")":
                if not standing:
                    raise InputError(
                        f"{places[word]}: the parse column closes a bracket that nothing opened."
                    )
                standing.pop().end = word + 1
            else:
                phrase = Phrase(re.split(r"[-=]", piece[1:], maxsplit=1)[0], word)
                if standing:
                    standing[-1].parts.append(phrase)
                standing.append(phrase)
                found.append(phrase)
                limits.hold("max_depth", len(standing), places[word])
    if standing:
        raise InputError(
            f"{places[standing[-1].start]}: the parse column opens a bracket here that nothing closes."
        )
    return found


# Which part gives a phrase its head: one group of labels after another, each searched from the left
# or (-1) the right.
_NOUN_RULES = (
    ({"NN", "NNP", "NNPS", "NNS", "NX", "NML", "POS", "JJR"}, -1),
    ({"NP", "PRP", "WP", "WHNP"}, 1),
    ({"$", "ADJP", "PRN"}, -1),
    ({"CD"}, -1),
    ({"JJ", "JJS", "RB", "QP", "DT", "PRP$"}, -1),
)
_CLAUSE_RULES = (
    ({"VP"}, 1),
    ({"VBD", "VBN", "MD", "VBZ", "VB", "VBG", "VBP"}, 1),
    ({"S", "SINV", "SQ"}, 1),
    ({"NP"}, 1),
)
_RULES = {
    **dict.fromkeys(("NP", "NX", "NML", "WHNP"), _NOUN_RULES),
    **dict.fromkeys(("VP", "S", "SBAR", "SINV", "SQ", "SBARQ"), _CLAUSE_RULES),
}


def _head(phrase: Phrase, tags: Sequence[str]) -> int:
    """The head of a phrase, those of its parts being known."""

    def label(part: Phrase | int) -> str:
        return tags[part] if isinstance(part, int) else part.label

    def word(part: Phrase | int) -> int:
        return part if isinstance(part, int) else part.head

    parts = _before_conjunction(phrase.parts or [phrase.start], label)
    rules = _RULES.get(phrase.label, ())
    if rules is _NOUN_RULES and label(parts[-1]) == "POS":
        parts = parts[:-1] or parts
    for wanted, step in rules:
        for part in parts[::step]:
            if label(part) in wanted:
                return word(part)
    return word(parts[0] if phrase.label in ("PP", "WHPP") else parts[-1])


def _before_conjunction(
    parts: list[Phrase | int], label: Callable[[Phrase | int], str]
) -> list[Phrase | int]:
    """What stands before the first conjunction, where it joins whole phrases or two words: the
    first conjunct is the head, as in UD."""
    for place, part in enumerate(parts):
        joins = label(part) in ("CC", "CONJP") and place > 0
        if joins and (len(parts) == 3 or not all(isinstance(p, int) for p in parts)):
            return parts[:place]
    return parts


class PhraseHeads:
    """The head words of stretches of words by Collins' rules for noun phrases (1999, app. A).

    The constituent that is just this stretch gives its head; a stretch that is no constituent is
    treated as a flat noun phrase of its words. The heads of all constituents are found once, the
    inner ones first; a flat stretch is looked up in the places of each tag: the cost does not grow
    with its length."""

    def __init__(self, nested: Sequence[Phrase], tags: Sequence[str]) -> None:
        self.tags = tags
        for phrase in reversed(nested):
            phrase.head = _head(phrase, tags)
        self.exact = {
            (phrase.start, phrase.end): phrase.head for phrase in reversed(nested)
        }  # the outermost stays
        self.places = [
            [word for word, tag in enumerate(tags) if tag in wanted] for wanted, _ in _NOUN_RULES
        ]

    def __call__(self, start: int, end: int) -> int:
        """The head word of `start..end` (end exclusive)."""
        if (start, end) in self.exact:
            return self.exact[start, end]
        if end - start <= 3:  # two words and a conjunction are a rule of their own
            return _head(Phrase("NP", start, end, list(range(start, end))), self.tags)
        end -= self.tags[end - 1] == "POS"
        for places, (_, step) in zip(self.places, _NOUN_RULES, strict=True):
            low, high = bisect_left(places, start), bisect_left(places, end)
            if low < high:
                return places[low] if step == 1 else places[high - 1]
        return end - 1
