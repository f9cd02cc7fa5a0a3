"""The attention function and the mask function that headwise registers with transformers.

Both are stateless: what they do is decided by the session of the current context (`SESSION`, one
per thread) and by the module they are called for. Without a session, or for a module the session
does not know, they compute what the model's own eager path computes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models.masks import row_mask, rows_of

NAME = "headwise"
Eager = Callable[..., tuple[Tensor, Tensor | None]]

# Arguments that architectures pass to their attention function without changing what it computes:
# switches for other backends, bookkeeping, and what is applied elsewhere already (a sliding window
# is in the mask, rotary embeddings are in query and key).
IGNORED_ARGUMENTS = frozenset(
    (
        "deterministic",
        "position_ids",
        "position_embeddings",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "use_cache",
        "cache_position",
        "past_key_values",
        "past_key_value",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "sliding_window",
        "token_type_ids",
        "num_items_in_batch",
        "target_dtype",
        "layer_idx",
        "implementation",
        "logits_to_keep",
        "inputs_embeds",
        "input_ids",
        "labels",
        "output_router_logits",
        "mm_token_type_ids",
    )
)

# Arguments that change the scores, and the parameter of `Call` that applies them.
APPLIED = {
    "position_bias": "bias",
    "softcap": "softcap",
    "s_aux": "sinks",
    "is_causal": "is_causal",
}

# The scores of an attention module with this attribute are multiplied by it.
SCORE_FACTOR = "headwise_score_factor"


class TapSession:
    """Base class of what gets every attention call of a model while it is active (`use_session`).

    Two kinds read a model for users: `Session` (session.py), a whole watched forward pass, and
    `_HeadReader` (headmodel.py), a pass over one text that stops after the requested heads. The
    others are special passes: `Probe` (sites.py) finds the attention modules, `_Generation`
    (generation.py) intervenes while text is generated, `_Reader` (weights.py) recognises weight
    matrices; attribution and fine-tuning have one each."""

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Return the output of a call `[example, token, head, d]`, and its weights if known."""
        raise NotImplementedError

    def by_rows(self, batch_size: int, queries: int, keys: int) -> bool:
        """Return whether the mask of such an input is built in blocks of rows."""
        return False


SESSION: ContextVar[TapSession | None] = ContextVar("headwise_session", default=None)


@contextmanager
def use_session(session: TapSession | None) -> Iterator[TapSession | None]:
    """Make this the session of the current context for a `with` block."""
    token = SESSION.set(session)
    try:
        yield session
    finally:
        SESSION.reset(token)


def differentiated() -> bool:
    """Return whether derivatives are taken here, in reverse or forward mode."""
    return torch.is_grad_enabled() or torch.autograd.forward_ad._current_level >= 0


