"""The running state of attribution over a corpus, its checkpoint, and the labelled arrays made of
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.attribution.contributions import SOURCES, contributions, visible_sources
from headwise.analyses.attribution.mixing_methods import (
    MIXING_METHODS,
    MixingInput,
    trace_for_mixing,
)
from headwise.analyses.attribution.mixing_methods.flow import MAX_FLOWS
from headwise.analyses.attribution.sketch import ContributionOptions
from headwise.analyses.contract import Shape, layer_head_coords, mean_variables
from headwise.analyses.offsets.analysis import Offsets
from headwise.analyses.patterns import PATTERNS, classify_maps, shipped_classifier
from headwise.core.store import CheckpointStore
from headwise.core.token_types import TYPE_NAMES
from headwise.models import HeadModel
from headwise.models.statistics import compute_statistics
from headwise.models.view import AttentionRows
from headwise.stats.accumulators import Moments, State, Sums, means
from headwise.stats.correlation import rank_correlations, row_correlations
from headwise.text.encode import Batch, Encoded, documents_of

if TYPE_CHECKING:
    from headwise.analyses.attribution.analysis import Attribution

RECEIVERS = ("all", "cls", "sep", "other")
CLASSIFIED_SOURCES = ("attention", "input")  # whose maps are classified by pattern
SAMPLE_SOURCES = ("attention", "previous_layer", "input")  # whose maps of one input are kept whole
MIN_PATTERN_TOKENS = 6  # a map of fewer tokens shows no pattern
OFFSET_STATISTICS = ("histogram", "mean_offset", "mean_distance", "beyond")
CHECKPOINT = "gathered"
HEAD_DIMS = ("source", "layer", "head")
# The means that are kept: their dims and descriptions.
MEANS = {
    "pearson": (HEAD_DIMS, "Pearson's correlation of attention with this source"),
    "spearman": (HEAD_DIMS, "Spearman's correlation of attention with this source"),
    "agreement": (
        HEAD_DIMS,
        "Spearman's correlation of this source with the contribution of the input",
    ),
    "own": (HEAD_DIMS, "what a token contributes to itself"),
    "share": (
        (*HEAD_DIMS, "receiver", "token_type"),
        "share of contributions by tokens of a type",
    ),
    "layer_own": (("layer",), "share of a token's own input in its hidden state"),
    "layer_own_largest": (
        ("layer",),
        "tokens whose own input is the largest part of their hidden state",
    ),
    "pattern_share": (("source", "layer", "pattern"), "share of heads with a pattern"),
    "between": (
        ("source", "source_b", "layer"),
        "Spearman's correlation of two sources of the same head, over the heads of a layer",
    ),
    "mixed_own": (
        ("layer_source", "layer"),
        "share of a token in what leaves the layer at its position, by source",
    ),
    "mixed_distance": (
        ("layer_source", "layer"),
        "mean distance of what leaves the layer at a position, by source (tokens)",
    ),
    "mixed_between": (
        ("layer_source", "layer_source_b", "layer"),
        "Spearman's correlation of two sources of what leaves the layer",
    ),
}


class AttributionState:
    """Running means over examples of everything attribution measures, and the maps of one example.

    Parameters
    ----------
    model : HeadModel
        In float32 or better.
    shape : Shape
        Of the run.
    analysis : Attribution
        For its parameters.
    rows : sequence of Encoded
        All inputs that will come.
    """

    def __init__(
        self, model: HeadModel, shape: Shape, analysis: Attribution, rows: Sequence[Encoded]
    ) -> None:
        self.model = model
        self.shape = shape
        self.analysis = analysis
        self.options = ContributionOptions(
            error=analysis.error,
            seed=analysis.seed or 0,
            memory=analysis.memory,
            products=analysis.products,
            compiled=analysis.compiled,
        )
        long_enough = sorted(row.index for row in rows if len(row) >= MIN_PATTERN_TOKENS)
        self.classified_examples = frozenset(long_enough[: analysis.patterns])
        self.classifier = shipped_classifier() if self.classified_examples else None
        longest = min(analysis.limit(shape), shape.max_length)
        self.offsets = Offsets(reach=max(1, longest - 1), weighting=analysis.weighting)
        self.sources = ("attention", *SOURCES, *analysis.readings)
        self.layer_sources = ("attention", "input", *analysis.readings)
        self.coords: dict[str, Any] = layer_head_coords(shape) | {
            "source": list(self.sources),
            "source_b": list(self.sources),
            "layer_source": list(self.layer_sources),
            "layer_source_b": list(self.layer_sources),
            "receiver": list(RECEIVERS),
            "token_type": list(TYPE_NAMES),
            "pattern": list(PATTERNS),
        }
        self.state = self._empty_state()
        self.sample: dict[str, np.ndarray] = {}
        self.notes: dict[str, str] = {}

    def _empty_state(self) -> State:
        state = State(
            rows_left_out=Sums(len(self.sources), self.shape.layers, self.shape.heads),
            sketch=Moments(2),  # tangents per token, predicted total variation
        )
        for name, (dims, _) in MEANS.items():
            sizes = [len(self.coords[dim]) for dim in dims]
            if name == "pattern_share":
                state[name] = Moments(*sizes)
            else:
                state[name] = means(self.analysis.weighting, *sizes)
        for source in self.sources:
            for name, statistic in self.offsets.start(self.shape).items():
                state[f"{source}.{name}"] = statistic
        return state

    # --- one batch --------------------------------------------------------------------------------

    def observe(self, batch: Batch, sample: int | None) -> None:
        """Add a batch; keep the maps of the example with index `sample`."""
        self.state.of(documents_of(batch.rows))
        traced = trace_for_mixing(self.model, batch)
        method = self.analysis.method
        local = contributions(self.model, batch, "previous_layer", method, options=self.options)
        deep = contributions(
            self.model, batch, "input", method, layer_output=True, options=self.options
        )
        assert deep.layers is not None
        # Maps of heads [example, layer, head, receiving, source] and of what leaves the layers
        # [example, layer, receiving, source], by source.
        head_maps = {
            "attention": traced.attention,
            "previous_layer": local.heads,
            "input": deep.heads,
        }
        layer_maps = {"attention": traced.attention.mean(2), "input": deep.layers}
        self._add_mixing_methods(traced, head_maps, layer_maps)

        reachable = visible_sources(batch, self.shape.causal)[:, None, None]
        for source, maps in head_maps.items():
            if self._goes_to_input(source):
                visible = reachable.expand(-1, traced.visible.shape[1], -1, -1, -1)
            else:
                visible = traced.visible
            position = self.sources.index(source)
            if source != "attention":
                self._add_correlations(position, traced.attention, maps, visible, batch)
            own = maps.diagonal(dim1=-2, dim2=-1)
            token_mask = batch.attention_mask[:, None, None]
            self._add_rows("own", position, torch.where(token_mask, own, torch.nan))
            self._add_shares(position, maps, batch)
            self._add_offsets(source, maps, visible, batch)
        self._add_head_agreement(head_maps, reachable)
        self._add_layer_mixing(layer_maps, reachable[:, 0], batch)
        self._add_own_input(deep.layers, batch)
        self._add_patterns(head_maps, batch)
        if deep.tangents is not None and deep.total_variation is not None:
            sketch = torch.stack([deep.tangents.double(), deep.total_variation], dim=-1)
            self.state.moments("sketch").add(sketch)
        if sample is not None and sample in batch.index:
            self._keep_sample(head_maps, deep.layers, batch, batch.index.index(sample))

    @staticmethod
    def _goes_to_input(source: str) -> bool:
        """Whether a source attributes to the input, not to what enters the head's own layer."""
        return source == "input" or (source in MIXING_METHODS and MIXING_METHODS[source].deep)

    def _add_mixing_methods(
        self, traced: MixingInput, head_maps: dict[str, Tensor], layer_maps: dict[str, Tensor]
    ) -> None:
        """Add the maps of the other methods that were requested."""
        for name in self.analysis.readings:
            method_input = traced
            too_many_flows = name == "flow" and traced.attention[0].numel() > MAX_FLOWS
            if too_many_flows:
                method_input = replace(traced, heads=())
            mixing = MIXING_METHODS[name].compute(method_input)
            if mixing.heads is not None:
                head_maps[name] = mixing.heads
            if mixing.layers is not None:
                layer_maps[name] = mixing.layers
            if mixing.note:
                self.notes[f"{name}_reading"] = mixing.note
            if too_many_flows:
                self.notes["flow_reading"] = (
                    f"only by layer where heads would take more than {MAX_FLOWS:,} flows for an "
                    "input"
                )

    def _add_correlations(
        self, position: int, attention: Tensor, maps: Tensor, visible: Tensor, batch: Batch
    ) -> None:
        pearson, spearman = row_correlations(attention, maps, visible)
        self._add_rows("pearson", position, pearson)
        self._add_rows("spearman", position, spearman)
        undefined = pearson.isnan() & batch.attention_mask[:, None, None]
        self.state.sums("rows_left_out").total[position] += undefined.sum((0, -1)).cpu()

    def _add_head_agreement(self, head_maps: Mapping[str, Tensor], reachable: Tensor) -> None:
        """Add rank correlations of every two sources of the same heads."""
        for first, second, rows in rank_correlations(head_maps, reachable):
            if "input" in (first, second):
                other = first if second == "input" else second
                self._add_rows("agreement", self.sources.index(other), rows)
            self._add_pair("between", self.sources, (first, second), rows.flatten(2))

    def _add_layer_mixing(
        self, layer_maps: Mapping[str, Tensor], reachable: Tensor, batch: Batch
    ) -> None:
        """Add what leaves the layers, by every source: own share, distance, and agreement."""
        positions = torch.arange(reachable.shape[-1], device=reachable.device)
        distance = (positions[:, None] - positions[None]).abs().double()
        for source, maps in layer_maps.items():
            position = self.layer_sources.index(source)
            known = batch.attention_mask[:, None] & (maps.sum(-1) > 0)
            own = maps.diagonal(dim1=-2, dim2=-1)
            mean_distance = (maps * distance).sum(-1)
            self._add_rows("mixed_own", position, torch.where(known, own, torch.nan))
            self._add_rows("mixed_distance", position, torch.where(known, mean_distance, torch.nan))
        for first, second, rows in rank_correlations(layer_maps, reachable):
            self._add_pair("mixed_between", self.layer_sources, (first, second), rows)

    def _add_pair(
        self, name: str, sources: Sequence[str], pair: tuple[str, str], rows: Tensor
    ) -> None:
        """Add correlations of two sources, `[example, layer, row]`, in both orders."""
        total = rows.nan_to_num().sum(-1)
        count = (~rows.isnan()).sum(-1).double()
        first = sources.index(pair[0])
        second = sources.index(pair[1])
        self.state.means(name).add_sums(total, count, (first, second))
        self.state.means(name).add_sums(total, count, (second, first))

    def _add_rows(self, name: str, position: int, rows: Tensor) -> None:
        """Add values of rows `[example, layer, (head,) row]`, NaN where a row has none."""
        total = rows.nan_to_num().sum(-1)
        count = (~rows.isnan()).sum(-1).double()
        self.state.means(name).add_sums(total, count, (position,))

    def _add_shares(self, position: int, maps: Tensor, batch: Batch) -> None:
        """Add what tokens of each type contribute to receiving tokens of each kind."""
        special = batch.cls | batch.sep
        receiver_masks = {
            "all": batch.attention_mask,
            "cls": batch.cls,
            "sep": batch.sep,
            "other": batch.attention_mask & ~special,
        }
        receivers = torch.stack([receiver_masks[name] for name in RECEIVERS], dim=1).double()
        type_masks = [batch.token_mask(token_type) for token_type in TYPE_NAMES]
        token_types = torch.stack(type_masks, dim=-1).double()
        # [receiver, token] @ [token, source token] @ [source token, type], per example and head
        mass = receivers[:, None, None] @ maps @ token_types[:, None, None]
        n_receivers = receivers.sum(-1)[:, None, None, :, None].expand_as(mass)
        self.state.means("share").add_sums(mass, n_receivers, (position,))

    def _add_offsets(self, source: str, maps: Tensor, visible: Tensor, batch: Batch) -> None:
        """Add the statistics of `offsets`, with a source's maps in place of attention."""
        state = self._offset_state(source)
        for layer in range(self.shape.layers):
            layer_visible = visible[:, layer]
            weights = maps[:, layer] * layer_visible
            rows = AttentionRows(layer, 0, maps.shape[-1], weights, layer_visible)
            statistics = compute_statistics(self.offsets.request(batch), rows)
            reduced = self.offsets.reduce(statistics, batch)
            sums = {name: value[:, None] for name, value in reduced.items()}
            self.offsets.update(state, sums, slice(layer, layer + 1), batch)

    def _offset_state(self, source: str) -> State:
        return State({name: self.state[f"{source}.{name}"] for name in OFFSET_STATISTICS})

    def _add_own_input(self, layer_maps: Tensor, batch: Batch) -> None:
        """Add how much of a token's own input is in its hidden state after each layer."""
        own = layer_maps.diagonal(dim1=-2, dim2=-1)
        positions = torch.arange(own.shape[-1], device=own.device)
        is_largest = (layer_maps.argmax(-1) == positions).double()
        token_mask = batch.attention_mask[:, None].double()
        for name, rows in (("layer_own", own), ("layer_own_largest", is_largest)):
            total = (rows * token_mask).sum(-1)
            self.state.means(name).add_sums(total, token_mask.sum(-1).expand_as(total))

    def _add_patterns(self, head_maps: Mapping[str, Tensor], batch: Batch) -> None:
        """Add the share of heads with each pattern, for the few examples that are classified."""
        documents = documents_of(batch.rows)
        for example, row in enumerate(batch.rows):
            if row.index not in self.classified_examples:
                continue
            n = len(row)
            self.state["pattern_share"].batch_units = documents and [documents[example]]
            shape = (len(self.sources), self.shape.layers, len(PATTERNS))
            shares = torch.full(shape, torch.nan, dtype=torch.float64)
            for source in CLASSIFIED_SOURCES:
                maps = head_maps[source][example, :, :, :n, :n].clamp(min=0)
                pattern = classify_maps(maps, self.shape.causal, self.classifier).argmax(-1)
                by_head = torch.nn.functional.one_hot(pattern, len(PATTERNS)).double()
                shares[self.sources.index(source)] = by_head.mean(1).cpu()
            self.state.moments("pattern_share").add(shares[None])

    def _keep_sample(
        self, head_maps: Mapping[str, Tensor], layer_maps: Tensor, batch: Batch, example: int
    ) -> None:
        row = batch.rows[example]
        n = len(row)
        maps = {source: head_maps[source][example, :, :, :n, :n] for source in SAMPLE_SOURCES}
        maps["layer"] = layer_maps[example, :, :n, :n]
        self.sample = {name: values.float().cpu().numpy() for name, values in maps.items()}
        self.sample["ids"] = row.ids.copy()

    # --- checkpoint -------------------------------------------------------------------------------

    def save(self, store: CheckpointStore, done: int) -> None:
        """Replace the checkpoint by the state after `done` batches."""
        arrays = {f"state/{key}": array for key, array in self.state.arrays().items()}
        arrays |= {f"sample/{key}": array for key, array in self.sample.items()}
        store.save(CHECKPOINT, arrays, {"done": done, "notes": self.notes})

    def resume(self, store: CheckpointStore) -> int:
        """Load the checkpoint of an interrupted run; return how many batches are done."""
        checkpoint = store.load(CHECKPOINT)
        if checkpoint is None:
            return 0
        parts: dict[str, dict[str, np.ndarray]] = {"state": {}, "sample": {}}
        for key, array in checkpoint.arrays.items():
            part, name = key.split("/", 1)
            parts[part][name] = array
        self.state.load(parts["state"])
        self.sample = parts["sample"]
        self.notes = checkpoint.facts["notes"]
        return int(checkpoint.facts["done"])

    # --- result -----------------------------------------------------------------------------------

    def dataset(self) -> xr.Dataset:
        """Return the labelled arrays of `Attribution`."""
        variables: dict[str, Any] = {}
        for name, (dims, long_name) in MEANS.items():
            variables |= mean_variables(name, dims, self.state.means(name), long_name=long_name)
        rows_left_out = self.state.sums("rows_left_out").total.numpy().astype(np.int64)
        variables["rows_left_out"] = xr.Variable(
            HEAD_DIMS, rows_left_out, {"long_name": "rows without a correlation"}
        )
        coords = dict(self.coords)
        if self.sample:
            variables |= self._sample_variables()
            encoder = self.model.encoder
            texts = [encoder.piece_text(int(token)) or "·" for token in self.sample["ids"]]
            coords["token_text"] = ("token", texts)
            coords["source_token_text"] = ("source_token", texts)
        by_source = []
        for source in self.sources:
            offsets = self.offsets.result(self._offset_state(source), self.shape)
            by_source.append(offsets.assign_coords(source=[source]))
        dataset = xr.Dataset(variables, coords=coords)
        return dataset.merge(_concatenate_sources(by_source), compat="no_conflicts")

    def _sample_variables(self) -> dict[str, xr.Variable]:
        """Return the maps of the sample."""
        map_dims = ("token", "source_token")
        variables = {}
        for source in SAMPLE_SOURCES:
            variables[f"sample_{source}"] = xr.Variable(
                ("layer", "head", *map_dims),
                self.sample[source],
                {"long_name": f"{source} of one input"},
            )
        variables["sample_layer"] = xr.Variable(
            ("layer", *map_dims), self.sample["layer"], {"long_name": "input in each hidden state"}
        )
        return variables


