"""What attribution keeps while it goes through a corpus, and the labelled arrays it ends in."""

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
from headwise.analyses.attribution.mixing_methods.flow import MOST_FLOWS
from headwise.analyses.attribution.sketch import ContributionOptions, Contributions
from headwise.analyses.contract import Shape, layer_head_coords, mean_variables
from headwise.analyses.offsets.analysis import Offsets
from headwise.analyses.patterns import PATTERNS, classify_maps, shipped_classifier
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.models.statistics import compute_statistics
from headwise.models.view import AttentionRows
from headwise.stats.accumulators import Moments, State, Sums, means
from headwise.stats.correlation import rank_correlations, row_correlations
from headwise.text.encode import Batch, Encoded, documents_of

if TYPE_CHECKING:
    from headwise.analyses.attribution.analysis import Attribution

RECEIVERS = ("all", "cls", "sep", "other")
TOKEN_TYPES = ("cls", "sep", "punct", "other")
CLASSIFIED = ("attention", "input")  # whose maps are sorted into patterns
SAMPLED = ("attention", "previous_layer", "input")  # whose maps of one input are kept whole
FEWEST_FOR_PATTERNS = 6  # tokens; a map of fewer shows no pattern
PER_SOURCE = ("histogram", "mean_offset", "mean_distance", "beyond")
CHECKPOINT = "gathered"
# The means that are kept: their dims, and what they are.
MEANS = {
    "pearson": (
        ("source", "layer", "head"),
        "Pearson's correlation of attention with this reading",
    ),
    "spearman": (
        ("source", "layer", "head"),
        "Spearman's correlation of attention with this reading",
    ),
    "agreement": (
        ("source", "layer", "head"),
        "Spearman's correlation of this reading with the contribution of the input",
    ),
    "own": (("source", "layer", "head"), "what a token contributes to itself"),
    "share": (
        ("source", "layer", "head", "receiver", "token_type"),
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
        "Spearman's correlation of two readings of the same head, over the heads of a layer",
    ),
    "mixed_own": (
        ("layer_source", "layer"),
        "share of a token in what leaves the layer in its place, by reading",
    ),
    "mixed_distance": (
        ("layer_source", "layer"),
        "how far away is what leaves the layer, by reading (tokens)",
    ),
    "mixed_between": (
        ("layer_source", "layer_source_b", "layer"),
        "Spearman's correlation of two readings of what leaves the layer",
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
    asked : Attribution
        The analysis, for its parameters.
    rows : sequence of Encoded
        All inputs that will come.
    """

    def __init__(
        self, model: HeadModel, shape: Shape, asked: Attribution, rows: Sequence[Encoded]
    ) -> None:
        self.model, self.shape, self.asked = model, shape, asked
        self.options = ContributionOptions(
            asked.error, None, asked.seed or 0, asked.memory, asked.products, asked.compiled
        )
        enough = sorted(row.index for row in rows if len(row) >= FEWEST_FOR_PATTERNS)
        self.classified = frozenset(enough[: asked.patterns])
        self.classifier = shipped_classifier() if self.classified else None
        self.offsets = Offsets(
            reach=max(1, min(asked.limit(shape), shape.max_length) - 1), weighting=asked.weighting
        )
        self.sources = ("attention", *SOURCES, *asked.readings)
        self.layer_sources = ("attention", "input", *asked.readings)
        self.coords: dict[str, Any] = layer_head_coords(shape) | {
            "source": list(self.sources),
            "source_b": list(self.sources),
            "layer_source": list(self.layer_sources),
            "layer_source_b": list(self.layer_sources),
            "receiver": list(RECEIVERS),
            "token_type": list(TOKEN_TYPES),
            "pattern": list(PATTERNS),
        }
        self.state = State(
            rows_left_out=Sums(len(self.sources), shape.layers, shape.heads),
            sketch=Moments(2),  # tangents per token, foretold total variation
        )
        for name, (dims, _) in MEANS.items():
            sizes = [len(self.coords[dim]) for dim in dims]
            self.state[name] = (
                Moments(*sizes) if name == "pattern_share" else means(asked.weighting, *sizes)
            )
        for source in self.sources:
            self.state.update(
                {f"{source}.{name}": part for name, part in self.offsets.start(shape).items()}
            )
        self.sample: dict[str, np.ndarray] = {}
        self.notes: dict[str, str] = {}

    # --- one batch --------------------------------------------------------------------------------

    def observe(self, batch: Batch, sample: int | None) -> None:
        """Take in a batch; the maps of the example with index `sample` are kept."""
        self.state.of(documents_of(batch.rows))
        seen = trace_for_mixing(self.model, batch)
        attention, near = seen.attention, seen.visible
        method = self.asked.method
        local = contributions(self.model, batch, "previous_layer", method, options=self.options)
        deep = contributions(
            self.model, batch, "input", method, layer_output=True, options=self.options
        )
        maps = {"attention": attention, "previous_layer": local.heads, "input": deep.heads}
        assert deep.layers is not None
        mixed = {"attention": attention.mean(2), "input": deep.layers}
        self._read(seen, maps, mixed)
        reach = visible_sources(batch, self.shape.causal)[:, None, None]
        for source, own in maps.items():
            deeply = source == "input" or (source in MIXING_METHODS and MIXING_METHODS[source].deep)
            shown = reach.expand(-1, near.shape[1], -1, -1, -1) if deeply else near
            place = self.sources.index(source)
            self._correlate(place, source, maps, shown, batch)
            self._share(place, own, batch)
            self._offsets(source, own, shown, batch)
        self._between(maps, reach)
        self._mixed(mixed, reach[:, 0], batch)
        self._layers(deep, batch)
        self._patterns(maps, batch)
        if deep.tangents is not None and deep.total_variation is not None:
            self.state.moments("sketch").add(
                torch.stack([deep.tangents.double(), deep.total_variation], dim=-1)
            )
        if sample is not None and sample in batch.index:
            self._keep_sample(maps, deep, batch, batch.index.index(sample))

    def _read(self, seen: MixingInput, maps: dict[str, Tensor], mixed: dict[str, Tensor]) -> None:
        """Add the other readings that were asked for, of heads and of layers."""
        for name in self.asked.readings:
            few = (
                replace(seen, heads=())
                if name == "flow" and seen.attention[0].numel() > MOST_FLOWS
                else seen
            )
            found = MIXING_METHODS[name].read(few)
            if found.heads is not None:
                maps[name] = found.heads
            if found.layers is not None:
                mixed[name] = found.layers
            if found.note:
                self.notes[f"{name}_reading"] = found.note
            if few is not seen:
                self.notes["flow_reading"] = (
                    f"by layer alone where heads would take over {MOST_FLOWS:,} flows an input"
                )

    def _correlate(
        self, place: int, source: str, maps: Mapping[str, Tensor], seen: Tensor, batch: Batch
    ) -> None:
        real = batch.attention_mask[:, None, None]
        if source != "attention":
            pearson, spearman = row_correlations(maps["attention"], maps[source], seen)
            self._add_rows("pearson", place, pearson)
            self._add_rows("spearman", place, spearman)
            self.state.sums("rows_left_out").total[place] += (
                (pearson.isnan() & real).sum((0, -1)).cpu()
            )
        own = maps[source].diagonal(dim1=-2, dim2=-1)
        self._add_rows("own", place, torch.where(real, own, torch.nan))

    def _between(self, maps: Mapping[str, Tensor], reach: Tensor) -> None:
        """Every two readings of the same heads, by rank."""
        for first, second, rows in rank_correlations(maps, reach):
            if "input" in (first, second):
                self._add_rows(
                    "agreement", self.sources.index(first if second == "input" else second), rows
                )
            self._add_pair("between", self.sources, (first, second), rows.flatten(2))

    def _mixed(self, mixed: Mapping[str, Tensor], reach: Tensor, batch: Batch) -> None:
        """What leaves the layers, by every reading that says so: near or far, and how far they
        agree."""
        place = torch.arange(reach.shape[-1], device=reach.device)
        distance = (place[:, None] - place[None]).abs().double()
        for source, maps in mixed.items():
            here = self.layer_sources.index(source)
            known = batch.attention_mask[:, None] & (maps.sum(-1) > 0)
            for name, values in (
                ("own", maps.diagonal(dim1=-2, dim2=-1)),
                ("distance", (maps * distance).sum(-1)),
            ):
                self._add_rows(f"mixed_{name}", here, torch.where(known, values, torch.nan))
        for first, second, rows in rank_correlations(mixed, reach):
            self._add_pair("mixed_between", self.layer_sources, (first, second), rows)

    def _add_pair(
        self, name: str, sources: Sequence[str], pair: tuple[str, str], rows: Tensor
    ) -> None:
        """Take in correlations of two readings, `[example, layer, row]`, both ways round."""
        total, count = rows.nan_to_num().sum(-1), (~rows.isnan()).sum(-1).double()
        first, second = (sources.index(one) for one in pair)
        for where in ((first, second), (second, first)):
            self.state.means(name).add_sums(total, count, where)

    def _add_rows(self, name: str, place: int, rows: Tensor) -> None:
        """Take in numbers of rows `[example, layer, (head,) row]`, NaN where a row has none."""
        present = ~rows.isnan()
        self.state.means(name).add_sums(
            rows.nan_to_num().sum(-1), present.sum(-1).double(), (place,)
        )

    def _share(self, place: int, maps: Tensor, batch: Batch) -> None:
        receiving = (
            batch.attention_mask,
            batch.cls,
            batch.sep,
            batch.attention_mask & ~(batch.cls | batch.sep),
        )  # as in RECEIVERS
        rows = torch.stack(receiving, dim=1).double()  # example, receiver, token
        kinds = torch.stack(
            [batch.token_mask(kind) for kind in TOKEN_TYPES], dim=-1
        ).double()  # example, token, type
        mass = rows[:, None, None] @ maps @ kinds[:, None, None]
        self.state.means("share").add_sums(
            mass, rows.sum(-1)[:, None, None, :, None].expand_as(mass), (place,)
        )

    def _offsets(self, source: str, maps: Tensor, seen: Tensor, batch: Batch) -> None:
        part = State({name: self.state[f"{source}.{name}"] for name in PER_SOURCE})
        for layer in range(self.shape.layers):
            shown = seen[:, layer]
            rows = AttentionRows(layer, 0, maps.shape[-1], maps[:, layer] * shown, shown)
            answers = compute_statistics(self.offsets.request(batch), rows)
            sums = {
                name: value[:, None] for name, value in self.offsets.reduce(answers, batch).items()
            }
            self.offsets.update(part, sums, slice(layer, layer + 1), batch)

    def _layers(self, deep: Contributions, batch: Batch) -> None:
        assert deep.layers is not None
        own = deep.layers.diagonal(dim1=-2, dim2=-1)
        real = batch.attention_mask[:, None].double()
        largest = (
            deep.layers.argmax(-1) == torch.arange(own.shape[-1], device=own.device)
        ).double()
        for name, rows in (("layer_own", own), ("layer_own_largest", largest)):
            total = (rows * real).sum(-1)
            self.state.means(name).add_sums(total, real.sum(-1).expand_as(total))

    def _patterns(self, maps: Mapping[str, Tensor], batch: Batch) -> None:
        documents = documents_of(batch.rows)
        for e, row in enumerate(batch.rows):
            if row.index not in self.classified:
                continue
            n = len(row)
            self.state["pattern_share"].batch_units = documents and [documents[e]]
            shares = torch.full(
                (len(self.sources), self.shape.layers, len(PATTERNS)),
                torch.nan,
                dtype=torch.float64,
            )
            for source in CLASSIFIED:
                shown = maps[source][e, :, :, :n, :n].clamp(min=0)
                said = classify_maps(shown, self.shape.causal, self.classifier).argmax(-1)
                shares[self.sources.index(source)] = (
                    torch.nn.functional.one_hot(said, len(PATTERNS)).double().mean(1).cpu()
                )
            self.state.moments("pattern_share").add(shares[None])

    def _keep_sample(
        self, maps: Mapping[str, Tensor], deep: Contributions, batch: Batch, e: int
    ) -> None:
        assert deep.layers is not None
        n = len(batch.rows[e])
        kept = {source: maps[source][e, :, :, :n, :n] for source in SAMPLED} | {
            "layer": deep.layers[e, :, :n, :n]
        }
        self.sample = {name: values.float().cpu().numpy() for name, values in kept.items()}
        self.sample["ids"] = batch.rows[e].ids.copy()

    # --- keeping it -------------------------------------------------------------------------------

    def save(self, store: CheckpointStore, done: int) -> None:
        """Keep what is known after `done` batches, in the place of what was there."""
        arrays = {f"state/{key}": array for key, array in self.state.arrays().items()}
        arrays |= {f"sample/{key}": array for key, array in self.sample.items()}
        store.save(CHECKPOINT, arrays, {"done": done, "notes": self.notes})

    def resume(self, store: CheckpointStore) -> int:
        """Take up what a killed run left; how many batches that was."""
        piece = store.load(CHECKPOINT)
        if piece is None:
            return 0
        parts: dict[str, dict[str, np.ndarray]] = {"state": {}, "sample": {}}
        for key, array in piece.arrays.items():
            part, name = key.split("/", 1)
            parts[part][name] = array
        self.state.load(parts["state"])
        self.sample, self.notes = parts["sample"], piece.facts["notes"]
        return int(piece.facts["done"])

    def dataset(self) -> xr.Dataset:
        """The labelled arrays of `Attribution`."""
        variables: dict[str, Any] = {}
        for name, (dims, words) in MEANS.items():
            variables |= mean_variables(name, dims, self.state.means(name), long_name=words)
        variables["rows_left_out"] = xr.Variable(
            MEANS["pearson"][0],
            self.state.sums("rows_left_out").total.numpy().astype(np.int64),
            {"long_name": "rows without a correlation"},
        )
        coords = dict(self.coords)
        if self.sample:
            pair = ("token", "source_token")
            for source in SAMPLED:
                attrs = {"long_name": f"{source} of one input"}
                variables[f"sample_{source}"] = xr.Variable(
                    ("layer", "head", *pair), self.sample[source], attrs
                )
            attrs = {"long_name": "input in each hidden state"}
            variables["sample_layer"] = xr.Variable(("layer", *pair), self.sample["layer"], attrs)
            texts = [self.model.encoder.piece_text(int(i)) or "·" for i in self.sample["ids"]]
            coords |= {f"{dim}_text": (dim, texts) for dim in pair}
        parts = []
        for source in self.sources:
            own = State({name: self.state[f"{source}.{name}"] for name in PER_SOURCE})
            parts.append(self.offsets.result(own, self.shape).assign_coords(source=[source]))
        return xr.Dataset(variables, coords=coords).merge(_joined(parts), compat="no_conflicts")


def widen_offsets(offsets: xr.Dataset, added: xr.Dataset) -> xr.Dataset:
    """The group `offsets` with more sources, from a dataset that has the same variables."""
    names = [
        str(name) for name in offsets.data_vars if "source" in offsets[name].dims and name in added
    ]
    if set(map(str, offsets["source"].values)) & set(map(str, added["source"].values)):
        return offsets
    return _joined([offsets, added[names]]).assign_attrs(offsets.attrs)


def _joined(parts: list[xr.Dataset]) -> xr.Dataset:
    """Datasets of different sources in one, over all their offsets; counts stay whole, zero where
    nothing was seen."""
    offsets = sorted({int(o) for part in parts for o in part["offset"].values})
    wide = []
    for part in parts:
        counts = {name for name in part.data_vars if str(name).endswith("_n") or name == "pairs"}
        fill = {name: 0 if name in counts else np.nan for name in part.data_vars}
        wide.append(part.reindex(offset=offsets, fill_value=fill))
    shared = {
        name: wide[0][name] for name in wide[0].data_vars if "source" not in wide[0][name].dims
    }
    names = [name for name in wide[0].data_vars if name not in shared]
    joined = xr.concat(
        [part[names] for part in wide], dim="source", join="exact", combine_attrs="override"
    )
    return joined.assign(shared)
