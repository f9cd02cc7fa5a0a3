"""Mentions with what baselines compare: head word, type, words, and number, gender and person."""

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
# Words that follow the head of a phrase, for phrases without a tree.
_BREAK_WORDS = """
, ; : ( ) [ ] -LRB- -RRB- -- – —
of in on at by for from with without to into about over under
between among against during after before near including like as
who whom whose which that where when while
"""
_BREAKS = frozenset(_BREAK_WORDS.split())
_POSSESSIVE = frozenset({"'s", "’s", "'", "’"})


@dataclass(frozen=True, slots=True)
class Expression:
    """A referring expression: a mention with its head word, its type and its features.

    `head` and `start`, `end` are word indices (end exclusive); `mention_type` is one of
    MENTION_TYPES; `text` and `head_text` are lower-cased; `features` holds those of Number (`Sing`,
    `Plur`), Gender and Person that are known."""

    start: int
    end: int
    entity: str
    head: int
    mention_type: str
    text: str
    head_text: str
    features: Mapping[str, str]

    @property
    def order(self) -> tuple[int, int]:
        """Reading order: by first word, the longer before the shorter."""
        return self.start, -self.end


def expressions_of(example: Example, singletons: bool = False) -> list[Expression]:
    """Return the mentions of an example in reading order.

    Parameters
    ----------
    example : Example
        The example.
    singletons : bool, default False
        Include mentions of entities that the example mentions once.
    """
    mentions = example.mentions or ()
    mention_counts = Counter(mention.entity for mention in mentions)
    expressions = []
    for mention in mentions:
        if singletons or mention_counts[mention.entity] > 1:
            expressions.append(_expression(example, mention))
    return sorted(expressions, key=lambda expression: (*expression.order, expression.entity))


def head_word(example: Example, mention: Mention) -> int:
    """Return the head word of a mention.

    This is the annotated one; else, with a tree, the word whose own head lies outside the mention;
    else the last word before the first preposition, relative word, comma, colon, bracket or dash
    that is not its first word, without a possessive mark at the end."""
    if mention.head is not None:
        return mention.head
    if example.heads is not None:
        return tree_head(mention.start, mention.end, example.heads)
    words = example.all_words
    end = mention.end
    for index in range(mention.start + 1, mention.end):
        word = words[index]
        tag = "" if example.upos is None else example.upos[index]
        # -LRB- and -RRB- are listed in capitals.
        if word.lower() in _BREAKS or word in _BREAKS or tag in ("ADP", "SCONJ"):
            end = index
            break
    head = end - 1
    while head > mention.start and words[head] in _POSSESSIVE:
        head -= 1
    return head


def _expression(example: Example, mention: Mention) -> Expression:
    words = example.all_words
    head = head_word(example, mention)
    mention_type = _mention_type(example, head)
    return Expression(
        start=mention.start,
        end=mention.end,
        entity=mention.entity,
        head=head,
        mention_type=mention_type,
        text=" ".join(words[mention.start : mention.end]).lower(),
        head_text=words[head].lower(),
        features=_features(example, mention, head, mention_type),
    )


def _mention_type(example: Example, head: int) -> str:
    """Return the type of a mention by its head word's part of speech.

    Without parts of speech, words of the list are pronouns, and a capital letter marks a name
    (unless it opens a sentence)."""
    word = example.all_words[head]
    if example.upos is not None:
        return {"PRON": "pronoun", "PROPN": "proper"}.get(example.upos[head], "nominal")
    if word.lower() in PRONOUNS:
        return "pronoun"
    opens_sentence = head == 0
    if head > 0 and example.sentences is not None:
        opens_sentence = example.sentences[head] != example.sentences[head - 1]
    if word[:1].isupper() and not opens_sentence:
        return "proper"
    return "nominal"


def _features(example: Example, mention: Mention, head: int, mention_type: str) -> dict[str, str]:
    """Return number, gender and person as annotated.

    Missing ones come from the list of pronouns; all other words are third person. Coordinated
    phrases are plural."""
    annotated: Mapping[str, str] = {}
    if example.features is not None:
        annotated = example.features[head]
    features = {name: annotated[name] for name in FEATURES if name in annotated}
    if mention_type == "pronoun":
        features = PRONOUNS.get(example.all_words[head].lower(), {}) | features
    else:
        features.setdefault("Person", "3")
    if features.get("Number") == "Ptan":  # plurale tantum: "scissors"
        features["Number"] = "Plur"
    if _is_coordinated(example, mention, head):
        features |= _PLURAL
    return features


def _is_coordinated(example: Example, mention: Mention, head: int) -> bool:
    """Return whether the mention holds a conjunct of its head word ("the cat and the dog")."""
    if example.heads is None or example.relations is None:
        return False
    for word in range(mention.start, mention.end):
        if example.heads[word] == head and example.relations[word].split(":")[0] == "conj":
            return True
    return False
