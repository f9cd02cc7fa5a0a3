"""The rows in which copy suppression can be seen, the rows they are compared with, and what each
head does there.

A row has a *prediction* before a layer: the likeliest token when the residual stream that enters the
layer goes through the final norm and the output matrix. Two facts about it make three groups of
rows:

- *copied*: the predicted token stands earlier in the text; here a head can suppress it;
- *absent*: the predicted token stands nowhere in the text so far: a head that lowers any prediction
  does so here too;
- the *control* of a copied row: the nearest row of the same text in which the same token also stands
  earlier and is not predicted. A head that lowers whatever it attends to does so there too. Token
  and text are the same, so frequency is matched exactly and position as nearly as the text allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.models.direct import Recorded, take_rows
from headwise.models.view import AttentionRows
from headwise.text.encode import Batch

FIRST_ROW = 2  # the first row with an earlier token besides the first
NAMES = (
    "suppression",
    "suppression_effect",
    "suppression_spreads",
    "absent_spreads",
    "attention",
    "attention_excess",
)


class ChosenRows:
    """Rows of a batch, evenly spaced in each text, and the weights of all heads in them.

    Parameters
    ----------
    batch : Batch
        The texts.
    max_rows : int
        Rows of a text at most.

    Attributes
    ----------
    rows
        `[example, row]`: positions.
    is_row
        `[example, row]`: False where a text has fewer rows than another.
    weights
        By layer, `[example, head, row, key]`.
    """

    def __init__(self, batch: Batch, max_rows: int) -> None:
        positions = []
        for length in batch.lengths.tolist():
            n_possible = max(int(length) - FIRST_ROW, 0)
            n_rows = min(n_possible, max_rows)
            spaced = torch.arange(n_rows) * n_possible // max(n_rows, 1)
            positions.append(FIRST_ROW + spaced)
        n_most = max(max(len(rows) for rows in positions), 1)
        self.rows = torch.zeros(len(positions), n_most, dtype=torch.int64)
        self.is_row = torch.zeros(len(positions), n_most, dtype=torch.bool)
        for place, rows in enumerate(positions):
            self.rows[place, : len(rows)] = rows
            self.is_row[place, : len(rows)] = True
        self.rows = self.rows.to(batch.device)
        self.is_row = self.is_row.to(batch.device)
        self.weights: dict[int, Tensor] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        """Take the weights of a block of rows."""
        is_in_block = (self.rows >= rows.start) & (self.rows < rows.stop)
        place_in_block = (self.rows - rows.start).clamp(0, rows.stop - rows.start - 1)
        weights = take_rows(rows.weights, place_in_block, 2) * is_in_block[:, None, :, None]
        if rows.layer in self.weights:
            weights = weights + self.weights[rows.layer]
        self.weights[rows.layer] = weights


@dataclass(frozen=True, slots=True, eq=False)
class RowGroups:
    """The groups of the chosen rows before one layer, all `[example, row]`.

    Attributes
    ----------
    predicted
        The predicted token.
    is_copied
        It stands earlier in the text, and there is a control.
    is_absent
        It stands nowhere in the text up to this row.
    control
        The place of the control among the chosen rows; of no meaning in rows that are not copied.
    """

    predicted: Tensor
    is_copied: Tensor
    is_absent: Tensor
    control: Tensor


def row_groups(batch: Batch, chosen: ChosenRows, predicted: Tensor) -> RowGroups:
    """Return the groups of rows with these predictions, `[example, row]`."""
    rows = chosen.rows
    # Occurrences count from the second token on: what attends to the first one says little. Special
    # tokens are no text.
    can_occur = batch.attention_mask & ~batch.special
    can_occur[:, 0] = False
    occurs = (batch.ids[:, None] == predicted[..., None]) & can_occur[:, None]  # [.., row, key]
    n_keys = batch.ids.shape[1]
    key = torch.arange(n_keys, device=batch.device)
    first_occurrence = torch.where(occurs, key, n_keys).amin(-1)
    current = batch.ids.gather(1, rows)
    is_current = predicted == current
    # Embeddings that are tied to the output matrix predict the current token in early layers; that
    # is an echo, not a prediction.
    is_candidate = chosen.is_row & ~is_current
    occurs_earlier = first_occurrence < rows

    # [example, copied row, control row]
    stands_before = first_occurrence[:, :, None] < rows[:, None, :]
    is_not_predicted = predicted[:, None, :] != predicted[:, :, None]
    is_not_current = current[:, None, :] != predicted[:, :, None]
    is_control = stands_before & is_not_predicted & is_not_current & chosen.is_row[:, None]
    distance = (rows[:, :, None] - rows[:, None]).abs()
    nearest = torch.where(is_control, distance, n_keys + 1).min(-1)
    has_control = nearest.values <= n_keys
    return RowGroups(
        predicted=predicted,
        is_copied=is_candidate & occurs_earlier & has_control,
        is_absent=is_candidate & ~occurs_earlier,
        control=nearest.indices,
    )


def suppression_means(
    recorded: Recorded, chosen: ChosenRows, covariance: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Return what each head does to predicted tokens, as means over the rows of each text.

    Parameters
    ----------
    recorded : Recorded
        A pass that has kept its streams.
    chosen : ChosenRows
        Of the same pass.
    covariance : Tensor
        From `Recorded.logit_covariance`.

    Returns
    -------
    dict of Tensor
        The measures `NAMES`, `[example, layer, head]`; NaN where a text has no such row. See
        `CopySuppression`.
    Tensor
        The number of copied rows, `[example, layer]`.
    """
    by_layer: dict[str, list[Tensor]] = {name: [] for name in NAMES}
    counts = []
    for layer in range(len(recorded.outputs)):
        groups = row_groups(recorded.batch, chosen, recorded.predicted_before(layer, chosen.rows))
        for name, values in _layer_means(recorded, chosen, groups, covariance, layer).items():
            by_layer[name].append(values)
        counts.append(groups.is_copied.sum(-1))
    means = {name: torch.stack(values, 1) for name, values in by_layer.items()}
    return means, torch.stack(counts, 1)


