"""The structural probe on the hidden states of every layer, beside the probes on attention (Clark
et al. 2019, Table 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import xarray as xr

from headwise.analyses.tree_probe.collect import (
    Report,
    SentenceCollector,
    SentenceSets,
    collection_array,
    drop_collection,
)
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.models.words import word_index
from headwise.probes.structural import StructuralSettings, StructuralTraining
from headwise.probes.tree import DependencyTrees
from headwise.stats.accumulators import Ratios
from headwise.text.encode import Batch, Encoded

STATES = "states"  # names the checkpoints of hidden states


class WordStates:
    """Hidden states of the words of many sentences, `[layer, word, width]` each, concatenated in
    one array `values[word, layer, width]`.

    The state of a word is the mean over its subwords.
    """

    def __init__(self, sizes: Sequence[int], values: np.ndarray) -> None:
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        self.values = values

    def __call__(self, sentence: int) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(self.view(sentence), 0, 1))

    def view(self, sentence: int) -> np.ndarray:
        """Return a view on the states of a sentence, `[word, layer, width]`."""
        return self.values[self.starts[sentence] : self.starts[sentence + 1]]


def collect_states(
    model: HeadModel, rows: Sequence[Encoded], store: CheckpointStore, report: Report
) -> WordStates:
    """Return the hidden states of the words of all sentences."""
    sizes = [row.word_count for row in rows]
    values = collection_array(store, STATES, (sum(sizes), model.layers + 1, model.hidden))
    states = WordStates(sizes, values)
    collector = SentenceCollector(STATES, partial(_compute_states, model), states.view)
    collector.run(model, rows, store, report)
    return states


def _compute_states(
    model: HeadModel, group: Sequence[Batch]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the states of the words of some batches, word after word: `[word, layer, width]`."""
    word_states = []
    for batch in group:
        hidden = model.trace(batch, {"hidden"}).hidden
        assert hidden is not None
        index = word_index(batch)
        mean_over_subwords = index.member / index.pieces.clamp(min=1)[:, None]
        # e: example, l: layer, t: token, w: width, k: word
        states = torch.einsum("eltw,etk->eklw", hidden.float(), mean_over_subwords)
        for matrix, row in zip(states.half().cpu().numpy(), batch.rows, strict=True):
            word_states.append(matrix[: row.word_count])
    return {"values": np.concatenate(word_states)}, {}


def structural_dataset(
    model: HeadModel,
    sentences: SentenceSets,
    trees: DependencyTrees,
    settings: StructuralSettings,
    store: CheckpointStore,
    progress: Callable[[str, int, int], None],
) -> xr.Dataset:
    """Train and score the structural probe of every layer.

    Returns `uuas[hidden_layer]` on the test part with its interval, and
    `validation_uuas[hidden_layer]`, which selects the layer of the attribute `structural_layer`; 0
    is what enters the first layer.
    """

    def compute() -> tuple[dict[str, np.ndarray], dict[str, str]]:
        report_states = partial(progress, "tree_probe: hidden states")
        states = collect_states(model, sentences.rows, store, report_states)
        training = StructuralTraining(trees, states, settings)
        report_epochs = partial(progress, "tree_probe: structural")
        parts = sentences.parts
        probe = training.fit(parts["train"], parts["validation"], report_epochs)
        arrays = {}
        for name in ("validation", "test"):
            hits, total = training.score(probe, parts[name])
            arrays[f"{name}_found"] = hits
            arrays[f"{name}_total"] = total
        return arrays, {}

    arrays = store.checkpoint("structural", compute).arrays
    drop_collection(store, STATES)
    summaries = {}
    for name in ("validation", "test"):
        hits = torch.from_numpy(arrays[f"{name}_found"])
        total = torch.from_numpy(arrays[f"{name}_total"])
        ratio = Ratios(hits.shape[1])
        ratio.add_sums(hits, total[:, None].expand_as(hits))
        summaries[name] = ratio.summary()
    test = summaries["test"]
    validation = summaries["validation"]["mean"]
    share = {"units": "share of edges"}
    uuas_attrs = share | {"long_name": "edges of the tree found, direction ignored"}
    variables = {
        "uuas": ("hidden_layer", test["mean"], uuas_attrs),
        "uuas_n": ("hidden_layer", test["n"].astype(np.int64), {"long_name": "test sentences"}),
        "uuas_low": ("hidden_layer", np.clip(test["low"], 0, 1)),
        "uuas_high": ("hidden_layer", np.clip(test["high"], 0, 1)),
        "validation_uuas": ("hidden_layer", validation, share),
    }
    coords = {"hidden_layer": np.arange(len(validation))}
    attrs = {"structural_layer": int(np.nanargmax(validation))}
    return xr.Dataset(variables, coords=coords, attrs=attrs)
