"""The one attention function and its mask function that headwise registers with transformers.

Both are stateless: what they do is decided by the session of the current context (`SESSION`, one
per thread) and by the module they are called for. Without a session, or for a module the session
does not know, they compute what the model's own eager path computes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor, nn

from headwise.core.context import temporarily
from headwise.core.errors import ModelError
from headwise.models.masks import row_mask, rows_of

NAME = "headwise"
Eager = Callable[..., tuple[Tensor, Tensor | None]]

# What architectures hand to their attention function that does not change what it computes:
# switches for other backends, bookkeeping, and things already honoured elsewhere (a sliding window
# is in the mask, rotary embeddings are in query and key).
HARMLESS = frozenset((
    "deterministic", "position_ids", "position_embeddings", "output_attentions", "output_hidden_states",
    "return_dict", "use_cache", "cache_position", "past_key_values", "past_key_value", "cu_seq_lens_q",
    "cu_seq_lens_k", "max_length_q", "max_length_k", "sliding_window", "token_type_ids", "num_items_in_batch",
    "target_dtype", "layer_idx", "implementation", "logits_to_keep", "inputs_embeds", "input_ids", "labels",
    "output_router_logits", "mm_token_type_ids",
))  # fmt: skip


class Running:
    """A session: whatever is told of every attention call while it lasts."""

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The output of a call, and its weights where they are known."""
        raise NotImplementedError

    def by_rows(self, batch_size: int, queries: int, keys: int) -> bool:
        """Whether the mask of such an input is built by rows."""
        return False


def differentiated() -> bool:
    """Whether derivatives are taken here, by either mode."""
    return torch.is_grad_enabled() or torch.autograd.forward_ad._current_level >= 0


SHARPER = (
    "headwise_sharper"  # an attention module with this attribute has its scores multiplied by it
)
SESSION: ContextVar[Running | None] = ContextVar("headwise_session", default=None)


def use_session(session: Running | None) -> AbstractContextManager[Running | None]:
    """Within, this is the session of the current context."""
    return temporarily(SESSION, session)


