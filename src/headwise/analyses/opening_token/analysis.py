"""The opening token: attention to the first token of the same inputs with and without it."""

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
from headwise.analyses.sinks.analysis import MIN_TOKENS, check_threshold, first_token_sums
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
SHARE = "share of attention"

# The two conditions, and whether inputs open with the opening token in each.
CONDITIONS = {"with": True, "without": False}

EXAMPLES_PER_CHECKPOINT = 32
BATCH_TOKENS = 4096

# The first-token statistics of each example, `[example, layer, head]`, by name.
ExampleValues = dict[str, np.ndarray]


@dataclass(frozen=True)
class OpeningToken(Experiment):
    """Attention to the first token of the same inputs with the tokenizer's opening token and without.

    With it, the first token is the opening token; without it, it is the first of the text. Over the
    rows i > 0 that see token 0, averaged in an example, then over examples, with count and 95 %
    interval:

    - `first_with`, `first_without[layer, head]`: `A[i, 0]`; `rate_with`, `rate_without`: share of
      rows with `A[i, 0]` above `threshold`;
    - `change[layer, head]`: `first_with − first_without` of each example, averaged. It is near 0 for
      a head whose sink is whatever comes first, and near `first_with` for one whose sink is the
      opening token alone.

    Nothing is tested: any head, also of random weights, changes with the token that comes first.

    Parameters
    ----------
    threshold : float, default 0.3
        The weight on the first token above which a row counts as attending to the sink.

    Notes
    -----
    Question: Is a head's attention sink the opening token, or whatever comes first?

    Assumes: All tokens see the first token: a decoder-only analysis. The tokenizer has an opening
    token, whether it adds it or not (attribute `opening`: 1 if it does).

    Pitfalls: The model was trained in only one of the two conditions: a change says what the
    opening token does, not what a model trained without it would do. The conditions differ in their
    number of rows: with the opening token, the text's first token is one more.

    Cost: Two passes over the examples.
    """

    threshold: float = 0.3

    name: ClassVar[str] = "opening_token"
    title: ClassVar[str] = "The opening token: attention sinks with and without it"
    paper: ClassVar[Paper] = Paper("xiao2023", "Attention sinks; Gu et al. 2024")
    budget: ClassVar[int | None] = 64
    worth: ClassVar[float] = 3.0
    typical_passes: ClassVar[float] = 2.0

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def unsupported_reason(self, shape: Shape) -> str | None:
        if not shape.causal:
            return "decoder-only analysis"
        if shape.extras.get("reads_source"):
            return "the decoder reads a source beside its own text, and opens as its model requires"
        if "cls" not in shape.token_types:
            return "the tokenizer has no opening token"
        return None

    def perform(self, context: ExperimentContext) -> xr.Dataset:
        model = context.model
        rows = list(islice(iter(context.rows), context.limit))
        rows_by_condition = self._paired_rows(model, rows)
        units = []
        for condition, paired_rows in rows_by_condition.items():
            for start in range(0, len(paired_rows), EXAMPLES_PER_CHECKPOINT):
                unit_rows = paired_rows[start : start + EXAMPLES_PER_CHECKPOINT]
                units.append((f"{condition}-{start:06d}", unit_rows))

        function = partial(first_token_values, model, self.threshold)
        checkpoints = raise_failures(current().run_units(context.store, function, iter(units)))
        parts: dict[str, list[ExampleValues]] = {condition: [] for condition in CONDITIONS}
        for done, ((name, _), checkpoint) in enumerate(zip(units, checkpoints, strict=True), 1):
            condition = name.split("-")[0]
            parts[condition].append(checkpoint.arrays)
            context.progress("with and without the opening token", done, len(units))
        values = {condition: _concatenate(parts[condition]) for condition in CONDITIONS}

        n_opened = sum(bool(row.ids[0] == model.encoder.cls_id) for row in rows)
        documents = documents_of(rows_by_condition["with"])
        return self._dataset(values, context.shape, documents, n_opened > len(rows) / 2)

    def _paired_rows(self, model: HeadModel, rows: Sequence[Encoded]) -> dict[str, list[Encoded]]:
        """Return the rows in both conditions, without those that are too short in either."""
        by_condition: dict[str, list[Encoded]] = {condition: [] for condition in CONDITIONS}
        for row in rows:
            pair = {}
            for condition, has_opening in CONDITIONS.items():
                pair[condition] = with_opening(model, row, has_opening)
            if min(map(len, pair.values())) >= MIN_TOKENS:
                for condition, variant in pair.items():
                    by_condition[condition].append(variant)
        if not by_condition["with"]:
            raise InputError(
                f"Without the opening token every input is shorter than {MIN_TOKENS} tokens: "
                "use longer inputs."
            )
        return by_condition

    def _dataset(
        self,
        values: Mapping[str, ExampleValues],
        shape: Shape,
        documents: Sequence[int] | None,
        tokenizer_opens: bool,
    ) -> xr.Dataset:
        variables: dict[str, Any] = {}

        def add(name: str, per_example: np.ndarray, units: str) -> None:
            moments = Moments(*per_example.shape[1:])
            moments.batch_units = documents
            moments.add(torch.as_tensor(per_example))
            variables.update(mean_variables(name, HEADS, moments, units=units))

        for condition in CONDITIONS:
            add(f"first_{condition}", values[condition]["first"], SHARE)
            add(f"rate_{condition}", values[condition]["rate"], "share of rows")
        add("change", values["with"]["first"] - values["without"]["first"], SHARE)
        attrs = {"opening": int(tokenizer_opens), "threshold": self.threshold}
        return xr.Dataset(variables, layer_head_coords(shape), attrs)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        change = dataset["change"].values
        mean_with = float(dataset["first_with"].mean())
        mean_without = float(dataset["first_without"].mean())
        tokenizer = "adds one" if dataset.attrs["opening"] else "adds none by itself"
        most_changed = format_heads(change, ranked_heads(np.abs(change))[:1], "+.2f")
        is_significant = (dataset["change_low"] > 0) | (dataset["change_high"] < 0)
        return [
            f"Mean weight on the first token: {mean_with:.2f} with an opening token, "
            f"{mean_without:.2f} without (the tokenizer {tokenizer})",
            f"{int(is_significant.sum())} of {change.size} heads change by more than their interval; "
            f"most: {most_changed}",
        ]


