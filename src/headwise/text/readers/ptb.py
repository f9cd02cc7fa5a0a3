"""Penn Treebank tags and phrases: tags as UPOS, and the head word of a phrase, for files without
dependency trees."""

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
_UPOS = {}
for _upos, _penn_tags in _TAGS.items():
    _UPOS.update(dict.fromkeys(_penn_tags.split(), _upos))
_NUMBER = {"NN": "Sing", "NNP": "Sing", "NNS": "Plur", "NNPS": "Plur"}


def upos_of(tag: str) -> str:
    """Return the universal part of speech of a Penn tag.

    Penn tags do not tell auxiliaries from verbs: all but modals are verbs.
    """
    return _UPOS.get(tag, "X")


def number_of(tag: str) -> dict[str, str]:
    """Return the grammatical number of a noun's tag as a UD feature; {} for other tags."""
    return {"Number": _NUMBER[tag]} if tag in _NUMBER else {}


@dataclass
class Phrase:
    """A constituent: its label, its words `start..end` (end exclusive), and the constituents and
    words it consists of, in order."""

    label: str
    start: int
    end: int = 0
    parts: list[Phrase | int] = field(default_factory=list)
    head: int = -1  # its head word, set by `PhraseHeads`


DEFAULT = Limits()
_BRACKET_OR_WORD = re.compile(r"\([^()*\s]*|\*|\)")


def phrases(
    parse_column: Sequence[str],
    places: Sequence[str],
    sentences: Sequence[int],
    limits: Limits = DEFAULT,
) -> list[Phrase]:
    """Return all constituents of a sentence, the outer ones before those in them.

    Parameters
    ----------
    parse_column : sequence of str
        The parse of each word, as CoNLL-2012 writes it (`(NP*`, `*)`, ...). A word without a parse
        (`-`) is skipped.
    places : sequence of str
        Where each word stands in its file, for messages.
    sentences : sequence of int
        The sentence of each word; a tree must end with its sentence.
    limits : Limits, optional
        The greatest depth.
    """
    all_phrases: list[Phrase] = []
    open_phrases: list[Phrase] = []
    for word, cell in enumerate(parse_column):
        if open_phrases and sentences[word] != sentences[word - 1]:
            break
        if cell in ("-", "_"):
            continue
        symbols = _BRACKET_OR_WORD.findall(cell)
        if "".join(symbols) != cell or cell.count("*") != 1:
            raise InputError(
                f"{places[word]}: the parse column holds '{shown(cell)}', "
                "which is no piece of a bracketed tree."
            )
        for symbol in symbols:
            if symbol == "*":
                if open_phrases:
                    open_phrases[-1].parts.append(word)
            elif symbol == ")":
                if not open_phrases:
                    raise InputError(
                        f"{places[word]}: the parse column closes a bracket that nothing opened."
                    )
                open_phrases.pop().end = word + 1
            else:
                # `NP-SBJ=1` is an NP with a function and an index.
                label = re.split(r"[-=]", symbol[1:], maxsplit=1)[0]
                phrase = Phrase(label, word)
                if open_phrases:
                    open_phrases[-1].parts.append(phrase)
                open_phrases.append(phrase)
                all_phrases.append(phrase)
                limits.hold("max_depth", len(open_phrases), places[word])
    if open_phrases:
        where = places[open_phrases[-1].start]
        raise InputError(f"{where}: the parse column opens a bracket here that nothing closes.")
    return all_phrases


# Which part of a phrase is its head: one group of labels after another, each searched from the left
# (1) or from the right (-1).
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
    """Return the head word of a phrase; the heads of its parts must be set."""

    def label(part: Phrase | int) -> str:
        return tags[part] if isinstance(part, int) else part.label

    def head_word(part: Phrase | int) -> int:
        return part if isinstance(part, int) else part.head

    parts = _first_conjunct(phrase.parts or [phrase.start], label)
    rules = _RULES.get(phrase.label, ())
    ends_with_possessive = label(parts[-1]) == "POS"
    if rules is _NOUN_RULES and ends_with_possessive and len(parts) > 1:
        parts = parts[:-1]
    for head_labels, direction in rules:
        for part in parts[::direction]:
            if label(part) in head_labels:
                return head_word(part)
    is_prepositional = phrase.label in ("PP", "WHPP")
    return head_word(parts[0] if is_prepositional else parts[-1])


def _first_conjunct(
    parts: list[Phrase | int], label: Callable[[Phrase | int], str]
) -> list[Phrase | int]:
    """Return the parts before the first conjunction, where it joins whole phrases or two words.

    The first conjunct is the head, as in UD. In a flat phrase of more words (`black and white
    cats`) the conjunction may join modifiers, so that all parts are kept.
    """
    is_flat = all(isinstance(part, int) for part in parts)
    if is_flat and len(parts) != 3:
        return parts
    for index, part in enumerate(parts):
        if index > 0 and label(part) in ("CC", "CONJP"):
            return parts[:index]
    return parts


class PhraseHeads:
    """The head words of stretches of words by Collins' rules for noun phrases (1999, appendix A).

    A stretch that is a constituent has the head of that constituent; any other stretch is treated
    as a flat noun phrase of its words. The heads of all constituents are computed once. A flat
    stretch is looked up in the sorted positions of each tag, so that its length does not matter.

    Parameters
    ----------
    nested : sequence of Phrase
        The constituents, outer ones before those in them.
    tags : sequence of str
        The Penn tag of each word.
    """

    def __init__(self, nested: Sequence[Phrase], tags: Sequence[str]) -> None:
        self.tags = tags
        self.head_of_constituent: dict[tuple[int, int], int] = {}
        # Inner ones first, since a head comes from the parts; of constituents over the same words
        # the outermost comes last and stays.
        for phrase in reversed(nested):
            phrase.head = _head(phrase, tags)
            self.head_of_constituent[phrase.start, phrase.end] = phrase.head
        self.words_of_rule: list[list[int]] = []
        for head_labels, _ in _NOUN_RULES:
            self.words_of_rule.append([w for w, tag in enumerate(tags) if tag in head_labels])

    def __call__(self, start: int, end: int) -> int:
        """Return the head word of `start..end` (end exclusive)."""
        if (start, end) in self.head_of_constituent:
            return self.head_of_constituent[start, end]
        if end - start <= 3:  # `_head` has a rule for two words and a conjunction
            return _head(Phrase("NP", start, end, list(range(start, end))), self.tags)
        if self.tags[end - 1] == "POS":
            end -= 1
        for words, (_, direction) in zip(self.words_of_rule, _NOUN_RULES, strict=True):
            first = bisect_left(words, start)
            behind_last = bisect_left(words, end)
            if first < behind_last:
                return words[first] if direction == 1 else words[behind_last - 1]
        return end - 1
