"""Heads that see only the first tokens and the last ones: what that costs each head, and a model in
which some key/value heads are short.

Cutting the distant tokens from a row and scaling the rest up is what a short cache does; here it is
done by a mask, in whole passes, so that every head can be judged at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models.headmodel import HeadModel
from headwise.models.session import BLOCK_BYTES
from headwise.models.sites import LayerCount, Sites
from headwise.models.structure import Structure, find_structure
from headwise.models.tap import Call, TapSession, use_session
from headwise.text.encode import Batch

LOGITS_AT_ONCE = 512  # tokens whose logits over the whole vocabulary are in memory


def is_near(queries: Tensor, keys: Tensor, sink: int, window: int) -> Tensor:
    """Return which keys a short head keeps for which query, bool `[query, key]`: the first `sink`,
    and the last `window`, the query's own among them."""
    distance = queries[:, None] - keys[None]
    return (distance >= 0) & ((keys[None] < sink) | (distance < window))


class DistantMass(TapSession):
    """A pass that measures, for every head, its attention to distant tokens, and what its output
    loses without them.

    Parameters
    ----------
    sites : Sites
        The attention modules.
    sink, window : int
        What a short head keeps.

    Attributes
    ----------
    mass, error : dict of int to Tensor
        By layer `[head]`, means over the rows that have distant tokens: the share of attention on
        them, and `‖output − output without them‖ / ‖output‖`.
    rows : int
        How many rows have distant tokens.
    """

    def __init__(self, sites: Sites, sink: int, window: int) -> None:
        self.layer_count = LayerCount(sites)
        self.sink = sink
        self.window = window
        self.mass: dict[int, Tensor] = {}
        self.error: dict[int, Tensor] = {}
        self.rows = 0

    def by_rows(self, batch_size: int, queries: int, keys: int) -> bool:
        return True

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        n_examples, n_heads, n_queries, n_keys, _, _ = call.sizes
        if n_examples != 1:
            raise ModelError("Distant attention is measured on one text at a time.")
        key, value = call.repeated()
        at_once = max(1, BLOCK_BYTES // 4 // (n_heads * n_keys * 4))
        positions = torch.arange(n_keys, device=key.device)
        mass = torch.zeros(n_heads, dtype=torch.float64, device=key.device)
        error = torch.zeros_like(mass)
        outputs = []
        n_rows = 0
        for start in range(0, n_queries, at_once):
            stop = min(start + at_once, n_queries)
            weights, _ = call.weights(key, start, stop)
            output = weights.to(value.dtype) @ value
            outputs.append(output)
            near = is_near(positions[start:stop], positions, self.sink, self.window)
            is_cut = positions[start:stop] >= self.sink + self.window
            if not bool(is_cut.any()):
                continue
            kept = weights * near
            kept_mass = kept.sum(-1, keepdim=True)
            whole_mass = weights.sum(-1, keepdim=True)  # below 1 with a learned sink
            tiny = torch.finfo(kept.dtype).tiny
            short = (kept / kept_mass.clamp(min=tiny) * whole_mass).to(value.dtype) @ value
            difference = (output - short).float().norm(dim=-1)
            relative = difference / output.float().norm(dim=-1).clamp(min=1e-12)
            distant = 1 - kept_mass[..., 0] / whole_mass[..., 0].clamp(min=tiny)
            mass += distant[0, :, is_cut].double().sum(-1)
            error += relative[0, :, is_cut].double().sum(-1)
            n_rows += int(is_cut.sum())
        self.rows = n_rows
        self.mass[layer] = (mass / max(n_rows, 1)).cpu()
        self.error[layer] = (error / max(n_rows, 1)).cpu()
        return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


class ShortHeads(TapSession):
    """A pass in which some key/value heads see only the first tokens and the last ones.

    Parameters
    ----------
    sites : Sites
        The attention modules.
    whole : array of bool
        `[layer, key/value head]`: which see everything.
    sink, window : int
        What the others see.
    """

    def __init__(self, sites: Sites, whole: np.ndarray, sink: int, window: int) -> None:
        self.layer_count = LayerCount(sites)
        self.whole = whole
        self.sink = sink
        self.window = window

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        is_whole = self.whole[layer]
        if is_whole.all():
            return call.output(BLOCK_BYTES), None
        _, n_heads, n_queries, n_keys, n_kv_heads, d_value = call.sizes
        group_size = n_heads // n_kv_heads
        by_head = np.repeat(is_whole, group_size)
        output = call.value.new_empty(len(call.value), n_queries, n_heads, d_value)
        positions = torch.arange(n_keys, device=call.value.device)
        # With a cache there are more keys than queries: the last query sees the last key.
        near = is_near(positions[n_keys - n_queries :], positions, self.sink, self.window)
        for heads, is_short in ((np.flatnonzero(by_head), False), (np.flatnonzero(~by_head), True)):
            if not len(heads):
                continue
            part = call.select_heads(heads.tolist())
            if is_short:
                lowest = torch.finfo(part.query.dtype).min
                mask = part.rows_mask(0, n_queries)
                hidden = torch.zeros_like(near, dtype=part.query.dtype).masked_fill(~near, lowest)
                part.mask = hidden[None, None] if mask is None else mask.clamp(min=lowest) + hidden
                part.mask = part.mask.clamp(min=lowest)
                part.causal = False
            output[:, :, heads] = part.output(BLOCK_BYTES)
        return output, None


class LongTextModel:
    """A causal language model on long texts: losses and distributions with some heads short.

    Parameters
    ----------
    model : HeadModel
        A causal language model.
    sink, window : int
        What short heads see.
    """

    def __init__(self, model: HeadModel, sink: int, window: int) -> None:
        self.model = model
        self.sink = sink
        self.window = window
        structure: Structure = find_structure(model)
        head = model.module.get_output_embeddings()
        if head is None:
            raise ModelError(f"{model.name} has no output matrix that can be read.")
        self._head: nn.Module = head
        self._times = structure.times
        self._cap = structure.cap

    @torch.no_grad()
    def distant(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, int]:
        """Return distant mass and output error of every head on one text, `[layer, head]`, and over
        how many rows they are means."""
        session = DistantMass(self.model.sites, self.sink, self.window)
        self.hidden(batch, session)
        layers = range(self.model.layers)
        mass = torch.stack([session.mass[layer] for layer in layers]).numpy()
        error = torch.stack([session.error[layer] for layer in layers]).numpy()
        return mass, error, session.rows

    @torch.no_grad()
    def hidden(self, batch: Batch, session: TapSession) -> Tensor:
        """Return what enters the output matrix, `[token, width]` of one text."""
        with self.model.evaluating(), use_session(session):
            output = self.model.run(batch.ids, batch.attention_mask, batch.types)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def short(self, whole: np.ndarray, window: int | None = None) -> ShortHeads:
        """Return the session in which the other heads are short."""
        return ShortHeads(self.model.sites, whole, self.sink, window or self.window)

    @torch.no_grad()
    def compare(
        self, batch: Batch, intact: Tensor, changed: Tensor, first: int
    ) -> tuple[float, float, float]:
        """Return the mean loss of the intact model, that of the changed one, and the divergence of
        the changed from the intact distribution, in nats, over the tokens from `first` on.

        Logits are formed for few tokens at a time.

        Parameters
        ----------
        batch : Batch
            One text.
        intact, changed : Tensor
            What `hidden` returned.
        first : int
            The first token that is predicted with something cut.
        """
        targets = batch.ids[0, 1:]
        totals = np.zeros(3)
        n_tokens = 0
        for start in range(first, len(targets), LOGITS_AT_ONCE):
            rows = slice(start, min(start + LOGITS_AT_ONCE, len(targets)))
            before = self.logits(intact[rows]).log_softmax(-1)
            after = self.logits(changed[rows]).log_softmax(-1)
            wanted = targets[rows, None]
            totals[0] -= float(before.gather(1, wanted).sum())
            totals[1] -= float(after.gather(1, wanted).sum())
            totals[2] += float((before.exp() * (before - after)).sum())
            n_tokens += len(wanted)
        before_loss, after_loss, divergence = (totals / max(n_tokens, 1)).tolist()
        return before_loss, after_loss, divergence

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of what enters the output matrix, `[token, vocabulary]`."""
        logits: Tensor = self._head(hidden).float() * self._times
        if self._cap is not None:
            logits = self._cap * torch.tanh(logits / self._cap)
        return logits


def by_group(values: np.ndarray, kv_heads: int) -> np.ndarray:
    """Return the largest value of the query heads of each key/value head, `[..., layer, key/value
    head]` of `[..., layer, head]`: a group keeps what any of its heads needs.

    >>> by_group(np.array([[1.0, 5.0, 2.0, 3.0]]), 2).tolist()
    [[5.0, 3.0]]
    """
    grouped = values.reshape(*values.shape[:-1], kv_heads, -1)
    largest: np.ndarray = grouped.max(-1)
    return largest


def sliding_layers(model: HeadModel) -> dict[int, int]:
    """Return the layers that see a sliding window anyway, with its size."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    types: Sequence[str] | None = getattr(config, "layer_types", None)
    if not window:
        return {}
    if types is None:
        uses_window = getattr(config, "use_sliding_window", True)
        return dict.fromkeys(range(model.layers), int(window)) if uses_window else {}
    sliding = {}
    for layer, kind in enumerate(types):
        if kind == "sliding_attention":
            sliding[layer] = int(window)
    return sliding
