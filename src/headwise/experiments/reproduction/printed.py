"""The numbers and claims that the papers print, each with its table or section and a one-line
quotation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any


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
class WeakerForm:
    """A weaker condition, and the sentence that it still supports."""

    key: str
    rule: str
    supports: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of the paper with the rule by which it is judged here.

    Parameters
    ----------
    key, entry, where : str
        Its name, the table or figure whose numbers decide it, and where the sentence stands.
    quote, printed : str
        The sentence, and a short form of it with its numbers.
    rule : str
        The condition under which the sentence is true as printed, with its numbers and quantifiers.
    covers : tuple of str
        The words of the quotation that state a number or a quantity, and that the rule keeps.
    leaves_out : str, default ""
        What of the sentence the rule cannot try. Such a claim can hold in a weaker form at best.
    weaker : tuple of WeakerForm
        Weaker conditions, the strongest first.
    minimum : mapping of str to int
        The least sample, by what is counted; with fewer the claim stays undecided.
    bounds : mapping of str to float
        The numbers in the conditions, by name; the texts of the rules are filled in from them.
    """

    key: str
    entry: str
    where: str
    quote: str
    printed: str
    rule: str
    covers: tuple[str, ...] = ()
    leaves_out: str = ""
    weaker: tuple[WeakerForm, ...] = ()
    minimum: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Claim:
        """Make a claim from its entry in `printed/PAPER.json`."""
        bounds = content.get("bounds", {})
        weaker = []
        for form in content.get("weaker", ()):
            weaker.append(WeakerForm(form["key"], form["rule"].format(**bounds), form["supports"]))
        return cls(
            content["key"],
            content["entry"],
            content["where"],
            content["quote"],
            content["printed"],
            content["rule"].format(**bounds),
            tuple(content.get("covers", ())),
            content.get("leaves_out", ""),
            tuple(weaker),
            content.get("minimum", {}),
            bounds,
        )


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
    claims = tuple(Claim.from_json(claim) for claim in content["claims"])
    return PrintedPaper(entries, claims)


def bounds_of(paper: str, key: str) -> Mapping[str, float]:
    """Return the numbers in the rule of a claim, by name."""
    for claim in printed_paper(paper).claims:
        if claim.key == key:
            return claim.bounds
    raise KeyError(f"{paper} has no claim '{key}'")
