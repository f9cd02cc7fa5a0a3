"""The opening token: how much rests on the first token of the same inputs with and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    layer_head_coords,
    mean_variables,
)
from headwise.analyses.sinks.analysis import SHORTEST, check_threshold, on_first
from headwise.analyses.summaries import format_heads, ranked_heads
from headwise.analyses.surface.analysis import FIRST
from headwise.core.errors import InputError
from headwise.core.workers import current, raise_failures
from headwise.models import HeadModel
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.view import Watcher
from headwise.stats.accumulators import Moments
from headwise.text.encode import Batch, Encoded, batches, documents_of
from headwise.text.synthetic import synthetic_row

HEADS = ("layer", "head")
WAYS = {"with": True, "without": False}
PIECE = 32  # examples kept together
BATCH_TOKENS = 4096
SHARE = "share of attention"


@dataclass(frozen=True)
class OpeningToken(Experiment):
    """How much of each head rests on the first token of the same inputs with the tokenizer's
    opening token and without.

    With it, the first token is the opening token; without it, it is the first of the text. Over the
    rows i > 0 that see token 0, averaged in an example, then over examples, with count and 95 %
    interval:

    - `first_with`, `first_without[layer, head]`: `A[i, 0]`; `rate_with`, `rate_without`: share of rows with `A[i, 0]`
      above `threshold`;
    - `change[layer, head]`: `first_with − first_without` of each example, averaged. Of a head that rests on whatever
      comes first it is near 0; of one that rests on the opening token alone, near `first_with`.

    Nothing is tested: any head, also of random weights, changes with the token that comes first.

    Parameters
    ----------
    threshold : float, default 0.3
        The weight on the first token above which a row counts as resting.

    Notes
    -----
    Question: Does a head rest on the opening token, or on whatever comes first?

    Assumes: The first token is seen by all others, so it is asked of decoders; the tokenizer has an
    opening token, whether it adds it or not (attribute `opening`: 1 where it does).

    Traps: One of the two ways is not how the model was trained: a change says what the opening
    token does, not what a model trained without it would do. Rows of the two ways are not alike in
    number: with the opening token the text's first token is a row more.

    Cost: Two passes over the examples.
    """

    threshold: float = 0.3

    name: ClassVar[str] = "opening_token"
    title: ClassVar[str] = "The opening token: what rests with and without it"
    paper: ClassVar[Paper] = Paper("xiao2023", "Attention sinks; Gu et al. 2024")
    budget: ClassVar[int | None] = 64

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def unsupported_reason(self, shape: Shape) -> str | None:
        if not shape.causal:
            return "it is asked of decoders, whose first token every other token sees"
        if shape.extras.get("reads_source"):
            return "the decoder reads a source beside its own text, which opens as the model has it"
        return None if "cls" in shape.token_types else "the tokenizer has no opening token"

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        given = list(islice(iter(bench.rows), bench.limit))
        pairs = [
            {way: with_opening(model, row, there) for way, there in WAYS.items()} for row in given
        ]
        pairs = [pair for pair in pairs if min(map(len, pair.values())) >= SHORTEST]
        if not pairs:
            raise InputError(
                f"Without the opening token every input is shorter than {SHORTEST} tokens: give longer."
            )
        units = [
            (f"{way}-{start:06d}", [pair[way] for pair in pairs[start : start + PIECE]])
            for way in WAYS
            for start in range(0, len(pairs), PIECE)
        ]
        parts: dict[str, list[dict[str, np.ndarray]]] = {way: [] for way in WAYS}
        made = raise_failures(
            current().run_units(
                bench.store, partial(observe_piece, model, self.threshold), iter(units)
            )
        )
        for done, ((name, _), piece) in enumerate(zip(units, made, strict=True), 1):
            parts[name.split("-")[0]].append(piece.arrays)
            bench.progress("with and without the opening token", done, len(units))
        found = {
            way: {key: np.concatenate([p[key] for p in own]) for key in own[0]}
            for way, own in parts.items()
        }
        opens = sum(bool(row.ids[0] == model.encoder.cls_id) for row in given) > len(given) / 2
        return self._dataset(
            found, bench.shape, documents_of([pair["with"] for pair in pairs]), opens
        )

    def _dataset(
        self,
        found: Mapping[str, Mapping[str, np.ndarray]],
        shape: Shape,
        documents: Sequence[int] | None,
        opens: bool,
    ) -> xr.Dataset:
        variables: dict[str, Any] = {}

        def add(name: str, values: np.ndarray, units: str) -> None:
            moments = Moments(*values.shape[1:])
            moments.batch_units = documents
            moments.add(torch.as_tensor(values))
            variables.update(mean_variables(name, HEADS, moments, units=units))

        for way in WAYS:
            add(f"first_{way}", found[way]["first"], SHARE)
            add(f"rate_{way}", found[way]["rate"], "share of rows")
        add("change", found["with"]["first"] - found["without"]["first"], SHARE)
        attrs = {"opening": int(opens), "threshold": self.threshold}
        return xr.Dataset(variables, layer_head_coords(shape), attrs)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        change = dataset["change"].values
        there, gone = (float(dataset[f"first_{way}"].mean()) for way in WAYS)
        added = "adds one" if dataset.attrs["opening"] else "adds none by itself"
        most = format_heads(change, ranked_heads(np.abs(change))[:1], "+.2f")
        sure = int(((dataset["change_low"] > 0) | (dataset["change_high"] < 0)).sum())
        return [
            f"Mean weight on the first token: {there:.2f} with an opening token, {gone:.2f} without "
            f"(the tokenizer {added})",
            f"{sure} of {change.size} heads change by more than their interval; most: {most}",
        ]


class Watch(Watcher):
    """Keeps, for each example of a batch and each layer, the mean weight on the first token and how
    often it is above the threshold."""

    needs: frozenset[str] = frozenset()

    def __init__(self, batch: Batch, threshold: float) -> None:
        self.batch, self.threshold = batch, threshold
        self.request: StatsRequest | None = StatsRequest(
            {FIRST: batch.token_mask("first")}, uniform=True
        )
        self.found: dict[str, list[Tensor]] = {"first": [], "rate": []}

    def on_statistics(self, result: StatsResult) -> None:
        _, sums = on_first(result, self.batch, self.threshold)
        for name, total in (("first", sums["first"]), ("rate", sums["above"])):
            self.found[name].append(
                torch.where(sums["rows"] > 0, total.double() / sums["rows"], torch.nan)
            )


def with_opening(model: HeadModel, row: Encoded, opening: bool) -> Encoded:
    """The row with or without its opening token; as it is where it already is so."""
    encoder = model.encoder
    has = bool(row.ids[0] == encoder.cls_id)
    if has == opening or encoder.cls_id is None:
        return row
    ids = row.ids[1:] if has else np.r_[encoder.cls_id, row.ids][: encoder.max_length]
    return replace(synthetic_row(encoder, ids, row.index), example=row.example)


def observe_piece(
    model: HeadModel, threshold: float, rows: Sequence[Encoded]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """`first` and `rate` of each example, `[example, layer, head]`, in the order of the rows, as a
    piece."""
    order = {row.index: place for place, row in enumerate(rows)}
    found: dict[str, list[np.ndarray]] = {"first": [], "rate": []}
    places: list[int] = []
    for batch in batches(rows, BATCH_TOKENS, model.pad_id, model.device):
        watch = Watch(batch, threshold)
        model.forward(batch, watch)
        for name, layers in watch.found.items():
            found[name].append(torch.stack(layers, 1).cpu().numpy())
        places += [order[index] for index in batch.index]
        batch.forget()
    turn = np.argsort(places)
    return {name: np.concatenate(parts)[turn] for name, parts in found.items()}, {}
