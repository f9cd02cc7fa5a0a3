"""Gradient of the loss with respect to attention weights, by the type of token attended to.

Clark et al. 2019, §3.2, Fig 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    WEIGHTINGS,
    OwnPassObserver,
    Paper,
    Shape,
    layer_head_coords,
    mean_variables,
    one_of,
    split_batch,
)
from headwise.analyses.surface.analysis import missing_token_types, token_type_masks
from headwise.core.errors import ParameterError
from headwise.core.token_types import OTHER, TYPE_NAMES
from headwise.models import HeadModel
from headwise.models.gradients import stream_gradients
from headwise.models.session import at_least_float32
from headwise.models.view import AttentionRows
from headwise.stats.accumulators import State, Sums, means
from headwise.text.encode import Batch, Encoded, documents_of

LOSSES = ("auto", "masked", "all", "causal")

# The paper's "other" is everything but separators, periods and commas.
PAPER_OTHER = tuple(name for name in TYPE_NAMES if name not in ("sep", "punct"))

# Tokens run at once: the maps of all layers and all scores over the vocabulary are held together.
GRADIENT_TOKENS = 1024
# Scores over the vocabulary that are computed at once. What the loss and its derivative make of
# them takes three to four times their memory: more than the model, with a large vocabulary.
GRADIENT_SCORES = 2**24

# From the model's output and the batch to one loss for each example.
LossFunction = Callable[[Any, Batch], Tensor]


@dataclass(frozen=True)
class Gradient(OwnPassObserver):
    """Gradient-based importance of attention, Fig 3: `|d loss / d A[l, h, i, j]|`.

    The loss of an example is the mean over its predicted tokens; its gradient is taken with respect
    to the weights that multiply the values.

    - `importance[layer, head, token_type]`: mean of `|d loss / d A[i, j]|` over all pairs (i, j),
      j in V(i), with j of a type, within an example, then over examples; an example without such a
      token is left out;
    - `importance_paper_other[layer, head]`: the same with j of type `cls` or `other`, the paper's
      "other".

    Inputs without a token to predict are left out; the attribute `inputs_left_out` counts them.

    Parameters
    ----------
    loss : str, default "auto"
        `masked`: a share of the ordinary tokens is replaced by the mask token, and those are
        predicted; a token is of the type the model sees, so a masked period is `other`. `all`:
        nothing is masked and every ordinary token is predicted (the paper's text does not mention
        masks). `causal`: every token but the first is predicted from those before it. `auto`:
        `masked` or `causal`, whichever the model was trained for.
    share : float, default 0.15
        The share of ordinary tokens that are masked, rounded to whole tokens, at least one.
    seed : int, optional
        Which tokens are masked depends only on the seed and the example's index in the corpus;
        default: the run's seed.
    weighting : str, default "examples"
        `examples` (each example has the same weight) or `tokens` (each pair has).

    Notes
    -----
    Question: How much does the loss depend on attention to each token type?

    Assumes: First order: one weight changes a little, all others stay fixed, and the row need no
    longer sum to one.

    Pitfalls: It has no sign: it does not say whether more attention would help. A small gradient
    may mean that the value at that token is short, not that attending there is useless; attention
    and importance often disagree on `[SEP]`, which is the point of the figure. With `loss="masked"`
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
    budget: ClassVar[int | None] = 64

    def __post_init__(self) -> None:
        one_of("loss", self.loss, LOSSES)
        one_of("weighting", self.weighting, WEIGHTINGS)
        if not 0 < self.share <= 1:
            raise ParameterError(
                f"`share` must be greater than 0 and at most 1; it is {self.share!r}."
            )

    def missing_items(self, shape: Shape) -> dict[str, str]:
        return missing_token_types(shape)

    def unsupported_reason(self, shape: Shape) -> str | None:
        lm_kind = shape.extras.get("lm_kind")
        if lm_kind is None:
            return "no language-modelling head, so there is no loss: use a checkpoint with one"
        if self.loss in ("masked", "all") and lm_kind == "causal":
            return (
                f"the model predicts the next token, so `loss` cannot be {self.loss}: "
                "use auto or causal"
            )
        if self.loss == "causal" and lm_kind == "masked":
            return (
                "the model predicts masked tokens, so `loss` cannot be causal: "
                "use auto, masked or all"
            )
        has_mask_token = shape.extras.get("mask_token", True)
        if self._loss_for(lm_kind) == "masked" and not has_mask_token:
            return "the tokenizer has no mask token: set `loss` of gradient to all"
        return None

    def _loss_for(self, lm_kind: str | None) -> str:
        """Return the loss used for a model of this kind (`masked` or `causal`)."""
        if self.loss == "auto":
            return str(lm_kind)
        return self.loss

    # --- the pass -------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        heads = (shape.layers, shape.heads)
        return State(
            importance=means(self.weighting, *heads, len(TYPE_NAMES)),
            importance_paper_other=means(self.weighting, *heads),
            left_out=Sums(1),
        )

    def observe_batch(
        self, model: HeadModel, batch: Batch, state: State, block_rows: int | None = None
    ) -> None:
        vocabulary = getattr(model.config.get_text_config(), "vocab_size", 0) or 1
        n_tokens = min(GRADIENT_TOKENS, GRADIENT_SCORES // vocabulary)
        for part in split_batch(batch, max(1, n_tokens // batch.ids.shape[1])):
            inputs, loss = self.prepare(part, model)
            n_left_out = len(part) - len(inputs)
            if n_left_out:
                state.sums("left_out").add(torch.tensor([n_left_out]))
            if len(inputs):
                self._differentiate(model, inputs, loss, state, block_rows)

    def _differentiate(
        self,
        model: HeadModel,
        inputs: Batch,
        loss: LossFunction,
        state: State,
        block_rows: int | None,
    ) -> None:
        """Add the gradients of one part of a batch to the state."""
        importance: dict[int, Tensor] = {}
        n_pairs: dict[int, Tensor] = {}

        def add(rows: AttentionRows) -> None:
            assert rows.gradient is not None
            types = token_type_masks(inputs).to(rows.gradient.dtype)
            importance_of_rows = rows.gradient.abs().sum(-2) @ types
            pairs_of_rows = rows.visible.to(rows.gradient.dtype).sum(-2) @ types
            if rows.layer in importance:
                importance_of_rows = importance[rows.layer] + importance_of_rows
                pairs_of_rows = n_pairs[rows.layer] + pairs_of_rows
            importance[rows.layer] = importance_of_rows
            n_pairs[rows.layer] = pairs_of_rows

        stream_gradients(model, inputs, loss, add, block_rows=block_rows)
        state.of(documents_of(inputs.rows))
        paper_other = [TYPE_NAMES.index(name) for name in PAPER_OTHER]
        for layer in sorted(importance):
            totals = importance[layer].double()
            pairs = n_pairs[layer].double().expand(-1, totals.shape[1], -1)
            state.means("importance").add_sums(totals, pairs, (layer,))
            state.means("importance_paper_other").add_sums(
                totals[..., paper_other].sum(-1), pairs[..., paper_other].sum(-1), (layer,)
            )
        inputs.forget()

    def prepare(self, batch: Batch, model: HeadModel) -> tuple[Batch, LossFunction]:
        """Return the batch as the model receives it, and the loss.

        Examples without a token to predict are removed."""
        loss_name = self._loss_for(model.lm_kind)
        if loss_name == "causal":
            predicted = batch.attention_mask.clone()
            predicted[:, 0] = False
        elif loss_name == "masked":
            predicted = self._masked(batch)
        else:
            predicted = batch.attention_mask & ~batch.special

        usable = predicted.any(-1).nonzero()[:, 0].tolist()
        if len(usable) < len(batch):
            batch = batch.select(usable)
            predicted = predicted[usable]
        targets = batch.ids
        if loss_name == "masked":
            mask_ids = torch.full_like(batch.ids, model.tokenizer.mask_token_id)
            batch = replace(
                batch,
                ids=torch.where(predicted, mask_ids, batch.ids),
                token_type=torch.where(predicted, OTHER, batch.token_type),
            )
        # A causal model's scores at a token are those of the next one.
        shift = 1 if loss_name == "causal" else 0

        def loss(output: Any, _: Batch) -> Tensor:
            scores = logits_of(output)
            n_scored = scores.shape[1] - shift
            return token_loss(scores[:, :n_scored], targets[:, shift:], predicted[:, shift:])

        return batch, loss

    def _masked(self, batch: Batch) -> Tensor:
        """Return which tokens are masked, bool `[example, token]`."""
        masked = torch.zeros_like(batch.attention_mask)
        for number, row in enumerate(batch.rows):
            tokens = torch.from_numpy(masked_tokens(row, self.share, self.seed or 0))
            masked[number, tokens.to(batch.device)] = True
        return masked

    # --- the result -----------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        heads = ("layer", "head")
        units = "change of the loss per unit of attention (nats)"
        variables = mean_variables(
            "importance", (*heads, "token_type"), state.means("importance"), units=units
        )
        variables |= mean_variables(
            "importance_paper_other", heads, state.means("importance_paper_other"), units=units
        )
        coords = layer_head_coords(shape) | {"token_type": list(TYPE_NAMES)}
        attrs = {
            "loss": self._loss_for(shape.extras.get("lm_kind")),
            "inputs_left_out": int(state.sums("left_out").total[0]),
        }
        return xr.Dataset(variables, coords, attrs)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = [f"Mean |d loss / d attention| by layer ({dataset.attrs['loss']}), times 1,000:"]
        for token_type in map(str, dataset["token_type"].values):
            importance = dataset["importance"].sel(token_type=token_type)
            mean_by_layer = 1000 * importance.mean("head").values
            if np.isfinite(mean_by_layer).any():
                numbers = " ".join(f"{value:.2f}" for value in mean_by_layer)
                lines.append(f"  {token_type:<6} {numbers}")
        return lines

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        n_left_out = dataset.attrs["inputs_left_out"]
        if not n_left_out:
            return {}
        return {f"{n_left_out} inputs": "they have no token to predict"}


def masked_tokens(row: Encoded, share: float, seed: int) -> np.ndarray:
    """Return which tokens of an example are masked: `share` of its ordinary tokens, at least one.

    They are drawn by the seed and the example's index in the corpus."""
    ordinary = np.flatnonzero(~row.special)
    if not len(ordinary):
        return ordinary
    count = min(len(ordinary), max(1, round(share * len(ordinary))))
    generator = np.random.default_rng([seed, row.index])
    return np.sort(generator.choice(ordinary, count, replace=False))


def token_loss(logits: Tensor, targets: Tensor, predicted: Tensor) -> Tensor:
    """Return one loss for each example: the mean of `−ln p(token)` over its predicted tokens; zero
    where none is predicted."""
    example = predicted.nonzero()[:, 0]
    losses = torch.nn.functional.cross_entropy(
        at_least_float32(logits[predicted]), targets[predicted], reduction="none"
    )
    total = torch.zeros(len(predicted), dtype=losses.dtype, device=losses.device)
    total = total.index_add(0, example, losses)
    return total / predicted.sum(-1).clamp(min=1)


def logits_of(output: Any) -> Tensor:
    """Return the scores of the language-modelling head.

    Models with several heads name them `prediction_logits`."""
    logits = getattr(output, "logits", None)
    scores: Tensor = output.prediction_logits if logits is None else logits
    return scores
