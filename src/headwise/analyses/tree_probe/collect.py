"""What the parsing probes are trained on: sentences with trees, in parts, and the word-level maps
of all heads."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headwise.core.store import CheckpointStore
from headwise.core.workers import current, raise_failures
from headwise.models import HeadModel
from headwise.models.vectors import IN_MEMORY, scratch_array
from headwise.models.view import AttentionRows, Watcher
from headwise.models.words import word_index, word_maps
from headwise.probes.tree import DependencyTrees, WordMaps, flatten_maps
from headwise.probes.vectors import WordVectors
from headwise.text.encode import Batch, Encoded, batches
from headwise.text.example import ROOT, Example

COLLECT_TOKENS = 2048
PIECE = 4  # batches whose maps are kept as one piece
NORM = 32.0  # mean squared norm of the scaled word vectors (GloVe's own is near it): one learning rate serves all


@dataclass(slots=True, eq=False)
class Sentences:
    """Encoded sentences, which of them are for what, and how many were left out."""

    rows: list[Encoded] = field(default_factory=list)
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    unaligned: int = 0
    too_long: int = 0

    def take(
        self,
        examples: Sequence[Example],
        encode: Callable[[int], Encoded | None],
        longest: int,
        wanted: int = 0,
        generator: np.random.Generator | None = None,
    ) -> None:
        """Take in sentences that have trees, are not too long, and whose words have tokens of their
        own.

        Where only so many are `wanted`, examples are drawn one after the other until there are as
        many; the others are neither encoded nor counted. What is taken keeps its order."""
        order = (
            range(len(examples))
            if generator is None
            else generator.permutation(len(examples)).tolist()
        )
        found: dict[int, Encoded] = {}
        for place in order:
            if wanted and len(found) == wanted:
                break
            row = encode(place)
            if not _is_parsed(examples[place] if row is None else row.example):
                continue
            if row is None or row.truncated or len(row.example.all_words) > longest:
                self.too_long += 1
            elif not row.every_word:
                self.unaligned += 1
            else:
                found[place] = row
        first = len(self.rows)
        self.rows += [
            replace(found[place], index=first + i) for i, place in enumerate(sorted(found))
        ]

    def digest(self) -> str:
        """What sentences these are."""
        return hashlib.sha256(b"".join(row.example.fingerprint() for row in self.rows)).hexdigest()


def _is_parsed(example: Example) -> bool:
    return example.heads is not None and example.relations is not None and example.words is not None


@dataclass(frozen=True, slots=True, eq=False)
class Gathering:
    """What is gathered of every sentence, in one pass of a model, and kept a few batches at a time.

    `job` gives the array `values` of some batches, sentence after sentence; `place` where a
    sentence's part of them is to lie."""

    kind: str  # names the pieces in the store
    job: Callable[[Sequence[Batch]], tuple[dict[str, np.ndarray], dict[str, str]]]
    place: Callable[[int], np.ndarray]

    def run(
        self,
        model: HeadModel,
        rows: Sequence[Encoded],
        store: CheckpointStore,
        report: Callable[[int, int], None],
    ) -> None:
        """Have all pieces made, or read them, and lay every sentence's values in their place."""
        together = batches(list(rows), COLLECT_TOKENS, model.pad_id, model.device)
        groups = {
            start: together[start : start + PIECE] for start in range(0, len(together), PIECE)
        }
        units = ((f"{self.kind}-{start:06d}", some) for start, some in groups.items())
        seen = 0
        for some, piece in zip(
            groups.values(),
            raise_failures(current().run_units(store, self.job, units)),
            strict=True,
        ):
            values = piece.arrays["values"]
            for sentence in (row.index for batch in some for row in batch.rows):
                own = self.place(sentence)
                own[:], values = values[: len(own)], values[len(own) :]
            seen += sum(map(len, some))
            report(seen, len(rows))


def room(store: CheckpointStore, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A float16 array for what is gathered: in memory, or in a file where it is large."""
    large = 2 * math.prod(shape) > IN_MEMORY
    return (
        scratch_array(store, name, shape, "float16") if large else np.zeros(shape, dtype=np.float16)
    )


def drop_gathered(store: CheckpointStore, kind: str) -> None:
    """Forget the pieces of a kind, once what was made of them is kept."""
    for name in store.names():
        if name.startswith(f"{kind}-"):
            store.drop(name)


def collect_maps(
    model: HeadModel,
    rows: Sequence[Encoded],
    store: CheckpointStore,
    kind: str,
    report: Callable[[int, int], None],
) -> WordMaps:
    """The word-level maps of all sentences."""
    sizes, heads = [row.word_count for row in rows], model.layers * model.heads
    kept = WordMaps(sizes, heads, room(store, f"{kind}-maps", (WordMaps.length(sizes, heads),)))
    Gathering(f"{kind}-maps", partial(_map_piece, model), kept.flat).run(model, rows, store, report)
    return kept


def _map_piece(
    model: HeadModel, some: Sequence[Batch]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The word-level maps of some batches, sentence after sentence."""
    found = []
    for batch in some:
        watcher = _Maps(batch)
        model.forward(batch, watcher)
        maps = watcher.maps()
        found += [
            flatten_maps(own[:, : row.word_count, : row.word_count])
            for own, row in zip(maps, batch.rows, strict=True)
        ]
    return {"values": np.concatenate(found)}, {}


class _Maps(Watcher):
    """Gathers the word-level maps of one batch, all layers."""

    needs = frozenset({"attention"})

    def __init__(self, batch: Batch) -> None:
        self.index = word_index(batch)
        self.layers: dict[int, Tensor] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        part = word_maps(rows, self.index)
        self.layers[rows.layer] = (
            self.layers[rows.layer] + part if rows.layer in self.layers else part
        )

    def maps(self) -> np.ndarray:
        """`[example, layer · heads + head, from word, to word]`"""
        return (
            torch.cat([self.layers[layer] for layer in sorted(self.layers)], dim=1)
            .half()
            .cpu()
            .numpy()
        )


def make_trees(rows: Sequence[Encoded], vectors: WordVectors) -> DependencyTrees:
    """Heads, scored words (all but punctuation) and vectors of sentences; vectors are scaled by one
    number for all."""
    found = [vectors.of(row) for row in rows]
    norms = np.concatenate([(v**2).sum(1) for v in found]) if found else np.zeros(0)
    typical = norms[norms > 0].mean() if (norms > 0).any() else 1.0
    scale = np.float32(np.sqrt(NORM / typical))
    heads = [
        np.array([row.word_count if h == ROOT else h for h in row.example.heads or ()])
        for row in rows
    ]
    scored = [
        np.array([relation.split(":")[0] != "punct" for relation in row.example.relations or ()])
        for row in rows
    ]
    return DependencyTrees([v * scale for v in found], heads, scored)
