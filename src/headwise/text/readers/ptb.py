"""Penn Treebank tags and phrases: tags as UPOS, and the head word of a phrase, for files that have no dependency
tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwise.core.errors import InputError

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
    """The universal part of speech of a Penn tag (auxiliaries, which the tag does not tell, are verbs)."""
    return _UPOS.get(tag, "X")


def number_of(tag: str) -> dict[str, str]:
    """The number that a noun's tag tells, as a UD feature."""
    return {"Number": _NUMBER[tag]} if tag in _NUMBER else {}


@dataclass
class Phrase:
    """A constituent: its label, its words `start..end` (end exclusive) and the constituents and words in it, in
    order."""

    label: str
    start: int
    end: int = 0
    parts: list[Phrase | int] = field(default_factory=list)


_BIT = re.compile(r"\([^()*\s]*|\*|\)")


def phrases(bits: Sequence[str], places: Sequence[str], sentences: Sequence[int]) -> list[Phrase]:
    """All constituents, from the parse column of CoNLL-2012 (`(NP*`, `*)`, ...), the outer ones first. No parse (`-`)
    gives none; a tree ends with its sentence."""
    found: list[Phrase] = []
    standing: list[Phrase] = []
    for word, bit in enumerate(bits):
        if standing and sentences[word] != sentences[word - 1]:
            break
        if bit in ("-", "_"):
            continue
        if "".join(_BIT.findall(bit)) != bit or bit.count("*") != 1:
            raise InputError(f"{places[word]}: the parse column holds '{bit}', which is no piece of a bracketed tree.")
        for piece in _BIT.findall(bit):
            if piece == "*":
                if standing:
                    standing[-1].parts.append(word)
            elif piece == ")":
                if not standing:
                    raise InputError(f"{places[word]}: the parse column closes a bracket that nothing opened.")
                standing.pop().end = word + 1
            else:
                phrase = Phrase(re.split(r"[-=]", piece[1:], maxsplit=1)[0], word)
                if standing:
                    standing[-1].parts.append(phrase)
                standing.append(phrase)
                found.append(phrase)
    if standing:
        raise InputError(f"{places[standing[-1].start]}: the parse column opens a bracket here that nothing closes.")
    return found


def phrase_head(start: int, end: int, nested: Sequence[Phrase], tags: Sequence[str]) -> int:
    """The head word of a stretch of words by Collins' rules for noun phrases (1999, app. A).

    The constituent that is just this stretch gives its head; a stretch that is no constituent is treated as a flat noun
    phrase of its words.
    """
    exact = next((phrase for phrase in nested if phrase.start == start and phrase.end == end), None)
    return _head(exact if exact is not None else Phrase("NP", start, end, list(range(start, end))), tags)


# Which part gives a phrase its head: one group of labels after another, each searched from the left or (-1) the right.
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
    def label(part: Phrase | int) -> str:
        return tags[part] if isinstance(part, int) else part.label

    def word(part: Phrase | int) -> int:
        return part if isinstance(part, int) else _head(part, tags)

    parts = _before_conjunction(phrase.parts or [phrase.start], label)
    rules = _RULES.get(phrase.label, ())
    if rules is _NOUN_RULES and label(parts[-1]) == "POS":
        parts = parts[:-1] or parts
    for wanted, step in rules:
        for part in parts[::step]:
            if label(part) in wanted:
                return word(part)
    return word(parts[0] if phrase.label in ("PP", "WHPP") else parts[-1])


def _before_conjunction(parts: list[Phrase | int], label: Callable[[Phrase | int], str]) -> list[Phrase | int]:
    """What stands before the first conjunction, where it joins whole phrases or two words: the first conjunct is the
    head, as in UD."""
    for place, part in enumerate(parts):
        joins = label(part) in ("CC", "CONJP") and place > 0
        if joins and (len(parts) == 3 or not all(isinstance(p, int) for p in parts)):
            return parts[:place]
    return parts
