"""Tap architectures outside the attention registry of transformers: one method of the attention
module is redirected.

GPT-1 and similar models have a method that takes query, key and value: it calls the tap instead.
MPNet has only one method for everything, from the layer's input to its output: it is written out
here in three steps, because its queries and keys are those of BERT and only a bias is added.
Others mix that step into a longer method: while it runs, its softmax over keys and the product that
follows are intercepted. The weights are then the module's own, and the session sees, changes and
multiplies them."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.models.tap import NAME, SESSION, Call, FormedCall, TapSession, register

SOFTMAX = {nn.functional.softmax, torch.softmax, Tensor.softmax}
PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}
Undo = Callable[[], object]


def select_tap(module: nn.Module) -> list[Undo]:
    """Select the tap for every attention of a model, submodels included; return the functions that
    undo it."""
    register()
    undo: list[Undo] = []
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is None or not hasattr(config, "_attn_implementation_internal"):
            continue
        before = config._attn_implementation_internal
        if before != NAME:  # parts share configs
            config._attn_implementation_internal = NAME
            undo.append(partial(setattr, config, "_attn_implementation_internal", before))
    return undo + redirect_methods(module)


def redirect_methods(model: nn.Module) -> list[Undo]:
    """Redirect the attention of modules outside the registry to the tap; return the functions that
    undo it."""
    undo: list[Undo] = []
    for module in model.modules():
        name = _file_and_class(module)
        if name in REPLACED_METHODS:
            method, replacement = REPLACED_METHODS[name]
        elif forms_weights(module):
            method = "forward"
            replacement = intercepted_forward
        else:
            continue
        bound = types.MethodType(replacement, module)
        attributes = vars(module)
        if method == "forward" and "_old_forward" in attributes:
            # accelerate's forward fetches the weights, then calls this one.
            undo.append(partial(setattr, module, "_old_forward", attributes["_old_forward"]))
            setattr(module, "_old_forward", bound)  # noqa: B010  (a Tensor or Module to mypy)
        elif method not in attributes:
            setattr(module, method, bound)
            undo.append(partial(delattr, module, method))
    return undo


def forms_weights(attention: nn.Module) -> bool:
    """Return whether an attention module forms its weights itself: the session sees these, but not
    the queries and keys."""
    return ".".join(_file_and_class(attention)) in INTERCEPTED


def _file_and_class(module: nn.Module) -> tuple[str, str]:
    """Return the name of the model's file, without `modeling_`, and that of the class."""
    file = type(module).__module__.rpartition(".")[2].removeprefix("modeling_")
    return file, type(module).__name__


def _through_tap(
    module: nn.Module, model_method: Callable[[], Any], *tensors: Any, **options: Any
) -> tuple[Tensor, Tensor | None] | None:
    """Return output `[example, head, token, d_head]` and weights of a call by the session; None
    without a session: then the module's own method computes it."""
    session = SESSION.get()
    if session is None:
        return None

    def plain() -> tuple[Tensor, Tensor | None]:
        result = model_method()
        weights = result[1] if len(result) > 1 else None
        return result[0].transpose(1, 2), weights

    output, weights = session.attend(Call(module, *tensors, model_eager=plain, **options))
    return output.transpose(1, 2), weights


def _gpt1(
    self: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None = None,
    output_attentions: bool = False,
) -> list[Any]:
    model_method = partial(type(self)._attn, self, q, k, v, attention_mask, output_attentions)
    scaling = v.shape[-1] ** -0.5 if self.scale else 1.0
    result = _through_tap(
        self, model_method, q, k.transpose(2, 3), v, attention_mask, scaling=scaling, causal=True
    )
    if result is None:
        unwatched: list[Any] = model_method()
        return unwatched
    output, weights = result
    return [output, weights] if output_attentions else [output]


