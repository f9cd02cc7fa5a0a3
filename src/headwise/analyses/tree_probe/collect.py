"""The data of the parsing probes: sentences with trees, in parts, and the word-level maps of all
heads."""

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
from headwise.models.vectors import MAX_BYTES_IN_MEMORY, scratch_array
from headwise.models.view import AttentionRows, Watcher
from headwise.models.words import word_index, word_maps
from headwise.probes.tree import DependencyTrees, WordMaps, flatten_maps
from headwise.probes.vectors import WordVectors
from headwise.text.encode import Batch, Encoded, batches
from headwise.text.example import ROOT, Example

COLLECT_TOKENS = 2048
CHECKPOINT_BATCHES = 4  # batches of one checkpoint
# Mean squared norm of the scaled word vectors, near that of GloVe: one learning rate then suits all
# vectors.
VECTOR_NORM = 32.0

Report = Callable[[int, int], None]  # done, total
Compute = Callable[[Sequence[Batch]], tuple[dict[str, np.ndarray], dict[str, str]]]


@dataclass(slots=True, eq=False)
class SentenceSets:
    """Encoded sentences, which of them are for training, validation and test, and how many were
    left out."""

    rows: list[Encoded] = field(default_factory=list)
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    unaligned: int = 0
    too_long: int = 0

    def add(
        self,
        examples: Sequence[Example],
        encode: Callable[[int], Encoded | None],
        longest: int,
        count: int = 0,
        generator: np.random.Generator | None = None,
    ) -> None:
        """Add sentences that have trees, are not too long, and whose words have tokens of their
        own.

        Parameters
        ----------
        examples : sequence of Example
            The candidates.
        encode : callable
            From an example's position to its encoding; None for one that does not fit the model.
        longest : int
            The most words of a sentence.
        count : int, default 0
            Draw examples in random order until this many are added; the others are neither encoded
            nor counted as left out. 0: all. Added sentences keep their order.
        generator : numpy Generator, optional
            Draws the order.
        """
        if generator is None:
            order = list(range(len(examples)))
        else:
            order = generator.permutation(len(examples)).tolist()
        chosen: dict[int, Encoded] = {}
        for position in order:
            if count and len(chosen) == count:
                break
            row = encode(position)
            example = examples[position] if row is None else row.example
            if not _has_tree(example):
                continue
            if row is None or row.truncated or len(row.example.all_words) > longest:
                self.too_long += 1
            elif not row.every_word:
                self.unaligned += 1
            else:
                chosen[position] = row
        for position in sorted(chosen):
            self.rows.append(replace(chosen[position], index=len(self.rows)))

    def digest(self) -> str:
        """Return a digest of all sentences."""
        return hashlib.sha256(b"".join(row.example.fingerprint() for row in self.rows)).hexdigest()


def _has_tree(example: Example) -> bool:
    return example.heads is not None and example.relations is not None and example.words is not None


@dataclass(frozen=True, slots=True, eq=False)
class SentenceCollector:
    """Computes an array for every sentence in one pass of a model, with checkpoints.

    Parameters
    ----------
    kind : str
        Names the checkpoints.
    compute : callable
        Returns the array `values` of some batches, sentence after sentence.
    destination : callable
        Returns the view that the values of a sentence are written to.
    """

    kind: str
    compute: Compute
    destination: Callable[[int], np.ndarray]

    def run(
        self, model: HeadModel, rows: Sequence[Encoded], store: CheckpointStore, report: Report
    ) -> None:
        """Compute all checkpoints, or read them, and write the values of every sentence."""
        all_batches = batches(list(rows), COLLECT_TOKENS, model.pad_id, model.device)
        units = []
        for start in range(0, len(all_batches), CHECKPOINT_BATCHES):
            name = f"{self.kind}-{start:06d}"
            units.append((name, all_batches[start : start + CHECKPOINT_BATCHES]))
        checkpoints = raise_failures(current().run_units(store, self.compute, units))
        n_done = 0
        for (_, group), checkpoint in zip(units, checkpoints, strict=True):
            values = checkpoint.arrays["values"]
            start = 0
            for batch in group:
                for row in batch.rows:
                    view = self.destination(row.index)
                    view[:] = values[start : start + len(view)]
                    start += len(view)
                n_done += len(batch)
            report(n_done, len(rows))


def collection_array(store: CheckpointStore, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a float16 array to collect into: in memory, or in a file if it is large."""
    if 2 * math.prod(shape) > MAX_BYTES_IN_MEMORY:
        return scratch_array(store, name, shape, "float16")
    return np.zeros(shape, dtype=np.float16)


def drop_collection(store: CheckpointStore, kind: str) -> None:
    """Delete the checkpoints of a collection, once the result made of it has its own."""
    for name in store.names():
        if name.startswith(f"{kind}-"):
            store.drop(name)


def collect_maps(
    model: HeadModel, rows: Sequence[Encoded], store: CheckpointStore, kind: str, report: Report
) -> WordMaps:
    """Return the word-level maps of all sentences."""
    sizes = [row.word_count for row in rows]
    n_heads = model.layers * model.heads
    values = collection_array(store, f"{kind}-maps", (WordMaps.length(sizes, n_heads),))
    maps = WordMaps(sizes, n_heads, values)
    collector = SentenceCollector(f"{kind}-maps", partial(_compute_maps, model), maps.flat)
    collector.run(model, rows, store, report)
    return maps


def _compute_maps(
    model: HeadModel, group: Sequence[Batch]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the word-level maps of some batches, sentence after sentence."""
    flat_maps = []
    for batch in group:
        watcher = _WordMapWatcher(batch)
        model.forward(batch, watcher)
        for maps, row in zip(watcher.maps(), batch.rows, strict=True):
            flat_maps.append(flatten_maps(maps[:, : row.word_count, : row.word_count]))
    return {"values": np.concatenate(flat_maps)}, {}


class _WordMapWatcher(Watcher):
    """Collects the word-level maps of one batch, all layers."""

    needs = frozenset({"attention"})

    def __init__(self, batch: Batch) -> None:
        self.index = word_index(batch)
        self.layers: dict[int, Tensor] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        # Rows of a layer may come in blocks, each of which adds to the maps of all words.
        part = word_maps(rows, self.index)
        if rows.layer in self.layers:
            part = self.layers[rows.layer] + part
        self.layers[rows.layer] = part

    def maps(self) -> np.ndarray:
        """Return `[example, layer · heads + head, from word, to word]`."""
        by_layer = [self.layers[layer] for layer in sorted(self.layers)]
        return torch.cat(by_layer, dim=1).half().cpu().numpy()


def make_trees(rows: Sequence[Encoded], word_vectors: WordVectors) -> DependencyTrees:
    """Return heads, scored words (all but punctuation) and vectors of sentences.

    All vectors are multiplied by one number, so that their mean squared norm is `VECTOR_NORM`.
    """
    vectors = [word_vectors.of(row) for row in rows]
    norms = np.zeros(0)
    if vectors:
        norms = np.concatenate([(matrix**2).sum(1) for matrix in vectors])
    has_vector = norms > 0
    mean_norm = norms[has_vector].mean() if has_vector.any() else 1.0
    scale = np.float32(np.sqrt(VECTOR_NORM / mean_norm))
    heads = []
    scored = []
    for row in rows:
        word_heads = row.example.heads or ()
        relations = row.example.relations or ()
        heads.append(np.array([row.word_count if head == ROOT else head for head in word_heads]))
        scored.append(np.array([relation.split(":")[0] != "punct" for relation in relations]))
    return DependencyTrees([matrix * scale for matrix in vectors], heads, scored)