class FirstTokenWatcher(Watcher):
    """Collects, for each layer, each example's mean weight on the first token and the share of rows
    above the threshold."""

    needs: frozenset[str] = frozenset()

    def __init__(self, batch: Batch, threshold: float) -> None:
        self.batch = batch
        self.threshold = threshold
        columns = {FIRST: batch.token_mask("first")}
        self.request: StatsRequest | None = StatsRequest(columns, uniform=True)
        self.values: dict[str, list[Tensor]] = {"first": [], "rate": []}

    def on_statistics(self, result: StatsResult) -> None:
        _, sums = first_token_sums(result, self.batch, self.threshold)
        n_rows = sums["rows"]
        for name, total in (("first", sums["first"]), ("rate", sums["above"])):
            mean = torch.where(n_rows > 0, total.double() / n_rows, torch.nan)
            self.values[name].append(mean)


def with_opening(model: HeadModel, row: Encoded, has_opening: bool) -> Encoded:
    """Return the row with or without its opening token."""
    encoder = model.encoder
    is_opened = bool(row.ids[0] == encoder.cls_id)
    if is_opened == has_opening or encoder.cls_id is None:
        return row
    if is_opened:
        ids = row.ids[1:]
    else:
        ids = np.r_[encoder.cls_id, row.ids][: encoder.max_length]
    return replace(synthetic_row(encoder, ids, row.index), example=row.example)


def first_token_values(
    model: HeadModel, threshold: float, rows: Sequence[Encoded]
) -> tuple[ExampleValues, dict[str, Any]]:
    """Return `first` and `rate` of each example, `[example, layer, head]` in the order of the rows,
    as a checkpoint."""
    position = {row.index: place for place, row in enumerate(rows)}
    values: dict[str, list[np.ndarray]] = {"first": [], "rate": []}
    positions: list[int] = []
    for batch in batches(rows, BATCH_TOKENS, model.pad_id, model.device):
        watcher = FirstTokenWatcher(batch, threshold)
        model.forward(batch, watcher)
        for name, by_layer in watcher.values.items():
            values[name].append(torch.stack(by_layer, 1).cpu().numpy())
        positions += [position[index] for index in batch.index]
        batch.forget()
    # Batches are made by length: sort the examples back.
    order = np.argsort(positions)
    arrays = {}
    for name, parts in values.items():
        arrays[name] = np.concatenate(parts)[order]
    return arrays, {}


def _concatenate(parts: Sequence[ExampleValues]) -> ExampleValues:
    """Return the values of all checkpoints, in their order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
