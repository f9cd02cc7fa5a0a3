"""What each part of a model adds directly to a logit: the final norm held at its actual scale,
everything is a sum."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models.devices import weight_in
from headwise.models.forward_call import only_in_this_thread
from headwise.models.headmodel import HeadModel
from headwise.models.session import Session
from headwise.models.structure import Structure
from headwise.models.view import AttentionRows, Layer
from headwise.text.encode import Batch


@dataclass(frozen=True, slots=True, eq=False)
class Direct:
    """What each part adds to a logit less the mean over the vocabulary (or less another logit), for
    each token.

    `heads[layer, example, token, head]`; `bias[layer, ...]` of the output projections;
    `other[layer, ...]`, the feed-forward branches; `embedding` and `constant` (biases of the final
    norm and the output matrix) `[example, token]`; `logit`, the same difference in the model's own
    scores (before a soft cap)."""

    heads: Tensor
    bias: Tensor
    other: Tensor
    embedding: Tensor
    constant: Tensor
    logit: Tensor

    def total(self) -> Tensor:
        """All parts added up, `[example, token]`."""
        return (
            self.heads.sum((0, -1))
            + self.bias.sum(0)
            + self.other.sum(0)
            + self.embedding
            + self.constant
        )


class Recorded:
    """One watched pass with all that a direction is followed back through; asked for any number of
    logits.

    Parameters
    ----------
    model : HeadModel
        A causal language model.
    structure : Structure
        Its parts, from `find_structure`; one with a refusal is refused here.
    batch : Batch
        What to run.
    seen : callable, optional
        Shown the weights of every layer too.
    """

    def __init__(
        self,
        model: HeadModel,
        structure: Structure,
        batch: Batch,
        seen: Callable[[AttentionRows], None] | None = None,
    ) -> None:
        self.needs = frozenset({"outputs", "hidden", *(["attention"] if seen is not None else [])})
        self._seen = seen
        if structure.refusal is not None or structure.final is None or structure.head is None:
            raise ModelError(f"Heads add nothing of their own to the logits: {structure.refusal}.")
        self.structure, self.batch = structure, batch
        self.outputs: list[Tensor] = []
        self._hidden: Tensor | None = None
        self._given: dict[nn.Module, Tensor] = {}
        session = Session(model.sites, batch.attention_mask, self)
        watched = [b.other for b in structure.blocks] + [
            b.projection for b in structure.blocks if b.writing
        ]
        with ExitStack() as stack, torch.no_grad(), model.evaluating():
            for module in (*(m for m in watched if m is not None), structure.head):
                stack.callback(module.register_forward_hook(only_in_this_thread(self._keep)).remove)
            stack.enter_context(session.running())
            self.output: Any = model.run(batch.ids, batch.attention_mask, batch.types, logits=True)
        assert session.final is not None
        self.final = session.final

    def on_rows(self, rows: AttentionRows) -> None:
        if self._seen is not None:
            self._seen(rows)

    def on_layer(self, layer: Layer) -> None:
        assert layer.outputs is not None
        assert layer.hidden is not None
        self.outputs.append(layer.outputs)
        self._hidden = layer.hidden if self._hidden is None else self._hidden

    def _keep(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given = output if isinstance(output, Tensor) else output[0]
        given = given.float().reshape(*self.batch.ids.shape, -1)
        self._given[module] = given.to(self.batch.device, copy=True)  # some add to it in place

    def direct(self, target: Tensor, against: Tensor | None = None) -> Direct:
        """What each part adds to the logit of `target[example, token]`, less the mean over the
        vocabulary or, with `against[example, token]`, less that token's logit."""
        s = self.structure
        assert s.head is not None
        assert s.final is not None
        assert self._hidden is not None
        weight, bias = self._head(s.head)
        scores = self._given[s.head]
        own = scores.gather(-1, target[..., None])[..., 0]
        if against is None:
            u, b = weight[target] - weight.mean(0), bias[target] - bias.mean()
            logit = own - scores.mean(-1)
        else:
            u, b = weight[target] - weight[against], bias[target] - bias[against]
            logit = own - scores.gather(-1, against[..., None])[..., 0]
        u, b, logit = (x * s.times for x in (u, b, logit))
        direction = s.final.pulled(u, s.final.scale(self.final))
        heads, biases, other = [], [], []
        for block, outputs in zip(s.blocks, self.outputs, strict=True):
            reads = direction * block.factor
            constant = torch.zeros_like(logit)
            if block.other is not None:
                other.append((reads * self._given[block.other]).sum(-1))
            else:
                other.append(constant)
            if block.writing is not None:
                constant = (reads * block.writing.bias).sum(-1)
                reads = block.writing.pulled(
                    reads, block.writing.scale(self._given[block.projection])
                )
            matrix, own_bias = block.written(outputs)
            through = (reads @ matrix.T).view(*reads.shape[:-1], outputs.shape[1], -1)
            heads.append((through * outputs.transpose(1, 2)).sum(-1))
            biases.append(constant + reads @ own_bias)
        embedding = (direction * self._hidden).sum(-1)
        constant = (u * s.final.bias).sum(-1) + b
        return Direct(
            torch.stack(heads), torch.stack(biases), torch.stack(other), embedding, constant, logit
        )

    def of_heads(self, layer: int, target: Tensor, rows: slice) -> Tensor:
        """What each head of a layer adds to the logit of a token of its own, `target[example, head,
        row]`, less the mean over the vocabulary, at these rows."""
        s, block, outputs = (
            self.structure,
            self.structure.blocks[layer],
            self.outputs[layer][:, :, rows],
        )
        assert s.head is not None
        assert s.final is not None
        weight, _ = self._head(s.head)
        reads = s.times * block.factor * (weight[target] - weight.mean(0))
        reads = s.final.pulled(reads, s.final.scale(self.final[:, rows])[:, None])
        if block.writing is not None:
            reads = block.writing.pulled(
                reads, block.writing.scale(self._given[block.projection][:, rows])[:, None]
            )
        matrix = block.written(outputs)[0]
        matrix = matrix.view(outputs.shape[1], -1, matrix.shape[-1])  # head, d_head, width
        added: Tensor = ((reads @ matrix.transpose(1, 2)) * outputs).sum(-1)
        return added

    def _head(self, head: nn.Module) -> tuple[Tensor, Tensor]:
        """The output matrix and its bias, on the device of the batch."""
        own = {
            name: weight_in(head, name, p).float().to(self.batch.device)
            for name, p in head.named_parameters(recurse=False)
        }
        return own["weight"], own["bias"] if "bias" in own else own["weight"].new_zeros(
            len(own["weight"])
        )


def adds_up(found: Direct, attention_mask: Tensor) -> float:
    """The largest difference between the parts' sum and the model's own logit, relative to the
    largest logit."""
    difference = (found.total() - found.logit).abs()[attention_mask]
    return float(difference.max() / found.logit.abs()[attention_mask].max().clamp(min=1e-6))
