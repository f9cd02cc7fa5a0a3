"""Observers of named items (sieves, features, pairs): which are chosen, which cannot be had, which
match nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import xarray as xr

from headwise.analyses.contract import Observer, Shape
from headwise.core.errors import ParameterError, unknown

ANNOTATION_SOURCES = {
    "words": "give a corpus of words (.conllu, .jsonl with `words`) or name a parser with --parser",
    "dependencies": "give a treebank (.conllu) or name a parser with --parser",
    "pos": "give a treebank (.conllu) or name a parser with --parser",
    "coreference": "give a coreference corpus (gum:FILE, ontogum:FILE or conll2012:FILE)",
    "frames": "give a frame corpus (framenet:FILE)",
    "roles": "give conversations (`messages` in .jsonl)",
    "segments": "give pairs of texts (`pair` in .jsonl, two sentence columns in .tsv, txt-pairs:FILE)",
    "label": "give a corpus with labels (`label` in .jsonl, a label column in .tsv)",
}
T = TypeVar("T")


class Item(Protocol):
    """What an analysis looks for under a name: a sieve, a feature, a kind of pair."""

    @property
    def name(self) -> str: ...
    @property
    def requires(self) -> frozenset[str]: ...  # annotations
    def missing_reason(
        self, shape: Shape
    ) -> str | None: ...  # why a corpus or model cannot give it


def missing_annotation_reason(requires: frozenset[str], shape: Shape) -> str | None:
    """What the corpus has not of the annotations required, and how to get it; None where it has
    all."""
    lacking = sorted(requires - shape.annotations)
    advice = (
        f": {ANNOTATION_SOURCES[lacking[0]]}"
        if lacking and lacking[0] in ANNOTATION_SOURCES
        else ""
    )
    return f"the corpus has no {' and '.join(lacking)}{advice}" if lacking else None


def relation_matches(relation: str, wanted: frozenset[str]) -> bool:
    """Whether a relation is among these; one without a subtype stands for its subtypes: `nsubj` for
    `nsubj:pass`."""
    return relation in wanted or relation.split(":", 1)[0] in wanted


def known_relations(shape: Shape) -> list[str]:
    """The relations of a corpus, with and without subtype."""
    return sorted(
        {relation.split(":", 1)[0] for relation in shape.relations} | set(shape.relations)
    )


def split_names(given: Sequence[str] | str) -> list[str]:
    """The names of a parameter that takes a sequence, or names with commas between; each once.

    >>> listed("noun, verb,noun")
    ['noun', 'verb']
    """
    names = given.split(",") if isinstance(given, str) else given
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))


def choose_items(what: str, given: Sequence[str] | str, known: Mapping[str, T]) -> tuple[T, ...]:
    """The items that a parameter names, all known ones where it names none."""
    for name in (names := split_names(given) or list(known)):
        if name not in known:
            raise ParameterError(unknown(what, name, known))
    return tuple(known[name] for name in names)


class ItemObserver(Observer):
    """An observer of items that a parameter chooses. Set `item_dim` and `unmatched_reason`; write
    `chosen`."""

    item_dim: ClassVar[str]
    unmatched_reason: ClassVar[str]  # of an item that the corpus could have had

    def chosen(self) -> tuple[Item, ...]:
        raise NotImplementedError

    @property
    def requires(self) -> frozenset[str]:
        """Annotations without which none of the chosen items can be computed."""
        return frozenset.intersection(*(item.requires for item in self.chosen()))

    def missing_items(self, shape: Shape) -> dict[str, str]:
        found = {
            f"{self.item_dim}={item.name}": item.missing_reason(shape) for item in self.chosen()
        }
        return {name: reason for name, reason in found.items() if reason}

    def unsupported_reason(self, shape: Shape) -> str | None:
        reasons = [item.missing_reason(shape) for item in self.chosen()]
        return "; ".join(dict.fromkeys(filter(None, reasons))) if all(reasons) else None

    def matched_nothing(self, seen: np.ndarray, shape: Shape) -> list[str]:
        """The items that the corpus could have had and has not, by the counts `seen[item]`."""
        pairs = zip(self.chosen(), seen, strict=True)
        return [item.name for item, count in pairs if not count and not item.missing_reason(shape)]

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        names = filter(None, dataset.attrs["matched_nothing"].split(", "))
        return {f"{self.item_dim}={name}": self.unmatched_reason for name in names}
