"""Penn Treebank tags and phrases: tags as UPOS, and the head word of a phrase, for files that have no dependency tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwise.core.errors import InputError

_UPOS = {
    "CC": "CCONJ", "CD": "NUM", "DT": "DET", "EX": "PRON", "FW": "X", "IN": "ADP", "JJ": "ADJ", "JJR": "ADJ", "JJS": "ADJ", "LS": "X", "MD": "AUX",
    "NN": "NOUN", "NNS": "NOUN", "NNP": "PROPN", "NNPS": "PROPN", "PDT": "DET", "POS": "PART", "PRP": "PRON", "PRP$": "PRON", "RB": "ADV", "RBR": "ADV",
    "RBS": "ADV", "RP": "ADP", "SYM": "SYM", "TO": "PART", "UH": "INTJ", "VB": "VERB", "VBD": "VERB", "VBG": "VERB", "VBN": "VERB", "VBP": "VERB",
    "VBZ": "VERB", "WDT": "DET", "WP": "PRON", "WP$": "PRON", "WRB": "ADV", "HYPH": "PUNCT", "NFP": "PUNCT", "ADD": "X", "AFX": "ADJ", "$": "SYM",
    "#": "SYM", ",": "PUNCT", ".": "PUNCT", ":": "PUNCT", "``": "PUNCT", "''": "PUNCT", "-LRB-": "PUNCT", "-RRB-": "PUNCT",
}  # fmt: skip
_NUMBER = {"NN": "Sing", "NNP": "Sing", "NNS": "Plur", "NNPS": "Plur"}


def upos_of(tag: str) -> str:
    """The universal part of speech of a Penn tag (auxiliaries, which the tag does not tell, are verbs)."""
    return _UPOS.get(tag, "X")


def number_of(tag: str) -> dict[str, str]:
    """The number that a noun's tag tells, as a UD feature."""
    return {"Number": _NUMBER[tag]} if tag in _NUMBER else {}


@dataclass
class Phrase:
    """A constituent: its label, its words `start..end` (end exclusive) and the constituents and words in it, in order."""

    label: str
    start: int
    end: int = 0
    parts: list[Phrase | int] = field(default_factory=list)


_BIT = re.compile(r"\([^()*\s]*|\*|\)")


def phrases(bits: Sequence[str], places: Sequence[str], sentences: Sequence[int]) -> list[Phrase]:
    """All constituents, from the parse column of CoNLL-2012 (`(NP*`, `*)`, ...), the outer ones first. No parse (`-`) gives none; a tree ends with its sentence."""
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

    The constituent that is just this stretch gives its head; a stretch that is no constituent is treated as a flat noun phrase of its words.
    """
    exact = next((phrase for phrase in nested if phrase.start == start and phrase.end == end), None)
    return _head(exact if exact is not None else Phrase("NP", start, end, list(range(start, end))), tags)


_NOMINAL = {"NN", "NNP", "NNPS", "NNS", "NX", "POS", "JJR"}


def _head(phrase: Phrase, tags: Sequence[str]) -> int:
    parts = phrase.parts or [phrase.start]

    def label(part: Phrase | int) -> str:
        return tags[part] if isinstance(part, int) else part.label

    def word(part: Phrase | int) -> int:
        return part if isinstance(part, int) else _head(part, tags)

    parts = _before_conjunction(parts, label)
    if phrase.label in ("NP", "NX", "NML", "WHNP"):
        if label(parts[-1]) == "POS":
            parts = parts[:-1] or parts
        # One group of labels after another, each searched from its own side.
        for wanted, backwards in (
            (_NOMINAL | {"NML"}, True),
            ({"NP", "PRP", "WP", "WHNP"}, False),
            ({"$", "ADJP", "PRN"}, True),
            ({"CD"}, True),
        ):
            for part in reversed(parts) if backwards else parts:
                if label(part) in wanted:
                    return word(part)
        for part in reversed(parts):
            if label(part) in {"JJ", "JJS", "RB", "QP", "DT", "PRP$"}:
                return word(part)
        return word(parts[-1])
    if phrase.label in ("VP", "S", "SBAR", "SINV", "SQ", "SBARQ"):
        for wanted in ({"VP"}, {"VBD", "VBN", "MD", "VBZ", "VB", "VBG", "VBP"}, {"S", "SINV", "SQ"}, {"NP"}):
            for part in parts:
                if label(part) in wanted:
                    return word(part)
    if phrase.label in ("PP", "WHPP"):
        return word(parts[0])
    return word(parts[-1])


def _before_conjunction(parts: list[Phrase | int], label: Callable[[Phrase | int], str]) -> list[Phrase | int]:
    """What stands before the first conjunction, where it joins whole phrases or two words: the first conjunct is the head, as in UD."""
    for place, part in enumerate(parts):
        joins = label(part) in ("CC", "CONJP") and place > 0
        if joins and (len(parts) == 3 or not all(isinstance(p, int) for p in parts)):
            return parts[:place]
    return parts
