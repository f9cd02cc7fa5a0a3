"""Words for readers in place of identifiers of files: parameters, facts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