def _layer_means(
    recorded: Recorded, chosen: ChosenRows, groups: RowGroups, covariance: Tensor, layer: int
) -> dict[str, Tensor]:
    """Return the means of one layer, `[example, head]`."""
    target = groups.predicted[:, None]
    control_rows = chosen.rows.gather(1, groups.control)
    lowered = -recorded.of_heads(layer, target, chosen.rows)
    lowered_in_control = -recorded.of_heads(layer, target, control_rows)
    # One unit for all rows of a text: divided by its own spread, a row in which a head writes next
    # to nothing would count as much as one in which it suppresses a token.
    variance = take_rows(recorded.head_spread(layer, covariance), chosen.rows, 2).square()
    spread = _mean(variance, groups.is_copied).sqrt().clamp(min=torch.finfo(variance.dtype).tiny)

    weights = chosen.weights[layer]
    attention = _attention_to(recorded.batch, weights, groups.predicted, chosen.rows)
    weights_in_control = take_rows(weights, groups.control, 2)
    attention_in_control = _attention_to(
        recorded.batch, weights_in_control, groups.predicted, control_rows
    )
    suppression = _mean(lowered - lowered_in_control, groups.is_copied)
    effect = _mean(lowered, groups.is_copied)
    return {
        "suppression": suppression,
        "suppression_effect": effect,
        "suppression_spreads": suppression / spread,
        "absent_spreads": (effect - _mean(lowered, groups.is_absent)) / spread,
        "attention": _mean(attention, groups.is_copied),
        "attention_excess": _mean(attention - attention_in_control, groups.is_copied),
    }


def _attention_to(batch: Batch, weights: Tensor, token: Tensor, rows: Tensor) -> Tensor:
    """Return the attention of `weights[example, head, row, key]` to the occurrences of a token
    before each row, `[example, head, row]`, the first token excluded."""
    key = torch.arange(batch.ids.shape[1], device=batch.device)
    is_earlier = (key[None, None] < rows[..., None]) & (key > 0)
    occurs = (batch.ids[:, None] == token[..., None]) & is_earlier & ~batch.special[:, None]
    return (weights * occurs[:, None]).sum(-1)


def _mean(values: Tensor, is_counted: Tensor) -> Tensor:
    """Return the mean of `values[example, head, row]` over some rows `[example, row]`; NaN where
    there are none."""
    counted = is_counted[:, None].double()
    total = (values.double() * counted).sum(-1)
    number = counted.sum(-1)
    return torch.where(number > 0, total / number.clamp(min=1), torch.nan)