def widen_offsets(offsets: xr.Dataset, added: xr.Dataset) -> xr.Dataset:
    """Return the group `offsets` with more sources, from a dataset with the same variables."""
    known_sources = set(map(str, offsets["source"].values))
    if known_sources & set(map(str, added["source"].values)):
        return offsets
    names = []
    for name in offsets.data_vars:
        if "source" in offsets[name].dims and name in added:
            names.append(str(name))
    return _concatenate_sources([offsets, added[names]]).assign_attrs(offsets.attrs)


def _concatenate_sources(datasets: list[xr.Dataset]) -> xr.Dataset:
    """Concatenate datasets along `source`, over the union of their offsets.

    Counts stay integers, zero where there is no data; other variables are NaN there.
    """
    all_offsets: set[int] = set()
    for dataset in datasets:
        all_offsets.update(int(offset) for offset in dataset["offset"].values)
    widened = []
    for dataset in datasets:
        fill = {}
        for name in dataset.data_vars:
            is_count = str(name).endswith("_n") or name == "pairs"
            fill[name] = 0 if is_count else np.nan
        widened.append(dataset.reindex(offset=sorted(all_offsets), fill_value=fill))
    first = widened[0]
    by_source = [name for name in first.data_vars if "source" in first[name].dims]
    shared = {name: first[name] for name in first.data_vars if name not in by_source}
    concatenated = xr.concat(
        [dataset[by_source] for dataset in widened],
        dim="source",
        join="exact",
        combine_attrs="override",
    )
    return concatenated.assign(shared)
