"""Roles of heads in words for readers, on the page and in the explorer."""

from __future__ import annotations

WITHOUT_FIRST = "without the first token: "  # as `atlas.describe()` writes it
ROLE_WORDS = {
    "local": "neighbouring tokens",
    "local:prev": "previous word",
    "local:next": "next word",
    "syntactic": "syntax",
    "nsubj": "subjects (nsubj)",
    "dobj": "objects (dobj)",
    "amod": "adjectives (amod)",
    "advmod": "adverbs (advmod)",
    "block": "the same segment",
    "delimiter": "delimiters",
    "cls": "opening token",
    "sep": "closing token",
    "first": "first token",
    "sink": "attention sink",
    "rare": "the rarest token",
    "same_word": "the same word elsewhere",
    "same_word:other_segment": "the same word in the other segment",
    "siblings": "siblings in the tree",
    "question_mark": "question mark",
    "previous": "previous token",
    "duplicate": "earlier occurrence of the token",
    "induction": "token after an earlier occurrence",
}


def role_words(role: str) -> str:
    """Return the name of a role for readers; a role of the user keeps its name, in words.

    >>> role_words("same_word:other_segment")
    'the same word in the other segment'
    >>> role_words("my_role")
    'my role'
    """
    return ROLE_WORDS.get(role, role.replace("_", " "))


def roles_text(roles: str) -> str:
    """Return the roles of a head, as `atlas.describe()` lists them, in words.

    >>> roles_text("local:prev, without the first token: induction")
    'previous word, without the first token: token after an earlier occurrence'
    """
    words = []
    for role in roles.split(", "):
        if role.startswith(WITHOUT_FIRST):
            words.append(WITHOUT_FIRST + role_words(role.removeprefix(WITHOUT_FIRST)))
        else:
            words.append(role_words(role))
    return ", ".join(words)
