"""Observers of named items (sieves, features, pairs): which are chosen, missing or unmatched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import xarray as xr

from headwise.analyses.contract import Observer, Shape
from headwise.core.errors import ParameterError, unknown

# How to get each annotation.
ANNOTATION_SOURCES = {
    "words": "use a corpus of words (.conllu, .jsonl with `words`) or set `parser`",
    "dependencies": "use a treebank (.conllu) or set `parser`",
    "pos": "use a treebank (.conllu) or set `parser`",
    "coreference": "use a coreference corpus (gum:FILE, ontogum:FILE or conll2012:FILE)",
    "frames": "use a frame corpus (framenet:FILE)",
    "roles": "use conversations (`messages` in .jsonl)",
    "segments": "use pairs of texts (`pair` in .jsonl, two sentence columns in .tsv, "
    "txt-pairs:FILE)",
    "label": "use a corpus with labels (`label` in .jsonl, a label column in .tsv)",
}
# Those that the parser named by `parser` adds to plain text.
PARSED_ANNOTATIONS = frozenset({"words", "dependencies", "pos"})
ItemType = TypeVar("ItemType")


class Item(Protocol):
    """Something an analysis looks for under a name: a sieve, a feature, a type of pair."""

    @property
    def name(self) -> str: ...

    @property
    def requires(self) -> frozenset[str]:
        """The annotations it needs."""
        ...

    def missing_reason(self, shape: Shape) -> str | None:
        """Return why a corpus or model lacks it; None if it does not."""
        ...


def missing_annotation_reason(requires: frozenset[str], shape: Shape) -> str | None:
    """Return which required annotations the corpus lacks, and how to get them; None if none."""
    missing = sorted(requires - shape.annotations)
    if not missing:
        return None
    reason = f"the corpus has no {' and '.join(missing)}"
    if missing[0] in ANNOTATION_SOURCES:
        reason += f": {ANNOTATION_SOURCES[missing[0]]}"
    return reason


def relation_matches(relation: str, wanted: frozenset[str]) -> bool:
    """Return whether a relation is among these; `nsubj` also stands for `nsubj:pass`."""
    return relation in wanted or relation.split(":", 1)[0] in wanted


def known_relations(shape: Shape) -> list[str]:
    """Return the relations of a corpus, with and without subtype."""
    without_subtype = {relation.split(":", 1)[0] for relation in shape.relations}
    return sorted(without_subtype | set(shape.relations))


def split_names(names: Sequence[str] | str) -> list[str]:
    """Return the names of a parameter that is a sequence, or a text with commas; each once.

    >>> split_names("noun, verb,noun")
    ['noun', 'verb']
    """
    if isinstance(names, str):
        names = names.split(",")
    stripped = [name.strip() for name in names]
    return list(dict.fromkeys(name for name in stripped if name))


def choose_items(
    what: str, names: Sequence[str] | str, known: Mapping[str, ItemType]
) -> tuple[ItemType, ...]:
    """Return the items that a parameter names; all known ones if it names none."""
    chosen = []
    for name in split_names(names) or list(known):
        if name not in known:
            raise ParameterError(unknown(what, name, known))
        chosen.append(known[name])
    return tuple(chosen)


class ItemObserver(Observer):
    """An observer of items that a parameter chooses.

    Set `item_dim` and `unmatched_reason`; write `chosen`."""

    item_dim: ClassVar[str]
    # Why an item has no values although the corpus has the annotations.
    unmatched_reason: ClassVar[str]

    def chosen(self) -> tuple[Item, ...]:
        """Return the items it looks for."""
        raise NotImplementedError

    @property
    def requires(self) -> frozenset[str]:
        """Annotations without which none of the chosen items can be computed."""
        return frozenset.intersection(*(item.requires for item in self.chosen()))

    def missing_items(self, shape: Shape) -> dict[str, str]:
        reasons = {}
        for item in self.chosen():
            reason = item.missing_reason(shape)
            if reason:
                reasons[f"{self.item_dim}={item.name}"] = reason
        return reasons

    def unsupported_reason(self, shape: Shape) -> str | None:
        reasons = []
        for item in self.chosen():
            reason = item.missing_reason(shape)
            if not reason:
                return None
            reasons.append(reason)
        return "; ".join(dict.fromkeys(reasons))

    def matched_nothing(self, counts: np.ndarray, shape: Shape) -> list[str]:
        """Return the items that could occur in the corpus and do not, by their `counts[item]`."""
        names = []
        for item, count in zip(self.chosen(), counts, strict=True):
            if not count and not item.missing_reason(shape):
                names.append(item.name)
        return names

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        names = split_names(dataset.attrs["matched_nothing"])
        return {f"{self.item_dim}={name}": self.unmatched_reason for name in names}
