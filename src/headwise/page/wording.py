"""Words for readers in place of identifiers of files: roles, parameters, facts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Return the parameters of an analysis in words.

    >>> parameters_text({"heads": [], "max_length": None, "full": False})
    'heads: none named; max length: not set; full: no'
    """
    return "; ".join(
        f"{name.replace('_', ' ')}: {_value(value)}" for name, value in parameters.items()
    )


def _value(value: Any) -> str:
    if value is None or value == "":
        return "not set"
    if value is True:
        return "yes"
    if value is False:
        return "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none named"
    return str(value)


def run_facts(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the five facts about a run that readers ask for first: model, corpus, software, seed
    and arithmetic."""
    model = provenance.get("model", {})
    corpus = provenance.get("corpus", {})
    facts = []
    if model:
        text = str(model.get("name", "?"))
        if "weight_hash" in model:
            text += f", weights {str(model['weight_hash'])[:12]}"
        facts.append(("Model", text))
    if corpus:
        text = str(corpus.get("name", "?"))
        counts = []
        for name in ("examples", "tokens"):
            if name in corpus:
                counts.append(f"{corpus[name]:,} {name}")
        if counts:
            text += f": {', '.join(counts)}"
        if corpus.get("licence"):
            text += f" ({corpus['licence']})"
        facts.append(("Corpus", text))
    software = []
    for name in ("headwise", "torch", "transformers"):
        if name in provenance:
            software.append(f"{name} {provenance[name]}")
    if software:
        facts.append(("Software", ", ".join(software)))
    if "seed" in provenance:
        facts.append(("Seed", str(provenance["seed"])))
    if "device" in provenance:
        facts.append(("Computed on", f"{provenance['device']}, {provenance.get('dtype', '?')}"))
    return facts
