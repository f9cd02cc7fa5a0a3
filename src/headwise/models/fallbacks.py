"""Ways in for architectures outside the attention registry: one method of the attention module is
led to the tap, nothing is copied.

GPT-1 and its near kin have a method that takes query, key and value: it calls the tap. Others mix
that step into a longer method: while it runs, its softmax over keys and the product that follows
are intercepted. The weights are then the module's own, and the tap sees, changes and multiplies
them."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.models.tap import NAME, SESSION, Call, FormedCall, Running, register

SOFTMAX = {nn.functional.softmax, torch.softmax, Tensor.softmax}
PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}
Undo = Callable[[], object]


def select_tap(module: nn.Module) -> list[Undo]:
    """Choose the registered function on every config in a model (submodels are tapped too), and
    lead the few others there; gives what undoes it."""
    register()
    undo: list[Undo] = []
    configs = {
        id(c): c for c in (getattr(m, "config", None) for m in module.modules()) if c is not None
    }
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
        place = (
            type(module).__module__.rpartition(".")[2].removeprefix("modeling_"),
            type(module).__name__,
        )
        method, tapped = WAYS.get(place) or (
            ("forward", intercepted_forward) if ".".join(place) in INTERCEPTED else ("", None)
        )
        if tapped is None:
            continue
        if method == "forward" and "_old_forward" in vars(
            module
        ):  # accelerate calls this one, once weights are there
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
    """The tap's answer for this call as `[example, head, token, d_head]`; None where nobody watches
    and the module's own method should answer."""
    session = SESSION.get()
    if session is None:
        return None

    def plain() -> tuple[Tensor, Tensor | None]:
        result = own()
        return result[0].transpose(1, 2), result[1] if len(result) > 1 else None

    output, weights = session.attend(Call(module, *tensors, own=plain, **options))
    return output.transpose(1, 2), weights


def _gpt1(
    self: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None = None,
    output_attentions: bool = False,
) -> list[Any]:
    own = partial(type(self)._attn, self, q, k, v, attention_mask, output_attentions)
    scaling = v.shape[-1] ** -0.5 if self.scale else 1.0
    answer = _through_tap(
        self, own, q, k.transpose(2, 3), v, attention_mask, scaling=scaling, causal=True
    )
    return own() if answer is None else [answer[0], answer[1]] if output_attentions else [answer[0]]


def _gptj(
    self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> Any:
    own = partial(type(self)._attn, self, query, key, value, attention_mask)
    scaling = 1.0 / float(self.scale_attn)
    return (
        _through_tap(self, own, query.float(), key.float(), value, attention_mask, scaling=scaling)
        or own()
    )


def _gpt_neo(
    self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> Any:
    own = partial(type(self)._attn, self, query, key, value, attention_mask)
    keys = key.shape[2]
    window = self.bias[
        :, :, keys - query.shape[2] : keys, :keys
    ]  # the causal triangle, or the band of a local layer
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

# (file, class) of the attention module -> the method that computes attention from query, key and
# value, and what takes its place
WAYS: dict[tuple[str, str], tuple[str, Callable[..., Any]]] = {
    ("openai", "Attention"): ("_attn", _gpt1),
    ("gptj", "GPTJAttention"): ("_attn", _gptj),
    ("codegen", "CodeGenAttention"): ("_attn", _gptj),
    ("gpt_neo", "GPTNeoSelfAttention"): ("_attn", _gpt_neo),
}


def intercepted_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The module's own forward, with its attention led through the session of the current context,
    where there is one."""
    session = SESSION.get()
    if session is None:
        return type(self).forward(self, *args, **kwargs)
    with Interception(self, session):
        return type(self).forward(self, *args, **kwargs)


class Interception(TorchFunctionMode):
    """Follows the result of a softmax over keys until it multiplies the values, and lets the
    session compute that product.

    The mode belongs to the thread that entered it and ends with the module's forward.
    """

    def __init__(self, module: nn.Module, session: Running) -> None:
        super().__init__()
        self.module, self.session = module, session
        self.weights: Tensor | None = None  # as they came from the softmax
        self.open: Tensor | None = None
        self.followed: list[Tensor] = []  # the same numbers in other shapes or types

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in SOFTMAX:
            scores = args[0]
            # Masks in these modules are the lowest number of the type, -1e30 (XLNet) or -inf.
            low = torch.finfo(scores.dtype).min
            self.weights, self.open = func(*args, **kwargs), scores > max(low / 2, -1e28)
            self.followed = [self.weights]
            return self.weights
        if self.followed and func in PRODUCTS and self._follows(args[0]):
            return self._product(args[0], args[1])
        if self.followed and func is torch.einsum and any(self._follows(x) for x in args[1:]):
            return self._einsum(args[0], *args[1:])
        result = func(*args, **kwargs)
        if (
            self.followed
            and args
            and self._follows(args[0])
            and isinstance(result, Tensor)
            and result.numel() == args[0].numel()
        ):
            self.followed.append(result)
        return result

    def _follows(self, value: Any) -> bool:
        return any(value is x for x in self.followed)

    def _product(self, weights: Tensor, value: Tensor) -> Tensor:
        """`weights @ value` for `[example, head, ...]` or `[example * head, ...]`."""
        assert self.weights is not None
        assert self.open is not None
        formed, seen = weights, self.open
        if weights.ndim == 3:
            shape = self.weights.shape
            if self.weights.ndim != 4:
                shape = torch.Size((-1, int(self.module.num_heads), *weights.shape[1:]))  # type: ignore[arg-type]
            formed, seen = weights.view(shape), seen.view(shape)
            value = value.view(*formed.shape[:2], *value.shape[1:])
        output = self._attend(formed, value, seen)
        return output.reshape(*weights.shape[:-1], output.shape[-1])

    def _einsum(self, equation: str, *operands: Tensor) -> Tensor:
        """XLNet's `bnij,jbnd->ibnd`."""
        if (
            equation.replace(" ", "") != "bnij,jbnd->ibnd"
            or not self._follows(operands[0])
            or self.open is None
        ):
            return torch.einsum(equation, *operands)
        return self._attend(operands[0], operands[1].permute(1, 2, 0, 3), self.open).permute(
            2, 0, 1, 3
        )

    def _attend(self, formed: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        output, _ = self.session.attend(FormedCall(self.module, formed, value, seen))
        self.followed = []
        return output.transpose(1, 2)
