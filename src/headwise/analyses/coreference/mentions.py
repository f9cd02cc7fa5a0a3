"""Mentions with all that rules ask of them: head word, kind, words, and number, gender and
person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headwise.text.example import Example, Mention
from headwise.text.readers.entities import tree_head

MENTION_TYPES = ("pronoun", "proper", "nominal")
FEATURES = ("Number", "Gender", "Person")

_SINGULAR: dict[str, str] = {"Number": "Sing"}
_PLURAL: dict[str, str] = {"Number": "Plur"}
_SECOND: dict[str, str] = {"Person": "2"}
_THIRD: dict[str, str] = {"Person": "3"}
# English pronouns, for words whose features are not annotated.
PRONOUNS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("i", "me", "my", "mine", "myself"), _SINGULAR | {"Person": "1"}),
    **dict.fromkeys(("we", "us", "our", "ours", "ourselves"), _PLURAL | {"Person": "1"}),
    **dict.fromkeys(("you", "your", "yours"), _SECOND),
    "yourself": _SINGULAR | {"Person": "2"},
    "yourselves": _PLURAL | {"Person": "2"},
    **dict.fromkeys(("he", "him", "his", "himself"), _SINGULAR | {"Person": "3", "Gender": "Masc"}),
    **dict.fromkeys(
        ("she", "her", "hers", "herself"), _SINGULAR | {"Person": "3", "Gender": "Fem"}
    ),
    **dict.fromkeys(("it", "its", "itself"), _SINGULAR | {"Person": "3", "Gender": "Neut"}),
    **dict.fromkeys(("they", "them", "their", "theirs", "themselves"), _PLURAL | {"Person": "3"}),
    **dict.fromkeys(("this", "that"), _SINGULAR | {"Person": "3"}),
    **dict.fromkeys(("these", "those"), _PLURAL | {"Person": "3"}),
    **dict.fromkeys(("who", "whom", "whose", "which", "one", "oneself"), _THIRD),
}
# Where a phrase's head has been passed, for phrases without a tree.
_BREAKS = frozenset(
    {
        *(",", ";", ":", "(", ")", "[", "]", "-LRB-", "-RRB-", "--", "–", "—"),
        *(
            "of",
            "in",
            "on",
            "at",
            "by",
            "for",
            "from",
            "with",
            "without",
            "to",
            "into",
            "about",
            "over",
            "under",
        ),
        *(
            "between",
            "among",
            "against",
            "during",
            "after",
            "before",
            "near",
            "including",
            "like",
            "as",
        ),
        *("who", "whom", "whose", "which", "that", "where", "when", "while"),
    }
)
_POSSESSIVE = frozenset({"'s", "’s", "'", "’"})


@dataclass(frozen=True, slots=True)
class Expression:
    """A referring expression: a mention with its head word and what tells it from others.

    `head` and `start`, `end` are word indices (end exclusive); `kind` is one of MENTION_TYPES;
    `text` and `head_text` are lower-cased; `features` holds those of Number (`Sing`, `Plur`),
    Gender and Person that are known."""

    start: int
    end: int
    entity: str
    head: int
    kind: str
    text: str
    head_text: str
    features: Mapping[str, str]

    @property
    def order(self) -> tuple[int, int]:
        """Reading order: by first word, the longer before the shorter."""
        return self.start, -self.end


def expressions_of(example: Example, singletons: bool = False) -> list[Expression]:
    """The mentions of an example in reading order; those of entities mentioned once are left out
    unless asked for."""
    given = example.mentions or ()
    sizes = Counter(mention.entity for mention in given)
    found = [
        _expression(example, mention)
        for mention in given
        if singletons or sizes[mention.entity] > 1
    ]
    return sorted(found, key=lambda expression: (*expression.order, expression.entity))


def head_word(example: Example, mention: Mention) -> int:
    """The head word of a mention.

    The one given with it; else, with a tree, the word whose own head lies outside the mention; else
    the last word before the first preposition, relative word, comma, colon, bracket or dash that is
    not its first word, a possessive mark at the end left aside."""
    if mention.head is not None:
        return mention.head
    if example.heads is not None:
        return tree_head(mention.start, mention.end, example.heads)
    words = example.all_words
    end = mention.end
    for word in range(mention.start + 1, mention.end):
        tag = example.upos[word] if example.upos is not None else ""
        if words[word].lower() in _BREAKS or words[word] in _BREAKS or tag in ("ADP", "SCONJ"):
            end = word
            break
    head = end - 1
    while head > mention.start and words[head] in _POSSESSIVE:
        head -= 1
    return head


def _expression(example: Example, mention: Mention) -> Expression:
    words = example.all_words
    head = head_word(example, mention)
    kind = _kind(example, head)
    text = " ".join(word.lower() for word in words[mention.start : mention.end])
    features = _features(example, mention, head, kind)
    place = (mention.start, mention.end, mention.entity, head)
    return Expression(*place, kind, text, words[head].lower(), features)


def _kind(example: Example, head: int) -> str:
    """By the head word's part of speech; where there is none, a word of the list is a pronoun and a
    capital letter makes a name (unless it opens a sentence)."""
    word = example.all_words[head]
    if example.upos is not None:
        return {"PRON": "pronoun", "PROPN": "proper"}.get(example.upos[head], "nominal")
    if word.lower() in PRONOUNS:
        return "pronoun"
    opens = head == 0 or (
        example.sentences is not None and example.sentences[head] != example.sentences[head - 1]
    )
    return "proper" if word[:1].isupper() and not opens else "nominal"


def _features(example: Example, mention: Mention, head: int, kind: str) -> dict[str, str]:
    """Number, gender and person as annotated; what is not comes from the list of pronouns, and all
    other words are of the third person. Joined phrases are plural."""
    given = example.features[head] if example.features is not None else {}
    found = {name: given[name] for name in FEATURES if name in given}
    if kind == "pronoun":
        found = PRONOUNS.get(example.all_words[head].lower(), {}) | found
    else:
        found.setdefault("Person", "3")
    if found.get("Number") == "Ptan":
        found["Number"] = "Plur"
    if example.heads is not None and example.relations is not None:
        joined = any(
            example.heads[word] == head and example.relations[word].split(":")[0] == "conj"
            for word in range(mention.start, mention.end)
        )
        found |= _PLURAL if joined else {}
    return found
