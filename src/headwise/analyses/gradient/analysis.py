"""How much the loss hangs on each attention weight, by the type of token attended to (Clark et al.
2019, §3.2, Fig 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    WEIGHTINGS,
    Loss,
    Observer,
    Paper,
    Shape,
    layer_head_coords,
    mean_variables,
    one_of,
)
from headwise.analyses.surface.analysis import TOKEN_TYPES, missing_token_types, token_type_masks
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.models.session import at_least_float32
from headwise.models.view import AttentionRows, Layer
from headwise.stats.accumulators import State, Sums, means
from headwise.text.encode import Batch, Encoded

LOSSES = ("auto", "masked", "all", "causal")
PAPER_OTHER = (
    "cls",
    "other",
)  # the paper's "other" is everything but separators, periods and commas


@dataclass(frozen=True)
class Gradient(Observer):
    """Gradient-based importance of attention, Fig 3: `|d loss / d A[l, h, i, j]|`.

    The loss of an example is the mean over its predicted tokens; its gradient is taken with respect
    to the very weights that multiply the values.

    - `importance[layer, head, token_type]`: mean of `|d loss / d A[i, j]|` over all pairs (i, j), j in V(i), with j of
      a type, within an example, then over examples; an example without such a token is left out;
    - `importance_paper_other[layer, head]`: the same with j of type `cls` or `other`, the paper's "other".

    Inputs without a token to predict are left out; the attribute `inputs_left_out` counts them.

    Parameters
    ----------
    loss : str, default "auto"
        `masked`: a share of the ordinary tokens is replaced by the mask token, and those are
        predicted; a token is of the type the model sees, so a masked period is `other`. `all`:
        nothing is masked and every ordinary token is predicted (the paper's text says nothing of
        masks). `causal`: every token but the first is predicted from those before it. `auto`:
        `masked` or `causal`, whichever the model was trained for.
    share : float, default 0.15
        The share of ordinary tokens that are masked, rounded to whole tokens, at least one.
    seed : int, optional
        Which tokens are masked depends on the seed and on the example's place in the corpus alone;
        the run's unless given.
    weighting : str, default "examples"
        `examples` (each example weighs alike) or `tokens` (each pair alike).

    Notes
    -----
    Question: How much does the loss hang on attention to each kind of token?

    Assumes: First order: one weight changes a little, all others are held, and the row need no
    longer sum to one.

    Traps: It has no sign: it does not say whether more attention would help. A small gradient may
    mean that the value at that token is short, not that attending there is useless; attention and
    importance often disagree on `[SEP]`, which is the point of the figure. With `loss="masked"`
    which tokens are masked depends on the seed.

    Cost: A forward and a backward pass for each example, with the maps of one micro-batch held in
    memory."""

    loss: str = "auto"
    share: float = 0.15
    seed: int | None = None
    weighting: str = "examples"

    name: ClassVar[str] = "gradient"
    title: ClassVar[str] = "What attention matters: gradient of the loss by token type"
    paper: ClassVar[Paper] = Paper("clark2019", "§3.2, Fig 3")
    taps: ClassVar[frozenset[str]] = frozenset({"attention_gradient"})
    budget: ClassVar[int | None] = 64

    def __post_init__(self) -> None:
        one_of("loss", self.loss, LOSSES)
        one_of("weighting", self.weighting, WEIGHTINGS)
        if not 0 < self.share <= 1:
            raise ParameterError(
                f"`share` must lie above 0 and be at most 1; it is {self.share!r}."
            )

    def missing_items(self, shape: Shape) -> dict[str, str]:
        return missing_token_types(shape)

    def unsupported_reason(self, shape: Shape) -> str | None:
        kind = shape.extras.get("lm_kind")
        if kind is None:
            return "the model has no language-model head, so there is no loss: give a checkpoint that has one"
        if self.loss in ("masked", "all") and kind == "causal":
            return f"the model predicts the next token, so `loss` cannot be {self.loss}: use auto or causal"
        if self.loss == "causal" and kind == "masked":
            return "the model predicts masked tokens, so `loss` cannot be causal: use auto, masked or all"
        if self._kind(kind) == "masked" and not shape.extras.get("mask_token", True):
            return "the tokenizer has no mask token, so nothing can be masked: use --set gradient.loss=all"
        return None

    def _kind(self, lm_kind: str | None) -> str:
        """Which loss a model of this kind is given."""
        return str(lm_kind) if self.loss == "auto" else self.loss

    # --- the pass ---------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        heads = (shape.layers, shape.heads)
        return State(
            importance=means(self.weighting, *heads, len(TOKEN_TYPES)),
            importance_paper_other=means(self.weighting, *heads),
            left_out=Sums(1),
        )

    def skip(self, state: State, count: int) -> None:
        state.sums("left_out").add(torch.tensor([count]))

    def prepare(self, batch: Batch, model: HeadModel) -> tuple[Batch, Loss]:
        """The batch as the model gets it, without examples that have nothing to predict, and the
        loss."""
        kind = self._kind(model.lm_kind)
        predicted = batch.attention_mask & ~batch.special
        if kind == "causal":
            predicted = batch.attention_mask.clone()
            predicted[:, 0] = False
        elif kind == "masked":
            predicted = self._masked(batch)
        kept = predicted.any(-1).nonzero()[:, 0].tolist()
        if len(kept) < len(batch):
            batch, predicted = batch.select(kept), predicted[kept]
        targets = batch.ids
        if kind == "masked":
            hidden = torch.full_like(batch.ids, model.tokenizer.mask_token_id)
            batch = replace(
                batch, ids=torch.where(predicted, hidden, batch.ids), punct=batch.punct & ~predicted
            )
        ahead = 1 if kind == "causal" else 0

        def loss(output: Any, _: Batch) -> Tensor:
            scores = logits_of(output)
            return token_loss(
                scores[:, : scores.shape[1] - ahead], targets[:, ahead:], predicted[:, ahead:]
            )

        return batch, loss

    def _masked(self, batch: Batch) -> Tensor:
        out = torch.zeros_like(batch.attention_mask)
        for number, row in enumerate(batch.rows):
            out[
                number,
                torch.from_numpy(masked_tokens(row, self.share, self.seed or 0)).to(batch.device),
            ] = True
        return out

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        assert rows.gradient is not None
        kinds = token_type_masks(batch).to(rows.gradient.dtype)
        visible = rows.visible.to(rows.gradient.dtype)
        return {"importance": rows.gradient.abs().sum(-2) @ kinds, "pairs": visible.sum(-2) @ kinds}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        here = (layer.layer,)
        heads = sums["importance"].shape[1]
        pairs = sums["pairs"].double().expand(-1, heads, -1)
        importance = sums["importance"].double()
        state.means("importance").add_sums(importance, pairs, here)
        paper = [TOKEN_TYPES.index(kind) for kind in PAPER_OTHER]
        state.means("importance_paper_other").add_sums(
            importance[..., paper].sum(-1), pairs[..., paper].sum(-1), here
        )

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = [f"Mean |d loss / d attention| by layer ({dataset.attrs['loss']}), times 1,000:"]
        for kind in map(str, dataset["token_type"].values):
            values = 1000 * dataset["importance"].sel(token_type=kind).mean("head").values
            if np.isfinite(values).any():
                lines.append(f"  {kind:<6} " + " ".join(f"{value:.2f}" for value in values))
        return lines

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        heads = ("layer", "head")
        units = "change of the loss per unit of attention (nats)"
        variables = mean_variables(
            "importance", (*heads, "token_type"), state.means("importance"), units=units
        )
        variables |= mean_variables(
            "importance_paper_other", heads, state.means("importance_paper_other"), units=units
        )
        coords = layer_head_coords(shape) | {"token_type": list(TOKEN_TYPES)}
        left_out = int(state.sums("left_out").total[0])
        about = {"loss": self._kind(shape.extras.get("lm_kind")), "inputs_left_out": left_out}
        return xr.Dataset(variables, coords, about)

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        count = dataset.attrs["inputs_left_out"]
        return {f"{count} inputs": "they have no token to predict"} if count else {}


def masked_tokens(row: Encoded, share: float, seed: int) -> np.ndarray:
    """Which tokens of an example are masked: `share` of its ordinary tokens, at least one, drawn by
    seed and the example's place in the corpus."""
    ordinary = np.flatnonzero(~row.special)
    count = min(len(ordinary), max(1, round(share * len(ordinary))))
    drawn = (
        np.random.default_rng([seed, row.index]).choice(ordinary, count, replace=False)
        if count
        else ordinary
    )
    return np.sort(drawn)


def token_loss(logits: Tensor, targets: Tensor, predicted: Tensor) -> Tensor:
    """One loss for each example: the mean over its predicted tokens of `−ln p(token)`; zero where
    none is predicted."""
    example = predicted.nonzero()[:, 0]
    losses = torch.nn.functional.cross_entropy(
        at_least_float32(logits[predicted]), targets[predicted], reduction="none"
    )
    total = torch.zeros(len(predicted), dtype=losses.dtype, device=losses.device).index_add(
        0, example, losses
    )
    return total / predicted.sum(-1).clamp(min=1)


def logits_of(output: Any) -> Tensor:
    """The scores of the language-model head: models with several heads name them
    `prediction_logits`."""
    found = getattr(output, "logits", None)
    scores: Tensor = output.prediction_logits if found is None else found
    return scores
