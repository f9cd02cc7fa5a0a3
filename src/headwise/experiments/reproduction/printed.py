"""What the papers print: numbers and claims as data, each with its table or section and a quotation
of one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Value:
    """One printed number."""

    key: str
    label: str
    value: float | None  # None for a number of ours that the paper does not print
    quote: str
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Caption:
    """A table or figure as the paper has it: where, the first words of its caption, its numbers."""

    where: str
    quote: str
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of the paper, what it says in short, and the rule by which it holds here."""

    key: str
    entry: str
    where: str
    quote: str
    printed: str
    rule: str


@dataclass(frozen=True, slots=True)
class Printed:
    """All that is kept of one paper."""

    entries: Mapping[str, Caption]
    claims: tuple[Claim, ...]


@cache
def printed(paper: str) -> Printed:
    """What a paper prints, from `printed/PAPER.json`."""
    file = resources.files("headwise.experiments.reproduction").joinpath("printed", f"{paper}.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    entries = {
        key: Caption(
            entry["where"],
            entry["quote"],
            tuple(Value(**value) for value in entry.get("values", ())),
        )
        for key, entry in found["entries"].items()
    }
    return Printed(entries, tuple(Claim(**claim) for claim in found["claims"]))