class Call:
    """One call of the attention function, with everything that decides its numbers."""

    __slots__ = (
        "bias",
        "causal",
        "key",
        "mask",
        "module",
        "own",
        "query",
        "scaling",
        "sinks",
        "softcap",
        "value",
    )
    tensors: ClassVar[tuple[str, ...]] = ("query", "key", "value", "mask", "bias", "sinks")

    def __init__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scaling: float | None = None,
        bias: Tensor | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        causal: bool = False,
        own: Callable[[], tuple[Tensor, Tensor | None]] | None = None,
    ) -> None:
        self.module, self.query, self.key, self.value, self.mask = module, query, key, value, mask
        self.scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        self.scaling *= getattr(module, SHARPER, 1.0)
        self.bias, self.softcap, self.sinks, self.causal = bias, softcap, sinks, causal
        self.own = own  # the model's own eager computation of the same call, where it can be had

    def on(self, device: torch.device) -> Call:
        """The same call with its tensors on another device."""
        moved = copy.copy(self)
        for name in self.tensors:
            tensor = getattr(self, name)
            setattr(moved, name, None if tensor is None else tensor.to(device))
        return moved

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """Examples, heads, queries, keys, key/value heads, size of a head's output."""
        examples, heads, queries, _ = self.query.shape
        return examples, heads, queries, self.key.shape[2], self.key.shape[1], self.value.shape[3]

    def repeated(self) -> tuple[Tensor, Tensor]:
        """Key and value with every group repeated for its query heads."""
        groups = self.query.shape[1] // self.key.shape[1]
        if groups == 1:
            return self.key, self.value
        return self.key.repeat_interleave(groups, dim=1), self.value.repeat_interleave(
            groups, dim=1
        )

    def rows_mask(self, start: int, stop: int) -> Tensor | None:
        """What is added to the scores of these rows to hide keys; None where nothing is hidden."""
        keys, lowest = self.key.shape[2], torch.finfo(self.query.dtype).min
        mask = rows_of(self.mask, start, stop, keys)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=self.query.dtype).masked_fill(~mask, lowest)
        if not self.causal:
            return mask
        if mask is None:
            mask = torch.zeros(
                1, 1, stop - start, keys, dtype=self.query.dtype, device=self.query.device
            )
        behind = keys - self.query.shape[2]
        row = torch.arange(start, stop, device=mask.device)[:, None] + behind
        later = torch.arange(keys, device=mask.device) > row
        return mask.masked_fill(later, lowest)

    def weights(self, key: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Attention weights of a block of query rows, in float32 or better, and the mass on the
        sink.

        The order of operations is that of the eager functions of transformers: scale, cap, bias,
        mask, softmax. Scores of half-precision queries and keys are not rounded before the softmax:
        fused attention, which is what models run with, does not round them either, so that all ways
        here give the same numbers. (The caller rounds for the product with the values.)"""
        query = self.query[:, :, start:stop]
        exact = torch.promote_types(query.dtype, torch.float32)
        scores = (query.to(exact) @ key.to(exact).transpose(2, 3)).mul_(self.scaling)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        bias = rows_of(self.bias, start, stop, key.shape[2])
        if bias is not None:
            scores = scores + bias
        mask = self.rows_mask(start, stop)
        if mask is not None:
            scores = scores.add_(mask) if mask.dtype == scores.dtype else scores + mask
        if self.sinks is None:
            return scores.softmax(-1), None
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
        joint = torch.cat([scores, sinks.to(scores.dtype)], dim=-1).softmax(-1)
        return joint[..., :-1], joint[..., -1]

    def fused(self, key: Tensor, value: Tensor, start: int, stop: int) -> Tensor:
        """Head outputs of a block of rows by torch's fused attention; only where nobody asks for
        weights."""
        mask = self.rows_mask(start, stop)
        bias = rows_of(self.bias, start, stop, key.shape[2])
        if bias is not None:
            mask = bias if mask is None else bias + mask
        if mask is not None:
            mask = mask.to(self.query.dtype)
        return nn.functional.scaled_dot_product_attention(
            self.query[:, :, start:stop], key, value, attn_mask=mask, scale=self.scaling
        )

    @property
    def can_fuse(self) -> bool:
        return self.softcap is None and self.sinks is None and not differentiated()

    def plain(self) -> tuple[Tensor, Tensor | None]:
        """Eager attention, watched by nobody."""
        if self.own is not None:
            return self.own()
        key, value = self.repeated()
        weights, _ = self.weights(key, 0, self.query.shape[2])
        weights = weights.to(value.dtype)
        return (weights @ value).transpose(1, 2).contiguous(), weights


class FormedCall(Call):
    """A call of a module that forms its weights itself: they are taken as they are, `[example,
    head, query, key]`, with the values they multiply."""

    __slots__ = ("formed", "open")
    tensors: ClassVar[tuple[str, ...]] = (*Call.tensors, "formed", "open")

    def __init__(self, module: nn.Module, formed: Tensor, value: Tensor, open_: Tensor) -> None:
        super().__init__(module, value, value, value, None, scaling=1.0)
        self.formed, self.open = formed, open_

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        return *self.formed.shape, self.value.shape[1], self.value.shape[3]

    @property
    def can_fuse(self) -> bool:
        return False

    def repeated(self) -> tuple[Tensor, Tensor]:
        groups = self.formed.shape[1] // self.value.shape[1]
        value = self.value if groups == 1 else self.value.repeat_interleave(groups, dim=1)
        return value, value

    def rows_mask(self, start: int, stop: int) -> Tensor | None:
        return self.open[:, :, start:stop]

    def weights(self, key: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        formed = self.formed[:, :, start:stop]
        return formed.to(torch.promote_types(formed.dtype, torch.float32)), None

    def plain(self) -> tuple[Tensor, Tensor | None]:
        return (self.formed @ self.repeated()[1]).transpose(1, 2), self.formed


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **extras: Any,
) -> tuple[Tensor, Tensor | None]:
    """The function registered under `headwise`: what transformers calls for every attention of a
    model that selects it."""
    session = SESSION.get()
    eager = own_eager(module)

    def own() -> tuple[Tensor, Tensor | None]:
        assert eager is not None
        return eager(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **extras
        )

    if session is None and eager is not None:
        return own()
    known = read_extras(module, extras)
    known["causal"] = (
        bool(known.pop("is_causal", False)) and attention_mask is None and query.shape[2] > 1
    )
    known |= {"scaling": scaling, "own": None if eager is None else own}
    call = Call(module, query, key, value, attention_mask, **known)
    return call.plain() if session is None else session.attend(call)


def read_extras(module: nn.Module, extras: Mapping[str, Any]) -> dict[str, Any]:
    """Sort what a model passes into what the tap honours and what changes nothing; refuse the rest
    by name."""
    honoured = {
        "position_bias": "bias",
        "softcap": "softcap",
        "s_aux": "sinks",
        "is_causal": "is_causal",
    }
    known: dict[str, Any] = {}
    for name, value in extras.items():
        if value is None or name in HARMLESS:
            continue
        if name not in honoured:
            raise ModelError(
                f"{type(module).__name__} passes `{name}` to its attention, which headwise does not know how to "
                "honour; this model is not served."
            )
        known[honoured[name]] = value
    return known


def own_eager(module: nn.Module) -> Eager | None:
    """The eager attention function of the file that defines this module's class."""
    for cls in type(module).__mro__:
        found: Eager | None = getattr(
            sys.modules.get(cls.__module__), "eager_attention_forward", None
        )
        if found is not None:
            return found
    return None


def mask(**arguments: Any) -> Tensor | None:
    """The mask function registered under `headwise`: eager masks, built by rows where a session
    asks for it."""
    session = SESSION.get()
    if (
        session is None
        or arguments.get("use_vmap")
        or not session.by_rows(
            arguments["batch_size"], arguments["q_length"], arguments["kv_length"]
        )
    ):
        whole: Tensor | None = transformers.masking_utils.eager_mask(**arguments)
        return whole
    arguments.pop("allow_is_causal_skip", None)
    return row_mask(**arguments)


def register() -> None:
    """Make both known to transformers; where a model is tapped, for what holds them there takes
    seconds to import."""
    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, mask)