class Call:
    """One call of the attention function, with everything that decides its numbers.

    Parameters
    ----------
    module : Module
        The attention module.
    query, key, value : Tensor
        `[example, head, token, d]`; key and value before group repetition.
    mask : Tensor, optional
        Added to the scores (or bool: True for visible keys).
    scaling : float, optional
        Factor of the scores; default: one over the root of the head size.
    bias : Tensor, optional
        Added to the scores.
    softcap : float, optional
        Scores become `softcap · tanh(scores / softcap)`.
    sinks : Tensor, optional
        Learned scores of a sink outside the tokens, `[head]`.
    causal : bool, default False
        Hide later keys besides those of the mask.
    model_eager : callable, optional
        The model's own eager computation of the same call; it returns None if the model has none.
    """

    __slots__ = (
        "bias",
        "causal",
        "key",
        "mask",
        "model_eager",
        "module",
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
        model_eager: Callable[[], tuple[Tensor, Tensor | None] | None] | None = None,
    ) -> None:
        self.module = module
        self.query = query
        self.key = key
        self.value = value
        self.mask = mask
        self.scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        self.scaling *= getattr(module, SCORE_FACTOR, 1.0)
        self.bias = bias
        self.softcap = softcap
        self.sinks = sinks
        self.causal = causal
        self.model_eager = model_eager

    def on(self, device: torch.device) -> Call:
        """Return the same call with its tensors on another device."""
        moved = copy.copy(self)
        for name in self.tensors:
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(moved, name, tensor.to(device))
        return moved

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """Numbers of examples, heads, queries, keys, key/value heads; size of a head's output."""
        n_examples, n_heads, n_queries, _ = self.query.shape
        n_keys = self.key.shape[2]
        return n_examples, n_heads, n_queries, n_keys, self.key.shape[1], self.value.shape[3]

    def select_heads(self, heads: Sequence[int]) -> Call:
        """Return the same call for some heads, with key and value repeated for each of them."""
        group_size = self.query.shape[1] // self.key.shape[1]
        groups = [head // group_size for head in heads]
        selected = copy.copy(self)
        selected.model_eager = None
        selected.query = self.query[:, heads]
        selected.key = self.key[:, groups]
        selected.value = self.value[:, groups]
        if self.mask is not None and self.mask.shape[1] > 1:
            selected.mask = self.mask[:, heads]
        if self.bias is not None and self.bias.shape[1] > 1:
            selected.bias = self.bias[:, heads]
        if self.sinks is not None:
            selected.sinks = self.sinks.reshape(-1)[heads]
        return selected

    def repeated(self) -> tuple[Tensor, Tensor]:
        """Return key and value with every group repeated for its query heads."""
        group_size = self.query.shape[1] // self.key.shape[1]
        if group_size == 1:
            return self.key, self.value
        key = self.key.repeat_interleave(group_size, dim=1)
        value = self.value.repeat_interleave(group_size, dim=1)
        return key, value

    def rows_mask(self, start: int, stop: int) -> Tensor | None:
        """Return what is added to the scores of these rows to hide keys; None if none is hidden."""
        n_keys = self.key.shape[2]
        lowest = torch.finfo(self.query.dtype).min
        mask = rows_of(self.mask, start, stop, n_keys)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=self.query.dtype).masked_fill(~mask, lowest)
        if not self.causal:
            return mask
        if mask is None:
            shape = (1, 1, stop - start, n_keys)
            mask = torch.zeros(shape, dtype=self.query.dtype, device=self.query.device)
        # With a cache there are more keys than queries: the last query sees the last key.
        n_cached = n_keys - self.query.shape[2]
        position = torch.arange(start, stop, device=mask.device)[:, None] + n_cached
        is_later = torch.arange(n_keys, device=mask.device) > position
        return mask.masked_fill(is_later, lowest)

    def weights(self, key: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Return attention weights of a block of query rows, in float32 or better, and the mass on
        the sink.

        The order of operations is that of the eager functions of transformers: scale, cap, bias,
        mask, softmax. Scores of half-precision queries and keys are not rounded before the softmax:
        fused attention, which models normally run with, does not round them either, so all
        strategies give the same numbers. (The caller rounds for the product with the values.)"""
        query = self.query[:, :, start:stop]
        dtype = torch.promote_types(query.dtype, torch.float32)
        scores = (query.to(dtype) @ key.to(dtype).transpose(2, 3)).mul_(self.scaling)
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
        weights_and_sink = torch.cat([scores, sinks.to(scores.dtype)], dim=-1).softmax(-1)
        return weights_and_sink[..., :-1], weights_and_sink[..., -1]

    def fused(self, key: Tensor, value: Tensor, start: int, stop: int) -> Tensor:
        """Return head outputs of a block of rows by torch's fused attention, which forms no
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

    def output(self, block_bytes: int) -> Tensor:
        """Return the output of the call alone, `[example, token, head, d]`.

        If torch's fused attention cannot compute it, weights are formed in blocks of rows of at
        most `block_bytes`."""
        key, value = self.repeated()
        n_examples, n_heads, n_queries, _ = self.query.shape
        if self.can_fuse:
            return self.fused(key, value, 0, n_queries).transpose(1, 2).contiguous()
        rows_at_once = max(1, block_bytes // (n_examples * n_heads * key.shape[2] * 4))
        outputs = []
        for start in range(0, n_queries, rows_at_once):
            weights, _ = self.weights(key, start, min(start + rows_at_once, n_queries))
            outputs.append(weights.to(value.dtype) @ value)
        return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()

    def plain(self) -> tuple[Tensor, Tensor | None]:
        """Return output and weights of eager attention, as the model computes it."""
        computed = None if self.model_eager is None else self.model_eager()
        if computed is not None:
            return computed
        key, value = self.repeated()
        weights, _ = self.weights(key, 0, self.query.shape[2])
        weights = weights.to(value.dtype)
        return (weights @ value).transpose(1, 2).contiguous(), weights


class FormedCall(Call):
    """A call of a module that forms its weights itself.

    Parameters
    ----------
    module : Module
        The attention module.
    formed : Tensor
        Its weights, `[example, head, query, key]`.
    value : Tensor
        The values they multiply.
    visible : Tensor
        Which keys are visible, in the shape of the weights.
    """

    __slots__ = ("formed", "visible")
    tensors: ClassVar[tuple[str, ...]] = (*Call.tensors, "formed", "visible")

    def __init__(self, module: nn.Module, formed: Tensor, value: Tensor, visible: Tensor) -> None:
        super().__init__(module, value, value, value, None, scaling=1.0)
        self.formed = formed
        self.visible = visible

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        return *self.formed.shape, self.value.shape[1], self.value.shape[3]

    @property
    def can_fuse(self) -> bool:
        return False

    def select_heads(self, heads: Sequence[int]) -> FormedCall:
        group_size = self.formed.shape[1] // self.value.shape[1]
        value = self.value[:, [head // group_size for head in heads]]
        visible = self.visible if self.visible.shape[1] == 1 else self.visible[:, heads]
        return FormedCall(self.module, self.formed[:, heads], value, visible)

    def repeated(self) -> tuple[Tensor, Tensor]:
        group_size = self.formed.shape[1] // self.value.shape[1]
        value = self.value
        if group_size > 1:
            value = value.repeat_interleave(group_size, dim=1)
        return value, value

    def rows_mask(self, start: int, stop: int) -> Tensor | None:
        return self.visible[:, :, start:stop]

    def weights(self, key: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        weights = self.formed[:, :, start:stop]
        return weights.to(torch.promote_types(weights.dtype, torch.float32)), None

    def output(self, block_bytes: int) -> Tensor:
        output, _ = self.plain()
        return output

    def plain(self) -> tuple[Tensor, Tensor | None]:
        _, value = self.repeated()
        return (self.formed @ value).transpose(1, 2), self.formed


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
    """Compute attention for transformers: registered as `headwise`, called for every attention of a
    model that selects it."""
    session = SESSION.get()

    def model_eager() -> tuple[Tensor, Tensor | None] | None:
        eager = find_eager(module)
        if eager is None:
            return None
        return eager(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **extras
        )

    if session is None:
        computed = model_eager()
        if computed is not None:
            return computed
    # Arguments that `Call` applies, by its names.
    options: dict[str, Any] = {}
    for name, value_of_extra in extras.items():
        if value_of_extra is None or name in IGNORED_ARGUMENTS:
            continue
        if name not in APPLIED:
            raise ModelError(
                f"{type(module).__name__} passes `{name}` to its attention, which headwise cannot "
                "apply; this model is not supported."
            )
        options[APPLIED[name]] = value_of_extra
    is_causal = bool(options.pop("is_causal", False))
    call = Call(
        module,
        query,
        key,
        value,
        attention_mask,
        scaling=scaling,
        causal=is_causal and attention_mask is None and query.shape[2] > 1,
        model_eager=model_eager,
        **options,
    )
    return call.plain() if session is None else session.attend(call)


def find_eager(module: nn.Module) -> Eager | None:
    """Return the eager attention function of the file that defines this module's class."""
    for cls in type(module).__mro__:
        source = sys.modules.get(cls.__module__)
        eager: Eager | None = getattr(source, "eager_attention_forward", None)
        if eager is not None:
            return eager
    return None


def mask(**arguments: Any) -> Tensor | None:
    """Build an attention mask for transformers: registered as `headwise`. It is an eager mask,
    built in blocks of rows if the session asks for it."""
    session = SESSION.get()
    builds_rows = False
    if session is not None and not arguments.get("use_vmap"):
        builds_rows = session.by_rows(
            arguments["batch_size"], arguments["q_length"], arguments["kv_length"]
        )
    if not builds_rows:
        whole: Tensor | None = transformers.masking_utils.eager_mask(**arguments)
        return whole
    arguments.pop("allow_is_causal_skip", None)
    return row_mask(**arguments)


def register() -> None:
    """Register both functions with transformers.

    Called when a model is tapped: importing the registries takes seconds."""
    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, mask)
