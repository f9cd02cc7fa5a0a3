"""What a head writes toward the token that it attends to: copying, as behaviour on text.

Eigenvalues of a head's weights (`circuits`) say what it could copy; this says what it does."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.models.direct import Recorded
from headwise.models.view import AttentionRows
from headwise.text.encode import Batch

FIRST_ROW = 2  # the first row that can choose between two tokens besides the first
COPYING_NAMES = ("copying", "copying_effect", "copying_spreads")


class AttendedTokens:
    """Collects, from one pass, the token that each head attends to most in every row.

    The first token is no candidate: heads put there what they do not use.

    Attributes
    ----------
    keys, weights
        By layer, blocks `[example, head, row]`: the position of that token, and its weight.
    """

    def __init__(self) -> None:
        self.keys: dict[int, list[Tensor]] = {}
        self.weights: dict[int, list[Tensor]] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        """Take the weights of a block of rows."""
        largest = rows.weights[..., 1:].max(-1)
        self.keys.setdefault(rows.layer, []).append(largest.indices + 1)
        self.weights.setdefault(rows.layer, []).append(largest.values)

    def of_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return positions and weights `[example, head, row]` of a layer."""
        return torch.cat(self.keys[layer], -1), torch.cat(self.weights[layer], -1)


def copying_means(
    recorded: Recorded, attended: AttendedTokens, covariance: Tensor
) -> dict[str, Tensor]:
    """Return what each head adds to the logit of the token that it attends to most, as means over
    the rows of each example, `[example, layer, head]`.

    Rows count by the weight on that token: a head that attends to the first token in most rows
    copies in the others. See `Logits` for `copying`, `copying_effect` and `copying_spreads`.

    Parameters
    ----------
    recorded : Recorded
        A pass.
    attended : AttendedTokens
        Of the same pass.
    covariance : Tensor
        From `Recorded.logit_covariance`.
    """
    batch = recorded.batch
    partner, is_row = partner_rows(batch)
    all_rows = slice(0, batch.ids.shape[1])
    by_layer: dict[str, list[Tensor]] = {name: [] for name in COPYING_NAMES}
    for layer in range(len(recorded.outputs)):
        keys, weights = attended.of_layer(layer)
        ids = batch.ids[:, None].expand(-1, keys.shape[1], -1)
        token = ids.gather(-1, keys)
        control_token = token.gather(-1, partner[:, None].expand_as(token))
        effect = recorded.of_heads(layer, token, all_rows)
        excess = effect - recorded.of_heads(layer, control_token, all_rows)
        spread = recorded.head_spread(layer, covariance)
        in_spreads = excess / spread.clamp(min=torch.finfo(spread.dtype).tiny)
        # Where both rows attend to the same token, there is nothing to compare.
        row_weight = weights.double() * (is_row[:, None] & (token != control_token))
        by_layer["copying"].append(_weighted_mean(excess, row_weight))
        by_layer["copying_effect"].append(_weighted_mean(effect, row_weight))
        by_layer["copying_spreads"].append(_weighted_mean(in_spreads, row_weight))
    return {name: torch.stack(values, 1) for name, values in by_layer.items()}


def partner_rows(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the row half a text away from each row, and which rows are counted, `[example, row]`.

    A partner lies in the same text, so that results do not depend on what is batched together."""
    row = torch.arange(batch.ids.shape[1], device=batch.device)[None]
    n_rows = (batch.attention_mask.sum(-1, keepdim=True) - FIRST_ROW).clamp(min=1)
    partner = FIRST_ROW + (row - FIRST_ROW + n_rows // 2) % n_rows
    last_row = batch.ids.shape[1] - 1
    is_row = (row >= FIRST_ROW) & batch.attention_mask & (n_rows > 1)
    return partner.clamp(max=last_row), is_row


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over rows `[example, head]`; NaN where no row has a weight."""
    total = (values.double() * weights).sum(-1)
    weight = weights.sum(-1)
    return torch.where(weight > 0, total / weight.clamp(min=1e-30), torch.nan)
