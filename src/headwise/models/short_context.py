"""Heads that see only the first tokens and the last ones: what that costs each head, and a model in
which some key/value heads are short.

Cutting the distant tokens from a row and scaling the rest up is what a short cache does; here it is
done by a mask, in whole passes, so that every head can be judged at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headwise.core.errors import ModelError
from headwise.models.headmodel import HeadModel
from headwise.models.masks import MaskPattern, RowMask, rows_of
from headwise.models.session import BLOCK_BYTES
from headwise.models.sites import LayerCount, Sites
from headwise.models.structure import Structure, find_structure
from headwise.models.tap import Call, FormedCall, TapSession, use_session
from headwise.text.encode import Batch

LOGITS_AT_ONCE = 512  # tokens whose logits over the whole vocabulary are in memory
LOGIT_BYTES = 16 * 2**20  # the most that these take on a CPU: small blocks are a fifth faster
# Bytes of weights that are formed at once: blocks that fit into the caches of a processor take a third
# of the time of large ones.
WEIGHT_BYTES = 8 * 2**20
ROWS_AT_ONCE = 1024  # queries whose keys are gathered, or whose mask is built, at once
# A block of queries reads as many keys more than a window as it has queries: on a CPU, where a block
# costs nothing to begin, small blocks are faster.
SHORT_ROWS_AT_ONCE_CPU = 256


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
        block_bytes = WEIGHT_BYTES if key.device.type == "cpu" else BLOCK_BYTES // 4
        at_once = max(1, block_bytes // (n_heads * n_keys * 4))
        positions = torch.arange(n_keys, device=key.device)
        is_causal = _is_plainly_causal(call)
        mass = torch.zeros(n_heads, dtype=torch.float64, device=key.device)
        error = torch.zeros_like(mass)
        outputs = []
        n_rows = 0
        for start in range(0, n_queries, at_once):
            stop = min(start + at_once, n_queries)
            if is_causal:
                # Keys after the block's last query are hidden: half of all scores are not formed.
                n_read = stop
                block = _rows_of_call(call, start, stop, positions[:n_read])
                weights, _ = block.weights(key[:, :, :n_read], 0, stop - start)
            else:
                n_read = n_keys
                weights, _ = call.weights(key, start, stop)
            output = weights.to(value.dtype) @ value[:, :, :n_read]
            outputs.append(output)
            # Rows whose whole context is near lose nothing and are not counted.
            first_cut = max(start, self.sink + self.window)
            if first_cut >= stop:
                continue
            weights = weights[:, :, first_cut - start :]
            output = output[:, :, first_cut - start :]
            first_near = max(self.sink, first_cut - self.window + 1)
            columns = torch.cat([positions[: self.sink], positions[first_near:stop]])
            near = is_near(positions[first_cut:stop], columns, self.sink, self.window)
            kept = weights.index_select(-1, columns) * near
            kept_mass = kept.sum(-1, keepdim=True)
            # Below 1 with a learned sink.
            whole_mass = weights.sum(-1, keepdim=True)
            tiny = torch.finfo(kept.dtype).tiny
            short_weights = kept / kept_mass.clamp(min=tiny) * whole_mass
            # In float32 or better: the difference of two half-precision outputs is mostly rounding.
            precise_value = value[:, :, :n_read].to(weights.dtype)
            precise_output = output
            if output.dtype != weights.dtype:
                precise_output = weights @ precise_value
            short_output = short_weights @ precise_value.index_select(2, columns)
            difference = (precise_output - short_output).norm(dim=-1)
            relative = difference / output.float().norm(dim=-1).clamp(min=1e-12)
            distant = 1 - kept_mass[..., 0] / whole_mass[..., 0].clamp(min=tiny)
            mass += distant[0].double().sum(-1)
            error += relative[0].double().sum(-1)
            n_rows += stop - first_cut
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

    def by_rows(self, batch_size: int, queries: int, keys: int) -> bool:
        return True

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        self._reject_formed(call)
        is_whole = self.whole[layer]
        _, n_heads, n_queries, _, n_kv_heads, d_value = call.sizes
        if is_whole.all():
            return self._whole_output(call), None
        by_head = np.repeat(is_whole, n_heads // n_kv_heads)
        output = call.value.new_empty(len(call.value), n_queries, n_heads, d_value)
        for heads, is_short in ((np.flatnonzero(by_head), False), (np.flatnonzero(~by_head), True)):
            if not len(heads):
                continue
            part = call.select_heads(heads.tolist())
            # An index on the device: a list would be copied there for every layer and pass.
            members = torch.as_tensor(heads, device=output.device)
            if is_short:
                output.index_copy_(2, members, self._short_output(part))
            else:
                output.index_copy_(2, members, self._whole_output(part))
        return output, None

    def _reject_formed(self, call: Call) -> None:
        if isinstance(call, FormedCall):
            raise ModelError(
                f"{type(call.module).__name__} forms its attention weights itself, so its heads "
                "cannot be made short; this model is not supported here."
            )

    def _whole_output(self, call: Call) -> Tensor:
        """Return the output of heads that see everything, `[example, token, head, d]`."""
        if _is_plainly_causal(call) and self._can_fuse(call):
            key, value = call.repeated()
            output = nn.functional.scaled_dot_product_attention(
                call.query, key, value, is_causal=True, scale=call.scaling
            )
            return output.transpose(1, 2)
        n_queries = call.query.shape[2]
        blocks = []
        for start in range(0, n_queries, ROWS_AT_ONCE):
            stop = min(start + ROWS_AT_ONCE, n_queries)
            blocks.append(_rows_of_call(call, start, stop).output(BLOCK_BYTES))
        return torch.cat(blocks, 1)

    def _can_fuse(self, call: Call) -> bool:
        return call.can_fuse

    def _short_output(self, call: Call) -> Tensor:
        """Return the output of heads that see sink and window, `[example, token, head, d]`.

        A block of queries reads only the keys that one of them keeps, so time and memory grow with
        the text, not with its square."""
        n_queries = call.query.shape[2]
        # With a cache there are more keys than queries: the last query sees the last key.
        n_cached = call.key.shape[2] - n_queries
        positions = torch.arange(call.key.shape[2], device=call.key.device)
        at_once = ROWS_AT_ONCE
        if call.key.device.type == "cpu":
            at_once = min(at_once, max(SHORT_ROWS_AT_ONCE_CPU, self.window))
        blocks = []
        for start in range(0, n_queries, at_once):
            stop = min(start + at_once, n_queries)
            first = max(self.sink, start + n_cached - self.window + 1)
            columns = torch.cat([positions[: self.sink], positions[first : stop + n_cached]])
            rows = positions[start + n_cached : stop + n_cached]
            near = is_near(rows, columns, self.sink, self.window)
            blocks.append(_rows_of_call(call, start, stop, columns, near).output(BLOCK_BYTES))
        return torch.cat(blocks, 1)


class GatedHeads(ShortHeads):
    """A pass in which each key/value head's output lies between its whole and its short one.

    Gradients reach the gates; what is computed again on the way back is not held.

    Parameters
    ----------
    sites : Sites
        The attention modules.
    gates : Tensor
        `[layer, key/value head]`, 1: whole, 0: short.
    sink, window : int
        What short heads see.
    """

    def __init__(self, sites: Sites, gates: Tensor, sink: int, window: int) -> None:
        super().__init__(sites, np.zeros(tuple(gates.shape), bool), sink, window)
        self.gates = gates

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        self._reject_formed(call)
        _, n_heads, _, _, n_kv_heads, _ = call.sizes
        gate = self.gates[layer].to(call.value.dtype)
        gate = gate.repeat_interleave(n_heads // n_kv_heads)[:, None]

        def both() -> tuple[Tensor, Tensor]:
            return self._whole_output(call), self._short_output(call)

        # Attention is computed again on the way back: its weights in every layer would not fit.
        whole, short = checkpoint(both, use_reentrant=False)
        return gate * whole + (1 - gate) * short, None

    def _can_fuse(self, call: Call) -> bool:
        # Torch's fused attention has gradients, in reverse mode, which is all that is taken here.
        return call.softcap is None and call.sinks is None


class LastRows(ShortHeads):
    """A pass of the intact model that records which key each head attends to most in the last rows.

    Parameters
    ----------
    sites : Sites
        The attention modules.
    first : int
        The first row that is recorded.

    Attributes
    ----------
    most : dict of int to Tensor
        By layer, the key with the largest weight, `[head, row]`.
    """

    def __init__(self, sites: Sites, first: int) -> None:
        super().__init__(sites, np.ones((0, 0), bool), 0, 1)
        self.first = first
        self.most: dict[int, Tensor] = {}

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        key, _ = call.repeated()
        weights, _ = call.weights(key, self.first, call.query.shape[2])
        self.most[layer] = weights[0].argmax(-1).cpu()
        return self._whole_output(call), None


def _is_plainly_causal(call: Call) -> bool:
    """Return whether every query sees exactly the keys up to its own (rows of padding apart)."""
    if call.bias is not None or call.query.shape[2] != call.key.shape[2]:
        return False
    if call.mask is None:
        return call.causal
    return isinstance(call.mask, RowMask) and call.mask.pattern == MaskPattern(causal=True)


def _rows_of_call(
    call: Call, start: int, stop: int, columns: Tensor | None = None, near: Tensor | None = None
) -> Call:
    """Return the same call for a block of queries and for some keys.

    Parameters
    ----------
    call : Call
        The call for all queries.
    start, stop : int
        The block of queries.
    columns : Tensor, optional
        The keys that are read; by default all.
    near : Tensor, optional
        Which of them each query sees, bool `[query, column]`, besides what the model's mask says.
    """
    block = copy.copy(call)
    block.model_eager = None
    block.causal = False
    block.query = call.query[:, :, start:stop]
    if near is not None and _is_plainly_causal(call):
        mask: Tensor | None = None  # what is near is not later: the model's mask adds nothing
    else:
        mask = call.rows_mask(start, stop)
    bias = rows_of(call.bias, start, stop, call.key.shape[2])
    if columns is not None:
        block.key = call.key.index_select(2, columns)
        block.value = call.value.index_select(2, columns)
        if mask is not None:
            mask = mask.index_select(-1, columns)
        if bias is not None and bias.shape[-1] > 1:
            bias = bias.index_select(-1, columns)
    if near is not None:
        if mask is None:
            mask = near[None, None]
        else:
            mask = mask.masked_fill(~near, torch.finfo(mask.dtype).min)
    block.mask = mask
    block.bias = bias
    return block


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

    @torch.no_grad()
    def attended_keys(self, batch: Batch, first: int) -> tuple[Tensor, np.ndarray]:
        """Return what enters the output matrix, and which key each head attends to most from the row
        `first` on, int `[layer, head, row]`."""
        session = LastRows(self.model.sites, first)
        hidden = self.hidden(batch, session)
        layers = range(self.model.layers)
        return hidden, torch.stack([session.most[layer] for layer in layers]).numpy()

    def short(self, whole: np.ndarray, window: int | None = None) -> ShortHeads:
        """Return the session in which the other heads are short."""
        return ShortHeads(self.model.sites, whole, self.sink, window or self.window)

    @torch.no_grad()
    def compare(
        self, batch: Batch, intact: Tensor, changed: Sequence[Tensor], first: int
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the mean loss of the intact model, those of changed ones, and the divergence of each
        changed distribution from the intact one, in nats, over the tokens from `first` on.

        Logits are formed for few tokens at a time; those of the intact model once for all changed
        ones.

        Parameters
        ----------
        batch : Batch
            One text.
        intact : Tensor
            What `hidden` returned of the intact model.
        changed : sequence of Tensor
            The same of changed models.
        first : int
            The first token that is predicted with something cut.
        """
        targets = batch.ids[0, 1:]
        intact_loss = 0.0
        at_once = self.logits_at_once(intact)
        losses = np.zeros(len(changed))
        divergences = np.zeros(len(changed))
        n_tokens = 0
        for start in range(first, len(targets), at_once):
            rows = slice(start, min(start + at_once, len(targets)))
            wanted = targets[rows, None]
            before = self.logits(intact[rows]).log_softmax(-1)
            probability = before.exp()
            intact_loss -= float(before.gather(1, wanted).sum())
            for number, hidden in enumerate(changed):
                after = self.logits(hidden[rows]).log_softmax(-1)
                losses[number] -= float(after.gather(1, wanted).sum())
                divergences[number] += float((probability * (before - after)).sum())
            n_tokens += len(wanted)
        n_tokens = max(n_tokens, 1)
        return intact_loss / n_tokens, losses / n_tokens, divergences / n_tokens

    @torch.no_grad()
    def gain(self, batch: Batch, intact: Tensor, first: int) -> float:
        """Return how much better the model predicts each next token, from `first` on, than a token
        drawn from the same text, in nats: about 0 for random weights.

        Parameters
        ----------
        batch : Batch
            One text.
        intact : Tensor
            What `hidden` returned of the intact model.
        first : int
            The first token that is predicted.
        """
        targets = batch.ids[0, 1:]
        order = np.random.default_rng(0).permutation(len(targets) - first) + first
        others = targets[torch.as_tensor(order, device=targets.device)]
        at_once = self.logits_at_once(intact)
        total = 0.0
        for start in range(first, len(targets), at_once):
            stop = min(start + at_once, len(targets))
            # The difference of two logits of one row: the normalisation is the same for both.
            logits = self.logits(intact[start:stop])
            total += float(logits.gather(1, targets[start:stop, None]).double().sum())
            total -= float(
                logits.gather(1, others[start - first : stop - first, None]).double().sum()
            )
        return total / max(len(targets) - first, 1)

    def logits_at_once(self, hidden: Tensor) -> int:
        """Return of how many tokens the logits are formed at once."""
        if hidden.device.type != "cpu":
            return LOGITS_AT_ONCE
        n_words = int(self.model.config.get_text_config().vocab_size)
        return max(1, min(LOGITS_AT_ONCE, LOGIT_BYTES // (4 * n_words)))

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