def _gptj(
    self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> Any:
    model_method = partial(type(self)._attn, self, query, key, value, attention_mask)
    scaling = 1.0 / float(self.scale_attn)
    return (
        _through_tap(
            self, model_method, query.float(), key.float(), value, attention_mask, scaling=scaling
        )
        or model_method()
    )


def _gpt_neo(
    self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> Any:
    model_method = partial(type(self)._attn, self, query, key, value, attention_mask)
    keys = key.shape[2]
    # The causal triangle, or the band of a local layer.
    window = self.bias[:, :, keys - query.shape[2] : keys, :keys]
    if attention_mask is not None:
        window = attention_mask.masked_fill(~window, torch.finfo(attention_mask.dtype).min)
    return (
        _through_tap(self, model_method, query.float(), key.float(), value, window, scaling=1.0)
        or model_method()
    )


def _mpnet(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Any, ...]:
    session = SESSION.get()
    if session is None:
        unwatched: tuple[Any, ...] = type(self).forward(
            self, hidden_states, attention_mask, position_bias, output_attentions, **others
        )
        return unwatched
    by_head = (*hidden_states.shape[:-1], -1, self.attention_head_size)
    query = self.q(hidden_states).view(by_head).transpose(1, 2)
    key = self.k(hidden_states).view(by_head).transpose(1, 2)
    value = self.v(hidden_states).view(by_head).transpose(1, 2)
    output, weights = session.attend(
        Call(self, query, key, value, attention_mask, bias=position_bias)
    )
    projected = self.o(output.flatten(2))
    return (projected, weights) if output_attentions else (projected,)


# file.class of attention modules whose softmax is intercepted
INTERCEPTED = frozenset(
    (
        "bloom.BloomAttention",
        "deberta.DisentangledSelfAttention",
        "deberta_v2.DisentangledSelfAttention",
        "falcon.FalconAttention",
        "flaubert.MultiHeadAttention",
        "fsmt.Attention",
        "gpt_neox_japanese.GPTNeoXJapaneseAttention",
        "megatron_bert.MegatronBertSelfAttention",
        "mpt.MptAttention",
        "rembert.RemBertSelfAttention",
        "roformer.RoFormerSelfAttention",
        "xglm.XGLMAttention",
        "xlm.MultiHeadAttention",
        "xlnet.XLNetRelativeAttention",
    )
)

# (file, class) of the attention module -> the method that computes attention, and its replacement
REPLACED_METHODS: dict[tuple[str, str], tuple[str, Callable[..., Any]]] = {
    ("openai", "Attention"): ("_attn", _gpt1),
    ("gptj", "GPTJAttention"): ("_attn", _gptj),
    ("codegen", "CodeGenAttention"): ("_attn", _gptj),
    ("gpt_neo", "GPTNeoSelfAttention"): ("_attn", _gpt_neo),
    ("mpnet", "MPNetSelfAttention"): ("forward", _mpnet),
}


def intercepted_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the module's own forward, with its attention computed by the session of the context, if
    there is one."""
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

    def __init__(self, module: nn.Module, session: TapSession) -> None:
        super().__init__()
        self.module = module
        self.session = session
        self.weights: Tensor | None = None  # as they came from the softmax
        self.visible: Tensor | None = None  # which keys are visible
        self.followed: list[Tensor] = []  # the same numbers in other shapes or dtypes

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
            weights: Tensor = func(*args, **kwargs)
            # Masks in these modules are the lowest number of the dtype, -1e30 (XLNet) or -inf.
            lowest = torch.finfo(scores.dtype).min
            self.weights = weights
            self.visible = scores > max(lowest / 2, -1e28)
            self.followed = [weights]
            return weights
        if self.followed and func in PRODUCTS and self._follows(args[0]):
            return self._product(args[0], args[1])
        if self.followed and func is torch.einsum and any(self._follows(x) for x in args[1:]):
            return self._einsum(args[0], *args[1:])
        result = func(*args, **kwargs)
        is_followed = bool(self.followed and args and self._follows(args[0]))
        # A view, a cast or dropout: the same number of elements.
        if is_followed and isinstance(result, Tensor) and result.numel() == args[0].numel():
            self.followed.append(result)
        return result

    def _follows(self, value: Any) -> bool:
        return any(value is x for x in self.followed)

    def _product(self, weights: Tensor, value: Tensor) -> Tensor:
        """Return `weights @ value` for `[example, head, ...]` or `[example * head, ...]`."""
        assert self.weights is not None
        assert self.visible is not None
        formed = weights
        visible = self.visible
        if weights.ndim == 3:
            shape = self.weights.shape
            if self.weights.ndim != 4:
                shape = torch.Size((-1, int(self.module.num_heads), *weights.shape[1:]))  # type: ignore[arg-type]
            formed = weights.view(shape)
            visible = visible.view(shape)
            value = value.view(*formed.shape[:2], *value.shape[1:])
        output = self._attend(formed, value, visible)
        return output.reshape(*weights.shape[:-1], output.shape[-1])

    def _einsum(self, equation: str, *operands: Tensor) -> Tensor:
        """Return XLNet's product of weights and values, `bnij,jbnd->ibnd`; other sums as torch
        computes them."""
        is_product = equation.replace(" ", "") == "bnij,jbnd->ibnd" and self._follows(operands[0])
        if not is_product or self.visible is None:
            return torch.einsum(equation, *operands)
        output = self._attend(operands[0], operands[1].permute(1, 2, 0, 3), self.visible)
        return output.permute(2, 0, 1, 3)

    def _attend(self, formed: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        output, _ = self.session.attend(FormedCall(self.module, formed, value, visible))
        self.followed = []
        return output.transpose(1, 2)
