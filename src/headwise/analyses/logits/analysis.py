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
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    layer_head_coords,
    mean_variables,
)
from headwise.analyses.summaries import SIGNIFICANCE_LEVEL, format_heads, ranked_heads
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.store import Checkpoint
from headwise.core.workers import current, raise_failures
from headwise.models import HeadModel
from headwise.models.direct import Direct, Recorded, adds_up
from headwise.models.structure import Structure, find_structure
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.stats.tests import mean_above
from headwise.text.encode import Batch, Encoded, batches
from headwise.text.example import UPOS

HEADS = ("layer", "head")
TOLERANCE = 1e-4
PIECE = 32
MEMORY = 2**29  # bytes of what one batch keeps


@dataclass(frozen=True)
class Logits(Experiment):
    """What each part of a pre-norm decoder adds directly to the logit of the true next token.

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
      random weights do too, has none; `specific_p`: over examples, two-sided (Student's t);
      `specific_p_adjusted`: corrected over heads (Holm);
    - `direct_upos[layer, head, upos]`: by the part of speech of the next token, where the corpus
      has them.

    Parameters
    ----------
    against : str, optional
        A token of the vocabulary whose logit is taken off, instead of the mean over the vocabulary.

    Notes
    -----
    Question: What does each head add directly to the logit of the next token?

    Assumes: The final norm is held at its actual scale, so that the logit is a sum of parts;
    pre-norm decoders only.

    Traps: Direct only: what a head does through later layers is not in it (`headwise patch` has
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

    def unsupported_reason(self, shape: Shape) -> str | None:
        if not shape.causal or shape.extras.get("lm_kind") != "causal":
            return "the model has no head that predicts the next token"
        if shape.extras.get("reads_source"):
            return "the model is an encoder-decoder, whose weights are not followed to the logits"
        return None

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        structure = find_structure(model)
        if structure.refusal is not None:
            raise ModelError(f"Heads add nothing of their own to the logits: {structure.refusal}.")
        rows = [row for row in islice(iter(bench.rows), bench.limit) if len(row) > 2]
        if not rows:
            raise InputError("No input has a next token to predict; give longer texts.")
        other = self._other(model)
        parts: list[Checkpoint] = []
        groups = ((start, rows[start : start + PIECE]) for start in range(0, len(rows), PIECE))
        units = (
            (f"examples-{start:06d}", (own, _elsewhere(rows, start, len(own))))
            for start, own in groups
        )
        for piece in raise_failures(
            current().run_units(bench.store, partial(_piece, model, structure, other), units)
        ):
            parts.append(piece)
            bench.progress("logits", min(len(parts) * PIECE, len(rows)), len(rows))
        found = {key: np.concatenate([p.arrays[key] for p in parts]) for key in parts[0].arrays}
        worst = max(float(p.facts["adds_up"]) for p in parts)
        if model.dtype in (torch.float32, torch.float64) and not worst <= TOLERANCE:
            raise ModelError(
                f"The parts of {model.name} do not add up to its logits (difference {worst:.1e}), so what a head adds "
                "is not known; this architecture is not served here."
            )
        return _dataset(
            found,
            bench.shape,
            {"adds_up": worst, "against": self.against or "mean over the vocabulary"},
        )

    def _other(self, model: HeadModel) -> int | None:
        if not self.against:
            return None
        ids = model.tokenizer(self.against, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise ParameterError(f"`against` must be one token; '{self.against}' is {len(ids)}.")
        return int(ids[0])

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["specific_p_adjusted"] < SIGNIFICANCE_LEVEL

    def summary(self, dataset: xr.Dataset) -> list[str]:
        value, sure = (
            dataset["specific"].values,
            (dataset["specific_p_adjusted"] < SIGNIFICANCE_LEVEL).values,
        )
        up, down = ranked_heads(value, sure & (value > 0)), ranked_heads(value, sure & (value < 0))
        whole = {
            name: float(dataset[f"direct{name}"].sum())
            for name in ("", "_other", "_bias", "_embedding", "_constant")
        }
        return [
            f"Logit of the next token, less the {dataset.attrs['against']}: {float(dataset['logit']):.2f}; heads "
            f"{whole['']:+.2f}, feed-forward {whole['_other']:+.2f}, embedding {whole['_embedding']:+.2f}, biases "
            f"{whole['_bias'] + whole['_constant']:+.2f} (they add up to {dataset.attrs['adds_up']:.0e})",
            f"{len(up)} heads raise the very token that comes next, {len(down)} lower it (corrected p < {SIGNIFICANCE_LEVEL:g}): "
            f"{format_heads(value, [*up[:5], *down[:-4:-1]], '+.2f')}",
        ]


def _elsewhere(rows: Sequence[Encoded], start: int, count: int) -> dict[int, np.ndarray]:
    """For each row, the tokens of the next one in the corpus (the last one's, of the first)."""
    return {rows[i].index: rows[(i + 1) % len(rows)].ids for i in range(start, start + count)}


def _piece(
    model: HeadModel,
    structure: Structure,
    against: int | None,
    unit: tuple[Sequence[Encoded], Mapping[int, np.ndarray]],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Means over tokens of each example, `[example, ...]`, in the order of the rows; a unit is rows
    and the tokens of other rows."""
    rows, elsewhere = unit
    head = structure.head
    vocabulary = len(head.weight) if head is not None else 0  # type: ignore[arg-type]
    per_token = 4 * (2 * vocabulary + 3 * model.layers * model.hidden)
    found: dict[str, list[Tensor]] = {}
    places: list[int] = []
    worst, order = 0.0, {row.index: place for place, row in enumerate(rows)}
    for batch in batches(rows, max(MEMORY // per_token, 1), model.pad_id, model.device):
        recorded = Recorded(model, structure, batch)
        target = torch.roll(batch.ids, -1, 1)
        taken = None if against is None else torch.full_like(target, against)
        direct = recorded.direct(target, taken)
        other = recorded.direct(target, _others(batch, elsewhere))
        predicted = batch.attention_mask & torch.roll(batch.attention_mask, -1, 1)
        predicted[:, -1] = False
        predicted &= ~torch.roll(batch.special, -1, 1)
        worst = max(worst, adds_up(direct, batch.attention_mask))
        for name, value in _means(direct, other, predicted, _upos(batch)).items():
            found.setdefault(name, []).append(value.float().cpu())
        places += [order[index] for index in batch.index]
    turn = np.argsort(places)
    return {name: torch.cat(parts).numpy()[turn] for name, parts in found.items()}, {
        "adds_up": worst
    }


def _others(batch: Batch, elsewhere: Mapping[int, np.ndarray]) -> Tensor:
    """The token that comes next at each place in another text, which is repeated where it is
    shorter."""
    width = batch.ids.shape[1]
    taken = [np.resize(elsewhere[index], width + 1)[1:] for index in batch.index]
    return torch.as_tensor(np.array(taken), device=batch.device)


def _upos(batch: Batch) -> Tensor:
    """The part of speech of the next token, by number; −1 where it has none."""
    out = torch.full_like(batch.ids, -1)
    for place, row in enumerate(batch.rows):
        tags = row.example.upos
        if tags is None or not row.aligned:
            continue
        for token in range(1, len(row)):
            word = int(row.word[token])
            if 0 <= word < len(tags) and tags[word] in UPOS:
                out[place, token - 1] = UPOS.index(tags[word])
    return out


def _means(direct: Direct, other: Direct, predicted: Tensor, upos: Tensor) -> dict[str, Tensor]:
    weight = predicted.double()
    count = weight.sum(-1)

    def mean(values: Tensor, of: Tensor = weight, number: Tensor = count) -> Tensor:
        """`[layer, example, token, ...]` to `[example, layer, ...]`; NaN where there is no
        token."""
        extra = values.ndim - 3
        total = (values.double() * of.view(1, *of.shape, *(1,) * extra)).sum(2).transpose(0, 1)
        number = number.view(-1, *(1,) * (total.ndim - 1))
        return torch.where(number > 0, total / number.clamp(min=1), torch.nan)

    found = {
        "direct": mean(direct.heads),
        "direct_other": mean(direct.other),
        "direct_bias": mean(direct.bias),
    }
    found["specific"] = mean(other.heads)
    for name in ("embedding", "constant", "logit"):
        whole = mean(getattr(direct, name)[None])[:, 0]
        found[name if name == "logit" else f"direct_{name}"] = whole
    if bool((upos >= 0).any()):
        by = [(predicted & (upos == number)).double() for number in range(len(UPOS))]
        found["direct_upos"] = torch.stack([mean(direct.heads, of, of.sum(-1)) for of in by], -1)
    return found


def _dataset(found: Mapping[str, np.ndarray], shape: Shape, attrs: dict[str, Any]) -> xr.Dataset:
    dims: dict[str, tuple[str, ...]] = {
        "direct": HEADS,
        "specific": HEADS,
        "direct_upos": (*HEADS, "upos"),
    }
    dims |= {"direct_other": ("layer",), "direct_bias": ("layer",)}
    variables: dict[str, Any] = {}
    for name, values in found.items():
        moments = Moments(*values.shape[1:])
        moments.add(torch.as_tensor(values.astype(np.float64)))
        variables |= mean_variables(name, dims.get(name, ()), moments, units="logit")
    own = found["specific"].astype(np.float64)
    own = own[~np.isnan(own).any((1, 2))]
    p = np.minimum(1.0, 2 * np.minimum(mean_above(own), mean_above(-own)))
    variables |= {"specific_p": (HEADS, p), "specific_p_adjusted": (HEADS, holm(p))}
    coords = layer_head_coords(shape) | ({"upos": list(UPOS)} if "direct_upos" in found else {})
    return xr.Dataset(variables, coords, attrs)
