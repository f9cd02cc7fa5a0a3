"""The structural probe on the hidden states of every layer, beside the probes on attention (Clark
et al. 2019, Table 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import xarray as xr

from headwise.analyses.tree_probe.collect import Gathering, Sentences, drop_gathered, room
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.models.words import word_index
from headwise.probes.structural import StructuralSettings, StructuralTraining
from headwise.probes.tree import DependencyTrees
from headwise.stats.accumulators import Ratios
from headwise.text.encode import Batch, Encoded

Report = Callable[[int, int], None]
STATES = "states"


class WordStates:
    """Hidden states of the words of many sentences, `[layer, word, width]` each (a word: the mean
    of its pieces), one behind the other in one float16 array."""

    def __init__(self, sizes: Sequence[int], values: np.ndarray) -> None:
        self.starts, self.values = (
            np.concatenate([[0], np.cumsum(sizes)]),
            values,
        )  # [word, layer, width]

    def __call__(self, sentence: int) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(self.place(sentence), 0, 1))

    def place(self, sentence: int) -> np.ndarray:
        """Where the states of a sentence lie, `[word, layer, width]`."""
        return self.values[self.starts[sentence] : self.starts[sentence + 1]]


def collect_states(
    model: HeadModel, rows: Sequence[Encoded], store: CheckpointStore, report: Report
) -> WordStates:
    """The hidden states of the words of all sentences."""
    sizes = [row.word_count for row in rows]
    kept = WordStates(sizes, room(store, STATES, (sum(sizes), model.layers + 1, model.hidden)))
    Gathering(STATES, partial(_state_piece, model), kept.place).run(model, rows, store, report)
    return kept


def _state_piece(
    model: HeadModel, some: Sequence[Batch]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The states of the words of some batches, word after word: `[word, layer, width]`."""
    found = []
    for batch in some:
        hidden = model.trace(batch, {"hidden"}).hidden
        assert hidden is not None
        index = word_index(batch)
        member = index.member / index.pieces.clamp(min=1)[:, None]
        words = torch.einsum("eltw,etk->eklw", hidden.float(), member).half().cpu().numpy()
        found += [own[: row.word_count] for own, row in zip(words, batch.rows, strict=True)]
    return {"values": np.concatenate(found)}, {}


def structural_dataset(
    model: HeadModel,
    data: Sentences,
    trees: DependencyTrees,
    settings: StructuralSettings,
    store: CheckpointStore,
    progress: Callable[[str, int, int], None],
) -> xr.Dataset:
    """`uuas[hidden_layer]` on the test part with its interval, and `validation_uuas[hidden_layer]`,
    by which the layer of the attribute `structural_layer` is picked; 0 is what enters the first
    layer."""

    def make() -> tuple[dict[str, np.ndarray], dict[str, str]]:
        states = collect_states(
            model, data.rows, store, partial(progress, "tree_probe: hidden states")
        )
        fit = StructuralTraining(trees, states, settings)
        report = partial(progress, "tree_probe: structural")
        probe = fit.fit(data.parts["train"], data.parts["validation"], report)
        arrays = {}
        for name in ("validation", "test"):
            arrays[f"{name}_found"], arrays[f"{name}_total"] = fit.score(probe, data.parts[name])
        return arrays, {}

    arrays = store.checkpoint("structural", make).arrays
    drop_gathered(store, STATES)
    summaries = {}
    for name in ("validation", "test"):
        found, total = (
            torch.from_numpy(arrays[f"{name}_found"]),
            torch.from_numpy(arrays[f"{name}_total"]),
        )
        ratio = Ratios(found.shape[1])
        ratio.add_sums(found, total[:, None].expand_as(found))
        summaries[name] = ratio.summary()
    test, validation = summaries["test"], summaries["validation"]["mean"]
    share = {"units": "share of edges"}
    variables = {
        "uuas": (
            "hidden_layer",
            test["mean"],
            share | {"long_name": "edges of the tree found, direction left out"},
        ),
        "uuas_n": ("hidden_layer", test["n"].astype(np.int64), {"long_name": "test sentences"}),
        "uuas_low": ("hidden_layer", np.clip(test["low"], 0, 1)),
        "uuas_high": ("hidden_layer", np.clip(test["high"], 0, 1)),
        "validation_uuas": ("hidden_layer", validation, share),
    }
    attrs = {"structural_layer": int(np.nanargmax(validation))}
    return xr.Dataset(variables, coords={"hidden_layer": np.arange(len(validation))}, attrs=attrs)
