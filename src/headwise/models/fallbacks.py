"""Ways in for architectures outside the attention registry: one method of the attention module is led to the tap,
nothing is copied.

GPT-1 and its near kin have a method that takes query, key and value: it calls the tap. Others mix that step into a
longer method: while it runs, its softmax over keys and the product that follows are intercepted. The weights are then
the module's own, and the tap sees, changes and multiplies them.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headwise.models.intercept import intercepted_forward
from headwise.models.tap import NAME, SESSION, Call, register

Undo = Callable[[], object]


def select_tap(module: nn.Module) -> list[Undo]:
    """Choose the registered function on every config in a model (submodels are tapped too), and lead the few others
    there; gives what undoes it."""
    register()
    undo: list[Undo] = []
    configs = {id(c): c for c in (getattr(m, "config", None) for m in module.modules()) if c is not None}
    for config in configs.values():
        before = getattr(config, "_attn_implementation_internal", None)
        if hasattr(config, "_attn_implementation_internal") and before != NAME:
            config._attn_implementation_internal = NAME
            undo.append(partial(setattr, config, "_attn_implementation_internal", before))
    return undo + lead_to_tap(module)


def lead_to_tap(model: nn.Module) -> list[Undo]:
    """Lead the attention of every module that needs it to the tap; gives what undoes it."""
    undo: list[Undo] = []
    for module in model.modules():
        place = type(module).__module__.rpartition(".")[2].removeprefix("modeling_"), type(module).__name__
        method, tapped = WAYS.get(place) or (
            ("forward", intercepted_forward) if ".".join(place) in INTERCEPTED else ("", None)
        )
        if tapped is None:
            continue
        if method == "forward" and "_old_forward" in vars(module):  # accelerate calls this one, once weights are there
            undo.append(partial(setattr, module, "_old_forward", vars(module)["_old_forward"]))
            setattr(module, "_old_forward", types.MethodType(tapped, module))  # noqa: B010  (a Tensor or Module to mypy)
            continue
        if method in vars(module):
            continue
        setattr(module, method, types.MethodType(tapped, module))
        undo.append(partial(delattr, module, method))
    return undo


def _through_tap(
    module: nn.Module, own: Callable[[], Any], *tensors: Any, **options: Any
) -> tuple[Tensor, Tensor | None] | None:
    """The tap's answer for this call as `[example, head, token, d_head]`; None where nobody watches and the module's
    own method should answer."""
    session = SESSION.get()
    if session is None:
        return None

    def plain() -> tuple[Tensor, Tensor | None]:
        result = own()
        return result[0].transpose(1, 2), result[1] if len(result) > 1 else None

    output, weights = session.attend(Call(module, *tensors, own=plain, **options))
    return output.transpose(1, 2), weights


def _gpt1(
    self: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None, output_attentions: bool = False
) -> list[Any]:
    def own() -> Any:
        return type(self)._attn(self, q, k, v, attention_mask, output_attentions)

    scaling = v.shape[-1] ** -0.5 if self.scale else 1.0
    answer = _through_tap(self, own, q, k.transpose(2, 3), v, attention_mask, scaling=scaling, causal=True)
    return own() if answer is None else [answer[0], answer[1]] if output_attentions else [answer[0]]


def _gptj(self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None) -> Any:
    def own() -> Any:
        return type(self)._attn(self, query, key, value, attention_mask)

    scaling = 1.0 / float(self.scale_attn)
    return _through_tap(self, own, query.float(), key.float(), value, attention_mask, scaling=scaling) or own()


def _gpt_neo(self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None) -> Any:
    def own() -> Any:
        return type(self)._attn(self, query, key, value, attention_mask)

    keys = key.shape[2]
    window = self.bias[:, :, keys - query.shape[2] : keys, :keys]  # the causal triangle, or the band of a local layer
    if attention_mask is not None:
        window = attention_mask.masked_fill(~window, torch.finfo(attention_mask.dtype).min)
    return _through_tap(self, own, query.float(), key.float(), value, window, scaling=1.0) or own()


# file.class of attention modules whose softmax is intercepted
INTERCEPTED = frozenset((
    "bloom.BloomAttention", "deberta.DisentangledSelfAttention", "deberta_v2.DisentangledSelfAttention",
    "falcon.FalconAttention", "flaubert.MultiHeadAttention", "fsmt.Attention",
    "gpt_neox_japanese.GPTNeoXJapaneseAttention", "megatron_bert.MegatronBertSelfAttention",
    "mpnet.MPNetSelfAttention", "mpt.MptAttention", "rembert.RemBertSelfAttention",
    "roformer.RoFormerSelfAttention", "xglm.XGLMAttention", "xlm.MultiHeadAttention", "xlnet.XLNetRelativeAttention",
))  # fmt: skip

# (file, class) of the attention module -> the method that computes attention from query, key and value, and what takes
# its place
WAYS: dict[tuple[str, str], tuple[str, Callable[..., Any]]] = {
    ("openai", "Attention"): ("_attn", _gpt1),
    ("gptj", "GPTJAttention"): ("_attn", _gptj),
    ("codegen", "CodeGenAttention"): ("_attn", _gptj),
    ("gpt_neo", "GPTNeoSelfAttention"): ("_attn", _gpt_neo),
}
