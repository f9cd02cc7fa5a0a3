"""BERT's forward pass, with the attention that each layer gives to `[CLS]` and to `[SEP]`.

The pass is written out because fused attention returns no weights. Two columns are appended to the
value vectors, 1 at the `[CLS]` key and 1 at the `[SEP]` keys: in the output they *are* the weights
on these tokens, with their gradient, at almost no cost.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_demo_model.batches import IGNORED, SEP

ALIGNMENT = 8  # fused kernels take value vectors of a multiple of eight dimensions


class Outputs(NamedTuple):
    """What the losses and the evaluation need; each of the last three has one value a layer."""

    masked_loss: Tensor
    next_loss: Tensor
    masked_accuracy: Tensor
    next_accuracy: Tensor
    cosine: Tensor  # of the [CLS] vector and the [SEP] vectors, mean over examples
    to_cls: Tensor  # mean weight, over heads and all rows but that of [CLS]
    to_sep: Tensor


def self_attention(
    layer: nn.Module, hidden: Tensor, visible: Tensor, indicators: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs [example, token, hidden] and the weights on the indicated keys.

    `indicators` [example, token, ALIGNMENT] are the columns appended to the values; the weights
    come back as [example, head, token, ALIGNMENT].
    """
    attention = layer.attention.self
    n_examples, n_tokens, _ = hidden.shape
    n_heads = attention.num_attention_heads

    def by_head(projected: Tensor) -> Tensor:
        return projected.view(n_examples, n_tokens, n_heads, -1).transpose(1, 2)

    query = by_head(attention.query(hidden))
    key = by_head(attention.key(hidden))
    value = by_head(attention.value(hidden))
    columns = indicators.to(value.dtype)[:, None].expand(-1, n_heads, -1, -1)
    extended = torch.cat([value, columns], dim=-1)
    mixed = F.scaled_dot_product_attention(query, key, extended, attn_mask=visible)
    head_outputs, weights = mixed.split([value.shape[-1], ALIGNMENT], dim=-1)
    return head_outputs.transpose(1, 2).reshape(n_examples, n_tokens, -1), weights


def layer_forward(layer: nn.Module, hidden: Tensor, head_outputs: Tensor) -> Tensor:
    """Return the layer's output, given those of its heads (no dropout)."""
    projected = layer.attention.output.dense(head_outputs)
    attended = layer.attention.output.LayerNorm(projected + hidden)
    expanded = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(attended))
    return layer.output.LayerNorm(layer.output.dense(expanded) + attended)


def forward(
    model: nn.Module,
    input_ids: Tensor,
    segments: Tensor,
    attention_mask: Tensor,
    masked_positions: Tensor,
    masked_labels: Tensor,
    is_random_next: Tensor,
    first_sep: Tensor,
    last_sep: Tensor,
) -> Outputs:
    """Run a `BertForPreTraining` on the tensors of a `Batch`."""
    n_examples, n_tokens = input_ids.shape
    embeddings = model.bert.embeddings
    positions = torch.arange(n_tokens, device=input_ids.device)
    hidden = embeddings.word_embeddings(input_ids) + embeddings.token_type_embeddings(segments)
    hidden = embeddings.LayerNorm(hidden + embeddings.position_embeddings(positions))

    visible = attention_mask[:, None, None, :].expand(-1, 1, n_tokens, -1)
    is_cls = (positions == 0)[None].expand(n_examples, -1)
    is_sep = input_ids == SEP
    columns = torch.stack([is_cls, is_sep], dim=-1).float()
    indicators = F.pad(columns, (0, ALIGNMENT - 2))
    rows = (attention_mask & ~is_cls).float()
    n_rows = rows.sum()
    examples = torch.arange(n_examples, device=input_ids.device)

    cosines = []
    to_cls = []
    to_sep = []
    for layer in model.bert.encoder.layer:
        head_outputs, weights = self_attention(layer, hidden, visible, indicators)
        mean_over_heads = weights[..., :2].float().mean(1)
        to_both = (mean_over_heads * rows[..., None]).sum((0, 1)) / n_rows
        to_cls.append(to_both[0])
        to_sep.append(to_both[1])
        hidden = layer_forward(layer, hidden, head_outputs)
        opening = hidden[:, 0].float()
        to_first = F.cosine_similarity(opening, hidden[examples, first_sep].float(), dim=-1)
        to_last = F.cosine_similarity(opening, hidden[examples, last_sep].float(), dim=-1)
        cosines.append((to_first.mean() + to_last.mean()) / 2)

    chosen = masked_positions[:, :, None].expand(-1, -1, hidden.shape[-1])
    word_logits = model.cls.predictions(hidden.gather(1, chosen)).float()
    next_logits = model.cls.seq_relationship(model.bert.pooler(hidden)).float()
    return Outputs(
        masked_loss=F.cross_entropy(
            word_logits.flatten(0, 1), masked_labels.flatten(), ignore_index=IGNORED
        ),
        next_loss=F.cross_entropy(next_logits, is_random_next, ignore_index=IGNORED),
        masked_accuracy=accuracy(word_logits, masked_labels),
        next_accuracy=accuracy(next_logits, is_random_next),
        cosine=torch.stack(cosines),
        to_cls=torch.stack(to_cls),
        to_sep=torch.stack(to_sep),
    )


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    is_scored = labels != IGNORED
    return ((logits.argmax(-1) == labels) & is_scored).sum() / is_scored.sum()
