"""What attribution keeps while it goes through a corpus, and the labelled arrays it ends in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from safetensors.numpy import load_file, save
from torch import Tensor

from headwise.analyses.attribution.contributions import Contributions, contributions, visible_sources
from headwise.analyses.attribution.mixing import norm_weighted, rollout
from headwise.analyses.contract import Shape, layer_head_coords, mean_variables
from headwise.analyses.offsets.analysis import Offsets
from headwise.analyses.patterns import PATTERNS, classify_maps
from headwise.core.files import write_atomically
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import Moments, State, Sums, means
from headwise.stats.correlation import row_correlations
from headwise.text.encode import Batch, Encoded

READINGS = ("attention", "previous_layer", "input", "rollout", "norm")
RECEIVERS = ("all", "cls", "sep", "other")
TOKEN_TYPES = ("cls", "sep", "punct", "other")
CLASSIFIED = ("attention", "input")  # whose maps are sorted into patterns
FEWEST_FOR_PATTERNS = 6  # tokens; a map of fewer shows no pattern
PER_SOURCE = ("histogram", "mean_offset", "mean_distance", "beyond")


class Gathered:
    """Running means over examples of everything attribution measures, and the maps of one example."""

    def __init__(self, model: Any, shape: Shape, options: Any, longest: int, rows: Sequence[Encoded] = ()) -> None:
        self.model, self.shape, self.options = model, shape, options
        enough = sorted(row.index for row in rows if len(row) >= FEWEST_FOR_PATTERNS)
        self.classified = frozenset(enough[: options.patterns])
        self.offsets = Offsets(reach=max(1, min(longest, shape.max_length) - 1), weighting=options.weighting)
        layers, heads, sources = shape.layers, shape.heads, len(READINGS)
        self.state = State()
        for name in ("pearson", "spearman", "agreement", "own"):
            self.state[name] = means(options.weighting, sources, layers, heads)
        self.state["rows_left_out"] = Sums(sources, layers, heads)
        self.state["share"] = means(options.weighting, sources, layers, heads, len(RECEIVERS), len(TOKEN_TYPES))
        for name in ("layer_own", "layer_own_largest"):
            self.state[name] = means(options.weighting, layers)
        self.state["pattern_share"] = Moments(sources, layers, len(PATTERNS))
        self.state["sketch"] = Moments(2)  # tangents per token, foretold total variation
        for source in READINGS:
            self.state.update({f"{source}.{name}": part for name, part in self.offsets.start(shape).items()})
        self.sample: dict[str, np.ndarray] = {}
        self.notes: dict[str, Any] = {}

    # --- one batch ----------------------------------------------------------------------------------------------------

    def observe(self, batch: Batch, sample: int | None) -> None:
        options = self.options
        asked: dict[str, Any] = {
            "memory": options.memory,
            "seed": options.seed,
            "tf32": options.tf32,
            "compiled": options.compiled,
            "error": options.error,
        }
        trace = self.model.trace(batch, {"attention"})
        attention, visible = trace.attention.double(), trace.visible
        local = contributions(self.model, batch, "previous_layer", options.method, **asked)
        deep = contributions(self.model, batch, "input", options.method, layer_output=True, **asked)
        norm, projected = norm_weighted(self.model, batch, attention)
        maps = {
            "attention": attention,
            "previous_layer": local.heads,
            "input": deep.heads,
            "rollout": rollout(attention, batch.real),
            "norm": norm,
        }
        self.notes["norm_reading"] = (
            "attention × norm of the value after the output projection"
            if projected
            else "attention × norm of the value"
        )
        reach = visible_sources(batch, self.shape.causal)[:, None, None]
        near = visible if visible.shape[2] > 1 else visible.expand(-1, -1, 1, -1, -1)
        for place, source in enumerate(READINGS):
            seen = reach.expand(-1, near.shape[1], -1, -1, -1) if source in ("input", "rollout") else near
            self._correlate(place, source, maps, seen, reach, batch)
            self._share(place, maps[source], batch)
            self._offsets(source, maps[source], seen, batch)
        self._layers(deep, batch)
        self._patterns(maps, batch)
        if deep.tangents is not None and deep.total_variation is not None:
            self.state.moments("sketch").add(torch.stack([deep.tangents.double(), deep.total_variation], dim=-1))
        self._keep_sample(maps, deep, batch, sample)

    def _correlate(
        self, place: int, source: str, maps: Mapping[str, Tensor], seen: Tensor, reach: Tensor, batch: Batch
    ) -> None:
        real = batch.real[:, None, None]
        if source != "attention":
            pearson, spearman = row_correlations(maps["attention"], maps[source], seen)
            for name, rows in (("pearson", pearson), ("spearman", spearman)):
                self._add_rows(name, place, rows)
            self.state.sums("rows_left_out").total[place] += (pearson.isnan() & real).sum((0, -1)).cpu()
        if source != "input":
            self._add_rows("agreement", place, row_correlations(maps["input"], maps[source], reach)[1])
        own = maps[source].diagonal(dim1=-2, dim2=-1)
        self._add_rows("own", place, torch.where(real, own, torch.nan))

    def _add_rows(self, name: str, place: int, rows: Tensor) -> None:
        """Take in numbers of rows `[example, layer, head, row]`, NaN where a row has none."""
        present = ~rows.isnan()
        self.state.means(name).add_sums(rows.nan_to_num().sum(-1), present.sum(-1).double(), (place,))

    def _share(self, place: int, maps: Tensor, batch: Batch) -> None:
        receiving = {
            "all": batch.real,
            "cls": batch.cls,
            "sep": batch.sep,
            "other": batch.real & ~(batch.cls | batch.sep),
        }
        rows = torch.stack([receiving[name] for name in RECEIVERS], dim=1).double()  # example, receiver, token
        kinds = torch.stack([batch.kind(kind) for kind in TOKEN_TYPES], dim=-1).double()  # example, token, type
        mass = rows[:, None, None] @ maps @ kinds[:, None, None]
        self.state.means("share").add_sums(mass, rows.sum(-1)[:, None, None, :, None].expand_as(mass), (place,))

    def _offsets(self, source: str, maps: Tensor, seen: Tensor, batch: Batch) -> None:
        part = State({name: self.state[f"{source}.{name}"] for name in PER_SOURCE})
        for layer in range(self.shape.layers):
            shown = seen[:, layer]
            rows = Rows(layer, 0, maps.shape[-1], maps[:, layer] * shown, shown)
            self.offsets.observe(part, self.offsets.reduce(rows, batch), Layer(layer), batch)

    def _layers(self, deep: Contributions, batch: Batch) -> None:
        assert deep.layers is not None
        own = deep.layers.diagonal(dim1=-2, dim2=-1)
        real = batch.real[:, None].double()
        largest = (deep.layers.argmax(-1) == torch.arange(own.shape[-1], device=own.device)).double()
        for name, rows in (("layer_own", own), ("layer_own_largest", largest)):
            total = (rows * real).sum(-1)
            self.state.means(name).add_sums(total, real.sum(-1).expand_as(total))

    def _patterns(self, maps: Mapping[str, Tensor], batch: Batch) -> None:
        for e, row in enumerate(batch.rows):
            if row.index not in self.classified:
                continue
            n = len(row)
            shares = torch.full((len(READINGS), self.shape.layers, len(PATTERNS)), torch.nan, dtype=torch.float64)
            for source in CLASSIFIED:
                said = classify_maps(maps[source][e, :, :, :n, :n].clamp(min=0), self.shape.causal).argmax(-1)
                shares[READINGS.index(source)] = torch.nn.functional.one_hot(said, len(PATTERNS)).double().mean(1).cpu()
            self.state.moments("pattern_share").add(shares[None])

    def _keep_sample(self, maps: Mapping[str, Tensor], deep: Contributions, batch: Batch, sample: int | None) -> None:
        if sample is None or sample not in batch.index:
            return
        e = batch.index.index(sample)
        n = len(batch.rows[e])
        assert deep.layers is not None
        for source in ("attention", "previous_layer", "input"):
            self.sample[source] = maps[source][e, :, :, :n, :n].float().cpu().numpy()
        self.sample["layer"] = deep.layers[e, :, :n, :n].float().cpu().numpy()
        self.sample["ids"] = batch.rows[e].ids.copy()

    # --- keeping it ---------------------------------------------------------------------------------------------------

    @property
    def tangents(self) -> float:
        return float(self.state.moments("sketch").mean[0])

    @property
    def variation(self) -> float:
        return float(self.state.moments("sketch").mean[1])

    def save(self, folder: Path, done: int) -> None:
        """Write what is known after `done` batches, in the place of what was there."""
        arrays = {f"state/{key}": np.ascontiguousarray(array) for key, array in self.state.arrays().items()}
        arrays |= {f"sample/{key}": np.ascontiguousarray(array) for key, array in self.sample.items()}
        notes = json.dumps({"done": done, "notes": self.notes})
        write_atomically(
            folder / "attribution.safetensors",
            save(arrays | {"facts": np.frombuffer(notes.encode(), dtype=np.uint8).copy()}),
        )

    def resume(self, folder: Path) -> int:
        """Take up what a killed run left; how many batches that was."""
        path = folder / "attribution.safetensors"
        if not path.exists():
            return 0
        arrays = load_file(path)
        facts = json.loads(arrays.pop("facts").tobytes())
        self.state.load(
            {key.removeprefix("state/"): array for key, array in arrays.items() if key.startswith("state/")}
        )
        self.sample = {key.removeprefix("sample/"): array for key, array in arrays.items() if key.startswith("sample/")}
        self.notes = facts["notes"]
        return int(facts["done"])


def attribution_dataset(gathered: Gathered, shape: Shape) -> xr.Dataset:
    """The labelled arrays of `Attribution`."""
    state, heads = gathered.state, ("source", "layer", "head")
    variables: dict[str, Any] = {}
    for name, words in (
        ("pearson", "Pearson's correlation of attention with this reading"),
        ("spearman", "Spearman's correlation of attention with this reading"),
        ("agreement", "Spearman's correlation of this reading with the contribution of the input"),
        ("own", "what a token contributes to itself"),
    ):
        variables |= mean_variables(name, heads, state.means(name), long_name=words)
    variables["rows_left_out"] = xr.Variable(
        heads, state.sums("rows_left_out").total.numpy().astype(np.int64), {"long_name": "rows without a correlation"}
    )
    variables |= mean_variables(
        "share",
        (*heads, "receiver", "token_type"),
        state.means("share"),
        long_name="share of contributions by tokens of a type",
    )
    variables |= mean_variables(
        "layer_own", ("layer",), state.means("layer_own"), long_name="share of a token's own input in its hidden state"
    )
    variables |= mean_variables(
        "layer_own_largest",
        ("layer",),
        state.means("layer_own_largest"),
        long_name="tokens whose own input is the largest part of their hidden state",
    )
    variables |= mean_variables(
        "pattern_share",
        ("source", "layer", "pattern"),
        state.moments("pattern_share"),
        long_name="share of heads with a pattern",
    )
    coords = layer_head_coords(shape) | {
        "source": list(READINGS),
        "receiver": list(RECEIVERS),
        "token_type": list(TOKEN_TYPES),
        "pattern": list(PATTERNS),
    }
    if gathered.sample:
        maps = ("layer", "head", "token", "source_token")
        for source in ("attention", "previous_layer", "input"):
            variables[f"sample_{source}"] = xr.Variable(
                maps, gathered.sample[source], {"long_name": f"{source} of one input"}
            )
        variables["sample_layer"] = xr.Variable(
            ("layer", "token", "source_token"), gathered.sample["layer"], {"long_name": "input in each hidden state"}
        )
        texts = [gathered.model.encoder.piece_text(int(i)) or "·" for i in gathered.sample["ids"]]
        coords |= {"token_text": ("token", texts), "source_token_text": ("source_token", texts)}
    dataset = xr.Dataset(variables, coords=coords)
    parts = [
        gathered.offsets.result(State({name: state[f"{source}.{name}"] for name in PER_SOURCE}), shape).assign_coords(
            source=[source]
        )
        for source in READINGS
    ]
    return dataset.merge(_joined(parts))


def widen_offsets(offsets: xr.Dataset, added: xr.Dataset) -> xr.Dataset:
    """The group `offsets` with more sources, from a dataset that has the same variables."""
    names = [str(name) for name in offsets.data_vars if "source" in offsets[name].dims and name in added]
    if set(map(str, offsets["source"].values)) & set(map(str, added["source"].values)):
        return offsets
    return _joined([offsets, added[names]]).assign_attrs(offsets.attrs)


def _joined(parts: list[xr.Dataset]) -> xr.Dataset:
    """Datasets of different sources in one, over all their offsets; counts stay whole numbers, zero where nothing was seen."""
    offsets = sorted({int(o) for part in parts for o in part["offset"].values})
    wide = [
        part.reindex(offset=offsets, fill_value={name: 0 if _counts(str(name)) else np.nan for name in part.data_vars})
        for part in parts
    ]
    shared = {name: wide[0][name] for name in wide[0].data_vars if "source" not in wide[0][name].dims}
    names = [name for name in wide[0].data_vars if name not in shared]
    joined = xr.concat([part[names] for part in wide], dim="source", join="exact", combine_attrs="override")
    return joined.assign(shared)


def _counts(name: str) -> bool:
    return name.endswith("_n") or name == "pairs"
