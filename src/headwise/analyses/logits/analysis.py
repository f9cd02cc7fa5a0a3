"""What each head, feed-forward layer and embedding adds directly to the logit of the true next
token."""

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
    layer_head_coords,
    mean_variables,
)
from headwise.analyses.direct_logits import DirectLogitExperiment
from headwise.analyses.logits.copying import COPYING_NAMES, AttendedTokens, copying_means
from headwise.analyses.summaries import format_heads, ranked_heads
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.core.store import Checkpoint
from headwise.core.workers import current, raise_failures
from headwise.models import HeadModel
from headwise.models.direct import Direct, Recorded, adds_up
from headwise.models.structure import Structure
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.stats.units import mean_over_units
from headwise.text.encode import Batch, Encoded, batches, documents_of
from headwise.text.example import UPOS

HEADS = ("layer", "head")
TOLERANCE = 1e-4  # largest difference between the sum of parts and the logit
EXAMPLES_PER_UNIT = 32
BATCH_BYTES = 2**29  # memory for the recorded outputs of one batch


@dataclass(frozen=True)
class Logits(DirectLogitExperiment):
    """Measure what each part of a pre-norm decoder adds directly to the logit of the next token.

    The final norm is held at its actual scale; then the logit is a sum over heads, feed-forward
    layers, embedding and biases. That the sum is the model's own logit is checked on every run
    (attribute `adds_up`, the largest difference relative to the largest logit; above 1e-4 in
    float32 nothing is said). Mean over the tokens of an example, then over examples, with count and
    95 % interval:

    - `direct[layer, head]`: contribution to the logit of the next token, less the mean over the
      vocabulary (or less the logit of the token `against`); `direct_other[layer]`: of the
      feed-forward branch; `direct_bias[layer]`: of the biases of attention; `direct_embedding`,
      `direct_constant`: of the embedding and of the last biases; `logit`: the model's own;
    - `specific[layer, head]`: the same, less what the head adds to the logit of the token that
      comes next at this place in another text: a head that raises common tokens everywhere, which
      random weights do too, has none; `specific_p`: over examples or documents, two-sided (Student's t);
      `specific_p_adjusted`: corrected over heads (Holm);
    - `copying[layer, head]`: what the head adds to the logit of the token that it attends to most
      (the first token excluded), less what it adds to a control: the token that it attends to most
      in the row half a text away, which is as frequent among what this head attends to, and is not
      attended to here. Rows count by the weight on the token. `copying_effect` is the same without
      the control, `copying_spreads` in standard deviations, over the vocabulary, of what the head
      adds to all logits in that row. `copying_p`: over examples or documents, above zero (Student's t);
      `copying_p_adjusted`: corrected over heads (Holm);
    - `direct_upos[layer, head, upos]`: by the part of speech of the next token, where the corpus
      has them.

    Parameters
    ----------
    against : str, optional
        A token of the vocabulary whose logit is taken off, instead of the mean over the vocabulary.

    Notes
    -----
    Question: What does each head add directly to the logit of the next token, and to that of the
    token it attends to?

    Assumes: The final norm is held at its actual scale, so that the logit is a sum of parts;
    pre-norm decoders only.

    Pitfalls: Direct only: what a head does through later layers is not in it (`headwise patch` has
    that). A head that raises common tokens everywhere has a large `direct` and no `specific`.

    Cost: A pass over the examples that keeps each head's output in the direction of the next token.
    """

    against: str = ""

    name: ClassVar[str] = "logits"
    title: ClassVar[str] = "What each head adds to the logit of the next token"
    paper: ClassVar[Paper] = Paper(
        "elhage2021", "Direct contributions to the logits; Wang et al. 2022"
    )
    budget: ClassVar[int | None] = 64
    typical_passes: ClassVar[float] = 3.0

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        structure = self.structure_to_logits(model)
        rows = [row for row in islice(iter(bench.rows), bench.limit) if len(row) > 2]
        if not rows:
            raise InputError("No input has a next token to predict; give longer texts.")
        units = []
        for start in range(0, len(rows), EXAMPLES_PER_UNIT):
            unit_rows = rows[start : start + EXAMPLES_PER_UNIT]
            other_ids = _ids_of_next_rows(rows, start, len(unit_rows))
            units.append((f"examples-{start:06d}", (unit_rows, other_ids)))
        compute = partial(_example_means, model, structure, self._against_id(model))
        checkpoints: list[Checkpoint] = []
        for checkpoint in raise_failures(current().run_units(bench.store, compute, units)):
            checkpoints.append(checkpoint)
            n_done = min(len(checkpoints) * EXAMPLES_PER_UNIT, len(rows))
            bench.progress("logits", n_done, len(rows))

        largest_difference = max(float(part.facts["adds_up"]) for part in checkpoints)
        is_full_precision = model.dtype in (torch.float32, torch.float64)
        # Negated, so that NaN fails too.
        if is_full_precision and not largest_difference <= TOLERANCE:
            raise ModelError(
                f"The parts of {model.name} do not add up to its logits (difference "
                f"{largest_difference:.1e}), so the contribution of a head is not known; this "
                "architecture is not supported here."
            )
        means = {}
        for name in checkpoints[0].arrays:
            means[name] = np.concatenate([part.arrays[name] for part in checkpoints])
        attrs = {
            "adds_up": largest_difference,
            "against": self.against or "mean over the vocabulary",
        }
        return _dataset(means, bench.shape, documents_of(rows), attrs)

    def _against_id(self, model: HeadModel) -> int | None:
        """Return the token whose logit is subtracted; None for the mean over the vocabulary."""
        if not self.against:
            return None
        ids = model.tokenizer(self.against, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise ParameterError(f"`against` must be one token; '{self.against}' is {len(ids)}.")
        return int(ids[0])

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["specific_p_adjusted"] < SIGNIFICANCE_LEVEL

    def summary(self, dataset: xr.Dataset) -> list[str]:
        specific = dataset["specific"].values
        is_significant = (dataset["specific_p_adjusted"] < SIGNIFICANCE_LEVEL).values
        raising = ranked_heads(specific, is_significant & (specific > 0))
        lowering = ranked_heads(specific, is_significant & (specific < 0))
        # The five that raise it most, and the three that lower it most.
        named = format_heads(specific, [*raising[:5], *lowering[:-4:-1]], "+.2f")
        heads = float(dataset["direct"].sum())
        feed_forward = float(dataset["direct_other"].sum())
        embedding = float(dataset["direct_embedding"])
        biases = float(dataset["direct_bias"].sum()) + float(dataset["direct_constant"])
        return [
            f"Logit of the next token, less the {dataset.attrs['against']}: "
            f"{float(dataset['logit']):.2f}; heads {heads:+.2f}, feed-forward {feed_forward:+.2f}, "
            f"embedding {embedding:+.2f}, biases {biases:+.2f} (they add up to "
            f"{dataset.attrs['adds_up']:.0e})",
            f"{len(raising)} heads raise the very token that comes next, {len(lowering)} lower it "
            f"(corrected p < {SIGNIFICANCE_LEVEL:g}): {named}",
            *_copying_line(dataset),
        ]


def _copying_line(dataset: xr.Dataset) -> list[str]:
    """Return a line on the heads that write most toward the token they attend to."""
    copying = dataset["copying"].values
    is_significant = (dataset["copying_p_adjusted"] < SIGNIFICANCE_LEVEL).values
    heads = ranked_heads(copying, is_significant & (copying > 0))
    if not heads:
        return ["No head raises the very token that it attends to"]
    return [
        f"{len(heads)} heads raise the very token that they attend to (corrected p < "
        f"{SIGNIFICANCE_LEVEL:g}), most: {format_heads(copying, heads[:5], '+.2f')}"
    ]


def _ids_of_next_rows(rows: Sequence[Encoded], start: int, count: int) -> dict[int, np.ndarray]:
    """Return for each row the tokens of the next one in the corpus; after the last comes the
    first."""
    ids = {}
    for place in range(start, start + count):
        ids[rows[place].index] = rows[(place + 1) % len(rows)].ids
    return ids


def _example_means(
    model: HeadModel,
    structure: Structure,
    against: int | None,
    unit: tuple[Sequence[Encoded], Mapping[int, np.ndarray]],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return means over the tokens of each example, `[example, ...]`, in the order of the rows.

    A unit is rows, and the tokens of other rows to compare them with.
    """
    rows, other_ids = unit
    head = structure.head
    vocabulary = len(head.weight) if head is not None else 0  # type: ignore[arg-type]
    bytes_per_token = 4 * (2 * vocabulary + 3 * model.layers * model.hidden)
    max_tokens = max(BATCH_BYTES // bytes_per_token, 1)
    place_of_index = {row.index: place for place, row in enumerate(rows)}
    parts: dict[str, list[Tensor]] = {}
    places: list[int] = []
    largest_difference = 0.0
    covariance = None
    for batch in batches(rows, max_tokens, model.pad_id, model.device):
        attended = AttendedTokens()
        recorded = Recorded(model, structure, batch, attended.on_rows)
        if covariance is None:
            covariance = recorded.logit_covariance()
        target = torch.roll(batch.ids, -1, 1)
        subtracted = None if against is None else torch.full_like(target, against)
        direct = recorded.direct(target, subtracted)
        specific = recorded.direct(target, _next_tokens_elsewhere(batch, other_ids))
        has_next = batch.attention_mask & torch.roll(batch.attention_mask, -1, 1)
        has_next[:, -1] = False
        has_next &= ~torch.roll(batch.special, -1, 1)
        difference = adds_up(direct, batch.attention_mask)
        largest_difference = max(largest_difference, difference)
        means = _token_means(direct, specific, has_next, _next_upos(batch))
        means |= copying_means(recorded, attended, covariance)
        for name, value in means.items():
            parts.setdefault(name, []).append(value.float().cpu())
        places += [place_of_index[index] for index in batch.index]
    # Batches are sorted by length: back to the order of the rows.
    order = np.argsort(places)
    arrays = {name: torch.cat(values).numpy()[order] for name, values in parts.items()}
    return arrays, {"adds_up": largest_difference}


def _next_tokens_elsewhere(batch: Batch, other_ids: Mapping[int, np.ndarray]) -> Tensor:
    """Return the token that comes next at each place of another text, which is repeated if it is
    shorter."""
    width = batch.ids.shape[1]
    tokens = [np.resize(other_ids[index], width + 1)[1:] for index in batch.index]
    return torch.as_tensor(np.array(tokens), device=batch.device)


def _next_upos(batch: Batch) -> Tensor:
    """Return the part of speech of the next token, by number; −1 where it has none."""
    upos = torch.full_like(batch.ids, -1)
    for place, row in enumerate(batch.rows):
        tags = row.example.upos
        if tags is None or not row.aligned:
            continue
        for token in range(1, len(row)):
            word = int(row.word[token])
            if 0 <= word < len(tags) and tags[word] in UPOS:
                upos[place, token - 1] = UPOS.index(tags[word])
    return upos


def _token_means(
    direct: Direct, specific: Direct, has_next: Tensor, upos: Tensor
) -> dict[str, Tensor]:
    """Return the mean contributions over the tokens of each example."""

    def mean(values: Tensor, chosen: Tensor) -> Tensor:
        """Return `[example, layer, ...]` from `[layer, example, token, ...]`; NaN if an example has
        no chosen token."""
        weight = chosen.double()
        n_extra_dims = values.ndim - 3
        broadcast = weight.view(1, *weight.shape, *(1,) * n_extra_dims)
        total = (values.double() * broadcast).sum(2).transpose(0, 1)
        count = weight.sum(-1).view(-1, *(1,) * (total.ndim - 1))
        return torch.where(count > 0, total / count.clamp(min=1), torch.nan)

    means = {
        "direct": mean(direct.heads, has_next),
        "direct_other": mean(direct.other, has_next),
        "direct_bias": mean(direct.bias, has_next),
        "specific": mean(specific.heads, has_next),
        "direct_embedding": mean(direct.embedding[None], has_next)[:, 0],
        "direct_constant": mean(direct.constant[None], has_next)[:, 0],
        "logit": mean(direct.logit[None], has_next)[:, 0],
    }
    if bool((upos >= 0).any()):
        by_upos = []
        for number in range(len(UPOS)):
            by_upos.append(mean(direct.heads, has_next & (upos == number)))
        means["direct_upos"] = torch.stack(by_upos, -1)
    return means


_DIMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(COPYING_NAMES, HEADS),
    "direct": HEADS,
    "specific": HEADS,
    "direct_upos": (*HEADS, "upos"),
    "direct_other": ("layer",),
    "direct_bias": ("layer",),
}


def _dataset(
    means: Mapping[str, np.ndarray],
    shape: Shape,
    documents: Sequence[int] | None,
    attrs: dict[str, Any],
) -> xr.Dataset:
    """Return means over examples with their intervals, and the tests of `specific` and `copying`."""
    variables: dict[str, Any] = {}
    for name, values in means.items():
        moments = Moments(*values.shape[1:])
        moments.batch_units = documents
        moments.add(torch.as_tensor(values.astype(np.float64)))
        units = "standard deviations" if name == "copying_spreads" else "logit"
        variables |= mean_variables(name, _DIMS.get(name, ()), moments, units=units)
    raised = mean_over_units(means["specific"], documents)
    lowered = mean_over_units(-means["specific"], documents)
    p_value = np.minimum(1.0, 2 * np.minimum(raised.p_above(), lowered.p_above()))
    variables["specific_p"] = (HEADS, p_value)
    variables["specific_p_adjusted"] = (HEADS, holm(p_value))
    # Too few examples with a row to compare: nothing can be said, which is no significance.
    copying_p = np.nan_to_num(mean_over_units(means["copying"], documents).p_above(), nan=1.0)
    variables["copying_p"] = (HEADS, copying_p)
    variables["copying_p_adjusted"] = (HEADS, holm(copying_p))
    coords = layer_head_coords(shape)
    if "direct_upos" in means:
        coords["upos"] = list(UPOS)
    return xr.Dataset(variables, coords, attrs)
