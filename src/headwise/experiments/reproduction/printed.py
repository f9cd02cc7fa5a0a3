"""The numbers and claims that the papers print, each with its table or section and a one-line
quotation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class PrintedValue:
    """One printed number; `value` is None for a number of ours that the paper does not print."""

    key: str
    label: str
    value: float | None
    quote: str
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class PrintedEntry:
    """A printed table or figure: where it stands, the first words of its caption, its numbers."""

    where: str
    quote: str
    values: tuple[PrintedValue, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of the paper, a short form of it, and the rule by which it holds here."""

    key: str
    entry: str
    where: str
    quote: str
    printed: str
    rule: str


@dataclass(frozen=True, slots=True)
class PrintedPaper:
    """All printed entries and claims of one paper."""

    entries: Mapping[str, PrintedEntry]
    claims: tuple[Claim, ...]


@cache
def printed_paper(paper: str) -> PrintedPaper:
    """Read what a paper prints from `printed/PAPER.json`."""
    package = resources.files("headwise.experiments.reproduction")
    file = package.joinpath("printed", f"{paper}.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    entries = {}
    for key, entry in content["entries"].items():
        values = tuple(PrintedValue(**value) for value in entry.get("values", ()))
        entries[key] = PrintedEntry(entry["where"], entry["quote"], values)
    claims = tuple(Claim(**claim) for claim in content["claims"])
    return PrintedPaper(entries, claims)
