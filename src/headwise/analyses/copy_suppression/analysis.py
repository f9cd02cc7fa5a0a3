"""Copy suppression: heads that attend to what earlier layers predict and lower its logit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    mean_variables,
)
from headwise.analyses.copy_suppression.rows import (
    FIRST_ROW,
    ChosenRows,
    suppression_means,
)
from headwise.analyses.direct_logits import DirectLogitExperiment
from headwise.analyses.summaries import format_heads, ranked_heads
from headwise.core.errors import InputError
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.core.workers import current, raise_failures
from headwise.models import HeadModel
from headwise.models.direct import Recorded
from headwise.models.structure import Structure
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.text.encode import Encoded, batches, documents_of

HEADS = ("layer", "head")
EXAMPLES_PER_UNIT = 16
BATCH_BYTES = 2**29  # memory for the recorded outputs of one batch
# Random heads lower some tokens a little: their weights have chance alignments of the order of
# 1 / √width standard deviations. Of what a head adds to all logits, it must lower a predicted token
# by more than this.
MIN_SPREADS = 0.25
UNITS = {
    "suppression": "logit",
    "suppression_effect": "logit",
    "suppression_spreads": "standard deviations",
    "absent_spreads": "standard deviations",
    "attention": "share of attention",
    "attention_excess": "share of attention",
}


@dataclass(frozen=True)
class CopySuppression(DirectLogitExperiment):
    """Find the heads that lower the logit of a token which earlier layers predict and which stands
    earlier in the text.

    Before each layer, a row predicts a token: the likeliest when the residual stream there goes
    through the final norm and the output matrix (logit lens, top 1). Rows that predict their own
    token are left out: tied embeddings echo it. Counted are rows whose prediction stands earlier in
    the text. Each has a control: the nearest row of the same text in which the same token stands
    earlier and is not predicted. Mean over the rows of an example, then over examples, with count
    and 95 % interval:

    - `suppression[layer, head]`: by how much the head lowers the logit of the predicted token
      (minus its direct effect, less the mean over the vocabulary), less the same in the control
      row; `suppression_effect`: without the control; `suppression_spreads`: like `suppression`, in
      standard deviations, over the vocabulary, of what the head adds to all logits (root of the
      mean variance over the counted rows of the example);
    - `absent_spreads`: by how much more it lowers such a token than one that is predicted but
      stands nowhere in the text so far;
    - `attention`: attention to the earlier occurrences of the predicted token; `attention_excess`:
      less that in the control row;
    - `suppression_p`: that `suppression_spreads` is no more than 0.25, that `absent_spreads` or
      `attention_excess` is no more than zero, whichever is likeliest (Student's t over examples);
      `suppression_p_adjusted`: corrected over heads (Holm);
    - `rows[layer]`: how many rows were counted.

    Parameters
    ----------
    rows : int, default 32
        Rows of a text at most, evenly spaced.

    Notes
    -----
    Question: Which heads attend to a token that earlier layers predict, and lower its logit?

    Assumes: The logit lens reads a prediction from the residual stream in the middle of the model;
    the final norm is held at its actual scale. Pre-norm decoders only.

    Pitfalls: Direct effects only. In early layers the logit lens predicts little, and few rows
    count. A head that lowers whatever it attends to has no `suppression`: the control takes it off
    (`logits` has such heads, with a negative `copying`).

    Cost: A pass over the examples, and for every layer the logits of at most 32 rows of each.
    """

    rows: int = 32

    name: ClassVar[str] = "copy_suppression"
    title: ClassVar[str] = "Copy suppression: heads that lower a predicted token of the text"
    paper: ClassVar[Paper] = Paper("mcdougall2023", "Copy suppression")
    budget: ClassVar[int | None] = 64
    typical_passes: ClassVar[float] = 9.0

    def __post_init__(self) -> None:
        at_least("rows", self.rows, 2)

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        structure = self.structure_to_logits(model)
        rows = [row for row in islice(iter(bench.rows), bench.limit) if len(row) > FIRST_ROW]
        if not rows:
            raise InputError("No input has three tokens or more; give longer texts.")
        units = []
        for start in range(0, len(rows), EXAMPLES_PER_UNIT):
            units.append((f"examples-{start:06d}", rows[start : start + EXAMPLES_PER_UNIT]))
        compute = partial(_example_means, model, structure, self.rows)
        parts: dict[str, list[np.ndarray]] = {}
        n_done = 0
        for checkpoint in raise_failures(current().run_units(bench.store, compute, units)):
            for name, values in checkpoint.arrays.items():
                parts.setdefault(name, []).append(values)
            n_done += EXAMPLES_PER_UNIT
            bench.progress("copy suppression", min(n_done, len(rows)), len(rows))
        means = {name: np.concatenate(values) for name, values in parts.items()}
        return _dataset(means, bench.shape, documents_of(rows))

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["suppression_p_adjusted"] < SIGNIFICANCE_LEVEL

    def summary(self, dataset: xr.Dataset) -> list[str]:
        suppression = dataset["suppression"].values
        is_significant = self.significant_heads(dataset)
        assert is_significant is not None
        heads = ranked_heads(suppression, is_significant.values)
        n_rows = dataset["rows"].values
        lines = [
            f"Rows whose prediction before a layer stands earlier in the text: {n_rows.min()} to "
            f"{n_rows.max()} by layer"
        ]
        if not heads:
            lines.append("No head suppresses the copying of predicted tokens")
            return lines
        lines.append(
            f"{len(heads)} heads lower the logit of such a token (corrected p < "
            f"{SIGNIFICANCE_LEVEL:g}), most: {format_heads(suppression, heads[:5], '+.2f')}"
        )
        return lines


def _example_means(
    model: HeadModel, structure: Structure, max_rows: int, rows: Sequence[Encoded]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return means over the rows of each example, `[example, ...]`, in the order of the examples."""
    head = structure.head
    vocabulary = len(head.weight) if head is not None else 0  # type: ignore[arg-type]
    bytes_per_token = 4 * (2 * vocabulary + 4 * model.layers * model.hidden)
    max_tokens = max(BATCH_BYTES // bytes_per_token, 1)
    place_of_index = {row.index: place for place, row in enumerate(rows)}
    parts: dict[str, list[Tensor]] = {}
    places: list[int] = []
    covariance = None
    for batch in batches(rows, max_tokens, model.pad_id, model.device):
        chosen = ChosenRows(batch, max_rows)
        recorded = Recorded(model, structure, batch, chosen.on_rows, keep_streams=True)
        if covariance is None:
            covariance = recorded.logit_covariance()
        means, n_copied = suppression_means(recorded, chosen, covariance)
        for name, values in (means | {"rows": n_copied}).items():
            parts.setdefault(name, []).append(values.double().cpu())
        places += [place_of_index[index] for index in batch.index]
    # Batches are sorted by length: back to the order of the rows.
    order = np.argsort(places)
    return {name: torch.cat(values).numpy()[order] for name, values in parts.items()}, {}


def _dataset(
    means: Mapping[str, np.ndarray], shape: Shape, documents: Sequence[int] | None
) -> xr.Dataset:
    """Return means over examples with their intervals, and the test."""
    variables: dict[str, Any] = {}
    moments_by_name = {}
    for name, units in UNITS.items():
        moments = Moments(*means[name].shape[1:])
        moments.batch_units = documents
        moments.add(torch.as_tensor(means[name]))
        variables |= mean_variables(name, HEADS, moments, units=units)
        moments_by_name[name] = moments
    # A head must do all three: the largest p-value is that of the weakest of them.
    p_values = [
        moments_by_name["suppression_spreads"].p_above(MIN_SPREADS),
        moments_by_name["absent_spreads"].p_above(0.0),
        moments_by_name["attention_excess"].p_above(0.0),
    ]
    # Too few examples with such rows: nothing can be said, which is no significance.
    p_value = np.nan_to_num(np.max(p_values, axis=0), nan=1.0)
    variables["suppression_p"] = (HEADS, p_value)
    variables["suppression_p_adjusted"] = (HEADS, holm(p_value))
    variables["rows"] = ("layer", means["rows"].sum(0).astype(int), {"units": "rows"})
    return xr.Dataset(variables, layer_head_coords(shape))
